// SPDX-License-Identifier: Apache-2.0
//! A root rank by itself shows the class that all ranks together give, or none: the watchdog and
//! `diagnose` never contradict each other.

use ncclscope_diagnose::{Options, diagnose, input};
use ncclscope_findings::{FindingClass, Tool};
use ncclscope_simulate::{Fault, Planted, Scenario, run};
use std::collections::BTreeSet;

/// Each root rank of a verdict on a job with the fault: that verdict's class, and the classes that
/// the rank's own recording shows.
fn roots(fault: Fault) -> Vec<(FindingClass, BTreeSet<Option<FindingClass>>)> {
    let fault = vec![Planted::new(fault)];
    let mut scenario = Scenario { seed: 1, fault, ..Scenario::default() };
    (scenario.job.ranks, scenario.job.steps, scenario.job.hold_s) = (16, 3, 12);
    let dir = tempfile::tempdir().unwrap();
    run(&scenario, dir.path()).unwrap();
    let read = input::open(&[dir.path().into()], &input::InputOptions::default()).unwrap();
    let job = read.job;
    let process = |rank: u32| {
        let count = u32::try_from(job.processes.len()).unwrap();
        (0..count).find(|&process| job.rank(process) == rank).unwrap()
    };
    let options = Options::default();
    let verdicts = diagnose(&job, &options).verdicts;
    let roots =
        verdicts.iter().flat_map(|one| one.root_ranks.iter().map(|&rank| (one.class, rank)));
    let alone =
        |rank| ncclscope_diagnose::local_findings(&job, process(rank), &options).into_iter();
    roots.map(|(class, rank)| (class, alone(rank).map(|local| local.class).collect())).collect()
}

#[test]
fn a_root_rank_shows_the_class_of_the_verdict_or_none() {
    let mut seen = BTreeSet::new();
    for fault in Fault::all() {
        for (class, alone) in roots(fault) {
            let name = fault.name();
            let is_same = alone.iter().flatten().all(|&own| own == class);
            assert!(is_same, "{name}: all say {class}, the rank {alone:?}");
            seen.extend(alone.into_iter().flatten());
        }
    }
    // All classes that one rank can show, except those that need CUDA events.
    let mut local: BTreeSet<FindingClass> = FindingClass::ALL.into_iter().collect();
    local.retain(|class| class.is_reported_by(Tool::Watchdog) && *class != FindingClass::GpuDead);
    assert_eq!(seen, local);
}
