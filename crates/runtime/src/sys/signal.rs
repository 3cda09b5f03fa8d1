// SPDX-License-Identifier: Apache-2.0
//! Signals that request something. Their handler only stores that they came.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};
use ncclscope_control::signal::SignalRequest;

/// The requests that came and were not taken yet.
static CAME: AtomicU8 = AtomicU8::new(0);
/// The signals of the two requests; the handler finds its own there.
static SIGNALS: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];

extern "C" fn came(signal: c_int) {
    for (of, request) in SIGNALS.iter().zip([SignalRequest::Toggle, SignalRequest::Dump]) {
        if c_int::from(of.load(Ordering::Relaxed)) == signal {
            CAME.fetch_or(request as u8, Ordering::Relaxed);
        }
    }
}

/// From here on `signal` asks for `request`. False if the process does something else with it.
pub(crate) fn listen(signal: u8, request: SignalRequest) -> bool {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: `now` is valid to write to; nothing is changed.
    let asked = unsafe { libc::sigaction(signal.into(), core::ptr::null(), &raw mut now) };
    if asked != 0 || now.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    if let Some(place) = SIGNALS.get(request as usize - 1) {
        place.store(signal, Ordering::Relaxed);
    }
    now.sa_sigaction = came as extern "C" fn(c_int) as usize;
    // The host's system calls are restarted.
    now.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler stays mapped (`-z nodelete`), and only touches atomics.
    unsafe { libc::sigaction(signal.into(), &raw const now, core::ptr::null_mut()) == 0 }
}

/// The requests that came since the last time.
pub(crate) fn take() -> impl Iterator<Item = SignalRequest> {
    let came = match CAME.load(Ordering::Relaxed) {
        0 => 0,
        _ => CAME.swap(0, Ordering::Relaxed),
    };
    [SignalRequest::Toggle, SignalRequest::Dump]
        .into_iter()
        .filter(move |request| came & *request as u8 != 0)
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

pub(crate) fn send_to_self(signal: u8) {
    // SAFETY: no memory is involved; what becomes of it is the process's own choice.
    unsafe { libc::kill(super::pid().cast_signed(), signal.into()) };
}

#[cfg(test)]
mod tests {
    use ncclscope_control::signal::number_to_send;

    #[test]
    fn numbers_are_those_of_the_c_library() {
        let names = [
            ("USR1", libc::SIGUSR1),
            ("SIGUSR2", libc::SIGUSR2),
            ("RTMIN+0", libc::SIGRTMIN()),
            ("RTMIN+30", libc::SIGRTMAX()),
            ("ABRT", libc::SIGABRT),
            ("TERM", libc::SIGTERM),
            ("INT", libc::SIGINT),
            ("QUIT", libc::SIGQUIT),
            ("KILL", libc::SIGKILL),
        ];
        for (name, number) in names {
            assert_eq!(number_to_send(name), u8::try_from(number).ok(), "{name}");
        }
    }
}
