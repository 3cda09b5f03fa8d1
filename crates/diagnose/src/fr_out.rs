// SPDX-License-Identifier: Apache-2.0
/*!
The collectives in flight in the format of PyTorch's Flight Recorder, so that PyTorch's tools can
read them. Sends and receives are left out: the format has no count of those that are over, without
which a reader cannot say who waits for whom.

[`dumps`] are what PyTorch writes to `_dump_RANK`. PyTorch's `fr_trace` reads them only as pickles,
which [`pickle`] writes; [`write_all`] writes one JSON value of all ranks, for other tools.
*/

use crate::job::{CommKind, Communicator, Job, ProcessStatus, Vector};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::ops::RangeInclusive;

/// Maximum number of operations in flight that are written for a rank in a communicator, the oldest
/// first.
const MAX_ENTRIES: u64 = 4096;

/// Maximum total size of all dumps, bytes.
pub const MAX_BYTES: usize = 1 << 30;
/// Approximate size of an entry, bytes.
const ENTRY_BYTES: usize = 600;

/// The data that the dumps of all ranks share.
struct Dumper<'a> {
    /// The process groups, by number.
    groups: Vec<(&'a Communicator, Value)>,
    /// The groups of each process: (number of the group, its position in the group).
    places: HashMap<u32, Vec<(usize, usize)>>,
}

/// The dump of each rank, up to [`MAX_BYTES`] in total. Each dump contains the ranks of its groups,
/// so that the total grows with the square of the job's size.
pub fn dumps(job: &Job) -> impl Iterator<Item = (u32, Value)> {
    let dumper = Dumper::new(job);
    let mut left = MAX_BYTES;
    with_input(job).map_while(move |process| {
        left = left.checked_sub(dumper.bytes(process))?;
        Some((job.rank(process), dumper.dump(process)))
    })
}

/// Number of ranks with input, each of which has a dump.
#[must_use]
pub fn count(job: &Job) -> usize {
    with_input(job).count()
}

fn with_input(job: &Job) -> impl Iterator<Item = u32> {
    let all = job.processes.iter().zip(0u32..);
    all.filter(|(one, _)| one.status != ProcessStatus::Silent).map(|(_, at)| at)
}

/// Writes the dumps as one JSON value, by rank.
///
/// # Errors
/// The errors of `out`.
pub fn write_all(job: &Job, out: &mut impl Write) -> io::Result<()> {
    let mut separator = '{';
    for (rank, dump) in dumps(job) {
        write!(out, "{separator}\"{rank}\":{dump}")?;
        separator = ',';
    }
    write!(out, "{}}}", if separator == '{' { "{" } else { "" })
}

/// The value as a pickle (protocol 2) of plain data.
#[must_use]
pub fn pickle(value: &Value) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(value, &mut out);
    out.push(b'.');
    out
}

fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(is) => out.push(if *is { 0x88 } else { 0x89 }),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => {
                out.extend([0x8a, 8]);
                out.extend(whole.to_le_bytes());
            }
            (None, float) => {
                out.push(b'G');
                out.extend(float.unwrap_or(f64::NAN).to_be_bytes());
            }
        },
        Value::String(text) => put_text(text, out),
        Value::Array(items) => {
            out.extend(b"](");
            items.iter().for_each(|item| put(item, out));
            out.push(b'e');
        }
        Value::Object(map) => {
            out.extend(b"}(");
            for (key, value) in map {
                put_text(key, out);
                put(value, out);
            }
            out.push(b'u');
        }
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'X');
    out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(text.as_bytes());
}

