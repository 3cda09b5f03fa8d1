// SPDX-License-Identifier: Apache-2.0
//! Communicators and names of a process, by the numbers that its records use.

use super::hash::Map;
use super::{CommKey, Metrics, Name, RankKey};
use crate::stats::to_f64;
use ncclscope_trace::{Comm, StrId};

/// Names and communicators.
#[derive(Debug, Default)]
pub(super) struct Comms {
    names: Vec<Name>,
    comms: Map<u16, State>,
    /// KernelCh events were lost: that one is missing says nothing.
    pub(super) kernels_lost: bool,
}

/// What is known of a communicator.
#[derive(Debug)]
struct State {
    key: CommKey,
    rank: i32,
    /// Start of its latest operation whose kernel was seen, in ticks.
    last_kernel: Option<u64>,
    /// Start of its first operation, in ticks.
    first: Option<u64>,
    /// NCCL's profiler API has kernel events (v4 and later).
    has_kernels: bool,
    /// When the latest operation ended, in ticks.
    last_end: Option<u64>,
    had_in_flight: bool,
}

impl Default for State {
    fn default() -> State {
        let key = CommKey { hash: 0, name: Name::default(), ranks: 0, nodes: 0 };
        State {
            key,
            rank: -1,
            last_kernel: None,
            first: None,
            has_kernels: false,
            last_end: None,
            had_in_flight: false,
        }
    }
}

/// Operations of a communicator that are not over.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// How many.
    pub(super) count: u64,
    /// When the oldest of them started, in ticks.
    pub(super) oldest: u64,
}

impl Comms {
    pub(super) fn string(&mut self, id: StrId, text: &str) {
        let at = usize::from(id.0);
        if at >= self.names.len() {
            self.names.resize_with(at + 1, Name::default);
        }
        if let Some(name) = self.names.get_mut(at) {
            *name = text.into();
        }
    }

    /// The string; empty where NCCL gave none.
    pub(super) fn name(&self, id: StrId) -> Name {
        self.names.get(usize::from(id.0)).cloned().unwrap_or_default()
    }

    pub(super) fn comm(&mut self, comm: &Comm) {
        let state = self.comms.entry(comm.index).or_default();
        let name = comm.name.as_deref().unwrap_or_default().into();
        state.key = CommKey { hash: comm.hash, name, ranks: comm.ranks, nodes: comm.nodes };
        state.has_kernels = comm.api_version >= 4;
        if comm.rank >= 0 {
            state.rank = comm.rank;
        }
    }

    /// The communicator, or an unnamed one where it was not defined.
    pub(super) fn key(&self, comm: u16) -> CommKey {
        self.comms.get(&comm).map_or_else(|| State::default().key, |state| state.key.clone())
    }

    /// Number of ranks, where NCCL tells.
    pub(super) fn ranks(&self, comm: u16) -> Option<u32> {
        self.comms.get(&comm).map(|state| state.key.ranks).filter(|&ranks| ranks != 0)
    }

    /// The process's rank; -1 unknown.
    pub(super) fn rank(&self, comm: u16) -> i32 {
        self.comms.get(&comm).map_or(-1, |state| state.rank)
    }

    /// What an event says about the rank (API v1 to v3: `init` does not).
    pub(super) fn learn_rank(&mut self, comm: u16, rank: i32) {
        let state = self.comms.entry(comm).or_default();
        if state.rank < 0 {
            state.rank = rank;
        }
    }

    /// A kernel of the operation that started at `start` ticks was seen.
    pub(super) fn saw_kernel(&mut self, comm: u16, start: u64) {
        let state = self.comms.entry(comm).or_default();
        state.last_kernel = state.last_kernel.max(Some(start));
    }

    /// The kernels of a communicator run in order: only those of operations from the latest on
    /// whose kernel was seen can be outstanding.
    pub(super) fn awaits_kernel(&self, comm: u16, start: u64) -> bool {
        let last = self.comms.get(&comm).and_then(|state| state.last_kernel);
        !self.kernels_lost && last.is_some_and(|last| start >= last)
    }

    /// An operation started.
    pub(super) fn saw_operation(&mut self, comm: u16, start: u64) {
        self.comms.entry(comm).or_default().first.get_or_insert(start);
    }

    /// When the first operation started, as long as no kernel shows whether NCCL reports them.
    pub(super) fn untried_since(&self, comm: u16) -> Option<u64> {
        let state = self.comms.get(&comm).filter(|state| state.has_kernels)?;
        if state.last_kernel.is_none() { state.first } else { None }
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
            let state = self.comms.entry(comm).or_default();
            if let Some(last) = state.last_end {
                let gap = to_f64(start.saturating_sub(last)) * seconds_per_tick;
                let key = RankKey { comm: state.key.clone(), rank: state.rank };
                metrics.ranks.entry(key).or_default().gap.add(gap);
            }
            state.last_end = state.last_end.max(Some(end));
        }
    }

    /// States what is in flight, also that nothing is any longer.
    pub(super) fn state_in_flight(
        &mut self,
        in_flight: &Map<u16, InFlight>,
        metrics: &mut Metrics,
        (now, seconds_per_tick): (u64, f64),
    ) {
        for comm in in_flight.keys() {
            self.comms.entry(*comm).or_default().had_in_flight = true;
        }
        for (comm, state) in self.comms.iter_mut().filter(|(_, state)| state.had_in_flight) {
            let key = RankKey { comm: state.key.clone(), rank: state.rank };
            let rank = metrics.ranks.entry(key).or_default();
            state.had_in_flight = in_flight.contains_key(comm);
            if let Some(open) = in_flight.get(comm) {
                rank.in_flight += open.count;
                let age = to_f64(now.saturating_sub(open.oldest)) * seconds_per_tick;
                rank.oldest = rank.oldest.max(age);
            }
        }
    }
}
