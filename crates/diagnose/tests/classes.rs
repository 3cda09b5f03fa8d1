// SPDX-License-Identifier: Apache-2.0
//! Each class of hang on the smallest job that shows it, and what must not be called a hang.

mod common;

use common::{MINUTE, comm, job};
use ncclscope_diagnose::job::{
    Call, CommKind, Communicator, InFlightOp, Job, Process, ProcessStatus, Stop, ThreadState,
    Vector,
};
use ncclscope_diagnose::{Diagnosis, Options, diagnose, text};
use ncclscope_findings::rank::{Pending, Thread, Transfer};
use ncclscope_findings::{Confidence, Finding, FindingClass};
use ncclscope_operations::threads::Role;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

fn run(job: &Job) -> Diagnosis {
    diagnose(job, &Options::default())
}

#[track_caller]
fn only(job: &Job) -> Finding {
    let found = run(job);
    assert_eq!(found.findings.len(), 1, "{found:#?}");
    assert!(text::render(&found, None, None).contains(found.findings[0].class.name()));
    found.findings[0].clone()
}

#[track_caller]
fn expect(job: &Job, class: FindingClass, roots: &[u32]) -> Finding {
    let verdict = only(job);
    assert_eq!((verdict.class, &verdict.root_ranks[..]), (class, roots), "{verdict:#?}");
    assert!(!verdict.evidence.is_empty());
    verdict
}

/// Rank 2 is late on both communicators; rank 3 waits for rank 0, which waits for rank 2.
fn late() -> Job {
    let mut job = job(4);
    job.comms.push(comm("a", &[(0, 5, None, 4), (1, 5, None, 4), (2, 4, None, 4)]));
    job.comms.push(comm("b", &[(3, 8, None, 7), (0, 7, None, 7)]));
    job
}

#[test]
fn h1a_the_rank_that_all_wait_for_directly_or_through_others() {
    let verdict = expect(&late(), FindingClass::HostStuck, &[2]);
    assert_eq!((verdict.victims, verdict.confidence()), (3, Confidence::Confirmed));
    assert_eq!(verdict.op.unwrap().number, Some(5));
}

/// The rank's proxy thread has begun no part of the operation, and NCCL reports no kernels.
#[test]
fn a_rank_that_shows_no_part_of_an_operation_has_not_finished_it() {
    let mut job = job(2);
    let mut both = comm("a", &[(0, 5, None, 4), (1, 5, None, 5)]);
    both.vectors[1].is_blind = true;
    let receive =
        Transfer { peer: 1, steps: 4, posted: 4, reached: Some(1), ..Transfer::default() };
    both.flights.insert(0, InFlightOp { transfers: vec![receive], ..InFlightOp::default() });
    job.comms.push(both);
    let verdict = expect(&job, FindingClass::ProxyStalled, &[1]);
    assert_eq!((verdict.confidence(), verdict.victims), (Confidence::Suspect, 1));
    job.comms[0].flights.clear();
    assert_eq!(only(&job).confidence(), Confidence::Suspect, "it may have finished, or not");
}

/// What a rank does after its last operation is not held against its peers.
#[test]
fn a_rank_that_finished_what_another_has_not_is_not_late() {
    let mut job = job(3);
    job.comms.push(comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(5), 5), (2, 5, Some(5), 5)]));
    expect(&job, FindingClass::GpuDead, &[0]);
}

#[test]
fn h1b_a_dead_rank_also_if_it_was_in_the_operation() {
    let mut job = late();
    job.processes[2].status = ProcessStatus::Dead;
    // From another host, a stopped process looks like a dead one.
    let title = expect(&job, FindingClass::ProcessGone, &[2]).title();
    assert!(
        title.ends_with(
            "gives no sign of life: dead, or stopped (SIGSTOP, a debugger, a paused container)"
        ),
        "{title}"
    );
    let mut stopped = late();
    stopped.processes[2].status = ProcessStatus::Stopped(Stop::Signal);
    let verdict = expect(&stopped, FindingClass::ProcessGone, &[2]);
    assert!(verdict.title().contains("rank 2 is stopped, by a signal (SIGSTOP)"), "{verdict:?}");
    assert!(verdict.advice.contains("kill -CONT"), "{verdict:?}");
    // In a job that is stopped as a whole, no rank waits.
    let mut whole = self::job(2);
    whole.processes.iter_mut().for_each(|one| one.status = ProcessStatus::Stopped(Stop::Signal));
    expect(&whole, FindingClass::ProcessGone, &[0, 1]);
    let mut ended = late();
    ended.processes[2].status = ProcessStatus::Ended;
    let verdict = expect(&ended, FindingClass::ProcessGone, &[2]);
    let fewer = "made one call fewer than the other ranks (4 of 5): an error, uneven batches or \
                 a skipped collective";
    assert!(verdict.title().ends_with(&format!("rank 2 exited; it {fewer}")));
    job.comms[0].vectors[2].enqueued = 5;
    expect(&job, FindingClass::ProcessGone, &[2]);
}

