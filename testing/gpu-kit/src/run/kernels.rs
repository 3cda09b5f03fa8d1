// SPDX-License-Identifier: Apache-2.0
//! The meaning of kernel channel events for a real kernel.

use invariants::Expect;
use ncclscope_control::releases::Drift;
use std::time::Duration;

use super::launch::{Launch, Layout};
use super::part::Part;
use super::row::Found;
use super::setup::Setup;
use crate::facts::{self, Facts};

/// Check 2.
pub(super) const DRIFT: Part = Part {
    id: "2",
    title: "work counters after Broadcasts: AllReduce, Broadcast, three AllReduces, one delayed",
    expected: "up to 2.28: the last kernel begins behind the delay, no stamp twice or before its \
               launch; from 2.29 on they drift (NVIDIA/nccl#2369), and the plugin gives them up",
    seconds: 12,
    run: drift,
};
/// Check 3.
pub(super) const EARLY_STOP: Part = Part {
    id: "3",
    title: "a kernel channel's stop against CUDA events, the peer 500 ms late",
    expected: "RING: equal to 10 %; TREE: shorter, as thread 0 ends with its own role",
    seconds: 20,
    run: early_stop,
};
/// Check 10.
pub(super) const OVERRUN: Part = Part {
    id: "10",
    title: "2,000 small AllReduces (500 between processes), NCCL's threads on a busy core",
    expected: "no stamp twice: NCCL's ring of 64 stamps is not overtaken",
    seconds: 7,
    run: overrun,
};

/// A part between the checks.
pub(super) const DESTROY: Part = Part {
    id: "destroy",
    title: "Broadcasts of two roots in a group, kernel events by default and on, then destroy",
    expected: "it returns; but not in NCCL 2.29 and 2.30 with kernel events on",
    seconds: 8,
    run: destroy,
};

/// Ranks that are killed or counters that drift are expected in these parts: the invariants are not
/// checked.
const ANY: Expect = Expect {
    lost_ok: true,
    killed_ok: true,
    aborted_ok: true,
    ptimer_ok: true,
    ranks: Some(2),
    nodes: None,
};

fn drift(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if setup.version < 22700 {
        return Ok(Found::skipped("this release stamps no kernel"));
    }
    let delay_ms: u32 = setup.scale(1000, 300);
    let delay = format!("spin:{delay_ms}");
    let job = Launch::new(setup, "2-drift").env("NCCLSCOPE_KERNEL", "on");
    let job = job.env("NCCLSCOPE_RING_MB", 16);
    // In these releases AllGatherV schedules the grouped Broadcasts, and with kernel events it
    // never ends (`ncclscope_control::releases`).
    let drift = setup.kernel_events().drift;
    let job = if drift == Drift::GroupedRoots { job.env("NCCL_ALLGATHERV_ENABLE", 0) } else { job };
    let job = job.steps(["allreduce:65536", "broadcast:65536", "broadcasts:65536"]);
    let job = job.steps(["allreduce:65536:2", "barrier", &delay, "allreduce:65536"]);
    let ended = job.run(limit).err();
    let facts = facts::read(&job.folder, &ANY)?;
    let sum = |of: fn(&Facts) -> usize| facts.iter().map(of).sum::<usize>();
    let (repeated, early) = (sum(|f| f.repeated), sum(|f| f.early));
    let reduces: Vec<_> = facts.iter().map(|f| f.of("AllReduce")).collect();
    let missing = reduces.iter().flatten().filter(|op| op.kernel.is_none()).count();
    let gaps: Vec<u64> = reduces.iter().filter_map(|ops| gap_ms(ops)).collect();
    let least = gaps.iter().min().copied().unwrap_or(0);
    let crash = ended.as_deref().unwrap_or("it ended well");
    let text = format!(
        "last kernel {gaps:?} ms behind the one before it (delay {delay_ms} ms), {repeated} stamps \
         twice, {early} before their launch, {missing} AllReduces without; {crash}"
    );
    let is_whole = repeated + early + missing == 0 && least + 100 >= u64::from(delay_ms);
    // The job has no sends.
    let drifts = matches!(drift, Drift::GroupedRoots | Drift::Broadcast);
    Ok(Found::judged((is_whole && ended.is_none()) != drifts, text)
        .figure("least_gap_ms", least as f64)
        .figure("repeated", repeated as f64)
        .figure("early", early as f64)
        .figure("missing", missing as f64))
}

