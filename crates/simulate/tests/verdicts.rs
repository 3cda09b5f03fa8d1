// SPDX-License-Identifier: Apache-2.0
//! Faults that `diagnose` once classified wrongly in some simulated jobs.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Options, diagnose, open};
use ncclscope_findings::{Confidence, Finding, FindingClass};
use ncclscope_simulate::{Fault, Planted, Scenario, Truth, run};

/// A job with this fault.
fn planted(fault: &str, seed: u64) -> Scenario {
    let fault = Fault::from_name(fault).unwrap();
    Scenario { seed, fault: vec![Planted::new(fault)], ..Scenario::default() }
}

/// The planted fault in a simulated job, and the verdicts from all ranks together.
fn found(scenario: &Scenario) -> (Truth, Vec<Finding>) {
    let dir = tempfile::tempdir().unwrap();
    let truth = run(scenario, dir.path()).unwrap().truth;
    let read = open(&[dir.path().into()], &InputOptions::default()).unwrap();
    (truth, diagnose(&read.job, &Options::default()).findings)
}

/// Sends and receives within a host (experts) stop early, and those of the next step wait behind
/// another communicator's kernel on the same stream: this does not make them the cause.
#[test]
fn what_another_communicators_kernel_follows_on_its_stream_is_no_cause() {
    for (fault, seed) in [
        ("exit", 487_525),
        ("p2p-unmatched", 98_696),
        ("p2p-size", 863_857),
        ("wrong-count", 472_387),
    ] {
        let mut scenario = planted(fault, seed);
        scenario.job.ranks = 36;
        let (truth, verdicts) = found(&scenario);
        let found = essence(&verdicts);
        let planted: Vec<_> =
            truth.verdicts.iter().map(|one| (one.class, &one.root_ranks)).collect();
        assert_eq!(found, planted, "{fault}");
    }
}

/// Class and ranks of the verdicts.
fn essence(verdicts: &[Finding]) -> Vec<(FindingClass, &Vec<u32>)> {
    verdicts.iter().map(|one| (one.class, &one.root_ranks)).collect()
}

/// In a kernel with sends and receives to several peers, the transfers with ranks that arrived wait
/// for the transfer with the rank that did not.
#[test]
fn sends_and_receives_of_one_kernel_wait_for_its_slowest_peer() {
    let mut scenario = planted("host-stuck", 719_830);
    let job = &mut scenario.job;
    (job.ranks, job.tp, job.pp, job.dp, job.ep) = (12, 1, 1, 12, 4);
    let (_, verdicts) = found(&scenario);
    let found: Vec<_> = verdicts.iter().map(|one| (one.class, &one.root_ranks[..])).collect();
    assert_eq!(found, [(FindingClass::HostStuck, &[5][..])]);
}

/// A rank waits for a send, and its exchange with the experts is queued behind that: the others run
/// the exchange, and wait for that rank alone.
#[test]
fn an_exchange_of_experts_waits_for_the_rank_whose_kernel_is_queued() {
    for seed in 1..4 {
        let mut scenario = planted("p2p-unmatched", seed);
        let job = &mut scenario.job;
        (job.ranks, job.per_host, job.tp, job.pp, job.dp, job.ep) = (24, 8, 2, 3, 4, 4);
        job.steps = 6;
        let (truth, verdicts) = found(&scenario);
        let found = essence(&verdicts);
        let planted = &truth.verdicts[0].root_ranks;
        assert_eq!(found, [(FindingClass::P2pMismatch, planted)], "seed {seed}");
    }
}

/// The data of a send is in the network when its kernel has ended: no transfer of a later kernel
/// holds it up.
#[test]
fn a_send_whose_kernel_has_ended_waits_for_the_network_alone() {
    let mut scenario = planted("flush-stuck", 8_000_163);
    let job = &mut scenario.job;
    (job.ranks, job.per_host, job.tp, job.pp, job.dp) = (16, 4, 2, 2, 4);
    (job.steps, job.microbatches) = (6, 4);
    let (truth, verdicts) = found(&scenario);
    let found = essence(&verdicts);
    assert_eq!(found, [(FindingClass::FlushStalled, &truth.verdicts[0].root_ranks)]);
}

/// A heartbeat can give the time of a rank's last NCCL call up to a second too late: a rank that
/// sleeps since then has not gone on without its side of a transfer.
#[test]
fn a_stuck_host_that_a_receiver_waits_for_is_no_mismatch() {
    for seed in 1..5 {
        let mut scenario = planted("host-stuck", seed);
        let job = &mut scenario.job;
        (job.ranks, job.tp, job.pp, job.dp, job.hold_s) = (4, 1, 4, 1, 12);
        let (truth, verdicts) = found(&scenario);
        let found = essence(&verdicts);
        assert_eq!(found, [(FindingClass::HostStuck, &truth.verdicts[0].root_ranks)], "{seed}");
    }
}

/// Two ranks often transfer in both directions, and the circular wait goes through both pairs.
#[test]
fn an_unmatched_receive_names_the_path_that_lacks_its_send() {
    for seed in 1..6 {
        let mut scenario = planted("p2p-unmatched", seed);
        scenario.job.ranks = 16;
        let (truth, found) = found(&scenario);
        assert_eq!((found.len(), found[0].edge), (1, truth.verdicts[0].edge), "seed {seed}");
    }
}

