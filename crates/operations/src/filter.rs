// SPDX-License-Identifier: Apache-2.0
/*!
What a user wants to see of a run: some ranks, hosts, communicators, functions, times and kinds of
events.

A [`Filter`] is of a run, and the same for every verb. What recordings declare before their records
are read (ranks, hosts, communicators, training steps) decides two things: [`Filter::has`], whether
a recording is read at all, and [`Filter::of`], the [`Selection`] of a recording, which consumers
ask about each operation, event and link.

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

/// What to see of a run. What is empty or `None` leaves nothing out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Ranks in the job.
    pub ranks: Vec<RangeInclusive<u32>>,
    /// Names of hosts, with `*` and `?` for any characters and any one.
    pub hosts: Vec<String>,
    /// Names of communicators, or beginnings of their hashes.
    pub comms: Vec<String>,
    /// Roles of communicators, in any case of letters.
    pub roles: Vec<String>,
    /// Names of functions, in any case of letters.
    pub funcs: Vec<String>,
    /// The first and the last time, ns since 1970.
    pub window: Option<(u64, u64)>,
    /// The first and the last training step.
    pub steps: Option<(u64, u64)>,
    /// Kinds of events, as an activation mask.
    pub kinds: Option<u32>,
}

/// What the recordings of a run declare that a filter asks for.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// The job's ranks of each recording: of more than one where a process has several.
    pub ranks: Vec<BTreeSet<u32>>,
    /// The role of each communicator, by its name.
    pub roles: BTreeMap<String, String>,
}

impl Declared {
    /// Of the recordings of a run.
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
                // The application may have said it to some of its ranks only.
                let entry = roles.entry(comm_name(comm)).or_insert_with(|| role.clone());
                if said.is_some() {
                    *entry = role;
                }
            }
        }
        Declared { ranks: recordings.iter().zip(own).map(of_process).collect(), roles }
    }
}

/// The job's rank of each communicator of a process that has several ranks: its rank in the largest
/// communicator of the same device. `None` for a process with one rank.
fn job_ranks(recording: &Recording) -> Option<Vec<u32>> {
    let (comms, numbers) = (recording.comms(), recording.local_ranks()?);
    let world = |number: u32| {
        let of = comms.iter().zip(&numbers).filter(|(_, of)| **of == number);
        of.max_by_key(|(comm, _)| comm.ranks).map_or(-1, |(comm, _)| comm.rank)
    };
    Some(numbers.iter().map(|&number| u32::try_from(world(number)).unwrap_or(u32::MAX)).collect())
}

impl Filter {
    /// Whether it leaves nothing out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether it chooses among recordings: by rank or host.
    #[must_use]
    pub fn chooses_recordings(&self) -> bool {
        !self.ranks.is_empty() || !self.hosts.is_empty()
    }

    /// Whether a recording is to be read, whose ranks in the job are these.
    #[must_use]
    pub fn has(&self, recording: &Recording, ranks: &BTreeSet<u32>) -> bool {
        let has_rank = ranks.iter().any(|&rank| self.has_rank(rank));
        has_rank && self.has_host(&recording.header().host)
    }

    /// Whether it has a rank of the job.
    #[must_use]
    pub fn has_rank(&self, rank: u32) -> bool {
        self.ranks.is_empty() || self.ranks.iter().any(|range| range.contains(&rank))
    }

    /// Whether it has a host.
    #[must_use]
    pub fn has_host(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|pattern| is_like(pattern, host))
    }

    /// Whether it has a function.
    #[must_use]
    pub fn has_func(&self, func: &str) -> bool {
        self.funcs.is_empty() || self.funcs.iter().any(|of| of.eq_ignore_ascii_case(func))
    }

    /// Whether it has a communicator, by its name as reports have it, the application's name for
    /// it, and its role.
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

    /// The same of a communicator as findings name it: `0x1f2e3d4c "world"`, its name in quotes.
    #[must_use]
    pub fn has_named_comm(&self, name: &str, role: &str) -> bool {
        let (hash, said) = match name.split_once(' ') {
            Some((hash, said)) => (hash, Some(said.trim_matches('"'))),
            None => (name, None),
        };
        self.has_comm(hash, said, role)
    }

    /// What it has of a recording.
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

    /// How many ranks of a recording it has.
    fn ranks_of(&self, recording: &Recording) -> Option<usize> {
        let (numbers, ranks) = (recording.local_ranks()?, job_ranks(recording)?);
        let chosen = numbers.iter().zip(ranks).filter(|(_, rank)| self.has_rank(*rank));
        Some(chosen.map(|(number, _)| *number).collect::<BTreeSet<u32>>().len())
    }
}

/// From the start of the first of these training steps to that of the next one after the last, ns
/// since 1970. Nothing, if the process had none of them.
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

/// Whether a name is like a pattern, in which `*` is any text and `?` any character.
fn is_like(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut next) = (0, 0);
    // The last `*`, and how much of the name it has.
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

/// What a filter has of one recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// By the positions of communicators.
    comms: Vec<bool>,
    /// What belongs to no known communicator.
    others: bool,
    funcs: Vec<String>,
    /// The first and the last time, ns since 1970.
    window: (u64, u64),
    /// An activation mask.
    kinds: u32,
    /// How many ranks it has of a process of several.
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
    /// The first and the last time, ns since 1970.
    #[must_use]
    pub fn window(&self) -> (u64, u64) {
        self.window
    }

    /// How many ranks it has of a process; `None` where it chooses none of its ranks, or the
    /// process has one.
    #[must_use]
    pub fn ranks(&self) -> Option<usize> {
        self.ranks
    }

    /// Whether it has a kind of events.
    #[must_use]
    pub fn has_kind(&self, kind: EventKind) -> bool {
        self.kinds & kind.bit() != 0
    }

    /// Whether it has the communicator at a position, or what belongs to none that is known.
    #[must_use]
    pub fn has_comm(&self, comm: Option<usize>) -> bool {
        comm.map_or(self.others, |at| self.comms.get(at).copied().unwrap_or(true))
    }

    /// Whether it has a time, ns since 1970.
    #[must_use]
    pub fn has_time(&self, ns: u64) -> bool {
        (self.window.0..=self.window.1).contains(&ns)
    }

    /// Whether it has only some functions or times: sums over all of them are of no use then.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.funcs.is_empty() || self.window != (0, u64::MAX) || !self.has_operations()
    }

    fn has_operations(&self) -> bool {
        let kinds = [EventKind::Coll, EventKind::P2p, EventKind::CeColl];
        kinds.into_iter().all(|kind| self.has_kind(kind))
    }

    /// Whether it has an operation, by its communicator, function, kind and start.
    #[must_use]
    pub fn has_operation(&self, timeline: &Timeline<'_>, operation: &Operation) -> bool {
        let event = timeline.event(operation.event);
        self.has_comm(operation.comm)
            && self.has_kind(event.kind())
            && self.has_func(timeline, operation.func)
            && self.has_time(timeline.ns(event.start.ticks))
    }

    /// Whether it has an event, by its communicator, kind and function, whenever it was. What works
    /// for an operation has the operation's function; a group of operations has none.
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

/// The function that an event works for.
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
