// SPDX-License-Identifier: Apache-2.0
/*!
The operations in flight in one process, updated record by record.

[`Tracker`] takes the words of each lane as the drain thread reads them. From time to time
[`Tracker::look`] finds the operations that are over: by [`crate::ends`], and, if CUDA events are
on, not before they show the end of the kernel ([`LaunchFate`]). An operation for which NCCL reports
only the enqueuing counts as over, so that it is never reported as hung.

A step costs one array access, any other record at most two hash lookups. Memory is bounded: of too
many operations the oldest are kept. A lost event must not look like an operation that hangs: a
[`LostEvent`] affects only the operation that it belongs to, and all operations are forgotten only
if that one is unknown.

This module does **not** decide why an operation hangs, or after which time it counts as hung: its
caller does.
*/

mod calls;
mod comms;
mod foreign;
mod names;
mod ops;
mod proxies;
mod usual;

#[cfg(test)]
mod tests;

pub use crate::facts::Facts;
pub use calls::{Call, Launch, LaunchFate};
pub use comms::{CommView, FinishedOperation};
pub use foreign::ForeignWork;
pub use ops::OpView;
pub use proxies::{Owner, ProxyView};

use calls::Calls;
use comms::Comms;
use foreign::ForeignEnds;
use names::Names;
use ncclscope_trace::record::{KernelCh, START, STATE, STEP, STEP_LONG, STOP, Start, schema};
use ncclscope_trace::{Comm, Detail, EventKind, Handle, Record, State, StrId};
use ops::Ops;
use proxies::{Proxies, Proxy};

/// Facts from outside of the records.
#[expect(missing_debug_implementations, reason = "functions")]
pub struct LiveState<'a> {
    /// Whether a ProxyOp has not stopped, from its slot; more current than records, which may be
    /// unread.
    pub is_live: &'a dyn Fn(Handle) -> bool,
    /// The state of a launch on the GPU.
    pub fate: &'a dyn Fn(Handle) -> LaunchFate,
}

/// An event that happened and has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostEvent {
    /// The start of an event, of which no records will follow.
    Start {
        /// Its kind.
        kind: EventKind,
        /// Its parent.
        parent: Handle,
    },
    /// The stop of this event.
    Stop(Handle),
}

/// Tracks the operations, ProxyOps and calls in flight in one process.
#[derive(Debug, Default)]
pub struct Tracker {
    comms: Comms,
    ops: Ops,
    proxies: Proxies,
    foreign: ForeignEnds,
    calls: Calls,
    names: Names,
    /// Whether the last look left no room for another operation.
    is_full: bool,
    /// Whether operations were left out because there was no room.
    left_out: bool,
    /// Ticks per second, as of the last look.
    hz: u64,
    is_lossy: bool,
    is_partial: bool,
    /// Operations that started before this time are ignored, in ticks, because records of that time
    /// were lost.
    doubt: u64,
}

impl Tracker {
    /// Takes a definition of a communicator, new or updated.
    pub fn comm(&mut self, comm: &Comm) {
        let state = self.comms.known(comm.index);
        state.rank = Some(comm.rank).filter(|&rank| rank >= 0);
        state.hash = comm.hash;
        state.order.api(comm.api_version);
        state.order.rank(comm.rank);
        self.names.drifts.comm(comm);
    }

    /// Takes a definition of the process's string table.
    pub fn string(&mut self, id: StrId, text: &str) {
        self.names.string(id, text);
    }

    /// Notes that a communicator was finalized. The next look is the last that reports its
    /// operations.
    pub fn end_comm(&mut self, index: u16) {
        self.comms.get(index).ended = true;
    }

    /// Removes a finalized communicator after the last look, because a process may create tens of
    /// thousands. Late records do not bring it back.
    pub fn forget_comm(&mut self, index: u16) {
        self.comms.forget(index);
        self.names.drifts.forget(index);
    }

    /// Takes words of a lane, which must be whole records in the lane's order.
    pub fn words(&mut self, lane: usize, words: &[u64]) {
        let mut rest = words;
        while let Some(&head) = rest.first() {
            let code = head.to_le_bytes()[0];
            // Steps are by far the most frequent records, and only three of their words are needed
            // here.
            if code == STEP
                && let Some((step, after)) = rest.split_first_chunk()
            {
                self.proxies.step(lane, step);
                rest = after;
                continue;
            }
            let Some((len, _)) = schema(code) else { return };
            let Some((record, after)) = rest.split_at_checked(len) else { return };
            match code {
                STEP_LONG => self.proxies.long_step(lane, record),
                STOP => {
                    if let &[_, ticks, handle] = record {
                        self.stop(ticks, Handle(handle));
                    }
                }
                STATE => {
                    if let &[head, ticks, handle, _] = record {
                        let [_, state, ..] = head.to_le_bytes();
                        self.state(ticks, Handle(handle), State(state));
                    }
                }
                START.. => {
                    Record::unpack(rest).iter().for_each(|record| self.record(lane, record));
                }
                _ => {}
            }
            rest = after;
        }
    }

