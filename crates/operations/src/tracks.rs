// SPDX-License-Identifier: Apache-2.0
//! Distributes time ranges over as few tracks as possible: viewers drop slices of a track that
//! cross, or show wrong durations.

/// Spreads stretches over tracks on which they are apart or one inside the other. They come sorted
/// by their start, the longer one first; `span` returns the start and the end of a range.
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

/// The first track whose last stretch is over at `start`, which then lasts until `end`; a new one
/// if there is none. `ends` has the end of each track's last stretch.
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
