// SPDX-License-Identifier: Apache-2.0
/*!
Creates the recording's file.

The disk may be full, or all descriptors in use, for the moment in which the job begins. So the file
is tried again: with each new communicator, at the end, and by time.
*/

use super::{Open, Recording, Stage};
use crate::lanes::LanesFile;
use crate::own;
use crate::shared::Shared;
use core::sync::atomic::Ordering;
use ncclscope_recorder::clock;
use ncclscope_trace::Definition;
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
    next: u64,
}

impl Tries {
    fn failed(&mut self, why: String, shared: &'static Shared) {
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
    fn late(&self) -> Option<String> {
        let why = self.why.as_ref()?;
        let seconds = clock::now_ns().saturating_sub(self.since) / 1_000_000_000;
        Some(format!(
            "recording goes on after {seconds} s without a file: {why}; what did not fit into 16 \
             MiB of memory meanwhile is counted as lost"
        ))
    }
}

impl Recording {
    /// Creates the file if there is none and it is time for that.
    pub(super) fn create(&self, stage: &mut Stage, shared: &'static Shared) {
        let Stage::Opening(opening, tries) = stage else { return };
        let is_wanted = self.is_wanted.swap(false, Ordering::Relaxed);
        if !is_wanted && clock::now_ns() < tries.next {
            return;
        }
        match opening.begin(shared) {
            Ok(mut open) => {
                shared.opened(&open.path);
                // Not by an order: at the end the drain thread takes no more.
                if let Some(line) = tries.late() {
                    shared.problem(&line);
                    open.waiting.push_back(Definition::Note(line));
                }
                *stage = Stage::Open(Box::new(open));
            }
            Err(_) if self.is_closing.load(Ordering::Relaxed) => {
                // Without a recording, the lanes file serves no purpose.
                opening.lanes.iter().for_each(|lanes| lanes.remove());
                *stage = Stage::Over;
                self.refuse();
            }
            Err(why) => tries.failed(why, shared),
        }
    }
}

impl Opening {
    /// The error is a line for the user.
    fn begin(&self, shared: &'static Shared) -> Result<Open, String> {
        let mut opening = self.clone();
        let mut line = None;
        if let Some(base) = opening.private.take() {
            (opening.dir, line) = own::place(&base, &opening.dir)?;
        }
        let dir = opening.dir.clone();
        let open = Open::create(opening)
            .map_err(|error| format!("cannot record in {}: {error}", dir.display()))?;
        line.into_iter().for_each(|line| shared.tell(line));
        Ok(open)
    }
}
