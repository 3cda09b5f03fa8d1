// SPDX-License-Identifier: Apache-2.0
/*!
The entries of a dump, which are read one at a time: a dump has up to 20,000 with a stack each, and
as a value it takes fifty times what is kept. Texts and calls are shared, because most repeat.
*/

use super::status::Ids;
use crate::input::older::MOST;
use crate::job::Call;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// An operation that was recorded.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) group: Arc<str>,
    /// The id of its group in the process.
    pub(super) group_id: Option<u64>,
    pub(super) seq: u64,
    pub(super) is_p2p: bool,
    /// It is an operation of a coalesced call.
    pub(super) is_part: bool,
    pub(super) is_open: bool,
    /// 0 if unknown.
    pub(super) timeout_ms: u32,
    pub(super) created_ns: u64,
    pub(super) call: Arc<Call>,
    /// The line of the user's script that called it.
    pub(super) line: Option<Arc<str>>,
}

/// True for a send, the own rank in the group, and the other rank.
pub(super) type Direction = (bool, u32, u32);

/// Texts and calls of all dumps.
#[derive(Debug, Default)]
pub(super) struct Shared {
    texts: HashSet<Arc<str>>,
    calls: HashSet<Arc<Call>>,
}

/// The entries of one dump.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) all: Vec<Entry>,
    /// Descriptions of their groups, by name.
    pub(super) groups: BTreeMap<Arc<str>, Arc<str>>,
    /// The ids of their groups.
    pub(super) ids: Ids,
    /// Some of those that were recorded are missing: the ring was full and overwrote older ones, or
    /// the dump has only what is in flight.
    pub(super) lacks_older: bool,
    /// Entries without a process group.
    pub(super) without_group: usize,
    /// The number of the next entry, if none is missing.
    next: u64,
    /// The latest call of each group, by the group's id.
    calls: HashMap<u64, LatestCall>,
}

/// The entries of one call: several if it is coalesced.
#[derive(Debug, Default)]
struct LatestCall {
    /// Numbers of its collective, and of its send or receive.
    numbers: (u64, u64),
    /// Positions of the entries.
    entries: Vec<usize>,
}

impl Entries {
    /// Adds the next entry.
    pub(super) fn add(&mut self, value: &Value, shared: &mut Shared) {
        if let Some(number) = value["record_id"].as_u64() {
            self.lacks_older |= number > self.next;
            self.next = number.saturating_add(1);
        }
        let Some((name, desc)) = group_of(value) else {
            self.without_group += 1;
            return;
        };
        let group = shared.text(name);
        if !self.groups.contains_key(name) {
            self.groups.insert(Arc::clone(&group), shared.text(desc));
        }
        if let Some(id) = value["pg_id"].as_u64() {
            self.ids.add(id, &group);
        }
        let Some(entry) = Entry::new(value, group, shared) else { return };
        self.all.push(entry);
        self.add_to_call(value);
    }

    /// Joins the entries of a coalesced call. PyTorch records each of its operations, without
    /// events, so that they stay `scheduled` (<https://github.com/pytorch/pytorch/issues/137969>),
    /// and then the call itself: never as a send or receive, but with the same numbers.
    fn add_to_call(&mut self, value: &Value) {
        let number = |key: &str| value[key].as_u64();
        let (Some(id), Some(collective)) = (number("pg_id"), number("collective_seq_id")) else {
            return;
        };
        let numbers = (collective, number("p2p_seq_id").unwrap_or(0));
        let is_first = !self.calls.contains_key(&id);
        let call = self.calls.entry(id).or_default();
        if call.numbers != numbers {
            call.numbers = numbers;
            call.entries.clear();
        }
        // The ring has kept only the end of the call, which may be one of sends and receives.
        let is_end = |last: &mut Entry| is_first && last.call.func == "coalesced";
        if self.lacks_older && self.all.pop_if(is_end).is_some() {
            return;
        }
        let Some((last, before)) = self.all.split_last_mut() else { return };
        if last.call.func.ends_with("coalesced") {
            for at in call.entries.drain(..) {
                let Some(part) = before.get_mut(at) else { continue };
                (part.is_part, part.is_open) = (true, last.is_open);
                (last.is_p2p, last.seq) = (part.is_p2p, part.seq);
            }
        } else {
            call.entries.push(before.len());
        }
    }
}

impl Entry {
    fn new(value: &Value, group: Arc<str>, shared: &mut Shared) -> Option<Entry> {
        let full = value["profiling_name"].as_str()?;
        let name = full.split_once(':').map_or(full, |(_, name)| name);
        // torchcomms says of none that it is a send or a receive.
        let is_p2p = value["is_p2p"].as_bool().unwrap_or(false) || matches!(name, "send" | "recv");
        let is_over = value["state"] == "completed"
            || value["retired"] == true
            || value["time_discovered_completed_ns"].as_u64().is_some_and(|ns| ns != 0);
        let seq = |key: &str| value[key].as_u64();
        let p2p = seq("p2p_seq_id").filter(|&number| is_p2p && number > 0);
        let seq = p2p.or_else(|| seq("collective_seq_id")).or_else(|| seq("seq_id"))?;
        Some(Entry {
            group,
            group_id: value["pg_id"].as_u64(),
            seq: seq.min(MOST),
            is_p2p,
            is_part: false,
            is_open: !is_over,
            timeout_ms: value["timeout_ms"].as_u64().map_or(0, saturated),
            created_ns: value["time_created_ns"].as_u64().unwrap_or(0),
            call: shared.call(call(name, value)),
            line: value["frames"].as_str().map(|line| shared.text(line)),
        })
    }

    /// Its direction; `None` for collectives.
    pub(super) fn direction(&self) -> Option<Direction> {
        let (verb, way) = self.call.func.split_once(' ')?;
        let (here, there) = way.split_once("->").or_else(|| way.split_once("<-"))?;
        Some((verb == "send", here.trim().parse().ok()?, there.trim().parse().ok()?))
    }
}

impl Shared {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }

    fn call(&mut self, call: Call) -> Arc<Call> {
        if let Some(known) = self.calls.get(&call) {
            return Arc::clone(known);
        }
        let new = Arc::new(call);
        self.calls.insert(Arc::clone(&new));
        new
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

fn saturated(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
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
