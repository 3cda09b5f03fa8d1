// SPDX-License-Identifier: Apache-2.0
/*!
Finds kernel times that belong to another work.

NCCL keeps the GPU's time stamps of a channel in a ring of 64 entries. If NCCL's proxy thread reads
more than 64 works late, it gets the stamps of a work 64 later (`transport/profiler.cc@v2.30.7-1`
only checks that the slot's number is high enough): a start that a later kernel has, too, or one
after the starts of later kernels. The kernels of a channel run in order, so all times of a kernel,
its stop included, must be before the start of the next. The works of one kernel may have equal
times.

If the ring overtakes the reader between the two stamps of a work, one of them belongs to another
work: the stop is after the starts of later kernels, or before its own start. The latter also
happens if the GPU's timer was set back; then the order proves nothing, and only equal starts do.
*/

use crate::hash::Map;
use ncclscope_trace::Handle;
use std::collections::BTreeSet;

/// Number of starts that are kept per channel; an overtaken reader is at most one ring late.
const KEPT: usize = 128;

/// The result of a check of a kernel's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The times are another work's.
    Stray,
    /// The times passed: no later kernel can prove that they are another work's, because more
    /// kernels than the ring has entries followed.
    Passed,
}

/// A kernel's start on a channel.
#[derive(Clone, Copy, Debug)]
struct Begun<T> {
    ptimer: u64,
    /// GPU time of its stop, ns; `None` if unknown.
    stop: Option<u64>,
    /// The group of its operation, whose operations may share the kernel.
    group: Handle,
    id: T,
}

/// The starts of a channel.
#[derive(Debug)]
struct Channel<T> {
    /// In the order of their callbacks, which must be that of their times.
    begun: Vec<Begun<T>>,
    /// The starts before the timer seemed to go backward.
    before_jump: Vec<Begun<T>>,
}

/// The starts of each channel of each communicator.
#[derive(Debug)]
pub struct Stamps<T> {
    channels: Map<(u16, u8), Channel<T>>,
}

impl<T> Default for Channel<T> {
    fn default() -> Channel<T> {
        Channel { begun: Vec::new(), before_jump: Vec::new() }
    }
}

impl<T> Default for Stamps<T> {
    fn default() -> Stamps<T> {
        Stamps { channels: Map::default() }
    }
}

impl<T> Stamps<T> {
    /// Forgets finalized communicators.
    pub fn forget(&mut self, comms: &BTreeSet<u16>) {
        self.channels.retain(|(comm, _), _| !comms.contains(comm));
    }
}

impl<T: Copy> Stamps<T> {
    /// Adds a kernel of `group` that started on a channel at `ptimer` and stopped at `stop`, if
    /// that is known. Calls `tell` for each kernel, earlier or this one, whose verdict is now
    /// known. A kernel without times (`ptimer` 0) is ignored.
    pub fn start(
        &mut self,
        place: (u16, u8),
        (ptimer, stop, group): (u64, Option<u64>, Handle),
        id: T,
        mut tell: impl FnMut(T, Verdict),
    ) {
        if ptimer == 0 {
            return;
        }
        let channel = self.channels.entry(place).or_default();
        channel.before_jump.retain(|before| {
            let is_given_twice = before.ptimer == ptimer && before.group != group;
            if is_given_twice {
                tell(before.id, Verdict::Stray);
            }
            !is_given_twice
        });
        let is_anothers = |before: &Begun<T>| match before.group == group {
            true => before.ptimer > ptimer,
            false => before.ptimer >= ptimer || before.stop.is_some_and(|stop| stop > ptimer),
        };
        let begun = &mut channel.begun;
        while let Some(before) = begun.last()
            && is_anothers(before)
        {
            tell(before.id, Verdict::Stray);
            begun.pop();
        }
        push(begun, Begun { ptimer, stop, group, id }, &mut tell);
        if stop.is_some_and(|stop| stop < ptimer) {
            channel.jump(&mut tell);
        }
    }
}

impl<T> Channel<T> {
    /// Handles a timer that seems to have gone backward: the order of earlier starts proves nothing
    /// about later ones.
    fn jump(&mut self, tell: &mut impl FnMut(T, Verdict)) {
        for begun in self.begun.drain(..) {
            push(&mut self.before_jump, begun, tell);
        }
    }
}

