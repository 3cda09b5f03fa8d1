// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors (`*.vectors`): jobs of which only counters are known.

use super::assemble::{SilentRanks, add_silent};
use super::file::load;
use super::vector_checks::{keep_one_of_each, keep_possible};
use super::vector_jobs::{Finder, JobVectors, ProcessKey, split};
use crate::job::{Communicator, InFlightOp, Job, Process, ProcessStatus, Stop, Vector};
use ncclscope_findings::rank::Transfer;
use ncclscope_operations::human;
use ncclscope_trace::progress::progress_flags as partial;
use ncclscope_trace::vectors::{self, Edge, Table, vector_flags};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

/// Maximum number of jobs that a line names, and of damaged tables that notes name.
const NAMED: usize = 8;

/// The job that the tables describe: the job with the id `run`, else the one with the most living
/// processes. Adds a warning for each damaged table; if there is one, all processes are doubtful.
///
/// # Errors
/// One sentence, if no table has a readable vector, or none has a job with that id.
pub fn job(
    paths: &[PathBuf],
    run: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Job, String> {
    let mut all = Table::default();
    for path in paths {
        let bytes = load(path);
        let read = bytes.and_then(|bytes| vectors::read_table(&bytes).map_err(|e| e.to_string()));
        match read {
            Ok(mut table) => {
                match keep_possible(&mut table.vectors) {
                    0 => {}
                    1 => table.damage.push("a vector contradicts itself".into()),
                    more => table.damage.push(format!("{more} vectors contradict themselves")),
                }
                all.vectors.append(&mut table.vectors);
                all.jobs.append(&mut table.jobs);
                if !table.damage.is_empty() {
                    let damage = table.damage.join("; ");
                    warnings.push(format!("{} is damaged: {damage}", path.display()));
                }
            }
            Err(error) => warnings.push(format!("cannot read {}: {error}", path.display())),
        }
    }
    if let (true, Some(first)) = (all.vectors.is_empty(), warnings.first()) {
        return Err(first.clone());
    }
    let twice = keep_one_of_each(&mut all.vectors);
    let mut job = choose(&all.vectors, &all.jobs, run)?;
    if twice > 0 {
        job.notes.push(format!(
            "{} left out: of a process the one that is further counts, and none where \
             communicators have no hash (profiler API v1 to v3)",
            human::are(twice, "vector")
        ));
    }
    if !warnings.is_empty() {
        doubt_all(&mut job, warnings);
    }
    Ok(job)
}

/// Adds a doubt to all processes: what a table has lost may concern any of them, or others.
fn doubt_all(job: &mut Job, damage: &[String]) {
    job.notes.extend(damage.iter().take(NAMED).cloned());
    let more = damage.len().saturating_sub(NAMED);
    if more > 0 {
        job.notes.push(format!("{} damaged", human::are(more, "more table")));
    }
    let ranks: Vec<u32> = (0..).take(job.processes.len()).map(|at| job.rank(at)).collect();
    for (process, rank) in job.processes.iter_mut().zip(ranks) {
        process.doubts.push(format!(
            "tables of vectors are damaged, and what they lack of rank {rank} is not known"
        ));
    }
}

/// The job of these vectors; `names` are the names of jobs by id. If there are several jobs, the
/// one with the most living processes.
#[must_use]
pub fn build(all: &[vectors::Vector], names: &BTreeMap<u64, String>) -> Job {
    choose(all, names, None).unwrap_or_default()
}

/// Like [`build`], for the job with the id `run`.
fn choose(
    all: &[vectors::Vector],
    names: &BTreeMap<u64, String>,
    run: Option<&str>,
) -> Result<Job, String> {
    let jobs = split(all);
    let ids = ids(&jobs, names);
    let is_it = |id: &String| run.is_none_or(|run| run == id);
    let Some(chosen) = ids.iter().position(is_it) else {
        return match run {
            Some(run) if !jobs.is_empty() => {
                Err(format!("there is no run {run:?} here, but {}", listed(&jobs, &ids, None)))
            }
            _ => Ok(Job { source: "vectors".into(), ..Job::default() }),
        };
    };
    let mut job = build_one(&jobs[chosen]);
    if jobs.len() > 1 {
        job.notes.push(format!(
            "{} runs are here; this is {:?}; choose with --run ID: {}",
            jobs.len(),
            ids[chosen],
            listed(&jobs, &ids, Some(chosen))
        ));
    }
    Ok(job)
}

/// The text with which the user chooses a job: its name, else its first communicator. Equal ones
/// are numbered.
fn ids(jobs: &[JobVectors<'_>], names: &BTreeMap<u64, String>) -> Vec<String> {
    let id = |job: &JobVectors<'_>| {
        let known = job.processes.iter().find_map(|(number, ..)| names.get(number));
        let comm = job.vectors.iter().map(|vector| vector.comm).min().unwrap_or(0);
        known.cloned().unwrap_or_else(|| format!("{comm:#x}"))
    };
    let ids: Vec<String> = jobs.iter().map(id).collect();
    let mut counts: HashMap<&String, usize> = HashMap::new();
    ids.iter().for_each(|id| *counts.entry(id).or_default() += 1);
    let mut given: HashMap<&String, usize> = HashMap::new();
    let numbered = ids.iter().map(|id| {
        let number = given.entry(id).or_default();
        *number += 1;
        if counts[id] == 1 { id.clone() } else { format!("{id}#{number}") }
    });
    numbered.collect()
}

/// The jobs as text, without job `but`: `"4711.0" (16 processes), "0x1f" (1 process)`.
fn listed(jobs: &[JobVectors<'_>], ids: &[String], but: Option<usize>) -> String {
    let others = jobs.iter().zip(ids).enumerate().filter(|&(at, _)| Some(at) != but);
    let mut shown: Vec<String> = others
        .map(|(_, (job, id))| {
            let count = job.processes.len();
            format!("{id:?} ({count} process{})", if count == 1 { "" } else { "es" })
        })
        .collect();
    let more = shown.len().saturating_sub(NAMED);
    shown.truncate(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", shown.join(", "))
}

fn build_one(JobVectors { vectors: all, processes: keys, .. }: &JobVectors<'_>) -> Job {
    let mut job = Job { source: "vectors".into(), ..Job::default() };
    let mut positions: HashMap<u64, usize> = HashMap::new();
    let mut finder = Finder::new(keys);
    let ranks: BTreeSet<u32> = keys.iter().map(|key| key.1).collect();
    // If two processes have the same rank, it is not their rank in the job.
    let known = |rank: u32| Some(rank).filter(|_| ranks.len() == keys.len());
    job.processes =
        keys.iter().map(|key| Process { rank: known(key.1), ..Process::default() }).collect();
    if ranks.len() < keys.len() {
        job.notes.push("several processes have one rank: ranks here are positions".into());
    }
    for vector in all {
        let at = finder.find(vector);
        let process = &mut job.processes[at];
        if vector.flags & vector_flags::SILENT != 0 {
            process.status = ProcessStatus::Dead;
        }
        for (flag, stop) in
            [(vector_flags::STOPPED, Stop::Signal), (vector_flags::FROZEN, Stop::Freezer)]
        {
            if vector.flags & flag != 0 {
                process.status = ProcessStatus::Stopped(stop);
            }
        }
        let may_hide = vector_flags::NO_P2P | vector_flags::IN_P2P_CALL;
        process.hides_p2p |= vector.flags & may_hide != 0 || vector.p2p_done < vector.p2p_enqueued;
        let comm = *positions.entry(vector.comm).or_insert_with(|| {
            job.comms.push(Communicator {
                name: format!("{:#x}", vector.comm),
                nranks: vector.nranks,
                ..Communicator::default()
            });
            job.comms.len() - 1
        });
        add(&mut job.comms[comm], vector, u32::try_from(at).unwrap_or(u32::MAX));
    }
    doubt_processes(&mut job, keys);
    doubt_calls(&mut job);
    let _ = add_silent(&mut job, &SilentRanks::new());
    job
}

/// Notes which processes may be processes of several jobs, because nothing identifies them.
fn doubt_processes(job: &mut Job, keys: &[ProcessKey]) {
    for (process, key) in job.processes.iter_mut().zip(keys) {
        if (key.0, key.2) == (0, 0) {
            process.doubts.push(
                "the table of vectors identifies neither its job nor its process: ranks of two \
                 jobs would be one here"
                    .into(),
            );
        }
    }
}

/// Notes which processes are in a call.
fn doubt_calls(job: &mut Job) {
    for comm in &job.comms {
        let unseen = comm.unseen_calls();
        for vector in comm.vectors.iter().filter(|of| of.not_enqueued() > unseen) {
            let doubts = &mut job.processes[vector.process as usize].doubts;
            if doubts.is_empty() {
                doubts.push(
                    "it is in a call of NCCL, which may connect it to other ranks there: a table \
                     of vectors does not tell to which, and what those do"
                        .into(),
                );
            }
        }
    }
}

/// Adds a vector to a communicator.
fn add(comm: &mut Communicator, vector: &vectors::Vector, process: u32) {
    let has = |flag: u8| vector.flags & u32::from(flag) != 0;
    // Calls that were captured into graphs cannot be compared with enqueued operations.
    let no_calls = partial::NO_API | partial::CAPTURED;
    let at = u32::try_from(comm.vectors.len()).unwrap_or(u32::MAX);
    let age = (vector.age_ms != 0).then(|| u64::from(vector.age_ms) * 1_000_000);
    comm.vectors.push(Vector {
        process,
        rank: vector.rank,
        api: u64::from(if has(no_calls) { vector.enqueued } else { vector.api }),
        enqueued: u64::from(vector.enqueued),
        started: (!has(partial::NO_KERNEL)).then_some(u64::from(vector.started)),
        done: u64::from(vector.done),
        age_ns: age,
        born_ns: age,
        changed_ns: None,
        is_blind: has(partial::NO_END),
        is_captured: has(partial::CAPTURED),
        has_left: has(partial::ENDED),
        connects: false,
        p2p_number: None,
    });
    if vector.hash_at != 0 {
        comm.hashes.push((at, u64::from(vector.hash_at), vector.hash));
    }
    if vector.peer >= 0 {
        let Edge { channel, is_send, reached, may_be_early } = Edge::of(vector.edge);
        let transfer = Transfer {
            is_send,
            channel,
            peer: vector.peer,
            reached,
            may_be_early,
            still_ns: u64::from(vector.age_ms) * 1_000_000,
            ..Transfer::default()
        };
        comm.flights.insert(at, InFlightOp { transfers: vec![transfer], ..InFlightOp::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, diagnose};
    use ncclscope_findings::{Confidence, FindingClass};

    /// A process of a job in its communicator, whose operation all have entered except the late
    /// ones.
    fn vector(job: u64, rank: u32, is_late: bool) -> vectors::Vector {
        let enqueued = if is_late { 4 } else { 5 };
        vectors::Vector {
            comm: 100 + job,
            process: rank,
            rank,
            nranks: 4,
            api: enqueued,
            enqueued,
            started: enqueued,
            done: 4,
            age_ms: if is_late { 0 } else { 60_000 },
            peer: -1,
            job,
            origin: job << 32 | u64::from(rank),
            ..vectors::Vector::default()
        }
    }

    fn ranks_of(job: &Job) -> Vec<(FindingClass, Confidence, Vec<u32>)> {
        let found = diagnose(job, &Options::default()).findings;
        found.into_iter().map(|it| (it.class, it.confidence, it.root_ranks)).collect()
    }

    const LATE: (FindingClass, Confidence) = (FindingClass::HostStuck, Confidence::Confirmed);

    #[test]
    fn jobs_of_one_table_stay_apart() {
        let late = |job, late| (0..4).map(move |rank| vector(job, rank, rank == late));
        let mut all: Vec<vectors::Vector> = late(7, 3).chain(late(9, 2)).collect();
        // A process of the second job is silent.
        all[4].flags = vector_flags::SILENT;
        let names = BTreeMap::from([(7, "a".into()), (9, "b".into())]);
        let job = build(&all, &names);
        assert_eq!(ranks_of(&job), [(LATE.0, LATE.1, vec![3])]);
        let note = "2 runs are here; this is \"a\"; choose with --run ID: \"b\" (4 processes)";
        assert_eq!(job.notes, [note]);
        let chosen = choose(&all, &names, Some("b")).unwrap();
        assert!(chosen.notes[0].ends_with("ID: \"a\" (4 processes)"), "{:?}", chosen.notes);
        let is_gone = |it: &(FindingClass, _, _)| it.0 == FindingClass::ProcessGone;
        assert!(ranks_of(&chosen).iter().any(is_gone), "{:?}", ranks_of(&chosen));
        // The agent of its host says that another one is stopped.
        for (flag, how) in
            [(vector_flags::STOPPED, "stopped, by a signal"), (vector_flags::FROZEN, "frozen")]
        {
            all[3].flags = flag;
            let found = diagnose(&build(&all, &names), &Options::default()).findings;
            let [verdict] = &found[..] else { panic!("{found:?}") };
            assert_eq!(
                (verdict.class, &verdict.root_ranks[..]),
                (FindingClass::ProcessGone, &[3][..])
            );
            assert!(verdict.title.contains(how), "{verdict:?}");
        }
        all[3].flags = 0;
        let missing = choose(&all, &names, Some("c")).unwrap_err();
        let all_of_them = "\"a\" (4 processes), \"b\" (4 processes)";
        assert_eq!(missing, format!("there is no run \"c\" here, but {all_of_them}"));
        // Without names, the id is a communicator.
        let unnamed = choose(&all, &BTreeMap::new(), Some("0x6b")).unwrap();
        assert_eq!(ranks_of(&unnamed), [(LATE.0, LATE.1, vec![3])]);
        // Without job ids, two processes with one rank belong to two jobs, unless they share a
        // communicator.
        all.iter_mut().for_each(|vector| vector.job = 0);
        let job = build(&all, &BTreeMap::new());
        assert_eq!((ranks_of(&job), job.processes.len()), (vec![(LATE.0, LATE.1, vec![3])], 4));
        all.iter_mut().for_each(|vector| vector.comm = 1);
        let job = build(&all, &BTreeMap::new());
        let ranks: Vec<Option<u32>> = job.processes.iter().map(|process| process.rank).collect();
        assert_eq!(ranks, [None; 8], "a rank that two have is not that in the job");
    }

    /// Two jobs whose processes have the same numbers are one to us if nothing identifies them.
    #[test]
    fn of_processes_without_identity_nothing_is_confirmed() {
        let late = |job, late| (0..4).map(move |rank| vector(job, rank, rank == late));
        let mut all: Vec<vectors::Vector> = late(7, 3).chain(late(9, 2)).collect();
        all.iter_mut().for_each(|vector| (vector.job, vector.origin) = (0, 0));
        let job = build(&all, &BTreeMap::new());
        assert_eq!(job.processes.len(), 4);
        let found = ranks_of(&job);
        assert!(!found.is_empty());
        assert!(found.iter().all(|it| it.1 == Confidence::Suspect), "{found:?}");
    }

    /// Rank 2 is in an operation of its own tensor-parallel group, which has no other rank.
    #[test]
    fn a_rank_that_is_alone_in_an_operation_has_a_dead_gpu_and_no_slow_link() {
        let mut all: Vec<vectors::Vector> = (0..4).map(|rank| vector(7, rank, rank == 2)).collect();
        let alone = vectors::Vector { comm: 5, rank: 0, nranks: 1, ..vector(7, 2, false) };
        all[2].flags = vector_flags::BUSY_ELSEWHERE;
        all.push(alone);
        let dead = (FindingClass::GpuDead, Confidence::Confirmed, vec![2]);
        assert_eq!(ranks_of(&build(&all, &BTreeMap::new())), [dead]);
    }

    #[test]
    fn a_rank_that_sends_or_receives_is_a_suspect_at_most() {
        let mut all: Vec<vectors::Vector> = (0..4).map(|rank| vector(7, rank, rank == 3)).collect();
        assert_eq!(ranks_of(&build(&all, &BTreeMap::new())), [(LATE.0, LATE.1, vec![3])]);
        all[3].p2p_enqueued = 1;
        let suspect = [(LATE.0, Confidence::Suspect, vec![3])];
        assert_eq!(ranks_of(&build(&all, &BTreeMap::new())), suspect);
        all[3].p2p_done = 1;
        assert_eq!(ranks_of(&build(&all, &BTreeMap::new())), [(LATE.0, LATE.1, vec![3])]);
        all[3].flags = vector_flags::NO_P2P;
        assert_eq!(ranks_of(&build(&all, &BTreeMap::new())), suspect);
    }

    #[test]
    fn a_rank_in_a_call_that_may_connect_is_a_suspect_at_most() {
        let mut all: Vec<vectors::Vector> = (0..4).map(|rank| vector(7, rank, rank == 3)).collect();
        all[3].api = 5;
        let class = |all: &[vectors::Vector]| ranks_of(&build(all, &BTreeMap::new()));
        let call = FindingClass::CallNotEnqueued;
        assert_eq!(class(&all), [(call, Confidence::Suspect, vec![3])]);
        // A captured call is counted as called but not as enqueued.
        all[3].flags = u32::from(partial::CAPTURED);
        assert_eq!(class(&all), [(LATE.0, LATE.1, vec![3])]);
        // Sends and receives that NCCL has not enqueued: it may be connecting for them.
        all[3].flags = vector_flags::IN_P2P_CALL;
        all[3].api = 4;
        assert_eq!(class(&all), [(LATE.0, Confidence::Suspect, vec![3])]);
    }

    /// Ranks 0 and 1 have completed operation 10. Rank 2 is stopped in it, and rank 3, on the same
    /// host, waits for its data in shared memory, of which no counter tells.
    #[test]
    fn a_rank_that_is_stopped_in_an_operation_explains_its_neighbour() {
        let edge = Edge { channel: 0, is_send: true, reached: Some(1), may_be_early: false }.bits();
        let one = |rank: u32, at: u32, age_ms: u32| {
            let hash = u64::from(at);
            let counts = vectors::Vector {
                api: at,
                enqueued: at,
                started: at,
                done: at - 1,
                ..vector(7, rank, false)
            };
            vectors::Vector { age_ms, hash, hash_at: at, ..counts }
        };
        let mut all =
            vec![one(0, 11, 58_000), one(1, 11, 58_000), one(2, 10, 11), one(3, 10, 58_000)];
        (all[3].peer, all[3].edge) = (0, edge);
        all[2].flags = vector_flags::STOPPED;
        let gone = (FindingClass::ProcessGone, Confidence::Confirmed, vec![2]);
        assert_eq!(ranks_of(&build(&all, &BTreeMap::new())), [gone]);
    }
}
