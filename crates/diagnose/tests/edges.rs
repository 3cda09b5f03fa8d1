// SPDX-License-Identifier: Apache-2.0
//! Paths that lose data, found by the counts of both ends. The numbers of the rings are those that
//! real NCCL recorded over sockets between network namespaces.

use ncclscope_diagnose::job::{
    Communicator, InFlightOp, Process, ProcessStatus, ThreadState, Vector,
};
use ncclscope_diagnose::{Job, Options, diagnose};
use ncclscope_findings::rank::{Thread, Transfer};
use ncclscope_findings::{Confidence, Finding, FindingClass};
use ncclscope_operations::threads::Role;

const SECOND: u64 = 1_000_000_000;
/// When all processes were last heard from.
const END: u64 = 1_000 * SECOND;
/// For how long nothing has moved.
const STILL: u64 = 60 * SECOND;

/// Steps of the transfers below.
const STEPS: u32 = 8;

fn transfer(is_send: bool, peer: i32, posted: u32, moved: u32) -> Transfer {
    Transfer {
        is_send,
        peer,
        steps: STEPS,
        posted,
        ready: moved,
        transmitted: moved,
        done: moved,
        reached: Some(1).filter(|_| moved < STEPS),
        still_ns: STILL,
        ..Transfer::default()
    }
}

/// A job of ranks on hosts of their own, each in operation 5.
fn job(transfers: &[&[Transfer]]) -> Job {
    let (mut processes, mut comm) = (Vec::new(), Communicator::default());
    let polling = Thread { state: b'R', span_ns: SECOND, cpu_ns: SECOND / 2, ..Thread::default() };
    for (own, rank) in transfers.iter().zip(0u32..) {
        processes.push(Process {
            rank: Some(rank),
            host: Some(format!("node{rank}")),
            heard_ns: Some(END),
            threads: vec![ThreadState { thread: polling.clone(), role: Role::Proxy }],
            ..Process::default()
        });
        comm.vectors.push(Vector {
            process: rank,
            rank,
            api: 5,
            enqueued: 5,
            started: Some(5),
            done: 4,
            age_ns: Some(STILL),
            born_ns: Some(STILL),
            changed_ns: Some(END - STILL),
            ..Vector::default()
        });
        let flight = InFlightOp { transfers: own.to_vec(), ..InFlightOp::default() };
        comm.flights.insert(rank, flight);
    }
    comm.name = "a".into();
    comm.nranks = u32::try_from(transfers.len()).unwrap();
    Job { processes, comms: vec![comm], end_ns: Some(END), ..Job::default() }
}

/// The link of host 1 goes down: the kernel's socket buffers took what ranks 0 and 1 sent.
fn link_of_host_1_down() -> Job {
    let send = |peer: i32, posted: u32, moved: u32| transfer(true, peer, posted, moved);
    let receive = |peer: i32, posted: u32, moved: u32| transfer(false, peer, posted, moved);
    job(&[
        &[receive(2, 6, 2), send(1, 8, 4)],
        &[receive(0, 4, 0), send(2, 6, 2)],
        &[receive(1, 4, 0), send(0, 6, 2)],
    ])
}

fn findings(job: &Job) -> Vec<Finding> {
    diagnose(job, &Options::default()).findings
}

#[track_caller]
fn only(job: &Job) -> Finding {
    let mut found = findings(job);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn paths_that_lose_data_and_share_a_host_are_that_hosts_interface() {
    let verdict = only(&link_of_host_1_down());
    let of = (verdict.class, verdict.confidence(), &verdict.root_ranks[..]);
    assert_eq!(of, (FindingClass::NetworkStalled, Confidence::Confirmed, &[1][..]));
    assert!(verdict.title().ends_with("; all stalled paths share its network interface"));
    let texts: Vec<&str> = verdict.evidence.iter().map(|line| &*line.text).collect();
    assert!(texts[0].contains("all 2 stalled paths begin or end at rank 1 (node1)"), "{texts:#?}");
    let lost = "rank 0 (node0) to rank 1 (node1): 4 steps given to the network, 0 came";
    assert!(texts[1].contains(lost), "{texts:#?}");
    let counts: Vec<f64> = verdict.evidence[1].figures.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts[..3], [4.0, 0.0, 4.0]);
}

/// A path of the host moved all that was given: its interface works in part.
#[test]
fn a_host_that_still_moves_data_is_not_its_interface() {
    let mut job = link_of_host_1_down();
    let flights = &mut job.comms[0].flights;
    flights.get_mut(&2).unwrap().transfers.push(transfer(true, 1, 6, 3));
    flights.get_mut(&1).unwrap().transfers.push(transfer(false, 2, 6, 3));
    let mut edges: Vec<_> = findings(&job).into_iter().map(|it| (it.class, it.edge)).collect();
    edges.sort_unstable();
    let class = FindingClass::NetworkStalled;
    assert_eq!(edges, [(class, Some([0, 1])), (class, Some([1, 2]))]);
}

