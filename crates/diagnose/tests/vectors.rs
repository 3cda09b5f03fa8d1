// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors with transfers and threads: the verdicts are those of recordings.

use ncclscope_diagnose::input::vectors::build;
use ncclscope_diagnose::{Options, diagnose};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_trace::EventKind;
use ncclscope_trace::vectors::{OpenTransfer, ProcessFacts, Table, ThreadFacts, Vector};

const SECOND: u64 = 1_000_000_000;
const STILL_MS: u32 = 60_000;
const STEPS: u32 = 8;

/// Three ranks on hosts of their own, each in operation 5, whose kernels run. Their proxy threads
/// poll.
fn ring(transfers: Vec<OpenTransfer>) -> Table {
    let vector = |rank: u32| Vector {
        comm: 7,
        process: rank,
        rank,
        nranks: 3,
        api: 5,
        enqueued: 5,
        started: 5,
        done: 4,
        age_ms: STILL_MS,
        born_ms: STILL_MS,
        changed_ms: STILL_MS,
        job: 1,
        origin: u64::from(rank) + 1,
        ..Vector::default()
    };
    let thread = ThreadFacts {
        tid: 9,
        state: b'R',
        kinds: EventKind::ProxyOp.bit(),
        span_ns: 10 * SECOND,
        cpu_ns: 9 * SECOND,
        ..ThreadFacts::default()
    };
    let facts = |rank: u32| ProcessFacts {
        job: 1,
        process: rank,
        origin: u64::from(rank) + 1,
        pid: 100 + rank,
        host: format!("node-{rank}"),
        heard_ns: 1_000 * SECOND,
        kinds: EventKind::ProxyOp.bit(),
        threads: vec![thread.clone()],
        ..ProcessFacts::default()
    };
    Table {
        vectors: (0..3).map(vector).collect(),
        transfers,
        processes: (0..3).map(facts).collect(),
        ..Table::default()
    }
}

fn transfer(vector: u32, is_send: bool, peer: i32, reached: Option<u8>) -> OpenTransfer {
    OpenTransfer {
        vector,
        peer,
        is_send,
        reached,
        steps: STEPS,
        posted: 5,
        ready: 3,
        transmitted: 3,
        done: 3,
        still_ms: STILL_MS,
        ..OpenTransfer::default()
    }
}

fn found(table: &Table) -> Vec<(FindingClass, Confidence, Vec<u32>)> {
    let options = Options::default();
    let found = diagnose(&build(table, options.hang), &options).findings;
    found.into_iter().map(|it| (it.class, it.confidence(), it.root_ranks)).collect()
}

/// The proxy thread is what sees kernels start: where it does not run, that proves nothing.
#[test]
fn a_proxy_thread_that_does_not_run_explains_a_kernel_that_is_not_seen_to_start() {
    let sends = |rank: u32| transfer(rank, true, [1, 2, 0][rank as usize], Some(2));
    let mut table = ring((0..3).map(sends).collect());
    table.vectors[1].started = 4;
    let stopped = &mut table.processes[1].threads[0];
    (stopped.state, stopped.cpu_ns) = (b'T', 0);
    assert_eq!(found(&table), [(FindingClass::ProxyStalled, Confidence::Confirmed, vec![1])]);
    let mut runs = table.clone();
    runs.processes[1].threads[0].state = b'R';
    runs.processes[1].threads[0].cpu_ns = 9 * SECOND;
    assert_eq!(found(&runs), [(FindingClass::KernelNotStarted, Confidence::Confirmed, vec![1])]);
    table.processes[1].job = 2;
    assert_eq!(found(&table)[0].0, FindingClass::KernelNotStarted, "another process's thread");
}

/// The transfer that stands still for longest is one whose turn has not come.
#[test]
fn all_transfers_are_looked_at_and_not_one_without_a_step() {
    let later = OpenTransfer {
        posted: 0,
        ready: 0,
        transmitted: 0,
        done: 0,
        ..transfer(0, false, 2, None)
    };
    let mut all = vec![OpenTransfer { still_ms: 2 * STILL_MS, ..later }];
    let lost = OpenTransfer { ready: 5, transmitted: 5, ..transfer(0, true, 1, Some(3)) };
    all.extend([lost, transfer(1, false, 0, Some(1)), transfer(1, true, 2, Some(1))]);
    let expected = (FindingClass::NetworkStalled, Confidence::Confirmed, vec![0, 1]);
    assert_eq!(found(&ring(all)), [expected]);
}

