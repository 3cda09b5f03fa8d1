// SPDX-License-Identifier: Apache-2.0
/*!
The user's selection of a run: ranks, hosts, communicators, functions, times and kinds of events.

A [`Filter`] applies to a run, and is the same for all verbs. From facts that are known before the
records are read (ranks, hosts, communicators, training steps), [`Filter::has`] decides whether a
recording is read at all, and [`Filter::of`] makes its [`Selection`]. Consumers check each
operation, event and link against the selection.

An operation belongs to the time in which it started; a slice of a trace is shown if any part of it
lies in that time.
*/

use crate::operation::Operation;
use crate::timeline::{comm_name, role_or_size};
use crate::{Event, Facts, Parent, Timeline};
use ncclscope_trace::runs::{ProcessFacts, ranks};
use ncclscope_trace::{Comm, Detail, EventKind, Mark, MarkKind, Recording, StrId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// NCCL's functions, as it names them.
pub const FUNCTIONS: [&str; 11] = [
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "Broadcast",
    "Gather",
    "Recv",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "Send",
    "SendRecv",
];

/// A selection of a run. A field that is empty or `None` selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Ranks in the job.
    pub ranks: Vec<RangeInclusive<u32>>,
    /// Names of hosts, in which `*` stands for any characters and `?` for one.
    pub hosts: Vec<String>,
    /// Names of communicators, or prefixes of their hashes.
    pub comms: Vec<String>,
    /// Roles of communicators; upper and lower case are the same.
    pub roles: Vec<String>,
    /// Names of functions; upper and lower case are the same.
    pub funcs: Vec<String>,
    /// The first and the last time, ns since 1970.
    pub window: Option<(u64, u64)>,
    /// The first and the last training step.
    pub steps: Option<(u64, u64)>,
    /// Kinds of events, as an activation mask.
    pub kinds: Option<u32>,
}

/// Facts of a run's recordings that filters need.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// The ranks in the job of each recording; several if a process has several ranks.
    pub ranks: Vec<BTreeSet<u32>>,
    /// The role of each communicator, by its name.
    pub roles: BTreeMap<String, String>,
}

impl Declared {
    /// Reads the facts of a run's recordings.
    #[must_use]
    pub fn of(recordings: &[Recording]) -> Declared {
        let facts: Vec<ProcessFacts> = recordings.iter().map(ProcessFacts::of).collect();
        let own = ranks(&facts.iter().collect::<Vec<_>>());
        let of_process = |(recording, own): (&Recording, u32)| match job_ranks(recording) {
            Some(ranks) => ranks.into_iter().collect(),
            None => BTreeSet::from([own]),
        };
        let mut roles: BTreeMap<String, String> = BTreeMap::new();
        for recording in recordings {
            for comm in recording.comms() {
                let said = recording.role(comm).or(comm.name.as_deref());
                let known = Some(comm.ranks).filter(|&ranks| ranks != 0);
                let role = role_or_size(said, known);
                // The application may have set the role on some of the ranks only.
                let entry = roles.entry(comm_name(comm)).or_insert_with(|| role.clone());
                if said.is_some() {
                    *entry = role;
                }
            }
        }
        Declared { ranks: recordings.iter().zip(own).map(of_process).collect(), roles }
    }
}

/// For a process with several ranks, the rank in the job of each communicator: its rank in the
/// largest communicator of the same device. `None` for a process with one rank.
fn job_ranks(recording: &Recording) -> Option<Vec<u32>> {
    let (comms, numbers) = (recording.comms(), recording.local_ranks()?);
    let world = |number: u32| {
        let of = comms.iter().zip(&numbers).filter(|(_, of)| **of == number);
        of.max_by_key(|(comm, _)| comm.ranks).map_or(-1, |(comm, _)| comm.rank)
    };
    Some(numbers.iter().map(|&number| u32::try_from(world(number)).unwrap_or(u32::MAX)).collect())
}

impl Filter {
    /// Whether it selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether it selects by rank or host, so that some recordings need not be read.
    #[must_use]
    pub fn chooses_recordings(&self) -> bool {
        !self.ranks.is_empty() || !self.hosts.is_empty()
    }

