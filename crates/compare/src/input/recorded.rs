// SPDX-License-Identifier: Apache-2.0
/*!
A run from the recordings of its processes, joined as `stragglers` joins them.

The transfer of a collective is the shortest time that any rank spent in it: that rank arrived last
and waited for no other. This needs no clock except the rank's own, and neither does the waiting of
the other ranks: the additional time that they spent. For a send and its receive, the transfer is
the shorter time of the two sides.

The end of some kernels is unknown ([`Collective::has_ends`]): their times are lower bounds, which a
series holds apart ([`Series::least`]).
*/

use super::blocks::Blocks;
use super::{how, operation};
use crate::configuration::Topology;
use crate::run::{Frequency, Measure, Operation, Run, Series, Shape};
use ncclscope_operations::ends::waits_for_all;
use ncclscope_operations::human;
use ncclscope_operations::stats::count;
use ncclscope_statistics::median;
use ncclscope_stragglers::Job;
use ncclscope_stragglers::clock::Clocks;
use ncclscope_stragglers::input::recording;
use ncclscope_stragglers::model::{Collective, Part};
use ncclscope_stragglers::steps::Steps;
use ncclscope_stragglers::time_blocks::TimeBlocks;
use ncclscope_trace::Recording;
use std::collections::{BTreeMap, BTreeSet};

/// The run of these recordings, one per process.
#[must_use]
pub fn run(name: String, recordings: &[Recording]) -> Run {
    of_recordings(name, recordings, &recording::job(recordings))
}

/// The run of these recordings, from which `job` was read.
#[must_use]
pub fn of_recordings(name: String, recordings: &[Recording], job: &Job) -> Run {
    let mut run = of_job(name, job);
    let mut topology = Topology::default();
    for recording in recordings {
        topology.process(&recording.header().host);
        for (key, value) in recording.identity().entries() {
            run.configuration.identity(key, &value);
        }
        for comm in recording.comms() {
            topology.size(comm.ranks);
            let version = comm.release();
            version.into_iter().for_each(|version| run.configuration.identity("nccl", &version));
        }
    }
    for class in &job.classes {
        let members = Some(class.members).filter(|&members| members != 0);
        topology.comm(role(job, &class.comm), members, &class.comm);
    }
    run.configuration.topology(&topology);
    run.gpus = topology.gpus();
    let mut missing = "none".to_owned();
    if run.unrecorded > 0 {
        missing = format!("{} of {}", run.unrecorded, human::count(run.gpus, "rank"));
        let have = human::if_one(run.unrecorded, "has", "have");
        run.notes.push(format!("{}: {missing} {have} no readable recording", run.name));
    }
    run.configuration.fact("missing recordings", missing);
    run
}

/// The run of a job, without the facts that only recordings contain.
#[must_use]
pub fn of_job(name: String, job: &Job) -> Run {
    let clocks = Clocks::fit(job);
    let steps = Steps::of(job, &clocks);
    let blocks = Blocks::new(&steps, span(job, &clocks));
    let mut reader = Reader { job, clocks, steps, blocks, series: BTreeMap::new() };
    let unrecorded = job.unrecorded.iter().map(|(first, last)| (last - first + 1) as usize).sum();
    let mut run = Run { name, unrecorded, notes: job.notes.clone(), ..Run::default() };
    reader.steps(&mut run);
    if job.is_kernel_timed {
        reader.transfers(&mut run);
        reader.batches();
        reader.waiting();
    } else if !job.collectives.is_empty() {
        run.notes.push(
            "transfers and waiting are not compared: without kernel times (KernelCh) the time of \
             an operation contains the wait for the GPU"
                .into(),
        );
    }
    reader.links();
    run.series = reader.series;
    run
}

/// The first and the last time of a job.
fn span(job: &Job, clocks: &Clocks) -> (f64, f64) {
    let collectives = job.collectives.iter().flat_map(|c| &c.parts);
    let parts = collectives.chain(job.batches.iter().map(|batch| &batch.part));
    parts.fold((f64::MAX, f64::MIN), |(start, end), part| {
        let time = |ns| clocks.time(part.worker, ns);
        (start.min(time(part.start)), end.max(time(part.end)))
    })
}

fn role<'a>(job: &'a Job, comm: &'a str) -> &'a str {
    job.roles.get(comm).map_or(comm, String::as_str)
}

fn took(part: &Part) -> f64 {
    (part.end - part.start).max(0.0)
}

