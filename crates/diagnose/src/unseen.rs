// SPDX-License-Identifier: Apache-2.0
/*!
Collectives of which NCCL reports only the call: from 2.29 on each Broadcast, and, without kernel
events, all collectives inside a node. It is unknown whether a rank waits in such a collective. But
a rank that has called one more of them than another rank, and has called nothing since then for
longer than the hang limit, probably waits for that other rank. This module builds a job in which it
waits. Findings on that job are suspicions.
*/

use crate::job::{CommKind, Communicator, Job, Process, Vector};

/// The job under the assumption that members with more calls than others wait for those; `None` if
/// there are no such members.
pub(crate) fn assumed(job: &Job, hang_ns: u64) -> Option<Job> {
    if job.is_dump {
        return None;
    }
    let calls: Vec<(usize, Calls)> = job
        .comms
        .iter()
        .enumerate()
        .filter_map(|(at, comm)| Some((at, Calls::that_hang(job, comm, hang_ns)?)))
        .collect();
    if calls.is_empty() {
        return None;
    }
    let mut assumed = job.clone();
    for (at, calls) in calls {
        calls.assume(&mut assumed.comms[at], &job.processes);
    }
    Some(assumed)
}

/// Number of collectives that a member has called.
fn called(vector: &Vector) -> u64 {
    vector.api.max(vector.enqueued)
}

/// The calls of a communicator's members.
struct Calls {
    /// Number of calls that every member has made.
    least: u64,
    /// See [`Communicator::unseen_calls`].
    unseen: u64,
}

impl Calls {
    /// The calls of a communicator if some of its members may wait for others, else `None`.
    fn that_hang(job: &Job, comm: &Communicator, hang_ns: u64) -> Option<Calls> {
        let least = comm.vectors.iter().map(called).min()?;
        let calls = Calls { least, unseen: comm.unseen_calls() };
        let process = |vector: &Vector| &job.processes[vector.process as usize];
        let is_unsure = |vector: &Vector| vector.has_left || process(vector).lacks_events;
        let is_still = |vector: &Vector| process(vector).idle_ns >= Some(hang_ns);
        let mut ahead = comm.vectors.iter().filter(|vector| calls.may_wait(vector)).peekable();
        let hangs = comm.kind == CommKind::Collectives
            && comm.silent.is_empty()
            && ahead.peek().is_some()
            && ahead.all(is_still)
            && !comm.vectors.iter().any(is_unsure);
        hangs.then_some(calls)
    }

    /// True if the member has called more than others, and no end of these calls is recorded.
    fn may_wait(&self, vector: &Vector) -> bool {
        let is_unseen = vector.is_blind || vector.not_enqueued() > self.unseen;
        called(vector) > self.least && is_unseen
    }

    /// Changes the members that may wait so that they do.
    fn assume(&self, comm: &mut Communicator, processes: &[Process]) {
        for vector in &mut comm.vectors {
            let called = called(vector);
            let age_ns = processes[vector.process as usize].idle_ns;
            let done = if self.may_wait(vector) { self.least } else { called };
            (vector.api, vector.enqueued, vector.done) = (called, called, done);
            (vector.age_ns, vector.born_ns) = (age_ns, age_ns);
            (vector.started, vector.is_blind, vector.connects) = (None, false, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, diagnose};
    use ncclscope_findings::{Confidence, FindingClass};
    use std::time::Duration;

    const S: u64 = 1_000_000_000;

    /// Ranks of two communicators, known only by their numbers of calls.
    fn job(calls: &[[u64; 2]], idle_ns: u64) -> Job {
        let process =
            |rank| Process { rank: Some(rank), idle_ns: Some(idle_ns), ..Process::default() };
        let comm = |at: usize| Communicator {
            name: format!("comm {at}"),
            nranks: 4,
            vectors: calls
                .iter()
                .zip(0..)
                .map(|(called, rank)| Vector {
                    process: rank,
                    rank,
                    api: called[at],
                    is_blind: true,
                    ..Vector::default()
                })
                .collect(),
            ..Communicator::default()
        };
        Job {
            processes: (0..4).map(process).collect(),
            comms: vec![comm(0), comm(1)],
            ..Job::default()
        }
    }

    fn found(job: &Job) -> Vec<(FindingClass, Confidence, Vec<u32>)> {
        let report = diagnose(job, &Options::of(Duration::from_secs(30)));
        report.findings.into_iter().map(|it| (it.class, it.confidence(), it.root_ranks)).collect()
    }

    #[test]
    fn a_rank_that_has_not_called_what_the_others_have_is_suspected() {
        let suspected = |rank| [(FindingClass::HostStuck, Confidence::Suspect, vec![rank])];
        let late = [[5, 9], [5, 9], [4, 9], [5, 9]];
        assert_eq!(found(&job(&late, 60 * S)), suspected(2));
        assert_eq!(found(&job(&late, 20 * S)), [], "it may come");
        // Rank 1 waits in the first communicator, and therefore has not called in the second one.
        let chain = [[5, 9], [5, 8], [4, 8], [5, 9]];
        assert_eq!(found(&job(&chain, 60 * S)), suspected(2));
        assert_eq!(found(&job(&[[5, 9]; 4], 600 * S)), [], "an idle job");
        // The last recorded end is that of the last call.
        let mut seen = job(&late, 60 * S);
        for vector in seen.comms.iter_mut().flat_map(|comm| &mut comm.vectors) {
            (vector.is_blind, vector.enqueued) = (false, vector.api - 1);
            vector.done = vector.enqueued;
        }
        assert_eq!(found(&seen), []);
    }

    #[test]
    fn a_communicator_that_a_rank_has_left_says_nothing() {
        let mut job = job(&[[5, 9], [5, 9], [4, 9], [5, 9]], 60 * S);
        job.comms[0].vectors[0].has_left = true;
        assert_eq!(found(&job), []);
    }
}
