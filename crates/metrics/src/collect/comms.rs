// SPDX-License-Identifier: Apache-2.0
/*!
The communicators and names of a process, by the numbers in its records.

Memory is bounded by the number of live communicators. At most [`MOST_KEYS`] have their own key at a
time; the figures of all others are counted in [`CommKey::others`], and stay there. A finalized
communicator is removed when none of its operations is outstanding.
*/

use super::streams::Streams;
use crate::window::{CommKey, Device, Metrics, Name, RankKey};
use ncclscope_operations::comm_set::CommSet;
use ncclscope_operations::hash::Map;
use ncclscope_operations::kernels::Drifts;
use ncclscope_operations::operation::Evidence;
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::{Facts, KernelOrder, Launched};
use ncclscope_trace::progress::{Progress, progress_flags};
use ncclscope_trace::{Comm, CommDevice, Handle, Start, StrId};
use std::collections::{BTreeMap, BTreeSet};

/// Most communicators that have their own key at a time. A rank of a large job is in about twenty.
const MOST_KEYS: usize = 64;
/// The place of communicators without their own key; no process uses this index.
pub(super) const OTHERS: u16 = u16::MAX - 1;

/// Names and communicators.
#[derive(Debug, Default)]
pub(super) struct Comms {
    /// Every communicator has its own key, without a limit.
    pub(super) tells_all: bool,
    names: Vec<Name>,
    comms: Map<u16, State>,
    /// Communicators with their own key, each with the number of this process's indices that it
    /// has.
    keys: BTreeMap<CommKey, u32>,
    /// Indices of communicators that were forgotten, of which late records may still come.
    forgotten: CommSet,
    /// End of the latest window, in ticks.
    window_end: u64,
    /// Whether the latest window had operations in flight of communicators without a key.
    others_had_in_flight: bool,
    /// Calls that were captured into CUDA graphs.
    captured: Map<Handle, ()>,
    pub(super) streams: Streams,
    /// KernelCh events were lost, so a missing one proves nothing.
    pub(super) kernels_lost: bool,
    /// Finds the operations whose kernel times are discarded.
    pub(super) drifts: Drifts,
}

/// Most captured calls that are kept; beyond that all are forgotten.
const MOST_CAPTURED: usize = 1 << 16;

/// The known facts about a communicator.
#[derive(Debug)]
struct State {
    key: CommKey,
    rank: i32,
    device: Option<Device>,
    /// Number of calls captured into CUDA graphs in this window, and of operations of such calls
    /// without kernels or network traffic.
    graphs: (u64, u64),
    /// The order of its kernels.
    order: KernelOrder,
    /// Start of its first operation, in ticks.
    first: Option<u64>,
    /// The profiler API has kernel events with times (v4 and later).
    has_kernels: bool,
    /// End of the latest operation, in ticks.
    last_end: Option<u64>,
    had_in_flight: bool,
    /// It has a definition.
    is_known: bool,
    /// It has its own key.
    is_told: bool,
    /// When it was finalized, in ticks.
    ended: Option<u64>,
    /// According to the rank's watchdog, no operation is in flight that started before this time,
    /// in ticks.
    past: u64,
    /// The start of the oldest operation that the rank's watchdog sees in flight, in ticks.
    oldest: Option<u64>,
    /// According to the rank's watchdog, its operations show no end.
    hides_ends: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            key: CommKey::others(),
            rank: -1,
            device: None,
            graphs: (0, 0),
            order: KernelOrder::default(),
            first: None,
            has_kernels: false,
            last_end: None,
            had_in_flight: false,
            is_known: false,
            is_told: true,
            ended: None,
            past: 0,
            oldest: None,
            hides_ends: false,
        }
    }
}

impl State {
    fn rank_key(&self) -> RankKey {
        if self.is_told {
            RankKey { comm: self.key.clone(), rank: self.rank }
        } else {
            RankKey { comm: CommKey::others(), rank: -1 }
        }
    }
}

/// Adds an index to a communicator's key. False if the key is new and `has_room` is false.
fn join(told: &mut BTreeMap<CommKey, u32>, key: &CommKey, has_room: bool) -> bool {
    if let Some(numbers) = told.get_mut(key) {
        *numbers += 1;
        return true;
    }
    if has_room {
        told.insert(key.clone(), 1);
    }
    has_room
}

/// Removes an index from a communicator's key. True if that was the last, and the key was removed.
fn leave(told: &mut BTreeMap<CommKey, u32>, key: &CommKey) -> bool {
    let Some(numbers) = told.get_mut(key) else { return false };
    *numbers = numbers.saturating_sub(1);
    let is_last = *numbers == 0;
    if is_last {
        told.remove(key);
    }
    is_last
}

