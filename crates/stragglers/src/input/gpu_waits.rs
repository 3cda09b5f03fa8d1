// SPDX-License-Identifier: Apache-2.0
//! The times in which a rank's receives and sends both waited for its own GPU.

use super::comm_id::CommKey;
use crate::time_blocks::TimeBlocks;
use ncclscope_operations::hash::Map;
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::steps::StepExt;
use ncclscope_trace::Step;
use std::collections::BTreeMap;

/// (from, to), ns since 1970.
pub(super) type Span = (i64, i64);

/// One channel: the times in which received data was available, and in which a send buffer was
/// free.
#[derive(Debug, Default)]
struct Channel {
    transfers: u64,
    received: u64,
    sent: u64,
    receives: Vec<Span>,
    sends: Vec<Span>,
    /// One of its operations both receives and sends.
    has_both: bool,
    /// Until then: the operations seen so far, and whether their first ProxyOp sends.
    directions: Map<u32, bool>,
}

impl Channel {
    fn add_direction(&mut self, operation: u32, is_send: bool) {
        if self.has_both {
            return;
        }
        if *self.directions.entry(operation).or_insert(is_send) != is_send {
            self.has_both = true;
            self.directions = Map::default();
        }
    }
}

/// The waits of a rank's channels in a communicator.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct GpuWaitSum {
    /// Its transfers.
    pub(super) transfers: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// For how long both directions waited at the same time, ns (mean of its channels).
    pub(super) ns: f64,
    /// The same by blocks of time.
    pub(super) blocks: TimeBlocks,
    /// Twice the bytes of the lesser direction of channels on which an operation both received and
    /// sent.
    pub(super) shown: u64,
}

/// The channels of all ranks, by communicator, rank and channel.
#[derive(Debug, Default)]
pub(super) struct GpuWaits {
    numbers: BTreeMap<(CommKey, i32, u8), usize>,
    channels: Vec<Channel>,
}

impl GpuWaits {
    /// Index of the channel, by communicator, rank and number, of an operation's ProxyOp, which
    /// may be a send, with that many completed steps and bytes.
    pub(super) fn channel(
        &mut self,
        key: (CommKey, i32, u8),
        (operation, is_send): (u32, bool),
        (completed, bytes): (u64, u64),
    ) -> usize {
        let channel = *self.numbers.entry(key).or_insert_with(|| {
            self.channels.push(Channel::default());
            self.channels.len() - 1
        });
        let sums = &mut self.channels[channel];
        sums.transfers += completed;
        let sum = if is_send { &mut sums.sent } else { &mut sums.received };
        *sum = sum.saturating_add(bytes);
        sums.add_direction(operation, is_send);
        channel
    }

    /// Adds a time in which steps of a channel waited, whose operation's kernel ran in `kernel`.
    pub(super) fn add(&mut self, channel: usize, is_send: bool, (from, to): Span, kernel: Span) {
        let channel = &mut self.channels[channel];
        let clipped = (from.max(kernel.0), to.min(kernel.1));
        if clipped.0 < clipped.1 {
            if is_send { channel.sends.push(clipped) } else { channel.receives.push(clipped) }
        }
    }

    /// The sums of each rank with network transfers in a communicator.
    pub(super) fn sums(mut self) -> BTreeMap<(CommKey, i32), GpuWaitSum> {
        let mut channels: BTreeMap<(CommKey, i32), u64> = BTreeMap::new();
        for (comm, rank, _) in self.numbers.keys() {
            *channels.entry((*comm, *rank)).or_default() += 1;
        }
        let mut sums: BTreeMap<(CommKey, i32), GpuWaitSum> = BTreeMap::new();
        for ((comm, rank, _), number) in self.numbers {
            let channel = std::mem::take(&mut self.channels[number]);
            let sum = sums.entry((comm, rank)).or_default();
            sum.transfers += channel.transfers;
            let bytes = channel.received.saturating_add(channel.sent);
            sum.bytes = sum.bytes.saturating_add(bytes);
            let lesser = channel.received.min(channel.sent);
            let shown = if channel.has_both { lesser.saturating_mul(2) } else { 0 };
            sum.shown = sum.shown.saturating_add(shown);
            for (from, to) in common(channel.receives, channel.sends) {
                let [from, to] = [from, to].map(|ns| u64::try_from(ns).unwrap_or_default());
                let ns = to_f64(to - from) / to_f64(channels[&(comm, rank)]);
                sum.ns += ns;
                sum.blocks.add(1, ns, to);
            }
        }
        sums
    }
}

/// When a step waited for its GPU, in ticks, if known.
pub(super) fn waited(step: &Step, is_send: bool) -> Option<(u64, u64)> {
    let [first, second, third] = step.state_ticks();
    if is_send { first.zip(second) } else { third.map(|at| (at, step.end_ticks())) }
}

/// The spans in which one of `a` and one of `b` overlap.
fn common(a: Vec<Span>, b: Vec<Span>) -> Vec<Span> {
    let (a, b) = (union(a), union(b));
    let (mut i, mut j, mut all) = (0, 0, Vec::new());
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let (from, to) = (x.0.max(y.0), x.1.min(y.1));
        all.extend((from < to).then_some((from, to)));
        if x.1 <= y.1 { i += 1 } else { j += 1 }
    }
    all
}

/// The union of the spans, sorted and without overlap.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut all: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match all.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => all.push(span),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_and_only_where_both_wait() {
        let receives = vec![(30, 50), (0, 10), (5, 20)];
        let sends = vec![(15, 40), (18, 19), (60, 70)];
        assert_eq!(common(receives, sends), [(15, 20), (30, 40)]);
        assert_eq!(common(vec![(0, 10)], vec![]), []);
    }

    #[test]
    fn a_gpu_that_receives_and_sends_in_different_operations_is_not_judged() {
        let has_both = |ops: &[(u32, bool)]| {
            let mut channel = Channel::default();
            ops.iter().for_each(|&(at, is_send)| channel.add_direction(at, is_send));
            channel.has_both
        };
        assert!(!has_both(&[(1, true), (2, false), (3, true), (2, false)]));
        assert!(has_both(&[(1, false), (2, false), (2, true), (3, true)]));
    }
}
