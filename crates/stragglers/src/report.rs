// SPDX-License-Identifier: Apache-2.0
/*!
The whole analysis, and what it found in the form of the JSON schema `ncclscope.stragglers/1`.

Each finding has its class, its roots and the numbers that speak for it. Where nothing is said,
[`Report::quiet`] says why. This module does not print.
*/

use crate::blame::{Blame, blame};
use crate::clock::Clocks;
use crate::model::{Job, Worker};
use crate::robust::count;
use crate::steps::{Source, Step, Steps};
use crate::waits::{LastArriver, Waits, last_arrivers};
use crate::{drift, edges, slow, stalls};
use ncclscope_findings::{Confidence, FindingClass};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Last arrivers that a report lists at most.
const ARRIVERS: usize = 1000;

/// What it takes to say something. The defaults are those of the design.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// S1: the share of a step by which a worker's own time is longer.
    pub min_lost: f64,
    /// S1: and at least so long, ns.
    pub min_lateness_ns: f64,
    /// S1: of so many steps,
    pub min_steps: usize,
    /// and in this share of them.
    pub min_steps_share: f64,
    /// N5: what its GPU holds up costs at least this share of the steps,
    pub min_stalled: f64,
    /// and is so many times what the others' do.
    pub stall_factor: f64,
    /// S2 to S5: so many median absolute deviations off.
    pub mads: f64,
    /// S3, S4: so many times the usual time of a byte.
    pub edge_factor: f64,
    /// S2, S5: so many times the usual time.
    pub drift_factor: f64,
    /// S2 to S6: of at least so many operations or transfers.
    pub min_samples: u64,
    /// S3 to S5: against at least so many others.
    pub min_peers: usize,
    /// S2 to S5: what is lost is at least this share of the run.
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

/// Who is meant: a worker, a stage or a data-parallel rank, by what the input calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Root {
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

impl Root {
    /// A worker.
    #[must_use]
    pub fn of(worker: &Worker) -> Root {
        match worker.cell {
            Some(cell) => Root { rank: None, dp_rank: Some(cell.dp_rank), stage: Some(cell.stage) },
            None => Root { rank: Some(worker.rank), ..Root::default() },
        }
    }

    pub(crate) fn stage(stage: u32) -> Root {
        Root { stage: Some(stage), ..Root::default() }
    }

    pub(crate) fn dp_rank(dp_rank: u32) -> Root {
        Root { dp_rank: Some(dp_rank), ..Root::default() }
    }

    /// For people.
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
    /// What it is: in JSON `class`, its code, and `name`.
    #[serde(flatten, serialize_with = "ncclscope_findings::code_and_name")]
    pub class: FindingClass,
    /// In words.
    pub title: String,
    /// How sure.
    pub confidence: Confidence,
    /// Who, for S1, S7 and N5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<Root>,
    /// The global ranks concerned; empty if there are none in particular.
    pub root_ranks: Vec<u32>,
    /// Sender and receiver of a slow link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
    /// S1: share of all waiting that leads back to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// S1, N5: what its own time is longer by, as a share of the steps.
    pub lost: f64,
    /// S1: steps that are slow enough to count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// S2 to S5: so many times as slow as usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The communicators meant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comms: Vec<String>,
    /// The numbers.
    pub evidence: Vec<String>,
}

impl Finding {
    /// One of this class, without ranks or numbers.
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
    /// Where most of its waiting leads back to: stage and data-parallel rank each for itself.
    /// `None` if no wait exceeds the error of the clocks.
    pub root: Option<Root>,
    /// Share of its waiting that the root is blamed for.
    pub share: f64,
    /// How long a worker waited on average, as a share of the step.
    pub waiting: f64,
    /// How long it took, ms.
    pub duration_ms: f64,
}