    /// Whether a recording with these ranks in the job is to be read.
    #[must_use]
    pub fn has(&self, recording: &Recording, ranks: &BTreeSet<u32>) -> bool {
        let has_rank = ranks.iter().any(|&rank| self.has_rank(rank));
        has_rank && self.has_host(&recording.header().host)
    }

    /// Whether it selects a rank of the job.
    #[must_use]
    pub fn has_rank(&self, rank: u32) -> bool {
        self.ranks.is_empty() || self.ranks.iter().any(|range| range.contains(&rank))
    }

    /// Whether it selects a host.
    #[must_use]
    pub fn has_host(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|pattern| is_like(pattern, host))
    }

    /// Whether it selects a function.
    #[must_use]
    pub fn has_func(&self, func: &str) -> bool {
        self.funcs.is_empty() || self.funcs.iter().any(|of| of.eq_ignore_ascii_case(func))
    }

    /// Whether it selects a communicator, given its name in reports, the application's name for it,
    /// and its role.
    #[must_use]
    pub fn has_comm(&self, name: &str, said: Option<&str>, role: &str) -> bool {
        let is_meant = |text: &String| {
            let digits = |text: &str| text.trim_start_matches("0x").to_ascii_lowercase();
            let is_hash = name.starts_with("0x");
            Some(text.as_str()) == said
                || text == name
                || is_hash && !digits(text).is_empty() && digits(name).starts_with(&digits(text))
        };
        (self.comms.is_empty() || self.comms.iter().any(is_meant))
            && (self.roles.is_empty() || self.roles.iter().any(|of| of.eq_ignore_ascii_case(role)))
    }

    /// As [`Filter::has_comm`], given a communicator as findings name it: `0x1f2e3d4c "world"`.
    #[must_use]
    pub fn has_named_comm(&self, name: &str, role: &str) -> bool {
        let (hash, said) = match name.split_once(' ') {
            Some((hash, said)) => (hash, Some(said.trim_matches('"'))),
            None => (name, None),
        };
        self.has_comm(hash, said, role)
    }

    /// The selection for one recording.
    #[must_use]
    pub fn of(&self, recording: &Recording, declared: &Declared) -> Selection {
        let ranks = job_ranks(recording);
        let has_comm = |(at, comm): (usize, &Comm)| {
            let name = comm_name(comm);
            let role = declared.roles.get(&name).map_or("unknown", String::as_str);
            let has_rank = ranks.as_ref().is_none_or(|ranks| self.has_rank(ranks[at]));
            has_rank && self.has_comm(&name, comm.name.as_deref(), role)
        };
        let steps = self.steps.map(|steps| step_window(recording, steps));
        let (first, last) = self.window.unwrap_or((0, u64::MAX));
        let (from, to) = steps.unwrap_or((0, u64::MAX));
        Selection {
            comms: recording.comms().iter().enumerate().map(has_comm).collect(),
            others: self.comms.is_empty() && self.roles.is_empty() && ranks.is_none(),
            funcs: self.funcs.clone(),
            window: (first.max(from), last.min(to)),
            kinds: self.kinds.unwrap_or(u32::MAX),
            ranks: self.ranks_of(recording),
        }
    }

    /// Number of selected ranks of a recording; `None` if its process has one rank.
    fn ranks_of(&self, recording: &Recording) -> Option<usize> {
        let (numbers, ranks) = (recording.local_ranks()?, job_ranks(recording)?);
        let chosen = numbers.iter().zip(ranks).filter(|(_, rank)| self.has_rank(*rank));
        Some(chosen.map(|(number, _)| *number).collect::<BTreeSet<u32>>().len())
    }
}

