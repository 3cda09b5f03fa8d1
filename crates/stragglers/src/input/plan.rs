// SPDX-License-Identifier: Apache-2.0
//! What recordings declare about a job before their records are read: the workers, their members in
//! communicators, work done for other processes (PXN), and shortages of processor time.

use super::comm_id::{CommKey, comm_id};
use super::shortages::ShortTimes;
use crate::model::{CpuShortage, Worker};
use ncclscope_findings::CommId;
use ncclscope_operations::pxn::Pxn;
use ncclscope_operations::timeline::{comm_name, role_or_size};
use ncclscope_trace::record::ProxyOp;
use ncclscope_trace::runs::{self, ProcessFacts};
use ncclscope_trace::{Comm, Recording, Start};
use std::collections::BTreeMap;

/// The processes of a job, each at a place; places are ordered by rank.
#[derive(Debug)]
pub(super) struct JobPlan<'r> {
    /// Index, among the given recordings, of the recording at each place.
    pub(super) order: Vec<usize>,
    recordings: Vec<&'r Recording>,
    pub(super) pxn: Pxn,
    /// Start of the earliest recording, ns since 1970.
    pub(super) origin: i64,
    /// Worker of each communicator, by place and position.
    workers: Vec<Vec<usize>>,
    /// Place of the process of each worker.
    processes: Vec<usize>,
    /// The worker of each rank of a communicator.
    pub(super) members: BTreeMap<(CommKey, i32), usize>,
    pub(super) names: BTreeMap<CommKey, String>,
    /// Role of each communicator, by name in the job: as declared, else its own name, else its
    /// size.
    pub(super) roles: BTreeMap<String, String>,
    /// Hash and name of each communicator, by name in the job.
    pub(super) comms: BTreeMap<String, CommId>,
    pub(super) placed: Vec<Worker>,
    pub(super) shortages: Vec<CpuShortage>,
    /// When each process was far shorter of processor time than the others.
    short: Vec<ShortTimes>,
    /// At least one process was short of processor time.
    has_short: bool,
}

