// SPDX-License-Identifier: Apache-2.0
//! Threads of this process as the system sees them, from `/proc/self/task`.

use std::fs;

/// A thread at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    /// Its id.
    pub(crate) tid: u32,
    /// Its name; empty unknown.
    pub(crate) name: String,
    /// `R`, `S`, `D`, `T`…; 0 if the thread is gone.
    pub(crate) state: u8,
    /// Where it waits in the kernel; empty if the system does not tell.
    pub(crate) place: String,
    /// Processor time, ns.
    pub(crate) cpu_ns: u64,
    /// Time it was ready and did not run, ns.
    pub(crate) run_delay_ns: u64,
}

/// Looks at a thread of this process.
pub(crate) fn look(tid: u32) -> Seen {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{file}"));
    let Ok(stat) = read("stat") else { return Seen { tid, ..Seen::default() } };
    let (name, state) = name_and_state(&stat).unwrap_or_default();
    // The sums of `stat` are too coarse: a tick of 10 ms.
    let schedstat = read("schedstat").unwrap_or_default();
    let mut times = schedstat.split_whitespace().map(|word| word.parse().unwrap_or(0));
    let place = read("wchan").unwrap_or_default();
    let place = if place == "0" { String::new() } else { place };
    let (cpu_ns, run_delay_ns) = (times.next().unwrap_or(0), times.next().unwrap_or(0));
    Seen { tid, name, state, place, cpu_ns, run_delay_ns }
}

/// `TID (NAME) STATE …`; the name may hold anything.
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
        assert_eq!(look(u32::MAX).state, 0);
    }

    #[test]
    fn names_may_hold_brackets() {
        let of = |stat| name_and_state(stat).unwrap();
        assert_eq!(of("7 (a) b) (c) S 1 2"), ("a) b) (c".to_owned(), b'S'));
        assert_eq!(name_and_state("7"), None);
    }
}
