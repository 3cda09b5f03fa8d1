// SPDX-License-Identifier: Apache-2.0
/*!
Which class of hang it is, as far as one rank can tell: the table of docs/hang.md.

Where the cause lies with another rank there is no class, but the rank that is waited for.
*/

use super::clock::Clock;
use super::seen::{StepSeen, Thread, Threads};
use super::vitals::{op_progress, steps_of};
use crate::probe::LaunchState;
use ncclscope_findings::FindingClass;
use ncclscope_operations::progress::{Call, CommView, Launch, OpView, ProxyView};
use ncclscope_trace::progress::OpProgress;
use ncclscope_trace::{EventKind, Handle};
use std::collections::HashMap;

/// What does not move.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// An operation that NCCL took.
    Op(OpView),
    /// A call of the application that did not return.
    Call(Call),
}

impl Subject {
    pub(super) fn handle(&self) -> Handle {
        match self {
            Subject::Op(op) => op.handle,
            Subject::Call(call) => call.handle,
        }
    }

    pub(super) fn comm(&self) -> u16 {
        match self {
            Subject::Op(op) => op.comm,
            Subject::Call(call) => call.comm,
        }
    }

    /// When it began, in ticks.
    pub(super) fn start(&self) -> u64 {
        match self {
            Subject::Op(op) => op.start,
            Subject::Call(call) => call.start,
        }
    }

    /// Since when nothing of it has moved, in ticks.
    pub(super) fn since(&self) -> u64 {
        match self {
            Subject::Op(op) => op.since,
            Subject::Call(call) => call.start,
        }
    }

    pub(super) fn launch(&self) -> Option<Launch> {
        match self {
            Subject::Op(op) => op.launch,
            Subject::Call(call) => call.launch,
        }
    }
}

/// What is held for the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    /// The class; none where only a comparison of ranks can tell.
    pub(super) class: Option<FindingClass>,
    /// What is seen, in one sentence.
    pub(super) why: String,
    /// The rank that is waited for, or the other end of the link.
    pub(super) peer: Option<i32>,
}

impl Verdict {
    fn new(class: FindingClass, why: impl Into<String>) -> Verdict {
        Verdict { class: Some(class), why: why.into(), peer: None }
    }

    fn edge(class: FindingClass, peer: i32, why: impl Into<String>) -> Verdict {
        Verdict { peer: Some(peer), ..Verdict::new(class, why) }
    }

    fn open(peer: Option<i32>, why: impl Into<String>) -> Verdict {
        Verdict { class: None, why: why.into(), peer }
    }
}

/// What is seen of the process.
pub(super) struct Scene<'a> {
    pub(super) in_flight: &'a [OpView],
    pub(super) comm: Option<CommView>,
    pub(super) steps: &'a [StepSeen],
    pub(super) threads: &'a Threads,
    /// What the CUDA events around launches tell, where they are on.
    pub(super) launches: &'a HashMap<Handle, LaunchState>,
    pub(super) clock: Clock,
}

