// SPDX-License-Identifier: Apache-2.0
/*!
The text that RAS prints by default, and the only form before NCCL 2.28.7 (`rasClientRunComms`,
src/ras/client_support.cc@v2.32.3-1).

It names only what differs: communicators whose ranks have launched different numbers of a function,
and of their ranks those with a rare number, unless it was asked verbosely. A communicator of which
nothing differs has only a row in a table, without its hash.
*/

use super::output::{Member, Ras, UNKNOWN};
use super::status::{Status, UNKNOWN_ERROR};
use crate::input::older::MOST;
use std::collections::{BTreeMap, BTreeSet};

/// The beginning of the text.
pub(crate) const BEGINNING: &[u8] = b"NCCL version ";
/// Maximum number of ranks of a communicator that are added without being named.
const MOST_RANKS: u32 = 1 << 20;
/// NCCL's texts of errors and their numbers (`ncclErrorToString`, src/debug.cc).
const ERRORS: [(&str, u64); 6] =
    [("cuda", 1), ("system", 2), ("internal", 3), ("argument", 4), ("usage", 5), ("remote", 6)];

/// What a line about ranks of a communicator belongs to.
#[derive(Debug, Clone, PartialEq)]
enum Section {
    /// Nothing that is read.
    Other,
    /// Ranks that do not answer.
    Incomplete,
    /// The status of ranks, and which, if it is known.
    Status(Option<Status>),
    /// Ranks that are not in the communicator any more.
    Left,
    /// An error's number.
    Error(u64),
    /// The launches of a function.
    Launches(String, u64),
}

#[derive(Debug, Default)]
struct Comm {
    size: u32,
    members: BTreeMap<u32, Member>,
    /// By function and launches: the number of ranks that have them, and how many were named.
    groups: BTreeMap<(String, u64), (u32, u32)>,
    /// Launches of named ranks, by function.
    counts: BTreeMap<String, BTreeMap<u32, u64>>,
}

/// Reads the text.
pub(crate) fn read(text: &str) -> Ras {
    let mut reader = Reader::default();
    text.lines().for_each(|line| reader.line(line));
    reader.finish()
}

#[derive(Debug, Default)]
struct Reader {
    /// Ranks of each communicator of a group, by the group's number.
    sizes: BTreeMap<u32, u32>,
    comms: BTreeMap<String, Comm>,
    dead: BTreeSet<(String, u32)>,
    comm: Option<String>,
    section: Option<Section>,
    is_dead_list: bool,
    /// Of the job.
    gpus: Option<u32>,
    notes: Vec<String>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words {
            [number, _, _, _, size, _, status, _]
                if status.chars().all(|c| c.is_ascii_uppercase()) =>
            {
                let row = number.parse::<u32>().ok().zip(size.parse::<u32>().ok());
                self.sizes.extend(row);
            }
            // The only row of the summary: nodes, processes and GPUs, and the numbers of both.
            [_, _, _, _, gpus] if self.gpus.is_none() && self.sizes.is_empty() => {
                let is_row =
                    words.iter().all(|word| word.starts_with(|c: char| c.is_ascii_digit()));
                self.gpus = gpus.parse().ok().filter(|_| is_row);
            }
            [group, hash, _] if group.starts_with('#') && hash.starts_with('(') => {
                self.begin(group, hash);
            }
            ["DEAD"] => (self.comm, self.is_dead_list) = (None, true),
            ["INCOMPLETE" | "TIMEOUT"] => (self.comm, self.is_dead_list) = (None, false),
            ["Process", pid, "on", "node", host, ..] if self.is_dead_list => {
                self.dead.extend(pid.parse().ok().map(|pid| (host.to_owned(), pid)));
            }
            _ => self.of_comm(line.trim(), &words),
        }
    }

    /// `#GROUP-NUMBER (HASH) KIND`.
    fn begin(&mut self, group: &str, hash: &str) {
        let hash = hash.trim_matches(['(', ')']).to_owned();
        let group = group.trim_start_matches('#').split('-').next();
        let size = group.and_then(|group| self.sizes.get(&group.parse().ok()?)).copied();
        let comm = self.comms.entry(hash.clone()).or_default();
        comm.size = size.unwrap_or(comm.size);
        (self.comm, self.section, self.is_dead_list) = (Some(hash), Some(Section::Other), false);
    }

    fn of_comm(&mut self, line: &str, words: &[&str]) {
        let Some(comm) = self.comm.as_ref().and_then(|hash| self.comms.get_mut(hash)) else {
            return;
        };
        let section = self.section.get_or_insert(Section::Other);
        match *words {
            ["Missing", ..] => *section = Section::Incomplete,
            ["The", "missing", "rank" | "ranks:" | "rank:", ..] => {
                let ranks = line.split(':').next_back().unwrap_or_default();
                let ranks = ranks.split([',', ' ']).filter_map(|rank| rank.trim().parse().ok());
                for rank in ranks {
                    comm.member(rank, &[]).silence();
                }
            }
            ["Communicator", "ranks", "have", "different", "status"] => {
                *section = Section::Status(None);
            }
            ["Communicator", "ranks", "have", "different", function, ..] => {
                *section = Section::Launches(function.to_owned(), 0);
            }
            [number, "ranks", "have", ref said @ ..] => {
                let number: u32 = number.parse().unwrap_or(0);
                match (&mut *section, launches(said)) {
                    (Section::Launches(function, current), Some(launched)) => {
                        *current = launched;
                        comm.groups.entry((function.clone(), launched)).or_default().0 = number;
                    }
                    (Section::Status(_) | Section::Left, _) => {
                        *section = match said.last() {
                            Some(&"NOCOMM") => Section::Left,
                            of => Section::Status(of.and_then(|name| Status::named(name))),
                        };
                    }
                    _ => {}
                }
            }
            [_, "ranks" | "rank", "reported", ..] => *section = Section::Error(error(line)),
            ["Rank", rank, ref said @ ..] => {
                if let Ok(rank) = rank.parse() {
                    comm.rank(rank, said, line, section);
                }
            }
            _ => {}
        }
    }

    fn finish(mut self) -> Ras {
        let mut comms = Vec::new();
        for (name, mut comm) in std::mem::take(&mut self.comms) {
            self.notes.extend(comm.fill(&name));
            let mut members: Vec<Member> = comm.members.into_values().collect();
            for member in &mut members {
                let is_dead = member.pid.is_some_and(|pid| {
                    self.dead.iter().any(|dead| (&*dead.0, dead.1) == (&*member.host, pid))
                });
                member.is_dead |= is_dead;
            }
            comms.push((name, comm.size, members));
        }
        Ras { gpus: self.gpus, ..Ras::of_text(comms, self.notes) }
    }
}

