// SPDX-License-Identifier: Apache-2.0
/*!
What the ranks wait for.

Each wait is followed back along the moments that were the latest ([`ncclscope_delays`]), and each
gets the part of the wait that its weight fills. What it weighs more than after the repair of the
findings, or more than its peers, is its *excess*: it belongs to the finding, else to the rank or
communicator. All else is *usual*: ranks wait for one another in every job. The parts add up to the
waiting.
*/

use crate::costs::Repaired;
use crate::finding::Finding;
use crate::model::{Job, LayoutPosition};
use crate::replay::Replay;
use ncclscope_delays::{Charge, Source, Wait};
use ncclscope_findings::SlowPart;
use ncclscope_limits::slow;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Maximum number of causes in a report.
const CAUSES: usize = 100;
/// Maximum number of ranks in [`Cause::through`].
const THROUGH: usize = 8;
/// Something that ranks wait for longer than they would among its peers.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cause {
    /// It in words, such as `rank 8`.
    pub name: String,
    /// The part of the job, if it is one.
    pub root: Option<SlowPart>,
    /// The ranks at fault; empty if no rank in particular is.
    pub root_ranks: Vec<u32>,
    /// The code of the finding's class, such as `S1`; `None` without a finding.
    pub finding: Option<&'static str>,
    /// The share of all waiting that it causes, from 0 to 1.
    pub share: f64,
    /// The number of steps in which it causes the most.
    pub steps: usize,
    /// Ranks that wait for it and make other ranks wait, most first.
    pub through: Vec<u32>,
}

/// What one step waited for.
#[derive(Clone, Debug)]
struct StepWaits {
    /// The waiting of all ranks, ns; `None` if the step was not replayed.
    total: Option<f64>,
    /// What causes the most, and how much, ns.
    first: Option<(Key, f64)>,
    /// The excess of each worker's own work, ns.
    late: Vec<f32>,
}

/// The waits of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Causes {
    /// By the steps of the job.
    steps: Vec<StepWaits>,
    /// The causes, worst first.
    pub(crate) list: Vec<Cause>,
    /// The share of all waiting that each finding causes, by its index.
    pub(crate) of_finding: BTreeMap<usize, f64>,
    /// The place of each in `list`.
    places: HashMap<Key, usize>,
    /// The share of the waiting that is usual; `None` without waiting.
    pub(crate) usual_share: Option<f64>,
    /// The share of the steps that is lost to variation without a single cause.
    pub(crate) variation: Option<f64>,
}

/// What a part of a wait belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Key {
    /// Index of a finding.
    Finding(usize),
    /// Index of a worker.
    Worker(u32),
    /// Index of a communicator.
    Comm(u32),
}

/// Sums over all waits, ns.
#[derive(Default)]
struct Sums {
    excess: HashMap<Key, f64>,
    /// Excess that reached the waiting rank through a rank.
    through: HashMap<(Key, u32), f64>,
    usual: f64,
    /// Excess in the current step.
    of_step: BTreeMap<Key, f64>,
}

impl Causes {
    /// Follows all waits of a job.
    pub(crate) fn of(replay: &Replay<'_>, repaired: &Repaired, findings: &[Finding]) -> Causes {
        let peers = replay.peers.references(&replay.graph);
        let variation = variation(replay, repaired, &peers);
        let mut references = peers;
        for (moment, owner) in repaired.owner.iter().enumerate() {
            if owner.is_some() {
                references[moment] = repaired.weights[moment];
            }
        }
        let mut waits: Vec<Wait> = replay.graph.waits().collect();
        waits.sort_by_key(|wait| wait.step);
        let steps = (0..replay.steps.len()).map(|step| StepWaits {
            total: (step >= replay.first).then_some(0.0),
            first: None,
            late: vec![0.0; if step < replay.first { 0 } else { replay.job.workers.len() }],
        });
        let mut causes = Causes { steps: steps.collect(), variation, ..Causes::default() };
        let mut sums = Sums::default();
        for of_step in waits.chunk_by(|a, b| a.step == b.step) {
            let step = &mut causes.steps[of_step[0].step as usize];
            step.total = Some(of_step.iter().map(|wait| wait.to - wait.from).sum());
            sums.add_step(replay, &references, repaired, of_step, &mut step.late);
            step.first = first(replay.job, &sums.of_step);
        }
        causes.list(replay, &sums, findings);
        causes
    }

