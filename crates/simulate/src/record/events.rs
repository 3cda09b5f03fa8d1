// SPDX-License-Identifier: Apache-2.0
//! The events of each operation, in NCCL's order.

use super::buffer::{API, PROXY, RecordBuffer};
use super::job::Job;
use super::network::{FlowSide, RecordedProxyOp};
use crate::func::Func;
use crate::model::collective::Outcome;
use crate::model::program::{Call, Coll, Datatype, Op, Transfer};
use crate::model::solve::OpTimes;
use crate::time::{NEVER, SECOND, Time, before};
use ncclscope_trace::record::{ApiCall, Coll as CollDetail, GroupApi, KernelCh, KernelLaunch, P2p};
use ncclscope_trace::{Detail, Handle, State, StrId};

/// Time from an event in a kernel to its report by the progress thread, ns.
const POLL_NS: u64 = 2_000;
/// The application's stream.
const STREAM: u64 = 0x7f3a_1000_0000;
/// States between the start and the end of a group, for which NCCL has no names.
const GROUP_STARTED: State = State(23);

/// An operation of a rank, from which progress is counted.
#[derive(Debug)]
pub(crate) struct OpLifetime<'a> {
    pub(crate) comm: u16,
    /// The number of collectives, or of sends and receives, that it counts as.
    pub(crate) calls: u64,
    pub(crate) coll: Option<Coll>,
    pub(crate) called: Time,
    pub(crate) enqueued: Time,
    /// When the first channel's kernel start was reported.
    pub(crate) started: Time,
    /// When the last child stopped.
    pub(crate) done: Time,
    pub(crate) proxies: Vec<RecordedProxyOp<'a>>,
}

/// Records the operations of one rank.
#[derive(Debug)]
pub(crate) struct RankRecorder<'a> {
    pub(crate) job: &'a Job<'a>,
    pub(crate) rank: u32,
    pub(crate) pid: u32,
    pub(crate) buffer: RecordBuffer,
    /// Operations of each function so far, by communicator.
    pub(crate) numbers: Vec<[u64; 4]>,
}

/// A child event of an operation, and the rank's member index in an outcome.
struct ChildOp<'a> {
    handle: Handle,
    outcome: &'a Outcome,
    member: usize,
    /// The direction of its flows; `None` for a collective, which has both.
    way: Option<bool>,
}

