// SPDX-License-Identifier: Apache-2.0
//! What the runtime knows of the process: memory only, behind a lock that host threads take.

use crate::own::SocketFile;
use crate::sys::mask::{ActivationMask, Masks};
use crate::sys::wake::Wake;
use crate::window::Schedule;
use ncclscope_control::value::FirstWindow;
use ncclscope_recorder::gate;
use ncclscope_trace::EventKind;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// What `init` was told about a communicator.
#[derive(Debug, Clone)]
pub struct CommInfo {
    /// `commId`/`commHash`; 0 unknown.
    pub hash: u64,
    /// Name given by the application.
    pub name: Option<String>,
    /// Nodes; 0 unknown.
    pub nodes: u32,
    /// Ranks; 0 unknown.
    pub ranks: u32,
    /// Rank of this process; -1 unknown.
    pub rank: i32,
    /// API version that NCCL chose.
    pub api_version: u32,
}

/// The life of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No communicator yet.
    New,
    /// Nothing is recorded, for good.
    Off,
    Running,
    /// The process ends.
    Closed,
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// The recording's file, once it is there.
    pub(super) recording: Option<PathBuf>,
    pub(super) mask: Option<u32>,
    pub(super) next_comm: u16,
    /// What wakes the drain thread, where there is one.
    pub(super) drain: Option<Arc<Wake>>,
    pub(super) live: u32,
    pub(super) comms: BTreeMap<u16, CommInfo>,
    pub(super) nccl_version: u32,
    pub(super) masks: Masks,
    pub(super) schedule: Schedule,
    pub(super) socket: Option<SocketFile>,
    /// What was asked for before the first communicator.
    pub(super) early: Option<FirstWindow>,
    pub(super) step: Option<u64>,
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("State").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl State {
    pub(super) const fn new() -> State {
        State {
            phase: Phase::New,
            recording: None,
            mask: None,
            next_comm: 0,
            drain: None,
            live: 0,
            comms: BTreeMap::new(),
            nccl_version: 0,
            masks: Masks::new(),
            schedule: Schedule::new(),
            socket: None,
            early: None,
            step: None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    pub(super) fn wake_drain(&self) {
        self.drain.iter().for_each(|drain| drain.wake());
    }

    /// Asks the NCCL of a new communicator for what is wanted now. With the lock: a stop in between
    /// takes it back everywhere. One mask serves all communicators of an NCCL, so that no bit is
    /// taken away here.
    pub(super) fn activate(&self, active: Option<ActivationMask>) {
        if let (Some(active), Some(mask)) = (active, self.wanted_mask()) {
            active.set(mask);
        }
    }

    /// What NCCL is to be asked for now.
    pub(super) fn wanted_mask(&self) -> Option<u32> {
        let stopped = EventKind::KernelCh.bit();
        self.mask.map(|mask| if gate::is_started() { mask } else { mask & stopped })
    }
}