    /// The cause of most of a step's excess waiting, as its place in the list, and the share of the
    /// step's waiting that it causes.
    pub(crate) fn first_of(&self, step: usize) -> Option<(usize, f64)> {
        let step = self.steps.get(step)?;
        let (key, excess) = step.first?;
        Some((*self.places.get(&key)?, excess / step.total?))
    }

    /// The waiting of all ranks in a step, ns; `None` if it is not known.
    pub(crate) fn waiting(&self, step: usize) -> Option<f64> {
        self.steps.get(step)?.total
    }

    /// The excess of each worker's own work in a step, ns; empty if it is not known.
    pub(crate) fn late(&self, step: usize) -> &[f32] {
        self.steps.get(step).map_or(&[], |step| &step.late)
    }

    /// Lists the worst causes.
    fn list(&mut self, replay: &Replay<'_>, sums: &Sums, findings: &[Finding]) {
        let total = sums.usual + sums.excess.values().sum::<f64>();
        if total <= 0.0 {
            return;
        }
        self.usual_share = Some(sums.usual / total);
        let of_finding = sums.excess.iter().filter_map(|(key, ns)| match key {
            Key::Finding(at) => Some((*at, ns / total)),
            Key::Worker(_) | Key::Comm(_) => None,
        });
        self.of_finding = of_finding.collect();
        let mut worst: Vec<(Key, f64)> = sums.excess.iter().map(|(key, ns)| (*key, *ns)).collect();
        worst.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        worst.truncate(CAUSES);
        let mut through: HashMap<Key, Vec<(f64, u32)>> = HashMap::new();
        for (&(key, worker), &ns) in &sums.through {
            through.entry(key).or_default().push((ns, replay.job.workers[worker as usize].rank));
        }
        for (key, ns) in worst {
            let mut passed = through.remove(&key).unwrap_or_default();
            passed.retain(|(of, _)| *of >= slow::PASSED * ns);
            passed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let is_first = |step: &&StepWaits| step.first.is_some_and(|(first, _)| first == key);
            self.places.insert(key, self.list.len());
            self.list.push(Cause {
                name: key.name(replay, findings),
                root: key.root(replay, findings),
                root_ranks: key.root_ranks(replay, findings),
                finding: key.code(findings),
                share: ns / total,
                steps: self.steps.iter().filter(is_first).count(),
                through: passed.into_iter().take(THROUGH).map(|(_, rank)| rank).collect(),
            });
        }
    }
}

impl Sums {
    /// Adds the waits of a step, and the excess work of each worker to `late`.
    fn add_step(
        &mut self,
        replay: &Replay<'_>,
        references: &[f64],
        repaired: &Repaired,
        waits: &[Wait],
        late: &mut [f32],
    ) {
        self.of_step.clear();
        let mut passed = Vec::new();
        for wait in waits {
            passed.clear();
            replay.graph.walk(wait, references, &mut |charge| {
                let (Source::Work { rank } | Source::Transfer { rank, .. }) = charge.source;
                self.add(charge, repaired.owner[charge.moment], rank, &passed);
                if let Source::Work { rank } = charge.source {
                    late[rank as usize] += single(charge.excess);
                }
                if rank != wait.rank && !passed.contains(&rank) {
                    passed.push(rank);
                }
            });
        }
    }