/// Appends a start; if there are too many, the oldest half has passed.
fn push<T>(kept: &mut Vec<Begun<T>>, begun: Begun<T>, tell: &mut impl FnMut(T, Verdict)) {
    if kept.len() >= KEPT {
        kept.drain(..KEPT / 2).for_each(|passed| tell(passed.id, Verdict::Passed));
    }
    kept.push(begun);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::EventKind;

    /// Adds starts (group, ptimer) of one channel; returns the indices of the stray ones.
    fn stray(starts: &[(u64, u64)]) -> Vec<usize> {
        let whole = starts.iter().map(|&(group, ptimer)| (group, ptimer, None));
        stray_of(whole)
    }

    /// [`stray`] for (group, start, stop).
    fn stray_of(works: impl IntoIterator<Item = (u64, u64, Option<u64>)>) -> Vec<usize> {
        let (mut stamps, mut stray) = (Stamps::default(), Vec::new());
        for (at, (group, ptimer, stop)) in works.into_iter().enumerate() {
            let group = Handle::value(1, EventKind::Group, 0, group);
            let times = (ptimer, stop, group);
            stamps.start((0, 0), times, at, |id, verdict| {
                if verdict == Verdict::Stray {
                    stray.push(id);
                }
            });
        }
        stray.sort_unstable();
        stray
    }

    #[test]
    fn kernels_of_a_channel_start_in_order() {
        assert_eq!(stray(&[(1, 10), (2, 20), (3, 30)]), []);
        assert_eq!(stray(&[(1, 10), (1, 10), (1, 12), (2, 20)]), [], "one kernel, two works");
        assert_eq!(stray(&[(1, 0), (2, 0)]), [], "no times at all");
    }

    #[test]
    fn times_of_a_later_work_are_found() {
        // The first three were read after the ring had been overtaken.
        assert_eq!(stray(&[(1, 70), (2, 80), (3, 90), (4, 40), (5, 50), (6, 60)]), [0, 1, 2]);
        // The first has the times of the 65th.
        assert_eq!(stray(&[(1, 70), (2, 20), (65, 70), (66, 80)]), [0]);
        assert_eq!(stray(&[(1, 70), (65, 70)]), [0]);
    }

    /// The works of a channel of the scenario `counters-behind` as recorded; `given` says from
    /// which works the reader got start and stop.
    fn read(given: impl Fn(u64) -> (u64, u64)) -> Vec<usize> {
        let works = (0..120).map(|work| {
            let (start, stop) = given(work);
            (work, 10 + start * 10, Some(10 + stop * 10 + 5))
        });
        stray_of(works)
    }

    #[test]
    fn one_stamp_of_a_later_work_is_enough() {
        let late = |work: u64, until: u64| work + if work < until { 64 } else { 0 };
        let of = |range: std::ops::Range<usize>| range.collect::<Vec<_>>();
        assert_eq!(read(|work| (late(work, 16), late(work, 16))), of(0..16));
        // 2.28.9: work 16 has the start of work 80, and its own stop.
        assert_eq!(read(|work| (late(work, 17), late(work, 16))), of(0..17));
        // Work 2 has its own start and the stop of work 66; the works after it are overtaken.
        let given = |work| match work {
            0 | 1 => (work, work),
            2 => (2, 66),
            _ => (late(work, 16), late(work, 16)),
        };
        assert_eq!(read(given), of(2..16));
    }

    #[test]
    fn a_clock_that_went_back_makes_nothing_stray() {
        let after = |work: u64| work.wrapping_sub(50);
        let works = (0..120).map(|work| match work {
            0..50 => (work, 10_000 + work * 10, Some(10_005 + work * 10)),
            50 => (work, 10_500, Some(3)),
            _ => (work, after(work) * 10, Some(after(work) * 10 + 5)),
        });
        assert_eq!(stray_of(works), []);
    }

    #[test]
    fn a_forgotten_communicator_leaves_nothing() {
        let mut stamps = Stamps::default();
        for (comm, channel) in [(1, 0), (1, 9), (2, 0)] {
            stamps.start((comm, channel), (10, None, Handle::NULL), (), |(), _| ());
        }
        stamps.forget(&[1].into());
        assert_eq!(stamps.channels.keys().collect::<Vec<_>>(), [&(2, 0)]);
    }

    #[test]
    fn memory_is_bounded() {
        let starts: Vec<(u64, u64)> = (1..10_000).map(|n| (n, n * 10)).collect();
        let (mut stamps, mut passed) = (Stamps::default(), 0);
        for (group, ptimer) in starts {
            let group = Handle::value(1, EventKind::Group, 0, group);
            stamps.start((0, 0), (ptimer, None, group), ptimer, |id, verdict| {
                assert_eq!(verdict, Verdict::Passed, "all is in order");
                passed += 1;
                assert_eq!(id, passed * 10);
            });
        }
        let kept = stamps.channels[&(0, 0)].begun.len();
        assert!(kept <= KEPT && passed == 9_999 - kept as u64);
    }
}
