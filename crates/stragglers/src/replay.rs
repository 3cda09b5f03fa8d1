// SPDX-License-Identifier: Apache-2.0
//! The job as moments that can be replayed ([`ncclscope_delays`]).

use crate::clock::Clocks;
use crate::model::{Collective, CollectiveClass, EndSync, Job, P2pBatch, P2pClass, Part};
use crate::steps::{Step, Steps};
use crate::waits::spread;
use ncclscope_delays as delays;
use ncclscope_delays::{Graph, Operation, Peers, Work};
use ncclscope_limits::clocks;
use ncclscope_operations::function::is_rooted;
use ncclscope_operations::stats::count;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of parts of operations that are replayed; each has three moments of 44 bytes. Of
/// larger jobs the last steps are.
const PARTS: usize = 1_300_000;

/// A job that can be replayed.
pub(crate) struct Replay<'a> {
    pub(crate) job: &'a Job,
    pub(crate) steps: &'a [Step],
    /// How long each worker works.
    pub(crate) work: Work,
    pub(crate) graph: Graph,
    pub(crate) peers: Peers,
    /// The first step that is replayed.
    pub(crate) first: usize,
    /// Names of the communicators of the graph.
    pub(crate) comms: Vec<&'a str>,
    /// Duration of each step as it was, ns; NaN if unknown.
    durations: Vec<f64>,
}

impl<'a> Replay<'a> {
    /// The moments of a job; `None` if it has no times of kernels.
    pub(crate) fn of(job: &'a Job, clocks: &Clocks, steps: &'a Steps) -> Option<Replay<'a>> {
        if !job.is_kernel_timed {
            return None;
        }
        let mut numbers = Numbers::default();
        let collectives: Vec<Operation> =
            job.classes.iter().map(|class| numbers.of_collective(job, class)).collect();
        let batches: Vec<Operation> =
            job.p2p_classes.iter().map(|class| numbers.of_batch(job, class)).collect();
        let unknown = numbers.of(String::new(), [("", None); 2], "");
        let first = first(job, steps);
        let kinds = Kinds { collectives, batches, unknown };
        let operations = Operations { job, clocks, steps, first, kinds }.all();
        let graph = Graph::of(operations, job.workers.len(), steps.list.len(), job.steps_restart);
        let peers = Peers::of(&graph);
        let work = match job.own.is_empty() {
            true => Work::of(&graph, &peers),
            false => listed(job, steps),
        };
        let durations = graph.durations(&graph.replay(graph.weights()));
        let comms = numbers.comms();
        Some(Replay { job, steps: &steps.list, work, graph, peers, first, comms, durations })
    }

    /// The durations of the steps with these weights, ns, where the duration as it was is known.
    pub(crate) fn durations(&self, weights: &[f64]) -> Vec<f64> {
        let durations = self.graph.durations(&self.graph.replay(weights));
        let steps = self.durations.iter().zip(durations).zip(self.steps);
        let known = steps.filter(|((was, _), step)| step.number != Step::NONE && !was.is_nan());
        known.map(|((_, duration), _)| duration).collect()
    }

    /// The mean duration of a step with these weights, ns; 0 if none is known.
    pub(crate) fn mean(&self, weights: &[f64]) -> f64 {
        let steps = self.durations(weights);
        steps.iter().sum::<f64>() / count(steps.len()).max(1.0)
    }

    /// The first step that does not begin before a time.
    pub(crate) fn step_at(&self, onset: f64) -> u32 {
        index(self.steps.partition_point(|step| step.start < onset))
    }
}

/// What the operations of a graph are made from.
struct Operations<'a, 'b> {
    job: &'a Job,
    clocks: &'b Clocks,
    steps: &'b Steps,
    /// The first step that is replayed; operations of earlier ones have no parts.
    first: usize,
    kinds: Kinds,
}

/// Operations without members.
struct Kinds {
    /// Like the collectives of each class.
    collectives: Vec<Operation>,
    /// Like the sends and receives of each class.
    batches: Vec<Operation>,
    /// Like those of no class.
    unknown: Operation,
}

