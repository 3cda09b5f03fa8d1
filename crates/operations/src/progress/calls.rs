// SPDX-License-Identifier: Apache-2.0
//! API calls and launches of each thread (API v5 on) that have not returned.

use crate::hash::Map;
use ncclscope_trace::handle::LANES;
use ncclscope_trace::record::{GroupApi, KernelLaunch};
use ncclscope_trace::{Detail, EventKind, Handle, Start, State, StrId};

/// Most stops that are kept until their start is read.
const MAX_EARLY: usize = 1 << 10;
/// Seconds for which such stops are kept.
const EARLY_S: u64 = 10;

/// A group of API calls that has not returned; a call outside of a group has an implicit one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its GroupApi event.
    pub handle: Handle,
    /// Communicator of its first call.
    pub comm: u16,
    /// The lane of the thread.
    pub lane: usize,
    /// When it began, in ticks.
    pub start: u64,
    /// Number of collectives in it so far.
    pub colls: u32,
    /// Number of sends and receives in it so far.
    pub p2ps: u32,
    /// Function of its first call.
    pub func: StrId,
    /// When `ncclGroupEnd` was entered, in ticks.
    pub ending: Option<u64>,
    /// The launch of its kernel, if it has begun.
    pub launch: Option<Launch>,
    /// Its calls are captured into a CUDA graph.
    pub graph: bool,
}

/// The launch of a plan's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its KernelLaunch event.
    pub handle: Handle,
    /// Its communicator.
    pub comm: u16,
    /// The CUDA stream's handle value.
    pub stream: u64,
    /// When it began, in ticks.
    pub start: u64,
    /// When the launch call returned, in ticks.
    pub stop: Option<u64>,
}

/// The state of a kernel launch on the GPU, from CUDA events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchFate {
    /// The state is unknown.
    Unknown,
    /// Its stream has not reached it.
    Waits,
    /// Its stream has reached it, and it has not ended.
    Runs {
        /// Since when, in ticks.
        since: u64,
    },
    /// The driver reports an error: it will not end.
    Lost,
    /// It has ended.
    Ended {
        /// When, in ticks.
        at: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    call: Option<Call>,
    /// The latest launch on this lane.
    launch: Option<Launch>,
}

/// The calls and launches of all threads.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Indexed by lane, up to the highest that is used, because most processes use few of
    /// [`LANES`].
    lanes: Vec<Lane>,
    early: Map<Handle, u64>,
}

impl Calls {
    pub(super) fn start(&mut self, lane: usize, start: &Start) {
        let Start { ticks, comm, handle, parent, detail } = *start;
        match detail {
            Detail::GroupApi(GroupApi { graph, .. }) => {
                let is_over = !self.early.is_empty() && self.early.remove(&handle).is_some();
                let call = Call {
                    handle,
                    comm,
                    lane,
                    start: ticks,
                    colls: 0,
                    p2ps: 0,
                    func: StrId::NONE,
                    ending: None,
                    launch: None,
                    graph,
                };
                self.lane(lane).call = (!is_over).then_some(call);
            }
            Detail::CollApi(api) | Detail::P2pApi(api) => {
                let is_coll = matches!(detail, Detail::CollApi(_));
                if let Some(call) = self.call(parent) {
                    call.colls += u32::from(is_coll);
                    call.p2ps += u32::from(!is_coll);
                    if call.func == StrId::NONE {
                        call.func = api.func;
                    }
                }
            }
            Detail::KernelLaunch(KernelLaunch { stream }) => {
                let stop = if self.early.is_empty() { None } else { self.early.remove(&handle) };
                let launch = Launch { handle, comm, stream, start: ticks, stop };
                self.lane(lane).launch = Some(launch);
                if let Some(call) = self.call(parent) {
                    call.launch = Some(launch);
                }
            }
            _ => {}
        }
    }

    pub(super) fn stop(&mut self, ticks: u64, handle: Handle) {
        let lane = self.lane(handle.lane());
        match handle.kind() {
            EventKind::GroupApi => {
                if lane.call.is_some_and(|call| call.handle == handle) {
                    lane.call = None;
                    return;
                }
            }
            EventKind::KernelLaunch => {
                if let Some(launch) = lane.launch.as_mut().filter(|own| own.handle == handle) {
                    launch.stop = Some(ticks);
                    let launch = *launch;
                    self.launched(launch);
                    return;
                }
            }
            _ => return,
        }
        // Another thread stopped the event, and the lane with its start is read later.
        if self.early.len() < MAX_EARLY {
            self.early.insert(handle, ticks);
        }
    }

    /// Updates the returned launch in its group.
    fn launched(&mut self, launch: Launch) {
        let mut calls = self.lanes.iter_mut().filter_map(|lane| lane.call.as_mut());
        let same = |of: &Launch| of.handle == launch.handle;
        if let Some(call) = calls.find(|call| call.launch.as_ref().is_some_and(same)) {
            call.launch = Some(launch);
        }
    }

    pub(super) fn state(&mut self, ticks: u64, handle: Handle, state: State) {
        if state == State::GROUP_END_API_START
            && let Some(call) = self.call(handle)
        {
            call.ending = Some(ticks);
        }
    }

    /// The launch that an operation on this lane belongs to: the latest, because NCCL enqueues
    /// right after it. `None` for an operation of a graph's replay, which another thread enqueues.
    pub(super) fn launch_of(&self, lane: usize, start: &Start) -> Option<Launch> {
        let is_callers = start.parent.is_null() || start.parent.lane() == lane;
        let launch = self.lanes.get(lane)?.launch.filter(|_| is_callers)?;
        (launch.start <= start.ticks && launch.comm == start.comm).then_some(launch)
    }

    /// Forgets the latest launches after one was lost, because the next operations belong to the
    /// lost one.
    pub(super) fn forget_launches(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.launch = None);
    }

    pub(super) fn look(&mut self, now: u64, hz: u64) {
        let oldest = now.saturating_sub(hz.saturating_mul(EARLY_S));
        self.early.retain(|_, ticks| *ticks >= oldest);
    }

    pub(super) fn views(&self) -> Vec<Call> {
        let mut calls: Vec<Call> = self.lanes.iter().filter_map(|lane| lane.call).collect();
        calls.sort_unstable_by_key(|call| call.start);
        calls
    }

    /// Forgets calls and launches that started at `until` or before.
    pub(super) fn forget(&mut self, until: u64) {
        for lane in &mut self.lanes {
            lane.call.take_if(|call| call.start <= until);
            lane.launch.take_if(|launch| launch.start <= until);
        }
        self.early.retain(|_, stop| *stop > until);
    }

    fn lane(&mut self, lane: usize) -> &mut Lane {
        let lane = lane % LANES;
        if lane >= self.lanes.len() {
            self.lanes.resize(lane + 1, Lane::default());
        }
        &mut self.lanes[lane]
    }

    fn call(&mut self, group: Handle) -> Option<&mut Call> {
        let call = self.lane(group.lane()).call.as_mut()?;
        (call.handle == group).then_some(call)
    }
}
