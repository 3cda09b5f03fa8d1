// SPDX-License-Identifier: Apache-2.0
//! Operations that show no end.

use ncclscope_diagnose::job::{Communicator, Job, NoEnd, Process, ProcessStatus, Vector};
use ncclscope_diagnose::{HiddenWhy, Options, diagnose};

const MINUTE: Option<u64> = Some(60_000_000_000);

/// Inside a node, without kernel events and CUDA events, NCCL reports only that an operation was
/// enqueued.
#[test]
fn an_operation_without_a_visible_end_is_never_outside_nccl() {
    let still = Process { idle_ns: MINUTE, still_ns: MINUTE, ..Process::default() };
    let process = |rank| Process { rank: Some(rank), ..still.clone() };
    let vector = |process: u32| Vector {
        process,
        rank: process,
        api: 5,
        enqueued: 5,
        done: 5,
        ..Vector::default()
    };
    let vectors = vec![vector(0), vector(1)];
    let comm = Communicator { name: "a".into(), nranks: 2, vectors, ..Communicator::default() };
    let processes = vec![process(0), process(1)];
    let mut job = Job { processes, comms: vec![comm], ..Job::default() };
    let run = |job: &Job| diagnose(job, &Options::default());
    let why = |change: &dyn Fn(&mut Job)| {
        let mut job = job.clone();
        job.comms[0].vectors[1].is_blind = true;
        change(&mut job);
        let found = run(&job);
        let notes = found.notes.iter().any(|note| note.starts_with("OUTSIDE"));
        assert!(found.findings.is_empty() && !notes, "{found:#?}");
        found.hidden.map(|hidden| (hidden.why, hidden.text))
    };
    let no_end = |no_end| move |job: &mut Job| job.processes[1].no_end = no_end;
    for reason in [NoEnd::Unknown, NoEnd::EventsOff, NoEnd::OldNccl, NoEnd::Unmeasured] {
        let (kind, text) = why(&no_end(reason)).expect("it may wait");
        assert_eq!(kind, HiddenWhy::NoEnd(reason));
        assert!(
            text.starts_with("NOT VISIBLE: ") && text.contains("of 1 of 2 ranks shows no end"),
            "{text}"
        );
        assert!(text.contains("60.0 s") && text.contains(reason.text()), "{text}");
    }
    let kind = |change: &dyn Fn(&mut Job)| why(change).map(|(kind, _)| kind);
    let captured = kind(&|job| job.comms[0].vectors[1].is_captured = true);
    assert_eq!(captured, Some(HiddenWhy::NoEnd(NoEnd::Captured)));
    let early = kind(&|job| job.comms[0].vectors[1].started = Some(5));
    assert_eq!(early, Some(HiddenWhy::NoEnd(NoEnd::EarlyStop)));
    let killed = kind(&|job| job.processes[1].status = ProcessStatus::Dead);
    assert_eq!(killed, Some(HiddenWhy::NoEnd(NoEnd::Unknown)), "it may have waited");
    assert_eq!(kind(&|job| job.processes[1].idle_ns = Some(1_000_000_000)), None, "it goes on");
    job.comms[0].vectors[1].is_blind = true;
    job.processes[1].status = ProcessStatus::Ended;
    assert!(run(&job).notes.iter().any(|note| note.starts_with("OUTSIDE")), "it ended in order");
}
