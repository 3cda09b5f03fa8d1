// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors (`*.vectors`): jobs of which only counters are known.

use super::file::load;
use super::options::InputOptions;
use super::vector_checks::{keep_one_of_each, keep_possible};
use super::vector_jobs::{Finder, JobVectors, ProcessKey, split};
use super::vector_pairs::Pairs;
use super::vector_transfers::{first_of_each, ns, transfer};
use crate::job::{
    Communicator, InFlightOp, Job, Process, ProcessStatus, SetupCall, Stop, ThreadState, Vector,
};
use crate::missing::{SilentRanks, add_silent};
use ncclscope_findings::Doubt;
use ncclscope_findings::rank::{Pending, Thread, Transfer};
use ncclscope_operations::human;
use ncclscope_operations::threads::{Role, has_api};
use ncclscope_trace::progress::progress_flags as partial;
use ncclscope_trace::vectors::{self, OpenTransfer, ProcessFacts, Table, vector_flags};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of jobs that a line names, and of damaged tables that notes name.
const NAMED: usize = 8;

/// The job that the tables describe: the job with the id `run`, else the one with the most living
/// processes. Adds a warning for each damaged table; if there is one, all processes are doubtful.
///
/// # Errors
/// One sentence, if no table has a readable vector, or none has a job with that id.
pub fn job(
    paths: &[PathBuf],
    settings: &InputOptions,
    warnings: &mut Vec<String>,
) -> Result<Job, String> {
    let mut all = Table::default();
    for path in paths {
        let bytes = load(path);
        let read = bytes.and_then(|bytes| vectors::read_table(&bytes).map_err(|e| e.to_string()));
        match read {
            Ok(mut table) => {
                match keep_possible(&mut table) {
                    0 => {}
                    1 => table.damage.push("a vector contradicts itself".into()),
                    more => table.damage.push(format!("{more} vectors contradict themselves")),
                }
                if !table.damage.is_empty() {
                    let damage = std::mem::take(&mut table.damage).join("; ");
                    warnings.push(format!("{} is damaged: {damage}", path.display()));
                }
                all.append(table);
            }
            Err(error) => warnings.push(format!("cannot read {}: {error}", path.display())),
        }
    }
    if let (true, Some(first)) = (all.vectors.is_empty(), warnings.first()) {
        return Err(first.clone());
    }
    let twice = keep_one_of_each(&mut all);
    let mut job = choose(&all, settings.run.as_deref(), settings.hang)?;
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
        process.doubts.push(Doubt::RankDamaged(rank, None));
    }
}

/// The job of this table. If there are several jobs, the one with the most living processes. `hang`
/// is the age from which an operation counts as stuck.
#[must_use]
pub fn build(table: &Table, hang: Duration) -> Job {
    choose(table, None, hang).unwrap_or_default()
}

