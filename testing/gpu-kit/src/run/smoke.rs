// SPDX-License-Identifier: Apache-2.0
//! The demo's job, the contents of its recordings, and the GPU's timer.

use invariants::Expect;
use ncclscope_trace::EventKind;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::launch::Launch;
use super::part::Part;
use super::row::Found;
use super::setup::Setup;
use crate::facts::{self, Facts};

/// Check 1.
pub(super) const SMOKE: Part = Part {
    id: "1",
    title: "the demo's job; stamps of the GPU's timer",
    expected: "all operations recorded, no rule broken; granularity at most 1,000 ns; clock placed",
    seconds: 15,
    run: smoke,
};
/// Checks the GPU's timer without NCCL.
pub(super) const TIMER: Part = Part {
    id: "timer",
    title: "fidelity of the GPU's timer",
    expected: "at most 200 ppm against the host; within 10 us of CUDA events",
    seconds: 18,
    run: timer,
};

/// The steps; their numbers count floats.
const STEPS: [&str; 9] = [
    "allreduce:256",
    "allreduce:16384",
    "allreduce:262144",
    "allreduce:1048576",
    "allgather:262144",
    "reducescatter:262144",
    "broadcast:262144",
    "sendrecv:262144",
    "group:4x65536",
];
/// Number of operations of a rank in [`STEPS`], including the two of the send and receive.
const OPERATIONS: usize = 13;
/// From 2.29 on, NCCL reports no Broadcast.
const NO_BROADCAST: u32 = 22900;

/// Runs `job` as `scripts/gpu-check` and the demo do.
fn job(setup: &Setup, limit: Duration) -> Result<Vec<Facts>, String> {
    let folder = setup.out.join("1-smoke");
    let mut command = Command::new("timeout");
    command.arg(limit.as_secs().to_string()).arg(setup.bin.join("ncclscope"));
    command.args(["run", "--no-report", "-o"]).arg(&folder).arg("--").arg(setup.bin.join("job"));
    // The kit's files are used as they are, even in a source tree of the project.
    command.env("CARGO", "/nonexistent/cargo").arg("--nccl").arg(&setup.nccl);
    if !setup.stand_in {
        command.arg("--cuda").arg(&setup.cuda);
    }
    let steps = if setup.small { &STEPS[..2] } else { &STEPS[..] };
    command.args(steps).stdin(Stdio::null());
    let output = command.output().map_err(|e| format!("ncclscope run: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        return Err(format!("{}: {}", output.status, last.join(" | ")));
    }
    let report = setup.tool(&["report", "--format", "json"], &folder)?;
    let trace = folder.join("trace.pftrace").display().to_string();
    setup.tool(&["export", "--to", "pftrace", "-o", &trace], &folder)?;
    std::fs::write(folder.join("report.json"), report).map_err(|e| e.to_string())?;
    facts::read(&folder, &Expect { ranks: Some(2), nodes: Some(2), ..Expect::default() })
}

fn smoke(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let facts = job(setup, limit)?;
    let missing_broadcast = usize::from(setup.version >= NO_BROADCAST);
    let wanted = if setup.small { 2 } else { OPERATIONS - missing_broadcast };
    let recorded: Vec<usize> = facts.iter().map(|f| f.operations.len()).collect();
    let violations: usize = facts.iter().map(|f| f.violations.len()).sum();
    let stamps: Vec<u64> = facts.iter().flat_map(|f| f.stamps.clone()).collect();
    let (count, granularity) = (stamps.len(), facts::granularity(stamps));
    let error = facts.iter().filter_map(|f| f.error_ns).max();
    let offset = facts.iter().find_map(|f| f.offset_ns);
    let kernels: usize = facts.iter().map(|f| f.count(EventKind::KernelCh)).sum();
    // The stand-in's time stamps are those of the host's clock.
    let fine = count == 0 || granularity <= 1000;
    let placed = count == 0 || setup.version < 22800 || error.is_some();
    let is_expected = recorded.iter().all(|&n| n == wanted) && facts.len() == 2;
    let text = format!(
        "{recorded:?} of {wanted} operations a rank, {violations} rules broken, {kernels} kernel \
         channel events, {count} stamps of granularity {granularity} ns, placed to {error:?} ns, \
         host minus GPU {offset:?} ns"
    );
    let found = Found::judged(is_expected && violations == 0 && fine && placed, text)
        .figure("granularity_ns", granularity as f64)
        .figure("stamps", count as f64)
        .figures(error.map(|ns| ("error_ns".to_owned(), ns as f64)))
        .figures(offset.map(|ns| ("offset_ns".to_owned(), ns as f64)));
    Ok(found)
}

fn timer(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if setup.stand_in {
        return Ok(Found::skipped("the stand-in runs no PTX"));
    }
    let begin = Instant::now();
    let step = format!("0/timer:{}", setup.scale(10_000, 1000));
    let said = Launch::new(setup, "timer").without_plugin().step(step).run(limit)?;
    let granularity = said.value(0, "timer", "granularity_ns")?;
    let (ppm, worst) =
        (said.value(0, "timer", "ppm")?, said.value(0, "timer", "worst_event_error_ns")?);
    let text = format!(
        "granularity {granularity} ns, {ppm:.1} ppm against the host in {:.0} s, {:.1} us at most \
         between it and CUDA events",
        begin.elapsed().as_secs_f64(),
        worst / 1e3
    );
    Ok(Found::judged(ppm.abs() <= 200.0 && worst <= 10_000.0, text)
        .figure("granularity_ns", granularity)
        .figure("drift_ppm", ppm)
        .figure("event_error_ns", worst))
}
