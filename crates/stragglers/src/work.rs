// SPDX-License-Identifier: Apache-2.0
/*!
Slow ranks, stages and data-parallel ranks (S1), and slow hosts of slow ranks (S7).

A unit is a candidate if it works longer than its peers and chance does not explain it
([`ncclscope_statistics`]). The peers of a rank are those that do the same, of a stage the other
stages. A candidate matters only if the steps would be shorter without its excess: in a healthy
pipeline each stage waits for the others, and what nothing waits for costs nothing. So the
candidate whose repair gains most in a replay ([`ncclscope_delays`]) is repaired, and the rest is
judged again.
*/

use crate::coverage::Known;
use crate::finding::{Finding, excess_figures};
use crate::looked::{Because, Log, Seen, below, lacks};
use crate::model::{Job, Worker};
use crate::onset::Onset;
use crate::replay::Replay;
use crate::rules::Rule;
use crate::steps::Step;
use ncclscope_delays::{Unit, Work};
use ncclscope_findings::{Doubt, Evidence, FindingClass, SlowPart};
use ncclscope_limits::{clocks, slow, test};
use ncclscope_operations::human::duration;
use ncclscope_operations::human::{self, percent};
use ncclscope_operations::stats::{lower_median, median, to_f64};
use ncclscope_statistics::Limits;
use ncclscope_statistics::{Against, Answer, Blocks, Effect, Limits as Test, Needs, compare_units};
use std::collections::BTreeSet;

/// Maximum number of candidates of each level that are replayed: a bound on the time, as designed
/// (`../shared/design/judgement.md`, section 4).
const REPLAYED: usize = 12;
/// Workers that are compared as a unit: a worker, a stage, or a data-parallel rank.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    root: SlowPart,
    workers: Vec<usize>,
}

impl Group {
    fn ranks(&self, job: &Job) -> Vec<u32> {
        self.workers.iter().map(|&at| job.workers[at].rank).collect()
    }

    /// These weights, but with its work at that of its peers.
    fn repaired(&self, replay: &Replay<'_>, weights: &[f64]) -> Vec<f64> {
        let ranks = self.workers.iter().filter_map(|&at| u32::try_from(at).ok());
        replay.peers.weights(&replay.graph, Unit::Work(&ranks.collect()), weights).weights
    }
}

/// A unit that works longer than its peers.
struct Candidate {
    group: Group,
    effect: Effect,
    /// The start of each step in which its work is known, and by how much that exceeds its peers',
    /// as a share of the step.
    steps: Vec<(f64, f64)>,
    /// All members of its operations were recorded.
    is_whole: bool,
    /// The ranks that it is compared with do the same in a step.
    has_peers: bool,
}

/// Units of one kind, with what they cost in each step.
struct Level {
    groups: Vec<Group>,
    against: Against,
    blocks: Blocks,
    /// What each unit costs more than its peers.
    excess: Blocks,
    /// For each block its step.
    steps: Vec<Step>,
}

/// Finds the slow groups of workers; `known` is how well the work of each is known, by step. Also
/// returns one sentence about each worker that may be slow or not, and whose repair would gain what
/// matters.
pub(crate) fn find(
    replay: Option<&Replay<'_>>,
    known: &[Vec<Known>],
    limits: &Limits,
    log: &mut Log,
) -> (Vec<Finding>, Vec<String>) {
    let Some(replay) = replay.filter(|replay| replay.job.workers.len() > 1) else {
        return (Vec::new(), Vec::new());
    };
    let compared = Compared::of(replay, known);
    let (mut candidates, mut undecided) = (Vec::new(), Vec::new());
    let levels = compared.levels();
    for level in &levels {
        let (slow, unknown) = compared.slow(level, limits, log);
        candidates.extend(slow);
        undecided.extend(unknown);
    }
    let explained = explain(replay, candidates, limits, log);
    if log.is_on() {
        let asked = levels.iter().flat_map(|level| &level.groups);
        note_gains(replay, asked, &explained, (limits, log));
    }
    let undecided = still_costly(replay, &explained, undecided, limits);
    let mut findings: Vec<Finding> =
        explained.iter().map(|of| finding(replay, of, limits)).collect();
    host_bound(replay.job, &mut findings);
    (findings, undecided)
}

