// SPDX-License-Identifier: Apache-2.0
/*!
The whole analysis, and its result as the JSON schema `ncclscope.stragglers/3`.

Each finding has its class, its root cause and the numbers that prove it. [`SlowReport::quiet`] says
why something is not reported. This module does **not** print.
*/

use crate::causes::{Cause, Causes};
use crate::clock::Clocks;
use crate::coverage::{Known, known};
use crate::details::Details;
use crate::finding::Finding;
use crate::limits::Limits;
use crate::model::{Job, Worker};
use crate::onset::Onset;
use crate::replay::Replay;
use crate::steps::{Step, StepSource, Steps};
use crate::unjudged::{Unjudged, busiest};
use crate::waits::{LastArriver, last_arrivers};
use crate::{costs, coverage, drift, network, shared_gpu, shortage, stalls, wire, work};
use jiff::Timestamp;
use ncclscope_findings::{CommId, Cost, Doubt, FindingClass, Help, RankLocation, SlowPart};
use ncclscope_operations::human;
use ncclscope_operations::stats::{count, median, to_f64, to_u64};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of last arrivers in a report.
const ARRIVERS: usize = 1000;
/// Minimum number of steps in which a rank can be called slow: the first does not show its work.
const STEPS: usize = ncclscope_statistics::Limits::BLOCKS + 1;

/// A training step in the report: how long it took, and what the others waited for.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepRow {
    /// Number of the step; of combined steps that of the first.
    pub step: i64,
    /// How many steps the row combines; 1 if they are marked.
    pub step_count: usize,
    /// The worst cause of the step's waiting, as an index into [`SlowReport::causes`]; `None` if no
    /// wait is longer than usual, or if arrivals on the GPU are unknown.
    pub cause: Option<usize>,
    /// The share of the step's waiting that it causes.
    pub share: f64,
    /// The mean waiting time of a worker, as a share of the step; `None` if arrivals on the GPU are
    /// unknown.
    pub waiting_share: Option<f64>,
    /// Duration, ns; of combined steps that of all together.
    pub duration_ns: u64,
}

impl StepRow {
    /// Duration, ms; of combined steps that of all together.
    #[must_use]
    pub fn duration_ms(&self) -> f64 {
        to_f64(self.duration_ns) / 1e6
    }
}

/// The quality of the clock alignment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClockRow {
    /// The largest amount by which a pair of workers contradicts the alignment.
    pub max_residual_ns: u64,
    /// Shorter waits are ignored.
    pub error_ns: u64,
    /// The largest difference between two workers' clocks.
    pub max_offset_ns: u64,
    /// Pairs of workers compared.
    pub pairs: usize,
    /// Groups of workers that no common operation connects; 1 if all are on one clock.
    pub groups: usize,
}

/// The last member to arrive at a collective.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ArriverRow {
    /// The communicator: `comm` and `comm_name`.
    #[serde(flatten)]
    pub comm: CommId,
    /// The communicator in words.
    #[serde(skip)]
    pub comm_text: String,
    /// The function.
    pub func: String,
    /// The last member; `None` if the clock error exceeds the spread of the arrivals.
    pub last: Option<SlowPart>,
    /// How much later it arrived than the first member, ns.
    pub late_ns: u64,
}

/// The result of the analysis.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SlowReport {
    /// `ncclscope.stragglers/3`.
    pub schema: &'static str,
    /// The steps.
    pub steps: Vec<StepRow>,
    /// The findings, worst first.
    pub findings: Vec<ncclscope_findings::Finding>,
    /// What ranks wait for longer than they would among its peers, worst first.
    pub causes: Vec<Cause>,
    /// The share of the waiting that is usual: ranks wait for one another in every job. `None`
    /// without waiting. With [`SlowReport::causes`] it adds up to 1.
    pub usual_share: Option<f64>,
    /// The share of the steps that is lost to variation, without a single cause; `None` if unknown.
    pub variation_share: Option<f64>,
    /// The quality of the clock alignment.
    pub clock: ClockRow,
    /// The last arrivers of the first 1,000 collectives that end together.
    pub last_arrivers: Vec<ArriverRow>,
    /// Number of collectives from which these were chosen by the filter's ranks: those of its
    /// communicators and functions.
    #[serde(skip)]
    pub judged_arrivals: usize,
    /// Number of workers.
    pub workers: usize,
    /// Number of collectives with at least two recorded members.
    pub collectives: usize,
    /// Number of batches of sends and receives with a known partner.
    pub batches: usize,
    /// How the steps were found: `marks`, `repetition` or `none`.
    pub steps_from: &'static str,
    /// What could not be judged.
    pub unjudged: Unjudged,
    /// Reasons why something is not reported.
    pub quiet: Vec<String>,
    /// Remarks about the input.
    pub notes: Vec<String>,
}

