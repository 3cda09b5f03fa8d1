// SPDX-License-Identifier: Apache-2.0
//! Tests of the scenario files that come with the crate.

use ncclscope_simulate::{Fault, FaultGroup, SCHEMA, Scenario, Truth, run};
use std::collections::BTreeSet;
use std::path::Path;

/// Name and content of each scenario file.
fn scenarios() -> Vec<(String, Scenario)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, scenario)
    };
    files.map(read).collect()
}

#[test]
fn every_fault_has_a_scenario_of_its_name() {
    let names: BTreeSet<String> = scenarios().into_iter().map(|(name, _)| name).collect();
    for fault in Fault::all() {
        assert!(names.contains(fault.name()), "{} lacks", fault.name());
    }
}

#[test]
fn every_scenario_gives_a_truth_that_fits_it() {
    for (name, mut scenario) in scenarios() {
        // The same faults in a smaller job, so that the test takes seconds.
        scenario.job.steps = 2;
        scenario.job.hold_s = 3;
        if scenario.job.tp == 0 {
            scenario.job.ranks = 16;
        }
        let dir = tempfile::tempdir().unwrap();
        let summary = run(&scenario, dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("truth.json")).unwrap();
        let truth: Truth = serde_json::from_str(&text).unwrap();
        assert_eq!(truth, summary.truth, "{name}");
        assert_eq!((truth.schema.as_str(), truth.seed), (SCHEMA, scenario.seed));
        assert_eq!(truth.hidden, Vec::<String>::new(), "{name}");
        let count = |group| scenario.fault.iter().filter(|p| p.name.group() == group).count();
        assert_eq!(truth.verdicts.len(), count(FaultGroup::Hang), "{name}");
        assert_eq!(truth.slow.len(), count(FaultGroup::Slow), "{name}");
        for verdict in &truth.verdicts {
            assert!(verdict.root_ranks.is_sorted() && !verdict.root_ranks.is_empty(), "{name}");
            assert!(verdict.root_ranks.iter().all(|&rank| rank < truth.job.ranks), "{name}");
        }
        // A job with faults that only corrupt or slow down completes.
        let ends = count(FaultGroup::Hang) == 0;
        assert!(truth.ended || !ends, "{name}");
    }
}

/// The recordings of a job with this fault, by name.
fn recordings(fault: Option<Fault>, change: &dyn Fn(&mut Scenario)) -> Vec<Vec<u8>> {
    let mut scenario = Scenario { seed: 2, ..Scenario::default() };
    scenario.fault.extend(fault.map(ncclscope_simulate::Planted::new));
    (scenario.job.steps, scenario.job.hold_s) = (4, 3);
    change(&mut scenario);
    let dir = tempfile::tempdir().unwrap();
    run(&scenario, dir.path()).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| !path.ends_with("truth.json")).collect();
    files.sort();
    files.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Faults whose advice was followed, or that hit a link of the last stage.
#[test]
fn a_planted_fault_changes_the_recordings() {
    let last_stage: &dyn Fn(&mut Scenario) = &|s| (s.job.tp, s.job.pp) = (1, 4);
    let advised: &dyn Fn(&mut Scenario) = &|s| (s.job.ranks, s.job.tp, s.job.pp) = (16, 4, 1);
    let two_hosts: &dyn Fn(&mut Scenario) = &|s| s.job.ranks = 4;
    let wide: &dyn Fn(&mut Scenario) = &|s| (s.job.ranks, s.job.tp) = (32, 16);
    for (fault, change) in [
        (Fault::SlowLink, last_stage),
        (Fault::SenderGpuStuck, advised),
        (Fault::NicDown, advised),
        (Fault::ProxyStalled, advised),
        (Fault::Drift, two_hosts),
        (Fault::LinkDown, wide),
    ] {
        assert_ne!(recordings(Some(fault), change), recordings(None, change), "{fault:?}");
    }
}

#[test]
fn an_impossible_scenario_gets_one_clear_error() {
    let wrong = |change: &dyn Fn(&mut Scenario), says: &str| {
        let mut scenario = Scenario::default();
        change(&mut scenario);
        let dir = tempfile::tempdir().unwrap();
        let error = run(&scenario, dir.path()).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    };
    wrong(&|s| s.job.ranks = 1, "from 2 to 131072");
    wrong(&|s| s.job.steps = u32::MAX, "up to 100000 can be simulated");
    wrong(&|s| (s.job.tp, s.job.dp) = (3, 3), "is not 16 ranks");
    wrong(&|s| s.job.ep = 7, "does not divide");
    let planted = |fault| ncclscope_simulate::Planted::new(fault);
    wrong(&|s| s.fault = vec![planted(Fault::Killed); 4], "at most three");
    wrong(
        &|s| (s.job.tp, s.job.pp, s.fault) = (1, 1, vec![planted(Fault::OrderSwap)]),
        "--tp 2 or more",
    );
    for fault in [Fault::SenderGpuStuck, Fault::NicDown, Fault::ProxyStalled] {
        wrong(
            &|s| (s.job.tp, s.job.pp, s.fault) = (1, 1, vec![planted(fault)]),
            "give --ranks 16 --tp 4",
        );
    }
    // The more ranks, the more of them a host has.
    wrong(
        &|s| (s.job.ranks, s.job.pp, s.job.tp, s.fault) = (8, 4, 1, vec![planted(Fault::NicDown)]),
        "give --ranks 64 --tp 8",
    );
    wrong(&|s| (s.job.tp, s.fault) = (16, vec![planted(Fault::LinkDown)]), "give --ranks 32");
    wrong(
        &|s| (s.job.ranks, s.fault) = (2, vec![planted(Fault::Drift)]),
        "it needs a second host: give --ranks 4",
    );
    wrong(
        &|s| (s.job.tp, s.job.pp, s.fault) = (1, 1, vec![planted(Fault::AlgoChange)]),
        "--tp 2 or more",
    );
    wrong(
        &|s| {
            s.fault = vec![ncclscope_simulate::Planted { rank: Some(99), ..planted(Fault::Killed) }]
        },
        "below 16",
    );
    wrong(
        &|s| {
            (s.counters, s.fault) = (true, vec![planted(Fault::FlushStuck)]);
            s.job.ranks = 2_048;
        },
        "does not show in the counters of more than 1,024 ranks",
    );
    assert!(Scenario::parse("[job]\nrank = 5").unwrap_err().contains("rank"));
}
