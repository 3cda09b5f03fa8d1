// SPDX-License-Identifier: Apache-2.0
//! One dump: its groups, their status, and the operations that were recorded.

use super::entries::{Entries, Entry};
use super::status::{self, Numbers, Span};
use crate::job::PythonLine;
use crate::missing::MAX_RANKS;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Maximum number of members of all groups of a dump.
const MAX_MEMBERS: usize = 1 << 20;

/// The dump of one rank.
#[derive(Debug, Default)]
pub(super) struct Dump {
    /// By name.
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) entries: Vec<Entry>,
    /// Numbers of groups whose name is not known.
    unnamed: Vec<Numbers>,
    /// Its first entry is not the first that was recorded: the ring was full and overwrote older
    /// ones, or the dump has only what is in flight.
    pub(super) lacks_older: bool,
    /// When its file was last written, ns since 1970.
    pub(super) written_ns: Option<u64>,
}

/// A process group.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) desc: String,
    /// Its ranks in the job; empty if `pg_config` does not have the group.
    pub(super) ranks: Vec<u32>,
    /// Numbers of the latest operations that were enqueued, started and completed.
    pub(super) status: Option<Numbers>,
    /// The dump shows that the process has called nothing of the group.
    pub(super) is_uncalled: bool,
    /// The dump may have its numbers without its name.
    is_unknown: bool,
}

/// True if `value` is a Flight Recorder dump. PyTorch leaves `entries` out if there are none.
#[must_use]
pub fn is_dump(value: &Value) -> bool {
    let has_groups = value["pg_config"].is_object() || value["pg_status"].is_object();
    match value.get("entries") {
        Some(entries) => entries.is_array() && (value["version"].is_string() || has_groups),
        None => value["version"].is_string() && has_groups,
    }
}

impl Dump {
    /// From a dump whose entries were read before.
    pub(super) fn new(value: &Value, read: Entries, written_ns: Option<u64>) -> Dump {
        let mut groups = BTreeMap::new();
        for (key, group) in value["pg_config"].as_object().into_iter().flatten() {
            let name = group["name"].as_str().unwrap_or(key).to_owned();
            // The recorder of gloo has one group without a name in place of all.
            if name.is_empty() {
                continue;
            }
            let desc = group["desc"].as_str().unwrap_or_default().to_owned();
            groups.insert(name, Group { desc, ranks: ranks(&group["ranks"]), ..Group::default() });
        }
        for (name, desc) in &read.groups {
            groups
                .entry(name.as_ref().to_owned())
                .or_insert_with(|| Group { desc: desc.as_ref().to_owned(), ..Group::default() });
        }
        let Entries { mut all, ids, lacks_older, .. } = read;
        all.retain(|entry| ids.is_latest(entry.group_id, &entry.group));
        all.shrink_to_fit();
        let mut dump = Dump { groups, entries: all, unnamed: Vec::new(), lacks_older, written_ns };
        dump.join_status(value, &ids);
        if value["pg_status"].as_object().is_some_and(Map::is_empty) && !lacks_older {
            dump.number_by_group();
        }
        dump
    }

    /// Gives the groups their numbers in `pg_status`.
    fn join_status(&mut self, value: &Value, ids: &status::Ids) {
        let (given, none) = (value["pg_status"].as_object(), Map::new());
        let names: Vec<String> = self.groups.keys().cloned().collect();
        let read = status::read(given.unwrap_or(&none), ids, names.iter());
        let entered: HashSet<&str> = self.entries.iter().map(|entry| &*entry.group).collect();
        // torchcomms writes an empty `pg_status`, and old versions of PyTorch none.
        let shows_uncalled = match given {
            Some(given) if !given.is_empty() => true,
            Some(_) => !self.lacks_older,
            None => !self.lacks_older && !self.entries.is_empty(),
        };
        for (name, group) in &mut self.groups {
            let name = name.as_str();
            group.status = read.numbers.get(name).copied();
            let has_none = group.status.is_none() && !entered.contains(name);
            group.is_unknown = has_none && read.unknown.contains(name);
            group.is_uncalled = has_none && !group.is_unknown && shows_uncalled;
        }
        self.unnamed = read.unnamed;
    }

    /// True if it has numbers of groups whose name is not known.
    pub(super) fn has_unnamed(&self) -> bool {
        !self.unnamed.is_empty()
    }

