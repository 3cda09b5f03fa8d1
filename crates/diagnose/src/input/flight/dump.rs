// SPDX-License-Identifier: Apache-2.0
//! One dump: its groups, their status, and the operations that were recorded.

use crate::input::assemble::MAX_RANKS;
use crate::input::older::MOST;
use crate::job::{Call, PythonLine};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};

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

/// An operation that was recorded.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) group: String,
    name: String,
    pub(super) seq: u64,
    pub(super) is_p2p: bool,
    pub(super) is_open: bool,
    pub(super) created_ns: u64,
    pub(super) call: Call,
    /// The line of the user's script that called it.
    line: Option<String>,
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
    pub(super) fn new(value: &Value) -> Dump {
        let all = || value["entries"].as_array().into_iter().flatten();
        let entries: Vec<Entry> = all().filter_map(Entry::new).collect();
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
        for (name, desc) in all().filter_map(group_of) {
            groups
                .entry(name.to_owned())
                .or_insert_with(|| Group { desc: desc.to_owned(), ..Group::default() });
        }
        let first = all().next();
        let lacks_older = first.is_some_and(|it| it["record_id"].as_u64().is_some_and(|it| it > 0));
        let mut dump = Dump { groups, entries, lacks_older };
        dump.join_status(value);
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
    fn join_status(&mut self, value: &Value) {
        let Some(status) = value["pg_status"].as_object() else { return };
        let mut by_entry: HashMap<&str, &str> = HashMap::new();
        let entries = value["entries"].as_array().into_iter().flatten();
        let ids: Vec<(String, &str)> = entries
            .filter_map(|e| Some((e["pg_id"].as_u64()?.to_string(), group_of(e)?.0)))
            .collect();
        by_entry.extend(ids.iter().map(|(id, name)| (id.as_str(), *name)));
        let mut ids: Vec<&String> = status.keys().collect();
        let mut names: Vec<String> = self.groups.keys().cloned().collect();
        ids.sort_by_key(|id| (id.parse::<u64>().unwrap_or(u64::MAX), id.as_str()));
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        let in_order: HashMap<&str, &String> =
            ids.iter().map(|id| id.as_str()).zip(&names).collect();
        let agrees = ids.len() == names.len()
            && by_entry.iter().all(|(id, name)| in_order.get(id).is_some_and(|n| n == name));
        for (id, numbers) in status {
            let by_order = in_order.get(id.as_str()).filter(|_| agrees).map(|name| name.as_str());
            let Some(name) = by_entry.get(id.as_str()).copied().or(by_order) else { continue };
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
        let text = entry.line.clone()?;
        Some(PythonLine { text, is_open: entry.is_open })
    }

    /// The ranks of all groups that it lists.
    pub(super) fn listed(&self) -> BTreeSet<u32> {
        self.groups.values().flat_map(|group| group.ranks.iter().copied()).collect()
    }

    /// The entries of a group, in order.
    pub(super) fn of<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.group == group)
    }

    /// When the newest operation was created, ns since 1970; 0 if there is none.
    pub(super) fn newest_ns(&self) -> u64 {
        self.entries.iter().map(|entry| entry.created_ns).max().unwrap_or(0)
    }
}

impl Entry {
    fn new(value: &Value) -> Option<Entry> {
        let full = value["profiling_name"].as_str()?;
        let name = full.split_once(':').map_or(full, |(_, name)| name).to_owned();
        // torchcomms says of none that it is a send or a receive.
        let is_p2p =
            value["is_p2p"].as_bool().unwrap_or(false) || matches!(&*name, "send" | "recv");
        let is_over = value["state"] == "completed"
            || value["retired"] == true
            || value["time_discovered_completed_ns"].as_u64().is_some_and(|ns| ns != 0);
        let seq = |key: &str| value[key].as_u64();
        let p2p = seq("p2p_seq_id").filter(|&number| is_p2p && number > 0);
        let seq = p2p.or_else(|| seq("collective_seq_id")).or_else(|| seq("seq_id"))?;
        Some(Entry {
            group: group_of(value)?.0.to_owned(),
            seq: seq.min(MOST),
            is_p2p,
            is_open: !is_over,
            created_ns: value["time_created_ns"].as_u64().unwrap_or(0),
            call: call(&name, value),
            line: value["frames"].as_str().map(str::to_owned),
            name,
        })
    }

    /// True for a send, the own rank in the group, and the other rank; `None` for collectives.
    pub(super) fn direction(&self) -> Option<(bool, u32, u32)> {
        let (verb, way) = self.name.split_once(' ')?;
        let (here, there) = way.split_once("->").or_else(|| way.split_once("<-"))?;
        Some((verb == "send", here.trim().parse().ok()?, there.trim().parse().ok()?))
    }
}

pub(super) fn call(name: &str, value: &Value) -> Call {
    let sizes = value["input_sizes"].to_string();
    let numel = |shape: &Value| -> u64 {
        let sizes = shape.as_array().into_iter().flatten().filter_map(Value::as_u64);
        sizes.fold(1, u64::saturating_mul)
    };
    let elements = |key: &str| {
        let shapes = value[key].as_array().into_iter().flatten();
        shapes.map(numel).fold(0, u64::saturating_add)
    };
    let input = elements("input_sizes");
    // Sizes are compared only for functions in which they are equal on all ranks.
    let alike = ["all_reduce", "allreduce", "broadcast", "_base", "into_tensor", "barrier"];
    let is_alike = alike.iter().any(|part| name.contains(part)) || name == "reduce";
    let datatype = value["input_dtypes"][0].as_str().unwrap_or_default().to_owned();
    Call {
        func: name.to_owned(),
        count: is_alike.then_some(input),
        more_counts: Vec::new(),
        root: None,
        size: format!("{sizes} {datatype}"),
        // The larger side is the data of all ranks, as in nccl-tests.
        bytes: element_bytes(&datatype)
            .and_then(|bytes| bytes.checked_mul(input.max(elements("output_sizes"))))
            .filter(|&bytes| bytes > 0),
        called_ns: None,
        datatype,
    }
}

/// Element size of a datatype, by PyTorch's name; `None` for unknown names.
fn element_bytes(datatype: &str) -> Option<u64> {
    Some(match datatype {
        "Byte" | "Char" | "Bool" => 1,
        "Short" | "Half" | "BFloat16" => 2,
        "Int" | "Float" => 4,
        "Long" | "Double" | "ComplexFloat" => 8,
        "ComplexDouble" => 16,
        name if name.starts_with("Float8") => 1,
        _ => return None,
    })
}

/// Name and description of an entry's group.
fn group_of(entry: &Value) -> Option<(&str, &str)> {
    let name = match &entry["process_group"] {
        Value::Array(parts) => parts.first()?.as_str(),
        other => other.as_str(),
    };
    let desc = entry["process_group"][1].as_str().unwrap_or_default();
    Some((name?, desc))
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
