// SPDX-License-Identifier: Apache-2.0
//! Describes a stuck operation in the form that the rules of `ncclscope_findings` take.

use super::clock::Clock;
use super::heartbeats::op_progress;
use super::own_process::OwnProcess;
use super::seen::{StepSeen, Thread, Threads};
use super::subject::Subject;
use crate::probe::LaunchState;
use ncclscope_findings::rank::{self, Ahead, Kernel, Pending, RankState, Transfer};
use ncclscope_findings::{self as findings, RankFinding};
use ncclscope_operations::progress::{Call, CommView, ForeignWork, Launch, OpView, ProxyView};
use ncclscope_trace::{EventKind, Handle};
use std::collections::HashMap;

/// The state of the process that a judgement is based on.
pub(super) struct Scene<'a> {
    pub(super) own: &'a OwnProcess,
    pub(super) in_flight: &'a [OpView],
    pub(super) comm: Option<CommView>,
    pub(super) steps: &'a [StepSeen],
    pub(super) threads: &'a Threads,
    /// The state of launches by CUDA events, if these are on.
    pub(super) launches: &'a HashMap<Handle, LaunchState>,
    pub(super) clock: Clock,
}

impl Scene<'_> {
    pub(super) fn judge(&self, subject: &Subject) -> RankFinding {
        match subject {
            Subject::Op(op) => findings::apply_rules(&self.state(op)),
            Subject::Call(call) => findings::apply_rules(&entered(call)),
            Subject::Foreign(work) => findings::apply_foreign_rules(&self.foreign(work)),
        }
    }

    /// The state of a launch by CUDA events.
    pub(super) fn launch_state(&self, launch: Option<Launch>) -> LaunchState {
        let known = launch.and_then(|launch| self.launches.get(&launch.handle));
        known.copied().unwrap_or(LaunchState::Unknown)
    }

    fn state(&self, op: &OpView) -> RankState {
        let [started, stopped] = [op.started, op.stopped].map(|set| set.count());
        let kernel = Kernel {
            channels: u32::from(op.facts.wanted),
            started,
            stopped,
            has_started: (started > 0 || op.awaits_kernel).then_some(started > 0),
            // If some events of the operation were lost, more channels may have started.
            needs_all: !op.is_lossy && !op.facts.is_p2p() && is_running(op),
            stops_early: op.stops_early,
        };
        let not_begun = op.proxies.is_empty().then(|| self.proxy_not_begun(op));
        RankState {
            pending: (!op.enqueued).then_some(Pending::Enqueuing),
            kernel,
            launch: self.launch_state(op.launch).into(),
            behind: self.behind(op),
            transfers: op
                .proxies
                .iter()
                .map(|proxy| Transfer {
                    may_be_early: self.own.arrives_early(&op.facts),
                    ..self.transfer(proxy)
                })
                .collect(),
            proxy_threads: self.proxy_thread(op).map(Thread::observed).into_iter().collect(),
            awaits_proxy: not_begun.unwrap_or(true),
            absent: op.absent,
            peer: op.facts.peer,
            have_peers_entered: false,
            shares_host: self.comm.is_some_and(|comm| self.own.shares_hosts(comm.comm)),
        }
    }

    /// The state of transfers for another process: of its operation nothing is known.
    fn foreign(&self, work: &ForeignWork) -> RankState {
        let lane = work.ops.first().map(|proxy| proxy.lane);
        let thread = lane.and_then(|lane| self.threads.of(lane));
        RankState {
            transfers: work.ops.iter().map(|proxy| self.transfer(proxy)).collect(),
            proxy_threads: thread.map(Thread::observed).into_iter().collect(),
            awaits_proxy: true,
            ..RankState::default()
        }
    }

    fn transfer(&self, proxy: &ProxyView) -> Transfer {
        let op = op_progress(proxy, self.steps, self.clock);
        Transfer {
            is_send: op.is_send,
            channel: op.channel,
            peer: op.peer,
            steps: op.steps,
            posted: op.posted,
            ready: op.ready,
            transmitted: op.transmitted,
            done: op.done,
            reached: op.reached,
            still_ns: self.clock.ns_since(op.since),
            in_progress: true,
            may_be_early: false,
        }
    }

    /// The proxy thread of the operation. Up to NCCL 2.30, inside a node it has no ProxyOps, only
    /// kernels to poll.
    fn proxy_thread(&self, op: &OpView) -> Option<&Thread> {
        let lane = op.proxies.first().map(|proxy| proxy.lane);
        let lane = lane.or_else(|| self.comm?.proxy_lane).or_else(|| self.comm?.kernel_lane)?;
        self.threads.of(lane)
    }

    /// True if the proxy thread has not begun its part. Up to NCCL 2.31, it also polls the progress
    /// of kernels.
    fn proxy_not_begun(&self, op: &OpView) -> bool {
        let polls = |thread: &Thread| thread.kinds & EventKind::KernelCh.bit() != 0;
        let polls = self.proxy_thread(op).is_some_and(polls);
        let is_networked = self.comm.is_some_and(|comm| comm.is_networked);
        op.awaits_network || op.awaits_kernel && op.started.count() == 0 && (polls || is_networked)
    }

    /// An operation whose kernel occupies the stream before this operation, or may do so: the
    /// streams of both are unknown.
    fn behind(&self, op: &OpView) -> Option<Ahead> {
        let stream = |op: &OpView| op.launch.map(|launch| launch.stream);
        let own = stream(op);
        let is_before = |other: &&OpView| {
            let is_other = own.is_some() || other.comm != op.comm;
            let is_first = other.handle != op.handle && other.start < op.start;
            is_other && is_first && stream(other) == own && self.has_kernel(other)
        };
        let ahead = self.in_flight.iter().find(is_before)?;
        Some(Ahead { number: ahead.number, is_same_stream: own.is_some() })
    }

    /// True if the operation's kernel has started and not ended, or is ahead of others in its
    /// stream.
    fn has_kernel(&self, op: &OpView) -> bool {
        let state = self.launch_state(op.launch);
        is_running(op) || matches!(state, LaunchState::NotStarted | LaunchState::Running { .. })
    }
}