/// The parts of a text such as `RING SIMPLE, 2 channels`.
fn shape(text: &str) -> Shape {
    let (how, channels) = text.split_once(", ").unwrap_or((text, ""));
    let (algo, proto) = how.split_once(' ').unwrap_or((how, ""));
    let channels = channels.strip_suffix(" channels").unwrap_or(channels);
    Shape { algo: algo.into(), proto: proto.into(), channels: channels.into() }
}

struct Reader<'a> {
    job: &'a Job,
    clocks: Clocks,
    steps: Steps,
    blocks: Blocks,
    series: BTreeMap<Measure, Series>,
}

/// The values of a measure with their blocks, and the communicators or ranks they come from.
#[derive(Debug, Default)]
struct Gathered {
    series: Series,
    sources: BTreeSet<usize>,
}

impl Reader<'_> {
    /// The durations of steps.
    fn steps(&mut self, run: &mut Run) {
        let numbered: Vec<(usize, u32)> = self.blocks.numbered().collect();
        // Without the last step, which ends with its last operation; the others end with the first
        // operation of the next step.
        let whole = &numbered[..numbered.len().saturating_sub(1)];
        let values = whole.iter().map(|&(at, block)| (block, self.steps.list[at].mean()));
        let values: Vec<(u32, f64)> = values.collect();
        run.step_ns = median(&values.iter().map(|(_, ns)| *ns).collect::<Vec<_>>());
        run.steps = self.blocks.steps;
        run.combined = self.blocks.combined;
        run.steps_from = (run.steps > 0).then_some(self.steps.source);
        if !values.is_empty() {
            let frequency = Some(Frequency::of_each(1.0));
            let series = Series { values, frequency, ..Series::default() };
            self.series.insert(Measure::Step, series);
        }
    }

    /// The block of a collective; `None` if it belongs to no step, or if some of its ranks are
    /// missing.
    fn block(&self, at: usize, collective: &Collective) -> Option<u32> {
        let members = self.job.classes[collective.class].members as usize;
        if collective.parts.len() < members.max(2) {
            return None;
        }
        let ends = collective.parts.iter().map(|part| self.clocks.time(part.worker, part.end));
        self.blocks.of(self.steps.of_collective[at], ends.fold(f64::MIN, f64::max))
    }

    /// The ranks of these parts in order.
    fn ranks<'a>(&self, parts: impl Iterator<Item = &'a Part>) -> Vec<u32> {
        let mut ranks: Vec<u32> = parts.map(|part| self.job.workers[part.worker].rank).collect();
        ranks.sort_unstable();
        ranks
    }

    fn transfers(&mut self, run: &mut Run) {
        let job = self.job;
        let comms: BTreeSet<&str> = job.classes.iter().map(|class| class.comm.as_str()).collect();
        let numbers: BTreeMap<&str, usize> = comms.into_iter().zip(0..).collect();
        let mut gathered: BTreeMap<Operation, Gathered> = BTreeMap::new();
        for (at, collective) in job.collectives.iter().enumerate() {
            let Some(block) = self.block(at, collective) else { continue };
            let class = &job.classes[collective.class];
            let key = Operation {
                role: role(job, &class.comm).into(),
                func: class.func.clone(),
                bytes: class.bytes,
                shape: shape(job.shapes.get(collective.shape).map_or("", String::as_str)),
                ranks: self.ranks(collective.parts.iter()),
            };
            let least = collective.parts.iter().map(took).fold(f64::MAX, f64::min);
            let of = gathered.entry(key).or_default();
            of.series.add((block, least), collective.has_ends);
            of.sources.extend(numbers.get(class.comm.as_str()));
        }
        for Operation { role, func, bytes, shape, .. } in gathered.keys() {
            run.configuration.choice(&operation(role, func, *bytes), how(shape));
        }
        self.add(gathered);
    }

    /// Sends and receives of which both sides are known.
    fn batches(&mut self) {
        let job = self.job;
        let mut gathered: BTreeMap<Operation, Gathered> = BTreeMap::new();
        for (at, batch) in job.batches.iter().enumerate() {
            let end = self.clocks.time(batch.part.worker, batch.part.end);
            let block = self.blocks.of(self.steps.of_batch[at], end);
            let Some((block, class)) = block.zip(batch.class) else { continue };
            let others = || batch.partners.iter().map(|&other| &job.batches[other]);
            let Some(least) = others().map(|of| took(&of.part)).reduce(f64::min) else { continue };
            let has_ends = batch.has_end && others().all(|of| of.has_end);
            let class = &job.p2p_classes[class];
            let key = Operation {
                role: role(job, &class.comm).into(),
                func: class.func.into(),
                bytes: class.bytes,
                shape: Shape::default(),
                ranks: self.ranks(others().map(|of| &of.part).chain([&batch.part])),
            };
            let of = gathered.entry(key).or_default();
            of.series.add((block, least.min(took(&batch.part))), has_ends);
            of.sources.insert(batch.part.worker);
        }
        self.add(gathered);
    }

    fn add(&mut self, gathered: BTreeMap<Operation, Gathered>) {
        let steps = self.blocks.steps;
        for (operation, Gathered { series, sources }) in gathered {
            let in_step = count(series.count()) / count(steps.max(1));
            let frequency = (steps > 0).then_some(Frequency { in_step, sources });
            self.series.insert(Measure::Transfer(operation), Series { frequency, ..series });
        }
    }

    /// The mean waiting time of a communicator's ranks in the collectives of a function, by step.
    fn waiting(&mut self) {
        let job = self.job;
        let mut waits: BTreeMap<(&str, &str, Vec<u32>), Waits> = BTreeMap::new();
        for (at, collective) in job.collectives.iter().enumerate() {
            let class = &job.classes[collective.class];
            if !waits_for_all(&class.func) || self.block(at, collective).is_none() {
                continue;
            }
            let least = collective.parts.iter().map(took).fold(f64::MAX, f64::min);
            let waited: f64 = collective.parts.iter().map(|part| took(part) - least).sum();
            let ranks = self.ranks(collective.parts.iter());
            let key = (role(job, &class.comm), class.func.as_str(), ranks);
            let of = waits.entry(key).or_default();
            *of.steps.entry(self.steps.of_collective[at]).or_default() += waited;
            of.ns[usize::from(collective.has_ends)] += waited;
        }
        let blocks: BTreeMap<usize, u32> = self.blocks.numbered().collect();
        for ((role, func, ranks), Waits { steps, ns: [least, whole] }) in waits {
            // Of a training step, also if several are combined into one.
            let each = |step: usize| count(ranks.len() * self.steps.list[step].count);
            let value = |(step, ns): (&usize, &f64)| Some((*blocks.get(step)?, ns / each(*step)));
            let values: Vec<(u32, f64)> = steps.iter().filter_map(value).collect();
            if !values.is_empty() {
                let in_step = count(values.len()) / count(blocks.len().max(1));
                let frequency = Some(Frequency::of_each(in_step));
                let measure = Measure::Waiting { role: role.into(), func: func.into(), ranks };
                let mut series = Series { frequency, ..Series::default() };
                // Most ends are unknown: then the values are lower bounds. A few unknown ends
                // hardly matter.
                let of = if least > whole { &mut series.least } else { &mut series.values };
                *of = values;
                self.series.insert(measure, series);
            }
        }
    }

    /// The wire time per byte of links; all channels and communicators of a role are combined.
    fn links(&mut self) {
        let job = self.job;
        let mut links: BTreeMap<Measure, TimeBlocks> = BTreeMap::new();
        for edge in &job.edges {
            let link = Measure::Link {
                role: role(job, &edge.comm).into(),
                from: job.workers[edge.src].rank,
                to: job.workers[edge.dst].rank,
            };
            links.entry(link).or_default().merge(&edge.blocks);
        }
        for (link, blocks) in links {
            let values = (0..).zip(blocks.costs()).collect();
            self.series.insert(link, Series { values, ..Series::default() });
        }
    }
}

/// Waiting times of some ranks in the collectives of one function.
#[derive(Debug, Default)]
struct Waits {
    /// Sum over all ranks by step, ns.
    steps: BTreeMap<usize, f64>,
    /// Waiting in collectives with unknown ends, and in the others, ns.
    ns: [f64; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_its_parts() {
        let of = |text| {
            let Shape { algo, proto, channels } = shape(text);
            [algo, proto, channels]
        };
        assert_eq!(of("RING SIMPLE, 2 channels"), ["RING", "SIMPLE", "2"]);
        assert_eq!(of("TREE LL, unknown channels"), ["TREE", "LL", "unknown"]);
        assert_eq!(of(""), ["", "", ""]);
    }
}