    /// Gives a group the only numbers without a name that agree with those of its other members, if
    /// they are of no other group.
    pub(super) fn name_by_numbers(&mut self, of_others: impl Fn(&str, &Group) -> Option<Span>) {
        let unknown = self.groups.iter().filter(|(_, group)| group.is_unknown);
        let unknown: Vec<(&String, Span)> =
            unknown.filter_map(|(name, group)| Some((name, of_others(name, group)?))).collect();
        if unknown.len().saturating_mul(self.unnamed.len()) > MAX_MEMBERS {
            return;
        }
        let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (name, span) in unknown {
            let agrees = |&(called, _, done): &Numbers| span.agrees(Span { called, done });
            let mut all = self.unnamed.iter().zip(0..).filter(|(one, _)| agrees(one));
            if let (Some((_, at)), None) = (all.next(), all.next()) {
                found.entry(at).or_default().push(name.clone());
            }
        }
        for (at, names) in found {
            if let [name] = &names[..]
                && let Some(group) = self.groups.get_mut(name)
            {
                (group.status, group.is_unknown) = (self.unnamed.get(at).copied(), false);
            }
        }
    }

    /// Numbers the operations of each group. torchcomms counts over all groups of a process, and
    /// says nothing of their status.
    fn number_by_group(&mut self) {
        let mut numbers: HashMap<&str, (u64, u64)> = HashMap::new();
        for entry in &mut self.entries {
            let (last, number) = numbers.entry(&entry.group).or_default();
            // Operations of one coalesced call share one number.
            *number += u64::from(*number == 0 || *last != entry.seq);
            *last = entry.seq;
            entry.seq = *number;
        }
    }

    /// Checks that groups of these sizes are possible.
    pub(super) fn check(&self) -> Result<(), String> {
        let too_large =
            self.groups.iter().find(|(_, group)| group.ranks.len() > MAX_RANKS as usize);
        if let Some((name, group)) = too_large {
            let count = group.ranks.len();
            return Err(format!("process group {name} has {count} ranks: {MAX_RANKS} is the most"));
        }
        let members: usize = self.groups.values().map(|group| group.ranks.len()).sum();
        match members > MAX_MEMBERS {
            true => Err(format!("its groups have {members} members: {MAX_MEMBERS} is the most")),
            false => Ok(()),
        }
    }

    /// The line of the user's script that called the oldest operation in flight; if none is, the
    /// latest operation.
    pub(super) fn python_line(&self) -> Option<PythonLine> {
        let open = self.entries.iter().find(|entry| entry.is_open);
        let entry = open.or_else(|| self.entries.iter().max_by_key(|entry| entry.created_ns))?;
        let text = entry.line.as_ref()?.to_string();
        Some(PythonLine { text, is_open: entry.is_open })
    }

    /// The ranks of all groups that it lists.
    pub(super) fn listed(&self) -> BTreeSet<u32> {
        self.groups.values().flat_map(|group| group.ranks.iter().copied()).collect()
    }

    /// The entries of a group, in order.
    pub(super) fn of<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| &*entry.group == group)
    }

    /// When the oldest operation in flight was created, ns since 1970, if known.
    pub(super) fn oldest_open_ns(&self) -> Option<u64> {
        let open = self.entries.iter().filter(|entry| entry.is_open && entry.created_ns > 0);
        open.map(|entry| entry.created_ns).min()
    }

    /// When the first operation in flight exceeds its timeout, ns since 1970.
    pub(super) fn times_out_ns(&self) -> Option<u64> {
        let timed = |entry: &&Entry| entry.is_open && entry.timeout_ms > 0 && entry.created_ns > 0;
        let open = self.entries.iter().filter(timed);
        let at = |it: &Entry| it.created_ns.saturating_add(u64::from(it.timeout_ms) * 1_000_000);
        open.map(at).min()
    }

    /// When the newest operation was created, ns since 1970; 0 if there is none.
    pub(super) fn newest_ns(&self) -> u64 {
        self.entries.iter().map(|entry| entry.created_ns).max().unwrap_or(0)
    }
}

/// Parses a list of ranks, which may be given as text.
fn ranks(value: &Value) -> Vec<u32> {
    let numbers: Vec<u64> = match value {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        other => other.as_array().into_iter().flatten().filter_map(Value::as_u64).collect(),
    };
    numbers.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()
}