/// After one rank has died, the others wait for it and for each other until the launcher kills
/// them. Such a wait is no evidence against the rank that it is for.
#[test]
fn a_wait_that_ends_with_the_kill_confirms_nothing() {
    let killed = |wait_ns: u64| {
        let mut job = late();
        (job.killed_ns, job.min_age_ns) = (Some(2_000_000_000), Some(2_000_000_000));
        for vector in job.comms.iter_mut().flat_map(|comm| &mut comm.vectors) {
            vector.age_ns = vector.age_ns.map(|_| wait_ns);
        }
        job
    };
    let least = Options::of(Duration::from_millis(500));
    let short = killed(900_000_000);
    let told = run(&short);
    assert_eq!((told.findings.len(), told.waiting_ranks), (0, 3));
    let note = told.notes.last().unwrap();
    assert!(note.contains("a rank that was killed within the last second"), "{note}");
    assert!(!note.contains("--hang-sec"), "{note}");
    let mut verdicts = diagnose(&short, &least).findings;
    let verdict = verdicts.remove(0);
    assert_eq!(
        (verdict.class, verdict.confidence()),
        (FindingClass::HostStuck, Confidence::Suspect)
    );
    assert!(verdict.alternatives().iter().any(|one| one.contains("another rank died")));
    // A job that was not killed, a long wait, and a process that ended long before the others.
    let confidence = |job: &Job| diagnose(job, &least).findings.remove(0).confidence();
    assert_eq!(confidence(&Job { killed_ns: None, ..short.clone() }), Confidence::Confirmed);
    assert_eq!(confidence(&killed(2_500_000_000)), Confidence::Confirmed);
    let mut dead = short.clone();
    dead.processes[2].status = ProcessStatus::Dead;
    assert_eq!(confidence(&dead), Confidence::Confirmed);
    // If the records of one rank end first, its death may explain a longer wait for another rank.
    let first = |rank: u32, wait_ns: u64| {
        let (ended_first, ended_first_ns) = (vec![rank], 3_000_000_000);
        Job { ended_first, ended_first_ns, ..killed(wait_ns) }
    };
    assert_eq!(confidence(&first(2, 2_500_000_000)), Confidence::Confirmed, "the root itself");
    assert_eq!(confidence(&first(1, 3_000_000_000)), Confidence::Confirmed, "longer");
    let verdict = diagnose(&first(1, 2_500_000_000), &least).findings.remove(0);
    assert_eq!(
        (verdict.class, verdict.confidence()),
        (FindingClass::HostStuck, Confidence::Suspect)
    );
    let why = "rank 1 ended first, and the other ranks then waited for it until they were killed: \
               a wait of less than 3.00 s does not show which is the cause";
    assert!(verdict.alternatives().iter().any(|one| one == why), "{verdict:?}");
    let running = run(&Job { killed_ns: None, ..short });
    assert!(running.notes.last().unwrap().ends_with("below the limit of 2.00 s (--hang-sec)"));
}

#[test]
fn titles_about_several_ranks_are_in_the_plural() {
    let mut job = job(4);
    job.comms
        .push(comm("a", &[(0, 5, None, 4), (1, 5, None, 4), (2, 4, None, 4), (3, 4, None, 4)]));
    let title = expect(&job, FindingClass::HostStuck, &[2, 3]).title();
    assert_eq!(title, "ranks 2-3 stopped calling NCCL: their threads are stuck outside NCCL");
    for (status, says) in [
        (ProcessStatus::Dead, "ranks 2-3 give no sign of life: dead, or stopped"),
        (ProcessStatus::Ended, "ranks 2-3 exited"),
        (ProcessStatus::Stopped(Stop::Signal), ": they exist and do not run"),
    ] {
        job.processes[2..].iter_mut().for_each(|one| one.status = status);
        let title = expect(&job, FindingClass::ProcessGone, &[2, 3]).title();
        assert!(title.contains(says), "{title}");
    }
}

/// What a reader copies or looks up: the run, the ranks that are left out, the communicator's role.
#[test]
fn the_text_names_the_run_the_role_and_how_many_places_it_leaves_out() {
    let mut job = job(8);
    job.source = "recordings".into();
    job.processes.iter_mut().for_each(|one| one.host = Some("a".into()));
    let members: Vec<_> = (0..8).map(|rank| (rank, 5 - u64::from(rank > 1), None, 4)).collect();
    job.comms.push(comm("0x1f", &members));
    let text = |job: &Job| text::render(&run(job), None, Some("'my run' --run x"));
    let named = text(&job);
    assert!(named.contains("\n  more         ncclscope view 'my run' --run x\n"), "{named}");
    assert!(named.contains("place        rank 5 (a)\n  place        and 2 more\n"), "{named}");
    assert!(named.contains("\n  where        0x1f, operation 5"), "{named}");
    job.comms[0].comm_name = Some("mine".into());
    assert!(text(&job).contains("\n  where        0x1f (mine), operation 5"));
    job.comms[0].role = Some("tp".into());
    assert!(text(&job).contains("\n  where        0x1f (tp), operation 5"));
    job.processes.truncate(6);
    job.comms[0].vectors.truncate(6);
    assert!(!text(&job).contains(" more\n"), "four places are all");
}

