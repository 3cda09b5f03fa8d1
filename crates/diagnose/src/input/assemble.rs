// SPDX-License-Identifier: Apache-2.0
/*!
Combines the snapshots of single processes into a job: which processes are alive, which ranks are
missing, and which sends belong to which receives.

The clocks of hosts are not aligned. Ages therefore count up to the latest recorded time of the same
host, and a process counts as gone only if other processes on its host recorded for longer, or if it
is far behind all hosts.
*/

use super::InputOptions;
use super::recording::{Member, PairSide, Snapshot};
use crate::job::{CommKind, Communicator, Job, Process, ProcessStatus, Vector};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A process that writes no record for three heartbeat periods counts as gone.
const SILENCE_NS: u64 = 3_500_000_000;
/// Added to that between hosts, whose clocks may differ by so much.
const CLOCKS_NS: u64 = 2_000_000_000;
/// In a killed job, operations in flight for this long count as stuck.
const KILLED_NS: u64 = 2_000_000_000;

/// A member of a communicator: its process, its progress, and the time up to which its ages count.
type PlacedMember<'a> = (u32, &'a Member, u64);

/// The job of these processes.
pub(super) fn job(mut snapshots: Vec<Snapshot>, settings: &InputOptions) -> Job {
    snapshots.sort_by_cached_key(|snapshot| snapshot.identity.process());
    let ranks = ranks(&snapshots);
    let mut order: Vec<usize> = (0..snapshots.len()).collect();
    order.sort_by_key(|&at| (ranks[at], at));
    let mut job = Job { source: "recordings".into(), ..Job::default() };
    let was_killed = snapshots.iter().all(|s| !s.is_closed && !s.is_copy && !is_alive(s));
    let mut hang_ns = u64::try_from(settings.hang.as_nanos()).unwrap_or(u64::MAX);
    if was_killed && hang_ns > KILLED_NS {
        hang_ns = KILLED_NS;
        job.min_age_ns = Some(KILLED_NS);
        job.notes.push(
            "all processes were killed: operations in flight for 2 s or more count as stuck".into(),
        );
    }
    let ends = HostEnds::new(&snapshots);
    let mut groups: BTreeMap<(u64, String), Vec<PlacedMember<'_>>> = BTreeMap::new();
    for (&at, process) in order.iter().zip(0u32..) {
        let snapshot = &snapshots[at];
        let now = ends.now(snapshot);
        job.processes.push(Process {
            rank: Some(ranks[at]),
            host: Some(snapshot.host.clone()),
            pid: Some(snapshot.pid),
            status: ends.status(snapshot, hang_ns),
            is_moving: snapshot.end_ns.saturating_sub(snapshot.change_ns) < hang_ns / 10 * 9,
            idle_ns: (snapshot.last_call_ns != 0)
                .then(|| now.saturating_sub(snapshot.last_call_ns)),
            entered: snapshot.entered,
            threads: snapshot.threads.clone(),
            reports: snapshot.reports.clone(),
        });
        for member in &snapshot.comms {
            // Without a hash (API v1 to v3) only names tell communicators apart.
            groups
                .entry((member.hash, member.name.clone()))
                .or_default()
                .push((process, member, now));
        }
    }
    let groups: Vec<Vec<PlacedMember<'_>>> = groups
        .into_values()
        .map(|mut members| {
            members.sort_by_key(|(process, member, _)| (member.rank, *process));
            members
        })
        .collect();
    for members in &groups {
        add_group(members, &mut job);
    }
    let silent = add_silent(&mut job);
    for (at, members) in groups.iter().enumerate() {
        add_pairs(members, at, &silent, &mut job);
    }
    job
}