/// The time from the start of the first of these training steps to the start of the step after the
/// last, ns since 1970. An empty time (`MAX` to 0) if the process had none of them.
fn step_window(recording: &Recording, (first, last): (u64, u64)) -> (u64, u64) {
    let clock = recording.tick_map();
    let marks = recording.marks().iter().filter(|mark| mark.what == MarkKind::Step);
    let (begun, others): (Vec<&Mark>, Vec<&Mark>) =
        marks.partition(|mark| (first..=last).contains(&mark.value));
    let Some(from) = begun.iter().map(|mark| mark.ticks).min() else { return (u64::MAX, 0) };
    let until = begun.iter().map(|mark| mark.ticks).max().unwrap_or(from);
    let next = others.iter().map(|mark| mark.ticks).filter(|&ticks| ticks > until).min();
    let to = next.map_or(u64::MAX, |ticks| clock.realtime_ns(ticks).saturating_sub(1));
    (clock.realtime_ns(from), to)
}

/// Whether a name matches a pattern, in which `*` stands for any characters and `?` for one.
fn is_like(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut next) = (0, 0);
    // Index of the last `*`, and the end of the part of the name that it matches.
    let mut star: Option<(usize, usize)> = None;
    while next < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, next));
                at += 1;
            }
            Some(&c) if c == '?' || c == name[next] => (at, next) = (at + 1, next + 1),
            _ => {
                let Some((place, has)) = star else { return false };
                (at, next) = (place + 1, has + 1);
                star = Some((place, has + 1));
            }
        }
    }
    pattern[at..].iter().all(|&c| c == '*')
}

/// The selection for one recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Whether each communicator is selected, by position.
    comms: Vec<bool>,
    /// Whether events without a known communicator are selected.
    others: bool,
    funcs: Vec<String>,
    /// The first and the last selected time, ns since 1970.
    window: (u64, u64),
    /// The selected kinds of events, as an activation mask.
    kinds: u32,
    /// Number of selected ranks of a process with several ranks.
    ranks: Option<usize>,
}

impl Default for Selection {
    /// Selects everything.
    fn default() -> Selection {
        Selection {
            comms: Vec::new(),
            others: true,
            funcs: Vec::new(),
            window: (0, u64::MAX),
            kinds: u32::MAX,
            ranks: None,
        }
    }
}

impl Selection {
    /// The first and the last selected time, ns since 1970.
    #[must_use]
    pub fn window(&self) -> (u64, u64) {
        self.window
    }

    /// Number of selected ranks of a process; `None` if the process has one rank.
    #[must_use]
    pub fn ranks(&self) -> Option<usize> {
        self.ranks
    }

    /// Whether it selects a kind of events.
    #[must_use]
    pub fn has_kind(&self, kind: EventKind) -> bool {
        self.kinds & kind.bit() != 0
    }

    /// Whether it selects the communicator at a position, or for `None`, events without a known
    /// communicator.
    #[must_use]
    pub fn has_comm(&self, comm: Option<usize>) -> bool {
        comm.map_or(self.others, |at| self.comms.get(at).copied().unwrap_or(true))
    }

    /// Whether it selects a time, ns since 1970.
    #[must_use]
    pub fn has_time(&self, ns: u64) -> bool {
        (self.window.0..=self.window.1).contains(&ns)
    }

    /// Whether it selects only some functions or times, so that totals of the whole recording do
    /// not apply.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.funcs.is_empty() || self.window != (0, u64::MAX) || !self.has_operations()
    }

    fn has_operations(&self) -> bool {
        let kinds = [EventKind::Coll, EventKind::P2p, EventKind::CeColl];
        kinds.into_iter().all(|kind| self.has_kind(kind))
    }

    /// Whether it selects an operation, by its communicator, function, kind and start.
    #[must_use]
    pub fn has_operation(&self, timeline: &Timeline<'_>, operation: &Operation) -> bool {
        let event = timeline.event(operation.event);
        self.has_comm(operation.comm)
            && self.has_kind(event.kind())
            && self.has_func(timeline, operation.func)
            && self.has_time(timeline.ns(event.start.ticks))
    }

    /// Whether it selects an event, by its communicator, kind and function, not by time. An event
    /// that belongs to an operation has the operation's function; a group has none.
    #[must_use]
    pub fn has_event(&self, timeline: &Timeline<'_>, event: &Event) -> bool {
        self.has_kind(event.kind())
            && self.has_comm(timeline.comm_of(event))
            && (self.funcs.is_empty() || self.has_func(timeline, func_of(timeline, event)))
    }

    fn has_func(&self, timeline: &Timeline<'_>, func: StrId) -> bool {
        let has = || self.funcs.iter().any(|of| of.eq_ignore_ascii_case(timeline.string(func)));
        self.funcs.is_empty() || has()
    }
}

