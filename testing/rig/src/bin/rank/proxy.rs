// SPDX-License-Identifier: Apache-2.0
//! Stops NCCL's proxy progress threads by a signal whose handler sleeps.
//!
//! A thread is found by its name, which NCCL sets under `NCCL_SET_THREAD_NAME=1` (`src/proxy.cc`,
//! `ncclProxyProgressCreate` @v2.30.7-1). A system call that the signal interrupts is restarted
//! (`SA_RESTART`), or fails with `EINTR`, which NCCL's sockets treat as "not ready".

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The prefix of the thread's name.
const NAME: &str = "NCCL Progress";
const SIGNAL: libc::c_int = libc::SIGUSR2;
/// How long a thread may take to run the handler.
const NOTICE: Duration = Duration::from_secs(10);

/// Ten years, in seconds.
const FOR_EVER_S: libc::time_t = 315_000_000;

/// How long to sleep, in milliseconds; `u64::MAX`: forever.
static SLEEP_MS: AtomicU64 = AtomicU64::new(0);
/// Handlers that have begun.
static STOPPED: AtomicU64 = AtomicU64::new(0);

/// Stops the threads for `ms` milliseconds, or forever; returns when they have stopped.
///
/// # Errors
/// There is no such thread yet, or the system refuses.
pub(crate) fn stop(ms: Option<u64>) -> Result<(), String> {
    let threads = threads(NAME)?;
    if threads.is_empty() {
        return Err(format!("no thread is called {NAME}; stop it at a later step"));
    }
    SLEEP_MS.store(ms.unwrap_or(u64::MAX), SeqCst);
    install_handler()?;
    let before = STOPPED.load(SeqCst);
    let process = i64::from(std::process::id());
    for &thread in &threads {
        // SAFETY: numbers only.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, i64::from(SIGNAL)) };
        if sent != 0 {
            return Err(format!("tgkill: {}", std::io::Error::last_os_error()));
        }
    }
    let deadline = Instant::now() + NOTICE;
    while STOPPED.load(SeqCst) < before + threads.len() as u64 {
        if Instant::now() > deadline {
            return Err("the proxy thread takes no signals".into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// The threads of this process whose name begins with `name`.
fn threads(name: &str) -> Result<Vec<i64>, String> {
    let tasks = fs::read_dir("/proc/self/task").map_err(|e| format!("/proc/self/task: {e}"))?;
    let mut found = vec![];
    for task in tasks.flatten() {
        // A thread may end at any time.
        let comm = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if comm.starts_with(name) {
            found.extend(task.file_name().to_string_lossy().parse::<i64>());
        }
    }
    Ok(found)
}

fn install_handler() -> Result<(), String> {
    // SAFETY: all zeros is a value of this C structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = stand as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is whole, and `stand` does only what a handler may.
    let done = unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(format!("sigaction: {}", std::io::Error::last_os_error())) }
}

/// The handler: sleeps where the thread was. Calls only async-signal-safe functions
/// (signal-safety(7)).
extern "C" fn stand(_signal: libc::c_int) {
    // SAFETY: no precondition.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is that of this thread's own errno.
    let before = unsafe { *errno };
    STOPPED.fetch_add(1, SeqCst);
    let ms = SLEEP_MS.load(SeqCst);
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `until` is valid to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) };
    let nanos = until.tv_nsec + libc::c_long::from((ms % 1000) as u16) * 1_000_000;
    let whole = libc::time_t::try_from(ms / 1000).unwrap_or(FOR_EVER_S).min(FOR_EVER_S);
    until.tv_sec += whole + nanos / 1_000_000_000;
    until.tv_nsec = nanos % 1_000_000_000;
    let (clock, absolute) = (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME);
    // SAFETY: `until` is a valid time, and no remaining time is written.
    let sleep = || unsafe { libc::clock_nanosleep(clock, absolute, &raw const until, NOTHING) };
    while sleep() == libc::EINTR {}
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// `clock_nanosleep` need not write the remaining time.
const NOTHING: *mut libc::timespec = std::ptr::null_mut();

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_thread_of_that_name_stands_still_and_goes_on() {
        static ENDS: AtomicBool = AtomicBool::new(false);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        assert!(stop(Some(1000)).is_err(), "there is none yet");
        let thread = std::thread::Builder::new().name(format!("{NAME} 0"));
        let thread = thread.spawn(|| {
            while !ENDS.load(SeqCst) {
                COUNT.fetch_add(1, SeqCst);
                std::thread::yield_now();
            }
        });
        // A thread sets its name when it starts.
        while COUNT.load(SeqCst) == 0 {}
        let begun = Instant::now();
        stop(Some(1000)).expect("it takes the signal");
        let at = COUNT.load(SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(COUNT.load(SeqCst), at);
        while COUNT.load(SeqCst) == at {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(begun.elapsed() >= Duration::from_millis(999));
        ENDS.store(true, SeqCst);
        thread.expect("a thread").join().expect("it ends");
    }
}