    /// Adds a stretch that was charged to `worker`, after the workers that passed it on.
    fn add(&mut self, charge: &Charge, owner: Option<usize>, worker: u32, passed: &[u32]) {
        self.usual += charge.usual;
        if charge.excess <= 0.0 {
            return;
        }
        let key = match (owner, charge.source) {
            (Some(finding), _) => Key::Finding(finding),
            (None, Source::Work { rank }) => Key::Worker(rank),
            (None, Source::Transfer { comm, .. }) => Key::Comm(comm),
        };
        *self.excess.entry(key).or_default() += charge.excess;
        *self.of_step.entry(key).or_default() += charge.excess;
        for &through in passed.iter().filter(|&&through| through != worker) {
            *self.through.entry((key, through)).or_default() += charge.excess;
        }
    }
}

impl Key {
    fn root(self, replay: &Replay<'_>, findings: &[Finding]) -> Option<SlowPart> {
        match self {
            Key::Finding(at) => findings[at].root,
            Key::Worker(at) => Some(SlowPart::from(&replay.job.workers[at as usize])),
            Key::Comm(_) => None,
        }
    }

    fn root_ranks(self, replay: &Replay<'_>, findings: &[Finding]) -> Vec<u32> {
        match self {
            Key::Finding(at) => findings[at].root_ranks.clone(),
            Key::Worker(at) => vec![replay.job.workers[at as usize].rank],
            Key::Comm(_) => Vec::new(),
        }
    }

    fn code(self, findings: &[Finding]) -> Option<&'static str> {
        match self {
            Key::Finding(at) => Some(findings[at].class.code()),
            Key::Worker(_) | Key::Comm(_) => None,
        }
    }

    fn name(self, replay: &Replay<'_>, findings: &[Finding]) -> String {
        match (self, self.root(replay, findings)) {
            (_, Some(root)) => root.name(),
            (Key::Finding(at), None) => findings[at].subject(),
            (Key::Comm(at), None) => format!("transfers of {}", replay.comms[at as usize]),
            (Key::Worker(_), None) => String::new(),
        }
    }
}

/// What causes the most, and how much. Of workers that are known by their place in the layout, the
/// one in the worst stage and the worst data-parallel rank: a slow stage and a slow replica may be
/// two causes.
fn first(job: &Job, of_step: &BTreeMap<Key, f64>) -> Option<(Key, f64)> {
    let largest = of_step.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let (&key, &excess) = largest?;
    let Key::Worker(worker) = key else { return Some((key, excess)) };
    let Some(cell) = job.workers[worker as usize].cell else { return Some((key, excess)) };
    let (mut stages, mut replicas) = (BTreeMap::new(), BTreeMap::new());
    let cells = job.workers.iter().zip(0..).filter_map(|(of, at)| Some((of.cell?, at)));
    let cells: BTreeMap<LayoutPosition, u32> = cells.collect();
    for (at, &worker) in &cells {
        let excess = of_step.get(&Key::Worker(worker)).copied().unwrap_or_default();
        *stages.entry(at.stage).or_insert(0.0) += excess;
        *replicas.entry(at.dp_rank).or_insert(0.0) += excess;
    }
    let worst = |sums: BTreeMap<u32, f64>| sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let at = LayoutPosition {
        stage: worst(stages).map_or(cell.stage, |(stage, _)| stage),
        dp_rank: worst(replicas).map_or(cell.dp_rank, |(replica, _)| replica),
    };
    let key = cells.get(&at).map_or(key, |&worker| Key::Worker(worker));
    Some((key, of_step.get(&key).copied().unwrap_or_default()))
}

/// The share of the steps that would be saved if all moments were like their peers, after the
/// repair of the findings.
fn variation(replay: &Replay<'_>, repaired: &Repaired, references: &[f64]) -> Option<f64> {
    let mean = replay.mean(replay.graph.weights());
    let usual = replay.graph.at_references(&repaired.weights, references);
    let lost = replay.mean(&repaired.weights) - replay.mean(&usual);
    (mean > 0.0).then(|| (lost / mean).max(0.0))
}

/// Single precision is enough for a picture.
#[expect(clippy::cast_possible_truncation, reason = "rounds, which is meant")]
fn single(ns: f64) -> f32 {
    ns as f32
}