#[test]
fn h1d_called_and_not_enqueued() {
    let mut job = late();
    job.comms[0].vectors[2].api = 5;
    expect(&job, FindingClass::CallNotEnqueued, &[2]);
    let mut job = late();
    job.processes[2].entered = Some(Pending::OpenGroup);
    let verdict = expect(&job, FindingClass::CallNotEnqueued, &[2]);
    assert!(verdict.evidence.iter().any(|line| line.text.contains("ncclGroupEnd")));
}

/// NCCL connects the ranks of an operation first; there, a rank waits for the ranks that have not
/// called it.
#[test]
fn a_rank_that_connects_waits_for_those_that_do_not_come() {
    let connect = |job: &mut Job, members: &[usize]| {
        for &at in members {
            let vector = &mut job.comms[0].vectors[at];
            (vector.api, vector.connects, vector.age_ns) = (5, true, MINUTE);
            let process = vector.process as usize;
            job.processes[process].entered = Some(Pending::Inside);
        }
    };
    let mut all = job(3);
    all.comms.push(comm("a", &[(0, 4, None, 4), (1, 4, None, 4), (2, 4, None, 4)]));
    let mut two = all.clone();
    connect(&mut two, &[0, 2]);
    let verdict = expect(&two, FindingClass::HostStuck, &[1]);
    assert_eq!((verdict.victims, verdict.confidence()), (2, Confidence::Confirmed));
    assert_eq!(verdict.op.unwrap().number, Some(5));
    two.processes[1].status = ProcessStatus::Ended;
    expect(&two, FindingClass::ProcessGone, &[1]);
    // All ranks have called it, and nothing shows why they are not connected.
    connect(&mut all, &[0, 1, 2]);
    let verdict = expect(&all, FindingClass::CallNotEnqueued, &[0, 1, 2]);
    assert_eq!(verdict.confidence(), Confidence::Suspect);
    // The other ranks have completed the connection.
    let mut last = job(3);
    last.comms.push(comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(5), 4), (2, 4, Some(4), 4)]));
    connect(&mut last, &[2]);
    let verdict = expect(&last, FindingClass::CallNotEnqueued, &[2]);
    assert_eq!((verdict.confidence(), verdict.victims), (Confidence::Confirmed, 2));
}

/// NCCL does not report the peer to which it connects: rank 0 may wait for rank 1, 2 or 3.
#[test]
fn a_call_without_a_peer_waits_for_those_that_wait_for_none() {
    let mut calls = job(4);
    let mut call = comm("a", &[(0, 0, None, 0), (1, 0, None, 0), (2, 0, None, 0), (3, 0, None, 0)]);
    call.kind = CommKind::Call;
    (call.vectors[0].connects, call.vectors[0].age_ns) = (true, MINUTE);
    calls.comms.push(call);
    let verdict = expect(&calls, FindingClass::HostStuck, &[1, 2, 3]);
    assert_eq!(verdict.confidence(), Confidence::Suspect);
    // Rank 0 sends to rank 1, which receives from rank 2 by mistake: rank 2 is a suspect only.
    let mut mistake = job(3);
    for (caller, other) in [(0, 1), (1, 0)] {
        let mut call = comm("a", &[(caller, 0, None, 0), (other, 0, None, 0), (2, 0, None, 0)]);
        call.kind = CommKind::Call;
        (call.vectors[0].connects, call.vectors[0].age_ns) = (true, MINUTE);
        mistake.comms.push(call);
    }
    let verdict = expect(&mistake, FindingClass::HostStuck, &[2]);
    assert_eq!(verdict.confidence(), Confidence::Suspect);
    assert!(verdict.alternatives().iter().any(|other| other.contains("do not match (H2b)")));
    // Ranks 1 and 2 wait for rank 3, which explains the wait of rank 0, too.
    calls.comms.push(comm("b", &[(1, 5, None, 4), (2, 5, None, 4), (3, 4, None, 4)]));
    let verdict = expect(&calls, FindingClass::HostStuck, &[3]);
    assert_eq!((verdict.confidence(), verdict.victims), (Confidence::Confirmed, 3));
    // Now rank 1 also waits for rank 0, in an operation of all ranks.
    calls.comms[1] =
        comm("b", &[(0, 4, None, 4), (1, 5, None, 4), (2, 5, None, 4), (3, 5, None, 4)]);
    let verdict = expect(&calls, FindingClass::Deadlock, &[0, 1, 2, 3]);
    assert_eq!(verdict.confidence(), Confidence::Confirmed);
}

#[test]
fn h2_another_datatype() {
    let mut job = job(3);
    let mut comm = comm("a", &[(0, 5, None, 4), (1, 5, None, 4), (2, 5, None, 4)]);
    for member in 0..3 {
        let datatype = if member == 1 { "ncclInt8" } else { "ncclFloat32" }.to_owned();
        let call = Call { func: "AllReduce".into(), datatype, ..Call::default() };
        comm.calls.insert(member, Arc::new([(5, Arc::new(call))].into()));
    }
    job.comms.push(comm);
    let verdict = expect(&job, FindingClass::CallMismatch, &[1]);
    assert_eq!(verdict.op.unwrap().number, Some(5));
    // The calls are the evidence, not how long a rank waited.
    (job.killed_ns, job.comms[0].vectors[0].age_ns) = (Some(120_000_000_000), None);
    assert_eq!(only(&job).confidence(), Confidence::Confirmed);
}