impl<'a> RankRecorder<'a> {
    /// Records an operation; `None` if it was not called before the end of the recording.
    pub(crate) fn operation(&mut self, op: &Op, done: &OpTimes) -> Option<OpLifetime<'a>> {
        if done.issued > self.buffer.end {
            return None;
        }
        let layout = self.job.layout;
        let own = layout.of_rank[self.rank as usize].iter().position(|m| m.group == op.group)?;
        let comm = u16::try_from(own).ok()?;
        let at = done.issued;
        let depth = if matches!(op.call, Call::Coll(_)) { 1 } else { 2 };
        let none = (comm, Handle::NULL);
        let group_api =
            self.buffer.start(API, at, none, Detail::GroupApi(GroupApi { graph: false, depth }));
        self.buffer.state(API, at + 100, group_api, GROUP_STARTED, 0);
        let (apis, mut now) = self.calls(op, (comm, group_api), at + 200);
        self.buffer.state(API, now, group_api, State::GROUP_END_API_START, 0);
        let launch = Detail::KernelLaunch(KernelLaunch { stream: STREAM });
        let launch = self.buffer.start(API, now + 100, (comm, group_api), launch);
        let mut life = OpLifetime {
            comm,
            calls: apis.len() as u64,
            coll: match op.call {
                Call::Coll(coll) => Some(coll),
                Call::Transfers(_) => None,
            },
            called: at + 200,
            enqueued: done.enqueued,
            started: NEVER,
            done: NEVER,
            proxies: Vec::new(),
        };
        if done.enqueued > self.buffer.end {
            return Some(life);
        }
        self.buffer.stop(API, done.enqueued - 300, launch);
        now = done.enqueued;
        let group = self.buffer.start(API, now - 100, none, Detail::Group);
        let children = self.tasks(op, done, &apis, (comm, group));
        for (index, child) in children.iter().enumerate() {
            self.buffer.stop(API, now + 500 + 50 * index as u64, child.handle);
        }
        now += 500 + 50 * children.len() as u64;
        self.buffer.stop(API, now, group);
        self.buffer.stop(API, now + 100, group_api);
        (life.started, life.done) = (NEVER, 0);
        for child in &children {
            self.kernels(child, comm, &mut life);
            self.proxies(child, (comm, op.group), &mut life);
        }
        Some(life)
    }

    /// The API calls of an operation.
    fn calls(&mut self, op: &Op, of: (u16, Handle), mut now: Time) -> (Vec<Handle>, Time) {
        let details: Vec<Detail> = match &op.call {
            Call::Coll(coll) => {
                let call = ApiCall {
                    func: self.buffer.string(coll.func.name()),
                    datatype: self.buffer.string(coll.datatype.name()),
                    count: coll.count,
                    root: coll.root.cast_signed(),
                    stream: STREAM,
                    ..ApiCall::default()
                };
                vec![Detail::CollApi(call)]
            }
            Call::Transfers(transfers) => {
                transfers.iter().map(|transfer| self.transfer_call(*transfer)).collect()
            }
        };
        let mut handles = Vec::new();
        for detail in details {
            let handle = self.buffer.start(API, now, of, detail);
            self.buffer.stop(API, now + 100, handle);
            handles.push(handle);
            now += 200;
        }
        (handles, now)
    }

    fn transfer_call(&mut self, transfer: Transfer) -> Detail {
        Detail::P2pApi(ApiCall {
            func: self.direction(transfer),
            datatype: self.buffer.string(Datatype::Bfloat16.name()),
            count: transfer.count,
            stream: STREAM,
            ..ApiCall::default()
        })
    }

    fn direction(&mut self, transfer: Transfer) -> StrId {
        self.buffer.string(if transfer.is_send { "Send" } else { "Recv" })
    }

    /// The Coll or P2p events.
    fn tasks(
        &mut self,
        op: &Op,
        done: &OpTimes,
        apis: &[Handle],
        (comm, group): (u16, Handle),
    ) -> Vec<ChildOp<'a>> {
        let mut children = Vec::new();
        for (index, (&api, &(outcome, member))) in apis.iter().zip(&done.parts).enumerate() {
            let Some(outcome) = self.job.solution.outcomes.get(outcome as usize) else { continue };
            let (detail, way) = match &op.call {
                Call::Coll(coll) => (self.coll_detail(op, coll, comm, group), None),
                Call::Transfers(transfers) => {
                    let transfer = transfers[index];
                    let detail = P2p {
                        func: self.direction(transfer),
                        datatype: self.buffer.string(Datatype::Bfloat16.name()),
                        count: transfer.count,
                        peer: transfer.peer.cast_signed(),
                        channels: 1,
                        group,
                        ..P2p::default()
                    };
                    (Detail::P2p(detail), Some(transfer.is_send))
                }
            };
            let at = done.enqueued + 20 * index as u64;
            let handle = self.buffer.start(API, at, (comm, api), detail);
            children.push(ChildOp { handle, outcome, member: member as usize, way });
        }
        children
    }

    fn coll_detail(&mut self, op: &Op, coll: &Coll, comm: u16, group: Handle) -> Detail {
        let size = u32::try_from(self.job.layout.groups[op.group].members.len()).unwrap_or(0);
        // Here NCCL counts bytes, not elements.
        let in_bytes = matches!(coll.func, Func::AllGather | Func::Broadcast);
        let (datatype, unit) =
            if in_bytes { ("ncclInt8", coll.datatype.bytes()) } else { (coll.datatype.name(), 1) };
        let own = &self.job.layout.of_rank[self.rank as usize][usize::from(comm)];
        let number = &mut self.numbers[usize::from(comm)][coll.func as usize];
        *number += 1;
        let seq = *number - 1;
        Detail::Coll(CollDetail {
            func: self.buffer.string(coll.func.name()),
            datatype: self.buffer.string(datatype),
            algo: self.buffer.string(if coll.tree { "TREE" } else { "RING" }),
            proto: self.buffer.string(if coll.tree { "LL" } else { "SIMPLE" }),
            seq,
            count: coll.count * unit,
            root: coll.root.cast_signed(),
            channels: coll.cut(size).channels,
            warps: 16,
            rank: i32::try_from(own.rank).unwrap_or(-1),
            group,
            ..CollDetail::default()
        })
    }

    /// The activity of the channels in the kernel, as the progress thread sees it.
    fn kernels(&mut self, child: &ChildOp<'_>, comm: u16, life: &mut OpLifetime<'_>) {
        let stops = self.job.conditions.of(self.rank);
        for (channel, &(start, end)) in child.outcome.kernels[child.member].iter().enumerate() {
            // It polls the channels one after another.
            let told = |time: Time| {
                before(time.saturating_add(POLL_NS + 100 * channel as u64), stops.proxy)
            };
            let (told_start, told_end) = (told(start), told(end));
            life.started = life.started.min(told_start);
            life.done = life.done.max(told_end);
            if told_start > self.buffer.end {
                continue;
            }
            let channel = u8::try_from(channel).unwrap_or(u8::MAX);
            let detail =
                Detail::KernelCh(KernelCh { channel, ptimer: self.buffer.clocks.timer(start) });
            let handle = self.buffer.start(PROXY, told_start, (comm, child.handle), detail);
            if told_end <= self.buffer.end {
                let timer = self.buffer.clocks.timer(end);
                self.buffer.state(PROXY, told_end, handle, State::KERNEL_CH_STOP, timer);
                self.buffer.stop(PROXY, told_end, handle);
            }
        }
    }

    /// The network transfers: on each channel receives before sends, as in NCCL.
    fn proxies(
        &mut self,
        child: &ChildOp<'a>,
        (comm, group): (u16, usize),
        life: &mut OpLifetime<'a>,
    ) {
        let members = &self.job.layout.groups[group];
        let position =
            |rank: u32| members.position(rank).and_then(|at| i32::try_from(at).ok()).unwrap_or(-1);
        for is_send in [false, true] {
            if child.way.is_some_and(|way| way != is_send) {
                continue;
            }
            for flow in &child.outcome.flows {
                let (end, other) =
                    if is_send { (flow.from, flow.to.rank) } else { (flow.to, flow.from.rank) };
                let own = end.rank;
                if own != self.rank || end.steps == 0 {
                    continue;
                }
                let side = FlowSide {
                    flow,
                    is_send,
                    peer: position(other),
                    rank: position(own),
                    pid: self.pid,
                    comm,
                    proxy_stop: self.job.conditions.of(self.rank).proxy,
                };
                let open = side.record(&mut self.buffer, child.handle, life.enqueued);
                life.done = life.done.max(open.stop);
                // The drain thread rarely sees operations that complete within a second.
                if open.stop > open.start.saturating_add(SECOND / 100) {
                    life.proxies.push(open);
                }
            }
        }
    }
}
