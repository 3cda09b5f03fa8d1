// SPDX-License-Identifier: Apache-2.0
/*!
The data flow of one channel from one rank to the next, step by step.

Between hosts two proxy threads move the data, as in NCCL's `src/transport/net.cc`: the sender's
posts a buffer and waits for its GPU, for the receiver's buffer, and for the network; the receiver's
posts a receive, waits for data, flushes it, and waits for its GPU. At most eight steps are in
flight on either side. Within a host the GPUs move the data by themselves, through the same number
of buffers.
*/

use super::conditions::Conditions;
use crate::scenario::Machine;
use crate::time::{NEVER, SECOND, Time, before, mix, scaled, transfer_ns};
use ncclscope_trace::handle::STEPS_IN_FLIGHT;

/// Time until a proxy thread notices a change, ns.
const NOTICE_NS: u64 = 700;
/// Duration of a flush, ns.
const FLUSH_NS: u64 = 2_500;
/// On a path with losses, one of this many steps is retransmitted.
const LOST_OF: u32 = 4;
/// How long competing traffic lasts, and how long it pauses, ns.
const BUSY_NS: u64 = SECOND / 10;

/// When the two ends of a step between hosts reached each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepTimes {
    /// Sender: posted, ready, given to the network, done.
    pub(crate) send: [Time; 4],
    /// Receiver: begun, accepted by the network, arrived, flushed, consumed.
    pub(crate) recv: [Time; 5],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowEnd {
    /// Rank of the job.
    pub(crate) rank: u32,
    /// Steps that this end expects to do.
    pub(crate) steps: u32,
    /// When its proxy operation makes its first progress.
    pub(crate) begin: Time,
}

/// The flow of one channel between two ranks.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) from: FlowEnd,
    pub(crate) to: FlowEnd,
    pub(crate) channel: u8,
    pub(crate) is_network: bool,
    /// Bytes of a step.
    pub(crate) bytes: u32,
    /// The steps between hosts; empty within a host.
    pub(crate) steps: Vec<StepTimes>,
    /// When the buffer of each step is free for the sender's GPU, and when its data is there.
    local: Vec<(Time, Time)>,
    wire_free: Time,
    wire_ns: u64,
    latency_ns: u64,
    wire_stop: Time,
    post_stop: Time,
    drift: (Time, f64),
    loss: f64,
    busy: f64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowParams {
    pub(crate) from: FlowEnd,
    pub(crate) to: FlowEnd,
    pub(crate) channel: u8,
    /// Channels that share the path.
    pub(crate) share: u8,
    pub(crate) is_network: bool,
    pub(crate) bytes: u64,
    /// Slowdown factor of the data.
    pub(crate) slower: f64,
}

impl Flow {
    /// A flow that has not begun.
    pub(crate) fn new(link: &FlowParams, machine: &Machine, conditions: &Conditions) -> Flow {
        let path = conditions.path(link.from.rank, link.to.rank, link.is_network);
        let (rate, latency_ns) = if link.is_network {
            (machine.network_gb_s, machine.network_ns)
        } else {
            (machine.nvlink_gb_s, machine.nvlink_ns)
        };
        let wire = transfer_ns(link.bytes, rate / f64::from(link.share.max(1)));
        Flow {
            from: link.from,
            to: link.to,
            channel: link.channel,
            is_network: link.is_network,
            bytes: u32::try_from(link.bytes).unwrap_or(u32::MAX),
            steps: Vec::new(),
            local: Vec::new(),
            wire_free: 0,
            wire_ns: scaled(wire, path.factor * link.slower),
            latency_ns,
            wire_stop: path.stop,
            post_stop: path.post_stop,
            drift: if link.is_network { conditions.drift } else { (NEVER, 1.0) },
            loss: path.loss,
            busy: path.busy,
        }
    }

    /// When the sender's GPU may fill the buffer of step `index`.
    pub(crate) fn credit(&self, index: usize, conditions: &Conditions) -> Time {
        // It has no more data: an end that expects more waits, also within a host.
        if index >= self.from.steps as usize {
            return NEVER;
        }
        let before_it = index.checked_sub(STEPS_IN_FLIGHT);
        if !self.is_network {
            return before_it.map_or(0, |at| self.local[at].0);
        }
        let done = before_it.map_or(0, |at| self.steps[at].send[3]);
        before(self.from.begin.max(done), conditions.of(self.from.rank).proxy)
    }