fn destroy(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let hangs = setup.kernel_events().drift == Drift::GroupedRoots;
    let (mut words, mut is_expected) = (vec![], true);
    for kernel in ["auto", "on"] {
        let job = Launch::new(setup, &format!("destroy-{kernel}")).env("NCCLSCOPE_KERNEL", kernel);
        let job = job.steps(["allreduce:65536", "broadcasts:65536", "allreduce:65536"]);
        let ended = job.run(limit / 2).is_ok();
        words.push(format!("{kernel}: {}", if ended { "it returns" } else { "it does not" }));
        is_expected &= ended != (hangs && kernel == "on");
    }
    Ok(Found::judged(is_expected, words.join("; ")))
}

/// The gap between the kernels of the last two operations, ms.
fn gap_ms(operations: &[&facts::Operation]) -> Option<u64> {
    let [.., before, last] = operations else { return None };
    let ((_, end), (start, _)) = (before.kernel?, last.kernel?);
    Some(start.saturating_sub(end) / 1_000_000)
}

fn early_stop(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if setup.version < 22800 {
        return Ok(Found::skipped("CUDA events around launches need NCCL 2.28 or later"));
    }
    let late = format!("0/spin:{}", setup.scale(500, 300));
    let (mut words, mut figures, mut ring_is_true) = (vec![], vec![], false);
    for algorithm in ["Ring", "Tree"] {
        let job = Launch::new(setup, &format!("3-{algorithm}")).layout(Layout::at_once(setup));
        let job = job.env("NCCL_ALGO", algorithm).env("NCCL_PROTO", "Simple");
        let job = job.env("NCCLSCOPE_KERNEL", "on").env("NCCLSCOPE_CUDA_EVENTS", "on");
        let job = job.steps(["allreduce:65536", "barrier", &late, "allreduce:65536", "sleep:300"]);
        job.run(limit / 2)?;
        let facts = facts::read(&job.folder, &ANY)?;
        // The last operation of each rank. Rank 1's takes longer, because it waits. The first
        // operations may take longer still, since NCCL connects the ranks in them.
        let ranks = 2 / facts.len().max(1);
        let last = facts.iter().flat_map(|f| f.operations.iter().rev().take(ranks));
        let last = last.filter_map(|op| Some((op.event_ns?, op.kernel?))).max();
        let Some((event, (start, stop))) = last else {
            return Err(format!("{algorithm}: no operation has both times"));
        };
        let (kernel, event) = ((stop - start) as f64 / 1e6, event as f64 / 1e6);
        words.push(format!("{algorithm}: kernel {kernel:.2} ms, events {event:.2} ms"));
        figures.push((format!("{}_kernel_ms", algorithm.to_lowercase()), kernel));
        figures.push((format!("{}_event_ms", algorithm.to_lowercase()), event));
        ring_is_true |= algorithm == "Ring" && (kernel - event).abs() <= 0.1 * event;
    }
    Ok(Found::judged(ring_is_true, words.join("; ")).figures(figures))
}

fn overrun(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if setup.version < 22700 {
        return Ok(Found::skipped("this release stamps no kernel"));
    }
    let many = if setup.has_threads() { 2000 } else { 500 };
    let count = setup.scale(many, 100);
    let many = format!("allreduce:1024:{count}");
    let job = Launch::new(setup, "10-overrun").layout(Layout::at_once(setup));
    let job = job.env("NCCLSCOPE_KERNEL", "on").steps(["allreduce:1024", "pin", &many]);
    let said = job.run(limit)?;
    let facts = facts::read(&job.folder, &ANY)?;
    let repeated: usize = facts.iter().map(|f| f.repeated).sum();
    let stamps: usize = facts.iter().map(|f| f.stamps.len()).sum();
    let threads = said.value(0, "pin", "threads")?;
    let text = format!("{repeated} of {stamps} stamps twice; {threads} threads were pinned");
    Ok(Found::judged(repeated == 0, text)
        .figure("repeated", repeated as f64)
        .figure("stamps", stamps as f64))
}
