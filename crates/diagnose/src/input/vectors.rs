// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors (`*.vectors`): jobs of which only the counters are known.

use super::file::load;
use super::vector_jobs::{Finder, JobVectors, split};
use crate::job::{Communicator, InFlightOp, Job, Process, ProcessStatus, Vector};
use ncclscope_findings::rank::Transfer;
use ncclscope_trace::progress::progress_flags as partial;
use ncclscope_trace::vectors::{self, Edge, Table, vector_flags};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

/// The job that the tables describe: of several, the one with this id, else that with the most
/// living processes.
///
/// # Errors
/// One sentence, if a table cannot be read or no job has this id.
pub fn job(paths: &[PathBuf], run: Option<&str>) -> Result<Job, String> {
    let mut all = Table::default();
    for path in paths {
        let bytes = load(path);
        let read = bytes.and_then(|bytes| vectors::read_table(&bytes).map_err(|e| e.to_string()));
        let mut table = read.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        all.vectors.append(&mut table.vectors);
        all.jobs.append(&mut table.jobs);
    }
    let Some(run) = run else { return Ok(build(&all.vectors, &all.jobs)) };
    of_job(&all, run).ok_or_else(|| format!("no job {run} is in the tables of vectors"))
}

/// The job with this id.
fn of_job(all: &Table, id: &str) -> Option<Job> {
    let jobs = split(&all.vectors);
    jobs.iter().find(|job| id_of(job, &all.jobs) == Some(id)).map(build_one)
}

/// The job of these vectors, whose jobs have these names: of several, that with the most living
/// processes.
#[must_use]
pub fn build(all: &[vectors::Vector], names: &BTreeMap<u64, String>) -> Job {
    let jobs = split(all);
    let Some((first, others)) = jobs.split_first() else {
        return Job { source: "vectors".into(), ..Job::default() };
    };
    let mut job = build_one(first);
    if !others.is_empty() {
        let others: Vec<String> = others.iter().map(|job| name(job, names)).collect();
        job.notes.push(format!(
            "the input has several jobs: this is {}, and not {}; `/vectors?job=ID` of the agents \
             gives one",
            name(first, names),
            others.join(", ")
        ));
    }
    job
}

/// `4711.0 (16 processes)`.
fn name(job: &JobVectors<'_>, names: &BTreeMap<u64, String>) -> String {
    let name = id_of(job, names).unwrap_or("one without an id");
    let many = if job.processes.len() == 1 { "process" } else { "processes" };
    format!("{name} ({} {many})", job.processes.len())
}

/// The id of a job, if its processes have one.
fn id_of<'n>(job: &JobVectors<'_>, names: &'n BTreeMap<u64, String>) -> Option<&'n str> {
    job.processes.iter().find_map(|(number, ..)| names.get(number)).map(String::as_str)
}

fn build_one(JobVectors { vectors: all, processes: keys, .. }: &JobVectors<'_>) -> Job {
    let mut job = Job { source: "vectors".into(), ..Job::default() };
    let mut positions: HashMap<u64, usize> = HashMap::new();
    let mut finder = Finder::new(keys);
    let ranks: BTreeSet<u32> = keys.iter().map(|key| key.1).collect();
    // Where two have one rank, it is not that in the job.
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
        process.hides_p2p |=
            vector.flags & vector_flags::NO_P2P != 0 || vector.p2p_done < vector.p2p_enqueued;
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
    let _ = super::assemble::add_silent(&mut job);
    job
}

fn add(comm: &mut Communicator, vector: &vectors::Vector, process: u32) {
    let has = |flag: u8| vector.flags & u32::from(flag) != 0;
    // The calls that were captured into graphs cannot be compared with what was enqueued.
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
        is_blind: has(partial::NO_END),
        connects: false,
    });
    if vector.hash_at != 0 {
        comm.hashes.push((at, u64::from(vector.hash_at), vector.hash));
    }
    if vector.peer >= 0 {
        let Edge { channel, is_send, reached } = Edge::of(vector.edge);
        let transfer = Transfer {
            is_send,
            channel,
            peer: vector.peer,
            reached,
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

    /// A process of a job in its communicator, which all but the late ones are in.
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
        let found = diagnose(job, &Options::default()).verdicts;
        found.into_iter().map(|it| (it.class, it.confidence, it.root_ranks)).collect()
    }

    const LATE: (FindingClass, Confidence) = (FindingClass::HostStuck, Confidence::Confirmed);

    #[test]
    fn jobs_of_one_table_stay_apart() {
        let late = |job, late| (0..4).map(move |rank| vector(job, rank, rank == late));
        let mut all: Vec<vectors::Vector> = late(7, 3).chain(late(9, 2)).collect();
        // Of the second, a process is silent.
        all[4].flags = vector_flags::SILENT;
        let names = BTreeMap::from([(7, "a".into()), (9, "b".into())]);
        let job = build(&all, &names);
        assert_eq!(ranks_of(&job), [(LATE.0, LATE.1, vec![3])]);
        let note = "the input has several jobs: this is a (4 processes), and not b (4 processes); \
                    `/vectors?job=ID` of the agents gives one";
        assert_eq!(job.notes, [note]);
        let table = Table { vectors: all.clone(), jobs: names };
        let other = of_job(&table, "b").unwrap();
        let gone = (FindingClass::ProcessGone, Confidence::Confirmed, vec![0]);
        assert_eq!(ranks_of(&other), [(LATE.0, LATE.1, vec![2]), gone]);
        assert!(of_job(&table, "c").is_none());
        // Without ids, ranks that are there twice are of two jobs; one communicator makes one.
        all.iter_mut().for_each(|vector| vector.job = 0);
        let job = build(&all, &BTreeMap::new());
        assert_eq!((ranks_of(&job), job.processes.len()), (vec![(LATE.0, LATE.1, vec![3])], 4));
        all.iter_mut().for_each(|vector| vector.comm = 1);
        let job = build(&all, &BTreeMap::new());
        let ranks: Vec<Option<u32>> = job.processes.iter().map(|process| process.rank).collect();
        assert_eq!(ranks, [None; 8], "a rank that two have is not that in the job");
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
}