/// Notes what the repair of each asked group alone would gain: of all groups, if one rank is asked,
/// and of those that were found, if all are.
fn note_gains<'g>(
    replay: &Replay<'_>,
    groups: impl Iterator<Item = &'g Group>,
    found: &[Candidate],
    (limits, log): (&Limits, &mut Log),
) {
    let usual = replay.graph.weights();
    let whole = replay.mean(usual);
    for group in groups {
        let is_found = found.iter().any(|one| one.group == *group);
        let ranks = group.ranks(replay.job);
        if !(is_found && log.is_asked(&ranks) || log.is_about(&ranks)) {
            continue;
        }
        let gain = (whole - replay.mean(&group.repaired(replay, usual))) / whole;
        log.saw(Rule::SlowRank, || Seen {
            subject: group.root.name(),
            ranks,
            saw: format!("a step would be {} shorter without its excess", percent(gain.max(0.0))),
            because: match is_found {
                true => Because::Found,
                false if gain < limits.least_cost => Because::Not(below(limits)),
                false => Because::CannotTell("its excess may be chance".into()),
            },
            nearness: (gain / limits.least_cost).max(0.0),
        });
    }
}

/// What may be slow although chance explains it, and would gain what matters if it was repaired
/// after the findings.
fn still_costly(
    replay: &Replay<'_>,
    found: &[Candidate],
    undecided: Vec<(Candidate, Needs)>,
    limits: &Limits,
) -> Vec<String> {
    if undecided.is_empty() {
        return Vec::new();
    }
    let usual = replay.graph.weights().to_vec();
    let mut repairs = Repairs { replay, weights: usual };
    let whole = repairs.mean(&[]);
    repairs.weights = repairs.with(&found.iter().collect::<Vec<_>>());
    let mean = repairs.mean(&[]);
    let costly = |(one, needs): &(Candidate, Needs)| {
        let gain = (mean - repairs.mean(&[one])) / whole;
        let name = one.group.root.name();
        let text = format!(
            "whether {name} is slow is not said: it costs {} of a step, {}",
            percent(gain),
            lacks(&one.effect, *needs)
        );
        (gain >= limits.least_cost).then_some(text)
    };
    let alone: Vec<String> = undecided.iter().filter_map(costly).collect();
    if !alone.is_empty() {
        return alone;
    }
    // Each of several that are alike costs nothing alone. What healthy ranks may differ by is
    // estimated from all of them, and so not known if half of them are slow.
    let is_above = |of: &&(Candidate, Needs)| of.0.effect.interval[0] > limits.least_cost;
    let alike: Vec<&Candidate> = undecided.iter().filter(is_above).map(|(one, _)| one).collect();
    let gain = (mean - repairs.mean(&alike)) / whole;
    let mut ranks: Vec<u32> = alike.iter().flat_map(|one| one.group.ranks(replay.job)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let text = format!(
        "whether {} are slow is not said: together they cost {} of a step, and healthy ranks may \
         differ by as much",
        ncclscope_findings::words::ranks(&ranks),
        percent(gain)
    );
    (gain >= limits.least_cost).then_some(text).into_iter().collect()
}

/// What the steps show of the workers' own work.
struct Compared<'a> {
    job: &'a Job,
    steps: &'a [Step],
    first: usize,
    work: &'a Work,
    known: &'a [Vec<Known>],
    /// Mean duration of a step, ns.
    mean: f64,
    /// How well the work of each worker must be known in a step that counts.
    needed: Vec<Known>,
}