impl SlowReport {
    /// Number of training steps; a row may combine several.
    #[must_use]
    pub fn step_count(&self) -> usize {
        self.steps.iter().map(|step| step.step_count).sum()
    }

    /// The worst cause of a step's waiting.
    #[must_use]
    pub fn cause_of(&self, step: &StepRow) -> Option<&Cause> {
        self.causes.get(step.cause?)
    }

    /// The part of the job that is the worst cause of a step's waiting.
    #[must_use]
    pub fn root_of(&self, step: &StepRow) -> Option<SlowPart> {
        self.cause_of(step)?.root
    }

    /// The mean duration of a training step, ns; `None` without steps.
    #[must_use]
    pub fn mean_step_ns(&self) -> Option<f64> {
        let all: f64 = self.steps.iter().map(|step| to_f64(step.duration_ns)).sum();
        (!self.steps.is_empty()).then(|| all / count(self.step_count().max(1)))
    }
}

/// Analyses a job.
#[must_use]
pub fn analyze(job: &Job, limits: &Limits) -> SlowReport {
    analyze_in_detail(job, limits).0
}

/// Analyses a job, and also returns the data for pictures of it.
#[must_use]
pub fn analyze_in_detail(job: &Job, limits: &Limits) -> (SlowReport, Details) {
    let clocks = Clocks::fit(job);
    let steps = Steps::of(job, &clocks);
    // Operations before the first marked step are warm-up.
    let is_step = |step: &Step| step.number != Step::NONE;
    let list: Vec<Step> = steps.list.iter().copied().filter(is_step).collect();
    let known = known(job, &steps);
    let replay = Replay::of(job, &clocks, &steps);
    let mut notes = job.notes.clone();
    notes.extend(coverage::notes(job, &clocks, &list));
    let slow = match &replay {
        Some(replay) if job.workers.len() > 1 => work::find(replay, &known, limits),
        _ => Vec::new(),
    };
    let (mut findings, unjudged) = judge(job, &clocks, (slow, &list), limits, &mut notes);
    let causes = replay.as_ref().map(|replay| {
        let repaired = costs::repair(replay, &mut findings);
        Causes::of(replay, &repaired, &findings)
    });
    let causes = causes.unwrap_or_default();
    for (&at, &share) in &causes.of_finding {
        findings[at].waited_for(share);
    }
    let places = steps.list.iter().zip(0..).filter(|(step, _)| is_step(step));
    let places: Vec<usize> = places.map(|(_, place)| place).collect();
    let last_arrivers = match job.is_kernel_timed {
        true => arrivers(job, &last_arrivers(job, &clocks)),
        false => Vec::new(),
    };
    let report = SlowReport {
        schema: "ncclscope.stragglers/3",
        causes: Vec::new(),
        steps: rows(job, &causes, &list, &places),
        unjudged,
        quiet: quiet(job, &clocks, (&known, list.len())),
        findings: findings.into_iter().map(ncclscope_findings::Finding::from).collect(),
        usual_share: causes.usual_share,
        variation_share: causes.variation,
        clock: clock_row(job, &clocks),
        judged_arrivals: last_arrivers.len(),
        last_arrivers,
        workers: job.workers.len(),
        collectives: job.collectives.iter().filter(|c| c.parts.len() > 1).count(),
        batches: job.batches.iter().filter(|batch| !batch.partners.is_empty()).count(),
        steps_from: match steps.source {
            StepSource::Marked => "marks",
            StepSource::Repeating => "repetition",
            StepSource::Whole => "none",
        },
        notes,
    };
    let late = places.iter().map(|&place| causes.late(place));
    let details = replay.as_ref().map(|replay| Details::of(replay, &places, late));
    let details = details.unwrap_or_default();
    (SlowReport { causes: causes.list, ..report }, details)
}

