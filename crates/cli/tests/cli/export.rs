// SPDX-License-Identifier: Apache-2.0
//! `ncclscope export`: both formats, read by other programs.

use crate::common::{Outcome, Run, ncclscope};
use ncclscope_analyze::simulate::{Call, Fault};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// What the official schema makes of a pftrace; `None` without a Python that has it.
fn check(path: &Path) -> Option<Value> {
    let Some(python) = std::env::var_os("NCCLSCOPE_TEST_PYTHON") else {
        assert!(
            std::env::var("NCCLSCOPE_REQUIRE_NCCL").as_deref() != Ok("1"),
            "NCCLSCOPE_TEST_PYTHON is not set: name a Python that has the package perfetto"
        );
        let mut out = std::io::stdout();
        writeln!(out, "skipped: NCCLSCOPE_TEST_PYTHON is not set").unwrap();
        return None;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/check_pftrace.py");
    let outcome = Outcome::of(Command::new(python).arg(script).arg(path)).ends_with(0);
    Some(serde_json::from_str(&outcome.stdout).unwrap())
}

fn export(run: &Run, format: &str) -> std::path::PathBuf {
    let path = run.file("trace");
    let args = ["export", run.text(), "--to", format, "-o", path.to_str().unwrap()];
    let outcome = ncclscope(&args).ends_with(0);
    assert!(outcome.stderr.contains("slices of 2 processes"), "{outcome:#?}");
    path
}

#[test]
fn pftrace_holds_against_the_official_schema() {
    let run = Run::new(|p| {
        p.collective(Call::ALL_REDUCE);
        p.collective(Call { func: "AllGather", ..Call::ALL_REDUCE });
        p.send_recv(1 - p.comm.rank, 4096);
    });
    let Some(seen) = check(&export(&run, "pftrace")) else { return };
    let processes = ["rank 0 (node-0 1000)", "rank 1 (node-1 1001)"];
    assert_eq!(seen["processes"], Value::from(processes.to_vec()));
    let tracks = [
        "API calls",
        "Groups",
        "Kernel channel 0",
        "Kernel channel 1",
        "Operations",
        "Proxy receive from rank 1, channel 0",
        "Proxy receive from rank 1, channel 1",
        "Proxy send to rank 1, channel 0",
        "Proxy send to rank 1, channel 1",
    ];
    assert_eq!(seen["tracks"][processes[0]], Value::from(tracks.to_vec()));
    assert_eq!(seen["slices"]["ProxyStep"], 2 * 34);
    assert_eq!(seen["slices"]["KernelCh AllGather"], 4);
    assert_eq!(seen["arrows"], 2 * (4 + 4 + 10 + 17));
    assert_eq!(seen["ranks_by_collective"], Value::from(vec![2, 2]));
    assert_eq!(seen["first_operation"]["algo"], "RING");
    assert_eq!(seen["open"], 0);
    assert!(seen["bytes_per_slice"].as_u64().unwrap() <= 130, "{seen}");
}

#[test]
fn pftraces_may_be_put_behind_one_another() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let mut both = Vec::new();
    for name in ["node-0-1000.nscope", "node-1-1001.nscope"] {
        let (input, output) = (run.file(name), run.file("one"));
        let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
        ncclscope(&["export", input, "--to", "pftrace", "-o", output]).ends_with(0);
        both.extend(std::fs::read(output).unwrap());
    }
    let path = run.file("both");
    std::fs::write(&path, both).unwrap();
    let Some(seen) = check(&path) else { return };
    assert_eq!(seen["processes"].as_array().unwrap().len(), 2);
    assert_eq!(seen["ranks_by_collective"], Value::from(vec![2]));
}

#[test]
fn open_events_are_shown_as_open() {
    let run = Run::new(|p| p.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE }));
    let Some(seen) = check(&export(&run, "pftrace")) else { return };
    // On each rank: the operation, a KernelCh, a ProxyOp and a step.
    assert_eq!(seen["open"], 8);
}

#[test]
fn chrome_is_json_also_on_standard_output() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let bytes = std::fs::read(export(&run, "chrome")).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(json["traceEvents"].as_array().unwrap().len() > 100);
    let outcome = ncclscope(&["export", run.text(), "--to", "chrome", "-o", "-"]).ends_with(0);
    assert_eq!(outcome.stdout.as_bytes(), bytes);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn what_cannot_be_written_is_code_4_and_leaves_nothing() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let args = |path: &str| ncclscope(&["export", run.text(), "--to", "chrome", "-o", path]);
    let outcome = args("/absent/trace").ends_with(4);
    assert!(outcome.stderr.starts_with("ncclscope: error: cannot write /absent/trace"));
    let outcome = args("/proc/trace").ends_with(4);
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    let outcome = args("/dev/full").ends_with(4);
    assert!(outcome.stderr.contains("free some space"), "{outcome:#?}");
    let before = std::fs::read_dir(run.path()).unwrap().count();
    std::fs::create_dir(run.file("taken")).unwrap();
    args(run.file("taken").to_str().unwrap()).ends_with(4);
    assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), before + 1);
}
