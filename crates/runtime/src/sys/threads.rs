// SPDX-License-Identifier: Apache-2.0
//! The threads of this process as the system sees them, from `/proc/self/task`.

use std::fs;
use std::io;

/// A thread at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) tid: u32,
    /// Its name; empty if unknown.
    pub(crate) name: String,
    /// `R`, `S`, `D`, `T`…, [`GONE`], or [`UNKNOWN`], with which the other fields are unknown, too.
    pub(crate) state: u8,
    /// Where it waits in the kernel; empty if unknown.
    pub(crate) place: String,
    /// Processor time, ns.
    pub(crate) cpu_ns: u64,
    /// Time for which it was ready but did not run, ns.
    pub(crate) run_delay_ns: u64,
}

/// The state of a thread that has ended.
pub(crate) const GONE: u8 = 0;
/// The state of a thread that could not be read: no descriptor is free, or `/proc` is missing.
pub(crate) const UNKNOWN: u8 = b'?';

/// Reads the state of a thread of this process.
pub(crate) fn look(tid: u32) -> Seen {
    look_in("/proc/self/task", tid)
}

/// Time since its start for which a thread of this process was ready but did not run, ns. `None` if
/// it has exited or the system does not report it.
pub(crate) fn run_delay_ns(tid: u32) -> Option<u64> {
    let times = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    times.split_whitespace().nth(1)?.parse().ok()
}

/// [`look`] in the directory `tasks`, which has a directory for each thread of the process.
fn look_in(tasks: &str, tid: u32) -> Seen {
    let read = |file: &str| fs::read_to_string(format!("{tasks}/{tid}/{file}"));
    let stat = match read("stat") {
        Ok(stat) => stat,
        Err(error) => {
            let state = if is_gone(&error, tasks) { GONE } else { UNKNOWN };
            return Seen { tid, state, ..Seen::default() };
        }
    };
    let (name, state) = name_and_state(&stat).unwrap_or((String::new(), UNKNOWN));
    // The sums in `stat` are too coarse: their unit is a tick of 10 ms.
    let schedstat = read("schedstat").unwrap_or_default();
    let mut times = schedstat.split_whitespace().map(|word| word.parse().unwrap_or(0));
    let place = read("wchan").unwrap_or_default();
    let place = if place == "0" { String::new() } else { place };
    let (cpu_ns, run_delay_ns) = (times.next().unwrap_or(0), times.next().unwrap_or(0));
    Seen { tid, name, state, place, cpu_ns, run_delay_ns }
}

/// True if an error reading a thread's file means that the thread is gone. If the calling thread is
/// not found either, `/proc` is missing or belongs to another pid namespace.
fn is_gone(error: &io::Error, tasks: &str) -> bool {
    let is_missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
    // SAFETY: no argument, and it cannot fail.
    let own = unsafe { libc::gettid() };
    is_missing && fs::metadata(format!("{tasks}/{own}/stat")).is_ok()
}

/// Parses `TID (NAME) STATE …`; the name may contain any character.
fn name_and_state(stat: &str) -> Option<(String, u8)> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    Some((name.to_owned(), *after.trim_start().as_bytes().first()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Seen {
        // SAFETY: no argument, and it cannot fail.
        look(unsafe { libc::gettid() }.cast_unsigned())
    }

    #[test]
    fn a_thread_that_works_uses_time_and_one_that_is_gone_has_no_state() {
        let before = own();
        assert_eq!(before.state, b'R');
        let until = std::time::Instant::now() + std::time::Duration::from_millis(30);
        while std::time::Instant::now() < until {}
        assert!(own().cpu_ns > before.cpu_ns);
        assert_eq!(look(u32::MAX).state, GONE);
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_not_gone() {
        let own = own().tid;
        for tasks in ["/nowhere", "/proc/1/nothing", "/"] {
            assert_eq!(look_in(tasks, own).state, UNKNOWN, "{tasks}");
        }
        let error = |code| io::Error::from_raw_os_error(code);
        for (code, gone) in [
            (libc::ENOENT, true),
            (libc::ESRCH, true),
            (libc::EMFILE, false),
            (libc::EACCES, false),
        ] {
            assert_eq!(is_gone(&error(code), "/proc/self/task"), gone, "{code}");
            assert!(!is_gone(&error(code), "/nowhere"), "{code}");
        }
    }

    #[test]
    fn a_threads_delay_grows_only() {
        let before = run_delay_ns(own().tid).unwrap();
        assert!(run_delay_ns(own().tid).unwrap() >= before);
        assert_eq!(run_delay_ns(u32::MAX), None);
    }

    #[test]
    fn names_may_hold_brackets() {
        let of = |stat| name_and_state(stat).unwrap();
        assert_eq!(of("7 (a) b) (c) S 1 2"), ("a) b) (c".to_owned(), b'S'));
        assert_eq!(name_and_state("7"), None);
    }
}