impl Scene<'_> {
    pub(super) fn judge(&self, subject: &Subject) -> Verdict {
        match subject {
            Subject::Op(op) => self.op(op),
            Subject::Call(call) => entered(call),
        }
    }

    /// What CUDA events tell of a launch.
    pub(super) fn launch_state(&self, launch: Option<Launch>) -> LaunchState {
        let known = launch.and_then(|launch| self.launches.get(&launch.handle));
        known.copied().unwrap_or(LaunchState::Unknown)
    }

    fn op(&self, op: &OpView) -> Verdict {
        if !op.enqueued {
            return Verdict::new(
                FindingClass::CallNotEnqueued,
                "NCCL took it, and has not finished enqueuing it",
            );
        }
        if let Some(verdict) = self.proxy_thread(op) {
            return verdict;
        }
        let state = self.launch_state(op.launch);
        if let LaunchState::Failed { status } = state {
            let why = format!("the CUDA driver reports error {status}: the context is lost");
            return Verdict::new(FindingClass::GpuDead, why);
        }
        let started = op.started.count_ones();
        let is_untold = op.stopped != op.started || op.started == 0 && op.awaits_kernel;
        if matches!(state, LaunchState::Done { .. }) && is_untold {
            let why = "its kernel has ended, by its CUDA event, and NCCL has not reported that: \
                       whoever polls for it (the proxy thread) does not";
            return Verdict::new(FindingClass::ProxyStalled, why);
        }
        let is_running = matches!(state, LaunchState::Running { .. });
        if started == 0 && (op.awaits_kernel || state == LaunchState::NotStarted) && !is_running {
            return self.not_started(op, state);
        }
        let wanted = u32::from(op.facts.wanted);
        // Of one whose events were lost in part more channels may have started.
        if !op.is_lossy
            && !op.facts.is_p2p()
            && started > 0
            && started < wanted
            && (op.started != op.stopped || op.awaits_channels)
        {
            let why = format!(
                "its kernel has started on {started} of {wanted} channels: the others find no \
                 place on the GPU, which something else may hold"
            );
            return Verdict::new(FindingClass::KernelPartlyStarted, why);
        }
        self.network(op).unwrap_or_else(|| kernel_alone(op, is_running))
    }

    /// P1: the thread that moves the network's data does not work.
    fn proxy_thread(&self, op: &OpView) -> Option<Verdict> {
        let lane = op.proxies.first().map(|proxy| proxy.lane);
        // Inside a node the proxy thread of up to NCCL 2.30 has no ProxyOps, only kernels to poll.
        let lane = lane.or_else(|| self.comm?.proxy_lane).or_else(|| self.comm?.kernel_lane)?;
        let thread = self.threads.of(lane)?;
        // Without anything to do it sleeps, which is no fault. Up to NCCL 2.31 it also polls for
        // what the kernel does.
        let polls = thread.kinds & EventKind::KernelCh.bit() != 0;
        let is_networked = self.comm.is_some_and(|comm| comm.is_networked);
        let not_begun = op.proxies.is_empty()
            && (op.awaits_network
                || op.awaits_kernel && op.started == 0 && (polls || is_networked));
        if op.proxies.is_empty() && !not_begun {
            return None;
        }
        let Thread { now, .. } = thread;
        let tid = now.tid;
        let why = if thread.is_gone() {
            return Some(self.without_proxy_thread(op, tid));
        } else if thread.is_stopped() {
            format!("NCCL's proxy thread {tid} is stopped, by a debugger or a signal")
        } else if thread.is_starved() {
            format!("NCCL's proxy thread {tid} gets no processor")
        } else if thread.is_still() {
            let place = if now.place.is_empty() { "the kernel" } else { &now.place };
            let state = char::from(now.state);
            format!("NCCL's proxy thread {tid} has work and does none: {state}, in {place}")
        } else {
            return None;
        };
        let begun = if not_begun { "; it has not begun this operation" } else { "" };
        Some(Verdict::new(FindingClass::ProxyStalled, format!("{why}{begun}")))
    }

    /// It ends when it meets an error: then something else was wrong first.
    fn without_proxy_thread(&self, op: &OpView, tid: u32) -> Verdict {
        let why = format!(
            "NCCL's proxy thread {tid} has ended, as it does after an error such as a peer that is \
             gone"
        );
        match self.network(op) {
            Some(verdict) => Verdict { why: format!("{}; {why}", verdict.why), ..verdict },
            None => Verdict::open(None, why),
        }
    }

    /// H3a, unless it only waits for its turn.
    fn not_started(&self, op: &OpView, state: LaunchState) -> Verdict {
        let stream = op.launch.map(|launch| launch.stream);
        let before = self.in_flight.iter().find(|other| {
            other.handle != op.handle
                && other.start < op.start
                && self.has_kernel(other)
                && stream.is_some()
                && other.launch.map(|launch| launch.stream) == stream
        });
        if let Some(before) = before {
            let why = format!(
                "its kernel has not started: it is behind operation {} of another communicator \
                 on the same stream",
                before.number
            );
            return Verdict::open(None, why);
        }
        let by = if state == LaunchState::NotStarted { ", by its CUDA event too" } else { "" };
        let why = format!(
            "its kernel has not started{by}: other work is before it on its stream, or it waits \
             for an event there"
        );
        Verdict::new(FindingClass::KernelNotStarted, why)
    }

    /// Whether its kernel has started and not ended, or is before others in its stream.
    fn has_kernel(&self, op: &OpView) -> bool {
        let state = self.launch_state(op.launch);
        op.started != op.stopped
            || matches!(state, LaunchState::NotStarted | LaunchState::Running { .. })
    }

    /// By the oldest steps in flight: N1 to N5, or whom it waits for.
    fn network(&self, op: &OpView) -> Option<Verdict> {
        let all: Vec<OpProgress> =
            op.proxies.iter().map(|proxy| op_progress(proxy, self.steps, self.clock)).collect();
        let stuck = |is_send: bool, reached: u8| {
            all.iter().find(|op| op.is_send == is_send && op.reached == Some(reached))
        };
        if let Some(it) = all.iter().find(|op| !op.is_send && op.ready == 0 && op.posted > 0) {
            let peer = it.peer;
            let why = format!(
                "nothing of it has come from rank {peer}, which may never have entered, or have \
                 its own trouble: compare the ranks with ncclscope diagnose"
            );
            return Some(Verdict::open(Some(peer), why));
        }
        if let Some(it) = stuck(true, 3) {
            let why = format!(
                "data to rank {} was given to the network on channel {} and is not delivered: the \
                 link, a NIC, or the other side",
                it.peer, it.channel
            );
            return Some(Verdict::edge(FindingClass::NetworkStalled, it.peer, why));
        }
        if let Some(it) = stuck(false, 2) {
            let why = format!(
                "data from rank {} arrived on channel {} and is not flushed to the GPU (PCIe)",
                it.peer, it.channel
            );
            return Some(Verdict::edge(FindingClass::FlushStalled, it.peer, why));
        }
        if let Some(it) = stuck(true, 2) {
            let why = format!("rank {} takes no data on channel {}", it.peer, it.channel);
            return Some(Verdict::edge(FindingClass::ReceiverNotReady, it.peer, why));
        }
        self.own_gpu(&all, op)
    }

    /// Nothing is under way on the network: this GPU, or whoever it waits for.
    fn own_gpu(&self, all: &[OpProgress], op: &OpView) -> Option<Verdict> {
        let unread = all.iter().find(|op| !op.is_send && op.reached == Some(3));
        let unsent = all.iter().find(|op| op.is_send && op.reached.is_some_and(|at| at <= 1));
        let silent = all.iter().find(|op| !op.is_send && op.reached.is_some_and(|at| at <= 1));
        match (unsent, unread, silent) {
            (Some(send), Some(_), _) | (Some(send), None, None) => {
                let why = format!(
                    "this GPU gives no data for rank {} on channel {}, and waits for none: its \
                     kernel stands still",
                    send.peer, send.channel
                );
                Some(Verdict::edge(FindingClass::GpuNotProducing, send.peer, why))
            }
            (None, Some(receive), _) => {
                let why = format!(
                    "this GPU does not take the data that arrived from rank {} on channel {}",
                    receive.peer, receive.channel
                );
                Some(Verdict::edge(FindingClass::GpuNotConsuming, receive.peer, why))
            }
            (_, None, Some(receive)) => {
                let peer = receive.peer;
                let done = op.proxies.iter().map(|proxy: &ProxyView| proxy.done).max();
                let why = format!(
                    "it waits for data from rank {peer} (up to {} steps are done): compare the \
                     ranks with ncclscope diagnose",
                    done.unwrap_or(0)
                );
                Some(Verdict::open(Some(peer), why))
            }
            (None, None, None) => {
                let posted = op.proxies.iter().any(|p| steps_of(p, self.steps).next().is_some());
                let idle = op.proxies.first().filter(|_| !posted)?;
                let why = "its network operations are begun, and no step of them is in flight";
                Some(Verdict::open(Some(idle.peer), why))
            }
        }
    }
}

