// SPDX-License-Identifier: Apache-2.0
/*!
The pause before the next attempt.

Pauses grow, and each has a random part, so that ranks that lost their collector at the same time do
not retry at the same time. The pause that the collector requests is a minimum, up to
[`LONGEST_ASKED`].
*/

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The first pause (`FIRST`) and the longest, if the collector requests none.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// The longest pause that a collector may request; a longer one would in effect stop the metrics.
pub(crate) const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// A random duration from 0 to `whole`.
#[must_use]
pub fn part_of(whole: Duration) -> Duration {
    // The hasher's keys are random numbers of the system, different in each process and at each
    // call.
    let draw = RandomState::new().hash_one(0u8) >> 32;
    let nanoseconds = whole.as_nanos().saturating_mul(draw.into()) >> 32;
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// The pauses between tries.
#[derive(Debug)]
pub(crate) struct Pace {
    own: Duration,
}

impl Pace {
    /// Starts with the first pause.
    pub(crate) const fn new() -> Pace {
        Pace { own: FIRST }
    }

    /// The next pause: at least the one that the collector requests, and at least half of our own;
    /// plus a random part of up to half of the longer one.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let least = asked.unwrap_or_default().min(LONGEST_ASKED).max(self.own / 2);
        let pause = least + part_of(least.max(self.own) / 2);
        self.own = (self.own * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_and_no_two_processes_keep_step() {
        let series = || {
            let mut pace = Pace::new();
            (0..8).map(|_| pace.next(None)).collect::<Vec<_>>()
        };
        let (one, other) = (series(), series());
        for pauses in [&one, &other] {
            for (at, pause) in (0u32..).zip(pauses) {
                let own = (FIRST * 2u32.pow(at)).min(LONGEST);
                assert!(own / 2 <= *pause && *pause <= own, "{at}: {pause:?}");
            }
        }
        assert_ne!(one, other);
    }

    #[test]
    fn what_is_asked_for_is_the_least_but_never_none_and_never_for_ever() {
        let mut pace = Pace::new();
        let none = pace.next(Some(Duration::ZERO));
        assert!(SECOND / 2 <= none && none <= SECOND, "{none:?}");
        let asked = Pace::new().next(Some(20 * SECOND));
        assert!(20 * SECOND <= asked && asked <= 30 * SECOND, "{asked:?}");
        let hostile = Pace::new().next(Some(Duration::MAX));
        assert!(LONGEST_ASKED <= hostile && hostile <= LONGEST_ASKED * 3 / 2, "{hostile:?}");
    }

    #[test]
    fn parts_are_spread_over_the_whole() {
        let parts: Vec<Duration> = (0..1000).map(|_| part_of(SECOND)).collect();
        assert!(parts.iter().all(|part| *part <= SECOND));
        for tenth in 0..10 {
            let (from, to) = (SECOND * tenth / 10, SECOND * (tenth + 1) / 10);
            let count = parts.iter().filter(|part| (from..to).contains(*part)).count();
            assert!((40..200).contains(&count), "{tenth}: {count}");
        }
        assert_eq!(part_of(Duration::ZERO), Duration::ZERO);
        assert!(part_of(Duration::MAX) <= Duration::MAX);
    }
}