fn pair(src: (u32, u64, u64), dst: (u32, u64, u64)) -> Communicator {
    let mut pair = comm("p", &[(src.0, src.1, None, src.2), (dst.0, dst.1, None, dst.2)]);
    pair.kind = CommKind::Pair;
    pair
}

#[test]
fn h2b_a_receive_without_a_send() {
    // Rank 1 receives a second time; rank 0 has gone on to a collective that rank 1 must join.
    let mut circle = job(2);
    circle.comms.push(pair((0, 1, 1), (1, 2, 1)));
    circle.comms.push(comm("a", &[(0, 3, None, 2), (1, 2, None, 2)]));
    let verdict = expect(&circle, FindingClass::P2pMismatch, &[0, 1]);
    assert_eq!(verdict.edge, Some([0, 1]));
    // As before, but the sender has since called NCCL on a communicator without rank 1.
    let mut moved = job(2);
    moved.comms.push(pair((0, 1, 1), (1, 2, 1)));
    moved.processes[0].idle_ns = Some(40_000_000_000);
    expect(&moved, FindingClass::P2pMismatch, &[0]);
    moved.processes[0].idle_ns = Some(61_000_000_000);
    expect(&moved, FindingClass::HostStuck, &[0]);
}

#[test]
fn h3a_h3b_the_kernel_that_did_not_start() {
    let mut job = job(3);
    job.comms.push(comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(4), 4), (2, 5, Some(5), 4)]));
    expect(&job, FindingClass::KernelNotStarted, &[1]);
    job.comms[0].vectors[1].started = Some(5);
    let kernel = Some((2, 1, 0));
    job.comms[0].flights.insert(1, InFlightOp { kernel, ..InFlightOp::default() });
    expect(&job, FindingClass::KernelPartlyStarted, &[1]);
    job.comms[0].flights.clear();
    let verdict = expect(&job, FindingClass::KernelNotEnding, &[0, 1, 2]);
    assert_eq!(verdict.confidence(), Confidence::Suspect, "by elimination alone");
    assert!(verdict.alternatives().iter().any(|it| it.contains("(H3c)")), "{verdict:#?}");
}

/// A dump has no transfers, and recordings need not have them.
#[test]
fn h3d_names_the_network_where_it_is_not_shown() {
    let at = |hosts: [&str; 2], is_dump: bool, transfers: &[Transfer]| {
        let mut job = job(2);
        job.is_dump = is_dump;
        for (process, host) in job.processes.iter_mut().zip(hosts) {
            process.host = Some(host.into()).filter(|_| !is_dump);
        }
        job.comms.push(comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(5), 4)]));
        let flight = InFlightOp { transfers: transfers.to_vec(), ..InFlightOp::default() };
        job.comms[0].flights.insert(1, flight);
        let verdict = expect(&job, FindingClass::KernelNotEnding, &[0, 1]);
        let is_open = verdict.alternatives().iter().any(|text| text.contains("network"));
        let hides = verdict.evidence[0].text.contains("the input shows no network transfers");
        assert_eq!((is_open, hides), (hides, is_open), "{verdict:#?}");
        // It also counts beside another cause.
        job.processes.extend([2, 3].map(|rank| Process { rank: Some(rank), ..Process::default() }));
        job.comms.push(comm("b", &[(2, 8, None, 7), (3, 7, None, 7)]));
        assert_eq!(run(&job).findings.len(), 2);
        assert_eq!(verdict.confidence(), Confidence::Suspect);
        hides
    };
    assert!(at(["a", "a"], true, &[]));
    assert!(at(["a", "b"], false, &[]));
    assert!(!at(["a", "a"], false, &[]));
    let ended = Transfer { peer: 0, steps: 8, done: 8, posted: 8, ..Transfer::default() };
    assert!(!at(["a", "b"], false, &[ended]));
}

#[test]
fn h3c_the_rank_that_did_not_finish() {
    let mut job = job(3);
    job.comms.push(comm("a", &[(0, 6, None, 5), (1, 6, None, 4), (2, 6, None, 5)]));
    expect(&job, FindingClass::GpuDead, &[1]);
    // Rank 1 also has an operation in flight on another communicator, which rank 0 has not called:
    // that is no excuse.
    job.comms.push(comm("b", &[(0, 2, None, 2), (1, 3, None, 2)]));
    expect(&job, FindingClass::GpuDead, &[1]);
}

#[test]
fn h3c_is_a_suspicion_where_the_path_to_the_rank_shows_nothing() {
    let at = |hosts: [&str; 3], transfers: &[Transfer]| {
        let mut job = job(3);
        for (process, host) in job.processes.iter_mut().zip(hosts) {
            process.host = Some(host.into());
        }
        job.comms.push(comm("a", &[(0, 6, None, 5), (1, 6, None, 4), (2, 6, None, 5)]));
        let flight = InFlightOp { transfers: transfers.to_vec(), ..InFlightOp::default() };
        job.comms[0].flights.insert(1, flight);
        let verdict = expect(&job, FindingClass::GpuDead, &[1]);
        let connects = verdict.alternatives().iter().any(|text| text.contains("connects to"));
        assert!(!connects, "no rank is in a call that connects: {verdict:#?}");
        (verdict.confidence(), verdict.alternatives().iter().any(|text| text.contains("NVLink")))
    };
    assert_eq!(at(["a", "a", "a"], &[]), (Confidence::Suspect, true));
    assert_eq!(at(["a", "b", "b"], &[]), (Confidence::Confirmed, false));
    let ended = Transfer { steps: 8, done: 8, posted: 8, ..Transfer::default() };
    assert_eq!(at(["a", "a", "a"], &[ended]), (Confidence::Confirmed, false));
}

