// SPDX-License-Identifier: Apache-2.0
//! The user's options for reading inputs.

use super::ras::Ras;
use crate::ending::CommandEnd;
use ncclscope_limits::hangs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Options of the readers.
#[derive(Clone, Debug)]
pub struct InputOptions {
    /// In a job that still runs, an operation in flight for less than this is not stuck.
    pub hang: Duration,
    /// Id of the run to read if there are recordings of several; `None`: the newest.
    pub run: Option<String>,
    /// The whole recordings are read in parallel, so that all damage is known.
    pub is_checked: bool,
    /// How the command ended that started the job, if that was recorded.
    pub command: Option<CommandEnd>,
    /// What NCCL's RAS answers now, if it was asked.
    pub ras: Option<Ras>,
    /// Progress of reading the recordings.
    pub progress: InputProgress,
}

/// Numbers of recordings to read and read so far.
#[derive(Clone, Debug, Default)]
pub struct InputProgress(Arc<(AtomicU64, AtomicU64)>);

impl InputProgress {
    /// (Recordings read, all recordings); 0 of 0 until their number is known.
    #[must_use]
    pub fn get(&self) -> (u64, u64) {
        let (done, all) = &*self.0;
        (done.load(Ordering::Relaxed), all.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, done: usize, all: usize) {
        self.0.0.store(done as u64, Ordering::Relaxed);
        self.0.1.store(all as u64, Ordering::Relaxed);
    }
}

impl Default for InputOptions {
    fn default() -> InputOptions {
        InputOptions {
            hang: Duration::from_nanos(hangs::HANG_NS),
            run: None,
            is_checked: false,
            command: None,
            ras: None,
            progress: InputProgress::default(),
        }
    }
}
