// SPDX-License-Identifier: Apache-2.0
/*!
The kernels of one rank's communicator run one after another, and so do those of one CUDA stream:
what this shows about operations whose own records do not show their end.

- An operation without a recorded kernel may still wait for it only if no later kernel was recorded.
- A kernel that was recorded on fewer channels than NCCL announces may still have to start on the
  others only if no later kernel was recorded, and if kernels of this communicator use all of them.
- After a stop that is not the end ([`crate::ends`]), a later kernel shows that the operation is
  over, and a later operation that waits for its kernel shows that it is not. That one may also wait
  for its turn behind kernels of other communicators: a later kernel of the stream, of whichever
  communicator, shows that the operation is over ([`StreamOrder`]).
*/

use crate::facts::{Facts, Launched};
use crate::hash::Map;

/// The API version from which on a collective has the channels that it works on, and not the most
/// that it may.
const CHANNELS_SINCE: u32 = 4;

/// Whether kernels work on all channels that NCCL announces.
#[derive(Clone, Copy, Debug, Default)]
struct Channels {
    /// NCCL reports how many there are.
    is_told: bool,
    /// Kernels were seen that did, of several channels, and that did not.
    were_all: bool,
    were_fewer: bool,
}

/// The recorded kernels of one rank's communicator.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelOrder {
    /// This rank, where that is known.
    rank: Option<i32>,
    /// The latest operation whose kernel was seen.
    seen: Option<Launched>,
    /// The latest collective, and the latest send or receive, that has a kernel.
    last: [Option<Launched>; 2],
    /// Kernels were seen of collectives, and of sends or receives.
    tells: [bool; 2],
    channels: Channels,
    /// From then on, in ticks, kernels say nothing: NCCL takes them for other ones.
    until: Option<u64>,
    /// NCCL reports no further child of what started before, in ticks.
    settled: u64,
}

impl KernelOrder {
    /// NCCL's profiler API version of the communicator.
    pub const fn api(&mut self, version: u32) {
        self.channels.is_told = version >= CHANNELS_SINCE;
    }

    /// This rank; negative where it is not known.
    pub fn rank(&mut self, rank: i32) {
        self.rank = Some(rank).filter(|&rank| rank >= 0).or(self.rank);
    }

    /// From these ticks on kernels are not believed ([`crate::kernels`]).
    pub const fn believe_until(&mut self, ticks: Option<u64>) {
        self.until = ticks;
    }

    /// No child is recorded any more of what started before these ticks.
    pub const fn settle(&mut self, ticks: u64) {
        self.settled = ticks;
    }

    /// Whether NCCL reports no further child of an operation that started at `start`.
    #[must_use]
    pub const fn is_settled(&self, start: u64) -> bool {
        start < self.settled
    }

    /// Whether the kernel times of an operation that started at `start` are used.
    #[must_use]
    pub fn is_believed(&self, start: u64) -> bool {
        self.until.is_none_or(|until| start < until)
    }

    /// Kernels were seen.
    #[must_use]
    pub const fn has_kernels(&self) -> bool {
        self.seen.is_some()
    }

    /// An operation started.
    pub fn operation(&mut self, facts: &Facts, own: Launched) {
        let last = &mut self.last[usize::from(facts.is_p2p())];
        if facts.has_kernel(self.rank) && last.is_none_or(|last| own.start >= last.start) {
            *last = Some(own);
        }
    }

    /// A kernel of an operation was seen.
    pub fn kernel(&mut self, own: Launched, is_p2p: bool) {
        self.tells[usize::from(is_p2p)] = true;
        if self.seen.is_none_or(|latest| own.start >= latest.start) {
            self.seen = Some(own);
        }
    }

    /// The kernel of an operation was seen on so many channels; `is_over` if no more will come.
    pub const fn saw_channels(&mut self, count: usize, facts: &Facts, is_over: bool) {
        let wanted = facts.wanted as usize;
        self.channels.were_all |= wanted > 1 && count >= wanted;
        self.channels.were_fewer |= is_over && count > 0 && count < wanted;
    }

    /// Whether the kernel of an operation that shows none can be outstanding.
    #[must_use]
    pub fn awaits(&self, facts: &Facts, own: Launched) -> bool {
        let may_come = |seen: Launched| own.start >= seen.start && own.is_apart(seen);
        facts.has_kernel(self.rank)
            && self.tells[usize::from(facts.is_p2p())]
            && self.is_believed(own.start)
            && !self.is_settled(own.start)
            && self.seen.is_some_and(may_come)
    }

    /// Whether the kernel of an operation was seen on some channels only, and no later one at all.
    #[must_use]
    pub fn lacks_channels(&self, count: usize, facts: &Facts, own: Launched) -> bool {
        let is_latest = self.seen.is_some_and(|seen| seen.start <= own.start);
        is_latest && count > 0 && count < usize::from(facts.wanted)
    }

