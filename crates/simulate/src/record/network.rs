// SPDX-License-Identifier: Apache-2.0
//! Proxy operations and their steps, as the progress thread reports them.

use super::buffer::{PROXY, RecordBuffer};
use crate::model::flow::Flow;
use crate::time::{NEVER, Time, before};
use ncclscope_trace::progress::OpProgress;
use ncclscope_trace::record::{ProxyOp, STEP_SHIFT, step_flags};
use ncclscope_trace::{Detail, Handle, State, Step};

/// Time from the start of an operation to the start of its proxy operations, ns.
const APPEND_NS: u64 = 3_000;

/// One end of a flow, to be recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSide<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) is_send: bool,
    /// Rank of the other end in the communicator.
    pub(crate) peer: i32,
    /// This rank in the communicator.
    pub(crate) rank: i32,
    pub(crate) pid: u32,
    pub(crate) comm: u16,
    /// When the progress thread stops.
    pub(crate) proxy_stop: Time,
}

/// A recorded proxy operation, from which its progress is derived.
#[derive(Debug)]
pub(crate) struct RecordedProxyOp<'a> {
    side: FlowSide<'a>,
    handle: Handle,
    /// When it started, and when it stopped.
    pub(crate) start: Time,
    pub(crate) stop: Time,
}

impl<'a> FlowSide<'a> {
    /// Times of a step: start, three states, stop.
    fn times(&self, index: usize) -> [Time; 5] {
        let step = &self.flow.steps[index];
        if self.is_send {
            let [posted, ready, sent, done] = step.send;
            [posted, posted, ready, sent, done]
        } else {
            step.recv
        }
    }

    fn steps(&self) -> usize {
        let end = if self.is_send { &self.flow.from } else { &self.flow.to };
        (end.steps as usize).min(self.flow.steps.len())
    }

    /// Records the proxy operation, a child of `parent`, with its steps.
    pub(crate) fn record(
        self,
        buffer: &mut RecordBuffer,
        parent: Handle,
        enqueued: Time,
    ) -> RecordedProxyOp<'a> {
        let end = if self.is_send { &self.flow.from } else { &self.flow.to };
        let start = before(enqueued.saturating_add(APPEND_NS), self.proxy_stop);
        let detail = ProxyOp {
            pid: self.pid,
            channel: self.flow.channel,
            peer: self.peer,
            steps: end.steps,
            chunk_bytes: self.flow.bytes,
            is_send: self.is_send,
            foreign: false,
            rank: self.rank,
        };
        let handle = buffer.start(PROXY, start, (self.comm, parent), Detail::ProxyOp(detail));
        if start > buffer.end {
            return RecordedProxyOp { side: self, handle, start: NEVER, stop: NEVER };
        }
        let progress = before(end.begin.max(start), self.proxy_stop);
        buffer.state(PROXY, progress, handle, State::PROXY_OP_IN_PROGRESS, 0);
        for index in 0..self.steps() {
            self.record_step(buffer, handle, index);
        }
        let stop = if self.is_send { self.flow.sent() } else { self.flow.received() };
        let stop = before(stop, self.proxy_stop);
        buffer.stop(PROXY, stop, handle);
        RecordedProxyOp { side: self, handle, start, stop }
    }

    fn record_step(&self, buffer: &mut RecordBuffer, op: Handle, index: usize) {
        let times = self.times(index);
        if times[0] > buffer.end {
            return;
        }
        let ticks = buffer.clocks.ticks(times[0]);
        let mut flags = if self.is_send { step_flags::IS_SEND } else { 0 };
        let mut states = [0; 3];
        let seen = [step_flags::FIRST, step_flags::SECOND, step_flags::THIRD];
        for ((state, flag), &time) in states.iter_mut().zip(seen).zip(&times[1..4]) {
            if time <= buffer.end {
                flags |= flag;
                *state = (buffer.clocks.ticks(time) - ticks) >> STEP_SHIFT;
            }
        }
        let sized = if self.is_send { times[3] } else { times[2] };
        if sized <= buffer.end {
            flags |= step_flags::SIZED;
        }
        // A step that did not stop is written when the recording ends.
        let ends = times[4].min(buffer.end);
        if times[4] <= buffer.end {
            flags |= step_flags::STOPPED;
        }
        let polls = times[3].min(buffer.end).saturating_sub(times[2]) / 1_000;
        let step = Step {
            ticks,
            flags,
            repeats: if self.is_send { u16::try_from(polls).unwrap_or(u16::MAX) } else { 0 },
            step: u32::try_from(index).unwrap_or(0),
            op_ref: op.op_ref(),
            size: if flags & step_flags::SIZED == 0 { 0 } else { self.flow.bytes },
            states,
            end: (buffer.clocks.ticks(ends) - ticks) >> STEP_SHIFT,
        };
        buffer.step(ends, &step);
    }
}

impl RecordedProxyOp<'_> {
    /// The record that the drain thread writes at `time`; `None` if it is not in flight then.
    pub(crate) fn progress(&self, buffer: &RecordBuffer, time: Time) -> Option<OpProgress> {
        if time < self.start || time >= self.stop {
            return None;
        }
        let (mut counts, mut since) = ([0; 5], self.start);
        let mut live = None;
        for index in 0..self.side.steps() {
            let times = self.side.times(index);
            for (count, &at) in counts.iter_mut().zip(&times) {
                if at <= time {
                    *count += 1;
                    since = since.max(at);
                }
            }
            if live.is_none() && times[0] <= time && times[4] > time {
                let reached = times[1..4].iter().take_while(|&&at| at <= time).count();
                live = u8::try_from(reached).ok();
            }
        }
        let end = if self.side.is_send { &self.side.flow.from } else { &self.side.flow.to };
        Some(OpProgress {
            ticks: buffer.clocks.ticks(time),
            comm: self.side.comm,
            handle: self.handle,
            is_send: self.side.is_send,
            channel: self.side.flow.channel,
            peer: self.side.peer,
            steps: end.steps,
            posted: counts[0],
            ready: counts[2],
            transmitted: counts[3],
            done: counts[4],
            reached: live,
            since: buffer.clocks.ticks(since),
        })
    }
}