impl Operations<'_, '_> {
    /// The operations on the job's clock.
    fn all(&self) -> Vec<Operation> {
        let mut all = Vec::with_capacity(self.job.collectives.len() + self.job.batches.len());
        let mut ends = self.ends().into_iter();
        for (collective, &step) in self.job.collectives.iter().zip(&self.steps.of_collective) {
            let ends: Vec<f64> = ends.by_ref().take(collective.parts.len()).collect();
            if step >= self.first {
                self.add_collective((collective, &ends), step, &mut all);
            }
        }
        let first = all.len();
        for (batch, &step) in self.job.batches.iter().zip(&self.steps.of_batch) {
            let end = ends.next().unwrap_or(batch.part.end);
            let part = self.part(&Part { end, ..batch.part }, step);
            all.push(self.of_batch(batch, (step, part), first));
        }
        all
    }

    /// When each part of collectives, and then each batch, ends for its worker, in the order of the
    /// job. A batch ends when the GPU does other work: what it sent may still be in the proxy's
    /// buffers. An operation that seems to end just after the next one began, within the error of
    /// the times ([`clocks::ONE_GPU`]), ended before it.
    fn ends(&self) -> Vec<f64> {
        let error =
            |part: &Part| clocks::ONE_GPU.max(clocks::ONE_GPU_PART * (part.end - part.start));
        let collectives = self.job.collectives.iter().zip(&self.steps.of_collective);
        let of_parts = collectives.flat_map(|(collective, &step)| {
            let ends = move |part: &Part| (*part, step, (part.end - error(part), part.end));
            collective.parts.iter().map(ends)
        });
        let batches = self.job.batches.iter().zip(&self.steps.of_batch);
        let of_batches = batches.map(|(batch, &step)| {
            let (earliest, latest) = batch.released;
            let earliest = earliest.min(latest - error(&batch.part));
            (batch.part, step, (earliest, latest.min(batch.part.end)))
        });
        let all: Vec<(Part, usize, (f64, f64))> = of_parts.chain(of_batches).collect();
        // Of each worker, and in each step if times begin anew there.
        let workers = self.job.workers.len();
        let line = |worker: usize, step: usize| {
            worker + if self.job.steps_restart { step * workers } else { 0 }
        };
        let mut arrivals: Vec<Vec<f64>> = vec![Vec::new(); line(workers, self.steps.list.len())];
        all.iter().for_each(|(part, step, _)| arrivals[line(part.worker, *step)].push(part.start));
        arrivals.iter_mut().for_each(|of| of.sort_unstable_by(f64::total_cmp));
        let end = |(part, step, (earliest, latest)): (Part, usize, (f64, f64))| {
            let arrivals = &arrivals[line(part.worker, step)];
            let next = arrivals.get(arrivals.partition_point(|&at| at <= part.start));
            latest.min(next.copied().unwrap_or(f64::MAX).max(earliest))
        };
        all.into_iter().map(end).collect()
    }

    /// Adds a collective: one operation for each group of clocks that can be compared.
    fn add_collective(
        &self,
        (collective, ends): (&Collective, &[f64]),
        step: usize,
        all: &mut Vec<Operation>,
    ) {
        let class = &self.job.classes[collective.class];
        let like = &self.kinds.collectives[collective.class];
        let mut groups: BTreeMap<usize, Vec<delays::Part>> = BTreeMap::new();
        for (part, &end) in collective.parts.iter().zip(ends) {
            let group = groups.entry(self.clocks.group(part.worker)).or_default();
            group.push(self.part(&Part { end, ..*part }, step));
        }
        for mut parts in groups.into_values() {
            if !is_rooted(&class.func) {
                end_after_all(&mut parts);
            }
            let error = match collective.ends {
                EndSync::Together => spread(parts.iter().map(|part| part.end)),
                EndSync::Apart => 0.0,
            };
            let error = self.clocks.error.max(error);
            let step = index(step);
            all.push(Operation { step, parts, error, ..like.clone() });
        }
    }

