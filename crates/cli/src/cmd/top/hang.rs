// SPDX-License-Identifier: Apache-2.0
//! Which ranks the others wait for, by the rules of `ncclscope diagnose`: according to the
//! recordings or, if an agent is asked, to its vectors.

use ncclscope_diagnose::input::vectors::build;
use ncclscope_diagnose::{Options, diagnose};
use ncclscope_findings::Finding;
use ncclscope_node::judged::Judged;
use ncclscope_top::{Comm, Flight};
use ncclscope_trace::progress::progress_flags;
use ncclscope_trace::vectors::{Table, Vector};
use std::collections::BTreeSet;
use std::time::Duration;

/// What an agent's vectors show.
#[derive(Debug, Default)]
pub(super) struct Hangs {
    /// Why ranks wait: the job's id, and what is wrong.
    pub(super) findings: Vec<(String, Finding)>,
    /// (Job number, rank) of ranks whose own watchdog reports a hang.
    pub(super) stuck: BTreeSet<(u64, u32)>,
}

/// Looks for ranks that others have waited for longer than `limit`.
pub(super) fn find(table: &Table, limit: Duration) -> Hangs {
    let jobs: BTreeSet<u64> = table.vectors.iter().map(|vector| vector.job).collect();
    let stuck = table.vectors.iter().filter(|vector| vector.is_stuck());
    let stuck = stuck.map(|vector| (vector.job, vector.process)).collect();
    let mut hangs = Hangs { stuck, ..Hangs::default() };
    for number in jobs {
        let of_job = build(&table.of_jobs(|job| job == number), limit);
        let job = table.jobs.get(&number).cloned().unwrap_or_default();
        let found = diagnose(&of_job, &Options::of(limit)).findings;
        hangs.findings.extend(found.into_iter().map(|finding| (job.clone(), finding)));
    }
    hangs
}

/// Why ranks wait according to the recordings.
pub(super) fn verdicts(jobs: &[Judged]) -> Vec<(String, Finding)> {
    let of_job = |job: &Judged| {
        let name = job.identity.job_id().unwrap_or_default().to_owned();
        job.found.findings.iter().map(|one| (name.clone(), one.clone())).collect::<Vec<_>>()
    };
    jobs.iter().flat_map(of_job).collect()
}

/// True if the operations of a rank's communicator show no end.
pub(super) fn hides_ends(vector: &Vector) -> bool {
    let has = |flag: u8| vector.flags & u32::from(flag) != 0;
    let has_any = vector.enqueued > 0 || vector.p2p_enqueued > 0;
    has_any && has(progress_flags::NO_END) && !has(progress_flags::ENDED)
}

/// What a rank's watchdog sees in flight on a communicator.
pub(super) fn flight(vector: &Vector, comm: Comm) -> Option<Flight> {
    let open = vector.enqueued.saturating_sub(vector.done);
    let p2p = vector.p2p_enqueued.saturating_sub(vector.p2p_done);
    (vector.age_ms > 0).then(|| Flight {
        comm,
        age_s: f64::from(vector.age_ms) / 1e3,
        count: u64::from(open) + u64::from(p2p),
        ..Flight::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_has_not_called_is_the_one_that_others_wait_for() {
        let vector = |job: u64, process: u32, enqueued: u32, done: u32| Vector {
            comm: 1,
            process,
            rank: process,
            nranks: 3,
            api: enqueued,
            enqueued,
            started: enqueued,
            done,
            age_ms: if done < enqueued { 2_000 } else { 0 },
            hash_at: enqueued,
            job,
            ..Vector::default()
        };
        let mut vectors = vec![vector(7, 0, 5, 4), vector(7, 1, 4, 4), vector(7, 2, 5, 4)];
        vectors[2].flags = u32::from(progress_flags::STUCK);
        vectors.extend([vector(8, 0, 5, 5), vector(8, 1, 5, 5), vector(8, 2, 5, 5)]);
        let jobs = [(7, "train".to_owned())].into();
        let table = Table { vectors, jobs, ..Table::default() };
        let hangs = find(&table, Duration::from_secs(1));
        let [(job, finding)] = &hangs.findings[..] else { panic!("{hangs:?}") };
        assert_eq!((job.as_str(), &finding.root_ranks[..]), ("train", &[1][..]));
        assert_eq!(finding.age_ns, Some(2_000_000_000));
        assert_eq!(hangs.stuck, [(7, 2)].into());
        assert!(find(&table, Duration::from_secs(3)).findings.is_empty(), "not yet");
    }
}
