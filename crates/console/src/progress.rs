// SPDX-License-Identifier: Apache-2.0
//! Progress of long work with the time left, on standard error if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Shorter work shows no progress.
const QUICK: Duration = Duration::from_secs(1);
/// A line of progress.
const TEMPLATE: &str = "{msg} [{wide_bar}] {percent:>3} %, {elapsed}, {eta} left";
/// Format of the line if the length of the work is unknown.
const ENDLESS: &str = "{msg} {spinner} {elapsed}";

static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes to the terminal while the progress line is erased.
pub fn beside_progress(write: impl FnOnce()) {
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

/// A progress line, which is erased when this is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    is_shown: bool,
}

impl Progress {
    /// Progress of `all` units of work.
    pub fn new(what: &str, all: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::hidden());
        bar.set_style(style(all));
        bar.set_message(what.to_owned());
        Progress { bar, begun: Instant::now(), is_shown: false }
    }

    /// Sets the units done, and the number known now.
    pub fn at_of(&mut self, done: u64, all: u64) {
        if self.bar.length() != Some(all) {
            self.bar.set_style(style(all));
            self.bar.set_length(all);
        }
        self.at(done.min(all));
    }

    /// Sets the number of units done.
    pub fn at(&mut self, done: u64) {
        if !self.is_shown && self.begun.elapsed() >= QUICK && io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
            show(Some(self.bar.clone()));
        }
        self.bar.set_position(done);
        self.bar.tick();
    }
}

/// The style of a line for `all` units.
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