/// In a tree both children send to rank 0, which had nothing to give them yet: what its interface
/// sends is not known, and what it receives is lost.
#[test]
fn paths_to_a_rank_share_its_interface_whatever_it_sends() {
    let job = job(&[
        &[transfer(false, 1, 8, 2), transfer(false, 2, 8, 2), transfer(true, 1, 6, 1)],
        &[transfer(true, 0, 8, 4), transfer(false, 0, 6, 1)],
        &[transfer(true, 0, 8, 4)],
    ]);
    let verdict = only(&job);
    assert_eq!((verdict.class, &verdict.root_ranks[..]), (FindingClass::NetworkStalled, &[0][..]));
}

/// In the next operation its peers wait for it, too: it waits for data that its peer has given.
#[test]
fn a_rank_that_lacks_the_last_data_is_no_dead_gpu() {
    let send = |peer: i32, posted: u32, moved: u32| transfer(true, peer, posted, moved);
    let receive = |peer: i32, posted: u32, moved: u32| transfer(false, peer, posted, moved);
    let mut job = job(&[
        &[receive(2, 6, 2), send(1, 8, 4)],
        &[receive(0, 8, 6), send(2, 8, 8)],
        &[receive(1, 4, 0), send(0, 6, 2)],
    ]);
    for at in [0, 2] {
        let vector = &mut job.comms[0].vectors[at];
        (vector.api, vector.enqueued, vector.started, vector.done) = (6, 6, Some(6), 5);
    }
    let verdict = only(&job);
    let of = (verdict.class, verdict.confidence(), verdict.edge);
    assert_eq!(of, (FindingClass::NetworkStalled, Confidence::Confirmed, Some([0, 1])));
    // If the input does not say when, it may have come meanwhile: still no GPU is at fault.
    job.processes.iter_mut().for_each(|process| process.heard_ns = None);
    let verdict = only(&job);
    let of = (verdict.class, verdict.confidence(), verdict.edge);
    assert_eq!(of, (FindingClass::NetworkStalled, Confidence::Suspect, Some([0, 1])));
    assert!(verdict.alternatives().iter().any(|it| it.contains("(H3c)")), "{verdict:#?}");
}

/// The records of rank 1 end before rank 0 gave its last steps.
#[test]
fn what_a_silent_receiver_lacks_is_not_lost() {
    let at = |heard: u64| {
        let mut job = link_of_host_1_down();
        job.processes[1].heard_ns = Some(heard);
        findings(&job).into_iter().flat_map(|it| it.edge).collect::<Vec<_>>()
    };
    assert!(!at(END - STILL).contains(&[0, 1]));
    assert!(!at(END - STILL + SECOND).contains(&[0, 1]), "clocks may differ by so much");
    let mut job = link_of_host_1_down();
    job.processes[1].status = ProcessStatus::Dead;
    let found = findings(&job);
    assert!(found.iter().all(|it| it.class == FindingClass::ProcessGone), "{found:#?}");
}

/// Data that a receiver's proxy thread does not take looks the same.
#[test]
fn without_a_look_at_the_receivers_proxy_thread_the_path_is_a_suspicion() {
    let mut job = link_of_host_1_down();
    job.processes.iter_mut().for_each(|process| process.threads.clear());
    let verdict = only(&job);
    let of = (verdict.class, verdict.confidence());
    assert_eq!(of, (FindingClass::NetworkStalled, Confidence::Suspect));
    assert!(verdict.alternatives().iter().any(|it| it.contains("(P1)")), "{verdict:#?}");
}

/// The two ends divide the data differently, or the receiver has posted no receive.
#[test]
fn counts_that_do_not_compare_prove_no_loss() {
    let mut other_steps = link_of_host_1_down();
    for transfer in &mut other_steps.comms[0].flights.get_mut(&1).unwrap().transfers {
        transfer.steps = 52;
    }
    let mut unposted = link_of_host_1_down();
    for flight in unposted.comms[0].flights.values_mut() {
        flight.transfers.iter_mut().for_each(|it| it.posted = it.done);
    }
    for job in [other_steps, unposted] {
        let found = findings(&job);
        assert!(found.iter().all(|it| it.class != FindingClass::NetworkStalled), "{found:#?}");
    }
}

/// With LL and LL128 a network plugin may report data that has not come: it has not come.
#[test]
fn a_plugin_that_reports_too_early_hides_no_loss() {
    let mut job = link_of_host_1_down();
    for transfer in job.comms[0].flights.values_mut().flat_map(|it| &mut it.transfers) {
        transfer.may_be_early = !transfer.is_send;
    }
    assert_eq!(only(&job).root_ranks, [1]);
}

/// Rank 0 aborts the communicator in operation 5: what it had not moved is lost with it.
#[test]
fn a_rank_that_has_left_the_communicator_lost_no_data_on_the_wire() {
    let mut job = link_of_host_1_down();
    let gone = &mut job.comms[0].vectors[0];
    (gone.done, gone.has_left) = (5, true);
    job.comms[0].flights.remove(&0);
    let from_it = |verdict: &Finding| verdict.edge == Some([0, 1]);
    assert!(!findings(&job).iter().any(from_it), "{:#?}", findings(&job));
    job.comms[0].vectors[0].has_left = false;
    let found = findings(&job);
    assert!(found.iter().any(|it| it.root_ranks.contains(&1)), "{found:#?}");
}
