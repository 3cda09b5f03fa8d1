// SPDX-License-Identifier: Apache-2.0
/*!
Whether the job still moves: the first question about a job, before who holds it up and whether it
was slow.

A job stands still if no rank has called NCCL, and no event of any rank has completed, for as long
as the limit, or for clearly longer than in any pause before, with the job's own past as peer. A
recording ends at any moment: the last pause is often the longest by a little.
*/

use crate::job::{Job, Process, ProcessStatus};
use ncclscope_limits::hangs;
use ncclscope_operations::stats::to_f64;
use serde::Serialize;

/// For how long nothing of a job has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Standstill {
    /// Time since the last call of NCCL and the last completion of an event, of all ranks, ns.
    pub still_ns: u64,
    /// The longest pause before that, ns; `None` if there were too few to say.
    pub usual_ns: Option<u64>,
}

/// How long nothing has moved, if that is as long as the limit or clearly longer than ever before.
/// `None` also if some rank may move unseen.
pub(crate) fn find(job: &Job, hang_ns: u64) -> Option<Standstill> {
    let is_there =
        |one: &&Process| matches!(one.status, ProcessStatus::Running | ProcessStatus::Stopped(_));
    let mut all = job.processes.iter().filter(is_there).peekable();
    all.peek()?;
    let (mut still_ns, mut usual_ns) = (u64::MAX, Some(u64::MAX));
    for process in all {
        // A pause of the job is one of each rank.
        still_ns = still_ns.min(process.still_ns?);
        usual_ns = usual_ns.zip(process.usual_ns).map(|(a, b)| a.min(b));
    }
    let is_unusual = usual_ns.is_some_and(|usual| !is_as_before(still_ns, usual));
    let is_long = still_ns >= hang_ns || is_unusual && still_ns >= hangs::SHORTEST_NS;
    is_long.then_some(Standstill { still_ns, usual_ns })
}

/// Whether a process has not stood still for longer than in a pause before.
pub(crate) fn is_usual(process: &Process) -> bool {
    let pauses = process.still_ns.zip(process.usual_ns);
    pauses.is_some_and(|(still, usual)| is_as_before(still, usual))
}

fn is_as_before(still_ns: u64, usual_ns: u64) -> bool {
    to_f64(still_ns) <= hangs::LONGER * to_f64(usual_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn found(ranks: &[(Option<u64>, Option<u64>)]) -> Option<Standstill> {
        let process = |&(still_ns, usual_ns): &(Option<u64>, Option<u64>)| Process {
            still_ns: still_ns.map(|s| s * S),
            usual_ns: usual_ns.map(|s| s * S),
            ..Process::default()
        };
        find(&Job { processes: ranks.iter().map(process).collect(), ..Job::default() }, 30 * S)
    }

    #[test]
    fn a_job_stands_still_if_no_rank_moves_for_longer_than_ever_or_than_the_limit() {
        let both =
            |still, usual| Some(Standstill { still_ns: still * S, usual_ns: Some(usual * S) });
        let usual = (Some(9), Some(2));
        assert_eq!(found(&[usual, (Some(8), Some(3))]), both(8, 2));
        assert_eq!(found(&[usual, (Some(1), Some(3))]), None, "one moves");
        assert_eq!(
            found(&[usual, (Some(9), Some(12))]),
            both(9, 2),
            "one rank's pauses are longer"
        );
        assert_eq!(found(&[(Some(13), Some(9))]), None, "as in a pause before, and a little more");
        assert_eq!(found(&[(Some(40), Some(60))]), both(40, 60), "the limit");
        assert_eq!(found(&[(Some(9), None)]), None, "too few pauses");
        let short = Some(Standstill { still_ns: 40 * S, usual_ns: None });
        assert_eq!(found(&[(Some(40), None)]), short);
        assert_eq!(found(&[usual, (None, Some(1))]), None, "one may move unseen");
        assert_eq!(found(&[]), None);
    }
}