/// In rings of several GPUs in each host, one GPU receives from the network and another one sends.
/// The sender waits for the receiver over NVLink, of which no event tells.
#[test]
fn a_gpu_that_waits_for_another_of_its_host_is_no_cause() {
    for fault in ["link-down", "receiver-not-ready", "flush-stuck"] {
        for (seed, ranks, tp) in [(1, 16, 1), (2, 16, 1), (3, 32, 2)] {
            let mut scenario = planted(fault, seed);
            let job = &mut scenario.job;
            (job.ranks, job.tp, job.pp, job.steps) = (ranks, tp, 1, 6);
            let (truth, verdicts) = found(&scenario);
            let found = essence(&verdicts);
            let planted: Vec<_> =
                truth.verdicts.iter().map(|one| (one.class, &one.root_ranks)).collect();
            assert_eq!(found, planted, "{fault} {seed}");
        }
    }
}

/// The other way round: the GPU that receives from the network can pass nothing on to the one of
/// its host whose link is down.
#[test]
fn a_gpu_that_cannot_pass_on_what_it_received_is_no_cause() {
    for (fault, seed, ranks) in [("link-down", 8_400_022, 29), ("nic-down", 8_400_636, 31)] {
        let mut scenario = planted(fault, seed);
        let job = &mut scenario.job;
        (job.ranks, job.per_host, job.tp, job.pp, job.ep, job.microbatches) =
            (ranks, 2, 1, 1, 1, 4);
        job.steps = if ranks == 29 { 9 } else { 11 };
        let (truth, verdicts) = found(&scenario);
        let found = essence(&verdicts);
        let planted = &truth.verdicts[0].root_ranks;
        assert_eq!(found, [(FindingClass::NetworkStalled, planted)], "{fault}");
    }
}

/// In a communicator of one rank no other kernel runs, so that a kernel which has not started is a
/// suspicion there; that it is the cause is known from the others.
#[test]
fn a_kernel_that_did_not_start_in_two_communicators_is_one_finding() {
    let mut scenario = planted("stream-blocked", 8_200_013);
    scenario.counters = true;
    let job = &mut scenario.job;
    (job.ranks, job.per_host, job.tp, job.pp) = (13, 2, 13, 1);
    let (truth, verdicts) = found(&scenario);
    let found: Vec<_> =
        verdicts.iter().map(|one| (one.class, one.confidence(), &one.root_ranks)).collect();
    let planted = &truth.verdicts[0].root_ranks;
    assert_eq!(found, [(FindingClass::KernelNotStarted, Confidence::Confirmed, planted)]);
}

/// Data between two GPUs of a host stops, so that the GPUs after it in the ring do not end, and
/// those before it do.
#[test]
fn several_gpus_of_a_host_that_do_not_end_have_a_path_between_them() {
    for seed in 1..6 {
        let mut scenario = planted("nvlink-hang", seed);
        let job = &mut scenario.job;
        (job.ranks, job.per_host, job.tp, job.pp, job.dp) = (4, 4, 1, 1, 4);
        let (truth, verdicts) = found(&scenario);
        let found: Vec<_> =
            verdicts.iter().map(|one| (one.class, one.confidence(), &one.root_ranks)).collect();
        let planted = &truth.verdicts[0].root_ranks;
        let expected = [(FindingClass::KernelNotEnding, Confidence::Suspect, planted)];
        assert_eq!(found, expected, "seed {seed}");
        assert!(verdicts[0].alternatives()[0].contains("(H3c)"), "{verdicts:?}");
    }
}

/// If only one of them does not end, its GPU is as likely as the path to it.
#[test]
fn one_gpu_of_a_host_that_does_not_end_may_miss_its_data() {
    let mut scenario = planted("nvlink-hang", 280_896);
    let job = &mut scenario.job;
    (job.ranks, job.per_host, job.tp, job.pp, job.ep) = (8, 2, 2, 1, 2);
    let (_, verdicts) = found(&scenario);
    let [verdict] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert_eq!((verdict.class, verdict.confidence()), (FindingClass::GpuDead, Confidence::Suspect));
    assert!(verdict.alternatives()[0].contains("between ranks 6-7 (H3d)"), "{verdict:?}");
}

/// A receive of more than is sent never ends, within a host as between hosts.
#[test]
fn a_receive_of_more_than_a_gpu_of_its_host_sends_never_ends() {
    for (seed, ranks, tp, pp) in [(8_600_067, 8, 1, 2), (8_600_128, 8, 2, 4)] {
        let mut scenario = planted("p2p-size", seed);
        let job = &mut scenario.job;
        (job.ranks, job.per_host, job.tp, job.pp, job.steps) = (ranks, ranks, tp, pp, 6);
        let (truth, verdicts) = found(&scenario);
        assert!(!truth.ended, "seed {seed}");
        let found = essence(&verdicts);
        let planted = &truth.verdicts[0].root_ranks;
        assert_eq!(found, [(FindingClass::P2pMismatch, planted)], "seed {seed}");
    }
}
