// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors (`*.vectors`): jobs of which only the counters are known.

use crate::job::{Communicator, InFlightOp, Job, Process, ProcessStatus, Vector};
use ncclscope_findings::rank::Transfer;
use ncclscope_trace::progress::progress_flags as partial;
use ncclscope_trace::vectors::{self, Edge, vector_flags};
use std::collections::HashMap;
use std::path::PathBuf;

/// The job that the tables describe.
///
/// # Errors
/// One sentence, if a table cannot be read.
pub fn job(paths: &[PathBuf]) -> Result<Job, String> {
    let mut all = Vec::new();
    for path in paths {
        let bytes = super::load(path);
        let read = bytes.and_then(|bytes| vectors::read(&bytes).map_err(|e| e.to_string()));
        all.append(&mut read.map_err(|e| format!("cannot read {}: {e}", path.display()))?);
    }
    Ok(build(&all))
}

/// The job of these vectors.
#[must_use]
pub fn build(all: &[vectors::Vector]) -> Job {
    let mut job = Job { source: "vectors".into(), ..Job::default() };
    let mut positions: HashMap<u64, usize> = HashMap::new();
    let mut sorted: Vec<u32> = all.iter().map(|vector| vector.process).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let known = |rank: u32| Process { rank: Some(rank), ..Process::default() };
    job.processes = sorted.iter().map(|&rank| known(rank)).collect();
    for vector in all {
        let process = sorted.binary_search(&vector.process).unwrap_or(0);
        if vector.flags & vector_flags::SILENT != 0 {
            job.processes[process].status = ProcessStatus::Dead;
        }
        let at = *positions.entry(vector.comm).or_insert_with(|| {
            job.comms.push(Communicator {
                name: format!("{:#x}", vector.comm),
                nranks: vector.nranks,
                ..Communicator::default()
            });
            job.comms.len() - 1
        });
        add(&mut job.comms[at], vector, u32::try_from(process).unwrap_or(u32::MAX));
    }
    let _ = super::assemble::add_silent(&mut job);
    job
}

fn add(comm: &mut Communicator, vector: &vectors::Vector, process: u32) {
    let has = |flag: u8| vector.flags & u32::from(flag) != 0;
    let at = u32::try_from(comm.vectors.len()).unwrap_or(u32::MAX);
    let age = (vector.age_ms != 0).then(|| u64::from(vector.age_ms) * 1_000_000);
    comm.vectors.push(Vector {
        process,
        rank: vector.rank,
        api: u64::from(if has(partial::NO_API) { vector.enqueued } else { vector.api }),
        enqueued: u64::from(vector.enqueued),
        started: (!has(partial::NO_KERNEL)).then_some(u64::from(vector.started)),
        done: u64::from(vector.done),
        age_ns: age,
        born_ns: age,
        is_blind: has(partial::NO_END),
    });
    if vector.hash_at != 0 {
        comm.hashes.push((at, u64::from(vector.hash_at), vector.hash));
    }
    if vector.peer >= 0 {
        let Edge { channel, is_send, reached } = Edge::of(vector.edge);
        let transfer = Transfer {
            is_send,
            channel,
            peer: vector.peer,
            reached,
            still_ns: u64::from(vector.age_ms) * 1_000_000,
            ..Transfer::default()
        };
        comm.flights.insert(at, InFlightOp { transfers: vec![transfer], ..InFlightOp::default() });
    }
}
