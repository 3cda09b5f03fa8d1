// SPDX-License-Identifier: Apache-2.0
//! Signals that ask for something. Their handler only notes that they came.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Start recording where it is stopped, and stop it where it is started.
    Toggle = 1,
    /// Copy the recording.
    Dump = 2,
}

/// The wishes that came and were not taken yet.
static CAME: AtomicU8 = AtomicU8::new(0);
/// The signals of the two wishes; the handler finds its own there.
static SIGNALS: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];

extern "C" fn came(signal: c_int) {
    for (of, wish) in SIGNALS.iter().zip([Wish::Toggle, Wish::Dump]) {
        if c_int::from(of.load(Ordering::Relaxed)) == signal {
            CAME.fetch_or(wish as u8, Ordering::Relaxed);
        }
    }
}

/// The number of a signal that a user may give a meaning: `USR1`, `USR2`, `RTMIN+N`.
#[must_use]
pub(crate) fn number(name: &str) -> Option<u8> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let number = match name {
        "USR1" => libc::SIGUSR1,
        "USR2" => libc::SIGUSR2,
        _ => {
            let first = libc::SIGRTMIN();
            let more: c_int = name.strip_prefix("RTMIN+")?.parse().ok()?;
            first.checked_add(more).filter(|n| (first..=libc::SIGRTMAX()).contains(n))?
        }
    };
    u8::try_from(number).ok()
}

/// From here on `signal` asks for `wish`. False if the process does something else with it.
pub(crate) fn listen(signal: u8, wish: Wish) -> bool {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: `now` is valid to write to; nothing is changed.
    let asked = unsafe { libc::sigaction(signal.into(), core::ptr::null(), &raw mut now) };
    if asked != 0 || now.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    if let Some(place) = SIGNALS.get(wish as usize - 1) {
        place.store(signal, Ordering::Relaxed);
    }
    now.sa_sigaction = came as extern "C" fn(c_int) as usize;
    // The host's system calls go on as if nothing had happened.
    now.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler stays mapped (`-z nodelete`), and only touches atomics.
    unsafe { libc::sigaction(signal.into(), &raw const now, core::ptr::null_mut()) == 0 }
}

/// The wishes that came since the last time.
pub(crate) fn take() -> impl Iterator<Item = Wish> {
    let came = match CAME.load(Ordering::Relaxed) {
        0 => 0,
        _ => CAME.swap(0, Ordering::Relaxed),
    };
    [Wish::Toggle, Wish::Dump].into_iter().filter(move |wish| came & *wish as u8 != 0)
}

/// Whether a signal ends the process: nothing handles it, or what does is meant to say goodbye.
pub(crate) fn is_fatal(signal: u8) -> bool {
    let ends = [libc::SIGABRT, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGKILL];
    if ends.contains(&signal.into()) {
        return true;
    }
    // SAFETY: zero is a valid value of this plain C struct.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks; `action` is valid to write to.
    let asked = unsafe { libc::sigaction(signal.into(), core::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_DFL
}

/// Sends a signal to this process.
pub(crate) fn send_to_self(signal: u8) {
    // SAFETY: no memory is involved; what becomes of it is the process's own choice.
    unsafe { libc::kill(super::pid().cast_signed(), signal.into()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers() {
        assert_eq!(number("USR1"), u8::try_from(libc::SIGUSR1).ok());
        assert_eq!(number("SIGUSR2"), u8::try_from(libc::SIGUSR2).ok());
        assert_eq!(number("RTMIN+2"), u8::try_from(libc::SIGRTMIN() + 2).ok());
        for bad in ["KILL", "SEGV", "10", "RTMIN", "RTMIN+99", "RTMIN+-1", ""] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }
}
