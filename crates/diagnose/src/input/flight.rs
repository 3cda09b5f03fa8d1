// SPDX-License-Identifier: Apache-2.0
/*!
Dumps of PyTorch's Flight Recorder, one file for each rank, as pickle or JSON.

`pg_status` has the latest enqueued and completed number of each process group, by an id that is
local to the process; `pg_config` has the groups by name. Sorted by number, the two lists
correspond; this is checked against the entries, if there are any. A group with sends and receives
counts those in `pg_status` too: its collectives are then taken from the entries, and its sends and
receives become [`CommKind::Sequence`], which explains waits but names a cause only if nothing
better does.

The format is that of PyTorch's `torch/distributed/flight_recorder`.
*/

use super::assemble::MAX_RANKS;
use super::older::MOST;
use crate::job::{Call, CommKind, Communicator, InFlightOp, Job, Process, ProcessStatus, Vector};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Maximum number of members of all groups of a dump.
const MAX_MEMBERS: usize = 1 << 20;

/// Flight Recorder dumps, by rank.
#[derive(Debug, Default)]
pub struct Dumps {
    ranks: BTreeMap<u32, Dump>,
}

#[derive(Debug, Default)]
struct Dump {
    groups: BTreeMap<String, Group>,
    entries: Vec<Entry>,
    /// Its first entry is not the first that was recorded: the ring was full and overwrote older
    /// ones, or the dump has only what is in flight.
    lacks_older: bool,
}

#[derive(Debug, Default)]
struct Group {
    desc: String,
    ranks: Vec<u32>,
    /// Numbers of the latest operations that were enqueued, started and completed.
    status: Option<(u64, Option<u64>, u64)>,
}

#[derive(Debug)]
struct Entry {
    group: String,
    name: String,
    seq: u64,
    is_p2p: bool,
    is_open: bool,
    created_ns: u64,
    call: Call,
}

/// True if `value` is a Flight Recorder dump.
#[must_use]
pub fn is_dump(value: &Value) -> bool {
    value["entries"].is_array() && (value["version"].is_string() || value["pg_config"].is_object())
}

impl Dumps {
    /// True if no dump was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Adds a dump from a file whose name ends in the rank's number.
    ///
    /// # Errors
    /// One sentence, if the file is not a dump, if its rank is unknown or was already added, or if
    /// its groups are impossibly large.
    pub fn add(&mut self, path: &Path, value: Value) -> Result<(), String> {
        if !is_dump(&value) {
            return Err("not a Flight Recorder dump: `version` or `entries` is missing".into());
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let rank = stem[stem.len() - digits..].parse();
        let rank = rank.map_err(|_| "the file name must end in the rank's number")?;
        let dump = Dump::new(&value);
        dump.check()?;
        if self.ranks.insert(rank, dump).is_some() {
            return Err(format!("there are two dumps of rank {rank}"));
        }
        Ok(())
    }

    /// The job that the dumps show.
    #[must_use]
    pub fn job(&self) -> Job {
        let mut groups: BTreeMap<(&str, &[u32]), &str> = BTreeMap::new();
        let mut ranks: BTreeSet<u32> = self.ranks.keys().copied().collect();
        for dump in self.ranks.values() {
            for (name, group) in &dump.groups {
                ranks.extend(&group.ranks);
                groups.insert((name, &group.ranks), &group.desc);
            }
        }
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let process = |rank: &u32| Process {
            rank: Some(*rank),
            status: if self.ranks.contains_key(rank) {
                ProcessStatus::Running
            } else {
                ProcessStatus::Silent
            },
            ..Process::default()
        };
        let mut job = Job {
            source: "PyTorch Flight Recorder".into(),
            processes: ranks.iter().map(process).collect(),
            is_dump: true,
            ..Job::default()
        };
        for ((name, members), desc) in groups.into_iter().filter(|((_, m), _)| m.len() > 1) {
            let builder = GroupBuilder { dumps: self, ranks: &ranks, name, members, desc };
            builder.add_to(&mut job.comms);
        }
        let has_kernels = job.comms.iter().flat_map(|c| &c.vectors).any(|v| v.started.is_some());
        if !has_kernels {
            job.notes.push(
                "these dumps do not show whether kernels started (TORCH_NCCL_ENABLE_TIMING is off)"
                    .into(),
            );
        }
        job
    }
}

impl Dump {
    fn new(value: &Value) -> Dump {
        let entries: Vec<Entry> =
            value["entries"].as_array().into_iter().flatten().filter_map(Entry::new).collect();
        let mut groups = BTreeMap::new();
        for (key, group) in value["pg_config"].as_object().into_iter().flatten() {
            let name = group["name"].as_str().unwrap_or(key).to_owned();
            let desc = group["desc"].as_str().unwrap_or_default().to_owned();
            groups.insert(name, Group { desc, ranks: ranks(&group["ranks"]), status: None });
        }
        let first = value["entries"].as_array().and_then(|entries| entries.first());
        let lacks_older = first.is_some_and(|it| it["record_id"].as_u64().is_some_and(|it| it > 0));
        let mut dump = Dump { groups, entries, lacks_older };
        dump.join_status(value);
        dump
    }