/// What is slow in these steps, and what could not be judged.
fn judge(
    job: &Job,
    clocks: &Clocks,
    (mut findings, steps): (Vec<Finding>, &[Step]),
    limits: &Limits,
    notes: &mut Vec<String>,
) -> (Vec<Finding>, Unjudged) {
    let span = steps.iter().map(|step| step.duration).sum();
    let samples = drift::samples(job, clocks);
    let edges = wire::measured(job, clocks);
    let (links, unjudged_links) = network::find(job, (&edges, span), limits);
    let unjudged = Unjudged {
        links: unjudged_links.len(),
        busiest: busiest(job, &unjudged_links, span, limits),
        node_communicators: drift::unjudged(job, &samples, limits),
        gpus: stalls::unjudged(job, limits),
    };
    let links = own_links(links, &findings, notes);
    let explained: BTreeSet<String> = links.iter().flat_map(|f| f.comm_texts.clone()).collect();
    let mut drifts = drift::find(job, (clocks, samples), (&explained, span), limits);
    for slowed in drifts.iter_mut().filter(|it| it.class == FindingClass::TransfersSlowed) {
        slowed.most_lost_share = slowed.onset.and_then(|onset| longer_since(steps, onset));
    }
    findings.extend(own_links(links, &drifts, notes));
    findings.extend(drifts);
    let mut findings = without_effects(findings, stalls_and_shortages(job, steps, span, limits));
    worst_first(&mut findings);
    doubt_ends(&mut findings);
    notes.extend(shortage::doubt(job, limits, &mut findings));
    shared_gpu::doubt(job, &mut findings);
    coverage::doubt(job, &mut findings);
    help(job, steps.first(), &mut findings);
    (findings, unjudged)
}

/// Findings about GPUs that stall and processes that are short of processor time, whose proxy
/// threads, which report data transfers, are late, too.
fn stalls_and_shortages(job: &Job, steps: &[Step], span: f64, limits: &Limits) -> Vec<Finding> {
    let short = shortage::find(job, limits);
    let mut causes = stalls::find(job, (steps.len(), span), limits);
    let is_short = |rank: &u32| short.iter().any(|finding| finding.root_ranks.contains(rank));
    causes.retain(|finding| !finding.root_ranks.iter().any(is_short));
    causes.extend(short);
    causes
}

/// Removes findings that are only effects of these causes: such GPUs and processes are also late to
/// the next operations, leave their links idle, and slow down the communicators inside their node.
fn without_effects(mut findings: Vec<Finding>, causes: Vec<Finding>) -> Vec<Finding> {
    let is_told = |rank: &u32| causes.iter().any(|finding| finding.root_ranks.contains(rank));
    findings.retain(|finding| !finding.root_ranks.iter().any(is_told));
    findings.splice(0..0, causes);
    findings
}

/// The share of a step by which steps are longer since the onset, from the medians before and
/// after; `None` if they are not, or if there are fewer than three steps on either side.
fn longer_since(steps: &[Step], onset: Onset) -> Option<f64> {
    let Onset::Job(onset) = onset else { return None };
    let durations = |of: &dyn Fn(&&Step) -> bool| -> Vec<f64> {
        steps.iter().filter(of).map(|step| step.duration).collect()
    };
    let mut before = durations(&|step| step.start + step.duration <= onset);
    let mut after = durations(&|step| step.start >= onset);
    if before.len().min(after.len()) < 3 {
        return None;
    }
    let (before, after) = (median(&mut before)?, median(&mut after)?);
    (after > before).then(|| 1.0 - before / after)
}

/// Sorts findings by cost; those without a known cost keep their order.
fn worst_first(findings: &mut [Finding]) {
    let cost = |finding: &Finding| finding.lost_share.unwrap_or_default();
    findings.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
}