/// For trees, sends and receives, the reported stop of a kernel is not its end. Such an operation
/// may be in flight where no later kernel of its stream has started. It is over for the others, so
/// that it is likelier that something keeps the later kernel from starting.
#[test]
fn a_kernel_that_has_stopped_proves_no_dead_gpu() {
    let through = |members: &[u32], done: u64| {
        let mut job = job(3);
        job.comms
            .push(comm("a", &[(0, 6, Some(5), done), (1, 6, Some(5), 4), (2, 6, Some(5), done)]));
        for &member in members {
            let kernel = Some((2, 2, 2));
            let flight = InFlightOp { kernel, ..InFlightOp::default() };
            job.comms[0].flights.insert(member, flight);
        }
        let verdict = only(&job);
        let other = if verdict.class == FindingClass::KernelNotStarted { "(H3c)" } else { "(H3a)" };
        let says = verdict.alternatives().iter().any(|text| text.contains(other));
        (verdict.class, verdict.confidence(), says)
    };
    let sure = Confidence::Confirmed;
    assert_eq!(through(&[], 5), (FindingClass::GpuDead, sure, false));
    assert_eq!(through(&[1], 5), (FindingClass::KernelNotStarted, Confidence::Suspect, true));
    assert_eq!(through(&[], 4), (FindingClass::KernelNotEnding, Confidence::Suspect, false));
    assert_eq!(through(&[0, 1], 4), (FindingClass::KernelNotEnding, Confidence::Suspect, true));
}

#[test]
fn a_broadcast_may_be_over_for_some() {
    // Rank 1 is still in the Broadcast that rank 0 has finished; its cause is rank 2, for which
    // rank 1 waits on the other communicator.
    let mut job = job(3);
    let mut first = comm("a", &[(0, 6, None, 5), (1, 6, None, 4)]);
    let call = Call { func: "Broadcast".into(), ..Call::default() };
    first.flights.insert(1, InFlightOp { call, ..InFlightOp::default() });
    job.comms.push(first);
    let mut second = comm("b", &[(1, 3, None, 2), (2, 2, None, 2)]);
    second.vectors[0].born_ns = Some(61_000_000_000);
    job.comms.push(second);
    expect(&job, FindingClass::HostStuck, &[2]);
}

fn link(is_send: bool, peer: i32, reached: Option<u8>) -> Transfer {
    Transfer { is_send, peer, reached, steps: 8, done: 1, posted: 2, ..Transfer::default() }
}

/// A ring of three in which each rank's transfers are (send state, receive state).
fn ring(states: [(Option<u8>, Option<u8>); 3]) -> Job {
    let mut job = job(3);
    let mut comm = comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(5), 4), (2, 5, Some(5), 4)]);
    for (((send, receive), rank), next) in states.into_iter().zip(0u32..).zip(1..) {
        let transfers = vec![link(true, next % 3, send), link(false, (next + 1) % 3, receive)];
        let call = Call { func: "AllReduce".into(), ..Call::default() };
        comm.flights.insert(rank, InFlightOp { transfers, call, ..InFlightOp::default() });
    }
    job.comms.push(comm);
    job
}

#[test]
fn n1_to_n4_in_a_ring() {
    // Rank 1's GPU neither consumes nor produces data: rank 2 waits for it, and rank 0 for rank 2.
    let stuck = ring([(Some(1), Some(1)), (Some(1), Some(3)), (Some(1), Some(1))]);
    expect(&stuck, FindingClass::GpuNotProducing, &[1]);
    // Rank 1 posts no receive.
    let unready = ring([(Some(2), Some(1)), (Some(1), Some(0)), (Some(1), Some(1))]);
    assert_eq!(expect(&unready, FindingClass::ReceiverNotReady, &[1]).edge, Some([0, 1]));
    // Data that rank 0 sent does not arrive.
    let wire = ring([(Some(3), Some(1)), (Some(1), Some(1)), (Some(1), Some(1))]);
    assert_eq!(expect(&wire, FindingClass::NetworkStalled, &[0, 1]).edge, Some([0, 1]));
    // No data of rank 1 moves in either direction: its network interface is the cause.
    let nic = ring([(Some(3), Some(1)), (Some(3), Some(1)), (Some(1), Some(1))]);
    expect(&nic, FindingClass::NetworkStalled, &[1]);
    let flush = ring([(Some(3), Some(1)), (Some(1), Some(2)), (Some(1), Some(1))]);
    assert_eq!(expect(&flush, FindingClass::FlushStalled, &[1]).edge, Some([0, 1]));
}

