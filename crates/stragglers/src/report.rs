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
use crate::looked::Log;
use crate::model::{Job, Worker};
use crate::node_paths::NodePaths;
use crate::onset::Onset;
use crate::replay::Replay;
use crate::rules::{Judging, Rule};
use crate::steps::{Step, Steps};
use crate::transfers::Transfers;
use crate::unjudged::{Unjudged, busiest};
use crate::waits::{LastArriver, last_arrivers};
use crate::{
    costs, coverage, explains, network, reconfigured, shared_gpu, shortage, slowed, stalls, wire,
    work,
};
use jiff::Timestamp;
use ncclscope_findings::{CommId, Cost, FindingClass, Help, Looked, RankLocation, SlowPart};
use ncclscope_limits::test;
use ncclscope_operations::human;
use ncclscope_operations::stats::{count, to_f64, to_u64};
use ncclscope_statistics::Limits;
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of last arrivers in a report.
const ARRIVERS: usize = 1000;
/// Minimum number of steps in which a rank can be called slow: the first does not show its work.
const STEPS: usize = test::BLOCKS + 1;

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
    /// What each rule saw; `None` if that was not asked ([`Judging::why_not`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<Vec<Looked>>,
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
    analyze_in_detail(job, &Judging::from(limits)).0
}

/// Analyses a job, and also returns the data for pictures of it.
#[must_use]
pub fn analyze_in_detail(job: &Job, judging: &Judging) -> (SlowReport, Details) {
    let mut log = Log::new(judging.why_not.clone());
    let clocks = Clocks::fit(job);
    let steps = Steps::of(job, &clocks);
    // Operations before the first marked step are warm-up.
    let is_step = |step: &Step| step.number != Step::NONE;
    let list: Vec<Step> = steps.list.iter().copied().filter(is_step).collect();
    let known = known(job, &steps);
    let replay = Replay::of(job, &clocks, &steps);
    let derived = Derived {
        job,
        clocks: &clocks,
        steps: &list,
        known: &known,
        replay: replay.as_ref(),
        transfers: &Transfers::of(job, &steps),
    };
    let Found { mut findings, unjudged, undecided, notes } = derived.judge(judging, &mut log);
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
    let last_arrivers = arrivers(job, &clocks);
    let report = SlowReport {
        schema: "ncclscope.stragglers/3",
        causes: Vec::new(),
        steps: rows(job, &causes, &list, &places),
        unjudged,
        quiet: quiet(job, &clocks, (&known, list.len())).into_iter().chain(undecided).collect(),
        findings: findings.into_iter().map(ncclscope_findings::Finding::from).collect(),
        usual_share: causes.usual_share,
        variation_share: causes.variation,
        clock: clock_row(job, &clocks),
        judged_arrivals: last_arrivers.len(),
        last_arrivers,
        workers: job.workers.len(),
        collectives: job.collectives.iter().filter(|c| c.parts.len() > 1).count(),
        batches: job.batches.iter().filter(|batch| !batch.partners.is_empty()).count(),
        steps_from: steps.source.name(),
        notes,
        why_not: log.into_seen(),
    };
    let late = places.iter().map(|&place| causes.late(place));
    let details = replay.as_ref().map(|replay| Details::of(replay, &places, late));
    let details = details.unwrap_or_default();
    (SlowReport { causes: causes.list, ..report }, details)
}

/// A job with what was derived from it, for the rules.
struct Derived<'a> {
    job: &'a Job,
    clocks: &'a Clocks,
    /// The steps without what belongs to none.
    steps: &'a [Step],
    /// How well the work of each worker is known, by step.
    known: &'a [Vec<Known>],
    replay: Option<&'a Replay<'a>>,
    transfers: &'a Transfers<'a>,
}

/// What the rules found.
#[derive(Default)]
struct Found {
    findings: Vec<Finding>,
    unjudged: Unjudged,
    /// Sentences about what may be slow or not.
    undecided: Vec<String>,
    notes: Vec<String>,
}

