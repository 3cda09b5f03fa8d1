// SPDX-License-Identifier: Apache-2.0
/*!
Combines the snapshots of single processes into a job: which processes are alive, which ranks are
missing, and which sends belong to which receives.

The clocks of hosts are not aligned, and recordings of one host may have been copied before those of
another. Ages therefore count up to the latest recorded time of the same host. A process is gone if
other processes on its host recorded for longer, or if it closed its recording. If it is only behind
other hosts, that is a suspicion, and none if the others had waited for it while it still recorded.
*/

mod awaited;
mod calls;
mod copies;
mod first_end;
mod liveness;
mod pairs;
mod ranks;
mod times;

use crate::ending::{Ending, Ends, RankExit};
use crate::input::options::InputOptions;
use crate::input::snapshot::{Member, PlacedMember, Snapshot};
use crate::job::{Communicator, Job, Process, ProcessStatus, RECORDINGS, Vector};
use crate::missing::{SilentRanks, add_silent};
use awaited::awaited;
use liveness::HostEnds;
use ncclscope_findings::Doubt;
use ncclscope_limits::clocks::HOSTS_NS;
use ncclscope_limits::hangs::{ENDED_NS, HEARTBEAT_NS, KILLED_NS};
use ncclscope_operations::human;
use ncclscope_trace::runs::{ProcessFacts, Runs, ranks};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Maximum number of damaged recordings that are named.
const NAMED: usize = 8;

/// What was seen of the files after all were read.
pub(crate) struct Looks<'a> {
    /// A process of another machine still writes.
    pub(crate) is_written: bool,
    /// True if a recording was written to since. It opens the file, so it is asked only of the few
    /// processes that seem to be dead.
    pub(crate) grows: &'a dyn Fn(&Snapshot) -> bool,
}

/// The job of these processes, which are those of one run.
pub(crate) fn job(snapshots: &[Snapshot], settings: &InputOptions, looks: &Looks<'_>) -> Job {
    let mut job = Job { source: RECORDINGS.into(), ..Job::default() };
    let may_be_over = !snapshots.is_empty() && snapshots.iter().all(Snapshot::may_be_over);
    let is_over = may_be_over && !looks.is_written;
    let is_killed = is_over && snapshots.iter().any(|one| !one.is_closed);
    let reported_ns = reported_ns(snapshots);
    let hang_ns = limit(snapshots, (is_killed, reported_ns), settings, &mut job);
    let ends = HostEnds::new(snapshots, is_over);
    job.end_ns = Some(ends.latest).filter(|&end| end > 0);
    let groups = groups(snapshots, &ends);
    let machines: Vec<&str> = snapshots.iter().map(|one| one.facts.identity.machine()).collect();
    let closed = snapshots.iter().map(|one| one.is_closed.then_some(one.end_ns));
    let closed: Vec<Option<u64>> = closed.collect();
    let awaited = awaited(groups.iter(), &machines, &closed);
    for (snapshot, at) in snapshots.iter().zip(0u32..) {
        let awaited = awaited.get(&at).copied();
        let liveness = ends.liveness(snapshot, hang_ns, awaited, looks.grows);
        let (status, doubt) = liveness.status(snapshot.rank, ends.latest);
        let now = ends.now(snapshot);
        job.processes.push(process(snapshot, status, doubt, (now, hang_ns)));
    }
    job.ending = is_over.then(|| ending(snapshots, settings));
    if is_killed {
        note_first_end(snapshots, &ends, reported_ns, &mut job);
    }
    name_damage(snapshots, &mut job);
    job.notes.extend((!settings.is_checked).then(|| unread(snapshots)).flatten());
    let (groups, cut) = take_cut(groups, &job);
    for members in &groups {
        add_group(members, &mut job);
    }
    let silent = add_silent(&mut job, &cut);
    for (at, members) in groups.iter().enumerate() {
        pairs::add(members, at, &silent, &mut job);
        calls::add(members, at, &mut job);
    }
    job
}