impl<'a> Dumper<'a> {
    fn new(job: &'a Job) -> Dumper<'a> {
        let comms = job.comms.iter().filter(|comm| comm.kind == CommKind::Collectives);
        let (mut groups, mut places) = (Vec::new(), HashMap::<u32, Vec<(usize, usize)>>::new());
        for (id, comm) in comms.enumerate() {
            let mut seen = HashSet::new();
            for (at, vector) in comm.vectors.iter().enumerate() {
                if seen.insert(vector.process) {
                    places.entry(vector.process).or_default().push((id, at));
                }
            }
            groups.push((comm, config(job, id, comm)));
        }
        Dumper { groups, places }
    }

    /// Approximate size of a process's dump, bytes.
    fn bytes(&self, process: u32) -> usize {
        let groups = self.places.get(&process).into_iter().flatten();
        let of = |&(id, at): &(usize, usize)| {
            let (comm, group) = self.groups.get(id)?;
            let entries = numbers(comm.vectors.get(at)?).count();
            Some(group["ranks"].as_str().map_or(0, str::len) + entries * ENTRY_BYTES)
        };
        groups.filter_map(of).sum()
    }

    fn dump(&self, process: u32) -> Value {
        let (mut config, mut status, mut entries) = (Map::new(), Map::new(), Vec::new());
        for &(id, at) in self.places.get(&process).into_iter().flatten() {
            let Some((comm, group)) = self.groups.get(id) else { continue };
            let vector = &comm.vectors[at];
            config.insert(id.to_string(), group.clone());
            let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            status.insert(
                id.to_string(),
                json!({
                    "last_enqueued_collective": signed(vector.enqueued),
                    "last_started_collective": vector.started.map_or(-1, signed),
                    "last_completed_collective": signed(vector.done),
                }),
            );
            for index in numbers(vector) {
                entries.push(entry(comm, at, vector, (id, desc(comm)), index));
            }
        }
        json!({
            "version": "2.9",
            "nccl_version": "",
            "pg_config": config,
            "pg_status": status,
            "entries": entries,
        })
    }
}

/// The range of operations in flight that are written.
fn numbers(vector: &Vector) -> RangeInclusive<u64> {
    let last = vector.enqueued.min(vector.done.saturating_add(MAX_ENTRIES));
    vector.done.saturating_add(1)..=last
}

fn desc(comm: &Communicator) -> &str {
    comm.role.as_deref().unwrap_or(&comm.name)
}

/// A group in the form of `pg_config`.
fn config(job: &Job, id: usize, comm: &Communicator) -> Value {
    let ranks = format!("{:?}", members(job, comm));
    json!({"name": id.to_string(), "desc": desc(comm), "ranks": ranks})
}

fn members(job: &Job, comm: &Communicator) -> Vec<u32> {
    let known = comm.vectors.iter().map(|vector| vector.process);
    let mut ranks: Vec<u32> =
        known.chain(comm.silent.iter().copied()).filter_map(|at| job.known_rank(at)).collect();
    ranks.sort_unstable();
    ranks
}

/// PyTorch's name of an NCCL function.
fn torch_name(func: &str) -> &str {
    match func {
        "AllReduce" => "all_reduce",
        "AllGather" => "_all_gather_base",
        "ReduceScatter" => "_reduce_scatter_base",
        "Broadcast" => "broadcast",
        "Reduce" => "reduce",
        "" => "unknown",
        other => other,
    }
}

fn entry(
    comm: &Communicator,
    at: usize,
    vector: &Vector,
    (id, desc): (usize, &str),
    index: u64,
) -> Value {
    let member = u32::try_from(at).unwrap_or(u32::MAX);
    let calls = comm.calls.get(&member);
    let flight = comm.flights.get(&member).filter(|_| index == vector.front());
    let call = flight.map(|flight| &flight.call).or_else(|| calls?.get(&index).map(|call| &**call));
    let call = call.cloned().unwrap_or_default();
    let has_started = vector.started.is_some_and(|started| started >= index);
    let sizes = call.count.map_or_else(|| json!([]), |count| json!([[count]]));
    let datatype = call.datatype.trim_start_matches("nccl").to_owned();
    json!({
        "record_id": index,
        "pg_id": id,
        "process_group": [id.to_string(), desc],
        "collective_seq_id": index,
        "p2p_seq_id": 0,
        "op_id": index,
        "profiling_name": format!("nccl:{}", torch_name(&call.func)),
        "time_created_ns": 0,
        "input_sizes": sizes,
        "input_dtypes": [datatype],
        "output_sizes": sizes,
        "output_dtypes": [datatype],
        "state": if has_started { "started" } else { "scheduled" },
        "time_discovered_started_ns": null,
        "time_discovered_completed_ns": null,
        "retired": false,
        "timeout_ms": 600_000,
        "is_p2p": false,
        "frames": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::pickle as reader;
    use crate::job::Process;

    fn job(ranks: u32, enqueued: u64) -> Job {
        let vector = |rank| Vector { process: rank, rank, enqueued, ..Vector::default() };
        let comm = Communicator { vectors: (0..ranks).map(vector).collect(), ..Default::default() };
        let processes = vec![Process::default(); ranks as usize];
        Job { processes, comms: vec![comm], ..Job::default() }
    }

    #[test]
    fn forged_counts_and_large_jobs_have_an_end() {
        let forged = job(2, u64::MAX);
        let entries = |(_, dump): (u32, Value)| dump["entries"].as_array().map(Vec::len);
        assert!(dumps(&forged).map(entries).eq([Some(4096), Some(4096)]));
        let mut out = Vec::new();
        write_all(&forged, &mut out).unwrap();
        let all: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(all["1"]["pg_config"]["0"]["ranks"], "[0, 1]");
        out.clear();
        write_all(&Job::default(), &mut out).unwrap();
        assert_eq!(out, b"{}");
        // The list of ranks of the group takes 900 KiB in each dump.
        let large = job(131_072, 1);
        assert_eq!(count(&large), 131_072);
        let dumper = Dumper::new(&large);
        let bytes = |process| dumper.bytes(process);
        assert!((0..2000).map(bytes).sum::<usize>() > MAX_BYTES);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let value = json!({"a": [1, -2, 1.5, null, true, "x"], "b": {"c": u32::MAX}, "d": []});
        assert_eq!(reader::read(&pickle(&value)), Ok(value));
    }
}
