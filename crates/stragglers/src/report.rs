// SPDX-License-Identifier: Apache-2.0
/*!
The whole analysis, and its result as the JSON schema `ncclscope.stragglers/1`.

Each finding has its class, its root cause and the numbers that prove it. [`Report::quiet`] says why
something is not reported. This module does **not** print.
*/

use crate::blame::{Blame, blame};
use crate::clock::Clocks;
use crate::model::{Job, Worker};
use crate::robust::count;
use crate::steps::{Step, StepSource, Steps};
use crate::waits::{LastArriver, Waits, last_arrivers};
use crate::{drift, edges, slow, stalls};
use ncclscope_findings::{Confidence, FindingClass};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The most last arrivers that a report lists.
const ARRIVERS: usize = 1000;

/// The thresholds for findings: the least value that is reported.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// S1: the excess own time of a worker, as a share of the step.
    pub min_lost: f64,
    /// S1: the excess own time of a worker in a step, ns.
    pub min_lateness_ns: f64,
    /// S1: the number of recorded steps.
    pub min_steps: usize,
    /// S1: the share of steps that must exceed the other limits.
    pub min_steps_share: f64,
    /// N5: the time that a GPU holds up, as a share of the steps.
    pub min_stalled: f64,
    /// N5: the ratio of that time to the others' median.
    pub stall_factor: f64,
    /// S2 to S5: the distance from the median, in median absolute deviations.
    pub mads: f64,
    /// S3, S4: the ratio to the usual time per byte.
    pub edge_factor: f64,
    /// S2, S5: the ratio to the usual time.
    pub drift_factor: f64,
    /// S2 to S6: the number of operations or transfers.
    pub min_samples: u64,
    /// S3 to S5: the number of others to compare with.
    pub min_peers: usize,
    /// S2 to S5: the lost time, as a share of the run.
    pub min_extra: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            min_lost: 0.05,
            min_lateness_ns: 1e6,
            min_steps: 10,
            min_steps_share: 0.25,
            min_stalled: 0.02,
            stall_factor: 3.0,
            mads: 5.0,
            edge_factor: 1.25,
            drift_factor: 1.1,
            min_samples: 20,
            min_peers: 2,
            min_extra: 0.002,
        }
    }
}

/// The slow part of a job: a worker, a stage or a data-parallel rank, as the input names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SlowPart {
    /// Global rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Data-parallel rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dp_rank: Option<u32>,
    /// Pipeline stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
}

impl SlowPart {
    /// A worker.
    #[must_use]
    pub fn of(worker: &Worker) -> SlowPart {
        match worker.cell {
            Some(cell) => {
                SlowPart { rank: None, dp_rank: Some(cell.dp_rank), stage: Some(cell.stage) }
            }
            None => SlowPart { rank: Some(worker.rank), ..SlowPart::default() },
        }
    }

    pub(crate) fn stage(stage: u32) -> SlowPart {
        SlowPart { stage: Some(stage), ..SlowPart::default() }
    }

    pub(crate) fn dp_rank(dp_rank: u32) -> SlowPart {
        SlowPart { dp_rank: Some(dp_rank), ..SlowPart::default() }
    }

    /// Its name as text.
    #[must_use]
    pub fn name(&self) -> String {
        let words = [("rank", self.rank), ("DP rank", self.dp_rank), ("stage", self.stage)];
        let words = words.iter().filter_map(|(word, n)| n.map(|n| format!("{word} {n}")));
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Something that makes the job slow.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// The class: in JSON `class`, its code, and `name`.
    #[serde(flatten, serialize_with = "ncclscope_findings::code_and_name")]
    pub class: FindingClass,
    /// The finding in one sentence.
    pub title: String,
    /// How sure.
    pub confidence: Confidence,
    /// The slow part of the job, for S1, S7 and N5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<SlowPart>,
    /// The global ranks at fault; empty if no rank in particular is.
    pub root_ranks: Vec<u32>,
    /// Sender and receiver of a slow link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
    /// S1: the share of all waiting that it causes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// S1, N5: its excess own time, as a share of the steps.
    pub lost: f64,
    /// S1: the number of steps that exceed the limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// S2 to S5: the slowdown factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The communicators concerned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comms: Vec<String>,
    /// The evidence, one sentence each.
    pub evidence: Vec<String>,
}

impl Finding {
    /// A finding of this class without ranks or numbers.
    pub(crate) fn of(class: FindingClass) -> Finding {
        Finding {
            class,
            title: String::new(),
            confidence: Confidence::default(),
            root: None,
            root_ranks: Vec::new(),
            edge: None,
            share: None,
            lost: 0.0,
            steps: None,
            factor: None,
            comms: Vec::new(),
            evidence: Vec::new(),
        }
    }
}

/// A step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepRow {
    /// Its number.
    pub step: i64,
    /// What causes most of its waiting; stage and data-parallel rank are chosen separately. `None`
    /// if no wait exceeds the clock error.
    pub root: Option<SlowPart>,
    /// The share of its waiting that the root causes.
    pub share: f64,
    /// The mean waiting time of a worker, as a share of the step.
    pub waiting: f64,
    /// Duration, ms.
    pub duration_ms: f64,
}