    /// The sender's GPU fills the buffer of the next step at `filled`. Returns when the data can be
    /// read at the other end.
    pub(crate) fn produce(&mut self, filled: Time, conditions: &Conditions) -> Time {
        let filled = before(filled, conditions.of(self.from.rank).gpu);
        if !self.is_network {
            let begins = filled.max(self.wire_free);
            self.wire_free = begins.saturating_add(self.wire_ns);
            let arrives = before(self.wire_free.saturating_add(self.latency_ns), self.wire_stop);
            self.local.push((NEVER, arrives));
            return arrives;
        }
        let index = self.steps.len();
        let (sender, receiver) = (conditions.of(self.from.rank), conditions.of(self.to.rank));
        let posted = self.credit(index, conditions);
        let (begun, accepted) = self.receive_posted(index, conditions);
        let ready = before(filled.max(posted).saturating_add(NOTICE_NS), sender.proxy);
        let invited = accepted.saturating_add(self.latency_ns);
        let sent = before(ready.max(invited).saturating_add(NOTICE_NS), sender.proxy);
        let arrives = self.transmit(sent);
        let done = arrives.saturating_add(self.latency_ns + NOTICE_NS);
        let arrived = before(arrives.saturating_add(NOTICE_NS), receiver.proxy);
        let flushed = before(arrived.saturating_add(FLUSH_NS), receiver.flush.min(receiver.proxy));
        self.steps.push(StepTimes {
            send: [posted, ready, sent, before(done, sender.proxy)],
            recv: [begun, accepted, arrived, flushed, NEVER],
        });
        flushed
    }

    /// The receiver's proxy begins to post step `index`, and the network accepts it.
    fn receive_posted(&self, index: usize, conditions: &Conditions) -> (Time, Time) {
        if index >= self.to.steps as usize {
            return (NEVER, NEVER);
        }
        let stops = conditions.of(self.to.rank);
        let consumed = index.checked_sub(STEPS_IN_FLIGHT).map_or(0, |at| self.steps[at].recv[4]);
        let begun = before(self.to.begin.max(consumed), stops.proxy);
        let accepted = before(begun.saturating_add(NOTICE_NS), stops.proxy.min(self.post_stop));
        (begun, accepted)
    }

    /// When the last byte of a step arrives if it is given to the network at `sent`.
    fn transmit(&mut self, sent: Time) -> Time {
        let begins = sent.max(self.wire_free);
        let mut slower = if begins >= self.drift.0 { self.drift.1 } else { 1.0 };
        let drawn = mix(begins, self.from.begin, 0x6c6f);
        if self.loss > 1.0 && drawn.is_multiple_of(u64::from(LOST_OF)) {
            slower *= 1.0 + (self.loss - 1.0) * f64::from(LOST_OF);
        }
        if begins != NEVER && begins / BUSY_NS % 2 == 1 {
            slower *= self.busy;
        }
        let leaves = begins.saturating_add(scaled(self.wire_ns, slower));
        let arrives = before(leaves.saturating_add(self.latency_ns), self.wire_stop);
        self.wire_free = if arrives == NEVER { NEVER } else { leaves };
        arrives
    }

    /// The receiver's GPU has read the data of step `index` at `consumed`; its buffer is free.
    pub(crate) fn consume(
        &mut self,
        index: usize,
        consumed: Time,
        conditions: &Conditions,
    ) -> Time {
        let stops = conditions.of(self.to.rank);
        let consumed = before(consumed, stops.gpu);
        if self.is_network {
            let noticed = before(consumed.saturating_add(NOTICE_NS), stops.proxy);
            self.steps[index].recv[4] = noticed;
        } else {
            self.local[index].0 = consumed;
        }
        consumed
    }

    /// Drops the state that only solving needs.
    pub(crate) fn finish(mut self) -> Flow {
        self.local = Vec::new();
        self.steps.shrink_to_fit();
        self
    }

    /// When the sender's proxy operation has done all of its steps.
    pub(crate) fn sent(&self) -> Time {
        self.last(self.from.steps, |step| step.send[3])
    }

    /// When the receiver's proxy operation has done all of its steps.
    pub(crate) fn received(&self) -> Time {
        self.last(self.to.steps, |step| step.recv[4])
    }

    fn last(&self, steps: u32, of: impl Fn(&StepTimes) -> Time) -> Time {
        let last = (steps as usize).checked_sub(1).and_then(|last| self.steps.get(last));
        last.map_or(NEVER, |step| of(step).saturating_add(NOTICE_NS))
    }
}