/// Lowers slow ranks to suspicions, and puts them last, if a slow link ends there that may cost as
/// much: a rank that sends or receives slowly is late, too.
fn doubt_ends(findings: &mut Vec<Finding>) {
    let links: Vec<([u32; 2], f64)> =
        findings.iter().filter_map(|of| of.edge.zip(of.most_lost_share)).collect();
    let link = |of: &Finding| {
        let is_cause = |(ends, cost): &&([u32; 2], f64)| {
            ends.iter().any(|rank| of.root_ranks.contains(rank)) && of.lost_share <= Some(*cost)
        };
        let is_late = matches!(of.class, FindingClass::SlowRank | FindingClass::SlowLaunch);
        links.iter().find(is_cause).filter(|_| is_late).map(|(ends, _)| *ends)
    };
    findings.sort_by_key(|of| link(of).is_some());
    for finding in findings {
        finding.doubts.extend(link(finding).map(Doubt::SlowLinkThere));
    }
}

/// Adds to each finding where its ranks run, since when, and the cost.
fn help(job: &Job, first: Option<&Step>, findings: &mut [Finding]) {
    let workers: BTreeMap<u32, &Worker> = job.workers.iter().map(|one| (one.rank, one)).collect();
    let place = |&rank: &u32| {
        let unknown = || RankLocation { rank, ..RankLocation::default() };
        workers.get(&rank).map_or_else(unknown, |worker| worker.place())
    };
    let gpus = count(job.workers.len());
    let first_end = first.and_then(|step| real_ns(job, Onset::Job(step.start + step.duration)));
    for finding in findings {
        let onset_ns = finding.onset.and_then(|onset| real_ns(job, onset));
        finding.is_from_first_step =
            onset_ns.zip(first_end).is_some_and(|(onset, first_end)| onset < first_end);
        finding.help.places = finding.root_ranks.iter().take(Help::MOST).map(place).collect();
        let most = finding.most_lost_share.and_then(|share| Cost::of(share.min(1.0), gpus));
        let lost = finding.lost_share.and_then(|share| Cost::of(share, gpus));
        // A pipeline waits anyway while it fills and drains.
        let is_late = matches!(finding.class, FindingClass::SlowRank | FindingClass::SlowLaunch);
        let is_absorbed = is_late && !job.batches.is_empty();
        let lost = lost.map(|cost| if is_absorbed { cost.at_most() } else { cost });
        finding.help.cost = lost.or_else(|| most.map(Cost::at_most));
        finding.comms = finding.comm_texts.iter().map(|text| job.comm_id(text)).collect();
        finding.help.since = onset_ns.and_then(in_words);
    }
}

/// A time since 1970, ns; `None` if the input does not contain the job's start.
fn real_ns(job: &Job, onset: Onset) -> Option<i128> {
    Some(match onset {
        Onset::Real(ns) => i128::from(ns),
        Onset::Job(ns) => i128::from(job.origin_ns?) + i128::from(to_u64(ns)),
    })
}

