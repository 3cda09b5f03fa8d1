// SPDX-License-Identifier: Apache-2.0
//! Ranks that exit without destroying their communicators, as scripts often do.

use ncclscope_trace::Recording;
use rig::job::Job;
use rig::topology::Topology;
use rig::{build, wheel};

/// The rig once unloaded libnccl while its threads ran, which killed every fourth job with SIGSEGV.
const ROUNDS: u32 = 6;

/// NCCL's threads continue while the process exits, and the plugin's work at exit takes
/// milliseconds.
#[test]
fn ranks_that_keep_their_communicators_end_in_order() {
    for release in ["2.28.9", "2.32.3"] {
        let Some(nccl) = wheel::find_or_skip(release) else { continue };
        build::artifacts().expect("the stand-in builds");
        let plugin = build::plugin();
        for round in 0..ROUNDS {
            let record = tempfile::tempdir().expect("a folder");
            let job = Job::new(&nccl).expect("the stand-in builds").topology(Topology::Ring4);
            let job = job
                .env("NCCL_PROFILER_PLUGIN", &plugin)
                .env("NCCLSCOPE_DIR", record.path())
                .arg("--no-destroy")
                .steps(["allreduce:262144"; 4])
                // A rank that has its result may exit before NCCL's thread has sent the last data
                // to another rank, which then waits for ever.
                .steps(["barrier"]);
            let outcome = job.run().expect("ranks start");
            assert!(outcome.succeeded(), "{release}, round {round}\n{outcome}");
            for file in std::fs::read_dir(record.path()).expect("a folder").flatten() {
                let path = file.path();
                if path.extension().is_some_and(|it| it == "nscope") {
                    let recording = Recording::open(&path).expect("a recording");
                    assert_eq!(recording.identity().exit_status, Some(0), "{}", path.display());
                }
            }
        }
    }
}
