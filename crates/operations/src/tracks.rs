// SPDX-License-Identifier: Apache-2.0
//! Distributes time ranges over as few tracks as possible, because viewers drop slices of a track
//! that cross, or show wrong durations.

/// Distributes ranges over tracks so that two ranges of a track are disjoint or nested. The ranges
/// must be sorted by start, of equal starts the longer first; `span` returns start and end of a
/// range.
pub fn nested<T, N: Ord + Copy>(sorted: Vec<T>, span: impl Fn(&T) -> (N, N)) -> Vec<Vec<T>> {
    let mut tracks: Vec<(Vec<N>, Vec<T>)> = Vec::new();
    for stretch in sorted {
        let (start, end) = span(&stretch);
        let free = tracks.iter_mut().position(|(open, _)| {
            while open.pop_if(|end| *end <= start).is_some() {}
            open.last().is_none_or(|&around| around >= end)
        });
        let at = free.unwrap_or(tracks.len());
        if at == tracks.len() {
            tracks.push((Vec::new(), Vec::new()));
        }
        tracks[at].0.push(end);
        tracks[at].1.push(stretch);
    }
    tracks.into_iter().map(|(_, stretches)| stretches).collect()
}

/// Puts the range from `start` to `end` on the first track that is free at `start`, or a new one,
/// and returns the track's index. `ends` has the end of the last range on each track.
pub fn first_free<N: Ord + Copy>(ends: &mut Vec<N>, start: N, end: N) -> usize {
    let free = ends.iter().position(|&end| end <= start);
    let at = free.unwrap_or(ends.len());
    if at == ends.len() {
        ends.push(end);
    }
    ends[at] = end;
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_goes_to_another_track() {
        let tracks = nested(vec![(0, 10), (2, 4), (5, 12), (10, 11)], |&span| span);
        assert_eq!(tracks, [vec![(0, 10), (2, 4), (10, 11)], vec![(5, 12)]]);
    }

    #[test]
    fn what_overlaps_goes_to_another_track() {
        let mut ends = Vec::new();
        let tracks = [(0, 10), (2, 4), (5, 12), (10, 11)].map(|(s, e)| first_free(&mut ends, s, e));
        assert_eq!((tracks, ends), ([0, 1, 1, 0], vec![11, 12]));
    }
}