/// The function of the operation that an event belongs to.
fn func_of(timeline: &Timeline<'_>, event: &Event) -> StrId {
    let mut event = event;
    loop {
        match (Facts::of(&event.start.detail), event.start.detail) {
            (Some(facts), _) => return facts.func,
            (None, Detail::CollApi(call) | Detail::P2pApi(call)) => return call.func,
            _ => {}
        }
        let Parent::Known(parent) = event.parent else { return StrId::NONE };
        event = timeline.event(parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations;
    use scripts::{Call, Process};

    #[test]
    fn patterns_are_like_names() {
        let like = [
            ("node-1", "node-1"),
            ("node-*", "node-17"),
            ("*", ""),
            ("n*e-?", "node-1"),
            ("*-1", "node-1-1"),
            ("gpu[1]", "gpu[1]"),
        ];
        assert!(like.iter().all(|(pattern, name)| is_like(pattern, name)));
        let unlike =
            [("node-1", "node-17"), ("node-?", "node-17"), ("", "n"), ("*-2", "node-1"), ("?", "")];
        assert!(!unlike.iter().any(|(pattern, name)| is_like(pattern, name)));
    }

    #[test]
    fn communicators_have_names_hashes_and_roles() {
        let comms = |text: &str| Filter { comms: vec![text.into()], ..Filter::default() };
        let has = |text: &str| comms(text).has_comm("0x1f2e3d4c", Some("world"), "dp");
        assert!(["world", "0x1f2e3d4c", "0x1F2e", "1f2"].into_iter().all(has));
        assert!(!["worl", "2e3d", "0x", "dp", "unknown"].into_iter().any(has));
        assert!(!comms("unknown-1").has_comm("unknown-12", None, "8 ranks"));
        let roles = Filter { roles: vec!["DP".into()], ..Filter::default() };
        assert!(roles.has_comm("0x1", None, "dp") && !roles.has_comm("0x1", None, "tp"));
    }

    #[test]
    fn operations_are_chosen_by_function_kind_communicator_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::new(0, 2);
        process.collective(Call::ALL_REDUCE);
        process.collective(Call { func: "AllGather", ..Call::ALL_REDUCE });
        process.send_recv(1, 1 << 10);
        let recordings = [Recording::open(&process.write(dir.path()).unwrap()).unwrap()];
        let timeline = Timeline::read(&recordings[0], false);
        let all = operations(&timeline);
        let declared = Declared::of(&recordings);
        let count = |filter: Filter| {
            let selection = filter.of(&recordings[0], &declared);
            all.iter().filter(|one| selection.has_operation(&timeline, one)).count()
        };
        let none = Filter::default;
        assert_eq!(count(none()), all.len());
        assert_eq!(count(Filter { funcs: vec!["allreduce".into()], ..none() }), 1);
        assert_eq!(count(Filter { kinds: Some(EventKind::Coll.bit()), ..none() }), 2);
        assert_eq!(count(Filter { comms: vec!["world".into()], ..none() }), all.len());
        assert_eq!(count(Filter { comms: vec!["other".into()], ..none() }), 0);
        let second = timeline.ns(timeline.event(all[1].event).start.ticks);
        assert_eq!(count(Filter { window: Some((second, second)), ..none() }), 1);
        assert_eq!(count(Filter { steps: Some((0, 9)), ..none() }), 0, "it has no steps");
        assert!(Filter { ranks: vec![0..=0], ..none() }.has(&recordings[0], &declared.ranks[0]));
        assert!(!Filter { ranks: vec![1..=9], ..none() }.has(&recordings[0], &declared.ranks[0]));
    }
}