/// The members of each communicator, by rank.
fn groups<'a>(snapshots: &'a [Snapshot], ends: &HostEnds) -> Vec<Vec<PlacedMember<'a>>> {
    let mut groups: BTreeMap<(u64, &str), Vec<PlacedMember<'a>>> = BTreeMap::new();
    for (snapshot, process) in snapshots.iter().zip(0u32..) {
        let now = ends.now(snapshot);
        for member in &snapshot.comms {
            // Without a hash (API v1 to v3), communicators are distinguished only by name.
            groups.entry((member.hash, &member.name)).or_default().push((process, member, now));
        }
    }
    for members in groups.values_mut() {
        members.sort_by_key(|(process, member, _)| (member.rank, *process));
    }
    groups.into_values().collect()
}

/// Notes which processes of a killed job ended first, if that is the likely cause.
fn note_first_end(
    snapshots: &[Snapshot],
    ends: &HostEnds,
    reported_ns: Option<u64>,
    job: &mut Job,
) {
    let first = job.ending.as_ref().and_then(|ending| ending.first.as_ref());
    let noted = first.and_then(|it| Some((it, first_end::note(it, snapshots, &job.processes)?)));
    let Some((first, note)) = noted else { return };
    job.notes.push(note);
    // If a watchdog reported a wait, that wait shows the cause.
    if job.killed_ns.is_some() && reported_ns.is_none() && first.is_broken_off {
        let clocks_ns = if ends.by_machine.len() > 1 { HOSTS_NS } else { 0 };
        let gone_ns = ends.latest.saturating_sub(first.end_ns);
        job.ended_first_ns = gone_ns.saturating_add(HEARTBEAT_NS + clocks_ns);
        job.ended_first.clone_from(&first.ranks);
    }
}

/// Takes the members whose recordings are cut off out of the groups. What such a recording lacks is
/// no evidence, so that its last counts say nothing.
fn take_cut<'a>(
    mut groups: Vec<Vec<PlacedMember<'a>>>,
    job: &Job,
) -> (Vec<Vec<PlacedMember<'a>>>, SilentRanks) {
    let is_cut = |&(process, ..): &PlacedMember<'_>| {
        job.processes[process as usize].status == ProcessStatus::Silent
    };
    let mut cut = SilentRanks::new();
    groups.retain(|members| !members.iter().all(is_cut));
    for (at, members) in groups.iter_mut().enumerate() {
        let of = members.iter().filter(|placed| is_cut(placed));
        cut.extend(of.map(|&(process, member, _)| ((at, member.rank), process)));
        members.retain(|placed| !is_cut(placed));
    }
    (groups, cut)
}

/// The processes of one run, sorted by rank, and notes that name the runs that are left out.
///
/// # Errors
/// One sentence, if there is no run with the requested name.
pub(crate) fn one_run(
    all: Vec<Snapshot>,
    settings: &InputOptions,
) -> Result<(Vec<Snapshot>, Vec<String>), String> {
    let facts: Vec<ProcessFacts> = all.iter().map(|snapshot| snapshot.facts.clone()).collect();
    let runs = Runs::split(&facts);
    let Some(run) = runs.choose(settings.run.as_deref())? else { return Ok(Default::default()) };
    let left_out = runs.notes(&facts, run);
    let members: Vec<&ProcessFacts> = run.members.iter().map(|&at| &facts[at]).collect();
    let ranks: HashMap<usize, u32> = run.members.iter().copied().zip(ranks(&members)).collect();
    let of_run = |(at, mut snapshot): (usize, Snapshot)| {
        snapshot.rank = *ranks.get(&at)?;
        Some(self::ranks::split(snapshot))
    };
    let members = all.into_iter().enumerate().filter_map(of_run);
    let mut snapshots: Vec<Snapshot> = members.flatten().collect();
    snapshots.sort_by_cached_key(|one| (one.rank, one.facts.identity.process()));
    copies::mark(&mut snapshots);
    Ok((snapshots, left_out))
}