/// The quality of the clock alignment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClockRow {
    /// The largest amount by which a pair of workers contradicts the alignment.
    pub max_residual_ms: f64,
    /// Shorter waits are ignored.
    pub error_ms: f64,
    /// The largest difference between two workers' clocks.
    pub max_offset_ms: f64,
    /// Pairs of workers compared.
    pub pairs: usize,
    /// Groups of workers that no common operation connects; 1 if all are on one clock.
    pub groups: usize,
}

/// The last member to arrive at a collective.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ArriverRow {
    /// The communicator.
    pub comm: String,
    /// The function.
    pub func: String,
    /// The member; `None` if the clock error exceeds the spread of the arrivals.
    pub last: Option<SlowPart>,
    /// How much later it arrived than the first member, ms.
    pub late_ms: f64,
}

/// The result of the analysis.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// `ncclscope.stragglers/1`.
    pub schema: &'static str,
    /// The steps.
    pub steps: Vec<StepRow>,
    /// The findings, worst first.
    pub summary: Vec<Finding>,
    /// The quality of the clock alignment.
    pub clock: ClockRow,
    /// The last arrivers of the first 1,000 collectives that end together.
    pub last_arrivers: Vec<ArriverRow>,
    /// Number of workers.
    pub workers: usize,
    /// Number of collectives with at least two recorded members.
    pub collectives: usize,
    /// Number of batches of sends and receives with a known partner.
    pub batches: usize,
    /// How the steps were found: `marks`, `repetition` or `none`.
    pub steps_from: &'static str,
    /// Why something is not reported.
    pub quiet: Vec<String>,
    /// Remarks about the input.
    pub notes: Vec<String>,
}

/// Analyses a job.
#[must_use]
pub fn analyze(job: &Job, limits: &Limits) -> Report {
    let clocks = Clocks::fit(job);
    let steps = Steps::of(job, &clocks);
    let waits = Waits::find(job, &clocks, &steps);
    let blames = blame(job, &clocks, &steps, &waits);
    // Operations before the first marked step are warm-up.
    let is_step = |step: &Step| step.number != Step::NONE;
    let (blames, list): (Vec<Blame>, Vec<Step>) =
        blames.into_iter().zip(steps.list.iter().copied()).filter(|(_, s)| is_step(s)).unzip();
    let span = list.iter().map(|step| step.duration).sum();
    let mut summary = Vec::new();
    if job.workers.len() > 1 {
        summary.extend(slow::find(job, &blames, &list, limits));
    }
    let mut notes = job.notes.clone();
    let links = own_links(edges::find(job, span, limits), &summary, &mut notes);
    let explained: BTreeSet<String> = links.iter().flat_map(|f| f.comms.clone()).collect();
    summary.extend(links);
    summary.extend(drift::find(job, &clocks, (&explained, span), limits));
    let stalled = stalls::find(job, span, limits);
    // Such a GPU is also late to the next operations, leaves its links idle, and slows down the
    // communicators inside its node: those findings are its effects.
    let is_told = |rank: &u32| stalled.iter().any(|finding| finding.root_ranks.contains(rank));
    summary.retain(|finding: &Finding| !finding.root_ranks.iter().any(is_told));
    summary.splice(0..0, stalled);
    Report {
        schema: "ncclscope.stragglers/1",
        steps: rows(job, &blames, &list),
        quiet: quiet(job, &clocks, list.len(), limits),
        summary,
        clock: clock_row(job, &clocks),
        last_arrivers: arrivers(job, &last_arrivers(job, &clocks)),
        workers: job.workers.len(),
        collectives: job.collectives.iter().filter(|c| c.parts.len() > 1).count(),
        batches: job.batches.iter().filter(|batch| !batch.partners.is_empty()).count(),
        steps_from: match steps.source {
            StepSource::Marked => "marks",
            StepSource::Repeating => "repetition",
            StepSource::Whole => "none",
        },
        notes,
    }
}