    /// Checks that groups of these sizes are possible.
    fn check(&self) -> Result<(), String> {
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
            .filter_map(|e| Some((e["pg_id"].as_u64()?.to_string(), group_name(e)?)))
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
                let number =
                    |key: &str| numbers[key].as_i64().and_then(|number| u64::try_from(number).ok());
                group.status = Some((
                    number("last_enqueued_collective").unwrap_or(0),
                    number("last_started_collective"),
                    number("last_completed_collective").unwrap_or(0),
                ));
            }
        }
    }

    fn of<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.group == group)
    }

    fn newest_ns(&self) -> u64 {
        self.entries.iter().map(|entry| entry.created_ns).max().unwrap_or(0)
    }
}

impl Entry {
    fn new(value: &Value) -> Option<Entry> {
        let full = value["profiling_name"].as_str()?;
        let name = full.split_once(':').map_or(full, |(_, name)| name).to_owned();
        let is_p2p = value["is_p2p"].as_bool().unwrap_or(false);
        let is_over = value["state"] == "completed"
            || value["retired"] == true
            || value["time_discovered_completed_ns"].as_u64().is_some_and(|ns| ns != 0);
        let seq = &value[if is_p2p { "p2p_seq_id" } else { "collective_seq_id" }];
        Some(Entry {
            group: group_name(value)?.to_owned(),
            seq: seq.as_u64().or_else(|| value["seq_id"].as_u64())?.min(MOST),
            is_p2p,
            is_open: !is_over,
            created_ns: value["time_created_ns"].as_u64().unwrap_or(0),
            call: call(&name, value),
            name,
        })
    }

    /// True for a send, the own rank in the group, and the other rank; `None` for collectives.
    fn direction(&self) -> Option<(bool, u32, u32)> {
        let (verb, way) = self.name.split_once(' ')?;
        let (here, there) = way.split_once("->").or_else(|| way.split_once("<-"))?;
        Some((verb == "send", here.trim().parse().ok()?, there.trim().parse().ok()?))
    }
}

