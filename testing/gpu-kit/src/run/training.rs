// SPDX-License-Identifier: Apache-2.0
//! Training with PyTorch: the cost of the plugin per step, and the report about a rank that is late
//! or stops.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

use super::part::Part;
use super::python::{Script, version};
use super::row::Found;
use super::setup::Setup;

/// The plugin's cost per step.
pub(super) const STEP: Part = Part {
    id: "step",
    title: "PyTorch: a step of data parallel training with the plugin and without, interleaved",
    expected: "at most 1.02 times the time without a plugin, or the noise",
    seconds: 45,
    run: step,
};
/// Check 13.
pub(super) const LATE: Part = Part {
    id: "13",
    title: "PyTorch: rank 1 works longer in each step; four buckets of one size",
    expected: "the report's answer is SLOW, and what costs most is rank 1 (while it has the GPU, \
               data waits for rank 0, too)",
    seconds: 25,
    run: late,
};
/// Check 14.
pub(super) const STOPS: Part = Part {
    id: "14",
    title: "PyTorch: rank 1 calls NCCL no more",
    expected: "the report's answer is HUNG, H1a, rank 1",
    seconds: 25,
    run: stops,
};

const SCRIPT: &str = include_str!("training.py");

/// The median time of a step, ms.
fn step_ms(setup: &Setup, name: &str, has_plugin: bool) -> Result<f64, String> {
    let (steps, limit) = (setup.scale("120", "12"), Duration::from_secs(25));
    let said = Script::new(setup, name, SCRIPT, (&["even", steps], limit, has_plugin))?.run()?;
    let value = said.lines().find_map(|line| line.strip_prefix("step_ms ")?.parse().ok());
    value.ok_or_else(|| format!("{name}: rank 0 did not say its time"))
}

fn step(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let version = match version(setup) {
        Ok(version) => version,
        Err(skipped) => return Ok(skipped),
    };
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    let [mut with, mut noise, mut off] = [vec![], vec![], vec![]];
    while with.is_empty() || !setup.small && begin.elapsed() + longest < limit {
        let round = Instant::now();
        let name = |mode| format!("step/{mode}-{}", with.len());
        let [first, own, again] = [("off", false), ("default", true), ("again", false)]
            .map(|(mode, has_plugin)| step_ms(setup, &name(mode), has_plugin));
        let first = first?;
        with.push(own? / first);
        noise.push(again? / first);
        off.push(first);
        longest = longest.max(round.elapsed());
    }
    let rounds = with.len();
    let [with, noise, off] = [with, noise, off].map(super::cost::median);
    let text = format!(
        "torch {version}: {off:.2} ms without a plugin, {with:.3} times that with it, {noise:.3} \
         times without once more; medians of {rounds} rounds"
    );
    let most = noise.max(1.0 / noise).max(1.02);
    Ok(Found::judged(with <= most, text)
        .figure("off_ms", off)
        .figure("default_ratio", with)
        .figure("again_ratio", noise)
        .figure("rounds", rounds as f64))
}

/// Checks that the report's answer is this state of these ranks, with a worst cause of this class.
fn judged(report: &Value, state: &str, (class, ranks): (&str, &[Value])) -> Found {
    let answer = &report["answer"];
    let is_rank = ranks.contains(&answer["root_ranks"]);
    let is_expected = answer["state"] == state && is_rank && answer["classes"][0] == class;
    let text = format!(
        "{}, {} of ranks {}: {}",
        answer["state"], answer["classes"], answer["root_ranks"], answer["why"]
    );
    Found::judged(is_expected, text)
}

fn late(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if let Err(skipped) = version(setup) {
        return Ok(skipped);
    }
    let steps = setup.scale("40", "20");
    let mut job = Script::new(setup, "13-late", SCRIPT, (&["late", steps], limit, true))?;
    job = job.env("NCCLSCOPE_KERNEL", "on");
    job.run()?;
    Ok(judged(&job.report()?, "SLOW", ("S1", &[json!([1]), json!([0, 1])])))
}

fn stops(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if let Err(skipped) = version(setup) {
        return Ok(skipped);
    }
    // The time limit ends the job: it hangs, as such jobs do.
    let limit = limit.min(Duration::from_secs(17));
    let mut job = Script::new(setup, "14-stops", SCRIPT, (&["stops", "20"], limit, true))?;
    job = job.env("NCCLSCOPE_HANG_SEC", "3");
    job.run_anyhow()?;
    Ok(judged(&job.report()?, "HUNG", ("H1a", &[json!([1])])))
}