impl<'r> JobPlan<'r> {
    /// The plan of a job with these recordings, one per process, in any order.
    pub(super) fn new(recordings: &[&'r Recording]) -> JobPlan<'r> {
        let facts: Vec<ProcessFacts> = recordings.iter().copied().map(ProcessFacts::of).collect();
        let ranks = runs::ranks(&facts.iter().collect::<Vec<_>>());
        let mut order: Vec<usize> = (0..recordings.len()).collect();
        order.sort_by_cached_key(|&at| {
            let facts = &facts[at];
            (ranks[at], facts.identity.process(), facts.begin_ns, facts.path.clone())
        });
        let ranked: Vec<(u32, &'r Recording)> =
            order.iter().map(|&at| (ranks[at], recordings[at])).collect();
        let starts = ranked.iter().map(|(_, r)| r.tick_map().realtime_ns(first_ticks(r)));
        let recordings: Vec<&'r Recording> =
            ranked.iter().map(|(_, recording)| *recording).collect();
        let (shortages, short) = ShortTimes::of_all(&ranked);
        let mut plan = JobPlan {
            order,
            pxn: Pxn::default(),
            recordings,
            origin: starts.min().map_or(0, |ns| i64::try_from(ns).unwrap_or(i64::MAX)),
            workers: Vec::new(),
            processes: Vec::new(),
            members: BTreeMap::new(),
            names: BTreeMap::new(),
            roles: BTreeMap::new(),
            comms: BTreeMap::new(),
            placed: Vec::new(),
            shortages: Vec::new(),
            has_short: short.iter().any(|times| !times.is_empty()),
            short,
        };
        for (rank, recording) in ranked {
            plan.add_workers(rank, recording);
        }
        let of_worker = |(worker, &process)| CpuShortage { worker, ..shortages[process] };
        plan.shortages = plan.processes.iter().enumerate().map(of_worker).collect();
        plan
    }

    /// The recordings, by place.
    pub(super) fn recordings(&self) -> &[&'r Recording] {
        &self.recordings
    }

    /// The workers of the communicators of the process at a place.
    pub(super) fn workers(&self, place: usize) -> &[usize] {
        &self.workers[place]
    }

    /// The communicator of a ProxyOp that the process at a place executed for another process.
    pub(super) fn owner(&self, place: usize, start: &Start, op: &ProxyOp) -> Option<CommKey> {
        let comms = self.recordings[self.pxn.owner_of(place, start, op)?].comms();
        comms.iter().find(|comm| comm.index == start.comm).map(comm_id)
    }

    /// When a rank of a communicator was short of processor time; `None` if it was not.
    pub(super) fn short_times(&self, comm: CommKey, rank: i32) -> Option<&ShortTimes> {
        if !self.has_short {
            return None;
        }
        let worker = *self.members.get(&(comm, rank))?;
        self.short.get(*self.processes.get(worker)?).filter(|times| !times.is_empty())
    }

    /// Ranks of the largest communicator without a recording, as inclusive ranges.
    pub(super) fn unrecorded(&self) -> Vec<(u32, u32)> {
        let comms = self.recordings.iter().flat_map(|recording| recording.comms());
        let Some(comm) = comms.max_by_key(|comm| comm.ranks) else { return Vec::new() };
        let known = self.members.range((comm_id(comm), 0)..=(comm_id(comm), i32::MAX));
        let (mut gaps, mut next) = (Vec::new(), 0);
        for rank in known.map(|((_, rank), _)| rank.unsigned_abs()).chain([comm.ranks]) {
            if rank > next {
                gaps.push((next, rank - 1));
            }
            next = rank.saturating_add(1);
        }
        gaps
    }

    /// Adds the workers of a process. If it has only one rank, that is `rank` of the job.
    fn add_workers(&mut self, rank: u32, recording: &Recording) {
        let comms = recording.comms();
        let (first, process) = (self.placed.len(), self.workers.len());
        let numbers = recording.local_ranks();
        let mut ranks: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        match &numbers {
            None => drop(ranks.insert(0, (0..comms.len()).collect())),
            Some(numbers) => {
                numbers
                    .iter()
                    .enumerate()
                    .for_each(|(at, &n)| ranks.entry(n).or_default().push(at));
            }
        }
        let mut workers = vec![first; comms.len().max(1)];
        for of in ranks.into_values() {
            let worker = self.placed.len();
            let world = of.iter().max_by_key(|&&at| comms[at].ranks).filter(|_| numbers.is_some());
            let rank = world.map_or(rank, |&at| comms[at].rank.cast_unsigned());
            let mut placed = Worker::new(rank, recording.header().host.clone());
            let identity = recording.identity();
            placed.machine = identity.machine().to_owned();
            (placed.pid, placed.local_rank) = (Some(recording.header().pid), identity.local_rank);
            placed.device = identity.device;
            placed.gpu = identity.device_uuid.clone().unwrap_or_default();
            for at in of {
                workers[at] = worker;
                self.add_member(worker, (recording, &comms[at]), &mut placed);
            }
            self.placed.push(placed);
            self.processes.push(process);
        }
        self.workers.push(workers);
    }

    /// Adds a worker as a member of a communicator.
    fn add_member(
        &mut self,
        worker: usize,
        (recording, comm): (&Recording, &Comm),
        placed: &mut Worker,
    ) {
        self.members.insert((comm_id(comm), comm.rank), worker);
        if let Some(device) = recording.comm_device(comm.index) {
            placed.device = Some(device.index);
            placed.gpu.clone_from(&device.uuid);
        }
        let role = recording.role(comm).or(comm.name.as_deref());
        let name =
            role.map_or_else(|| comm_name(comm), |role| format!("{} \"{role}\"", comm_name(comm)));
        let ranks = (comm.ranks != 0).then_some(comm.ranks);
        self.roles.insert(name.clone(), role_or_size(role, ranks));
        let known = CommId { comm: comm_name(comm), name: comm.name.clone() };
        self.comms.insert(name.clone(), known);
        self.names.insert(comm_id(comm), name);
        let place = u32::try_from(comm.rank).ok().filter(|_| comm.ranks > 1);
        match role.map(str::to_ascii_lowercase).as_deref() {
            Some("pp") => placed.stage = place,
            Some("dp") => placed.dp_rank = place,
            _ => {}
        }
    }
}

fn first_ticks(recording: &Recording) -> u64 {
    recording.comms().iter().map(|comm| comm.ticks).min().unwrap_or(0)
}