/// True if the operation's kernel has started and not ended. If one channel found no free SM, the
/// other channels may have ended.
fn is_running(op: &OpView) -> bool {
    op.started != op.stopped || op.awaits_channels
}

/// The state for an API call that does not return.
fn entered(call: &Call) -> RankState {
    let pending = match (call.launch, call.ending) {
        (Some(launch), _) if launch.stop.is_none() => Pending::Launch,
        (Some(_), _) => Pending::Launched,
        (None, Some(_)) => Pending::Inside,
        (None, None) => Pending::OpenGroup,
    };
    RankState { pending: Some(pending), ..RankState::default() }
}

impl From<LaunchState> for rank::Launch {
    fn from(state: LaunchState) -> rank::Launch {
        match state {
            LaunchState::Unknown => rank::Launch::Unknown,
            LaunchState::NotStarted => rank::Launch::NotStarted,
            LaunchState::Running { .. } => rank::Launch::Running,
            LaunchState::Failed { status } => rank::Launch::Failed { status },
            LaunchState::Done { .. } => rank::Launch::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_findings::FindingClass;
    use ncclscope_operations::channels::ChannelSet;
    use ncclscope_operations::progress::Facts;
    use ncclscope_trace::StrId;

    /// The first channels.
    fn first(count: u8) -> ChannelSet {
        (0..count).collect()
    }

    /// An operation inside a node, enqueued and launched on a stream, without network.
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
            started: ChannelSet::default(),
            stopped: ChannelSet::default(),
            awaits_kernel: false,
            awaits_channels: false,
            awaits_network: false,
            stops_early: false,
            absent: None,
            launch: Some(launch),
            is_lossy: false,
            is_first: false,
            usual: 0,
            is_only_unstopped: false,
            proxies: Vec::new(),
        }
    }