/// Removes slow links out of a rank that is itself slow, and notes them: after a pause a connection
/// is slower by itself.
fn own_links(links: Vec<Finding>, slow: &[Finding], notes: &mut Vec<String>) -> Vec<Finding> {
    let is_late = |rank: u32| slow.iter().any(|finding| finding.root_ranks.contains(&rank));
    let (late, own): (Vec<Finding>, Vec<Finding>) =
        links.into_iter().partition(|link| link.edge.is_some_and(|[src, _]| is_late(src)));
    for Finding { edge, factor, .. } in late {
        let ([src, dst], factor) = (edge.unwrap_or_default(), factor.unwrap_or(1.0));
        notes.push(format!(
            "the link from rank {src} to rank {dst} took {factor:.1} times as long as others: rank \
             {src} sends after pauses, which may be why"
        ));
    }
    own
}

fn rows(job: &Job, blames: &[Blame], steps: &[Step]) -> Vec<StepRow> {
    let row = |(blame, step): (&Blame, &Step)| {
        let root = (blame.total > 0.0).then(|| root(job, blame));
        let of: f64 = (0..job.workers.len())
            .filter(|&worker| root == Some(SlowPart::of(&job.workers[worker])))
            .map(|worker| blame.of(worker))
            .sum();
        let per = |whole: f64, part: f64| if whole > 0.0 { part / whole } else { 0.0 };
        StepRow {
            step: step.number,
            root,
            share: per(blame.total, of),
            waiting: per(step.duration, blame.total / count(job.workers.len()).max(1.0)),
            duration_ms: step.duration / 1e6,
        }
    };
    blames.iter().zip(steps).map(row).collect()
}

/// The most blamed stage and data-parallel rank, chosen separately since a slow stage and a slow
/// replica may be two causes; the most blamed worker if there is no layout.
fn root(job: &Job, blame: &Blame) -> SlowPart {
    let most = |key: &dyn Fn(&Worker) -> Option<u32>| {
        let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
        for (at, worker) in job.workers.iter().enumerate() {
            if let Some(key) = key(worker) {
                *sums.entry(key).or_default() += blame.of(at);
            }
        }
        sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(key, _)| key)
    };
    SlowPart {
        rank: most(&|worker| worker.cell.is_none().then_some(worker.rank)),
        dp_rank: most(&|worker| worker.cell.map(|cell| cell.dp_rank)),
        stage: most(&|worker| worker.cell.map(|cell| cell.stage)),
    }
}

fn clock_row(job: &Job, clocks: &Clocks) -> ClockRow {
    let offsets = (0..job.workers.len()).map(|worker| clocks.offset(worker).ns);
    ClockRow {
        max_residual_ms: clocks.max_residual / 1e6,
        error_ms: clocks.error / 1e6,
        max_offset_ms: crate::waits::spread(offsets) / 1e6,
        pairs: clocks.pairs,
        groups: clocks.groups,
    }
}

fn arrivers(job: &Job, last: &[LastArriver]) -> Vec<ArriverRow> {
    let row = |last: &LastArriver| {
        let class = &job.classes[job.collectives[last.collective].class];
        ArriverRow {
            comm: class.comm.clone(),
            func: class.func.clone(),
            last: last.worker.map(|worker| SlowPart::of(&job.workers[worker])),
            late_ms: last.late / 1e6,
        }
    };
    last.iter().take(ARRIVERS).map(row).collect()
}

fn quiet(job: &Job, clocks: &Clocks, steps: usize, limits: &Limits) -> Vec<String> {
    let mut quiet = Vec::new();
    if job.workers.len() < 2 {
        quiet.push(
            "one timeline alone does not show waits: give the recordings of all ranks".into(),
        );
    }
    if steps < limits.min_steps {
        quiet.push(format!(
            "{steps} steps are too few to call a rank slow: at least {} are needed",
            limits.min_steps
        ));
    }
    if clocks.groups > 1 {
        quiet.push(format!(
            "{} groups of workers have no recorded operation in common: waits between them are not \
             followed",
            clocks.groups
        ));
    }
    if !job.is_kernel_timed && !job.workers.is_empty() {
        quiet.push(
            "the input has no kernel times: arrivals are host times, so slow ranks are only \
             suspects, and operations that became slower are not reported"
                .into(),
        );
    }
    quiet
}
