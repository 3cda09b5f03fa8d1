// SPDX-License-Identifier: Apache-2.0
//! What one rank shows, as the state that the rules of `ncclscope_findings` judge.

use crate::job::{Communicator, Flight, Job, Kind, Vector};
use ncclscope_findings::rank::{Kernel, Pending, RankState, Thread, Transfer};

/// The transfers of a member.
pub(crate) fn transfers(comm: &Communicator, member: usize) -> &[Transfer] {
    flight(comm, member).map_or(&[], |flight| &flight.transfers)
}

fn flight(comm: &Communicator, member: usize) -> Option<&Flight> {
    comm.flights.get(&u32::try_from(member).ok()?)
}

/// The state of a member's kernel and transfers, for rules that ask of nothing else. The others are
/// in the operation too.
pub(crate) fn inside(comm: &Communicator, member: usize) -> RankState {
    let (channels, started, stopped) =
        flight(comm, member).and_then(|flight| flight.kernel).unwrap_or_default();
    let kernel = Kernel {
        channels,
        started,
        stopped,
        has_started: comm.vectors[member].has_started(),
        // A small send uses fewer channels than it may.
        needs_all: comm.kind == Kind::Collectives,
        stops_early: false,
    };
    let transfers = transfers(comm, member).to_vec();
    RankState { kernel, transfers, have_peers_entered: true, ..RankState::default() }
}

/// The same with the proxy thread, which has work also if `is_awaited`.
pub(crate) fn with_proxy(
    job: &Job,
    comm: &Communicator,
    member: usize,
    is_awaited: bool,
) -> RankState {
    let state = inside(comm, member);
    let threads = job.processes[comm.vectors[member].process as usize].threads.iter();
    let threads = threads.filter(|thread| thread.is_proxy && !thread.is_api);
    let proxy_threads: Vec<Thread> = threads.map(|thread| thread.thread.clone()).collect();
    let awaits_proxy = is_awaited || state.transfers.iter().any(Transfer::is_open);
    RankState { proxy_threads, awaits_proxy, ..state }
}

/// Where the process's call is that did not come back, if one did not.
pub(crate) fn pending(job: &Job, vector: &Vector) -> Option<Pending> {
    let entered = job.processes[vector.process as usize].entered;
    entered.or_else(|| (vector.api > vector.enqueued).then_some(Pending::Inside))
}
