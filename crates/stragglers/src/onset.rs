// SPDX-License-Identifier: Apache-2.0
//! When something slow was first seen.

use ncclscope_operations::stats::count;

/// The time at which something slow was first seen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Onset {
    /// On the job's clock, ns.
    Job(f64),
    /// Since 1970, ns.
    Real(u64),
}

impl Onset {
    /// The first of these times after which at least `share` of them are slow.
    pub(crate) fn first<T: Copy>(times: &[(T, bool)], share: f64) -> Option<T> {
        let mut slow = times.iter().filter(|(_, is_slow)| *is_slow).count();
        for (at, (time, _)) in times.iter().enumerate().filter(|(_, (_, is_slow))| *is_slow) {
            if count(slow) >= share * count(times.len() - at) {
                return Some(*time);
            }
            slow -= 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Onset;

    #[test]
    fn the_onset_is_where_it_stays_slow() {
        let first = |slow: &str| {
            let times: Vec<(usize, bool)> = slow.bytes().map(|b| b == b'#').enumerate().collect();
            Onset::first(&times, 0.5)
        };
        assert_eq!(first("########"), Some(0));
        assert_eq!(first("......####.###"), Some(6));
        assert_eq!(first("#........#.#.####"), Some(9), "once before is chance");
        assert_eq!(first("......"), None);
        assert_eq!(first(""), None);
    }
}