/// Operations of a communicator that are not over.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) count: u64,
    /// Start of the oldest operation, in ticks.
    pub(super) oldest: u64,
    pub(super) facts: Facts,
}

impl Comms {
    pub(super) fn string(&mut self, id: StrId, text: &str) {
        self.drifts.string(id, text);
        let at = usize::from(id.0);
        if at >= self.names.len() {
            self.names.resize_with(at + 1, Name::default);
        }
        if let Some(name) = self.names.get_mut(at) {
            *name = text.into();
        }
    }

    /// The string; empty if NCCL gave none.
    pub(super) fn name(&self, id: StrId) -> Name {
        self.names.get(usize::from(id.0)).cloned().unwrap_or_default()
    }

    /// Takes a definition of a communicator, new or updated. Returns the key that had the index
    /// before, if it gets no more figures.
    pub(super) fn comm(&mut self, comm: &Comm) -> Option<CommKey> {
        self.forgotten.remove(comm.index);
        self.drifts.comm(comm);
        let state = self.comms.entry(comm.index).or_default();
        let name = comm.name.as_deref().unwrap_or_default().into();
        let key = CommKey { hash: comm.hash, name, ranks: comm.ranks, nodes: comm.nodes };
        let mut gone = None;
        if state.is_known && state.key != key {
            if state.is_told && leave(&mut self.keys, &state.key) {
                // A key without a hash is kept, because figures were counted under it.
                gone = Some(state.key.clone()).filter(|key| key.hash != 0);
            }
            state.is_known = false;
        }
        if state.ended.is_some_and(|at| comm.ticks > at) {
            // The index now belongs to another communicator.
            let is_known = state.is_known;
            *state = State { is_known, is_told: state.is_told, ..State::default() };
        }
        if !state.is_known {
            state.is_known = true;
            let has_room = self.tells_all || self.keys.len() < MOST_KEYS;
            state.is_told = join(&mut self.keys, &key, has_room);
        }
        state.key = key;
        state.has_kernels = comm.api_version >= 4;
        state.order.api(comm.api_version);
        state.order.rank(comm.rank);
        if comm.rank >= 0 {
            state.rank = comm.rank;
        }
        gone
    }

    /// Notes that a communicator was finalized at `ticks`.
    pub(super) fn end(&mut self, comm: u16, ticks: u64) {
        if let Some(state) = self.comms.get_mut(&comm) {
            state.ended = Some(ticks);
        }
    }

    /// Takes what the rank's watchdog sees: no operation of the communicator is in flight that
    /// started before `oldest`, in ticks; and one that did, if any is.
    pub(super) fn watched(&mut self, progress: &Progress, oldest: u64) {
        if let Some(state) = self.comms.get_mut(&progress.comm) {
            state.past = oldest;
            let has_any = progress.enqueued + progress.p2p_enqueued > 0;
            state.hides_ends = has_any && progress.flags & progress_flags::NO_END != 0;
            let is_seen = progress.age_ms > 0 && progress.flags & progress_flags::NO_END == 0;
            state.oldest = is_seen.then_some(oldest);
        }
    }

    /// Whether the rank's watchdog, which asks the CUDA driver about launches, sees an operation in
    /// flight that an operation with this start is, or follows.
    pub(super) fn is_seen_in_flight(&self, comm: u16, start: u64) -> bool {
        let oldest = self.comms.get(&comm).and_then(|state| state.oldest);
        oldest.is_some_and(|oldest| start >= oldest)
    }

    /// Time from `start`, the start of an operation, to the time of [`Comms::past`], in ticks; 0 if
    /// it started later.
    pub(super) fn past_since(&self, comm: u16, start: u64) -> u64 {
        self.comms.get(&comm).map_or(0, |state| state.past.saturating_sub(start))
    }

    /// Communicators that were finalized at a time for which `is_past` is true.
    pub(super) fn ended(&self, is_past: impl Fn(u64) -> bool) -> BTreeSet<u16> {
        let ended = self.comms.iter().filter(|(_, state)| state.ended.is_some_and(&is_past));
        ended.map(|(comm, _)| *comm).collect()
    }

    /// Forgets finalized communicators. Returns the keys that get no more figures.
    pub(super) fn forget(&mut self, comms: &BTreeSet<u16>) -> Vec<CommKey> {
        let mut gone = Vec::new();
        for comm in comms {
            let Some(state) = self.comms.remove(comm) else { continue };
            self.forgotten.insert(*comm);
            self.drifts.forget(*comm);
            if state.is_known && state.is_told && leave(&mut self.keys, &state.key) {
                gone.push(state.key);
            }
        }
        gone
    }