/// A time in whole seconds of UTC.
fn in_words(ns: i128) -> Option<String> {
    let time = Timestamp::from_nanosecond(ns).ok()?;
    Some(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Removes findings about slow links of a rank that is itself slow, or that is suspected because a
/// communicator without network is slow, and adds notes: after a pause, a connection is slow on its
/// own account, and such a rank sends after pauses. A link that may cost more is not an effect.
fn own_links(links: Vec<Finding>, slow: &[Finding], notes: &mut Vec<String>) -> Vec<Finding> {
    use FindingClass::{SlowLaunch, SlowNodePath, SlowRank};
    let late = |of: &&Finding| matches!(of.class, SlowRank | SlowLaunch | SlowNodePath);
    let cost = |of: &Finding| of.lost_share.or(of.most_lost_share);
    let mut own = Vec::new();
    for link in links {
        let is_cause = |of: &&Finding| {
            let is_sender = link.edge.is_some_and(|[src, _]| of.root_ranks.contains(&src));
            is_sender && cost(of) >= cost(&link)
        };
        let cause = slow.iter().filter(late).find(is_cause);
        let Some(([src, dst], cause)) = link.edge.zip(cause) else {
            own.push(link);
            continue;
        };
        let why = match cause.class {
            SlowNodePath => "is in a slow communicator without network",
            _ => "sends after pauses",
        };
        let factor = link.factor.unwrap_or(1.0);
        notes.push(format!(
            "the link from rank {src} to rank {dst} took {factor:.1} times as long as others: rank \
             {src} {why}, which may be why"
        ));
    }
    own
}

/// The steps; `places` are their places among all of the job, with those before the first step.
fn rows(job: &Job, causes: &Causes, steps: &[Step], places: &[usize]) -> Vec<StepRow> {
    let workers = count(job.workers.len()).max(1.0);
    let row = |(step, &place): (&Step, &usize)| {
        let (cause, share) = causes.first_of(place).unzip();
        // A wait that began in an earlier step is charged whole.
        let waiting = causes.waiting(place).filter(|_| step.duration > 0.0);
        StepRow {
            step: step.number,
            step_count: step.count,
            cause,
            share: share.unwrap_or_default(),
            waiting_share: waiting.map(|all| (all / workers / step.duration).min(1.0)),
            duration_ns: to_u64(step.duration),
        }
    };
    steps.iter().zip(places).map(row).collect()
}

fn clock_row(job: &Job, clocks: &Clocks) -> ClockRow {
    let offsets = (0..job.workers.len()).map(|worker| clocks.offset(worker).ns);
    ClockRow {
        max_residual_ns: to_u64(clocks.max_residual),
        error_ns: to_u64(clocks.error),
        max_offset_ns: to_u64(crate::waits::spread(offsets)),
        pairs: clocks.pairs,
        groups: clocks.groups,
    }
}

fn arrivers(job: &Job, last: &[LastArriver]) -> Vec<ArriverRow> {
    let row = |last: &LastArriver| {
        let class = &job.classes[job.collectives[last.collective].class];
        ArriverRow {
            comm: job.comm_id(&class.comm),
            comm_text: class.comm.clone(),
            func: class.func.clone(),
            last: last.worker.map(|worker| SlowPart::from(&job.workers[worker])),
            late_ns: to_u64(last.late),
        }
    };
    last.iter().take(ARRIVERS).map(row).collect()
}

/// Number of workers whose own time is known in too few steps to be called slow.
fn unknown(job: &Job, known: &[Vec<Known>]) -> usize {
    let steps = |worker: usize| known.iter().filter(|of| of[worker] > Known::Nothing).count();
    (0..job.workers.len()).filter(|&worker| steps(worker) < STEPS).count()
}

/// Why something is not reported; `known` is how well the own work of workers is known.
fn quiet(job: &Job, clocks: &Clocks, (known, steps): (&[Vec<Known>], usize)) -> Vec<String> {
    let mut quiet = Vec::new();
    if job.workers.len() < 2 {
        quiet.push(
            "one timeline alone does not show waits: give the recordings of all ranks".into(),
        );
    }
    let doubts = coverage::doubts(job).into_iter();
    quiet.extend(doubts.map(|why| format!("who makes the others wait: {}", why.text())));
    if steps < STEPS {
        quiet.push(format!(
            "{} too few to call a rank slow: at least {STEPS} are needed",
            human::are(steps, "step"),
        ));
    }
    let unknown = match job.is_kernel_timed && steps >= STEPS {
        true => unknown(job, known),
        false => 0,
    };
    if unknown > 0 {
        quiet.push(format!(
            "whether {} slow is not said: those that {} for were not recorded",
            human::are(unknown, "rank"),
            human::if_one(unknown, "it waited", "they waited")
        ));
    }
    if !job.gappy.is_empty() {
        quiet.push(format!(
            "whether {} slow is not said: some operations there were not recorded",
            human::are(job.gappy.len(), "rank")
        ));
    }
    if job.unmatched_replays > 0 {
        quiet.push(format!(
            "replays of CUDA graphs are not judged ({}): some recordings are not whole, so that it \
             is unknown which replays belong together",
            human::count(job.unmatched_replays, "collective")
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
            "which rank the others wait for is not said, nor which operations became slower: the \
             input has no kernel times (KernelCh), and when a host enqueues an operation does not \
             show when its GPU arrives"
                .into(),
        );
    }
    quiet
}
