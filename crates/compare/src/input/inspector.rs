// SPDX-License-Identifier: Apache-2.0
/*!
A run from NCCL Inspector's files.

As in recordings, the transfer of a collective is the shortest time that any of its ranks spent in
it. The files have no times of the run: its slices are equal parts of the numbers that NCCL gave the
collectives of a communicator. Memory grows with the number of collectives, and not with that of
ranks.
*/

use super::{how, operation};
use crate::configuration::Topology;
use crate::run::{BLOCKS, Measure, Operation, Run, Shape};
use ncclscope_inspector::{Collective, Files, Found, Member, RESOLUTION_NS};
use ncclscope_operations::ends::is_stop_end;
use ncclscope_operations::hash::Map;
use ncclscope_operations::human;
use ncclscope_operations::timeline::role_or_size;
use std::collections::{BTreeMap, HashMap};

/// A run, and what its files lack.
#[derive(Debug)]
pub struct InspectorRun {
    /// The run.
    pub run: Run,
    /// The files.
    pub files: Files,
}

/// Reads the run of these files.
///
/// # Errors
/// Why the first file cannot be read, if none can.
pub fn read(name: String, found: &Found) -> Result<InspectorRun, String> {
    let mut gathered = Gathered::default();
    let files = Files::read(found, |of, member, one| gathered.add(of, member, one))?;
    let mut run = Run { name, resolution_ns: RESOLUTION_NS, ..Run::default() };
    gathered.finish(&files, &mut run);
    configure(&files, &mut run);
    let name = &run.name;
    let gaps = files.gaps().into_iter().chain(files.damage()).map(|gap| format!("{name}: {gap}"));
    let mut notes: Vec<String> = gaps.collect();
    notes.push(format!(
        "{name} is of NCCL Inspector's files: they give times of collectives, and neither steps, \
         waiting, links nor sends and receives"
    ));
    notes.extend(files.dropped().map(|(_, what, _)| format!("{name}: {what}")));
    notes.extend(files.unnamed().map(|what| format!("{name}: {what}")));
    run.notes = notes;
    Ok(InspectorRun { run, files })
}

/// What collectives of a communicator have in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Class {
    comm: String,
    role: String,
    nranks: u32,
    func: String,
    bytes: Option<u64>,
    shape: Shape,
}

/// A collective, from the ranks that were read so far.
#[derive(Clone, Copy, Debug)]
struct Least {
    ns: f64,
    ranks: u32,
    is_ambiguous: bool,
}

#[derive(Default)]
struct Gathered {
    numbers: HashMap<Class, u32>,
    classes: Vec<Class>,
    collectives: Map<(u32, u64), Least>,
    /// The file that is read, and the highest number of each of its ranks and functions.
    file: usize,
    highest: HashMap<(usize, String), u64>,
}

impl Gathered {
    fn add(&mut self, (file, at): (usize, usize), member: &Member, one: Collective<'_>) {
        if !one.is_gpu_timed {
            return;
        }
        if file != self.file {
            self.highest.clear();
            self.file = file;
        }
        let highest = self.highest.entry((at, one.func.to_owned())).or_insert(0);
        // A rank that has a number twice replays a CUDA graph, or its file was doubled.
        let is_ambiguous = *highest > one.seq;
        *highest = (*highest).max(one.seq.saturating_add(1));
        let text = |name: Option<&str>| name.unwrap_or_default().to_owned();
        let class = Class {
            comm: member.comm.clone(),
            role: role_or_size(member.comm_name.as_deref(), Some(member.nranks)),
            nranks: member.nranks,
            func: one.func.to_owned(),
            bytes: one.bytes,
            shape: Shape { algo: text(one.algo), proto: text(one.proto), channels: String::new() },
        };
        let class = *self.numbers.entry(class).or_insert_with_key(|class| {
            self.classes.push(class.clone());
            u32::try_from(self.classes.len() - 1).unwrap_or(u32::MAX)
        });
        let none = Least { ns: f64::MAX, ranks: 0, is_ambiguous: false };
        let of = self.collectives.entry((class, one.seq)).or_insert(none);
        of.ns = of.ns.min(one.ns);
        of.ranks += 1;
        of.is_ambiguous |= is_ambiguous;
    }