#[test]
fn data_that_is_only_told_to_be_there_confirms_no_gpu() {
    let told = |states: [(Option<u8>, Option<u8>); 3], sent: u32| {
        let mut job = ring(states);
        for flight in job.comms[0].flights.values_mut() {
            for transfer in &mut flight.transfers {
                transfer.may_be_early = !transfer.is_send;
                transfer.done = if transfer.is_send { sent } else { 1 };
            }
        }
        let found = run(&job).findings;
        found.into_iter().map(|it| (it.class, it.confidence(), it.root_ranks)).collect::<Vec<_>>()
    };
    // Two ranks wait, and the state of the third rank's data is unknown: it may have arrived or
    // not.
    let waits = (Some(1), Some(3));
    let two = [(None, None), waits, waits];
    let suspect = (FindingClass::GpuNotProducing, Confidence::Suspect, vec![0]);
    assert_eq!(told(two, 1), [suspect]);
    let all = told([waits; 3], 1);
    assert_eq!(all, [(FindingClass::KernelNotEnding, Confidence::Suspect, vec![])]);
    // The sender has delivered the data, so it has arrived.
    let delivered = told(two, 2);
    assert_eq!(delivered, [(FindingClass::GpuNotProducing, Confidence::Confirmed, vec![1, 2])]);
}

/// A sender whose completions are not recorded: its count of them says nothing of its data.
#[test]
fn a_sender_that_shows_no_ends_has_not_delivered() {
    let confirmed = |is_blind: bool| {
        let mut job = ring([(None, None), (Some(1), Some(3)), (Some(1), Some(1))]);
        let comm = &mut job.comms[0];
        comm.flights.remove(&0);
        comm.flights.get_mut(&1).unwrap().transfers[1].may_be_early = true;
        comm.vectors[0] = Vector { done: 5, is_blind, ..comm.vectors[0] };
        let found = run(&job).findings;
        found.iter().any(|it| it.confidence() == Confidence::Confirmed && it.root_ranks == [1])
    };
    assert!(confirmed(false), "rank 0 has ended the operation, so its data is there");
    assert!(!confirmed(true));
}

/// A ring of `ranks` ranks, eight to a host. The data of a sender for which `stalls` is true does
/// not arrive.
fn fabric(ranks: u32, stalls: impl Fn(u32) -> bool) -> Job {
    let mut job = job(ranks);
    for (process, rank) in job.processes.iter_mut().zip(0..) {
        process.host = Some(format!("node-{}", rank / 8));
    }
    let members: Vec<_> = (0..ranks).map(|rank| (rank, 5, Some(5), 4)).collect();
    let mut comm = comm("a", &members);
    for rank in 0..ranks {
        let peer = |distance: u32| i32::try_from((rank + distance) % ranks).unwrap();
        let sent = if stalls(rank) { Some(3) } else { Some(1) };
        let transfers = vec![link(true, peer(1), sent), link(false, peer(ranks - 1), Some(1))];
        comm.flights.insert(rank, InFlightOp { transfers, ..InFlightOp::default() });
    }
    job.comms.push(comm);
    job
}

#[test]
fn a_network_without_links_is_one_finding() {
    let ranks = 4096;
    let all: Vec<u32> = (0..ranks).collect();
    let outage = fabric(ranks, |_| true);
    let verdict = expect(&outage, FindingClass::NetworkStalled, &all);
    assert_eq!(verdict.evidence[0].text, "4096 links stand still between 512 hosts");
    let lines = text::render(&run(&outage), None, None).lines().count();
    assert!(lines < 60, "{lines} lines");
}

#[test]
fn links_that_meet_in_a_host_are_that_hosts() {
    // The links into and out of the second host, each of which belongs to a different rank.
    let cut = fabric(64, |rank| rank == 7 || rank == 15);
    let verdict = expect(&cut, FindingClass::NetworkStalled, &[8, 15]);
    let line = "all 2 stalled links of these ranks are of host node-1";
    assert_eq!((verdict.edge, &verdict.evidence[0].text[..]), (None, line));
    // Two links that share neither rank nor host.
    let apart = run(&fabric(64, |rank| rank == 7 || rank == 39));
    let edges: Vec<_> = apart.findings.iter().map(|verdict| verdict.edge).collect();
    assert_eq!(edges, [Some([7, 8]), Some([39, 40])]);
}

#[test]
fn absent_ranks_are_suspects_however_many() {
    let ranks = 40_000;
    let mut job = job(ranks);
    let present: Vec<_> = (0..ranks).step_by(8).map(|rank| (rank, 5, None, 4)).collect();
    for name in ["a", "b"] {
        let mut comm = comm(name, &present);
        comm.nranks = ranks;
        comm.silent = (0..ranks).filter(|rank| rank % 8 != 0).collect();
        job.comms.push(comm);
    }
    for silent in job.comms[0].silent.clone() {
        job.processes[silent as usize].status = ProcessStatus::Silent;
    }
    let absent = job.comms[0].silent.clone();
    assert!(only(&job).root_ranks == absent);
    // An older operation, from which rank 1 alone is absent, holds up a member.
    let mut older = comm("c", &[(0, 9, None, 8)]);
    older.vectors[0].born_ns = Some(70_000_000_000);
    job.comms.push(Communicator { nranks: 2, silent: vec![1], ..older });
    expect(&job, FindingClass::NotRecorded, &[1]);
}