impl Compared<'_> {
    fn of<'a>(replay: &'a Replay<'_>, known: &'a [Vec<Known>]) -> Compared<'a> {
        let (job, steps) = (replay.job, replay.steps);
        let whole = |worker: usize| known.iter().filter(|of| of[worker] == Known::Whole).count();
        let needed = (0..job.workers.len()).map(|worker| {
            let is_enough = whole(worker) >= test::BLOCKS;
            if is_enough { Known::Whole } else { Known::Suspected }
        });
        Compared {
            job,
            steps,
            first: replay.first,
            work: &replay.work,
            known,
            mean: replay.mean(replay.graph.weights()),
            needed: needed.collect(),
        }
    }

    /// By how much a worker works longer than its peers in a step, or how long it works, as a share
    /// of a step; NaN if that is not known.
    fn share(&self, worker: usize, step: usize, of: impl Fn(&Work, usize, usize) -> f64) -> f64 {
        let is_known = self.known[step][worker] >= self.needed[worker];
        match is_known && !self.job.gappy.contains(&worker) {
            true => of(self.work, worker, step) / self.mean,
            false => f64::NAN,
        }
    }

    /// Workers, then stages, then data-parallel ranks, if there are several of them.
    fn levels(&self) -> Vec<Level> {
        let workers = &self.job.workers;
        let alone = |(at, worker): (usize, &Worker)| Group {
            root: SlowPart::from(worker),
            workers: vec![at],
        };
        let groups = |key: &dyn Fn(&Worker) -> Option<u32>, root: fn(u32) -> SlowPart| {
            let keys: BTreeSet<u32> = workers.iter().filter_map(key).collect();
            let group = |&number: &u32| Group {
                root: root(number),
                workers: (0..workers.len())
                    .filter(|&at| key(&workers[at]) == Some(number))
                    .collect(),
            };
            let all: Vec<Group> = keys.iter().map(group).collect();
            // Groups of one worker each are these workers.
            if all.iter().all(|group| group.workers.len() < 2) { Vec::new() } else { all }
        };
        let stage = |stage| SlowPart { stage: Some(stage), ..SlowPart::default() };
        let dp_rank = |dp_rank| SlowPart { dp_rank: Some(dp_rank), ..SlowPart::default() };
        let all = [
            (workers.iter().enumerate().map(alone).collect(), Against::Usual),
            // The peers of a worker are of its own stage.
            (groups(&|worker| worker.stage, stage), Against::Peers),
            (groups(&|worker| worker.dp_rank, dp_rank), Against::Usual),
        ];
        let several = all.into_iter().filter(|(groups, _): &(Vec<Group>, _)| groups.len() > 1);
        several.map(|(groups, against)| self.level(groups, against)).collect()
    }

    fn level(&self, groups: Vec<Group>, against: Against) -> Level {
        let (mut blocks, mut steps) = (Blocks::new(groups.len()), Vec::new());
        for (step, at) in
            self.steps.iter().zip(0..).skip(self.first).filter(|(step, _)| step.is_timed())
        {
            let of = match against {
                Against::Usual => Work::excess,
                Against::Peers | Against::Past => Work::own,
            };
            let cost = |group: &Group| {
                usual_member(group.workers.iter().map(|&worker| self.share(worker, at, of)))
            };
            blocks.push(groups.iter().map(cost));
            steps.push(*step);
        }
        let excess = blocks.clone().excess(against);
        Level { groups, against, blocks, excess, steps }
    }

    /// The units of a level that are slow, or became slow, and those that cost what matters and may
    /// do so by chance; worst first.
    fn slow(
        &self,
        level: &Level,
        limits: &Limits,
        log: &mut Log,
    ) -> (Vec<Candidate>, Vec<(Candidate, Needs)>) {
        // Two questions about each unit.
        let test = Test { slow_p: limits.slow_p / 2.0, ..*limits };
        let all = compare_units(&level.blocks, level.against, &test);
        let since = compare_units(&level.excess, Against::Past, &test);
        let (mut slow, mut undecided) = (Vec::new(), Vec::new());
        for (at, answers) in all.into_iter().zip(since).enumerate() {
            self.note(&level.groups[at], [&answers.0, &answers.1], (&test, log));
            match answers {
                (Answer::Slow(effect), _) | (_, Answer::Slow(effect)) => slow.push((at, effect)),
                (Answer::CannotTell(effect, needs), _) if effect.mean >= test.least_cost => {
                    undecided.push(((at, effect), needs));
                }
                _ => {}
            }
        }
        slow.sort_by(|a, b| b.1.mean.total_cmp(&a.1.mean));
        slow.truncate(REPLAYED);
        undecided.sort_by(|a, b| b.0.1.mean.total_cmp(&a.0.1.mean));
        undecided.truncate(REPLAYED);
        let undecided = undecided.into_iter().map(|(of, needs)| (self.candidate(level, of), needs));
        let undecided = undecided.collect();
        (slow.into_iter().map(|of| self.candidate(level, of)).collect(), undecided)
    }

    /// Notes what the test says about a group: among its peers, and since when.
    fn note(&self, group: &Group, answers: [&Answer; 2], (test, log): (&Test, &mut Log)) {
        for answer in answers {
            log.saw(Rule::SlowRank, || {
                let what = (group.root.name(), group.ranks(self.job));
                Seen::of(what, (answer, "step"), test)
            });
        }
    }

    fn candidate(&self, level: &Level, (at, effect): (usize, Effect)) -> Candidate {
        let group = level.groups[at].clone();
        let is_whole = group.workers.iter().all(|&of| self.needed[of] == Known::Whole);
        let excess = level.excess.of_unit(at);
        let starts = level.steps.iter().map(|step| step.start);
        let steps = starts.zip(excess).filter(|(_, excess)| !excess.is_nan()).collect();
        let has_peers = level.against == Against::Usual
            && group.workers.iter().all(|&of| self.work.has_peers(of));
        Candidate { group, effect, steps, is_whole, has_peers }
    }
}

