// SPDX-License-Identifier: Apache-2.0
/*!
Ranks that run an operation otherwise than the others (H2c).

NCCL chooses algorithm, protocol, channels and the size of steps on each rank alone, from facts that
must be the same on all ranks. If they are not, the data of the ranks does not fit: the operation
hangs, or ends with wrong results. Two things show that. The settings of a collective are compared
at the same number; and the two ends of a transfer must have the same number of steps.

Of operations that are over, only algorithm and protocol are compared. The largest group of equal
settings counts as right; if the two largest have the same size, none does.
*/

use crate::graph::Graph;
use crate::job::{CommKind, Communicator, Job, Process, Settings};
use crate::state;
use crate::words;
use ncclscope_findings::rank::Transfer;
use ncclscope_operations::human;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Members (positions in [`Communicator::vectors`]) that run an operation alike.
type Group = Vec<u32>;

/// The difference between the members of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Differs {
    pub(crate) comm: u32,
    /// Number of the operation.
    pub(crate) number: u64,
    /// Members wait in it, or in a transfer of it.
    pub(crate) is_stuck: bool,
    /// The groups, each with how it runs the operation: the smallest first.
    pub(crate) groups: Vec<(Group, String)>,
    /// Members that count as wrong.
    pub(crate) odd: Group,
    /// The transfers whose ends differ: sending and receiving member, and the sentence.
    pub(crate) transfers: Vec<(u32, u32, String)>,
}

/// Finds the communicators whose members differ, without those in `desynced`, whose members made
/// different calls.
pub(crate) fn find(job: &Job, hang_ns: u64, desynced: &BTreeSet<u32>) -> Vec<Differs> {
    let comms = job.comms.iter().zip(0u32..);
    let comms = comms.filter(|(_, at)| !desynced.contains(at));
    comms.filter_map(|(comm, at)| one(job, (comm, at), hang_ns)).collect()
}

fn one(job: &Job, (comm, at): (&Communicator, u32), hang_ns: u64) -> Option<Differs> {
    let is_old = |age: u64| job.counts_any_age() || age >= hang_ns;
    let waits = comm.vectors.iter().filter(|v| v.is_inside() && v.age_ns.is_some_and(is_old));
    // Members that are in a later operation wait for those in the lowest one.
    let lowest = waits.map(|vector| vector.front()).min();
    let in_it = lowest.and_then(|number| {
        let groups = groups(comm, number, settings_text);
        (groups.len() > 1).then(|| differs(at, (number, true), groups, Vec::new()))
    });
    let by_steps = || steps_differ(comm, at, lowest?);
    in_it.or_else(by_steps).or_else(|| {
        let (number, groups) = first_difference(comm)?;
        Some(differs(at, (number, false), groups, Vec::new()))
    })
}

fn differs(
    comm: u32,
    (number, is_stuck): (u64, bool),
    mut groups: Vec<(Group, String)>,
    transfers: Vec<(u32, u32, String)>,
) -> Differs {
    groups.sort_by_key(|(members, _)| (members.len(), members.first().copied()));
    let sizes = || groups.iter().rev().map(|(members, _)| members.len());
    let is_tie = sizes().nth(1) == sizes().next();
    let wrong = if is_tie { &groups[..] } else { &groups[..groups.len() - 1] };
    let mut odd: Group = wrong.iter().flat_map(|(members, _)| members.clone()).collect();
    odd.sort_unstable();
    Differs { comm, number, is_stuck, groups, odd, transfers }
}

fn settings_text(settings: &Settings) -> String {
    let channels = settings.channels.map_or_else(String::new, |channels| {
        format!(" on {}", human::count(u32::from(channels), "channel"))
    });
    format!("{} {}{channels}", settings.algorithm, settings.protocol)
}

/// The members by what `text` says of their settings at this number.
fn groups(
    comm: &Communicator,
    number: u64,
    text: impl Fn(&Settings) -> String,
) -> Vec<(Group, String)> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for (&member, all) in &comm.settings {
        if let Some(settings) = all.get(&number) {
            groups.entry(text(settings)).or_default().push(member);
        }
    }
    groups.into_iter().map(|(text, members)| (members, text)).collect()
}

/// The first operation that members run with another algorithm or protocol.
fn first_difference(comm: &Communicator) -> Option<(u64, Vec<(Group, String)>)> {
    let mut seen: BTreeMap<u64, (&str, &str)> = BTreeMap::new();
    let mut first: Option<u64> = None;
    for all in comm.settings.values() {
        for (&at, settings) in all.range(..first.unwrap_or(u64::MAX)) {
            let own = (&*settings.algorithm, &*settings.protocol);
            if *seen.entry(at).or_insert(own) != own {
                first = Some(at);
                break;
            }
        }
    }
    Some((first?, groups(comm, first?, settings_text)))
}