fn call(name: &str, value: &Value) -> Call {
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

fn group_name(entry: &Value) -> Option<&str> {
    match &entry["process_group"] {
        Value::Array(parts) => parts.first()?.as_str(),
        other => other.as_str(),
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

/// Builds the communicators of one process group.
struct GroupBuilder<'a> {
    dumps: &'a Dumps,
    /// Job ranks in the order of the processes.
    ranks: &'a [u32],
    name: &'a str,
    members: &'a [u32],
    desc: &'a str,
}

impl GroupBuilder<'_> {
    fn add_to(&self, comms: &mut Vec<Communicator>) {
        let sends = self.known().any(|(.., dump)| dump.of(self.name).any(|entry| entry.is_p2p));
        if sends && self.members.len() == 2 {
            let mut pair = self.communicator(true);
            pair.kind = CommKind::Sequence;
            // PyTorch numbers the sends and receives of such a group as well.
            pair.vectors.iter_mut().for_each(|vector| vector.p2p_number = Some(vector.front()));
            comms.push(pair);
        } else if sends {
            comms.extend(self.pairs());
        }
        comms.push(self.communicator(!sends));
    }

    /// Members with a dump: (rank in the group, rank in the job, dump).
    fn known(&self) -> impl Iterator<Item = (u32, u32, &Dump)> {
        let members = self.members.iter().zip(0..);
        members.filter_map(|(&job, rank)| Some((rank, job, self.dumps.ranks.get(&job)?)))
    }

    fn process(&self, rank: u32) -> u32 {
        self.ranks.binary_search(&rank).ok().and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
    }

    fn named(&self) -> Communicator {
        Communicator {
            name: self.name.to_owned(),
            role: (!self.desc.is_empty()).then(|| self.desc.to_owned()),
            nranks: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
            ..Communicator::default()
        }
    }

    /// The collectives of the group, numbered by `pg_status` if `use_status`, else by the entries.
    fn communicator(&self, use_status: bool) -> Communicator {
        let mut comm = self.named();
        let silent = self.members.iter().filter(|rank| !self.dumps.ranks.contains_key(rank));
        comm.silent = silent.map(|&rank| self.process(rank)).collect();
        let (mut all_calls, mut may_be_cut) = (BTreeMap::new(), Vec::new());
        for (rank, job, dump) in self.known() {
            let Some(vector) = self.vector(rank, job, dump, use_status) else { continue };
            let at = u32::try_from(comm.vectors.len()).unwrap_or(u32::MAX);
            let mut calls: BTreeMap<u64, Call> = BTreeMap::new();
            for entry in dump.of(self.name).filter(|entry| !entry.is_p2p) {
                // Operations of one coalesced call share one number.
                let call = calls.entry(entry.seq).or_default();
                match call.func.is_empty() {
                    true => *call = entry.call.clone(),
                    false => call.func = format!("{}+{}", call.func, entry.call.func),
                }
            }
            if vector.is_inside() {
                let call = calls.get(&vector.front()).cloned().unwrap_or_default();
                comm.flights.insert(at, InFlightOp { call, ..InFlightOp::default() });
            }
            may_be_cut
                .extend(calls.keys().next().filter(|_| dump.lacks_older).map(|&seq| (at, seq)));
            all_calls.insert(at, calls);
            comm.vectors.push(vector);
        }
        drop_cut(&mut all_calls, &may_be_cut);
        comm.calls = all_calls.into_iter().map(|(at, calls)| (at, Arc::new(calls))).collect();
        comm
    }

    fn vector(&self, rank: u32, job: u32, dump: &Dump, use_status: bool) -> Option<Vector> {
        let status = dump.groups.get(self.name).and_then(|group| group.status);
        let entries = || dump.of(self.name).filter(|entry| use_status || !entry.is_p2p);
        let open = || entries().filter(|entry| entry.is_open);
        let last = entries().map(|entry| entry.seq).max();
        let first_open = open().map(|entry| entry.seq).min();
        let (enqueued, started, done) = match status.filter(|_| use_status) {
            Some(status) => status,
            None => (last?, None, first_open.map_or(last?, |first| first.saturating_sub(1))),
        };
        let born = open().map(|entry| entry.created_ns).min();
        Some(Vector {
            process: self.process(job),
            rank,
            api: enqueued,
            enqueued,
            started,
            done: done.min(enqueued),
            age_ns: born.map(|born| dump.newest_ns().saturating_sub(born)),
            born_ns: born.map(|born| dump.newest_ns().saturating_sub(born)),
            changed_ns: None,
            is_blind: false,
            is_captured: false,
            has_left: false,
            connects: false,
            p2p_number: None,
        })
    }

    /// Sends and receives in flight between two members of a larger group. The dumps show only
    /// whether the other side is in the same transfer, not its progress.
    fn pairs(&self) -> Vec<Communicator> {
        let mut open: BTreeMap<(u32, u32), [Option<u64>; 2]> = BTreeMap::new();
        for (_, _, dump) in self.known() {
            for entry in dump.of(self.name).filter(|entry| entry.is_p2p && entry.is_open) {
                let Some((is_send, here, there)) = entry.direction() else { continue };
                let key = if is_send { (here, there) } else { (there, here) };
                let age = dump.newest_ns().saturating_sub(entry.created_ns);
                let side = &mut open.entry(key).or_default()[usize::from(!is_send)];
                *side = (*side).max(Some(age));
            }
        }
        let member = |rank: u32| self.members.get(rank as usize).copied();
        let pairs = open.into_iter().filter_map(|((src, dst), ages)| {
            let mut comm = Communicator { kind: CommKind::Sequence, ..self.named() };
            for (rank, age_ns) in [src, dst].into_iter().zip(ages) {
                let job = member(rank)?;
                if !self.dumps.ranks.contains_key(&job) {
                    comm.silent.push(self.process(job));
                    continue;
                }
                let enqueued = u64::from(age_ns.is_some());
                let process = self.process(job);
                let base = Vector { process, rank, age_ns, enqueued, ..Vector::default() };
                comm.vectors.push(Vector { api: enqueued, born_ns: age_ns, ..base });
            }
            Some(comm)
        });
        pairs.collect()
    }
}

/// Drops the oldest calls, of members whose ring has overwritten older entries, that are the end of
/// a coalesced call of another member: the ring may have kept only that part of the same call.
fn drop_cut(calls: &mut BTreeMap<u32, BTreeMap<u64, Call>>, oldest: &[(u32, u64)]) {
    let numbers: HashSet<u64> = oldest.iter().map(|&(_, seq)| seq).collect();
    let mut coalesced: HashMap<u64, HashSet<&str>> = HashMap::new();
    for (seq, call) in calls.values().flatten().filter(|(seq, _)| numbers.contains(seq)) {
        coalesced.entry(*seq).or_default().insert(&call.func);
    }
    let is_cut = |&&(at, seq): &&(u32, u64)| {
        let func = calls.get(&at).and_then(|calls| Some(&*calls.get(&seq)?.func));
        let is_longer = |other: &&str, func: &str| {
            other.strip_suffix(func).is_some_and(|before| before.ends_with('+'))
        };
        let all = coalesced.get(&seq);
        func.zip(all).is_some_and(|(func, all)| all.iter().any(|other| is_longer(other, func)))
    };
    let cut: Vec<(u32, u64)> = oldest.iter().filter(is_cut).copied().collect();
    for (at, seq) in cut {
        calls.get_mut(&at).and_then(|calls| calls.remove(&seq));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, diagnose};
    use ncclscope_findings::FindingClass;

    #[test]
    fn the_size_of_an_operation_is_that_of_the_larger_side() {
        let bytes = |datatype: &str| {
            let entry = serde_json::json!({"input_sizes": [[2, 3]], "output_sizes": [[4, 2, 3]],
                "input_dtypes": [datatype]});
            call("nccl:all_gather", &entry).bytes
        };
        assert_eq!(["BFloat16", "Float8_e5m2", "Long"].map(bytes), [48, 24, 192].map(Some));
        assert_eq!(bytes("QInt8"), None);
        assert_eq!(call("nccl:barrier", &serde_json::json!({"input_dtypes": ["Int"]})).bytes, None);
    }

    #[test]
    fn groups_larger_than_there_are_make_no_job() {
        let added = |ranks: usize, groups: usize| {
            let list: Vec<usize> = (0..ranks).collect();
            let group = serde_json::json!({"name": "g", "ranks": format!("{list:?}")});
            let groups: serde_json::Map<String, Value> = (0..groups)
                .map(|n| {
                    let mut group = group.clone();
                    group["name"] = n.to_string().into();
                    (n.to_string(), group)
                })
                .collect();
            let dump = serde_json::json!({"version": "2", "entries": [], "pg_config": groups});
            let mut dumps = Dumps::default();
            dumps.add(Path::new("dump_0"), dump).map(|()| dumps.job().processes.len())
        };
        assert_eq!(added(300, 1), Ok(300));
        let error = "process group 0 has 300000 ranks: 262144 is the most";
        assert_eq!(added(300_000, 1), Err(error.into()));
        let error = "its groups have 1200000 members: 1048576 is the most";
        assert_eq!(added(200_000, 6), Err(error.into()));
    }

    /// The diagnosis of two ranks that wait in call 6. Rank 0 recorded the whole coalesced call 5;
    /// of rank 1's entries, with these functions in call 5, the first has this `record_id`.
    fn of_two_rings(first: u64, functions: &[&str]) -> Vec<FindingClass> {
        let dump = |first: u64, functions: &[&str]| {
            let five = functions.iter().map(|&function| (5, function, "completed"));
            let all = five.chain([(6, "all_reduce", "started")]).zip(first..);
            let entry = |((seq, function, state), record): ((u64, &str, &str), u64)| {
                serde_json::json!({"record_id": record, "pg_id": 0, "process_group": ["0", "tp"],
                    "collective_seq_id": seq, "profiling_name": format!("nccl:{function}"),
                    "state": state, "input_sizes": [[4]], "input_dtypes": ["Float"]})
            };
            let entries: Vec<Value> = all.map(entry).collect();
            serde_json::json!({"version": "2.9", "entries": entries,
                "pg_config": {"0": {"name": "0", "desc": "tp", "ranks": "[0, 1]"}},
                "pg_status": {"0": {"last_enqueued_collective": 6, "last_started_collective": 6,
                    "last_completed_collective": 5}}})
        };
        let mut dumps = Dumps::default();
        dumps.add(Path::new("_dump_0"), dump(0, &["broadcast", "gather", "scatter"])).unwrap();
        dumps.add(Path::new("_dump_1"), dump(first, functions)).unwrap();
        let found = diagnose(&dumps.job(), &Options::default()).findings;
        found.into_iter().map(|verdict| verdict.class).collect()
    }

    #[test]
    fn a_coalesced_call_that_the_ring_has_cut_is_no_other_call() {
        let mismatch = [FindingClass::CallMismatch];
        for kept in [&["scatter"][..], &["gather", "scatter"]] {
            assert_ne!(of_two_rings(70, kept), mismatch, "{kept:?}");
            assert_eq!(of_two_rings(0, kept), mismatch, "{kept:?}: there were no others");
        }
        assert_eq!(of_two_rings(70, &["scatter", "gather"]), mismatch);
        assert_eq!(of_two_rings(70, &["reduce_scatter"]), mismatch);
    }
}
