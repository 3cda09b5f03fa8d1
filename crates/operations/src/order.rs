// SPDX-License-Identifier: Apache-2.0
/*!
Conclusions about operations whose own records do not show their end, from the order of kernels:
those of one rank's communicator run one after another, and so do those of one CUDA stream.

- An operation without a recorded kernel may still wait for it only if no later kernel was recorded.
- A kernel that was recorded on fewer channels than NCCL announces may still have to start on the
  others only if no later kernel was recorded, and if kernels of this communicator use all of them.
- After a stop that is not the end ([`crate::ends`]), a later kernel shows that the operation is
  over, and a later operation that waits for its kernel shows that it is not. But the later
  operation may instead wait behind kernels of other communicators. So a later kernel of the stream,
  of any communicator, also shows that the operation is over ([`StreamOrder`]).
*/

use crate::facts::{Facts, Launched};
use crate::hash::Map;
use crate::steps::earliest;

/// The first API version in which a collective's number of channels is the actual one and not an
/// upper bound.
const CHANNELS_SINCE: u32 = 4;

/// Whether kernels run on all channels that NCCL announces.
#[derive(Clone, Copy, Debug, Default)]
struct Channels {
    /// The API version reports the actual number of channels.
    is_told: bool,
    /// A kernel ran on all of several channels (`were_all`), or on fewer (`were_fewer`).
    were_all: bool,
    were_fewer: bool,
}

/// The recorded kernels of one rank's communicator.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelOrder {
    /// This rank; `None` if unknown.
    rank: Option<i32>,
    /// The latest operation whose kernel was recorded.
    seen: Option<Launched>,
    /// The latest collective, and the latest send or receive, that must have a kernel.
    last: [Option<Launched>; 2],
    /// Whether kernels were recorded of collectives, and of sends or receives.
    tells: [bool; 2],
    /// Start of the first collective, and of the first send or receive, that must have a kernel, in
    /// ticks, as far as none was recorded.
    first: [Option<u64>; 2],
    channels: Channels,
    /// Time from which kernel events are not used, in ticks, because they have the times of others
    /// ([`crate::kernels`]).
    until: Option<u64>,
    /// Operations that started before this time get no more children, in ticks.
    settled: u64,
}

impl KernelOrder {
    /// Sets NCCL's profiler API version of the communicator.
    pub const fn api(&mut self, version: u32) {
        self.channels.is_told = version >= CHANNELS_SINCE;
    }

    /// Sets this rank; a negative number is ignored.
    pub fn rank(&mut self, rank: i32) {
        self.rank = Some(rank).filter(|&rank| rank >= 0).or(self.rank);
    }

    /// Sets the time from which kernel events are not used ([`crate::kernels`]).
    pub const fn believe_until(&mut self, ticks: Option<u64>) {
        self.until = ticks;
    }

    /// Sets the time before which operations get no more children.
    pub const fn settle(&mut self, ticks: u64) {
        self.settled = ticks;
    }

    /// Whether no more children are recorded of an operation that started at `start`.
    #[must_use]
    pub const fn is_settled(&self, start: u64) -> bool {
        start < self.settled
    }

    /// Whether the kernel times of an operation that started at `start` are used.
    #[must_use]
    pub fn is_believed(&self, start: u64) -> bool {
        self.until.is_none_or(|until| start < until)
    }

    /// Whether any kernel was recorded.
    #[must_use]
    pub const fn has_kernels(&self) -> bool {
        self.seen.is_some()
    }

    /// Takes the start of an operation.
    pub fn operation(&mut self, facts: &Facts, own: Launched) {
        if !facts.has_kernel(self.rank) {
            return;
        }
        let kind = usize::from(facts.is_p2p());
        let last = &mut self.last[kind];
        if last.is_none_or(|last| own.start >= last.start) {
            *last = Some(own);
        }
        if !self.tells[kind] {
            self.first[kind] = earliest(self.first[kind], Some(own.start));
        }
    }

    /// Takes the start of a kernel of an operation.
    pub fn kernel(&mut self, own: Launched, is_p2p: bool) {
        self.tells[usize::from(is_p2p)] = true;
        if self.seen.is_none_or(|latest| own.start >= latest.start) {
            self.seen = Some(own);
        }
    }

    /// Takes the number of channels on which the kernel of an operation was recorded; `is_over` if
    /// no more will come.
    pub const fn saw_channels(&mut self, count: usize, facts: &Facts, is_over: bool) {
        let wanted = facts.wanted as usize;
        self.channels.were_all |= wanted > 1 && count >= wanted;
        self.channels.were_fewer |= is_over && count > 0 && count < wanted;
    }

    /// Whether the kernel of an operation without a recorded kernel may still start.
    #[must_use]
    pub fn awaits(&self, facts: &Facts, own: Launched) -> bool {
        let may_come = |seen: Launched| own.start >= seen.start && own.is_apart(seen);
        facts.has_kernel(self.rank)
            && self.tells[usize::from(facts.is_p2p())]
            && self.is_believed(own.start)
            && !self.is_settled(own.start)
            && self.seen.is_some_and(may_come)
    }

    /// Set for an operation that must have a kernel if none of its kind was recorded yet; true for
    /// the first such operation. Its kernel may start at any later time.
    #[must_use]
    pub fn may_be_first(&self, facts: &Facts, own: Launched) -> Option<bool> {
        let kind = usize::from(facts.is_p2p());
        let may_be =
            !self.tells[kind] && facts.has_kernel(self.rank) && self.is_believed(own.start);
        may_be.then(|| self.first[kind].is_some_and(|first| own.start <= first))
    }

    /// Whether the kernel of an operation was recorded on `count` channels, not on all, and no
    /// later kernel was recorded.
    #[must_use]
    pub fn lacks_channels(&self, count: usize, facts: &Facts, own: Launched) -> bool {
        let is_latest = self.seen.is_some_and(|seen| seen.start <= own.start);
        is_latest && count > 0 && count < usize::from(facts.wanted)
    }

    /// Whether the kernel of an operation, recorded on `count` channels, has certainly not started
    /// on the others.
    #[must_use]
    pub fn awaits_channels(&self, count: usize, facts: &Facts, own: Launched) -> bool {
        let Channels { is_told, were_all, were_fewer } = self.channels;
        let are_all = is_told && were_all && !were_fewer;
        are_all && self.is_believed(own.start) && self.lacks_channels(count, facts, own)
    }

    /// For an operation: whether a later kernel has started, and whether a later operation waits
    /// for its kernel.
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

/// The greatest handle of a default stream: devices or threads have different default streams with
/// the same handle.
const DEFAULT_STREAMS: u64 = 2;
/// Most streams that are kept, because a process may create and destroy any number.
const MAX_STREAMS: usize = 1 << 10;

/// The latest kernel of each CUDA stream of a process.
#[derive(Clone, Debug, Default)]
pub struct StreamOrder {
    seen: Map<u64, Launched>,
}

impl StreamOrder {
    /// Takes the start of a kernel of an operation on this stream.
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
        let may_be = |order: &KernelOrder| all.map(|own| order.may_be_first(&one, own));
        assert_eq!(may_be(&order), [Some(true), Some(false), Some(false)]);
        order.kernel(all[1], false);
        assert_eq!(may_be(&order), [None; 3]);
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
