// SPDX-License-Identifier: Apache-2.0
//! Start, state and stop of events: the functions that the plugin calls.

use crate::clock::now;
use crate::interner::Interner;
use crate::lane::{Lane, LaneHeader};
use crate::missed::{Miss, Missed, ReadPosition};
use crate::reclaim::Slots;
use crate::region::Region;
use crate::registry;
use crate::slots::{self, Slot};
use crate::sync::{AtomicU64, Ordering};
use ncclscope_trace::handle::LANES;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::layout::SLABS;
use ncclscope_trace::record::{Detail, ProxyOp, StartHead};
use ncclscope_trace::{EventKind, Handle, Record, State};

/// Communicator index of events whose context is not from this plugin.
pub const NO_COMM: u16 = u16::MAX;

/// Lanes kept ready for new threads: one that enqueues, one proxy, and two more.
const SPARE: usize = 4;
/// Lanes kept ready at the start of a process, in use or not, because its threads may begin
/// together: one for each of a host's GPUs, and as many proxies.
const FIRST: usize = 16;
/// Number of the spare lanes whose rings are fully committed. Committing costs the process one
/// microsecond per page.
const WHOLE_SPARE: usize = 2;

/// Lanes kept ready for new threads if the lanes of exited threads return late.
const SPARE_WITHOUT_KEY: usize = 24;
/// Number of lanes in use from which on `reap` looks for threads that have exited.
const MANY_LANES: usize = 16;

/// A family that no handle has.
const NOBODYS: u64 = u64::MAX;

/// The recorder of the process. There is only one: thread-local lanes point to its memory.
#[derive(Debug)]
pub struct Recorder {
    /// The memory of lanes and slots.
    pub region: Region,
    /// String table.
    pub strings: Interner,
    process: AtomicU64,
    /// [`Handle::family`] of this process's steps; [`NOBODYS`] while steps are not recorded.
    steps: AtomicU64,
    slots: Slots,
    lost_without_lane: [AtomicU64; KINDS],
    lost_without_slot: [AtomicU64; KINDS],
    missed: Missed,
    /// Time of the latest event in `missed`, in ticks; 0 if none.
    missed_at: AtomicU64,
    stale: AtomicU64,
    unknown: AtomicU64,
    left_out: AtomicU64,
}