    /// Whether the kernel of an operation, which was seen on so many channels, has not started on
    /// the others.
    #[must_use]
    pub fn awaits_channels(&self, count: usize, facts: &Facts, own: Launched) -> bool {
        let Channels { is_told, were_all, were_fewer } = self.channels;
        let are_all = is_told && were_all && !were_fewer;
        are_all && self.is_believed(own.start) && self.lacks_channels(count, facts, own)
    }

    /// Of an operation, whether a later kernel has started, and whether a later operation waits
    /// for its own.
    #[must_use]
    pub fn later(&self, own: Launched) -> (bool, bool) {
        let followed = self.seen.is_some_and(|seen| seen.follows(own));
        let waits = |(last, tells): (&Option<Launched>, bool)| {
            let may_come = |last: Launched| {
                last.follows(own)
                    && self.seen.is_some_and(|seen| last.start > seen.start)
                    && self.is_believed(last.start)
                    && !self.is_settled(last.start)
            };
            tells && last.is_some_and(may_come)
        };
        (followed, !followed && self.last.iter().zip(self.tells).any(waits))
    }
}

/// CUDA's names for default streams: each device, or thread, has its own of the same name.
const DEFAULT_STREAMS: u64 = 2;
/// Streams that are remembered at most: a process may create and destroy any number.
const MAX_STREAMS: usize = 1 << 10;

/// The latest kernel of each CUDA stream of a process.
#[derive(Clone, Debug, Default)]
pub struct StreamOrder {
    seen: Map<u64, Launched>,
}

impl StreamOrder {
    /// A kernel of an operation of this stream was seen.
    pub fn kernel(&mut self, stream: u64, own: Launched) {
        if stream <= DEFAULT_STREAMS {
            return;
        }
        if self.seen.len() >= MAX_STREAMS && !self.seen.contains_key(&stream) {
            let oldest = self.seen.iter().min_by_key(|(_, seen)| seen.start).map(|(&of, _)| of);
            oldest.map(|of| self.seen.remove(&of));
        }
        let seen = self.seen.entry(stream).or_insert(own);
        if own.start >= seen.start {
            *seen = own;
        }
    }

    /// Whether a later kernel of this stream has started, so that the operation's has ended.
    #[must_use]
    pub fn is_followed(&self, stream: u64, own: Launched) -> bool {
        self.seen.get(&stream).is_some_and(|seen| seen.follows(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::{Detail, EventKind, Handle, record::Coll};

    fn facts(channels: u8) -> Facts {
        Facts::of(&Detail::Coll(Coll { channels, count: 1, ..Coll::default() })).unwrap()
    }

    fn at(start: u64) -> Launched {
        Launched { start, group: Handle::value(1, EventKind::Group, 0, start) }
    }

    #[test]
    fn only_what_comes_after_the_latest_kernel_can_wait_for_its_own() {
        let mut order = KernelOrder::default();
        let (one, all) = (facts(1), [1, 2, 3].map(at));
        all.iter().for_each(|&own| order.operation(&one, own));
        assert!(!order.awaits(&one, all[2]), "NCCL may not tell of kernels");
        order.kernel(all[1], false);
        assert_eq!(all.map(|own| order.awaits(&one, own)), [false, false, true]);
        assert_eq!(all.map(|own| order.later(own)), [(true, false), (false, true), (false, false)]);
        order.settle(4);
        assert!(!order.awaits(&one, all[2]) && !order.later(all[1]).1);
    }

    #[test]
    fn channels_are_awaited_where_kernels_work_on_all() {
        let (two, mut order) = (facts(2), KernelOrder::default());
        order.api(4);
        order.kernel(at(2), false);
        assert!(order.lacks_channels(1, &two, at(2)) && !order.awaits_channels(1, &two, at(2)));
        order.saw_channels(2, &two, true);
        assert!(order.awaits_channels(1, &two, at(2)) && !order.awaits_channels(2, &two, at(2)));
        let (mut old, mut fewer) = (order, order);
        old.api(3);
        fewer.saw_channels(1, &two, true);
        assert!(!old.awaits_channels(1, &two, at(2)) && !fewer.awaits_channels(1, &two, at(2)));
        order.kernel(at(3), false);
        assert!(!order.awaits_channels(1, &two, at(2)), "a later kernel has started");
    }

    #[test]
    fn a_later_kernel_of_the_stream_follows_whatever_its_communicator() {
        let mut streams = StreamOrder::default();
        [(9, at(2)), (9, at(1)), (8, at(4)), (1, at(5))]
            .iter()
            .for_each(|&(stream, own)| streams.kernel(stream, own));
        assert!(streams.is_followed(9, at(1)) && !streams.is_followed(9, at(2)));
        assert!(!streams.is_followed(7, at(1)), "no kernel of this stream was seen");
        assert!(!streams.is_followed(1, at(1)), "the default streams of two devices look alike");
        (10..5_000).for_each(|of| streams.kernel(of, at(of)));
        assert_eq!(streams.seen.len(), MAX_STREAMS);
        assert!(streams.is_followed(4_999, at(1)) && !streams.is_followed(9, at(1)));
    }
}
