// SPDX-License-Identifier: Apache-2.0
//! Clocks of ranks on one host, whatever their kernels' stops say.

use ncclscope_stragglers::clock::Clocks;
use ncclscope_stragglers::model::{Collective, Ends, Job, Part, Worker};
use ncclscope_stragglers::{Limits, analyze};

/// How late one rank is each time, ns.
const LATE: f64 = 8e6;

/// 200 collectives of two ranks, of which the second is always late. Each kernel stops when the
/// rank's own data is on its way, as with NVLS.
fn job(hosts: [&str; 2], ends: Ends) -> Job {
    let mut job = Job { is_kernel_timed: true, ..Job::default() };
    job.workers = (0..).zip(hosts).map(|(rank, host)| Worker::new(rank, host)).collect();
    job.classes.push(ncclscope_stragglers::model::Class::default());
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
fn a_rank_that_is_always_late_is_no_clock_that_is_behind() {
    // Taken for common ends, and where they are known to be none.
    for ends in [Ends::Together, Ends::Apart] {
        let job = job(["node1", "node1"], ends);
        let clocks = Clocks::fit(&job);
        let apart = clocks.offset(1).ns - clocks.offset(0).ns;
        assert!(apart.abs() <= 50_000.0, "{ends:?}: {apart} ns");
        assert_eq!(clocks.groups, 1, "{ends:?}: one host has one clock");
    }
    let report = analyze(&job(["node1", "node1"], Ends::Apart), &Limits::default());
    let roots = report.steps.iter().skip(1).map(|step| step.root.as_ref().and_then(|of| of.rank));
    assert!(roots.clone().count() > 100 && roots.clone().all(|rank| rank == Some(1)), "{report:?}");
    // Between hosts clocks may be that far apart, and common ends tell.
    let clocks = Clocks::fit(&job(["node1", "node2"], Ends::Together));
    let apart = clocks.offset(1).ns - clocks.offset(0).ns;
    assert!((apart - LATE).abs() < 1000.0, "{apart} ns");
}

#[test]
fn hosts_of_one_name_have_clocks_of_their_own() {
    let mut job = job(["node", "node"], Ends::Together);
    job.workers[0].machine = "boot of the one".into();
    job.workers[1].machine = "boot of the other".into();
    let clocks = Clocks::fit(&job);
    let apart = clocks.offset(1).ns - clocks.offset(0).ns;
    assert!((apart - LATE).abs() < 1000.0, "{apart} ns");
}