impl Recorder {
    /// A recorder without memory, which refuses every event.
    #[must_use]
    pub const fn new() -> Recorder {
        Recorder {
            region: Region::new(),
            strings: Interner::new(),
            process: AtomicU64::new(1),
            steps: AtomicU64::new(NOBODYS),
            slots: Slots::new(),
            lost_without_lane: [const { AtomicU64::new(0) }; KINDS],
            lost_without_slot: [const { AtomicU64::new(0) }; KINDS],
            missed: Missed::new(),
            missed_at: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Sets the process bits of all handles (1..=1023). Call before the gate opens.
    pub fn set_process(&self, process: u64) {
        let process = process.clamp(1, 1023);
        self.process.store(process, Ordering::Relaxed);
        self.steps.store(Handle::family_of(process, EventKind::ProxyStep), Ordering::Release);
    }

    /// Stops the recording of steps. Call together with [`crate::gate::kill`], because the
    /// callbacks of steps do not check the gate.
    pub fn shut(&self) {
        self.steps.store(NOBODYS, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn process(&self) -> u64 {
        self.process.load(Ordering::Relaxed)
    }

    /// Starts an event other than a ProxyOp or a step. Returns null if it cannot be recorded.
    #[must_use]
    #[inline(always)]
    pub fn start(&self, comm: u16, parent: Handle, detail: &Detail) -> Handle {
        let kind = detail.kind();
        let ticks = now();
        let Some(lane) = self.lane(kind) else { return self.miss_start(kind, parent) };
        if kind == EventKind::ProxyCtrl && lane.is_half_full() {
            lane.header().lose(kind);
            return Handle::NULL;
        }
        let handle = Handle::value(self.process(), kind, lane.index(), lane.next_sequence());
        lane.saw(kind);
        if (StartHead { ticks, comm, handle, parent }).put(detail, lane) {
            handle
        } else {
            lane.header().lose(kind);
            self.miss_start(kind, parent)
        }
    }

    /// Starts a ProxyOp. Returns null if there is no free slot or it cannot be recorded. For a
    /// ProxyOp of another process (PXN), `comm` is that process's index.
    #[must_use]
    #[inline(always)]
    pub fn start_op(&self, comm: u16, parent: Handle, op: &ProxyOp) -> Handle {
        let kind = EventKind::ProxyOp;
        let ticks = now();
        let Some(lane) = self.lane(kind) else { return self.miss_start(kind, parent) };
        lane.saw(kind);
        // The ProxyOp's steps will be recorded on this lane.
        lane.saw(EventKind::ProxyStep);
        let (region, process) = (&self.region, self.process());
        let of = (if op.foreign { NO_COMM } else { comm }, op.is_send);
        let slot = slots::open(region, &self.slots, &lane, process, of, ticks);
        let Some(handle) = slot else {
            self.lose_without_slot(kind);
            return self.miss_start(kind, parent);
        };
        if (StartHead { ticks, comm, handle, parent }).put(&Detail::ProxyOp(*op), lane) {
            return handle;
        }
        lane.header().lose(kind);
        if let Some(slot) = slots::at(region, handle) {
            slot.close_own(handle, &lane);
        }
        self.miss_start(kind, parent)
    }

    #[cold]
    #[inline(never)]
    fn miss_start(&self, kind: EventKind, parent: Handle) -> Handle {
        // A parent of another process (PXN) means nothing here.
        let is_ours = parent.process() == self.process();
        self.miss(Miss::Start(kind, if is_ours { parent } else { Handle::NULL }));
        Handle::NULL
    }

    #[cold]
    #[inline(never)]
    fn miss_stop(&self, handle: Handle) {
        self.miss(Miss::Stop(handle));
    }

    fn miss(&self, miss: Miss) {
        if miss.is_kept() {
            // Stored before the event, so that the thread that takes the event sees a time that
            // includes it.
            self.missed_at.fetch_max(now(), Ordering::Release);
            self.missed.put(miss);
        }
    }

    /// Time of the latest lost event that [`Recorder::take_missed`] returns, in ticks; 0 if none.
    pub fn missed_at(&self) -> u64 {
        self.missed_at.load(Ordering::Acquire)
    }

    /// See [`Missed::take`].
    pub fn take_missed(&self, at: &mut ReadPosition, into: &mut Vec<Miss>) -> bool {
        self.missed.take(at, self.process(), into)
    }

    /// Starts a network step. Returns null if its operation is not recorded.
    #[must_use]
    #[inline(always)]
    pub fn start_step(&self, op: Handle, number: u32) -> Handle {
        let Some(slot) = self.slot_of_op(op) else { return self.orphan_step(op) };
        let step = slot.step(number as usize);
        let handle = op.step_of(number);
        if step.is_live(op) {
            if step.is_number(number) {
                return handle;
            }
            self.supersede(op, slot, number);
        }
        step.start(op, number, now());
        handle
    }

    /// The slot of a ProxyOp of this process that has not stopped; `None` for any other handle.
    #[inline(always)]
    pub(crate) fn slot_of_op(&self, op: Handle) -> Option<&Slot> {
        let family = Handle::family_of(self.process(), EventKind::ProxyOp);
        let slot = if op.family() == family { slots::at(&self.region, op) } else { None };
        slot.filter(|slot| slot.holds(op))
    }

    /// Ends a step that NCCL never stopped (2.24.3 to 2.26, NVIDIA/nccl#1658) when the next step
    /// needs its place.
    #[cold]
    fn supersede(&self, op: Handle, slot: &Slot, number: u32) {
        let Some(lane) = self.lane(EventKind::ProxyStep) else { return };
        self.end_step(op, slot, number as usize, false, now(), &lane);
    }

    #[inline(always)]
    fn end_step(
        &self,
        op: Handle,
        slot: &Slot,
        index: usize,
        stopped: bool,
        ticks: u64,
        lane: &Lane<'_>,
    ) {
        let step = slot.step(index).end(op, slot.is_send(), stopped, ticks);
        // Readers find a step's operation through the lane, so that both must be on the same one.
        if op.lane() != lane.index() || !step.put(*lane) {
            lane.header().lose(EventKind::ProxyStep);
        }
    }

    /// True if the handle is that of a network step of this process, until [`Recorder::shut`].
    #[must_use]
    #[inline(always)]
    pub fn is_step(&self, handle: Handle) -> bool {
        handle.family() == self.steps.load(Ordering::Acquire)
    }

    /// Records that a network step reached `state`. `size` returns the bytes if the state reports
    /// them.
    #[inline(always)]
    pub fn step_state(&self, handle: Handle, state: State, size: impl FnOnce() -> Option<u64>) {
        match slots::at(&self.region, handle).map(|slot| slot.step(handle.step_index())) {
            Some(step) if step.is_live(handle) => {
                if !step.reach(state, size, now) {
                    self.count_unknown();
                }
            }
            _ => self.count_stale(handle),
        }
    }

    /// Records that an event other than a step reached `state`.
    #[inline(never)]
    pub fn state(&self, handle: Handle, state: State, small: u32, arg: u64) {
        if handle.process() != self.process() {
            return self.count_stale(handle);
        }
        let ticks = now();
        let Some(lane) = self.lane_of(handle) else { return };
        if !Record::put_state(lane, ticks, handle, state, (small, arg)) {
            lane.header().lose_end(handle.kind());
        }
    }

    /// Stops an event. Null handles are ignored. Stops of slots that are stale or stopped before,
    /// and handles of another process, are counted as stale. For events without a slot, the reader
    /// of the records detects these cases.
    #[inline(always)]
    pub fn stop(&self, handle: Handle) {
        if self.is_step(handle) {
            self.stop_step(handle);
        } else {
            self.stop_other(handle);
        }
    }

    /// [`Recorder::stop`] for a handle that is not a step's.
    #[inline(always)]
    pub fn stop_other(&self, handle: Handle) {
        if handle.is_null() {
            return;
        }
        let process = self.process();
        if handle.family() == Handle::family_of(process, EventKind::ProxyOp) {
            return self.stop_op(handle);
        }
        if handle.process() != process {
            return self.count_stale(handle);
        }
        let ticks = now();
        let Some(lane) = self.lane_of(handle) else { return self.miss_stop(handle) };
        if !Record::put_stop(lane, ticks, handle) {
            lane.header().lose_end(handle.kind());
            self.miss_stop(handle);
        }
    }

    /// [`Recorder::stop`] for the handle of a step.
    #[inline(always)]
    pub fn stop_step(&self, handle: Handle) {
        let slot = slots::at(&self.region, handle).filter(|slot| slot.holds(handle.op_of()));
        let live = slot.filter(|slot| slot.step(handle.step_index()).is_live(handle));
        let Some(slot) = live else { return self.count_stale(handle) };
        let ticks = now();
        match registry::held(&self.region, handle.lane()) {
            Some(lane) => self.end_step(handle, slot, handle.step_index(), true, ticks, &lane),
            None => self.stop_step_elsewhere(handle, slot, ticks),
        }
    }

    /// Ends a step on another thread than the one that started its operation. The step is lost,
    /// because readers find its operation through the lane that both share.
    #[cold]
    #[inline(never)]
    fn stop_step_elsewhere(&self, handle: Handle, slot: &Slot, ticks: u64) {
        let _lost = slot.step(handle.step_index()).end(handle, slot.is_send(), true, ticks);
        if let Some(lane) = self.lane(EventKind::ProxyStep) {
            lane.header().lose(EventKind::ProxyStep);
        }
    }

    /// [`Recorder::stop`] for the handle of a ProxyOp. Steps that are in flight end with it.
    #[inline(never)]
    pub fn stop_op(&self, handle: Handle) {
        let slot = slots::at(&self.region, handle).filter(|slot| slot.holds(handle));
        let Some(slot) = slot else { return self.count_stale(handle) };
        let ticks = now();
        let Some(lane) = self.lane(EventKind::ProxyOp) else { return };
        let is_own = handle.lane() == lane.index();
        if !is_own && !slot.take_out(handle) {
            return self.count_stale(handle);
        }
        for index in 0..ncclscope_trace::handle::STEPS_IN_FLIGHT {
            if slot.step(index).is_live(handle) {
                self.end_step(handle, slot, index, false, ticks, &lane);
            }
        }
        if !Record::put_stop(lane, ticks, handle) {
            lane.header().lose_end(EventKind::ProxyOp);
        }
        if is_own {
            slot.close_own(handle, &lane);
        } else {
            slot.give_back(handle, &self.region);
        }
    }

    /// The calling thread's lane; without one, an event of `kind` is counted as lost.
    #[inline(always)]
    fn lane(&self, kind: EventKind) -> Option<Lane<'static>> {
        let lane = registry::current(&self.region);
        if lane.is_none() {
            self.lose_without_lane(kind);
        }
        lane
    }

    /// The calling thread's lane, which is usually the one on which `handle` was made.
    #[inline(always)]
    fn lane_of(&self, handle: Handle) -> Option<Lane<'static>> {
        registry::held(&self.region, handle.lane()).or_else(|| self.other_lane(handle.kind()))
    }

    #[cold]
    #[inline(never)]
    fn other_lane(&self, kind: EventKind) -> Option<Lane<'static>> {
        self.lane(kind)
    }

    #[cold]
    fn lose_without_lane(&self, kind: EventKind) {
        self.lost_without_lane[kind.index()].fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    fn lose_without_slot(&self, kind: EventKind) -> Handle {
        self.lost_without_slot[kind.index()].fetch_add(1, Ordering::Relaxed);
        Handle::NULL
    }

    /// The handle for a step whose operation is not recorded. If the operation was left out, the
    /// step is left out too. Otherwise the step is counted as lost. A null handle does not say why
    /// the operation was lost: if any ProxyOp found no slot, that is assumed to be the reason.
    #[cold]
    fn orphan_step(&self, op: Handle) -> Handle {
        if op == Handle::REFUSED {
            return op;
        }
        // Without a lane, `lane` has counted the step as lost for that reason.
        let Some(lane) = self.lane(EventKind::ProxyStep) else { return Handle::NULL };
        let refused = &self.lost_without_slot[EventKind::ProxyOp.index()];
        if op.is_null() && refused.load(Ordering::Relaxed) != 0 {
            return self.lose_without_slot(EventKind::ProxyStep);
        }
        lane.header().lose(EventKind::ProxyStep);
        Handle::NULL
    }

    #[cold]
    fn count_stale(&self, handle: Handle) {
        if handle == Handle::REFUSED {
            return;
        }
        self.stale.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an event or a state of a kind that this plugin does not know.
    #[cold]
    pub fn count_unknown(&self) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an operation that is left out because it is not in the sample.
    #[cold]
    pub fn count_left_out(&self) {
        self.left_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of operations left out because they were not in the sample.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Number of stops and states for handles that were not a live event of this process.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// Number of events and states of unknown kinds.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Events lost because no lane was free for their thread, by kind.
    #[must_use]
    pub fn lost_without_lane(&self) -> [u64; KINDS] {
        core::array::from_fn(|kind| self.lost_without_lane[kind].load(Ordering::Relaxed))
    }

    /// ProxyOps lost because all slots were taken, and the steps of such operations, by kind.
    #[must_use]
    pub fn lost_without_slot(&self) -> [u64; KINDS] {
        self.lost_without_slot.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Events, stops and states lost so far for any reason, by kind.
    #[must_use]
    pub fn lost(&self) -> [u64; KINDS] {
        let (no_lane, no_slot) = (self.lost_without_lane(), self.lost_without_slot());
        let mut lost = core::array::from_fn(|kind| no_lane[kind] + no_slot[kind]);
        for (_, lane) in self.lanes() {
            let (starts, ends) = (lane.lost(), lane.lost_ends());
            lost.iter_mut().zip(starts).for_each(|(sum, count)| *sum += count);
            lost.iter_mut().zip(ends).for_each(|(sum, count)| *sum += count);
        }
        lost
    }

    /// Marks a communicator as finalized: NCCL will not stop its open ProxyOps any more.
    /// [`Recorder::reap`] frees their slots.
    pub fn end_comm(&self, comm: u16) {
        self.slots.end_comm(comm);
    }

    /// Abandons a ProxyOp that NCCL will not stop. Its slot is reused when slots run short, from
    /// when on the handle is stale. No effect if the ProxyOp has stopped. Not for callbacks.
    pub fn abandon(&self, op: Handle) {
        let family = Handle::family_of(self.process(), EventKind::ProxyOp);
        let slot =
            slots::at(&self.region, op).filter(|slot| op.family() == family && slot.holds(op));
        slot.into_iter().for_each(|slot| slot.abandon(op, &self.region));
    }

    /// Finds slots that can be reused: those of finalized communicators and, when no slab is left,
    /// those of lanes without a thread. If many lanes are in use, also calls
    /// [`Recorder::reap_lanes`]. For the drain thread, on each round: it costs a few loads while
    /// there is nothing to do.
    pub fn reap(&self) {
        self.slots.reap(&self.region);
        if self.lanes().filter(|(_, lane)| lane.in_use()).count() >= MANY_LANES {
            self.reap_lanes();
        }
    }

    /// Releases the lanes of exited threads, on the second call that finds a thread gone. For the
    /// drain thread, now and then: it makes a system call for each lane in use.
    pub fn reap_lanes(&self) {
        self.lanes().for_each(|(_, lane)| lane.release_of(registry::is_gone));
    }

    /// The number of lanes and slabs that should be usable with `comms` communicators, at most
    /// [`LANES`] and [`SLABS`]. Each of the first eight communicators may bring three threads at
    /// once: proxy, CUDA's host callbacks, profiler (NCCL 2.31 on). The drain thread adds more when
    /// it sees more in use; until then events beyond them are counted as lost.
    #[must_use]
    pub fn wanted(&self, comms: usize) -> (usize, usize) {
        let in_use = self.lanes().filter(|(_, lane)| lane.in_use()).count();
        let slabs = self.slots.slabs_used();
        let proxies = comms.max((2 * comms).min(12));
        let threads = in_use.max(comms + 2 * comms.min(8));
        let spare = if registry::tells_ends() { SPARE } else { SPARE_WITHOUT_KEY };
        let spare = spare.max(FIRST.saturating_sub(in_use));
        ((threads + spare).min(LANES), (slabs.max(proxies) + slabs / 4 + 8).min(SLABS))
    }

    /// The lanes whose rings should be committed in full now: those that outgrow their starter
    /// memory, and those that the next threads will take.
    pub fn worth_completing(&self) -> impl Iterator<Item = usize> {
        let next: Vec<_> =
            self.lanes().filter(|(_, lane)| !lane.in_use()).take(WHOLE_SPARE).collect();
        let next = next.into_iter().filter(|(_, lane)| !lane.is_whole());
        self.lanes().filter(|(_, lane)| lane.outgrows()).chain(next).map(|(index, _)| index)
    }

    /// The usable lanes with their indices.
    pub fn lanes(&self) -> impl Iterator<Item = (usize, &'static LaneHeader)> {
        (0..self.region.rings()).filter_map(|i| Some((i, self.region.lane_header(i)?)))
    }
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}
