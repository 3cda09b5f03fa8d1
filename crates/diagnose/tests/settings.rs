// SPDX-License-Identifier: Apache-2.0
//! Ranks that run an operation otherwise than the others (H2c). The numbers are those that real
//! NCCL recorded.

use ncclscope_diagnose::job::{Communicator, InFlightOp, Process, Settings, Vector};
use ncclscope_diagnose::{Job, Options, diagnose};
use ncclscope_findings::rank::Transfer;
use ncclscope_findings::{Confidence, Finding, FindingClass};
use std::collections::BTreeMap;
use std::sync::Arc;

const AGE: u64 = 60_000_000_000;

fn settings(algorithm: &str, protocol: &str, channels: u16) -> Settings {
    let (algorithm, protocol) = (algorithm.to_owned(), protocol.to_owned());
    Settings { algorithm, protocol, channels: Some(channels) }
}

/// A job of ranks on hosts of their own, in operation 5 of one communicator, with these settings of
/// operations 4 and 5.
fn job(all: &[[Settings; 2]]) -> Job {
    let (mut processes, mut comm) = (Vec::new(), Communicator::default());
    for (own, rank) in all.iter().zip(0u32..) {
        let environment: BTreeMap<String, String> =
            [("nccl".to_owned(), "2.28.9".to_owned())].into();
        processes.push(Process {
            rank: Some(rank),
            host: Some(format!("node{rank}")),
            heard_ns: Some(2 * AGE),
            environment: Arc::new(environment),
            ..Process::default()
        });
        comm.vectors.push(Vector {
            process: rank,
            rank,
            api: 5,
            enqueued: 5,
            started: Some(5),
            done: 4,
            age_ns: Some(AGE),
            born_ns: Some(AGE),
            changed_ns: Some(AGE),
            ..Vector::default()
        });
        comm.settings.insert(rank, Arc::new((4..).zip(own.iter().cloned()).collect()));
    }
    comm.name = "a".into();
    comm.nranks = u32::try_from(all.len()).unwrap();
    Job { processes, comms: vec![comm], end_ns: Some(2 * AGE), ..Job::default() }
}

fn ring() -> Settings {
    settings("RING", "SIMPLE", 2)
}

fn set(job: &mut Job, process: usize, key: &str, value: &str) {
    let environment = Arc::make_mut(&mut job.processes[process].environment);
    environment.insert(key.to_owned(), value.to_owned());
}

fn transfers(job: &mut Job, rank: u32, transfers: &[Transfer]) {
    let flight = InFlightOp { transfers: transfers.to_vec(), ..InFlightOp::default() };
    job.comms[0].flights.insert(rank, flight);
}

fn transfer(is_send: bool, peer: i32, steps: u32, done: u32) -> Transfer {
    let still_ns = AGE;
    let base = Transfer { is_send, peer, steps, done, still_ns, ..Transfer::default() };
    let (posted, reached) = (done + 4, Some(1));
    Transfer { posted, ready: done, transmitted: done, reached, ..base }
}