/// The lower median: most members of a group cost as much or more. NaN without a known one.
fn usual_member(costs: impl Iterator<Item = f64>) -> f64 {
    let mut known: Vec<f64> = costs.filter(|cost| !cost.is_nan()).collect();
    lower_median(&mut known).unwrap_or(f64::NAN)
}

/// The candidates that explain the loss: each time that whose repair gains most, until none gains
/// what matters. Where members were not recorded, work may be a wait for one of them: the repair of
/// such a candidate must gain it alone.
fn explain(
    replay: &Replay<'_>,
    candidates: Vec<Candidate>,
    limits: &Limits,
    log: &mut Log,
) -> Vec<Candidate> {
    let mut left = without_members(candidates, (replay.job, log));
    if left.is_empty() {
        return left;
    }
    let mut repairs = Repairs { replay, weights: replay.graph.weights().to_vec() };
    let whole = repairs.mean(&[]);
    let least = limits.least_cost * whole;
    left.retain(|one| one.is_whole || whole - repairs.mean(&[one]) >= least);
    best(&mut repairs, left, (whole, least))
}

/// Of these candidates those that explain the loss, as each matters by `least` ns after those
/// before it.
fn best(
    repairs: &mut Repairs<'_, '_>,
    mut left: Vec<Candidate>,
    (mut mean, least): (f64, f64),
) -> Vec<Candidate> {
    let mut found = Vec::new();
    loop {
        let gains: Vec<f64> = left.iter().map(|one| mean - repairs.mean(&[one])).collect();
        let best = (0..left.len()).max_by(|&a, &b| gains[a].total_cmp(&gains[b]));
        match best.filter(|&at| gains[at] >= least) {
            Some(at) => {
                let one = left.remove(at);
                mean -= gains[at];
                repairs.weights = repairs.with(&[&one]);
                found.push(one);
            }
            None if found.is_empty() => return together(repairs, left, least),
            None => return found,
        }
    }
}

