// SPDX-License-Identifier: Apache-2.0
//! Network steps: the parts of a step's time, and the totals of a ProxyOp's steps.

use ncclscope_trace::record::{STEP_SHIFT, step_flags};
use ncclscope_trace::{State, Step};

const FLAGS: [u8; 3] = [step_flags::FIRST, step_flags::SECOND, step_flags::THIRD];

/// The states of a send or receive step, in the order in which NCCL goes through them.
#[must_use]
pub const fn states(is_send: bool) -> [State; 3] {
    if is_send {
        [State::STEP_SEND_GPU_WAIT, State::STEP_SEND_PEER_WAIT, State::STEP_SEND_WAIT]
    } else {
        [State::STEP_RECV_WAIT, State::STEP_RECV_FLUSH_WAIT, State::STEP_RECV_GPU_WAIT]
    }
}

/// Times of a step, derived from its record, in ticks.
pub trait StepExt {
    /// Start of each state, in ticks; `None` if the state was not recorded.
    fn state_ticks(&self) -> [Option<u64>; 3];
    /// End of the step, in ticks; for a step in flight, the latest known time.
    fn end_ticks(&self) -> u64;
    /// Ticks spent in each state: from its start to the next state's, or to the step's end.
    fn waits(&self) -> [u64; 3];
    /// Ticks on the network, for a receive including the wait for the sender. `None` if the state
    /// was not recorded.
    fn network(&self) -> Option<u64>;
    /// When the GPU had delivered the data of a send, in ticks; `None` for a receive.
    fn ready(&self) -> Option<u64>;
    /// The latest recorded state, with its start in ticks.
    fn current(&self) -> Option<(State, u64)>;
}

impl StepExt for Step {
    fn state_ticks(&self) -> [Option<u64>; 3] {
        std::array::from_fn(|i| {
            self.has(FLAGS[i]).then(|| self.ticks.saturating_add(self.states[i] << STEP_SHIFT))
        })
    }

    fn end_ticks(&self) -> u64 {
        self.ticks.saturating_add(self.end << STEP_SHIFT)
    }

    fn waits(&self) -> [u64; 3] {
        let mut next = self.end_ticks();
        let mut waits = [0; 3];
        let ticks = self.state_ticks();
        for i in (0..3).rev() {
            if let Some(ticks) = ticks[i] {
                waits[i] = next.saturating_sub(ticks);
                next = ticks;
            }
        }
        waits
    }

    fn network(&self) -> Option<u64> {
        let at = if self.has(step_flags::IS_SEND) { 2 } else { 0 };
        self.has(FLAGS[at]).then(|| self.waits()[at])
    }

    fn ready(&self) -> Option<u64> {
        let [_, peer, network] = self.state_ticks();
        peer.or(network).filter(|_| self.has(step_flags::IS_SEND))
    }

    fn current(&self) -> Option<(State, u64)> {
        let names = states(self.has(step_flags::IS_SEND));
        let ticks = self.state_ticks();
        (0..3).rev().find_map(|i| ticks[i].map(|t| (names[i], t)))
    }
}

/// The steps of one ProxyOp.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpSteps {
    /// Steps that started.
    pub started: u32,
    /// Steps that stopped.
    pub stopped: u32,
    /// Bytes of the steps with a size, or as a state of the ProxyOp reports.
    pub bytes: u64,
    /// Bytes in the first state of the ProxyOp (API v1 to v3), from which NCCL continues to count.
    pub told_from: Option<u64>,
    /// When the GPU had delivered the first data of a send, in ticks.
    pub ready: Option<u64>,
    /// Steps that started and did not stop.
    pub open: Vec<Step>,
}

impl OpSteps {
    /// Adds a step.
    pub fn add(&mut self, step: &Step) {
        self.started += 1;
        self.bytes += u64::from(step.size);
        self.ready = earliest(self.ready, step.ready());
        if step.has(step_flags::STOPPED) {
            self.stopped += 1;
        } else {
            self.open.push(*step);
        }
    }
}

/// Bytes that a state of a ProxyOp reports beyond the known `bytes` (API v1 to v3). `from` is the
/// value of its first state, which is not 0 if NCCL reuses the memory of an earlier ProxyOp and
/// continues its count.
#[must_use]
pub fn told_more(from: &mut Option<u64>, bytes: u64, told: u64) -> u64 {
    told.saturating_sub(*from.get_or_insert(told)).saturating_sub(bytes)
}

/// The earlier of two times; either may be unknown.
#[must_use]
pub fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_run_to_the_next_recorded_state() {
        let all = step_flags::FIRST | step_flags::SECOND | step_flags::THIRD;
        let mut step = Step {
            ticks: 1000,
            flags: all | step_flags::IS_SEND | step_flags::STOPPED,
            states: [1, 3, 6],
            end: 10,
            ..Step::default()
        };
        assert_eq!(step.waits(), [32, 48, 64]);
        assert_eq!(step.current(), Some((State::STEP_SEND_WAIT, 1096)));
        assert_eq!((step.network(), step.ready()), (Some(64), Some(1048)));
        // Up to NCCL 2.26 there is no SendPeerWait.
        step.flags &= !step_flags::SECOND;
        assert_eq!((step.waits(), step.ready()), ([80, 0, 64], Some(1096)));
        step.flags = step_flags::FIRST;
        assert_eq!(step.ready(), None, "a receive");
        assert_eq!(step.current(), Some((State::STEP_RECV_WAIT, 1016)));
        assert_eq!((step.waits(), step.network()), ([144, 0, 0], Some(144)));
        step.flags = 0;
        assert_eq!((step.current(), step.waits(), step.network()), (None, [0; 3], None));
    }
}
