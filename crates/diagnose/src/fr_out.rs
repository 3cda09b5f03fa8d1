// SPDX-License-Identifier: Apache-2.0
/*!
The operations in flight in the format of PyTorch's Flight Recorder, so that PyTorch's tools can
read them.

[`dumps`] are what PyTorch writes to `_dump_RANK`. PyTorch's `fr_trace` reads them only as pickles,
which [`pickle`] writes; [`all`] is one JSON value of all ranks, for other tools.
*/

use crate::job::{CommKind, Communicator, Job, ProcessStatus, Vector};
use serde_json::{Map, Value, json};

/// Each rank's dump.
pub fn dumps(job: &Job) -> impl Iterator<Item = (u32, Value)> {
    let seen =
        job.processes.iter().zip(0u32..).filter(|(one, _)| one.status != ProcessStatus::Silent);
    seen.map(|(_, at)| (job.rank(at), dump(job, at)))
}

/// All ranks' dumps in one value, by rank.
#[must_use]
pub fn all(job: &Job) -> Value {
    Value::Object(dumps(job).map(|(rank, dump)| (rank.to_string(), dump)).collect())
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

fn dump(job: &Job, process: u32) -> Value {
    let (mut config, mut status, mut entries) = (Map::new(), Map::new(), Vec::new());
    let comms = job.comms.iter().filter(|comm| comm.kind == CommKind::Collectives);
    for (id, comm) in comms.enumerate() {
        let Some(at) = comm.vectors.iter().position(|v| v.process == process) else { continue };
        let vector = &comm.vectors[at];
        let desc = comm.role.clone().unwrap_or_else(|| comm.name.clone());
        let ranks = format!("{:?}", members(job, comm));
        config
            .insert(id.to_string(), json!({"name": id.to_string(), "desc": desc, "ranks": ranks}));
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        status.insert(
            id.to_string(),
            json!({
                "last_enqueued_collective": signed(vector.enqueued),
                "last_started_collective": vector.started.map_or(-1, signed),
                "last_completed_collective": signed(vector.done),
            }),
        );
        for index in vector.done + 1..=vector.enqueued {
            entries.push(entry(comm, at, vector, (id, &desc), index));
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

fn members(job: &Job, comm: &Communicator) -> Vec<u32> {
    let known = comm.vectors.iter().map(|vector| vector.process);
    let mut ranks: Vec<u32> =
        known.chain(comm.silent.iter().copied()).map(|process| job.rank(process)).collect();
    ranks.sort_unstable();
    ranks
}

/// Names as PyTorch gives them to NCCL's functions.
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
    let call = flight.map(|flight| &flight.call).or_else(|| calls?.get(&index));
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

    #[test]
    fn what_is_written_can_be_read() {
        let value = json!({"a": [1, -2, 1.5, null, true, "x"], "b": {"c": u32::MAX}, "d": []});
        assert_eq!(reader::read(&pickle(&value)), Ok(value));
    }
}