#[test]
fn n5_the_receiver_of_a_send_does_not_take_it() {
    let mut job = job(2);
    let mut pair = pair((0, 5, 4), (1, 5, 4));
    pair.flights
        .insert(0, InFlightOp { transfers: vec![link(true, 1, Some(2))], ..InFlightOp::default() });
    pair.flights.insert(
        1,
        InFlightOp { transfers: vec![link(false, 0, Some(3))], ..InFlightOp::default() },
    );
    job.comms.push(pair);
    expect(&job, FindingClass::GpuNotConsuming, &[1]);
}

#[test]
fn p1_by_its_transfers_or_its_thread() {
    let mut job = ring([(Some(1), Some(1)), (None, None), (Some(1), Some(1))]);
    let flight = job.comms[0].flights.get_mut(&1).unwrap();
    flight.transfers[0].in_progress = false;
    flight.transfers[0].still_ns = 2_000_000_000;
    expect(&job, FindingClass::ProxyStalled, &[1]);
    let mut job = ring([(Some(1), Some(1)), (Some(1), Some(1)), (Some(1), Some(1))]);
    job.processes[2].threads.push(ThreadState {
        thread: Thread { tid: 7, state: b'D', span_ns: 1_000_000_000, ..Thread::default() },
        role: Role::Proxy,
    });
    expect(&job, FindingClass::ProxyStalled, &[2]);
    // What was sent to it may have arrived, but not what rank 0 sent to rank 1.
    let thread = job.processes[2].threads.clone();
    for (states, beside) in [
        ([(Some(1), Some(1)), (Some(3), Some(1)), (Some(1), Some(1))], None),
        ([(Some(3), Some(1)), (Some(1), Some(1)), (Some(1), Some(1))], Some([0, 1])),
    ] {
        let mut job = ring(states);
        job.processes[2].threads.clone_from(&thread);
        let found = run(&job).findings;
        let edges: Vec<_> = found.iter().map(|one| (one.class, one.edge)).collect();
        let beside = beside.map(|edge| (FindingClass::NetworkStalled, Some(edge)));
        let thread = (FindingClass::ProxyStalled, None);
        assert_eq!(edges, beside.into_iter().chain([thread]).collect::<Vec<_>>());
    }
}

/// As NCCL before 2.29.3 on aarch64, which loses the slots in which a call gives an operation to
/// the proxy thread: the call waits for a slot, and the thread sleeps, because it has no work.
#[test]
fn a_proxy_thread_that_was_given_nothing_is_not_stalled() {
    let mut job = ring([(Some(1), Some(1)), (Some(1), Some(1)), (Some(1), Some(1))]);
    job.processes[2].threads.push(ThreadState {
        thread: Thread { tid: 7, state: b'S', span_ns: 1_000_000_000, ..Thread::default() },
        role: Role::Proxy,
    });
    job.comms[0].flights.get_mut(&2).unwrap().is_enqueuing = true;
    expect(&job, FindingClass::ProxyStalled, &[2]);
    job.comms[0].flights.get_mut(&2).unwrap().transfers.clear();
    let verdict = expect(&job, FindingClass::CallNotEnqueued, &[2]);
    assert_eq!((verdict.confidence(), verdict.victims), (Confidence::Confirmed, 2));
    // An operation that it was given before may hold up the call.
    job.comms.push(comm("b", &[(2, 5, None, 4), (0, 5, None, 5)]));
    let found = run(&job).findings;
    assert!(found.iter().all(|one| one.class != FindingClass::CallNotEnqueued), "{found:#?}");
}

#[test]
fn a_silent_rank_is_suspected_only_if_nothing_seen_explains_the_waits() {
    let mut job = job(4);
    job.processes[3].status = ProcessStatus::Silent;
    let mut known = comm("a", &[(0, 5, None, 4), (1, 5, None, 4)]);
    known.silent.push(3);
    job.comms.push(known);
    let verdict = expect(&job, FindingClass::NotRecorded, &[3]);
    assert_eq!(verdict.confidence(), Confidence::Suspect);
    assert_eq!(run(&job).silent_ranks, [3]);
    // Rank 0 was held up by another communicator before.
    job.comms.push(comm("b", &[(0, 8, None, 7), (2, 7, None, 7)]));
    job.comms[1].vectors[0].born_ns = Some(70_000_000_000);
    expect(&job, FindingClass::HostStuck, &[2]);
}

/// Rank 0 lacks in the second communicator, because it waits in the first.
#[test]
fn a_rank_that_may_wait_for_a_silent_one_is_not_stuck_outside_nccl() {
    let mut job = job(4);
    job.processes[3].status = ProcessStatus::Silent;
    let mut first = comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(5), 5)]);
    first.silent.push(3);
    let mut second = comm("b", &[(0, 7, Some(7), 7), (1, 8, Some(7), 7), (2, 8, Some(7), 7)]);
    second.silent.push(3);
    job.comms.extend([first, second]);
    let verdict = expect(&job, FindingClass::NotRecorded, &[3]);
    assert_eq!(verdict.confidence(), Confidence::Suspect);
}