    /// Whether the communicator was forgotten, so that its records are late.
    pub(super) fn is_forgotten(&self, comm: u16) -> bool {
        self.forgotten.contains(comm)
    }

    /// Ends a window at `now` ticks: communicators for which there was no room get their own key
    /// from now on, if there is room.
    pub(super) fn make_use_of_room(&mut self, now: u64) {
        self.window_end = now;
        for state in self.comms.values_mut().filter(|state| !state.is_told) {
            if state.is_known && state.ended.is_none() {
                let has_room = self.keys.len() < MOST_KEYS;
                state.is_told = join(&mut self.keys, &state.key, has_room);
            }
        }
    }

    pub(super) fn device(&mut self, device: &CommDevice) {
        let uuid = device.uuid.as_str().into();
        self.state(device.comm).device = Some(Device { index: device.index, uuid });
    }

    /// The devices of the ranks, if the process has several ranks of one communicator.
    pub(super) fn devices(&self) -> BTreeMap<RankKey, Device> {
        let mut ranks: BTreeMap<&CommKey, i32> = BTreeMap::new();
        let known = || self.comms.values().filter(|state| state.is_known && state.is_told);
        if !known().any(|state| *ranks.entry(&state.key).or_insert(state.rank) != state.rank) {
            return BTreeMap::new();
        }
        known().filter_map(|state| Some((state.rank_key(), state.device.clone()?))).collect()
    }

    /// Communicators with their own key.
    pub(super) fn keys(&self) -> impl Iterator<Item = &CommKey> {
        self.keys.keys()
    }

    /// The place under which figures of a communicator are counted: its index, or [`OTHERS`].
    pub(super) fn place(&self, comm: u16) -> u16 {
        match self.comms.get(&comm) {
            Some(state) if !state.is_told => OTHERS,
            None if self.forgotten.contains(comm) => OTHERS,
            _ => comm,
        }
    }

    fn state(&mut self, comm: u16) -> &mut State {
        let (is_forgotten, window_end) = (self.forgotten.contains(comm), self.window_end);
        self.comms.entry(comm).or_insert_with(|| State {
            is_told: !is_forgotten,
            // So that it is forgotten again.
            ended: is_forgotten.then_some(window_end),
            ..State::default()
        })
    }

    /// The key of a [`Comms::place`]; [`CommKey::others`] if the communicator is not defined.
    pub(super) fn key(&self, place: u16) -> CommKey {
        self.comms.get(&place).map_or_else(CommKey::others, |state| state.key.clone())
    }

    /// Number of ranks; `None` if NCCL does not report it.
    pub(super) fn ranks(&self, comm: u16) -> Option<u32> {
        self.comms.get(&comm).map(|state| state.key.ranks).filter(|&ranks| ranks != 0)
    }

    /// The process's rank in the communicator; -1 if unknown.
    pub(super) fn rank(&self, comm: u16) -> i32 {
        self.comms.get(&comm).map_or(-1, |state| state.rank)
    }

    /// Takes the rank from an event, if `init` did not have it (API v1 to v3).
    pub(super) fn learn_rank(&mut self, comm: u16, rank: i32) {
        let state = self.state(comm);
        if state.rank < 0 {
            state.rank = rank;
            state.order.rank(rank);
        }
    }

    pub(super) fn saw_kernel(&mut self, operation: &Start, stream: u64) {
        let is_p2p = Facts::of(&operation.detail).is_some_and(|facts| facts.is_p2p());
        self.state(operation.comm).order.kernel(Launched::of(operation), is_p2p);
        self.streams.kernel(operation, stream);
    }

    /// Begins a look: updates the times from which kernels are not used.
    pub(super) fn begin_look(&mut self) {
        for (&comm, state) in &mut self.comms {
            state.order.believe_until(self.drifts.since(comm));
        }
    }

    /// The order of a communicator's kernels; `None` if kernel events were lost, because a missing
    /// one then proves nothing.
    fn order(&self, comm: u16) -> Option<&KernelOrder> {
        self.comms.get(&comm).map(|state| &state.order).filter(|_| !self.kernels_lost)
    }

    /// Adds the conclusions from other kernels of an operation's communicator and stream to its
    /// evidence.
    pub(super) fn add_order(
        &self,
        evidence: &mut Evidence,
        facts: &Facts,
        (operation, stream): (&Start, u64),
    ) {
        if let Some(order) = self.order(operation.comm) {
            evidence.add_order(order, facts, Launched::of(operation));
        }
        evidence.add_stream(self.streams.is_followed(operation, stream));
    }

