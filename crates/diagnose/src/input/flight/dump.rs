// SPDX-License-Identifier: Apache-2.0
//! One dump: its groups, their status, and the operations that were recorded.

use super::entries::{Entries, Entry};
use crate::input::assemble::MAX_RANKS;
use crate::job::PythonLine;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Maximum number of members of all groups of a dump.
const MAX_MEMBERS: usize = 1 << 20;

/// The dump of one rank.
#[derive(Debug, Default)]
pub(super) struct Dump {
    /// By name.
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) entries: Vec<Entry>,
    /// Its first entry is not the first that was recorded: the ring was full and overwrote older
    /// ones, or the dump has only what is in flight.
    pub(super) lacks_older: bool,
    /// When the first operation in flight exceeds its timeout, ns since 1970.
    pub(super) times_out_ns: Option<u64>,
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
    pub(super) status: Option<(u64, Option<u64>, u64)>,
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
            groups.insert(name, Group { desc, ranks: ranks(&group["ranks"]), status: None });
        }
        for (name, desc) in &read.groups {
            groups
                .entry(name.as_ref().to_owned())
                .or_insert_with(|| Group { desc: desc.as_ref().to_owned(), ..Group::default() });
        }
        let Entries { mut all, ids, lacks_older, times_out_ns, .. } = read;
        all.shrink_to_fit();
        let mut dump = Dump { groups, entries: all, lacks_older, times_out_ns, written_ns };
        dump.join_status(value, &ids);
        if value["pg_status"].as_object().is_some_and(Map::is_empty) && !lacks_older {
            dump.number_by_group();
        }
        dump
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

    /// Finds the name of each group in `pg_status`.
    fn join_status(&mut self, value: &Value, ids: &HashMap<u64, Arc<str>>) {
        let Some(status) = value["pg_status"].as_object() else { return };
        let by_entry: HashMap<String, &str> =
            ids.iter().map(|(id, name)| (id.to_string(), &**name)).collect();
        let mut ids: Vec<&String> = status.keys().collect();
        let mut names: Vec<String> = self.groups.keys().cloned().collect();
        ids.sort_by_key(|id| (id.parse::<u64>().unwrap_or(u64::MAX), id.as_str()));
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        let in_order: HashMap<&str, &String> =
            ids.iter().map(|id| id.as_str()).zip(&names).collect();
        let agrees = ids.len() == names.len()
            && by_entry
                .iter()
                .all(|(id, name)| in_order.get(id.as_str()).is_some_and(|n| n == name));
        for (id, numbers) in status {
            let by_order = in_order.get(id.as_str()).filter(|_| agrees).map(|name| name.as_str());
            let Some(name) = by_entry.get(id).copied().or(by_order) else { continue };
            if let Some(group) = self.groups.get_mut(name) {
                let number = |key: &str| count(&numbers[key]);
                group.status = Some((
                    number("last_enqueued_collective").unwrap_or(0),
                    number("last_started_collective"),
                    number("last_completed_collective").unwrap_or(0),
                ));
            }
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

    /// When the newest operation was created, ns since 1970; 0 if there is none.
    pub(super) fn newest_ns(&self) -> u64 {
        self.entries.iter().map(|entry| entry.created_ns).max().unwrap_or(0)
    }
}

/// A number that may be given as text, as in `pg_status` of JSON; `None` if it is negative.
fn count(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
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
