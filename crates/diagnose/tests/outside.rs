// SPDX-License-Identifier: Apache-2.0
//! A job in which no rank is in an operation.

use ncclscope_diagnose::job::{Communicator, Job, Process, ProcessStatus, Vector};
use ncclscope_diagnose::{Diagnosis, Options, diagnose};

const MINUTE: Option<u64> = Some(60_000_000_000);

fn job() -> Job {
    let process = |rank| Process { rank: Some(rank), ..Process::default() };
    Job { processes: (0..2).map(process).collect(), ..Job::default() }
}

/// A communicator of both processes, which have completed so many operations.
fn comm(name: &str, done: [u64; 2]) -> Communicator {
    let vector = |(done, at): (u64, u32)| {
        let base = Vector { process: at, rank: at, enqueued: done, ..Vector::default() };
        Vector { api: done, done, ..base }
    };
    let vectors = done.into_iter().zip(0..).map(vector).collect();
    Communicator { name: name.into(), nranks: 2, vectors, ..Communicator::default() }
}

fn run(job: &Job) -> Diagnosis {
    diagnose(job, &Options::default())
}

#[test]
fn a_job_outside_nccl_gets_no_verdict() {
    let mut job = job();
    job.comms.push(comm("a", [5, 5]));
    for process in &mut job.processes {
        (process.idle_ns, process.still_ns) = (MINUTE, MINUTE);
    }
    let found = run(&job);
    assert!(found.findings.is_empty() && found.notes[0].starts_with("OUTSIDE_NCCL"), "{found:#?}");
    assert_eq!(found.standstill.map(|it| it.still_ns), MINUTE);
    // Where recording is off, or only a sample is recorded, ranks may wait in what is not recorded.
    let hidden = |change: fn(&mut Process)| {
        let mut job = job.clone();
        job.processes.iter_mut().for_each(change);
        let found = run(&job);
        assert!(found.findings.is_empty(), "{found:#?}");
        let text = found.hidden.map(|hidden| hidden.text);
        assert_eq!(found.notes.iter().any(|note| note.starts_with("OUTSIDE")), text.is_none());
        text.unwrap_or_default()
    };
    let off = hidden(|process| process.off_ns = MINUTE.filter(|_| process.rank == Some(1)));
    assert!(off.starts_with("recording has been off on 1 of 2 ranks for up to 60.0 s"), "{off}");
    let sampled = hidden(|process| process.is_sampled = true);
    assert!(sampled.contains("no rank has called NCCL for 60.0 s"), "{sampled}");
    assert_eq!(hidden(|process| process.off_ns = Some(29_000_000_000)), "", "below the limit");
    let mut over = job.clone();
    over.processes.iter_mut().for_each(|one| one.status = ProcessStatus::Ended);
    assert_eq!(run(&over).standstill, None);
    // No rank waits for a rank that is ahead and has finished.
    job.comms.push(comm("b", [5, 4]));
    assert!(run(&job).findings.is_empty());
}