    /// Takes a decoded record of a lane, in the lane's order.
    pub fn record(&mut self, lane: usize, record: &Record) {
        match *record {
            Record::Step(step) => self.proxies.stepped(lane, &step),
            Record::Start(start) => self.start(lane, &start),
            Record::Stop { ticks, handle } => self.stop(ticks, handle),
            Record::State { ticks, handle, state, .. } => self.state(ticks, handle, state),
            _ => {}
        }
    }

    fn start(&mut self, lane: usize, start: &Start) {
        match start.detail {
            Detail::Coll(_) | Detail::P2p(_) | Detail::CeColl(_) => {
                self.believe(start);
                if start.ticks < self.doubt {
                    return;
                }
                if self.ops.is_full() && !self.is_full {
                    self.make_room(start.ticks);
                }
                let launch = self.calls.launch_of(lane, start);
                self.ops.head(&mut self.comms, start, launch);
            }
            Detail::ProxyOp(op) => {
                let parent = if op.foreign { Handle::NULL } else { start.parent };
                if !op.foreign {
                    self.comms.get(start.comm).proxy_lane = Some(lane);
                }
                if let Some(left) = self.proxies.start(lane, start, &op, parent) {
                    self.proxy_stopped(&left, start.ticks);
                }
                if !parent.is_null()
                    && start.ticks >= self.doubt
                    && self.ops.proxy(parent, start.ticks)
                {
                    self.proxies.belongs(start.handle);
                }
            }
            Detail::KernelCh(KernelCh { channel, .. }) if start.ticks >= self.doubt => {
                self.ops.kernel(&mut self.comms, start, channel);
            }
            Detail::CeSync(_) | Detail::CeBatch(_) if start.ticks >= self.doubt => {
                self.ops.part(start);
            }
            Detail::CollApi(_) => {
                self.believe(start);
                self.calls.start(lane, start);
            }
            _ => self.calls.start(lane, start),
        }
    }

    /// Takes the start of an event that may tell since when kernel events are not used.
    fn believe(&mut self, start: &Start) {
        self.names.drifts.start(start);
        let until = self.names.drifts.since(start.comm);
        self.comms.get(start.comm).order.believe_until(until);
    }

    fn stop(&mut self, ticks: u64, handle: Handle) {
        match handle.kind() {
            EventKind::Coll | EventKind::P2p | EventKind::CeColl => {
                if ticks >= self.doubt {
                    self.ops.enqueued(handle, ticks);
                }
            }
            EventKind::KernelCh | EventKind::CeSync | EventKind::CeBatch => {
                self.ops.child_stopped(handle, ticks);
            }
            EventKind::ProxyOp => {
                if let Some(proxy) = self.proxies.stop(handle) {
                    if proxy.owner.is_none() {
                        self.comms.get(proxy.comm).moves(proxy.link);
                    }
                    self.proxy_stopped(&proxy, ticks);
                }
            }
            _ => self.calls.stop(ticks, handle),
        }
    }

    fn proxy_stopped(&mut self, proxy: &Proxy, ticks: u64) {
        match proxy.owner {
            Some(owner) => self.foreign.ended(owner, ticks),
            None => self.ops.proxy_stopped(proxy, ticks),
        }
    }

    fn state(&mut self, ticks: u64, handle: Handle, state: State) {
        match handle.kind() {
            EventKind::ProxyOp => self.proxies.moved(handle, ticks),
            EventKind::GroupApi => self.calls.state(ticks, handle, state),
            _ => {}
        }
    }

    /// Takes an event without a record, which happened at `now` or before. All records up to `now`
    /// must have been read.
    pub fn missed(&mut self, missed: LostEvent, now: u64) {
        self.is_lossy = true;
        match missed {
            // The exact time is unknown.
            LostEvent::Stop(handle) => self.stop(now, handle),
            LostEvent::Start { kind: EventKind::KernelLaunch, .. } => self.calls.forget_launches(),
            LostEvent::Start { kind, parent } => self.ops.missed(&mut self.comms, kind, parent),
        }
    }

    /// Notes that the process did not run from `from` to `until`, in ticks. Times of operations in
    /// flight then are not used as usual times.
    pub const fn was_away(&mut self, from: u64, until: u64) {
        self.comms.away = (from, until);
    }

