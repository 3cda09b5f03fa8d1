// SPDX-License-Identifier: Apache-2.0
//! The process's own threads, as `/proc` shows them.

use std::fs;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thread {
    id: i32,
    name: String,
    /// Processor time in clock ticks.
    ticks: u64,
}

impl Thread {
    /// Whether the thread is one of NCCL's: proxy service, proxy progress, profiler (NCCL
    /// `src/proxy.cc`, `ncclSetThreadName`).
    pub(super) fn is_nccl(&self) -> bool {
        self.name.starts_with("NCCL")
    }
}

/// All threads of this process.
pub(super) fn all() -> Vec<Thread> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let thread = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        of_stat(&stat)
    };
    entries.filter_map(thread).collect()
}

/// Parses a line of `/proc/PID/task/TID/stat`; the name is in brackets and may contain any
/// character.
fn of_stat(stat: &str) -> Option<Thread> {
    let (id, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let numbers: Vec<&str> = rest.split(' ').collect();
    // After the state: utime and stime are fields 14 and 15 of the line.
    let ticks = numbers.get(11)?.parse::<u64>().ok()? + numbers.get(12)?.parse::<u64>().ok()?;
    Some(Thread { id: id.parse().ok()?, name: name.into(), ticks })
}

/// Processor time of NCCL's threads between two samples, percent of one core.
pub(super) fn nccl_percent(before: &[Thread], after: &[Thread], elapsed: Duration) -> f64 {
    let ticks =
        |threads: &[Thread]| threads.iter().filter(|t| t.is_nccl()).map(|t| t.ticks).sum::<u64>();
    // SAFETY: no precondition.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let used = ticks(after).saturating_sub(ticks(before)) as f64 / hz;
    100.0 * used / elapsed.as_secs_f64()
}

/// Memory of this process, MiB.
pub(super) fn rss_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// Pins NCCL's threads to the last core that this process may use, together with a thread that
/// never sleeps. Returns the number of NCCL's threads.
///
/// # Errors
/// An error of the kernel.
pub(super) fn pin_nccl_to_busy_core() -> Result<usize, String> {
    let core = last_core()?;
    let pinned = all().into_iter().filter(Thread::is_nccl).map(|thread| pin(thread.id, core));
    let pinned = pinned.collect::<Result<Vec<()>, String>>()?.len();
    std::thread::spawn(move || {
        let _ = pin(0, core);
        loop {
            std::hint::spin_loop();
        }
    });
    Ok(pinned)
}

fn last_core() -> Result<usize, String> {
    // SAFETY: an empty set is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has this size.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if status != 0 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: the number is within the set.
    let is_set = |core: &usize| unsafe { libc::CPU_ISSET(*core, &set) };
    let cores = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    (0..cores).rfind(is_set).ok_or_else(|| "no core".to_owned())
}

fn pin(thread: i32, core: usize) -> Result<(), String> {
    // SAFETY: an empty set is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the core is one of a set of this size.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set has this size.
    let status = unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) };
    if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let line = "77 (NCCL Progress) 1) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 9 0 1";
        let thread = of_stat(line).expect("a thread");
        assert_eq!((thread.id, thread.name.as_str()), (77, "NCCL Progress) 1"));
        assert_eq!(thread.ticks, 42);
        assert!(thread.is_nccl());
    }

    #[test]
    fn this_process_has_threads_and_memory() {
        assert!(!all().is_empty() && rss_mib() > 0.5);
    }
}
