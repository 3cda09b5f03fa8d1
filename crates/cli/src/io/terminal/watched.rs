// SPDX-License-Identifier: Apache-2.0
//! Progress of work that cannot report it.

use super::Progress;
use ncclscope_kineto::file::bytes_read;
use ncclscope_trace::Recording;
use ncclscope_trace::reader::decoded_blocks;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of looking at watched work.
const LOOK: Duration = Duration::from_millis(200);

/// Progress of work that cannot report it: a thread queries it until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// Progress of `all` units, with the number done from `done`; no time left is shown if `all` is
    /// 0.
    pub(crate) fn new(
        what: &'static str,
        all: u64,
        done: impl Fn() -> u64 + Send + 'static,
    ) -> Watched {
        Watched::growing(what, move || (done(), all))
    }

    /// Progress of work whose length is known only later: (units done, all units), with 0 while
    /// unknown.
    pub(crate) fn growing(
        what: &'static str,
        look: impl Fn() -> (u64, u64) + Send + 'static,
    ) -> Watched {
        if !io::stderr().is_terminal() {
            return Watched { end: None, thread: None };
        }
        let (end, ended) = mpsc::channel();
        let watch = move || {
            let mut progress = Progress::new(what, 0);
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let (done, all) = look();
                progress.at_of(done, all);
            }
        };
        let thread = std::thread::Builder::new().name("progress".into()).spawn(watch).ok();
        Watched { end: Some(end), thread }
    }

    /// Progress of work that decodes all blocks of the recordings `times` times.
    pub(crate) fn by_blocks<'r>(
        what: &'static str,
        recordings: impl IntoIterator<Item = &'r Recording>,
        times: u64,
    ) -> Watched {
        let lanes = recordings.into_iter().flat_map(Recording::lanes);
        let all = lanes.map(|lane| lane.blocks() as u64).sum::<u64>() * times;
        let first = decoded_blocks();
        Watched::new(what, all, move || decoded_blocks() - first)
    }

    /// Progress of work that reads traces at least `times` times.
    pub(crate) fn by_traces<'p>(
        what: &'static str,
        files: impl IntoIterator<Item = &'p PathBuf>,
        times: u64,
    ) -> Watched {
        let size = |file: &PathBuf| std::fs::metadata(file).map_or(0, |file| file.len());
        let least = files.into_iter().map(size).sum::<u64>() * times;
        let (begun, opened) = bytes_read();
        Watched::growing(what, move || {
            let (read, all) = bytes_read();
            (read - begun, (all - opened).max(least))
        })
    }

    /// Progress of work of unknown length.
    pub(crate) fn endless(what: &'static str) -> Watched {
        Watched::new(what, 0, || 0)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.end.take());
        // The line must be erased before anything else is printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
