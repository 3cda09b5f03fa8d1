// SPDX-License-Identifier: Apache-2.0
//! `NCCLSCOPE_HANG_SEC` and `NCCLSCOPE_HANG_ACTION`: when an operation counts as stuck, and what is
//! done then.

use crate::sys::signal;
use ncclscope_control::quantity;
use std::time::Duration;

/// Longer than the pauses of a training job that are no hang (a checkpoint, an evaluation), shorter
/// than the 600 s after which PyTorch's own watchdog ends the process.
pub(super) const DEFAULT: Duration = Duration::from_secs(300);
const LEAST_S: f64 = 0.1;
const MOST_S: f64 = 1e6;

/// What is done when an operation is stuck.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HangActions {
    /// The report goes to the log.
    pub log: bool,
    /// The recording is copied.
    pub dump: bool,
    /// A shell command is run.
    pub exec: Option<String>,
    /// The process gets this signal.
    pub(crate) signal: Option<u8>,
}

impl Default for HangActions {
    fn default() -> HangActions {
        HangActions { log: true, dump: false, exec: None, signal: None }
    }
}

/// Seconds; `None` is never.
pub(super) fn limit(text: &str) -> Result<Option<Duration>, &'static str> {
    const EXPECTED: &str = "seconds from 0.1 to 1000000, or 0 for never";
    if text.parse() == Ok(0.0) {
        return Ok(None);
    }
    quantity::seconds(text, LEAST_S..=MOST_S).map(Some).ok_or(EXPECTED)
}

/// Words with commas; a command is the rest of the text, and may have commas itself.
pub(super) fn actions(text: &str) -> Result<HangActions, &'static str> {
    const EXPECTED: &str = "log, dump, signal:USR2, exec:COMMAND (last), or several with commas";
    let mut actions = HangActions { log: false, ..HangActions::default() };
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(command) = rest.trim_start().strip_prefix("exec:") {
            let command = command.trim();
            actions.exec = Some(command.to_owned()).filter(|command| !command.is_empty());
            return if actions.exec.is_some() { Ok(actions) } else { Err(EXPECTED) };
        }
        let (word, after) = rest.split_once(',').unwrap_or((rest, ""));
        match word.trim() {
            "log" => actions.log = true,
            "dump" => actions.dump = true,
            word => {
                let name = word.strip_prefix("signal:").ok_or(EXPECTED)?;
                actions.signal = Some(signal_number(name).ok_or(EXPECTED)?);
            }
        }
        rest = after;
    }
    Ok(actions)
}

/// A signal that may be sent: one that a user gives a meaning, or one that ends the process.
fn signal_number(name: &str) -> Option<u8> {
    let fatal = match name.strip_prefix("SIG").unwrap_or(name) {
        "ABRT" => libc::SIGABRT,
        "TERM" => libc::SIGTERM,
        "INT" => libc::SIGINT,
        "QUIT" => libc::SIGQUIT,
        "KILL" => libc::SIGKILL,
        _ => return signal::number(name),
    };
    u8::try_from(fatal).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(limit("0"), Ok(None));
        assert_eq!(limit("0.5"), Ok(Some(Duration::from_millis(500))));
        assert_eq!(limit("600"), Ok(Some(Duration::from_secs(600))));
        for bad in ["-1", "soon", "0.01", "NaN", "inf", "1e9", ""] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn actions_combine_and_a_command_comes_last() {
        let all = actions("log, dump,signal:USR2,exec:py-spy dump -p $PID, now").unwrap();
        assert!(all.log && all.dump && all.signal == Some(12));
        assert_eq!(all.exec.as_deref(), Some("py-spy dump -p $PID, now"));
        assert!(!actions("dump").unwrap().log);
        assert_eq!(actions("signal:SIGABRT").unwrap().signal, Some(6));
        for bad in ["shout", "exec:", "signal:HUP", "log,,dump"] {
            assert!(actions(bad).is_err(), "{bad}");
        }
    }
}
