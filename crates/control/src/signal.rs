// SPDX-License-Identifier: Apache-2.0
//! Signals by name, as Linux numbers them on the machines that NCCL runs on; a test of the runtime
//! compares the numbers with the C library's.

/// What a signal to the process asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalRequest {
    /// Start recording if it is stopped, else stop it.
    Toggle = 1,
    /// Copy the recording.
    Dump = 2,
}

const USR1: u8 = 10;
const USR2: u8 = 12;
/// The real-time signals that glibc does not use itself: `SIGRTMIN` to `SIGRTMAX`.
const REAL_TIME: std::ops::RangeInclusive<u8> = 34..=64;
/// Signals that end a process, by name.
const FATAL: [(&str, u8); 5] = [("ABRT", 6), ("TERM", 15), ("INT", 2), ("QUIT", 3), ("KILL", 9)];

/// The number of a signal that the system gives no meaning: `USR1`, `USR2`, `RTMIN+N`, with or
/// without the prefix `SIG`; `None` for other names.
#[must_use]
pub fn number(name: &str) -> Option<u8> {
    match name.strip_prefix("SIG").unwrap_or(name) {
        "USR1" => Some(USR1),
        "USR2" => Some(USR2),
        name => {
            let digits = name.strip_prefix("RTMIN+")?;
            let more: u8 =
                digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse())?.ok()?;
            REAL_TIME.start().checked_add(more).filter(|number| REAL_TIME.contains(number))
        }
    }
}

/// The number of a signal that a process may send to itself: a signal of [`number`] or one that
/// ends the process; `None` for other names.
#[must_use]
pub fn number_to_send(name: &str) -> Option<u8> {
    let short = name.strip_prefix("SIG").unwrap_or(name);
    let fatal = FATAL.iter().find(|(fatal, _)| *fatal == short);
    fatal.map(|(_, number)| *number).or_else(|| number(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers() {
        assert_eq!((number("USR1"), number("SIGUSR2")), (Some(10), Some(12)));
        assert_eq!((number("RTMIN+2"), number("RTMIN+30")), (Some(36), Some(64)));
        for bad in ["KILL", "SEGV", "10", "RTMIN", "RTMIN+31", "RTMIN+-1", "RTMIN+", ""] {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!((number_to_send("SIGABRT"), number_to_send("USR1")), (Some(6), Some(10)));
        assert_eq!(number_to_send("HUP"), None);
    }
}
