// SPDX-License-Identifier: Apache-2.0
//! The drain thread's rounds, and the actions on hangs that a round finds.

use super::Runtime;
use crate::log::Severity;
use crate::state::Phase;
use crate::watchdog::{Hang, Happened, act};
use core::sync::atomic::Ordering;
use std::time::Duration;

/// The load of a round, from which the drain thread derives its next sleep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) fullest: u64,
    pub(crate) comms: u32,
    /// Time until the next window begins or ends, if any.
    pub(crate) next: Option<Duration>,
    /// The process does not record yet.
    pub(crate) is_early: bool,
}

/// The load while the starting thread has not begun recording yet.
const BEFORE_ALL: Load =
    Load { fullest: 0, comms: 0, next: Some(Duration::from_millis(1)), is_early: true };

impl Runtime {
    /// One round of the drain thread, whose timer was `late` ns late. `None` if the drain thread
    /// should end.
    pub(crate) fn tick(&'static self, flush: bool, sync: bool, late: u64) -> Option<Load> {
        let mut state = self.shared.lock();
        match state.phase {
            Phase::New => return Some(BEFORE_ALL),
            Phase::Running => {}
            Phase::Off | Phase::Closed => return None,
        }
        let (comms, next) = (state.live, self.keep_schedule(&mut state));
        self.watch_mask(&mut state);
        let has_log = state.next_comm > 0;
        drop(state);
        let mut drain = self.drain.lock();
        let load = drain.as_mut().map(|drain| {
            while drain.grow(comms) {}
            drain.watchdog().0.late(late);
            let fullest = self.round(drain, flush, sync);
            (Load { fullest, comms, next, is_early: false }, drain.take_hangs())
        });
        drop(drain);
        let (load, hangs) = load?;
        self.report(hangs);
        if has_log {
            self.shared.log.speak();
        }
        Some(load)
    }

    /// Reports libraries of this process that can communicate without NCCL.
    pub(crate) fn tell_beside(&'static self, libraries: &[&'static str]) {
        if let Some(drain) = self.drain.lock().as_mut() {
            drain.beside(libraries);
        }
    }

    /// Reports hangs that the watchdog found, and starts the user's actions.
    fn report(&'static self, hangs: Vec<Hang>) {
        if hangs.is_empty() {
            return;
        }
        let actions = {
            let mut drain = self.drain.lock();
            let Some(drain) = drain.as_mut() else { return };
            drain.watchdog().0.actions.clone()
        };
        let recording = self.shared.lock().recording.clone().unwrap_or_default();
        let mut copies = actions.dump;
        let mut works = Vec::new();
        for hang in hangs {
            if actions.log {
                hang.lines().iter().for_each(|line| self.shared.log.say(Severity::Hang, line));
            }
            let number = self.hangs.fetch_add(1, Ordering::Relaxed);
            let (actions, recording) = (actions.clone(), recording.clone());
            let nonce = self.shared.nonce.load(Ordering::Relaxed);
            let copies = hang.happened == Happened::Hung && std::mem::take(&mut copies);
            works.push(act::Work { hang, actions, recording, nonce, number, copies });
        }
        act::begin(self, works).iter().for_each(|line| self.shared.problem(line));
    }
}