/// How the processes of a job ended of which none runs any more.
fn ending(snapshots: &[Snapshot], settings: &InputOptions) -> Ending {
    let ends = || snapshots.iter().map(|snapshot| snapshot.end_ns);
    let (first, last) = (ends().min().unwrap_or(0), ends().max().unwrap_or(0));
    let exit = |one: &Snapshot| Some(RankExit { rank: one.rank, status: one.exit_status()? });
    let mut exits: Vec<RankExit> = snapshots.iter().filter_map(exit).collect();
    exits.retain(|exit| exit.status != 0);
    let (command, first_end) = (settings.command, first_end::find(snapshots));
    let ends = match snapshots {
        all if all.iter().all(|one| one.exit_status() == Some(0)) => Ends::Well,
        all if all.iter().all(|one| !one.is_closed) => Ends::BrokenOff,
        _ => Ends::Mixed,
    };
    Ending { command, first: first_end, spread_ns: last - first, exits, ends }
}

/// The smallest age of an operation that a watchdog reported and that is still in flight, ns.
fn reported_ns(snapshots: &[Snapshot]) -> Option<u64> {
    let reported = snapshots.iter().flat_map(|snapshot| {
        let is_reported = |m: &&Member| m.is_inside() && m.born_ns < Some(snapshot.reported_ns);
        let since = snapshot.comms.iter().filter(is_reported).filter_map(|m| m.since_ns);
        since.map(|since| snapshot.end_ns.saturating_sub(since))
    });
    reported.min()
}

/// The age from which an operation counts as stuck, ns.
fn limit(
    snapshots: &[Snapshot],
    (is_killed, reported_ns): (bool, Option<u64>),
    settings: &InputOptions,
    job: &mut Job,
) -> u64 {
    let mut hang_ns = u64::try_from(settings.hang.as_nanos()).unwrap_or(u64::MAX);
    let mut lower = |job: &mut Job, to: u64, note: &str| {
        if to < hang_ns {
            hang_ns = to;
            job.min_age_ns = Some(to);
            job.notes.push(note.into());
        }
    };
    if is_killed {
        if snapshots.iter().any(|s| s.is_closed) {
            let note = "all processes are over, and some ended in order before the other \
                        ranks were killed: operations in flight for 0.1 s or more count as stuck";
            lower(job, ENDED_NS, note);
        } else {
            job.killed_ns = Some(KILLED_NS);
            let note = "all processes were killed: operations in flight for 2 s or more count as \
                        stuck";
            lower(job, KILLED_NS, note);
        }
    }
    // An operation that a watchdog reported and that is still in flight is stuck.
    if let Some(age) = reported_ns {
        // The watchdog's limit decides, whatever ended the job afterwards.
        job.killed_ns = job.killed_ns.map(|killed| killed.min(age));
        let note = "a watchdog reported operations that are still in flight: these count as stuck";
        lower(job, age, note);
    }
    hang_ns
}

