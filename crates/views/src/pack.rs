// SPDX-License-Identifier: Apache-2.0
//! Distributes slices over as few tracks as possible, so that the slices of a track nest.

use crate::scene::Slice;
use ncclscope_operations::tracks;

/// Sorts slices so that each comes before those that it contains. Equal ones keep their order.
pub(crate) fn sort(slices: &mut [Slice]) {
    slices.sort_by_key(|slice| (slice.start, std::cmp::Reverse(slice.end)));
}

/// Distributes slices over tracks so that two slices of a track are disjoint or nested.
pub(crate) fn nested(mut slices: Vec<Slice>) -> Vec<Vec<Slice>> {
    sort(&mut slices);
    tracks::nested(slices, |slice| (slice.start, slice.end))
}

/// Distributes outer slices and their inner slices. Outer slices of a track are disjoint, and inner
/// slices are on the track of their outer slice. Inner slices that overlap others go to additional
/// tracks. `inner` has the index of the outer slice with each inner slice.
pub(crate) fn families(outer: &[Slice], mut inner: Vec<(usize, Slice)>) -> Vec<Vec<Slice>> {
    let mut order: Vec<usize> = (0..outer.len()).collect();
    order.sort_by_key(|&at| (outer[at].start, outer[at].end));
    let mut packed: Vec<Vec<Slice>> = Vec::new();
    let mut home = vec![0; outer.len()];
    let mut ends: Vec<u64> = Vec::new();
    for at in order {
        home[at] = tracks::first_free(&mut ends, outer[at].start, outer[at].end);
        put(&mut packed, home[at], outer[at]);
    }
    let outer_tracks = packed.len();
    let mut inner_ends = vec![0; outer_tracks];
    let mut spare_ends = Vec::new();
    inner.sort_by_key(|(_, slice)| (slice.start, slice.end));
    for (parent, slice) in inner {
        let (around, home) = (outer[parent], home[parent]);
        let fits = around.start <= slice.start && slice.end <= around.end;
        if fits && inner_ends[home] <= slice.start {
            inner_ends[home] = slice.end;
            put(&mut packed, home, slice);
        } else {
            let spare = tracks::first_free(&mut spare_ends, slice.start, slice.end);
            put(&mut packed, outer_tracks + spare, slice);
        }
    }
    packed.iter_mut().for_each(|track| sort(track));
    packed
}

fn put(tracks: &mut Vec<Vec<Slice>>, at: usize, slice: Slice) {
    if tracks.len() <= at {
        tracks.resize_with(at + 1, Vec::new);
    }
    tracks[at].push(slice);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::SliceSource;

    fn slice(start: u64, end: u64) -> Slice {
        Slice { start, end, what: SliceSource::Step(0), open: false }
    }

    fn ranges(tracks: &[Vec<Slice>]) -> Vec<Vec<(u64, u64)>> {
        tracks.iter().map(|t| t.iter().map(|s| (s.start, s.end)).collect()).collect()
    }

    #[test]
    fn overlap_goes_to_another_track() {
        let slices = [(0, 10), (2, 4), (5, 12), (4, 4), (10, 11), (2, 4)];
        let tracks = nested(slices.map(|(a, b)| slice(a, b)).to_vec());
        assert_eq!(
            ranges(&tracks),
            [vec![(0, 10), (2, 4), (2, 4), (4, 4), (10, 11)], vec![(5, 12)]]
        );
    }

    #[test]
    fn steps_stay_under_their_own_operation() {
        let ops = [slice(0, 10), slice(5, 20)];
        let steps = [(0, 1, 4), (0, 2, 6), (1, 6, 8), (0, 6, 9), (0, 9, 11), (1, 8, 20)];
        let inner = steps.map(|(op, a, b)| (op, slice(a, b))).to_vec();
        let tracks = families(&ops, inner);
        assert_eq!(
            ranges(&tracks),
            [vec![(0, 10), (1, 4), (6, 9)], vec![(5, 20), (6, 8), (8, 20)], vec![(2, 6), (9, 11)],]
        );
    }

    #[test]
    fn an_operation_comes_before_a_step_as_long_as_itself() {
        let tracks = families(&[slice(3, 7)], vec![(0, slice(3, 7))]);
        assert_eq!(ranges(&tracks), [vec![(3, 7), (3, 7)]]);
    }
}
