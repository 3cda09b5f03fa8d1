// SPDX-License-Identifier: Apache-2.0
//! Clocks of ranks on one host do not depend on the stop events of their kernels.

use ncclscope_stragglers::clock::Clocks;
use ncclscope_stragglers::model::{Collective, EndSync, Job, Part, Worker};
use ncclscope_stragglers::{Limits, analyze};

/// The lateness of one rank in each operation, ns.
const LATE: f64 = 8e6;

/// 200 collectives of ranks, of which the second is always late. Each kernel stops when the rank's
/// own data is on its way, as with NVLS.
fn job<const RANKS: usize>(hosts: [&str; RANKS], ends: EndSync) -> Job {
    let mut job = Job { is_kernel_timed: true, ..Job::default() };
    job.workers = (0..).zip(hosts).map(|(rank, host)| Worker::new(rank, host)).collect();
    job.classes.push(ncclscope_stragglers::model::CollectiveClass::default());
    job.shapes.push("NVLS SIMPLE, 16 channels".into());
    for number in 0..200 {
        let begin = f64::from(number) * 100e6;
        let part = |worker: usize| {
            let start = begin + if worker == 1 { LATE } else { 0.0 };
            Part { worker, start, end: start + 1e6 }
        };
        let parts = (0..RANKS).map(part).collect();
        job.collectives.push(Collective {
            class: 0,
            shape: 0,
            step: None,
            ends,
            has_ends: true,
            parts,
        });
    }
    job
}

#[test]
fn a_rank_that_is_always_late_is_not_a_clock_that_is_behind() {
    // With kernel ends that look common to all ranks, and with ends known not to be.
    for ends in [EndSync::Together, EndSync::Apart] {
        let job = job(["node1", "node1"], ends);
        let clocks = Clocks::fit(&job);
        let apart = clocks.offset(1).ns - clocks.offset(0).ns;
        assert!(apart == 0.0, "{ends:?}: {apart} ns");
        assert_eq!(clocks.groups, 1, "{ends:?}: one host has one clock");
    }
    let report = analyze(&job(["node1", "node1"], EndSync::Apart), &Limits::default());
    let roots = report.steps.iter().skip(1).map(|step| report.root_of(step).and_then(|of| of.rank));
    assert!(roots.clone().count() > 100 && roots.clone().all(|rank| rank == Some(1)), "{report:?}");
    // The clocks of different hosts may be that far apart, and common ends show it.
    let clocks = Clocks::fit(&job(["node1", "node2"], EndSync::Together));
    let apart = clocks.offset(1).ns - clocks.offset(0).ns;
    assert!((apart - LATE).abs() < 1000.0, "{apart} ns");
}

#[test]
fn hosts_of_one_name_have_clocks_of_their_own() {
    let mut job = job(["node", "node"], EndSync::Together);
    job.workers[0].machine = "boot of the one".into();
    job.workers[1].machine = "boot of the other".into();
    let clocks = Clocks::fit(&job);
    let apart = clocks.offset(1).ns - clocks.offset(0).ns;
    assert!((apart - LATE).abs() < 1000.0, "{apart} ns");
}

#[test]
fn a_late_rank_does_not_move_the_clock_of_its_host() {
    let mut job = job(["node1", "node1", "node2", "node2"], EndSync::Together);
    let ahead = 3e6;
    for part in job.collectives.iter_mut().flat_map(|c| &mut c.parts) {
        if part.worker >= 2 {
            (part.start, part.end) = (part.start + ahead, part.end + ahead);
        }
    }
    let clocks = Clocks::fit(&job);
    assert_eq!(clocks.offset(0), clocks.offset(1), "one host has one clock");
    let apart = clocks.offset(2).ns - clocks.offset(1).ns;
    assert!((apart - ahead).abs() < 1000.0, "{apart} ns");
    // The late rank's ends differ from the others', which is no clock error.
    assert!(clocks.error <= 50_000.0, "{clocks:?}");
}

/// In a damaged recording the ends of kernels are missing, and something later counts as the end.
#[test]
fn ends_of_a_recording_with_gaps_move_no_clock() {
    let mut job = job(["node1", "node1", "node2"], EndSync::Apart);
    job.collectives.iter_mut().for_each(|collective| collective.ends = EndSync::Together);
    for (at, part) in job.collectives.iter_mut().zip(0..).map(|(c, at)| (at, &mut c.parts[0])) {
        part.end -= 1e7 * f64::from(at);
    }
    job.gappy.insert(0);
    let clocks = Clocks::fit(&job);
    let apart = |clocks: &Clocks| clocks.offset(1).ns - clocks.offset(2).ns;
    assert!((apart(&clocks) - LATE).abs() < 1000.0 && clocks.error < 1e6, "{clocks:?}");
    // Where nothing else is known of the host, no clock drifts by a tenth.
    job.gappy.insert(1);
    let clocks = Clocks::fit(&job);
    assert!(clocks.offset(0).rate == 0.0 && clocks.offset(2).rate == 0.0, "{clocks:?}");
}

#[test]
fn no_wait_crosses_groups_without_a_common_clock() {
    let mut job = job(["node1", "node1", "node2", "node2"], EndSync::Apart);
    for part in job.collectives.iter_mut().flat_map(|c| &mut c.parts) {
        // The second host's clock is ahead by a second, which no operation shows. Its ranks wait
        // for rank 1, too.
        if part.worker >= 2 {
            (part.start, part.end) = (part.start + 1e9, part.end + 1e9 + LATE);
        }
    }
    let report = analyze(&job, &Limits::default());
    assert_eq!(report.clock.groups, 2);
    assert!(report.quiet.iter().any(|line| line.starts_with("2 groups")), "{:?}", report.quiet);
    let roots: Vec<_> = report.steps.iter().filter_map(|step| report.root_of(step)?.rank).collect();
    assert!(roots.len() > 100 && roots.iter().all(|&rank| rank == 1), "{roots:?}");
}

#[test]
fn without_arrivals_on_the_gpu_no_rank_is_blamed() {
    let mut job = job(["node1", "node1"], EndSync::Together);
    for collective in &mut job.collectives {
        let end = collective.parts[1].end;
        collective.parts.iter_mut().for_each(|part| part.end = end);
    }
    let timed = analyze(&job, &Limits::default());
    let slow: Vec<_> = timed.findings.iter().map(|finding| &finding.root_ranks[..]).collect();
    assert_eq!(slow, [&[1]]);
    let mut later = timed.steps.iter().skip(1);
    assert!(later.all(|step| timed.root_of(step).is_some() && step.waiting_share.is_some()));
    // The same times, but measured when the hosts enqueue the operations.
    job.is_kernel_timed = false;
    for ends in [EndSync::Apart, EndSync::Together] {
        job.collectives.iter_mut().for_each(|collective| collective.ends = ends);
        let report = analyze(&job, &Limits::default());
        assert_eq!((&report.findings[..], &report.last_arrivers[..]), (&[][..], &[][..]));
        assert!(
            report.steps.iter().all(|step| step.cause.is_none() && step.waiting_share.is_none())
        );
        let refusal = "which rank the others wait for is not said";
        assert!(report.quiet.iter().any(|line| line.starts_with(refusal)), "{:?}", report.quiet);
    }
}
