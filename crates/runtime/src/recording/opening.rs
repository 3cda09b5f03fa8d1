// SPDX-License-Identifier: Apache-2.0
/*!
When the recording's file is created.

The disk may be full, or all descriptors in use, for the moment in which the job begins. So the file
is tried again: with each new communicator, at the end, and by time.
*/

use crate::lanes::LanesFile;
use crate::shared::Shared;
use ncclscope_recorder::clock;
use ncclscope_trace::layout::Header;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Pause before the second try; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is needed to create a recording.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    pub(crate) dir: PathBuf,
    /// The part of the directory's path that must belong to this user.
    pub(crate) private: Option<PathBuf>,
    pub(crate) header: Header,
    pub(crate) ring_bytes: u64,
    /// A number that other processes are unlikely to have.
    pub(crate) nonce: u32,
    pub(crate) lanes: Option<Arc<LanesFile>>,
}

/// The failed attempts to create the file.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// Why the first one failed.
    why: Option<String>,
    pause: Duration,
    /// Times of the first failure and of the next attempt, ns.
    since: u64,
    pub(super) next: u64,
}

impl Tries {
    /// Notes a failed attempt, and logs the first one.
    pub(super) fn failed(&mut self, why: String, shared: &'static Shared) {
        let now = clock::now_ns();
        self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.next = now.saturating_add(u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX));
        if self.why.is_none() {
            shared.problem(&format!(
                "{why}; the watchdog runs, and records wait in memory, up to 16 MiB: the file is \
                 tried again each minute, and with each new communicator"
            ));
            (self.why, self.since) = (Some(why), now);
        }
    }

    /// What the user must know of a file that was created late.
    pub(super) fn late(&self) -> Option<String> {
        let why = self.why.as_ref()?;
        let seconds = clock::now_ns().saturating_sub(self.since) / 1_000_000_000;
        Some(format!(
            "recording goes on after {seconds} s without a file: {why}; what did not fit into 16 \
             MiB of memory meanwhile is counted as lost"
        ))
    }
}
