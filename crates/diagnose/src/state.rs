// SPDX-License-Identifier: Apache-2.0
//! The state of one rank in the form that the rules of `ncclscope_findings` take.

use crate::job::{CommKind, Communicator, InFlightOp, Job};
use ncclscope_findings::rank::{Kernel, RankState, Thread, Transfer};
use ncclscope_operations::threads::Role;

pub(crate) fn transfers(comm: &Communicator, member: usize) -> &[Transfer] {
    flight(comm, member).map_or(&[], |flight| &flight.transfers)
}

fn flight(comm: &Communicator, member: usize) -> Option<&InFlightOp> {
    comm.flights.get(&u32::try_from(member).ok()?)
}

/// The state of a member's kernel and transfers, for rules that need no proxy thread. All other
/// members must be in the operation, too.
pub(crate) fn inside(comm: &Communicator, member: usize) -> RankState {
    let (channels, started, stopped) =
        flight(comm, member).and_then(|flight| flight.kernel).unwrap_or_default();
    let kernel = Kernel {
        channels,
        started,
        stopped,
        has_started: comm.vectors[member].has_started(),
        // A small send may use fewer channels than are available.
        needs_all: comm.kind == CommKind::Collectives,
        stops_early: false,
    };
    let transfers = transfers(comm, member).to_vec();
    RankState { kernel, transfers, have_peers_entered: true, ..RankState::default() }
}

/// Like [`inside`], with the state of proxy threads. `is_awaited`: another rank has a transfer with
/// this one, so that its proxy thread has work even without a transfer of its own.
pub(crate) fn with_proxy(
    job: &Job,
    comm: &Communicator,
    member: usize,
    is_awaited: bool,
) -> RankState {
    let state = inside(comm, member);
    let threads = job.processes[comm.vectors[member].process as usize].threads.iter();
    let threads = threads.filter(|thread| thread.role == Role::Proxy);
    let proxy_threads: Vec<Thread> = threads.map(|thread| thread.thread.clone()).collect();
    let awaits_proxy = is_awaited || state.transfers.iter().any(Transfer::is_open);
    RankState { proxy_threads, awaits_proxy, ..state }
}
