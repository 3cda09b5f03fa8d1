// SPDX-License-Identifier: Apache-2.0
//! The interface of the sinks for a process's strings and communicators.

use crate::meter::Meter;
use crate::watchdog::Watchdog;
use ncclscope_trace::{Comm, StrId};

/// A sink for what a process reports besides its records.
pub(super) trait Sink {
    /// A string of the process's table.
    fn string(&mut self, id: StrId, text: &str);
    /// A communicator, or additional facts about one.
    fn comm(&mut self, comm: &Comm);
    /// A communicator was finalized.
    fn comm_end(&mut self, index: u16, ticks: u64);
}

impl Sink for Meter {
    fn string(&mut self, id: StrId, text: &str) {
        Meter::string(self, id, text);
    }

    fn comm(&mut self, comm: &Comm) {
        Meter::comm(self, comm);
    }

    fn comm_end(&mut self, index: u16, ticks: u64) {
        Meter::comm_end(self, index, ticks);
    }
}

impl Sink for Watchdog {
    fn string(&mut self, id: StrId, text: &str) {
        Watchdog::string(self, id, text);
    }

    fn comm(&mut self, comm: &Comm) {
        Watchdog::comm(self, comm);
    }

    fn comm_end(&mut self, index: u16, _ticks: u64) {
        self.end_comm(index);
    }
}