/// The process still exists on this host.
fn is_alive(snapshot: &Snapshot) -> bool {
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let has_started_since = || {
        let path = format!("/proc/{}", snapshot.pid);
        let made = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
        let made = made.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(u64::try_from(made.as_nanos()).unwrap_or(u64::MAX) > snapshot.end_ns)
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let is_here = snapshot.identity.boot_id.as_deref().is_none_or(|id| id == boot.trim());
    here.trim() == snapshot.host && is_here && has_started_since() == Some(false)
}

/// The rank of each process in the job: from its launcher, else from the communicator of all ranks.
fn ranks(snapshots: &[Snapshot]) -> Vec<u32> {
    let launched: BTreeSet<u32> =
        snapshots.iter().filter_map(|snapshot| snapshot.identity.rank).collect();
    if launched.len() == snapshots.len() {
        return snapshots.iter().filter_map(|snapshot| snapshot.identity.rank).collect();
    }
    let mut widest: BTreeMap<(u32, u64), BTreeMap<usize, u32>> = BTreeMap::new();
    for (at, snapshot) in snapshots.iter().enumerate() {
        for member in snapshot.comms.iter().filter(|member| member.hash != 0) {
            let ranks = widest.entry((member.nranks, member.hash)).or_default();
            ranks.entry(at).or_insert(member.rank);
        }
    }
    let all = widest.into_values().rev().find(|ranks| {
        let distinct: BTreeSet<u32> = ranks.values().copied().collect();
        distinct.len() == snapshots.len()
    });
    match all {
        Some(ranks) => ranks.into_values().collect(),
        None => (0..snapshots.len()).map(|at| u32::try_from(at).unwrap_or(u32::MAX)).collect(),
    }
}

/// The latest recorded time of each host.
struct HostEnds {
    by_machine: HashMap<String, u64>,
    latest: u64,
}

impl HostEnds {
    fn new(snapshots: &[Snapshot]) -> HostEnds {
        let mut by_machine: HashMap<String, u64> = HashMap::new();
        for snapshot in snapshots {
            let end = by_machine.entry(snapshot.identity.machine().to_owned()).or_default();
            *end = snapshot.end_ns.max(*end);
        }
        let latest = by_machine.values().copied().max().unwrap_or(0);
        HostEnds { by_machine, latest }
    }

    /// The time up to which a process's ages count: while it runs, the latest time of its host.
    fn now(&self, snapshot: &Snapshot) -> u64 {
        let host = self.by_machine.get(snapshot.identity.machine()).copied().unwrap_or(0);
        if snapshot.is_closed || host > snapshot.end_ns + SILENCE_NS {
            snapshot.end_ns
        } else {
            host
        }
    }

    fn status(&self, snapshot: &Snapshot, hang_ns: u64) -> ProcessStatus {
        let host = self.by_machine.get(snapshot.identity.machine()).copied().unwrap_or(0);
        let is_behind = host > snapshot.end_ns + SILENCE_NS
            || self.latest > snapshot.end_ns + SILENCE_NS + CLOCKS_NS;
        // The others do not wait for a process that was itself waiting when it died.
        let waited = |member: &Member| {
            let oldest = member.pairs.values().filter_map(|side| side.since_ns).min();
            let since = member.since_ns.filter(|_| member.done < member.enqueued);
            let since = since.into_iter().chain(oldest).min();
            since.is_some_and(|since| snapshot.end_ns.saturating_sub(since) >= hang_ns)
        };
        if snapshot.is_copy || !is_behind || snapshot.comms.iter().any(waited) {
            return ProcessStatus::Running;
        }
        if snapshot.is_closed { ProcessStatus::Ended } else { ProcessStatus::Dead }
    }
}

fn vector(process: u32, member: &Member, now: u64) -> Vector {
    Vector {
        process,
        rank: member.rank,
        api: member.api,
        enqueued: member.enqueued,
        started: member.started,
        done: member.done,
        age_ns: member.since_ns.map(|since| now.saturating_sub(since)),
        born_ns: member.born_ns.map(|born| now.saturating_sub(born)),
        is_blind: member.is_blind,
    }
}

fn add_group(members: &[PlacedMember<'_>], job: &mut Job) {
    let Some((_, first, _)) = members.first() else { return };
    let mut comm = Communicator {
        name: first.name.clone(),
        role: first.role.clone(),
        nranks: first.nranks,
        ..Communicator::default()
    };
    for (&(process, member, now), at) in members.iter().zip(0u32..) {
        comm.vectors.push(vector(process, member, now));
        comm.hashes.extend(member.hashes.iter().map(|&(count, hash)| (at, count, hash)));
        comm.calls.insert(at, member.calls.clone());
        if let Some(flight) = &member.flight {
            comm.flights.insert(at, flight.clone());
        }
    }
    job.comms.push(comm);
}

/// Adds the pairs of ranks with a send or receive in flight, or whose two sides differ.
fn add_pairs(members: &[PlacedMember<'_>], parent: usize, silent: &SilentRanks, job: &mut Job) {
    type PairSides<'a> = [Option<(u32, &'a Member, u64, PairSide)>; 2];
    let mut pairs: BTreeMap<(u32, u32), PairSides<'_>> = BTreeMap::new();
    for &(process, member, now) in members {
        for (&(is_send, peer), side) in &member.pairs {
            let key = if is_send { (member.rank, peer) } else { (peer, member.rank) };
            let sides = pairs.entry(key).or_insert_with(|| [None, None]);
            sides[usize::from(!is_send)] = Some((process, member, now, side.clone()));
        }
    }
    for ((src, dst), sides) in pairs {
        let issued =
            |side: &Option<(_, _, _, PairSide)>| side.as_ref().map_or(0, |side| side.3.issued);
        let is_open = sides.iter().flatten().any(|side| side.3.open > 0);
        if !is_open && issued(&sides[0]) == issued(&sides[1]) {
            continue;
        }
        let known = |rank: u32| members.iter().find(|(_, member, _)| member.rank == rank);
        let counts = [src, dst].iter().all(|&rank| known(rank).is_none_or(|m| m.1.counts_pairs));
        let mut comm = Communicator {
            name: format!("rank {src} to rank {dst} of {}", job.comms[parent].name),
            role: job.comms[parent].role.clone(),
            kind: if counts { CommKind::Pair } else { CommKind::Sequence },
            nranks: 2,
            ..Communicator::default()
        };
        for (rank, side) in [src, dst].into_iter().zip(sides) {
            let Some(&(process, member, now)) = known(rank) else {
                comm.silent.extend(silent.get(&(parent, rank)));
                continue;
            };
            let side = side.map(|side| side.3).unwrap_or_default();
            let at = u32::try_from(comm.vectors.len()).unwrap_or(u32::MAX);
            let (enqueued, done) =
                if counts { (side.issued, side.done) } else { (side.open.min(1), 0) };
            let age_ns = side.since_ns.map(|since| now.saturating_sub(since));
            let born_ns = side.born_ns.map(|born| now.saturating_sub(born));
            let runs = side.flight.kernel.map_or(0, |(_, started, _)| started) > 0;
            let started = member.sees_kernels.then_some(done + u64::from(runs));
            let base = Vector { process, rank, enqueued, done, age_ns, ..Vector::default() };
            comm.vectors.push(Vector { api: enqueued, born_ns, started, ..base });
            comm.flights.insert(at, side.flight);
            comm.sizes.insert(at, side.sizes.into());
        }
        job.comms.push(comm);
    }
}

/// Processes without input, by communicator (position in [`Job::comms`]) and rank in it.
type SilentRanks = BTreeMap<(usize, u32), u32>;

/// Adds the processes without input that the communicators imply.
pub(super) fn add_silent(job: &mut Job) -> SilentRanks {
    let known = job.processes.iter().zip(0u32..);
    let mut known: BTreeMap<u32, u32> = known.filter_map(|(p, at)| Some((p.rank?, at))).collect();
    let mut silent = SilentRanks::new();
    let layouts = RankLayouts::new(job);
    for at in 0..job.comms.len() {
        let comm = &job.comms[at];
        let is_whole = comm.vectors.len() >= comm.nranks as usize;
        if comm.kind != CommKind::Collectives || is_whole || !comm.silent.is_empty() {
            continue;
        }
        let there: BTreeSet<u32> = comm.vectors.iter().map(|vector| vector.rank).collect();
        let missing: Vec<u32> = (0..comm.nranks).filter(|rank| !there.contains(rank)).collect();
        let layout = layouts.of(job, comm);
        for rank in missing {
            let global = layout.and_then(|layout| layout.at(rank)).or(layouts.only_missing);
            let process = match global.and_then(|global| known.get(&global).copied()) {
                // That process has input and is not in this communicator: the guess is wrong.
                Some(at) if job.processes[at as usize].status != ProcessStatus::Silent => continue,
                Some(at) => at,
                None => {
                    let new = u32::try_from(job.processes.len()).unwrap_or(u32::MAX);
                    let status = ProcessStatus::Silent;
                    job.processes.push(Process { rank: global, status, ..Process::default() });
                    if let Some(global) = global {
                        known.insert(global, new);
                    }
                    new
                }
            };
            silent.insert((at, rank), process);
            job.comms[at].silent.push(process);
        }
    }
    silent
}

/// Which ranks of the job the ranks of a communicator are. A missing member has no input that says
/// its rank in the job. Launchers usually form groups of ranks at a constant distance, so the
/// distance between known members tells; if only one is known, the distance in other communicators
/// of the same size and role does.
struct RankLayouts {
    /// The distance in the job between neighbours in a communicator, by its number of ranks and its
    /// role, where all such communicators agree.
    steps: BTreeMap<(u32, Option<String>), Option<i64>>,
    /// The missing rank of the job, if only one is missing.
    only_missing: Option<u32>,
}

impl RankLayouts {
    fn new(job: &Job) -> RankLayouts {
        let mut steps: BTreeMap<(u32, Option<String>), Option<i64>> = BTreeMap::new();
        let mut ranks = 0;
        for comm in job.comms.iter().filter(|comm| comm.kind == CommKind::Collectives) {
            ranks = ranks.max(comm.nranks);
            if let Some(layout) = layout(job, comm) {
                let step =
                    steps.entry((comm.nranks, comm.role.clone())).or_insert(Some(layout.step));
                *step = step.filter(|step| *step == layout.step);
            }
        }
        let known: BTreeSet<u32> =
            job.processes.iter().filter_map(|process| process.rank).collect();
        let mut missing = (0..ranks).filter(|rank| !known.contains(rank));
        let only_missing = missing.next().filter(|_| missing.next().is_none());
        RankLayouts { steps, only_missing }
    }

    fn of(&self, job: &Job, comm: &Communicator) -> Option<RankLayout> {
        let by_others = || {
            let step = (*self.steps.get(&(comm.nranks, comm.role.clone()))?)?;
            let [one] = comm.vectors.as_slice() else { return None };
            let rank = i64::from(job.processes[one.process as usize].rank?);
            Some(RankLayout { start: rank - step * i64::from(one.rank), step })
        };
        layout(job, comm).or_else(by_others)
    }
}

/// Ranks of the job as a linear function of the ranks of a communicator.
#[derive(Clone, Copy)]
struct RankLayout {
    start: i64,
    step: i64,
}

impl RankLayout {
    fn at(self, rank: u32) -> Option<u32> {
        u32::try_from(self.start + self.step * i64::from(rank)).ok()
    }
}

fn layout(job: &Job, comm: &Communicator) -> Option<RankLayout> {
    let global = |vector: &Vector| Some(i64::from(job.processes[vector.process as usize].rank?));
    let points: Vec<(i64, i64)> =
        comm.vectors.iter().filter_map(|v| Some((i64::from(v.rank), global(v)?))).collect();
    let (&(x0, y0), &(x1, y1)) = (points.first()?, points.last()?);
    if x0 == x1 {
        return None;
    }
    let step = (y1 - y0) / (x1 - x0);
    let layout = RankLayout { start: y0 - step * x0, step };
    points.iter().all(|&(x, y)| layout.start + layout.step * x == y).then_some(layout)
}