    /// Notes that kernel events are off since `ticks`: no later operation has any.
    pub fn kernels_off(&mut self, ticks: u64) {
        self.names.drifts.off(ticks);
    }

    /// Notes that operations that started before `ticks` get no more children, because the
    /// recording window in which they were enqueued ended long ago. Those without children then
    /// count as over.
    pub const fn settled(&mut self, ticks: u64) {
        self.comms.settled = ticks;
    }

    /// Notes that an event was lost, perhaps of an operation that is not in flight.
    pub const fn lost(&mut self) {
        self.is_lossy = true;
    }

    /// Notes that some operations of the process are not recorded, so that the counts of its ranks
    /// are not compared.
    pub const fn partial(&mut self) {
        self.is_partial = true;
    }

    /// Whether any event was lost.
    #[must_use]
    pub const fn is_lossy(&self) -> bool {
        self.is_lossy || self.doubt > 0 || self.left_out
    }

    /// Forgets all operations that started at `until` or before, because ends of unknown events
    /// were lost up to then.
    pub fn forget(&mut self, until: u64) {
        self.doubt = self.doubt.max(until.saturating_add(1));
        self.ops.forget(until);
        self.proxies.forget(until);
        self.calls.forget(until);
    }

    /// Finds the operations that are over at `now` ticks; `hz` is the number of ticks per second.
    pub fn look(&mut self, now: u64, hz: u64, outside: &LiveState<'_>) {
        self.hz = hz;
        self.look_at(now, outside, false);
    }

    /// Removes finished operations without waiting for late records, because too many are tracked.
    /// If all are in flight, new ones are left out until one ends; those that hang are among the
    /// oldest.
    #[cold]
    fn make_room(&mut self, now: u64) {
        let outside = LiveState { is_live: &|_| true, fate: &|_| LaunchFate::Unknown };
        self.look_at(now, &outside, true);
        self.is_full = self.ops.is_full();
        self.left_out |= self.is_full;
    }

    fn look_at(&mut self, now: u64, outside: &LiveState<'_>, in_a_hurry: bool) {
        for gone in self.proxies.look(&mut self.comms, outside.is_live) {
            // Of another process's no operation is known, and the end was after the latest look.
            let ticks = if gone.owner.is_some() { now } else { gone.changed };
            self.proxy_stopped(&gone, ticks);
        }
        let are_whole = !self.is_partial && !self.is_lossy();
        self.comms.begin_look(&self.names.drifts, are_whole);
        for proxy in self.proxies.on_network() {
            self.ops.proxy_moves(proxy);
        }
        if !in_a_hurry {
            self.ops.ask(&mut self.comms, outside.fate);
        }
        self.ops.look(&mut self.comms, &self.names, (now, self.hz), in_a_hurry);
        self.comms.end_look();
        self.is_full = false;
        self.calls.look(now, self.hz);
    }

    /// ProxyOps that NCCL will not stop, as of the last look: they never moved, and their operation
    /// is over.
    pub fn abandoned(&self) -> impl Iterator<Item = Handle> + '_ {
        self.proxies.still().filter(|proxy| !self.ops.has(proxy.op)).map(|proxy| proxy.handle)
    }

    /// The communicators, as of the last look.
    pub fn comms(&self) -> impl Iterator<Item = CommView> + '_ {
        self.comms.views()
    }

    /// A communicator, as of the last look.
    #[must_use]
    pub fn comm_view(&self, index: u16) -> Option<CommView> {
        self.comms.view(index)
    }

    /// The latest operations of a communicator that are over, oldest first.
    pub fn past(&self, comm: u16) -> impl Iterator<Item = &FinishedOperation> {
        self.comms.past(comm)
    }

    /// Everything in flight as of the last look, the oldest first.
    #[must_use]
    pub fn in_flight(&self) -> Vec<OpView> {
        let mut all = self.ops.views(&self.comms, &self.names);
        let mut proxies = self.proxies.by_op();
        for op in &mut all {
            op.proxies = proxies.remove(&op.handle).unwrap_or_default();
        }
        all
    }

    /// ProxyOps in flight that move data over the network, the one with the oldest change first.
    #[must_use]
    pub fn proxies(&self) -> Vec<ProxyView> {
        self.proxies.views()
    }

    /// What the proxy thread has in flight for other processes (PXN), as of the last look.
    #[must_use]
    pub fn foreign(&self) -> Vec<ForeignWork> {
        self.foreign.work(&self.proxies)
    }

    /// API calls and launches that have not returned, the oldest first.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.views()
    }
}
