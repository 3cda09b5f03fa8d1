// SPDX-License-Identifier: Apache-2.0
//! Every scenario file of the rig is right, and ends on real NCCL as it says.

use rig::job::Job;
use rig::scenario_file::ScenarioFile;
use rig::wheel;
use std::path::Path;

/// Reads and runs the scenario, on the first and the last of its releases.
fn run(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let file = ScenarioFile::read(&folder.join(name)).expect("the file is right");
    let ends = [file.releases.first(), file.releases.last()];
    for version in ends.into_iter().flatten() {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let job = file.apply(Job::new(&nccl).expect("the stand-in builds"));
        let outcome = job.run().expect("ranks start");
        let checked = file.check(&outcome);
        assert!(checked.is_ok(), "{name} {version}: {}", checked.unwrap_err());
    }
}

#[test]
fn a_slow_rank() {
    run("slow-rank.toml");
}

#[test]
fn a_missing_rank() {
    run("missing-rank.toml");
}

#[test]
fn a_stuck_kernel() {
    run("stuck-kernel.toml");
}

#[test]
fn slow_kernels() {
    run("slow-kernels.toml");
}