/// How well the clocks are known.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClockRow {
    /// What pairs of workers still disagree by after the alignment, at most.
    pub max_residual_ms: f64,
    /// Waits below this are left out.
    pub error_ms: f64,
    /// The largest difference between two workers' clocks that was taken out.
    pub max_offset_ms: f64,
    /// Pairs of workers compared.
    pub pairs: usize,
    /// Groups of workers that no common operation joins; 1 if all are on one clock.
    pub groups: usize,
}

/// Who came last to a collective.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ArriverRow {
    /// The communicator.
    pub comm: String,
    /// The function.
    pub func: String,
    /// Who; `None` where the clocks are less sure than the arrivals are apart.
    pub last: Option<Root>,
    /// How much later than the first, ms.
    pub late_ms: f64,
}

/// Everything.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// `ncclscope.stragglers/1`.
    pub schema: &'static str,
    /// Each step.
    pub steps: Vec<StepRow>,
    /// What makes the job slow, worst first.
    pub summary: Vec<Finding>,
    /// The clocks.
    pub clock: ClockRow,
    /// The last arrivers of the first 1,000 collectives that end together.
    pub last_arrivers: Vec<ArriverRow>,
    /// Timelines.
    pub workers: usize,
    /// Collectives of at least two recorded members.
    pub collectives: usize,
    /// Sends and receives, those that began as one counted once.
    pub batches: usize,
    /// Where the steps are from.
    pub steps_from: &'static str,
    /// Why something is not said.
    pub quiet: Vec<String>,
    /// What the reader should know of the input.
    pub notes: Vec<String>,
}

/// Analyses a job.
#[must_use]
pub fn analyze(job: &Job, limits: &Limits) -> Report {
    let clocks = Clocks::fit(job);
    let steps = Steps::of(job, &clocks);
    let waits = Waits::find(job, &clocks, &steps);
    let blames = blame(job, &clocks, &steps, &waits);
    // What is before the first step that the input marks is warming up.
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
    // Such a GPU is also late to what comes next, leaves its links idle, and slows down the
    // communicators inside its node.
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
            Source::Marked => "marks",
            Source::Repeating => "repetition",
            Source::Whole => "none",
        },
        notes,
    }
}

/// Slow links but those out of a rank that comes late to everything: after a pause a connection is
/// slower by itself.
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
            .filter(|&worker| root == Some(Root::of(&job.workers[worker])))
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

/// Most blamed: stage and data-parallel rank each for itself, as a slow stage and a slow replica
/// may be two causes; the worker where there is no layout.
fn root(job: &Job, blame: &Blame) -> Root {
    let most = |key: &dyn Fn(&Worker) -> Option<u32>| {
        let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
        for (at, worker) in job.workers.iter().enumerate() {
            if let Some(key) = key(worker) {
                *sums.entry(key).or_default() += blame.of(at);
            }
        }
        sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(key, _)| key)
    };
    Root {
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
            last: last.worker.map(|worker| Root::of(&job.workers[worker])),
            late_ms: last.late / 1e6,
        }
    };
    last.iter().take(ARRIVERS).map(row).collect()
}

fn quiet(job: &Job, clocks: &Clocks, steps: usize, limits: &Limits) -> Vec<String> {
    let mut quiet = Vec::new();
    if job.workers.len() < 2 {
        quiet.push("one timeline alone tells nothing of who waits for whom: give all ranks".into());
    }
    if steps < limits.min_steps {
        quiet.push(format!(
            "{steps} steps are too few to call a rank slow: at least {} are needed",
            limits.min_steps
        ));
    }
    if clocks.groups > 1 {
        quiet.push(format!(
            "{} groups of workers have nothing in common that was recorded of two: blame does not \
             go from one to the other",
            clocks.groups
        ));
    }
    if !job.is_kernel_timed && !job.workers.is_empty() {
        quiet.push(
            "the input lacks times of kernels on the GPU: arrivals are the host's, so that slow \
             ranks are only suspects, and what became slower is not told"
                .into(),
        );
    }
    quiet
}
