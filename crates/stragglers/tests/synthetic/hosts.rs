// SPDX-License-Identifier: Apache-2.0
//! Clocks of ranks on one host, whatever their kernels' stop events say.

use ncclscope_stragglers::clock::Clocks;
use ncclscope_stragglers::model::{Collective, EndSync, Job, Part, Worker};
use ncclscope_stragglers::{Limits, analyze};

/// The lateness of one rank in each operation, ns.
const LATE: f64 = 8e6;

/// 200 collectives of two ranks, the second of which is always late. Each kernel stops when the
/// rank's own data is on its way, as with NVLS.
fn job(hosts: [&str; 2], ends: EndSync) -> Job {
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
        let parts = vec![part(0), part(1)];
        job.collectives.push(Collective { class: 0, shape: 0, step: None, ends, parts });
    }
    job
}

#[test]
fn a_rank_that_is_always_late_is_not_a_clock_that_is_behind() {
    // With ends that look common, and with ends known not to be.
    for ends in [EndSync::Together, EndSync::Apart] {
        let job = job(["node1", "node1"], ends);
        let clocks = Clocks::fit(&job);
        let apart = clocks.offset(1).ns - clocks.offset(0).ns;
        assert!(apart.abs() <= 50_000.0, "{ends:?}: {apart} ns");
        assert_eq!(clocks.groups, 1, "{ends:?}: one host has one clock");
    }
    let report = analyze(&job(["node1", "node1"], EndSync::Apart), &Limits::default());
    let roots = report.steps.iter().skip(1).map(|step| step.root.as_ref().and_then(|of| of.rank));
    assert!(roots.clone().count() > 100 && roots.clone().all(|rank| rank == Some(1)), "{report:?}");
    // Between hosts clocks may be that far apart, and common ends show it.
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
