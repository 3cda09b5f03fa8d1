// SPDX-License-Identifier: Apache-2.0
/*!
The log of what was played: counts by kind, and each callback if a test requests it.

Tests compare recordings with this log, so that nothing must be counted by hand. The text form (one
callback a line, numbers in hexadecimal but for steps and states) is `init THREAD CONTEXT HASH`,
`start THREAD BIT HANDLE PARENT CONTEXT NUMBER`, `stop THREAD HANDLE` and `state THREAD HANDLE
STATE`.
*/

use core::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of counters: one per kind of event, and [`OTHER`] for types that are no known kind.
pub const KINDS: usize = OTHER + 1;
/// Index of the counter for types that are no single known bit.
pub const OTHER: usize = ncclscope_abi::EventType::ALL.len();

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static THREAD: usize = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

/// Counts of one plugin's callbacks; null handles are counted separately, since NCCL treats them as
/// "not profiled".
#[derive(Debug, Default)]
pub struct Log {
    starts: [AtomicU64; KINDS],
    refused: [AtomicU64; KINDS],
    ends: AtomicU64,
    lines: Option<Mutex<String>>,
}

impl Log {
    /// A log; with `keep` each callback is kept, not only counted.
    #[must_use]
    pub fn new(keep: bool) -> Log {
        Log { lines: keep.then(Mutex::default), ..Log::default() }
    }

    /// A communicator was initialised.
    pub fn init(&self, context: u64, hash: u64) {
        self.line(format_args!("{context:x} {hash:x}"), "init");
    }

    /// An event started. `number` is a step's; otherwise 0.
    pub fn start(&self, bit: u64, handle: u64, parent: u64, context: u64, number: i32) {
        let kind = if bit.is_power_of_two() { bit.trailing_zeros() as usize } else { OTHER };
        let kind = kind.min(OTHER);
        self.starts[kind].fetch_add(1, Ordering::Relaxed);
        if handle == 0 {
            self.refused[kind].fetch_add(1, Ordering::Relaxed);
        }
        self.line(format_args!("{bit:x} {handle:x} {parent:x} {context:x} {number}"), "start");
    }

    /// An event was stopped.
    pub fn stop(&self, handle: u64) {
        self.ends.fetch_add(u64::from(handle != 0), Ordering::Relaxed);
        self.line(format_args!("{handle:x}"), "stop");
    }

    /// A state was recorded.
    pub fn state(&self, handle: u64, state: i32) {
        self.ends.fetch_add(u64::from(handle != 0), Ordering::Relaxed);
        self.line(format_args!("{handle:x} {state}"), "state");
    }

    fn line(&self, rest: core::fmt::Arguments<'_>, verb: &str) {
        if let Some(lines) = &self.lines {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(lines, "{verb} {:x} {rest}", THREAD.with(|t| *t));
        }
    }

    /// The callbacks so far, if they are kept.
    #[must_use]
    pub fn lines(&self) -> String {
        let Some(lines) = &self.lines else { return String::new() };
        lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One line per kind that was played, `played KIND-INDEX STARTS REFUSED`, and `ends COUNT`:
    /// stops and states of handles that are not null.
    #[must_use]
    pub fn counts(&self) -> String {
        let mut out = String::new();
        for (kind, (starts, refused)) in self.starts.iter().zip(&self.refused).enumerate() {
            let (starts, refused) =
                (starts.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
            if starts != 0 {
                let _ = writeln!(out, "played {kind} {starts} {refused}");
            }
        }
        let _ = writeln!(out, "ends {}", self.ends.load(Ordering::Relaxed));
        out
    }
}
