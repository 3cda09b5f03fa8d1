// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks wait in which operation, and for which others: what a picture of the wait graph shows.

These are the waits that `wait_graph` followed. A communicator has one entry, for the latest
operation that a member waits in. This module finds no cause.
*/

use crate::job::{Communicator, Job, ProcessStatus};
use crate::wait_graph::Wait;
use serde::Serialize;
use std::collections::BTreeMap;

/// An operation of a communicator, or of a pair of ranks, in which ranks wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The communicator's name.
    pub comm: String,
    /// The communicator's role, such as `tp`; empty if unknown.
    pub role: String,
    /// NCCL's function; empty if unknown.
    pub func: String,
    /// The operation's number in the communicator, from 1.
    pub number: u64,
    /// The ranks that wait, in this operation or an earlier one, ascending.
    pub ranks: Vec<u32>,
    /// The members that have not reached this operation, ascending, including those without input.
    pub absent: Vec<u32>,
}

/// One entry for each communicator in which a rank waits.
pub(crate) fn of(job: &Job, waits: &[Wait]) -> Vec<Waiting> {
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for wait in waits {
        members.entry(wait.comm).or_default().push(wait.member);
    }
    let of = |(comm, members): (u32, Vec<u32>)| waiting(job, &job.comms[comm as usize], &members);
    members.into_iter().map(of).collect()
}

fn waiting(job: &Job, comm: &Communicator, members: &[u32]) -> Waiting {
    let front = |member: u32| comm.vectors[member as usize].front();
    let index = members.iter().map(|&member| front(member)).max().unwrap_or(0);
    let mut latest = members.iter().filter(|&&member| front(member) == index);
    let func = latest.find_map(|&member| {
        let call = comm.calls.get(&member).and_then(|calls| calls.get(&index)).map(|call| &**call);
        let flight = comm.flights.get(&member).map(|flight| &flight.call);
        flight.or(call).map(|call| call.func.clone()).filter(|func| !func.is_empty())
    });
    let come = comm.vectors.iter().filter(|vector| job.front(vector) < index);
    let silent = comm.silent.iter().filter(|&&process| {
        let process = job.processes.get(process as usize);
        process.is_some_and(|process| process.status == ProcessStatus::Silent)
    });
    let absent = come.map(|vector| vector.process).chain(silent.copied());
    Waiting {
        comm: comm.name.clone(),
        role: comm.role.clone().unwrap_or_default(),
        func: func.unwrap_or_default(),
        number: index,
        ranks: ranks(job, members.iter().map(|&member| comm.vectors[member as usize].process)),
        absent: ranks(job, absent),
    }
}

/// The ranks of these processes, as far as known.
fn ranks(job: &Job, processes: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut ranks: Vec<u32> = processes.filter_map(|process| job.known_rank(process)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}
