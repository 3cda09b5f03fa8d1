// SPDX-License-Identifier: Apache-2.0
//! Phrases about ranks, operations and ages.

use crate::job::{Call, CommKind, Communicator, Job, Vector};
use ncclscope_findings::rank::{Thread, Transfer};
use ncclscope_findings::words;
pub(crate) use ncclscope_findings::words::ranks as named_ranks;
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;

/// Text such as `rank 9 (node-1, pid 77)`.
pub(crate) fn rank(job: &Job, process: u32) -> String {
    // Of a process without input, the communicator may not tell the rank in the job.
    let Some(rank) = job.known_rank(process) else { return "an unknown rank".into() };
    let one = job.processes.get(process as usize);
    let (host, pid) = one.map_or((None, None), |one| (one.host.as_deref(), one.pid));
    words::placed_rank(rank, host, pid)
}

/// Text such as `ranks 1, 9 (node-0, node-1)`, with the hosts if they are known and few.
pub(crate) fn placed_ranks(job: &Job, of: &[u32], processes: &[u32]) -> String {
    let host = |&process: &u32| job.processes.get(process as usize)?.host.as_deref();
    words::placed_ranks(of, processes.iter().map(host))
}

/// Where a thread of a rank is.
pub(crate) fn place(who: &str, Thread { tid, state, place, .. }: &Thread) -> String {
    let place = if place.is_empty() { "user code" } else { place };
    let state = if *state == 0 { '?' } else { char::from(*state) };
    format!("{who}: thread {tid} is in state {state}, in {place}")
}

/// Text such as `communicator 0x1f (tp)`, or the pair of ranks.
pub(crate) fn comm(comm: &Communicator) -> String {
    let role = comm.role.as_ref().map_or_else(String::new, |role| format!(" ({role})"));
    match comm.kind {
        CommKind::Pair | CommKind::Sequence => format!("sends and receives of {}{role}", comm.name),
        CommKind::Collectives | CommKind::Call => format!("communicator {}{role}", comm.name),
    }
}

/// Text such as `operation 12`, or `an operation`.
pub(crate) fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "an operation".to_owned(), |number| format!("operation {number}"))
}

/// Text such as `operation 12 (AllReduce, 4 MiB)`.
pub(crate) fn op(of: Option<u64>, call: Option<&Call>) -> String {
    let name = number(of);
    match call.filter(|call| !call.func.is_empty()) {
        Some(call) if call.size.is_empty() => format!("{name} ({})", call.func),
        Some(call) => format!("{name} ({}, {})", call.func, call.size),
        None => name,
    }
}

/// Text such as `called 5, enqueued 5, kernel started 4, complete 4`.
fn counts(vector: &Vector) -> String {
    if vector.is_of_launches {
        return format!("launched {}", vector.enqueued);
    }
    let started =
        vector.started.map_or_else(String::new, |started| format!(", kernel started {started}"));
    format!(
        "called {}, enqueued {}{started}, complete {}",
        vector.api, vector.enqueued, vector.done
    )
}

/// [`counts`] for a member of a communicator; for a pair of ranks with ` of these`. `unseen` is
/// [`Communicator::unseen_calls`], which looks at all members: these calls are named, so that they
/// do not look like pending ones.
pub(crate) fn counts_of(comm: &Communicator, unseen: u64, vector: &Vector) -> String {
    let these = if comm.is_pair() { " of these" } else { "" };
    let unseen = match unseen {
        0 => String::new(),
        1 => "; NCCL reports only the call of 1, such as a Broadcast".to_owned(),
        unseen => format!("; NCCL reports only the calls of {unseen}, such as Broadcasts"),
    };
    format!("{}{these}{unseen}", counts(vector))
}

/// Text such as ` for 12 s`; empty if the age is unknown.
pub(crate) fn since(job: &Job, age_ns: Option<u64>) -> String {
    // The ages in a dump are relative to its newest operation, not to now.
    match age_ns.filter(|_| !job.is_dump) {
        Some(age) => format!(" for {}", duration(age)),
        None => String::new(),
    }
}

/// Text such as `channel 0, send to rank 1: 3 of 8 steps done, the oldest in SendWait for 12 s`.
pub(crate) fn transfer(link: &Transfer) -> String {
    const SEND: [&str; 4] = ["its start", "SendGPUWait", "SendPeerWait", "SendWait"];
    const RECEIVE: [&str; 4] = ["its start", "RecvWait", "RecvFlushWait", "RecvGPUWait"];
    let way = if link.is_send { "send to" } else { "receive from" };
    let names = if link.is_send { SEND } else { RECEIVE };
    let state = link.reached.and_then(|reached| names.get(usize::from(reached)));
    let state =
        state.map_or_else(|| "none in flight".to_owned(), |state| format!("the oldest in {state}"));
    // A table of vectors does not contain the number of steps.
    let steps = match link.steps {
        0 => String::new(),
        steps => format!("{} of {steps} steps done, ", link.done),
    };
    format!(
        "channel {}, {way} rank {} of the communicator: {steps}{state} for {}",
        link.channel,
        link.peer,
        duration(link.still_ns)
    )
}

/// Text such as `it used 0 % of a CPU core and waited for one 3 % of the time`.
pub(crate) fn usage(thread: &Thread) -> String {
    let share = |ns: u64| to_f64(ns) / to_f64(thread.span_ns.max(1)) * 100.0;
    let (used, waited) = (share(thread.cpu_ns), share(thread.delay_ns));
    format!("it used {used:.0} % of a CPU core and waited for one {waited:.0} % of the time")
}

/// A duration such as `1.5 s`.
pub(crate) fn duration(ns: u64) -> String {
    human::duration(to_f64(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_which_nccl_reports_no_more_are_not_pending() {
        let vector = Vector { api: 3, enqueued: 2, done: 2, ..Vector::default() };
        let mut comm = Communicator { vectors: vec![vector; 2], ..Communicator::default() };
        let counts = "called 3, enqueued 2, complete 2";
        let told = format!("{counts}; NCCL reports only the call of 1, such as a Broadcast");
        assert_eq!(counts_of(&comm, comm.unseen_calls(), &vector), told);
        // The other one has no such call, so this one is pending.
        comm.vectors[1].enqueued = 3;
        assert_eq!(counts_of(&comm, comm.unseen_calls(), &vector), counts);
    }
}