/// Without network steps. CUDA events tell that the kernel's turn has come, not that it has begun.
fn kernel_alone(op: &OpView, is_running: bool) -> Verdict {
    let peer = op.facts.peer;
    if let Some(rank) = op.absent.filter(|_| op.started != 0 || is_running) {
        let why = format!("it waits for rank {rank}, which is in this process and has not entered");
        return Verdict::open(Some(rank), why);
    }
    if op.started != 0 && op.started == op.stopped && op.stops_early {
        let why = "one thread of its kernel is through, which is not the kernel's end here; what \
                   the others wait for cannot be seen from here: another rank that has not \
                   entered, or the path inside the node; compare the ranks with ncclscope diagnose";
        return Verdict::open(peer, why);
    }
    if op.started != 0 && op.started == op.stopped {
        return Verdict::open(None, "its kernel has ended, and something of it is not reported");
    }
    let kernel = match op.started {
        0 if is_running => "its kernel has not ended since its turn came",
        _ => "its kernel runs",
    };
    let place = if op.started == 0 { ", or a place on the GPU" } else { "" };
    let why = format!(
        "{kernel}, and what it waits for cannot be seen from here: another rank that has not \
         entered, the path inside the node{place}; compare the ranks with ncclscope diagnose"
    );
    Verdict::open(peer, why)
}