    /// The series of the collectives that all ranks of their communicator have.
    fn finish(self, files: &Files, run: &mut Run) {
        let ranks = job_ranks(files);
        let is_whole = |(class, seq): (u32, u64), of: Least| {
            let nranks = self.classes.get(class as usize)?.nranks;
            (of.ranks == nranks && nranks > 1 && !of.is_ambiguous).then_some((class, seq, of.ns))
        };
        let whole = self.collectives.into_iter().filter_map(|(key, of)| is_whole(key, of));
        let mut whole: Vec<(u32, u64, f64)> = whole.collect();
        whole.sort_unstable_by_key(|&(class, seq, _)| (seq, class));
        let mut spans: HashMap<(&str, &str), (u64, u64)> = HashMap::new();
        let of_func = |class: u32| {
            let class = &self.classes[class as usize];
            (class.comm.as_str(), class.func.as_str())
        };
        for &(class, seq, _) in &whole {
            spans.entry(of_func(class)).or_insert((seq, seq)).1 = seq;
        }
        for (number, seq, ns) in whole {
            let Some(&(first, last)) = spans.get(&of_func(number)) else { continue };
            let class = &self.classes[number as usize];
            let slice = u128::from(seq - first) * BLOCKS as u128 / (u128::from(last - first) + 1);
            let key = Operation {
                role: class.role.clone(),
                func: class.func.clone(),
                bytes: class.bytes,
                shape: class.shape.clone(),
                ranks: ranks.get(class.comm.as_str()).cloned().unwrap_or_default(),
            };
            let is_end = is_stop_end(&class.func, &class.shape.algo);
            let series = run.series.entry(Measure::Transfer(key)).or_default();
            series.add((u32::try_from(slice).unwrap_or(0), ns), is_end);
        }
        // Algorithms are not named before v4.2, and channels never.
        for measure in run.series.keys() {
            if let Measure::Transfer(of) = measure
                && !of.shape.algo.is_empty()
            {
                let name = operation(&of.role, &of.func, of.bytes);
                run.configuration.choice(&name, how(&of.shape));
            }
        }
    }
}

/// The ranks of the job that each communicator has: those of their processes in the largest one.
fn job_ranks(files: &Files) -> BTreeMap<&str, Vec<u32>> {
    let world = files.members().map(|(_, of)| &of.member).max_by_key(|member| member.nranks);
    let mut ranks: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for file in &files.facts {
        let members = || file.members.iter().map(|of| &of.member);
        let of_world = members().find(|one| Some(&one.comm) == world.map(|world| &world.comm));
        for member in members() {
            let rank = if Some(&member.comm) == of_world.map(|one| &one.comm) {
                member.rank
            } else {
                of_world.map_or(member.rank, |one| one.rank)
            };
            ranks.entry(&member.comm).or_default().extend(u32::try_from(rank));
        }
    }
    ranks.values_mut().for_each(|of| of.sort_unstable());
    ranks
}

fn configure(files: &Files, run: &mut Run) {
    let mut topology = Topology::default();
    for file in &files.facts {
        let members = || file.members.iter().map(|of| &of.member);
        members().take(1).for_each(|member| topology.process(&member.host));
        for member in members() {
            let role = role_or_size(member.comm_name.as_deref(), Some(member.nranks));
            topology.size(member.nranks);
            topology.comm(&role, Some(member.nranks), &member.comm);
        }
    }
    run.configuration.topology(&topology);
    run.gpus = topology.gpus();
    let largest = files.missing().into_values().max_by_key(|(_, size)| *size);
    let gaps = largest.map_or_else(Vec::new, |(gaps, _)| gaps);
    run.unrecorded = gaps.iter().map(|(first, last)| (last - first) as usize + 1).sum();
    let missing = match run.unrecorded {
        0 => "none".to_owned(),
        missing => format!("{missing} of {}", human::count(run.gpus, "rank")),
    };
    run.configuration.fact("missing recordings", missing);
}