impl Comm {
    /// The member with this rank; `said` may end in `GPU G managed by process P on node HOST`.
    fn member(&mut self, rank: u32, said: &[&str]) -> &mut Member {
        let unknown = Member { rank, host: UNKNOWN.into(), ..Member::default() };
        let member = self.members.entry(rank).or_insert(unknown);
        // The text of an error may contain the same words.
        let after = |word: &str| said.get(said.iter().rposition(|said| *said == word)? + 1);
        if let Some(host) = after("node") {
            member.host = (*host).to_owned();
            member.pid = after("process").and_then(|pid| pid.parse().ok());
            member.device = after("GPU").and_then(|gpu| gpu.parse().ok());
        }
        member
    }

    /// `Rank R -- GPU ...`, `Rank R has ... -- GPU ...`, `Rank R reported ... -- GPU ...`.
    fn rank(&mut self, rank: u32, said: &[&str], line: &str, section: &Section) {
        let own = said.strip_prefix(&["has"]).and_then(launches);
        let own_status = said.starts_with(&["has", "status"]).then(|| said.get(2)).flatten();
        let own_error = (said.first() == Some(&"reported")).then(|| error(line));
        let member = self.member(rank, said);
        match section {
            _ if own_error.is_some() => member.error = own_error.unwrap_or(0),
            Section::Error(number) => member.error = *number,
            Section::Incomplete => member.silence(),
            Section::Left => member.is_missing = true,
            Section::Status(of) => {
                member.is_missing |= own_status == Some(&"NOCOMM");
                member.status = own_status.and_then(|name| Status::named(name)).or(*of);
            }
            Section::Launches(function, current) => {
                let launched = own.unwrap_or(*current);
                self.counts.entry(function.clone()).or_default().insert(rank, launched);
                let group = self.groups.entry((function.clone(), launched)).or_default();
                group.1 += 1;
                group.0 = group.0.max(group.1);
            }
            Section::Other => {}
        }
    }

    /// Adds the ranks that were not named, if the text tells what they launched. Returns a note if
    /// it does not.
    fn fill(&mut self, name: &str) -> Option<String> {
        if self.groups.is_empty() {
            return None;
        }
        for rank in 0..self.size.min(MOST_RANKS) {
            self.member(rank, &[]);
        }
        let mut untold = None;
        let functions: BTreeSet<&String> =
            self.groups.keys().map(|(function, _)| function).collect();
        let none_named = BTreeMap::new();
        for function in functions {
            let named = self.counts.get(function).unwrap_or(&none_named);
            let groups = self.groups.range((function.clone(), 0)..=(function.clone(), u64::MAX));
            let mut rest = groups.filter(|(_, (ranks, named))| named < ranks);
            let (rest, more) = (rest.next().map(|((_, launched), _)| *launched), rest.next());
            if more.is_some() {
                untold = Some(format!(
                    "RAS does not name which ranks of {name} launched how many {function}: ask it \
                     with `ncclras -v`, or with `-f json` from NCCL 2.28.7 on"
                ));
                continue;
            }
            for member in self.members.values_mut() {
                let launched = named.get(&member.rank).copied().or(rest).unwrap_or(0);
                member.counts.insert(function.clone(), launched.min(MOST));
                member.launched = member.launched.saturating_add(launched).min(MOST);
            }
        }
        untold
    }
}

/// `launched up to operation N`, `not launched any operations`, also after `have`.
fn launches(said: &[&str]) -> Option<u64> {
    match said {
        ["launched", "up", "to", "operation", number, ..] => number.parse().ok(),
        ["not", "launched", "any", ..] => Some(0),
        _ => None,
    }
}

fn error(line: &str) -> u64 {
    let line = line.to_lowercase();
    ERRORS.iter().find(|(text, _)| line.contains(text)).map_or(UNKNOWN_ERROR, |&(_, number)| number)
}
