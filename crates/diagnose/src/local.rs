// SPDX-License-Identifier: Apache-2.0
//! What one rank's recording shows without the other ranks, which is what its own watchdog sees.

use crate::engine::Options;
use crate::job::{Communicator, Job};
use crate::state;
use ncclscope_findings::rank::RankState;
use ncclscope_findings::{RankFinding, rules};

/// The findings of one process without the other ranks, as its own watchdog reports them: one for
/// each communicator in which it is stuck in an operation, else one for the call that it is in.
#[must_use]
pub fn local_findings(job: &Job, process: u32, options: &Options) -> Vec<RankFinding> {
    let hang_ns = options.hang_ns(job);
    let of = |comm: &Communicator| comm.vectors.iter().position(|v| v.process == process);
    let members: Vec<(&Communicator, usize)> =
        job.comms.iter().filter_map(|comm| Some((comm, of(comm)?))).collect();
    let is_inside = |(comm, at): &&(&Communicator, usize)| {
        comm.vectors[*at].is_inside() && !comm.vectors[*at].is_connecting()
    };
    let runs = |&(comm, at): &(&Communicator, usize)| {
        let vector = &comm.vectors[at];
        (vector.has_started() == Some(true)).then_some((vector.front(), vector.born_ns))
    };
    let finding = |&(comm, at): &(&Communicator, usize)| {
        let born = comm.vectors[at].born_ns;
        let mut running = members.iter().filter(is_inside).filter_map(runs);
        let before = running.find(|(_, other)| *other >= born);
        let state = state::with_proxy(job, comm, at, false);
        let behind = before.map(|(number, _)| number);
        rules::apply_rules(&RankState { behind, have_peers_entered: false, ..state })
    };
    if members.iter().any(|member| is_inside(&member)) {
        let is_old = |(comm, at): &&(&Communicator, usize)| {
            comm.vectors[*at].age_ns.is_some_and(|age| age >= hang_ns)
        };
        return members.iter().filter(is_inside).filter(is_old).map(finding).collect();
    }
    let pending = members.iter().find_map(|(comm, at)| state::pending(job, &comm.vectors[*at]));
    let call =
        |pending| rules::apply_rules(&RankState { pending: Some(pending), ..RankState::default() });
    pending.map(call).into_iter().collect()
}
