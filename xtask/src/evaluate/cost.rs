// SPDX-License-Identifier: Apache-2.0
//! The cost of a finding, compared with what the job would save: the same job without the fault.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::case::{Folder, json, simulate};
use crate::outcome::Outcome;

/// Smallest true cost whose relative error says something, as a share of a step.
const LEAST_TRUE: f64 = 0.01;
/// A cost is right if it is off by no more than this share of the truth.
const NEAR: f64 = 0.25;
/// Minimum share of right costs.
const LEAST_RIGHT: f64 = 0.9;

/// A finding's cost and the truth, as shares of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pair {
    found: f64,
    interval: Option<[f64; 2]>,
    truth: f64,
}

impl Pair {
    /// The cost of the first finding of `ncclscope stragglers`, in a job whose steps take so long
    /// without the fault, ns. `None` without a finding, or if the fault costs too little.
    pub(super) fn of(slow: &Value, healthy_ns: f64) -> Option<Pair> {
        let truth = 1.0 - healthy_ns / step_ns(slow)?;
        let cost = &slow["findings"][0]["cost"];
        let found = cost["step_share"].as_f64().filter(|_| truth >= LEAST_TRUE)?;
        let end = |at: usize| cost["interval"][at].as_f64();
        Some(Pair { found, interval: end(0).zip(end(1)).map(<[f64; 2]>::from), truth })
    }

    fn error(&self) -> f64 {
        (self.found / self.truth - 1.0).abs()
    }

    fn is_inside(&self) -> bool {
        self.interval.is_some_and(|[low, high]| (low..=high).contains(&self.truth))
    }
}

/// The mean duration of a step, ns.
fn step_ns(slow: &Value) -> Option<f64> {
    let steps = slow["steps"].as_array()?.iter();
    let all: Vec<f64> = steps.filter_map(|step| step["duration_ns"].as_f64()).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / count(all.len()))
}

/// How long a step of the job without a fault takes, ns.
pub(super) fn healthy_ns(tool: &Path, scratch: &Path, ranks: u64, seed: u64) -> Outcome<f64> {
    let folder = Folder::new(scratch.join(format!("healthy-{ranks}-{seed}-twin")))?;
    simulate(tool, &folder.0, "", ranks, seed, &["--fault", "healthy"])?;
    let slow = json(Command::new(tool).args(["stragglers", "--format", "json"]).arg(&folder.0))?;
    Ok(step_ns(&slow).ok_or("the healthy job has no steps")?)
}

/// Prints how far costs are off. False if too few are near the truth.
pub(super) fn is_good(pairs: &[Pair]) -> bool {
    if pairs.is_empty() {
        return true;
    }
    let mut errors: Vec<f64> = pairs.iter().map(Pair::error).collect();
    errors.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| 100.0 * errors[(errors.len() - 1) * percent / 100];
    let near = errors.iter().filter(|error| **error <= NEAR).count();
    let inside = pairs.iter().filter(|pair| pair.is_inside()).count();
    println!(
        "costs against the healthy job: off by {:.1} % in the median, {:.1} % in nine of ten, \
         {:.1} % at most; within 25 %: {near} of {of}; in their interval: {inside} of {of}",
        at(50),
        at(90),
        at(100),
        of = pairs.len()
    );
    count(near) >= LEAST_RIGHT * count(pairs.len())
}

#[expect(clippy::cast_precision_loss, reason = "a few jobs and steps")]
fn count(of: usize) -> f64 {
    of as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cost_is_compared_with_the_job_without_the_fault() {
        let slow = |share: f64| {
            json!({
                "steps": [{"duration_ns": 120}, {"duration_ns": 130}],
                "findings": [{"cost": {"step_share": share, "interval": [0.15, 0.25]}}],
            })
        };
        let right = Pair::of(&slow(0.2), 100.0).expect("a finding");
        assert!(right.error() < 1e-9 && right.is_inside(), "{right:?}");
        let wrong = Pair::of(&slow(0.05), 100.0).expect("a finding");
        assert!(is_good(&[right; 9]) && !is_good(&[right, wrong]) && is_good(&[]));
        assert_eq!(Pair::of(&slow(0.2), 125.0), None, "it costs nothing");
        assert_eq!(Pair::of(&json!({"steps": [], "findings": []}), 100.0), None);
    }
}