#[test]
fn a_rank_whose_counters_advance_is_not_stuck() {
    let mut slow = late();
    slow.processes[2].is_moving = true;
    let found = run(&slow);
    assert!(found.findings.is_empty() && found.notes[0].contains("slow, not stuck"), "{found:#?}");
    // So long that the watchdog of the rank that waits reports it, too. That a job was killed says
    // nothing of such a rank.
    slow.min_age_ns = Some(2_000_000_000);
    for (age_s, is_late) in [(500, false), (540, true)] {
        for vector in slow.comms.iter_mut().flat_map(|comm| &mut comm.vectors) {
            vector.age_ns = vector.age_ns.map(|_| age_s * 1_000_000_000);
        }
        assert_eq!(run(&slow).findings.len(), usize::from(is_late), "{age_s}");
    }
    let verdict = expect(&slow, FindingClass::HostStuck, &[2]);
    assert!(
        verdict.title().ends_with("calls NCCL, but not the operation that other ranks wait in")
    );
    assert_eq!(verdict.confidence(), Confidence::Suspect);
    let mut young = late();
    for vector in young.comms.iter_mut().flat_map(|comm| &mut comm.vectors) {
        vector.age_ns = vector.age_ns.map(|_| 29_000_000_000);
    }
    assert!(run(&young).findings.is_empty());
    // The same job in a dump that was written because of a hang.
    young.is_dump = true;
    assert_eq!(run(&young).findings.len(), 1);
}

proptest! {
    /// For any counts: ranks that are late do not wait, and the order of the input does not matter.
    #[test]
    fn late_ranks_do_not_wait_and_order_does_not_matter(
        comms in proptest::collection::vec(
            proptest::collection::vec((0u32..8, 0u64..4, 0u64..4), 2..5), 1..6),
    ) {
        let mut job = job(8);
        for (number, members) in comms.iter().enumerate() {
            let mut seen = std::collections::BTreeSet::new();
            let members: Vec<(u32, u64, Option<u64>, u64)> = members
                .iter()
                .filter(|(process, ..)| seen.insert(*process))
                .map(|&(process, done, more)| (process, done + more, None, done))
                .collect();
            job.comms.push(comm(&number.to_string(), &members));
        }
        let found = run(&job);
        let late = found.findings.iter().filter(|verdict| verdict.class == FindingClass::HostStuck);
        for rank in late.flat_map(|verdict| &verdict.root_ranks) {
            let waits = job.comms.iter().any(|comm| {
                let own = comm.vectors.iter().find(|v| v.process == *rank && v.is_inside());
                own.is_some_and(|own| comm.vectors.iter().any(|v| v.front() < own.front()))
            });
            prop_assert!(!waits, "{:#?}", found);
        }
        let summary = |found: &Diagnosis| {
            let one = |v: &Finding| (v.class, v.confidence(), v.root_ranks.clone(), v.victims);
            found.findings.iter().map(one).collect::<Vec<_>>()
        };
        let mut turned = job.clone();
        turned.comms.reverse();
        turned.comms.iter_mut().for_each(|comm| comm.vectors.reverse());
        prop_assert_eq!(summary(&run(&turned)), summary(&found));
    }
}

/// Counters show who called what even where events are missing, but not what happens within an
/// operation.
#[test]
fn missing_events_leave_suspects_within_an_operation() {
    let mut partly = job(3);
    partly.comms.push(comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(4), 4), (2, 5, Some(5), 4)]));
    assert_eq!(only(&partly).confidence(), Confidence::Confirmed);
    partly.processes[2].lacks_events = true;
    let verdict = expect(&partly, FindingClass::KernelNotStarted, &[1]);
    assert_eq!(verdict.confidence(), Confidence::Suspect);
    let other = verdict.alternatives().pop().unwrap();
    assert!(other.starts_with("events of rank 2 are missing"), "{other}");
    // A young call of rank 0 on the communicator may be for rank 1.
    let mut call = comm("a", &[(0, 1, None, 1), (1, 0, None, 0)]);
    (call.kind, call.vectors[0].connects) = (CommKind::Call, true);
    partly.comms.push(call);
    assert_eq!(only(&partly), verdict);
    let mut late = late();
    late.processes.iter_mut().for_each(|process| process.lacks_events = true);
    let verdict = expect(&late, FindingClass::HostStuck, &[2]);
    assert_eq!(verdict.confidence(), Confidence::Confirmed);
}

#[test]
fn most_members_behind_one_are_no_dead_gpus() {
    let mut job = job(4);
    let behind = |rank| (rank, 6, Some(5), 4);
    job.comms.push(comm("a", &[behind(0), behind(1), behind(2), (3, 6, Some(6), 5)]));
    expect(&job, FindingClass::KernelNotEnding, &[0, 1, 2, 3]);
}

/// With a damaged or forged table, missing ranks are counted and reported, but not allocated.
#[test]
fn an_impossible_number_of_ranks_costs_no_memory() {
    use ncclscope_diagnose::input::vectors;
    use ncclscope_trace::vectors::{Table, Vector};
    let forged = Vector { nranks: u32::MAX, ..Default::default() };
    let table = Table { vectors: vec![forged], ..Table::default() };
    let job = vectors::build(&table, Options::default().hang);
    assert_eq!(job.processes.len(), 1);
    assert!(job.notes[0].contains("of 4294967295 ranks: too many"), "{:?}", job.notes);
}
