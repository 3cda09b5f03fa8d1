// SPDX-License-Identifier: Apache-2.0
//! Signals that request something. The handler only stores that they arrived.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};
use ncclscope_control::signal::SignalRequest;

/// Requests that arrived and were not taken yet, as bits.
static CAME: AtomicU8 = AtomicU8::new(0);
/// The signal of each request, for the handler.
static SIGNALS: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];

extern "C" fn came(signal: c_int) {
    for (of, request) in SIGNALS.iter().zip([SignalRequest::Toggle, SignalRequest::Dump]) {
        if c_int::from(of.load(Ordering::Relaxed)) == signal {
            CAME.fetch_or(request as u8, Ordering::Relaxed);
        }
    }
}

/// Makes `signal` a request of this kind. False if the process handles or ignores it already.
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
    // System calls of the host are restarted.
    now.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler is never unmapped (`-z nodelete`), and only accesses atomics.
    unsafe { libc::sigaction(signal.into(), &raw const now, core::ptr::null_mut()) == 0 }
}

/// The requests that arrived since the last call.
pub(crate) fn take() -> impl Iterator<Item = SignalRequest> {
    let came = match CAME.load(Ordering::Relaxed) {
        0 => 0,
        _ => CAME.swap(0, Ordering::Relaxed),
    };
    [SignalRequest::Toggle, SignalRequest::Dump]
        .into_iter()
        .filter(move |request| came & *request as u8 != 0)
}

/// True if the signal ends the process: nothing handles it, or its handler is meant to end the
/// process.
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
    // SAFETY: no memory is involved; the effect is the process's own choice.
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
