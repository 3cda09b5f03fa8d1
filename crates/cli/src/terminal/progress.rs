// SPDX-License-Identifier: Apache-2.0
//! Progress of long work on standard error, with the time left. Only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ncclscope_kineto::file::bytes_read;
use ncclscope_trace::Recording;
use ncclscope_trace::reader::decoded_blocks;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work that is shorter shows nothing.
const QUICK: Duration = Duration::from_secs(1);
/// Between two looks at work that is watched.
const LOOK: Duration = Duration::from_millis(200);
/// A line of progress.
const TEMPLATE: &str = "{msg} [{wide_bar}] {percent:>3} %, {elapsed}, {eta} left";
/// The same where the length of the work is not known.
const ENDLESS: &str = "{msg} {spinner} {elapsed}";

static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes to the terminal while the line of progress is erased.
pub(crate) fn beside_progress(write: impl FnOnce()) {
    let shown = SHOWN.lock().map(|shown| shown.clone()).unwrap_or_default();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

fn show(bar: Option<ProgressBar>) {
    if let Ok(mut shown) = SHOWN.lock() {
        *shown = bar;
    }
}

/// A line of progress, which is erased when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    begun: Instant,
    is_shown: bool,
}

impl Progress {
    /// Progress of `all` pieces of work.
    pub(crate) fn new(what: &str, all: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::hidden());
        bar.set_style(style(all));
        bar.set_message(what.to_owned());
        Progress { bar, begun: Instant::now(), is_shown: false }
    }

    /// So many pieces are done, of as many as are known now.
    fn at_of(&mut self, done: u64, all: u64) {
        if self.bar.length() != Some(all) {
            self.bar.set_style(style(all));
            self.bar.set_length(all);
        }
        self.at(done.min(all));
    }

    /// So many pieces are done.
    pub(crate) fn at(&mut self, done: u64) {
        if !self.is_shown && self.begun.elapsed() >= QUICK && io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
            show(Some(self.bar.clone()));
        }
        self.bar.set_position(done);
        self.bar.tick();
    }
}

/// How a line of work of so many pieces looks.
fn style(all: u64) -> ProgressStyle {
    let template = if all == 0 { ENDLESS } else { TEMPLATE };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ").tick_chars("|/-\\ ")
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            show(None);
        }
        self.bar.finish_and_clear();
    }
}

/// Progress of work that cannot report it: a thread looks how far the work is, until this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// Of `all` pieces, of which so many are `done`; the time left is not shown if `all` is 0.
    pub(crate) fn new(
        what: &'static str,
        all: u64,
        done: impl Fn() -> u64 + Send + 'static,
    ) -> Watched {
        Watched::growing(what, move || (done(), all))
    }

    /// Of work whose length is known only later: how many pieces are done, and how many there are,
    /// 0 if that is not known yet.
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

    /// Of work that decodes all blocks of the recordings so many times.
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

    /// Of work that reads traces so many times at least.
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
        // The line must be erased before anything else is written.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