impl Derived<'_> {
    /// What is slow, and what could not be judged.
    fn judge(&self, judging: &Judging, log: &mut Log) -> Found {
        let (job, limits) = (self.job, &judging.limits);
        let mut found = Found { notes: job.notes.clone(), ..Found::default() };
        found.notes.extend(coverage::notes(job, self.clocks, self.steps));
        for rule in Rule::ALL {
            match judging.without.contains(&rule) {
                true => found.undecided.push(format!("{} is switched off", rule.about().name)),
                false => self.apply(rule, (limits, log), &mut found),
            }
        }
        date(job, self.steps.first(), &mut found.findings);
        let (mut findings, explained) = explains::apply(found.findings, log);
        found.notes.extend(explained);
        found.notes.extend(shortage::doubt(job, &mut findings));
        shared_gpu::doubt(job, &mut findings);
        coverage::doubt(job, &mut findings);
        help(job, &mut findings);
        costs::dearest_first(&mut findings);
        Found { findings, ..found }
    }

    /// Applies one rule.
    fn apply(&self, rule: Rule, (limits, log): (&Limits, &mut Log), found: &mut Found) {
        let Derived { job, clocks, known, replay, transfers, .. } = *self;
        let span: f64 = self.steps.iter().map(|step| step.duration).sum();
        let findings = &mut found.findings;
        match rule {
            Rule::SlowRank => {
                let (slow, undecided) = work::find(replay, known, limits, log);
                findings.extend(slow);
                found.undecided.extend(undecided);
            }
            Rule::SlowLink => {
                let edges = wire::measured(job, clocks);
                let (links, unjudged) = network::find(job, (&edges, span), limits, log);
                findings.extend(links);
                found.unjudged.links = unjudged.len();
                found.unjudged.busiest = busiest(job, &unjudged, span);
                let busiest = found.unjudged.busiest;
                found.undecided.extend(busiest.and_then(|link| link.text()));
            }
            Rule::SlowedTransfers => {
                findings.extend(slowed::find(transfers, limits, log));
            }
            Rule::SlowNodePath => {
                let paths = NodePaths::of(transfers, limits);
                findings.extend(paths.find(limits, log));
                found.unjudged.node_communicators = paths.unjudged();
            }
            Rule::ChangedAlgorithm => {
                findings.extend(reconfigured::find(job, clocks, log));
            }
            Rule::SlowGpu => {
                findings.extend(stalls::find(job, span, limits, log));
                found.unjudged.gpus = stalls::unjudged(job);
            }
            Rule::ShortOfCpu => findings.extend(shortage::find(job, log)),
        }
    }
}

/// Adds to each finding since when it is there, and whether that is the first step.
fn date(job: &Job, first: Option<&Step>, findings: &mut [Finding]) {
    let first_end = first.and_then(|step| real_ns(job, Onset::Job(step.start + step.duration)));
    for finding in findings {
        let onset_ns = finding.onset.and_then(|onset| real_ns(job, onset));
        finding.is_from_first_step =
            onset_ns.zip(first_end).is_some_and(|(onset, first_end)| onset < first_end);
        finding.help.since = onset_ns.and_then(in_words);
    }
}

/// Adds to each finding where its ranks run, and the cost.
fn help(job: &Job, findings: &mut [Finding]) {
    let workers: BTreeMap<u32, &Worker> = job.workers.iter().map(|one| (one.rank, one)).collect();
    let place = |&rank: &u32| {
        let unknown = || RankLocation { rank, ..RankLocation::default() };
        workers.get(&rank).map_or_else(unknown, |worker| worker.place())
    };
    let gpus = count(job.workers.len());
    for finding in findings {
        finding.help.places = finding.root_ranks.iter().take(Help::MOST).map(place).collect();
        let most = finding.most_lost_share.and_then(|share| Cost::of(share.min(1.0), gpus));
        let lost = finding.lost_share.and_then(|share| Cost::of(share, gpus));
        // A pipeline waits anyway while it fills and drains.
        let is_late = matches!(finding.class, FindingClass::SlowRank | FindingClass::SlowLaunch);
        let is_absorbed = is_late && !job.batches.is_empty();
        let lost = lost.map(|cost| if is_absorbed { cost.at_most() } else { cost });
        finding.help.cost = lost.or_else(|| most.map(Cost::at_most));
        finding.comms = finding.comm_texts.iter().map(|text| job.comm_id(text)).collect();
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

/// The last arrivers; none without arrivals on the GPU.
fn arrivers(job: &Job, clocks: &Clocks) -> Vec<ArriverRow> {
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
    let last = if job.is_kernel_timed { last_arrivers(job, clocks) } else { Vec::new() };
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
             input has no kernel times (KernelCh) that can be used, and when a host enqueues an \
             operation does not show when its GPU arrives"
                .into(),
        );
    }
    quiet
}
