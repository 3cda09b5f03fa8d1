// SPDX-License-Identifier: Apache-2.0
//! Small jobs, made by hand.

use ncclscope_diagnose::job::{Communicator, Job, Process, Vector};

/// The age of what is in flight.
pub(crate) const MINUTE: Option<u64> = Some(60_000_000_000);

/// A job of so many processes.
pub(crate) fn job(ranks: u32) -> Job {
    let process = |rank| Process { rank: Some(rank), ..Process::default() };
    Job { processes: (0..ranks).map(process).collect(), ..Job::default() }
}

/// A communicator of processes with (enqueued, kernel started, done).
pub(crate) fn comm(name: &str, members: &[(u32, u64, Option<u64>, u64)]) -> Communicator {
    let vector =
        |(&(process, enqueued, started, done), rank): (&(u32, u64, Option<u64>, u64), u32)| {
            let age_ns = MINUTE.filter(|_| done < enqueued);
            let base = Vector { process, rank, enqueued, started, done, ..Vector::default() };
            Vector { api: enqueued, age_ns, born_ns: age_ns, ..base }
        };
    Communicator {
        name: name.into(),
        nranks: u32::try_from(members.len()).unwrap(),
        vectors: members.iter().zip(0..).map(vector).collect(),
        ..Communicator::default()
    }
}