/// Like [`build`], for the job with the id `run`.
fn choose(table: &Table, run: Option<&str>, hang: Duration) -> Result<Job, String> {
    let jobs = split(&table.vectors);
    let ids = ids(table, &jobs);
    let is_it = |id: &String| run.is_none_or(|run| run == id);
    let Some(chosen) = ids.iter().position(is_it) else {
        return match run {
            Some(run) if !jobs.is_empty() => {
                Err(format!("there is no run {run:?} here, but {}", listed(&jobs, &ids, None)))
            }
            _ => Ok(Job { source: "vectors".into(), ..Job::default() }),
        };
    };
    let mut job = JobBuilder::new(table, &jobs[chosen], hang).build();
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
fn ids(table: &Table, jobs: &[JobVectors]) -> Vec<String> {
    let id = |job: &JobVectors| {
        let known = job.processes.iter().find_map(|(number, ..)| table.jobs.get(number));
        let comms = job.positions.iter().map(|&at| table.vectors[at as usize].comm);
        let comm = comms.min().unwrap_or(0);
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
fn listed(jobs: &[JobVectors], ids: &[String], but: Option<usize>) -> String {
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

/// Makes the job of a part of a table, in the form in which recordings make it.
struct JobBuilder<'a> {
    table: &'a Table,
    of: &'a JobVectors,
    hang: Duration,
    job: Job,
    /// When each process was last heard from, ns since 1970, if known.
    heard: Vec<Option<u64>>,
    pairs: Pairs<'a>,
}

impl<'a> JobBuilder<'a> {
    fn new(table: &'a Table, of: &'a JobVectors, hang: Duration) -> JobBuilder<'a> {
        let mut job = Job { source: "vectors".into(), ..Job::default() };
        let ranks: BTreeSet<u32> = of.processes.iter().map(|key| key.1).collect();
        // If two processes have the same rank, it is not their rank in the job.
        let known = |rank: u32| Some(rank).filter(|_| ranks.len() == of.processes.len());
        job.processes = of
            .processes
            .iter()
            .map(|key| Process { rank: known(key.1), ..Process::default() })
            .collect();
        if ranks.len() < of.processes.len() {
            job.notes.push("several processes have one rank: ranks here are positions".into());
        }
        job.end_ns = Some(table.made_ns).filter(|&made| made > 0);
        for facts in &table.processes {
            let key = (facts.job, facts.process, facts.origin);
            if let Ok(at) = of.processes.binary_search(&key) {
                add_facts(&mut job.processes[at], facts);
            }
        }
        let heard = job.processes.iter().map(|process| process.heard_ns).collect();
        JobBuilder { table, of, hang, job, heard, pairs: Pairs::default() }
    }

    fn build(mut self) -> Job {
        let mut positions: HashMap<u64, usize> = HashMap::new();
        let mut finder = Finder::new(&self.of.processes);
        for &position in &self.of.positions {
            let vector = &self.table.vectors[position as usize];
            let at = finder.find(vector);
            self.note_process(at, vector);
            let comms = &mut self.job.comms;
            let comm = *positions.entry(vector.comm).or_insert_with(|| {
                comms.push(Communicator {
                    name: format!("{:#x}", vector.comm),
                    nranks: vector.nranks,
                    ..Communicator::default()
                });
                comms.len() - 1
            });
            let process = u32::try_from(at).unwrap_or(u32::MAX);
            let transfers = match self.table.transfers.as_slice() {
                [] => &[],
                _ => self.table.transfers_of(position),
            };
            let heard_ns = self.heard[at];
            add(&mut self.job.comms[comm], (vector, transfers), process, heard_ns);
            self.pairs.note(comm, process, vector, transfers);
        }
        let JobBuilder { of, mut job, pairs, .. } = self;
        job.comms.iter_mut().for_each(drop_later);
        doubt_processes(&mut job, &of.processes);
        doubt_calls(&mut job);
        let _ = add_silent(&mut job, &SilentRanks::new());
        pairs.add_to(&mut job);
        job
    }

    fn note_process(&mut self, at: usize, vector: &vectors::Vector) {
        let process = &mut self.job.processes[at];
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
        if vector.flags & vector_flags::IN_P2P_CALL != 0 {
            (process.hides_p2p, process.entered) = (true, Some(Pending::Inside));
        }
        let changed = Duration::from_millis(vector.changed_ms.into());
        process.is_moving |= self.heard[at].is_some() && changed < self.hang / 10 * 9;
    }
}

fn add_facts(process: &mut Process, facts: &ProcessFacts) {
    let has_api = has_api(std::iter::once(facts.kinds));
    let thread = |it: &vectors::ThreadFacts| ThreadState {
        thread: Thread {
            tid: it.tid,
            state: it.state,
            place: it.place.clone(),
            span_ns: it.span_ns,
            cpu_ns: it.cpu_ns,
            delay_ns: it.delay_ns,
        },
        role: Role::of(it.kinds, has_api),
    };
    let setup = |it: &vectors::SetupFacts| SetupCall {
        age_ns: ns(it.age_ms),
        function: it.function.clone(),
        connects: it.connects.clone(),
        listens: it.listens.clone(),
    };
    process.host = Some(facts.host.clone()).filter(|host| !host.is_empty());
    process.pid = Some(facts.pid);
    process.heard_ns = Some(facts.heard_ns).filter(|&heard| heard > 0);
    process.idle_ns = facts.idle_ms.map(ns);
    process.setup = facts.setup.as_ref().map(setup);
    process.threads = facts.threads.iter().map(thread).collect();
}

/// Notes which processes may be processes of several jobs, because nothing identifies them.
fn doubt_processes(job: &mut Job, keys: &[ProcessKey]) {
    for (process, key) in job.processes.iter_mut().zip(keys) {
        if (key.0, key.2) == (0, 0) {
            process.doubts.push(Doubt::ProcessUnknown);
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
                doubts.push(Doubt::InCall);
            }
        }
    }
}

/// Adds a vector of a process that was last heard from at `heard_ns` to a communicator.
fn add(
    comm: &mut Communicator,
    (vector, transfers): (&vectors::Vector, &[OpenTransfer]),
    process: u32,
    heard_ns: Option<u64>,
) {
    let has = |flag: u8| vector.flags & u32::from(flag) != 0;
    // Calls that were captured into graphs cannot be compared with enqueued operations.
    let no_calls = partial::NO_API | partial::CAPTURED;
    let at = u32::try_from(comm.vectors.len()).unwrap_or(u32::MAX);
    let age = |ms: u32| Some(ms).filter(|&ms| ms != 0).map(ns);
    comm.vectors.push(Vector {
        process,
        rank: vector.rank,
        api: u64::from(if has(no_calls) { vector.enqueued } else { vector.api }),
        enqueued: u64::from(vector.enqueued),
        started: (!has(partial::NO_KERNEL)).then_some(u64::from(vector.started)),
        done: u64::from(vector.done),
        age_ns: age(vector.age_ms),
        born_ns: age(vector.born_ms.max(vector.age_ms)),
        changed_ns: heard_ns.map(|heard| heard.saturating_sub(ns(vector.changed_ms))),
        is_blind: has(partial::NO_END),
        is_of_launches: false,
        is_captured: has(partial::CAPTURED),
        has_left: has(partial::ENDED),
        connects: false,
        p2p_number: None,
    });
    if vector.hash_at != 0 {
        comm.hashes.push((at, u64::from(vector.hash_at), vector.hash));
    }
    // A table does not tell whether a transfer is that of a collective.
    if !transfers.is_empty() && vector.p2p_done >= vector.p2p_enqueued {
        let transfers = first_of_each(transfers).map(transfer).collect();
        comm.flights.insert(at, InFlightOp { transfers, ..InFlightOp::default() });
    }
}

/// Removes transfers that may be those of a later operation: others have finished the one that the
/// member is in, more are enqueued, and its GPU has moved nothing in the transfers.
fn drop_later(comm: &mut Communicator) {
    let finished = comm.finished().max().unwrap_or(0);
    let vectors = &comm.vectors;
    comm.flights.retain(|&at, flight| {
        let vector = &vectors[at as usize];
        let is_left = finished > vector.done && vector.enqueued > vector.done + 1;
        let moved = |it: &Transfer| if it.is_send { it.ready > 0 } else { it.done > 0 };
        !is_left || flight.transfers.iter().any(moved)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, diagnose};
    use ncclscope_findings::{Confidence, FindingClass};
    use std::collections::BTreeMap;

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
            job,
            origin: job << 32 | u64::from(rank),
            ..vectors::Vector::default()
        }
    }

    const HANG: Duration = Duration::from_secs(30);

    fn table(vectors: &[vectors::Vector]) -> Table {
        Table { vectors: vectors.to_vec(), ..Table::default() }
    }

    /// The job of vectors of which nothing more is known.
    fn of(vectors: &[vectors::Vector]) -> Job {
        build(&table(vectors), HANG)
    }

    fn ranks_of(job: &Job) -> Vec<(FindingClass, Confidence, Vec<u32>)> {
        let found = diagnose(job, &Options::default()).findings;
        found.into_iter().map(|it| (it.class, it.confidence(), it.root_ranks)).collect()
    }

    const LATE: (FindingClass, Confidence) = (FindingClass::HostStuck, Confidence::Confirmed);

    #[test]
    fn jobs_of_one_table_stay_apart() {
        let late = |job, late| (0..4).map(move |rank| vector(job, rank, rank == late));
        let mut all: Vec<vectors::Vector> = late(7, 3).chain(late(9, 2)).collect();
        // A process of the second job is silent.
        all[4].flags = vector_flags::SILENT;
        let names = BTreeMap::from([(7, "a".into()), (9, "b".into())]);
        let named = |all: &[vectors::Vector]| Table { jobs: names.clone(), ..table(all) };
        let job = build(&named(&all), HANG);
        assert_eq!(ranks_of(&job), [(LATE.0, LATE.1, vec![3])]);
        let note = "2 runs are here; this is \"a\"; choose with --run ID: \"b\" (4 processes)";
        assert_eq!(job.notes, [note]);
        let chosen = choose(&named(&all), Some("b"), HANG).unwrap();
        assert!(chosen.notes[0].ends_with("ID: \"a\" (4 processes)"), "{:?}", chosen.notes);
        let is_gone = |it: &(FindingClass, _, _)| it.0 == FindingClass::ProcessGone;
        assert!(ranks_of(&chosen).iter().any(is_gone), "{:?}", ranks_of(&chosen));
        // The agent of its host says that another one is stopped.
        for (flag, how) in
            [(vector_flags::STOPPED, "stopped, by a signal"), (vector_flags::FROZEN, "frozen")]
        {
            all[3].flags = flag;
            let found = diagnose(&build(&named(&all), HANG), &Options::default()).findings;
            let [verdict] = &found[..] else { panic!("{found:?}") };
            assert_eq!(
                (verdict.class, &verdict.root_ranks[..]),
                (FindingClass::ProcessGone, &[3][..])
            );
            assert!(verdict.title().contains(how), "{verdict:?}");
        }
        all[3].flags = 0;
        let missing = choose(&named(&all), Some("c"), HANG).unwrap_err();
        let all_of_them = "\"a\" (4 processes), \"b\" (4 processes)";
        assert_eq!(missing, format!("there is no run \"c\" here, but {all_of_them}"));
        // Without names, the id is a communicator.
        let unnamed = choose(&table(&all), Some("0x6b"), HANG).unwrap();
        assert_eq!(ranks_of(&unnamed), [(LATE.0, LATE.1, vec![3])]);
        // Without job ids, two processes with one rank belong to two jobs, unless they share a
        // communicator.
        all.iter_mut().for_each(|vector| vector.job = 0);
        let job = of(&all);
        assert_eq!((ranks_of(&job), job.processes.len()), (vec![(LATE.0, LATE.1, vec![3])], 4));
        all.iter_mut().for_each(|vector| vector.comm = 1);
        let job = of(&all);
        let ranks: Vec<Option<u32>> = job.processes.iter().map(|process| process.rank).collect();
        assert_eq!(ranks, [None; 8], "a rank that two have is not that in the job");
    }

    /// Two jobs whose processes have the same numbers are one to us if nothing identifies them.
    #[test]
    fn of_processes_without_identity_nothing_is_confirmed() {
        let late = |job, late| (0..4).map(move |rank| vector(job, rank, rank == late));
        let mut all: Vec<vectors::Vector> = late(7, 3).chain(late(9, 2)).collect();
        all.iter_mut().for_each(|vector| (vector.job, vector.origin) = (0, 0));
        let job = of(&all);
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
        assert_eq!(ranks_of(&of(&all)), [dead]);
    }

    #[test]
    fn a_rank_that_sends_or_receives_is_a_suspect_at_most() {
        let mut all: Vec<vectors::Vector> = (0..4).map(|rank| vector(7, rank, rank == 3)).collect();
        assert_eq!(ranks_of(&of(&all)), [(LATE.0, LATE.1, vec![3])]);
        all[3].p2p_enqueued = 1;
        let suspect = [(LATE.0, Confidence::Suspect, vec![3])];
        assert_eq!(ranks_of(&of(&all)), suspect);
        all[3].p2p_done = 1;
        assert_eq!(ranks_of(&of(&all)), [(LATE.0, LATE.1, vec![3])]);
    }

    #[test]
    fn a_rank_in_a_call_that_may_connect_is_a_suspect_at_most() {
        let mut all: Vec<vectors::Vector> = (0..4).map(|rank| vector(7, rank, rank == 3)).collect();
        all[3].api = 5;
        let class = |all: &[vectors::Vector]| ranks_of(&of(all));
        let call = FindingClass::CallNotEnqueued;
        assert_eq!(class(&all), [(call, Confidence::Suspect, vec![3])]);
        // A captured call is counted as called but not as enqueued.
        all[3].flags = u32::from(partial::CAPTURED);
        assert_eq!(class(&all), [(LATE.0, LATE.1, vec![3])]);
        // Sends and receives that NCCL has not enqueued: it may be connecting for them.
        all[3].flags = vector_flags::IN_P2P_CALL;
        all[3].api = 4;
        assert_eq!(class(&all), [(call, Confidence::Suspect, vec![3])]);
    }

    /// Ranks 0 and 1 have completed operation 10. Rank 2 is stopped in it, and rank 3, on the same
    /// host, waits for its data in shared memory, of which no counter tells.
    #[test]
    fn a_rank_that_is_stopped_in_an_operation_explains_its_neighbour() {
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
        all[2].flags = vector_flags::STOPPED;
        let reached = Some(1);
        let send =
            OpenTransfer { vector: 3, is_send: true, steps: 8, reached, ..Default::default() };
        let table = Table { transfers: vec![send], ..table(&all) };
        let gone = (FindingClass::ProcessGone, Confidence::Confirmed, vec![2]);
        assert_eq!(ranks_of(&build(&table, HANG)), [gone]);
    }
}
