// SPDX-License-Identifier: Apache-2.0
//! Counts of the starts and stops of each kind of event, and of states.

use crate::steps;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::record::step_flags;
use ncclscope_trace::{EventKind, State, Step};
use std::collections::BTreeMap;

/// Number of NCCL's states.
const STATES: usize = 32;

/// Counts of one kind of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCount {
    /// Events whose start is in the recording.
    pub started: u64,
    /// Events that stopped, of those in `started`.
    pub stopped: u64,
    /// Stops of events that had stopped before.
    pub stale: u64,
    /// Events that name a parent which is not in the recording: stale, foreign or lost.
    pub unknown_parent: u64,
}

/// Counts of one communicator's events, or of events without a known communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    kinds: [KindCount; KINDS],
    /// Counts of the known states, by number.
    states: [u64; STATES],
    later_states: BTreeMap<State, u64>,
}

impl Counts {
    /// The counts of a kind.
    #[must_use]
    pub fn kind(&self, kind: EventKind) -> KindCount {
        self.kinds[kind.index()]
    }

    /// The counts of a kind, mutable.
    pub fn kind_mut(&mut self, kind: EventKind) -> &mut KindCount {
        &mut self.kinds[kind.index()]
    }

    /// The states that occurred, each with its count.
    pub fn states(&self) -> impl Iterator<Item = (State, u64)> + '_ {
        let known = (0..).map(State).zip(self.states).filter(|&(_, count)| count != 0);
        known.chain(self.later_states.iter().map(|(&state, &count)| (state, count)))
    }

    /// Counts a state.
    pub fn add_state(&mut self, state: State, times: u64) {
        match self.states.get_mut(usize::from(state.0)) {
            Some(count) => *count += times,
            None => *self.later_states.entry(state).or_default() += times,
        }
    }

    /// Counts a step with the states it went through. A state that NCCL repeated while it polled
    /// counts as often as it was repeated.
    pub fn add_step(&mut self, step: &Step) {
        let kind = self.kind_mut(EventKind::ProxyStep);
        kind.started += 1;
        kind.stopped += u64::from(step.has(step_flags::STOPPED));
        let [first, second, third] = steps::states(step.has(step_flags::IS_SEND));
        if step.has(step_flags::FIRST) {
            self.add_state(first, 1);
        }
        if step.has(step_flags::SECOND) {
            self.add_state(second, 1 + u64::from(step.repeats));
        }
        if step.has(step_flags::THIRD) {
            self.add_state(third, 1);
        }
    }

    /// Adds other counts.
    pub fn merge(&mut self, other: &Counts) {
        for (to, from) in self.kinds.iter_mut().zip(&other.kinds) {
            to.started += from.started;
            to.stopped += from.stopped;
            to.stale += from.stale;
            to.unknown_parent += from.unknown_parent;
        }
        for (state, count) in other.states() {
            self.add_state(state, count);
        }
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_its_states() {
        let mut counts = Counts::default();
        let flags = step_flags::IS_SEND | step_flags::FIRST | step_flags::SECOND;
        counts.add_step(&Step { flags, repeats: 4, ..Step::default() });
        let all = step_flags::FIRST | step_flags::SECOND | step_flags::THIRD | step_flags::STOPPED;
        counts.add_step(&Step { flags: all, ..Step::default() });
        let steps = counts.kind(EventKind::ProxyStep);
        assert_eq!((steps.started, steps.stopped), (2, 1));
        let states: Vec<(u8, u64)> = counts.states().map(|(s, n)| (s.0, n)).collect();
        assert_eq!(states, [(8, 1), (10, 1), (11, 1), (12, 1), (20, 5)]);
        let mut twice = counts.clone();
        twice.merge(&counts);
        assert_eq!(twice.kind(EventKind::ProxyStep).started, 4);
        assert!(!twice.is_empty() && Counts::default().is_empty());
    }
}