    fn launch(number: u64) -> Handle {
        Handle::value(1, EventKind::KernelLaunch, 0, number)
    }

    /// The class and the sentence for the last of `ops`, given the states of the launches.
    fn judge(ops: &[OpView], states: &[(u64, LaunchState)]) -> (&'static str, String) {
        let launches = states.iter().map(|&(number, state)| (launch(number), state)).collect();
        let scene = Scene {
            own: &OwnProcess::default(),
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
        let partly =
            OpView { started: first(1), stopped: first(1), awaits_channels: true, ..op(1, 0x51) };
        let waits = OpView { awaits_kernel: true, ..op(2, 0x51) };
        expect(&[partly, waits], &[], "", "it is behind operation 1");
        let other = [op(1, 0x52), op(2, 0x51)];
        expect(&other, &[(1, RUNS), (2, NotStarted)], "H3a", "has not started");
        // A graph's replay, whose stream is unknown.
        let replay = |number, comm, started: u8| OpView {
            comm,
            launch: None,
            started: first(started),
            awaits_kernel: started == 0,
            ..op(number, 0)
        };
        expect(&[replay(1, 0, 1), replay(2, 1, 0)], &[], "", "it may be behind operation 1");
        expect(&[replay(1, 0, 0), replay(2, 1, 0)], &[], "H3a", "has not started");
        expect(&[replay(1, 0, 1), OpView { awaits_kernel: true, ..op(2, 0x51) }], &[], "H3a", "");
        let unfinished = OpView { enqueued: false, ..op(1, 0x51) };
        expect(&[unfinished], &[], "H1d", "has not finished enqueuing");
    }

    #[test]
    fn inside_a_node_kernel_events_and_cuda_events_go_together() {
        let kernel = |started, stopped| OpView {
            started: first(started),
            stopped: first(stopped),
            ..op(1, 0x51)
        };
        expect(&[kernel(1, 0)], &[(1, RUNS)], "H3b", "1 of 2 channels");
        let lossy = OpView { is_lossy: true, ..kernel(1, 0) };
        expect(&[lossy], &[], "", "its kernel runs");
        let through = OpView { awaits_channels: true, ..kernel(1, 1) };
        expect(&[through], &[], "H3b", "1 of 2 channels");
        expect(&[kernel(1, 1)], &[], "", "its kernel has ended, and NCCL has not reported");
        expect(&[kernel(2, 1)], &[(1, RUNS)], "", "its kernel runs");
        expect(&[kernel(2, 2)], &[], "", "its kernel has ended, and NCCL has not reported");
        let early = OpView { stops_early: true, ..kernel(2, 2) };
        expect(&[early], &[(1, RUNS)], "", "the first part of its kernel has ended");
        let absent = OpView { absent: Some(5), ..kernel(2, 2) };
        expect(
            &[absent],
            &[],
            "",
            "it waits for rank 5 of the communicator, which is in this process",
        );
        let untold = "its kernel has ended, by its CUDA event, and NCCL has not reported that";
        expect(&[kernel(2, 1)], &[(1, DONE)], "P1", untold);
        let waits = OpView { awaits_kernel: true, ..op(1, 0x51) };
        expect(std::slice::from_ref(&waits), &[(1, DONE)], "P1", untold);
        expect(&[waits], &[], "H3a", "its kernel has not started: other work");
    }

    /// As RCCL has them.
    #[test]
    fn more_channels_than_64_are_told_apart() {
        let all: ChannelSet = (0..=u8::MAX).collect();
        let kernel = |started, stopped| {
            let op = op(1, 0x51);
            OpView { facts: Facts { wanted: 256, ..op.facts }, started, stopped, ..op }
        };
        expect(&[kernel(first(100), first(0))], &[(1, RUNS)], "H3b", "100 of 256 channels");
        expect(&[kernel(all, first(100))], &[(1, RUNS)], "", "its kernel runs");
        let waits = OpView { awaits_kernel: true, ..kernel(first(0), first(0)) };
        expect(&[waits], &[], "H3a", "its kernel has not started: other work");
    }
}