fn process(
    snapshot: &Snapshot,
    status: ProcessStatus,
    doubt: Option<Doubt>,
    (now, hang_ns): (u64, u64),
) -> Process {
    let damage = snapshot.damage.first();
    let damage = damage.map(|what| Doubt::RankDamaged(snapshot.rank, Some(what.clone())));
    let ago = |since: Option<u64>| since.map(|since| now.saturating_sub(since));
    Process {
        rank: Some(snapshot.rank),
        host: Some(snapshot.host.clone()),
        pid: Some(snapshot.pid),
        local_rank: snapshot.facts.identity.local_rank.map(u64::from),
        device: snapshot.device().map(u64::from),
        status,
        hides_p2p: false,
        python: None,
        lacks_events: snapshot.lacks_events,
        off_ns: snapshot.off_ns(now),
        is_sampled: snapshot.is_sampled && !snapshot.is_closed,
        hides_calls: snapshot.hides_calls,
        no_end: snapshot.no_end(),
        is_moving: snapshot.end_ns.saturating_sub(snapshot.change_ns) < hang_ns / 10 * 9,
        still_ns: snapshot.still_ns(now),
        usual_ns: snapshot.usual_ns,
        heard_ns: Some(snapshot.end_ns),
        idle_ns: ago((snapshot.last_call_ns != 0).then_some(snapshot.last_call_ns)),
        exit_status: snapshot.exit_status(),
        entered: snapshot.entered,
        setup: snapshot
            .setup
            .clone()
            .map(|setup| setup.older_by(now.saturating_sub(snapshot.end_ns))),
        environment: snapshot.environment(),
        threads: snapshot.threads.clone(),
        reports: snapshot.reports.clone(),
        doubts: doubt.into_iter().chain(damage).collect(),
    }
}

/// Adds a note for each damaged recording, up to [`NAMED`].
fn name_damage(snapshots: &[Snapshot], job: &mut Job) {
    let damaged = || snapshots.iter().filter(|snapshot| !snapshot.damage.is_empty());
    for snapshot in damaged().take(NAMED) {
        let path = snapshot.facts.path.display();
        job.damaged.push(format!("{path} is damaged: {}", snapshot.damage.join("; ")));
    }
    let more = damaged().count().saturating_sub(NAMED);
    if more > 0 {
        job.damaged.push(format!("{} damaged", human::are(more, "more recording")));
    }
    job.notes.extend(job.damaged.iter().cloned());
}

/// A note about parts that were not read, whose damage is unknown. The ranks of one process count
/// once.
fn unread(snapshots: &[Snapshot]) -> Option<String> {
    let files: BTreeMap<&Path, Option<(u64, u64)>> =
        snapshots.iter().map(|one| (one.facts.path.as_path(), one.part)).collect();
    let parts: Vec<(u64, u64)> = files.values().copied().flatten().collect();
    let least = parts.iter().map(|part| part.0).min()?;
    let most = parts.iter().map(|part| part.1).max()?;
    let or_more = if parts.iter().any(|part| part.0 != least) { " or more" } else { "" };
    let up_to = if parts.iter().any(|part| part.1 != most) { "up to " } else { "" };
    let of = match parts.len() == files.len() {
        true => "each recording".to_owned(),
        false => format!("{} of {}", parts.len(), human::count(files.len(), "recording")),
    };
    let (least, most) = (human::bytes(least), human::bytes(most));
    Some(format!(
        "the last {least}{or_more} of {up_to}{most} of {of} were read: damage before that may go \
         unnoticed"
    ))
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
        changed_ns: Some(member.change_ns),
        is_blind: member.is_blind,
        is_of_launches: false,
        is_captured: member.is_captured,
        has_left: member.has_left,
        connects: member.connects,
        p2p_number: None,
    }
}

fn add_group(members: &[PlacedMember<'_>], job: &mut Job) {
    let Some((_, first, _)) = members.first() else { return };
    let mut comm = Communicator {
        name: first.name.clone(),
        comm_name: first.comm_name.clone(),
        role: first.role.clone(),
        nranks: first.nranks,
        ..Communicator::default()
    };
    for (&(process, member, now), at) in members.iter().zip(0u32..) {
        comm.vectors.push(vector(process, member, now));
        comm.hashes.extend(member.hashes.iter().map(|&(count, hash)| (at, count, hash)));
        comm.calls.insert(at, Arc::clone(&member.calls));
        comm.settings.insert(at, Arc::clone(&member.settings));
        if let Some(flight) = &member.flight {
            comm.flights.insert(at, flight.clone());
        }
    }
    job.comms.push(comm);
}
