// SPDX-License-Identifier: Apache-2.0
/*!
Finds kernel times that are another work's.

NCCL keeps the GPU's time stamps of a channel in a ring of 64. A reader more than 64 works
late gets those of a work 64 later (`transport/profiler.cc@v2.30.7-1` asks only whether the slot's
number is high enough): a start that a later kernel has, too, or one behind the starts of later
kernels. The kernels of a channel run in order, so that of each start everything before it must be
earlier. The works of one kernel may have equal times.
*/

use crate::metrics::hash::Map;
use ncclscope_trace::Handle;

/// Starts that are kept of a channel: what is overtaken is at most the ring behind.
const KEPT: usize = 128;

/// A kernel's start on a channel.
#[derive(Clone, Copy, Debug)]
struct Begun<T> {
    ptimer: u64,
    /// The group of its operation, whose operations may share the kernel.
    group: Handle,
    id: T,
}

/// The starts of each channel of each communicator, in the order of their callbacks.
#[derive(Debug)]
pub(crate) struct Stamps<T> {
    channels: Map<(u16, u8), Vec<Begun<T>>>,
}

impl<T> Default for Stamps<T> {
    fn default() -> Stamps<T> {
        Stamps { channels: Map::default() }
    }
}

impl<T: Copy> Stamps<T> {
    /// A kernel of `group` started on a channel at `ptimer`; `stray` gets those before it whose
    /// times cannot be their own.
    pub(crate) fn start(
        &mut self,
        channel: (u16, u8),
        (ptimer, group): (u64, Handle),
        id: T,
        mut stray: impl FnMut(T),
    ) {
        if ptimer == 0 {
            return;
        }
        let begun = self.channels.entry(channel).or_default();
        let is_kernels_own = |before: &Begun<T>| before.ptimer == ptimer && before.group == group;
        while let Some(before) = begun.last()
            && before.ptimer >= ptimer
            && !is_kernels_own(before)
        {
            stray(before.id);
            begun.pop();
        }
        if begun.len() >= KEPT {
            begun.drain(..KEPT / 2);
        }
        begun.push(Begun { ptimer, group, id });
    }

    /// The GPU's timer went back: what was before says nothing.
    pub(crate) fn clock_jumped(&mut self, channel: (u16, u8)) {
        self.channels.remove(&channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::EventKind;

    /// Plays starts (group, ptimer) of one channel; returns the places of those that are stray.
    fn stray(starts: &[(u64, u64)]) -> Vec<usize> {
        let (mut stamps, mut stray) = (Stamps::default(), Vec::new());
        for (at, &(group, ptimer)) in starts.iter().enumerate() {
            let group = Handle::value(1, EventKind::Group, 0, group);
            stamps.start((0, 0), (ptimer, group), at, |id| stray.push(id));
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
        // The 65th has the times that the first was given.
        assert_eq!(stray(&[(1, 70), (2, 20), (65, 70), (66, 80)]), [0]);
        assert_eq!(stray(&[(1, 70), (65, 70)]), [0]);
    }

    #[test]
    fn memory_is_bounded() {
        let starts: Vec<(u64, u64)> = (1..10_000).map(|n| (n, n * 10)).collect();
        let mut stamps = Stamps::default();
        for (group, ptimer) in starts {
            let group = Handle::value(1, EventKind::Group, 0, group);
            stamps.start((0, 0), (ptimer, group), (), |()| panic!("all is in order"));
        }
        assert!(stamps.channels[&(0, 0)].len() <= KEPT);
    }
}
