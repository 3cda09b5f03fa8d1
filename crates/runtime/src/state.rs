// SPDX-License-Identifier: Apache-2.0
//! The process's state behind a lock that host threads take; the lock protects memory only.

use crate::outside::Outside;
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

/// What NCCL passed to `init` about a communicator.
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

/// The life of a recording in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No communicator yet.
    New,
    /// Recording has ended for good.
    Off,
    Running,
    /// The process ends.
    Closed,
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    /// The recording's path, once the file exists.
    pub(crate) recording: Option<PathBuf>,
    pub(crate) mask: Option<u32>,
    pub(crate) next_comm: u16,
    /// Wakes the drain thread, if there is one.
    pub(crate) drain: Option<Arc<Wake>>,
    pub(crate) live: u32,
    pub(crate) comms: BTreeMap<u16, CommInfo>,
    pub(crate) nccl_version: u32,
    pub(crate) masks: Masks,
    pub(crate) schedule: Schedule,
    pub(crate) socket: Option<SocketFile>,
    /// The window requested before the first communicator.
    pub(crate) early: Option<FirstWindow>,
    pub(crate) step: Option<u64>,
    pub(crate) outside: Outside,
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("State").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl State {
    pub(crate) const fn new() -> State {
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
            outside: Outside::new(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    pub(crate) fn wake_drain(&self) {
        self.drain.iter().for_each(|drain| drain.wake());
    }

    /// Adds the wanted events to the activation mask of a new communicator's NCCL. Called with the
    /// lock held, so that a stop before or after it clears the bits everywhere. Clears no bits,
    /// because all communicators of an NCCL share one mask, and sets none while that is an
    /// operator's.
    pub(crate) fn activate(&self, active: Option<ActivationMask>) {
        if let (Some(active), Some(mask)) = (active, self.wanted_mask())
            && self.outside.mask().is_none()
        {
            active.set(mask);
        }
    }

    /// The events to request from NCCL now; `None` if none.
    pub(crate) fn wanted_mask(&self) -> Option<u32> {
        let stopped = EventKind::KernelCh.bit();
        self.mask.map(|mask| if gate::is_started() { mask } else { mask & stopped })
    }
}
