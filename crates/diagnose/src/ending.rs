// SPDX-License-Identifier: Apache-2.0
//! How a job ended, once no process of it runs any more.

use ncclscope_operations::human::{if_one, list_of_ranges, ranges};
use serde::Serialize;
use std::collections::BTreeSet;

/// Exit codes above this are this plus the number of a signal, as a shell gives them.
const OF_SIGNAL: u8 = 128;
/// The signals that end jobs, by number (`signal(7)`, x86 and ARM).
const SIGNALS: [(u8, &str); 12] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (11, "SIGSEGV"),
    (13, "SIGPIPE"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
];

/// How the command ended that `ncclscope run` started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandEnd {
    /// Its exit code; 128 and the number of the signal if a signal ended it.
    pub exit_code: u8,
    /// The signal that ended the command itself, if that is known.
    pub signal: Option<u8>,
    /// The signal by which the user or a scheduler asked it to end before.
    pub asked: Option<u8>,
    /// The rank whose command it was, if each rank has its own.
    pub rank: Option<u32>,
}

impl CommandEnd {
    /// True if it ended with an error, or by a signal, and without having been asked to.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.exit_code != 0 && self.asked.is_none()
    }

    /// `the command ended with exit status 1`, `the command was ended by SIGKILL`.
    #[must_use]
    pub fn text(&self) -> String {
        let whose = self
            .rank
            .map_or_else(|| "the command".to_owned(), |rank| format!("the command of rank {rank}"));
        let asked = self
            .asked
            .map_or_else(String::new, |by| format!(", after {} was sent to it", signal_name(by)));
        match (self.signal, self.exit_code.checked_sub(OF_SIGNAL)) {
            (Some(signal), _) => format!("{whose} was ended by {}{asked}", signal_name(signal)),
            (None, Some(signal)) if is_known(signal) => {
                let code = self.exit_code;
                format!("{whose} ended with exit status {code} ({}){asked}", signal_name(signal))
            }
            _ => format!("{whose} ended with exit status {}{asked}", self.exit_code),
        }
    }
}

fn is_known(signal: u8) -> bool {
    SIGNALS.iter().any(|(number, _)| *number == signal)
}

/// `SIGKILL`, or `signal 40`.
fn signal_name(signal: u8) -> String {
    let known = SIGNALS.iter().find(|(number, _)| *number == signal);
    known.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

/// The processes that ended before all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FirstEnd {
    /// Their ranks, ascending.
    pub ranks: Vec<u32>,
    /// How long before any other process at least, ns; `None` if no other of their host shows it,
    /// or all others ended well.
    pub before_ns: Option<u64>,
    /// When the first of them ended, ns since 1970.
    #[serde(skip)]
    pub end_ns: u64,
    /// Their recordings are not closed: a signal ended them, or a crash, or `_exit`.
    pub is_broken_off: bool,
    /// The processes that they ended before.
    pub others: Others,
}

/// Which processes ended later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Others {
    /// All others; all ran on one host.
    All,
    /// The others of its host. The clocks of other hosts do not allow a comparison.
    OwnHost,
    /// Those of other hosts, whose recordings may have been copied later.
    OtherHosts,
    /// All others; they exited with status 0, which is no matter of time.
    EndedWell,
}

impl Others {
    /// Text such as `all others`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Others::All => "all others",
            Others::OwnHost => "all others of the host",
            Others::OtherHosts => "all others, which ran on other hosts",
            Others::EndedWell => "the other ranks, which exited with status 0",
        }
    }
}

/// How the processes of a job ended, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// All exited with status 0.
    Well,
    /// None ended in order: a signal ended them, or a crash, or `_exit`.
    BrokenOff,
    /// In different ways, or it is not known of all.
    #[default]
    Mixed,
}

/// A rank whose process exited, and its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RankExit {
    /// The rank.
    pub rank: u32,
    /// What it passed to `exit`.
    pub status: u32,
}

/// How a job ended, as far as the input shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// How the command that started the job ended; `None` if that was not recorded.
    pub command: Option<CommandEnd>,
    /// The processes that ended first, if the times at which processes ended show that.
    pub first: Option<FirstEnd>,
    /// Time between the first and the last end of a recording, ns.
    pub spread_ns: u64,
    /// The ranks that exited with an error, ascending.
    pub exits: Vec<RankExit>,
    /// How all processes ended.
    pub ends: Ends,
}

impl Ending {
    /// True if the command ended with an error; without a command, if a process exited with one, or
    /// processes broke off while others went on.
    #[must_use]
    pub fn is_crash(&self) -> bool {
        if self.command.is_none() && !self.exits.is_empty() {
            return true;
        }
        match (&self.command, &self.first) {
            (Some(command), _) => command.has_failed(),
            (None, Some(first)) => first.is_broken_off && first.others != Others::OtherHosts,
            (None, None) => false,
        }
    }
}

/// `rank 3 exited with status 1`, `ranks 1, 3 exited with status 1 or 2`; `None` without ranks.
#[must_use]
pub fn exits_text(exits: &[RankExit]) -> Option<String> {
    let ranks = ranges(exits.iter().map(|exit| exit.rank));
    let named = format!("{} {}", if_one(exits.len(), "rank", "ranks"), list_of_ranges(&ranks, 8));
    let statuses: BTreeSet<u32> = exits.iter().map(|exit| exit.status).collect();
    let statuses: Vec<String> = statuses.iter().map(u32::to_string).collect();
    let text = || format!("{named} exited with status {}", statuses.join(" or "));
    (!exits.is_empty()).then(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_command_in_words() {
        let code = |exit_code| CommandEnd { exit_code, ..CommandEnd::default() };
        assert_eq!(code(1).text(), "the command ended with exit status 1");
        assert_eq!(code(137).text(), "the command ended with exit status 137 (SIGKILL)");
        assert_eq!(code(200).text(), "the command ended with exit status 200");
        let killed = CommandEnd { signal: Some(11), rank: Some(3), ..code(139) };
        assert_eq!(killed.text(), "the command of rank 3 was ended by SIGSEGV");
        let asked = CommandEnd { asked: Some(2), ..code(130) };
        assert!(killed.has_failed() && !asked.has_failed() && !code(0).has_failed());
        assert_eq!(
            asked.text(),
            "the command ended with exit status 130 (SIGINT), after SIGINT was sent to it"
        );
    }

    #[test]
    fn a_rank_that_exits_with_an_error_is_a_crash_unless_the_command_says_otherwise() {
        let exit = |rank, status| RankExit { rank, status };
        let exits = vec![exit(1, 1), exit(3, 2)];
        let text = exits_text(&exits[..1]).unwrap();
        assert_eq!((text.as_str(), exits_text(&[])), ("rank 1 exited with status 1", None));
        assert_eq!(exits_text(&exits).unwrap(), "ranks 1, 3 exited with status 1 or 2");
        let ending = Ending { exits, ..Ending::default() };
        assert!(ending.is_crash() && !Ending::default().is_crash());
        let command = Some(CommandEnd::default());
        assert!(!Ending { command, ..ending }.is_crash());
    }
}