    fn of_batch(
        &self,
        batch: &P2pBatch,
        (step, part): (usize, delays::Part),
        first: usize,
    ) -> Operation {
        let like = batch.class.map_or(&self.kinds.unknown, |at| &self.kinds.batches[at]);
        let group = self.clocks.group(batch.part.worker);
        let is_comparable =
            |&&at: &&usize| self.clocks.group(self.job.batches[at].part.worker) == group;
        let partners = batch.partners.iter().filter(is_comparable);
        let partners: BTreeSet<u32> = partners.map(|&at| index(first + at)).collect();
        let part = (step >= self.first).then_some(part);
        Operation {
            step: index(step),
            parts: part.into_iter().collect(),
            partners: partners.into_iter().collect(),
            error: self.clocks.error,
            ..like.clone()
        }
    }

    fn part(&self, part: &Part, step: usize) -> delays::Part {
        let begin = if self.job.steps_restart { self.steps.list[step].start } else { 0.0 };
        delays::Part {
            rank: index(part.worker),
            arrival: self.clocks.time(part.worker, part.start) - begin,
            end: self.clocks.time(part.worker, part.end) - begin,
        }
    }
}

/// The work that the input lists.
fn listed(job: &Job, steps: &Steps) -> Work {
    let list = job.own.iter().zip(&steps.of_own);
    let list = list.map(|((part, _), &step)| (part.worker, step, part.end - part.start));
    Work::listed(list, job.workers.len(), steps.list.len())
}

/// The first of the last steps that have no more than [`PARTS`].
fn first(job: &Job, steps: &Steps) -> usize {
    let mut parts = vec![0; steps.list.len()];
    steps.parts(job).for_each(|(_, step)| parts[step] += 1);
    let mut left = PARTS;
    let fits = |parts: &&usize| {
        left = left.saturating_sub(**parts);
        left > 0
    };
    steps.list.len() - parts.iter().rev().take_while(fits).count()
}

/// No member is done before all have arrived, even if its kernel stops earlier because its own data
/// is on its way, as with NVLS.
fn end_after_all(parts: &mut [delays::Part]) {
    let last = parts.iter().map(|part| part.arrival).fold(f64::MIN, f64::max);
    parts.iter_mut().for_each(|part| part.end = part.end.max(last + 2.0 * clocks::RESOLUTION));
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Numbers for the roles of communicators, the kinds of operations, and the communicators.
#[derive(Default)]
struct Numbers<'a> {
    roles: HashMap<String, u32>,
    kinds: HashMap<(u32, &'a str, Option<u64>), u32>,
    comms: HashMap<&'a str, u32>,
}

impl<'a> Numbers<'a> {
    /// An operation like the collectives of a class.
    fn of_collective(&mut self, job: &Job, class: &'a CollectiveClass) -> Operation {
        let role = job.roles.get(&class.comm).cloned();
        let role = role.unwrap_or_else(|| class.members.to_string());
        let what = (&*class.func, class.bytes);
        self.of(role, [what, what], &class.comm)
    }

    /// An operation like the sends and receives of a class.
    fn of_batch(&mut self, job: &Job, class: &'a P2pClass) -> Operation {
        let role = job.roles.get(&class.comm).cloned().unwrap_or_default();
        self.of(role, [(class.func, class.bytes), (class.func, None)], &class.comm)
    }

    /// An operation of a kind, and what it is in a rank's program.
    fn of(&mut self, role: String, what: [(&'a str, Option<u64>); 2], comm: &'a str) -> Operation {
        let numbers = [self.roles.len(), self.comms.len()].map(index);
        let role = *self.roles.entry(role).or_insert(numbers[0]);
        let [kind, function] = what.map(|(name, bytes)| {
            let next = index(self.kinds.len());
            *self.kinds.entry((role, name, bytes)).or_insert(next)
        });
        let comm = *self.comms.entry(comm).or_insert(numbers[1]);
        Operation { role, kind, function, comm, ..Operation::default() }
    }

    /// The names of the communicators, by number.
    fn comms(&self) -> Vec<&'a str> {
        let mut names = vec![""; self.comms.len()];
        self.comms.iter().for_each(|(name, at)| names[*at as usize] = name);
        names
    }
}