/// Transfers of an operation in flight whose two ends have different numbers of steps. Members
/// joined by transfers that fit are a group.
fn steps_differ(comm: &Communicator, at: u32, number: u64) -> Option<Differs> {
    let mut transfers = comm.flights.values().flat_map(|flight| &flight.transfers);
    if !transfers.any(|transfer| transfer.steps > 0) {
        return None;
    }
    let (mut fit, mut misfit) = (Vec::new(), Vec::new());
    let sends = comm.vectors.iter().zip(0u32..).filter(|(vector, _)| vector.front() == number);
    let by_rank: HashMap<i32, u32> =
        sends.clone().filter_map(|(v, at)| Some((i32::try_from(v.rank).ok()?, at))).collect();
    for (vector, from) in sends {
        for send in state::transfers(comm, from as usize).iter().filter(|it| it.is_send) {
            let Some(&to) = by_rank.get(&send.peer) else { continue };
            let is_it = |it: &&Transfer| {
                !it.is_send
                    && i64::from(it.peer) == i64::from(vector.rank)
                    && it.channel == send.channel
            };
            let mut receives = state::transfers(comm, to as usize).iter().filter(is_it);
            let (Some(receive), None) = (receives.next(), receives.next()) else { continue };
            match (send.steps, receive.steps) {
                (0, _) | (_, 0) => {}
                (sent, received) if sent == received => fit.push((from, to)),
                (sent, received) => misfit.push((from, to, send.channel, sent, received)),
            }
        }
    }
    if misfit.is_empty() {
        return None;
    }
    let ends = misfit.iter().flat_map(|&(from, to, ..)| [from, to]);
    let ends: BTreeSet<u32> = ends.chain(fit.iter().flat_map(|&(from, to)| [from, to])).collect();
    let groups = joined(comm.vectors.len(), &ends, &fit);
    let line = |&(from, to, channel, sent, received): &(u32, u32, u8, u32, u32)| {
        let text = format!(
            "channel {channel}: {} to send, and {received} to receive",
            human::count(sent, "step")
        );
        (from, to, text)
    };
    let kind = if comm.kind == CommKind::Collectives { "operation" } else { "transfer" };
    let text = |members: Group| (members, format!("other steps of the {kind}"));
    let groups: Vec<_> = groups.into_iter().map(text).collect();
    let lines = misfit.iter().map(line).collect();
    (groups.len() > 1).then(|| differs(at, (number, true), groups, lines))
}

/// The groups of these members that the pairs join, of `all` members.
fn joined(all: usize, members: &BTreeSet<u32>, pairs: &[(u32, u32)]) -> Vec<Group> {
    let edges = pairs.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
    let components = Graph::new(all, &edges.collect::<Vec<_>>()).components();
    let mut groups: BTreeMap<u32, Group> = BTreeMap::new();
    for &member in members {
        groups.entry(components[member as usize]).or_default().push(member);
    }
    groups.into_values().collect()
}

/// What differs between these processes of what may make NCCL decide otherwise, a sentence each:
/// who has which value.
pub(crate) fn differences(job: &Job, processes: &[u32]) -> Vec<String> {
    let environment = |at: u32| &job.processes[at as usize].environment;
    let keys = processes.iter().flat_map(|&at| environment(at).keys());
    let keys: BTreeSet<&String> = keys.collect();
    let line = |key: &String| {
        let mut by_value: BTreeMap<Option<&String>, Vec<u32>> = BTreeMap::new();
        for &at in processes {
            by_value.entry(environment(at).get(key)).or_default().push(job.rank(at));
        }
        let part = |(value, mut ranks): (Option<&String>, Vec<u32>)| {
            ranks.sort_unstable();
            let value = value.map_or("not set", String::as_str);
            format!("{value} on {}", words::named_ranks(&ranks))
        };
        (by_value.len() > 1).then(|| {
            let parts: Vec<String> = by_value.into_iter().map(part).collect();
            format!("{}: {}", name(key), parts.join(", "))
        })
    };
    keys.into_iter().filter_map(line).collect()
}

/// The name of what may make NCCL decide otherwise.
pub(crate) fn name(key: &str) -> &str {
    match key {
        "nccl" => "NCCL's version",
        "cuda" => "the CUDA version of the driver",
        "cpu" => "the processor",
        "device_name" => "the GPU",
        key => key,
    }
}

/// What the processes in `odd` have otherwise than all of those in `others`: the key, and the
/// values of both; `None` where it is not set.
pub(crate) fn environment<'a>(
    job: &'a Job,
    odd: &[u32],
    others: &[u32],
) -> Vec<(&'a str, [BTreeSet<Option<&'a str>>; 2])> {
    let process = |&at: &u32| &job.processes[at as usize];
    let all = || odd.iter().chain(others).map(process);
    let keys: BTreeSet<&str> =
        all().flat_map(|one: &Process| one.environment.keys().map(String::as_str)).collect();
    let values = |of: &[u32], key: &str| -> BTreeSet<Option<&'a str>> {
        let value = |at: &u32| process(at).environment.get(key).map(String::as_str);
        of.iter().map(value).collect()
    };
    let both = keys.into_iter().map(|key| (key, [values(odd, key), values(others, key)]));
    both.filter(|(_, [odd, others])| odd.is_disjoint(others)).collect()
}