/// The kernel of the sender's host took all steps, and they do not come.
#[test]
fn data_that_was_given_and_does_not_come_is_lost_on_its_path() {
    let given = OpenTransfer {
        posted: 6,
        ready: 6,
        transmitted: 6,
        done: 6,
        ..transfer(0, true, 1, Some(1))
    };
    let mut table = ring(vec![
        given,
        transfer(1, false, 0, Some(1)),
        transfer(1, true, 2, Some(1)),
        transfer(2, false, 1, Some(1)),
    ]);
    let lost = (FindingClass::NetworkStalled, Confidence::Confirmed, vec![0, 1]);
    assert_eq!(found(&table), std::slice::from_ref(&lost));
    let job = build(&table, Options::default().hang);
    let text = diagnose(&job, &Options::default()).findings[0].evidence[0].text.clone();
    assert!(text.contains("6 steps given to the network, 3 came, receives posted for 5"), "{text}");
    // Without a look at the receiver's proxy thread, that may be the cause.
    table.processes[1].threads.clear();
    assert_eq!(found(&table)[0].1, Confidence::Suspect);
    // When both ends were heard from is not known.
    table.processes.clear();
    assert_ne!(found(&table).first(), Some(&lost));
}

/// A table has neither calls nor channels of kernels, which a GPU that stands still may be due to.
#[test]
fn a_gpu_that_stands_still_is_a_suspect() {
    let waits = |rank: u32, from: i32| transfer(rank, false, from, Some(1));
    let table = ring(vec![
        waits(0, 2),
        transfer(1, true, 2, Some(1)),
        OpenTransfer { channel: 1, ..waits(1, 0) },
        waits(2, 1),
    ]);
    assert_eq!(found(&table), [(FindingClass::GpuNotProducing, Confidence::Suspect, vec![1])]);
}

/// The sends and receives of two ranks, on a communicator without collectives.
fn pair(sends: OpenTransfer, receives: Option<OpenTransfer>) -> Table {
    let is_open = receives.is_some();
    let mut table = ring([Some(sends), receives].into_iter().flatten().collect());
    for vector in &mut table.vectors {
        (vector.api, vector.enqueued, vector.started, vector.done) = (0, 0, 0, 0);
        (vector.p2p_enqueued, vector.p2p_done) = (4, 4);
    }
    table.vectors[0].p2p_done = 3;
    table.vectors[1].p2p_done = if is_open { 3 } else { 4 };
    table
}

#[test]
fn sends_and_receives_that_move_data_name_their_peers() {
    let lost = OpenTransfer { ready: 5, transmitted: 5, ..transfer(0, true, 1, Some(3)) };
    let receive = transfer(1, false, 0, Some(1));
    let expected = (FindingClass::NetworkStalled, Confidence::Confirmed, vec![0, 1]);
    assert_eq!(found(&pair(lost, Some(receive))), [expected]);
    // A receive whose data has come, of which the GPU took some, of a sender that is done.
    let arrived = OpenTransfer { ready: 5, transmitted: 5, ..transfer(0, false, 1, Some(3)) };
    let stands = (FindingClass::GpuNotConsuming, Confidence::Suspect, vec![0]);
    assert_eq!(found(&pair(arrived, None)), [stands]);
    // What a receive waits for is not known if the sender may have sent less.
    assert_eq!(found(&pair(transfer(0, false, 1, Some(1)), None)), []);
    // Nothing shows that a kernel runs.
    let posted = |it: OpenTransfer| OpenTransfer { ready: 0, transmitted: 0, done: 0, ..it };
    let both = pair(posted(transfer(0, true, 1, Some(1))), Some(posted(receive)));
    assert_eq!(found(&both), []);
}

/// The kernels of another communicator wait for those of this one.
#[test]
fn kernels_that_wait_for_their_turn_are_no_cause() {
    let lost = OpenTransfer { ready: 5, transmitted: 5, ..transfer(0, true, 1, Some(3)) };
    let mut table = ring(vec![lost, transfer(1, false, 0, Some(1))]);
    let other: Vec<Vector> = table.vectors.iter().map(|it| Vector { comm: 8, ..*it }).collect();
    table.vectors.extend(other);
    for at in [3, 4, 5] {
        table.vectors[at].started = 4;
    }
    let lost = (FindingClass::NetworkStalled, Confidence::Confirmed, vec![0, 1]);
    assert_eq!(found(&table), [lost]);
}

/// Rank 1's GPU died at the end of operation 5, which the others have finished: the transfers are
/// those of operation 6, which has not begun there.
#[test]
fn transfers_of_a_later_operation_say_nothing_of_this_one() {
    let posted = |it: OpenTransfer| OpenTransfer { ready: 0, transmitted: 0, done: 0, ..it };
    let arrived =
        OpenTransfer { ready: 3, transmitted: 3, ..posted(transfer(1, false, 0, Some(3))) };
    let mut table = ring(vec![
        transfer(0, true, 1, Some(1)),
        arrived,
        posted(transfer(1, true, 2, Some(1))),
        posted(transfer(2, false, 1, Some(1))),
    ]);
    for (at, vector) in table.vectors.iter_mut().enumerate() {
        (vector.api, vector.enqueued) = (6, 6);
        (vector.started, vector.done) = if at == 1 { (5, 4) } else { (6, 5) };
    }
    assert_eq!(found(&table), [(FindingClass::GpuDead, Confidence::Confirmed, vec![1])]);
}