#[track_caller]
fn only(job: &Job) -> Finding {
    let mut found = diagnose(job, &Options::default()).findings;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

fn texts(verdict: &Finding) -> Vec<&str> {
    verdict.evidence.iter().map(|line| &*line.text).collect()
}

/// `NCCL_ALGO=Tree` on rank 1. Its transfers also look like a network that loses data, which they
/// do not show then.
#[test]
fn the_rank_with_another_algorithm_and_the_variable_are_named() {
    let tree = settings("TREE", "SIMPLE", 2);
    let mut job = job(&[[ring(), ring()], [tree.clone(), tree], [ring(), ring()]]);
    set(&mut job, 1, "NCCL_ALGO", "Tree");
    transfers(&mut job, 0, &[transfer(true, 1, 8, 8)]);
    transfers(&mut job, 1, &[transfer(false, 0, 8, 4)]);
    let verdict = only(&job);
    let of = (verdict.class, verdict.confidence(), &verdict.root_ranks[..]);
    assert_eq!(of, (FindingClass::SettingsMismatch, Confidence::Confirmed, &[1][..]));
    let expected = [
        "rank 1 runs operation 5 as TREE SIMPLE on 2 channels",
        "ranks 0, 2 run operation 5 as RING SIMPLE on 2 channels",
        "NCCL_ALGO: Tree on rank 1, not set on ranks 0, 2",
    ];
    assert_eq!(texts(&verdict), expected);
    assert!(verdict.title().ends_with(expected[2]), "{}", verdict.title());
    assert_eq!((verdict.victims, verdict.age_ns), (2, Some(AGE)));
}

#[test]
fn where_nothing_recorded_differs_the_verdict_says_what_to_compare() {
    let low = settings("RING", "LL", 2);
    let mut job = job(&[[ring(), ring()], [ring(), low], [ring(), ring()]]);
    // A variable of one of the others, too, explains nothing.
    (1..3).for_each(|at| set(&mut job, at, "NCCL_DEBUG", "INFO"));
    let verdict = only(&job);
    assert!(texts(&verdict)[2].contains("compare nccl.conf, tuner plugins, CPUs and GPUs"));
    let many = diagnose(&job, &Options::default());
    assert_eq!(many.findings[0].root_ranks, [1]);
}

/// NVIDIA/nccl 1136 (CPUs of two vendors) and 1184 (A100 with H100).
#[test]
fn the_processor_and_the_gpu_that_only_the_odd_rank_has_are_named() {
    let low = settings("TREE", "SIMPLE", 2);
    let mut job = job(&[[ring(), ring()], [ring(), low], [ring(), ring()]]);
    for (at, cpu, gpu) in [(0, "GenuineIntel", "A"), (1, "AuthenticAMD", "A"), (2, "x", "A")] {
        set(&mut job, at, "cpu", cpu);
        set(&mut job, at, "device_name", gpu);
    }
    let verdict = only(&job);
    let says = "the processor: AuthenticAMD on rank 1, GenuineIntel or x on ranks 0, 2";
    assert!(verdict.title().ends_with(says) && texts(&verdict)[2] == says, "{verdict:#?}");
    set(&mut job, 1, "device_name", "B");
    let verdict = only(&job);
    assert_eq!(texts(&verdict)[3], "the GPU: B on rank 1, A on ranks 0, 2");
}

/// `NCCL_BUFFSIZE` on rank 1: everything else is equal, and the steps are smaller there.
#[test]
fn the_rank_with_other_steps_is_named() {
    let mut job = job(&[(); 3].map(|()| [ring(), ring()]));
    set(&mut job, 1, "NCCL_BUFFSIZE", "65536");
    transfers(&mut job, 0, &[transfer(false, 2, 8, 4), transfer(true, 1, 8, 6)]);
    transfers(&mut job, 1, &[transfer(false, 0, 104, 0), transfer(true, 2, 104, 2)]);
    transfers(&mut job, 2, &[transfer(false, 1, 8, 2), transfer(true, 0, 8, 4)]);
    let verdict = only(&job);
    assert_eq!(
        (verdict.class, &verdict.root_ranks[..]),
        (FindingClass::SettingsMismatch, &[1][..])
    );
    let texts = texts(&verdict);
    assert!(texts[0].contains("channel 0: 8 steps to send, and 104 to receive"), "{texts:#?}");
    assert!(texts.contains(&"NCCL_BUFFSIZE: 65536 on rank 1, not set on ranks 0, 2"), "{texts:#?}");
    // With equal steps nothing differs.
    transfers(&mut job, 1, &[transfer(false, 0, 8, 0), transfer(true, 2, 8, 2)]);
    let found = diagnose(&job, &Options::default()).findings;
    assert!(found.iter().all(|it| it.class != FindingClass::SettingsMismatch), "{found:#?}");
}

#[test]
fn of_two_ranks_neither_counts_as_right() {
    let mut job = job(&[[ring(), ring()], [ring(), settings("RING", "LL128", 2)]]);
    set(&mut job, 1, "nccl", "2.27.7");
    let verdict = only(&job);
    assert_eq!(verdict.root_ranks, [0, 1]);
    let text = "NCCL's version: 2.28.9 on rank 0, 2.27.7 on rank 1";
    assert!(texts(&verdict).contains(&text), "{verdict:#?}");
}

/// Nothing waits: NCCL may use another number of channels for the same data, but not another
/// algorithm or protocol.
#[test]
fn of_operations_that_are_over_only_algorithm_and_protocol_count() {
    let over = |other: Settings| {
        let mut job = job(&[[ring(), ring()], [other, ring()], [ring(), ring()]]);
        for vector in &mut job.comms[0].vectors {
            (vector.done, vector.age_ns, vector.born_ns) = (5, None, None);
        }
        diagnose(&job, &Options::default()).findings
    };
    assert_eq!(over(settings("RING", "SIMPLE", 1)), []);
    let found = over(settings("RING", "LL", 2));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].op.as_ref().unwrap().number, found[0].victims), (Some(4), 0));
}

/// Another operation differs than the one that hangs: it explains nothing of that.
#[test]
fn an_earlier_difference_explains_no_later_hang() {
    let mut job = job(&[[ring(), ring()], [settings("RING", "LL", 2), ring()], [ring(), ring()]]);
    job.comms[0].vectors[2].started = Some(4);
    let found = diagnose(&job, &Options::default()).findings;
    let classes: Vec<FindingClass> = found.iter().map(|it| it.class).collect();
    assert_eq!(classes, [FindingClass::SettingsMismatch, FindingClass::KernelNotStarted]);
}
