// SPDX-License-Identifier: Apache-2.0
//! What the ranks' own watchdogs reported of a job that was killed.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Options, diagnose, recorded_job};
use scripts::{Call, Fault, Process};
use std::path::PathBuf;

/// The number of findings about two ranks that were killed `young_ns` after they began an
/// operation, and of which rank 0's watchdog reported this after that.
fn findings(young_ns: u64, report: &'static str) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let write = |rank: i32| {
        let mut process = Process::new(rank, 2);
        process.header.closed = false;
        process.collective(Call::ALL_REDUCE);
        process.now += 11_000_000_000;
        process.collective(Call::ALL_REDUCE);
        if rank == 0 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
            process.hang = Some((process.now + young_ns / 2, report));
        }
        process.now += young_ns;
        process.write(dir.path()).unwrap()
    };
    let paths: Vec<PathBuf> = (0..2).map(write).collect();
    let job = recorded_job(&paths, &InputOptions::default(), &mut Vec::new()).unwrap();
    diagnose(&job, &Options::default()).findings.len()
}

#[test]
fn that_a_hang_is_over_makes_no_operation_stuck_that_began_before_it_was_noticed() {
    assert_eq!(findings(900_000_000, "HANG: AllReduce 3"), 1);
    assert_eq!(findings(900_000_000, "recovered after 11.3 s: AllReduce 2"), 0);
    assert_eq!(
        findings(3_000_000_000, "recovered after 11.3 s: AllReduce 2"),
        1,
        "longer than 2 s"
    );
}