/// H1d: an API call that does not return, with nothing in flight behind which it could wait.
fn entered(call: &Call) -> Verdict {
    let why = match (call.launch, call.ending) {
        (Some(launch), _) if launch.stop.is_none() => {
            "the CUDA launch of its kernel does not return"
        }
        (Some(_), _) => "its kernel is launched, and NCCL does not return from the call",
        (None, Some(_)) => {
            "NCCL prepares it, or connects to other ranks, and has launched nothing yet"
        }
        (None, None) => "the application has begun a group of calls, and not called ncclGroupEnd",
    };
    Verdict::new(FindingClass::CallNotEnqueued, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_operations::progress::Facts;
    use ncclscope_trace::StrId;

    /// An operation inside a node, launched on a stream and enqueued: no network.
    fn op(number: u64, stream: u64) -> OpView {
        let none = Facts::unknown(EventKind::Coll);
        let facts = Facts { func: StrId(1), count: 9, wanted: 2, threads: 512, ..none };
        let launch = Launch { handle: launch(number), comm: 0, stream, start: 5, stop: Some(6) };
        OpView {
            handle: Handle::value(1, EventKind::Coll, 0, number),
            comm: 0,
            number,
            facts,
            start: number * 10,
            enqueued: true,
            since: number * 10,
            started: 0,
            stopped: 0,
            awaits_kernel: false,
            awaits_channels: false,
            awaits_network: false,
            stops_early: false,
            absent: None,
            launch: Some(launch),
            is_lossy: false,
            is_first: false,
            usual: 0,
            proxies: Vec::new(),
        }
    }

    fn launch(number: u64) -> Handle {
        Handle::value(1, EventKind::KernelLaunch, 0, number)
    }

    /// The class and the sentence for the last of `ops`, whose launches are in these states.
    fn judge(ops: &[OpView], states: &[(u64, LaunchState)]) -> (&'static str, String) {
        let launches = states.iter().map(|&(number, state)| (launch(number), state)).collect();
        let scene = Scene {
            in_flight: ops,
            comm: None,
            steps: &[],
            threads: &Threads::default(),
            launches: &launches,
            clock: Clock { now: 1_000, hz: 1 },
        };
        let verdict = scene.judge(&Subject::Op(ops.last().unwrap().clone()));
        (verdict.class.map_or("", FindingClass::code), verdict.why)
    }

    #[track_caller]
    fn expect(ops: &[OpView], states: &[(u64, LaunchState)], class: &str, says: &str) {
        let (found, why) = judge(ops, states);
        assert!(found == class && why.contains(says), "{found}: {why}");
    }

    const RUNS: LaunchState = LaunchState::Running { since: 7 };
    const DONE: LaunchState = LaunchState::Done { ns: 5, seen: 9 };

    #[test]
    fn inside_a_node_without_kernel_events_cuda_events_tell_what_there_is() {
        use LaunchState::{Failed, NotStarted};
        let one = [op(1, 0x51)];
        expect(&one, &[(1, NotStarted)], "H3a", "has not started, by its CUDA event too");
        expect(&one, &[(1, RUNS)], "", "its kernel has not ended since its turn came, and what");
        expect(&one, &[(1, Failed { status: 719 })], "H3c", "error 719");
        let same = [op(1, 0x51), op(2, 0x51)];
        expect(&same, &[(1, RUNS), (2, NotStarted)], "", "it is behind operation 1");
        let other = [op(1, 0x52), op(2, 0x51)];
        expect(&other, &[(1, RUNS), (2, NotStarted)], "H3a", "has not started");
        let unfinished = OpView { enqueued: false, ..op(1, 0x51) };
        expect(&[unfinished], &[], "H1d", "has not finished enqueuing");
    }

    #[test]
    fn inside_a_node_kernel_events_and_cuda_events_go_together() {
        let kernel = |started, stopped| OpView { started, stopped, ..op(1, 0x51) };
        expect(&[kernel(1, 0)], &[(1, RUNS)], "H3b", "1 of 2 channels");
        let lossy = OpView { is_lossy: true, ..kernel(1, 0) };
        expect(&[lossy], &[], "", "its kernel runs");
        let through = OpView { awaits_channels: true, ..kernel(1, 1) };
        expect(&[through], &[], "H3b", "1 of 2 channels");
        expect(&[kernel(1, 1)], &[], "", "its kernel has ended, and something of it");
        expect(&[kernel(3, 1)], &[(1, RUNS)], "", "its kernel runs");
        expect(&[kernel(3, 3)], &[], "", "its kernel has ended, and something of it");
        let early = OpView { stops_early: true, ..kernel(3, 3) };
        expect(&[early], &[(1, RUNS)], "", "one thread of its kernel is through, which is not");
        let absent = OpView { absent: Some(5), ..kernel(3, 3) };
        expect(&[absent], &[], "", "it waits for rank 5, which is in this process");
        let untold = "its kernel has ended, by its CUDA event, and NCCL has not reported that";
        expect(&[kernel(3, 1)], &[(1, DONE)], "P1", untold);
        let waits = OpView { awaits_kernel: true, ..op(1, 0x51) };
        expect(std::slice::from_ref(&waits), &[(1, DONE)], "P1", untold);
        expect(&[waits], &[], "H3a", "its kernel has not started: other work");
    }
}