/// Two ranks that are equally slow both matter, though the repair of one gains nothing: of all that
/// are repaired together, that which matters least is left as it is, until each of those left would
/// cost what matters if it alone was not repaired.
fn together(repairs: &Repairs<'_, '_>, mut left: Vec<Candidate>, least: f64) -> Vec<Candidate> {
    while !left.is_empty() {
        let mean = repairs.mean(&left.iter().collect::<Vec<_>>());
        let cost = |but: usize| {
            let others = left.iter().enumerate().filter(|(at, _)| *at != but);
            repairs.mean(&others.map(|(_, one)| one).collect::<Vec<_>>()) - mean
        };
        let costs: Vec<f64> = (0..left.len()).map(cost).collect();
        let worst = (0..left.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
        match worst.filter(|&at| costs[at] < least) {
            Some(at) => drop(left.remove(at)),
            None => break,
        }
    }
    left
}

/// The job with some candidates repaired.
struct Repairs<'r, 'j> {
    replay: &'r Replay<'j>,
    /// The weights of all moments, ns.
    weights: Vec<f64>,
}

impl Repairs<'_, '_> {
    /// The weights with the work of these, too, at their peers.
    fn with(&self, all: &[&Candidate]) -> Vec<f64> {
        let weights = self.weights.clone();
        all.iter().fold(weights, |weights, one| one.group.repaired(self.replay, &weights))
    }

    /// The mean duration of a step with these repaired, too, ns.
    fn mean(&self, all: &[&Candidate]) -> f64 {
        self.replay.mean(&self.with(all))
    }
}

/// The candidates without those whose work another one explains: a group whose usual member is slow
/// explains the members that are no slower than twice as much, and the others explain themselves.
fn without_members(candidates: Vec<Candidate>, (job, log): (&Job, &mut Log)) -> Vec<Candidate> {
    let is_inside = |one: &Candidate, group: &Candidate| {
        let is_smaller = one.group.workers.len() < group.group.workers.len();
        is_smaller
            && one.group.workers.iter().all(|worker| group.group.workers.contains(worker))
            && one.effect.mean <= slow::MEMBER * group.effect.mean
    };
    let mut explained = vec![false; candidates.len()];
    for (one, is_explained) in candidates.iter().zip(&mut explained) {
        let Some(by) = candidates.iter().find(|group| is_inside(one, group)) else { continue };
        *is_explained = true;
        log.saw(Rule::SlowRank, || Seen {
            subject: one.group.root.name(),
            ranks: one.group.ranks(job),
            saw: format!("it is no slower than {} times the usual of its group", slow::MEMBER),
            because: Because::Not(format!("{} explains it", by.group.root.name())),
            nearness: one.effect.mean / (slow::MEMBER * by.effect.mean),
        });
    }
    let all = candidates.into_iter().zip(explained);
    all.filter(|(_, is_explained)| !is_explained).map(|(one, _)| one).collect()
}

fn finding(replay: &Replay<'_>, of: &Candidate, limits: &Limits) -> Finding {
    let Candidate { group, effect, steps, is_whole, has_peers } = of;
    let slow: Vec<(f64, bool)> =
        steps.iter().map(|(start, excess)| (*start, *excess >= limits.least_cost)).collect();
    let hits = slow.iter().filter(|(_, is_slow)| *is_slow).count();
    // What a rank did in the first recorded step is not known: it may have begun before.
    let is_first = |onset: &f64| steps.first().is_some_and(|(start, _)| start == onset);
    let onset = Onset::first(&slow, slow::STAYS);
    let begin = replay.steps.iter().find(|step| step.number != Step::NONE);
    let begin = begin.map_or(0.0, |step| step.start);
    let onset = onset.map(|onset| if is_first(&onset) { begin } else { onset });
    let line = |text: String| Evidence::about(FindingClass::SlowRank, text);
    let [low, high] = effect.interval;
    let more = match effect.peers {
        0 => format!(", more than in the {} before", human::count(effect.since, "step")),
        _ => String::new(),
    };
    let text = format!(
        "its own work exceeds that of its peers by {:.1} % of a step{more} ({:.1} to {:.1} %), and \
         in {hits} of {} steps by more than {:.0} %",
        100.0 * effect.mean,
        100.0 * low,
        100.0 * high,
        steps.len(),
        100.0 * limits.least_cost,
    );
    let doubts = [(Doubt::PeerNotRecorded, !is_whole), (Doubt::OtherPrograms, !has_peers)];
    let figures =
        [("steps_over_limit", to_f64(hits as u64)), ("steps", to_f64(steps.len() as u64))];
    Finding {
        title: format!("{} is slow, and the other ranks wait for it", group.root.name()),
        doubts: doubts.into_iter().filter(|(_, is_there)| *is_there).map(|(of, _)| of).collect(),
        root: Some(group.root),
        root_ranks: group.workers.iter().map(|&at| replay.job.workers[at].rank).collect(),
        lost_share: Some(effect.mean),
        steps: Some(hits),
        onset: onset.map(Onset::Job),
        evidence: vec![line(text).with(excess_figures(effect).into_iter().chain(figures))],
        ..Finding::of(FindingClass::SlowRank)
    }
}

/// Turns S1 into S7 if a slow rank's kernels start at once while those of the others queue: its
/// host does not launch fast enough.
fn host_bound(job: &Job, findings: &mut [Finding]) {
    let delay = |is_of: &dyn Fn(u32) -> bool| {
        let of = job.launches.iter().filter(|launch| is_of(job.workers[launch.worker].rank));
        median(&mut of.map(|launch| launch.delay).collect::<Vec<_>>())
    };
    for finding in findings {
        let [rank] = finding.root_ranks[..] else { continue };
        let delays = (delay(&|other| other == rank), delay(&|other| other != rank));
        let (Some(own), Some(others)) = delays else { continue };
        // Delays below slow::AHEAD * clocks::ONE_GPU do not show that the other hosts run ahead.
        if own <= clocks::ONE_GPU && others >= slow::AHEAD * clocks::ONE_GPU {
            finding.class = FindingClass::SlowLaunch;
            finding.title = format!("the host of rank {rank} launches too slowly for its GPU");
            finding.doubts.push(Doubt::OtherCause(FindingClass::SlowRank));
            let figures = [("launch_delay_ns", own), ("others_launch_delay_ns", others)];
            let text = delays_text(own, others);
            let line = Evidence::of(FindingClass::SlowLaunch, rank, text);
            finding.evidence.push(line.with(figures));
        }
    }
}

/// How long after their enqueueing kernels start, as text. The error of the clocks can make the
/// time of a GPU without a queue negative.
fn delays_text(own: f64, others: f64) -> String {
    let own = if own < 1.0 { "at once".into() } else { duration(own) };
    let others = duration(others);
    format!(
        "its kernels start {own}, the others' {others} after they are enqueued: its GPU has \
         nothing else to do"
    )
}