    /// Whether the kernel of an operation without a recorded kernel may still start.
    pub(super) fn awaits_kernel(&self, facts: &Facts, operation: &Start) -> bool {
        let own = Launched::of(operation);
        self.order(operation.comm).is_some_and(|order| order.awaits(facts, own))
    }

    /// Takes the number of channels on which the kernel of an operation was recorded; `is_over` if
    /// no more will come.
    pub(super) fn saw_channels(&mut self, comm: u16, seen: usize, facts: &Facts, is_over: bool) {
        let is_whole = !self.kernels_lost;
        if let Some(state) = self.comms.get_mut(&comm) {
            state.order.saw_channels(seen, facts, is_over && is_whole);
        }
    }

    /// Whether the kernel times of an operation that started at `start` ticks are used.
    pub(super) fn is_kernel_told(&self, comm: u16, start: u64) -> bool {
        self.drifts.since(comm).is_none_or(|since| start < since)
    }

    pub(super) fn saw_operation(&mut self, start: &Start) {
        let state = self.state(start.comm);
        state.first.get_or_insert(start.ticks);
        if let Some(facts) = Facts::of(&start.detail) {
            state.order.operation(&facts, Launched::of(start));
        }
    }

    /// Start of the first operation, in ticks, until a kernel shows that NCCL reports kernels; then
    /// `None`.
    pub(super) fn untried_since(&self, comm: u16) -> Option<u64> {
        let state = self.comms.get(&comm).filter(|state| state.has_kernels)?;
        if state.order.has_kernels() { None } else { state.first }
    }

    /// Notes that a call was captured into a CUDA graph.
    pub(super) fn captured(&mut self, call: &Start) {
        self.state(call.comm).graphs.0 += 1;
        if self.captured.len() >= MOST_CAPTURED {
            self.captured.clear();
        }
        self.captured.insert(call.handle, ());
    }

    /// Takes an operation without recorded kernels and network traffic. True if its call was
    /// captured: then it was not executed, and its replays are invisible as well.
    pub(super) fn is_invisible_replay(&mut self, operation: &Start) -> bool {
        let is_captured = self.captured.contains_key(&operation.parent);
        if is_captured {
            self.state(operation.comm).graphs.1 += 1;
        }
        is_captured
    }

    /// Adds the counts of captured calls and invisible operations to the window.
    pub(super) fn state_graphs(&mut self, metrics: &mut Metrics) {
        for state in self.comms.values_mut().filter(|state| state.graphs != (0, 0)) {
            let (captured, invisible) = std::mem::take(&mut state.graphs);
            let rank = metrics.ranks.entry(state.rank_key()).or_default();
            rank.captured += captured;
            rank.invisible += invisible;
        }
    }

    /// Adds the gap before each operation (communicator, start, end in ticks) that settled.
    pub(super) fn add_gaps(
        &mut self,
        mut settled: Vec<(u16, u64, u64)>,
        metrics: &mut Metrics,
        seconds_per_tick: f64,
    ) {
        settled.sort_unstable();
        for (comm, start, end) in settled {
            let state = self.state(comm);
            if let Some(last) = state.last_end {
                let gap = to_f64(start.saturating_sub(last)) * seconds_per_tick;
                metrics.ranks.entry(state.rank_key()).or_default().gap.add(gap);
            }
            state.last_end = state.last_end.max(Some(end));
        }
    }

    /// Adds the operations in flight to the window; 0 if there were some in the previous window.
    pub(super) fn state_in_flight(
        &mut self,
        in_flight: &Map<u16, InFlight>,
        metrics: &mut Metrics,
        (now, seconds_per_tick): (u64, f64),
    ) {
        for comm in in_flight.keys() {
            self.state(*comm).had_in_flight = true;
        }
        for state in self.comms.values().filter(|state| state.hides_ends && state.ended.is_none()) {
            metrics.ranks.entry(state.rank_key()).or_default().hidden += 1;
        }
        if std::mem::take(&mut self.others_had_in_flight) {
            metrics.ranks.entry(RankKey { comm: CommKey::others(), rank: -1 }).or_default();
        }
        for (comm, state) in self.comms.iter_mut().filter(|(_, state)| state.had_in_flight) {
            let rank = metrics.ranks.entry(state.rank_key()).or_default();
            state.had_in_flight = in_flight.contains_key(comm);
            if let Some(open) = in_flight.get(comm) {
                self.others_had_in_flight |= !state.is_told;
                rank.in_flight += open.count;
                let age = to_f64(now.saturating_sub(open.oldest)) * seconds_per_tick;
                rank.oldest = rank.oldest.max(age);
            }
        }
    }
}
