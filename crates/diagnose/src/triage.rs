// SPDX-License-Identifier: Apache-2.0
/*!
Why an operation does not end that all its members are in: kernels, then network transfers.

A stalled proxy thread is asked for before, because without it no kernel and no transfer is seen to
move. Then come kernels that did not start. Then each rank's transfers say whom it waits for: a
receive for its sender, a send that finds no buffer for its receiver; and that is followed to a rank
whose transfers do not wait.
*/

use crate::job::{Communicator, Job, Vector};
use crate::state;
use crate::verdict::Evidence;
use crate::words;
use ncclscope_findings::rank::Transfer;
use ncclscope_findings::{Confidence, FindingClass, Local, rules};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// A cause inside an operation.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) class: FindingClass,
    pub(crate) confidence: Confidence,
    /// Processes.
    pub(crate) roots: Vec<u32>,
    /// From which to which process, for a network path.
    pub(crate) edge: Option<(u32, u32)>,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) alternatives: Vec<String>,
}

/// What a rank's transfers say.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    /// Here it ends.
    Root(FindingClass, Transfer),
    /// It waits for these members, each with the transfer that says so.
    Go(Vec<(usize, Transfer)>),
    /// Nothing is in flight, or nothing is known.
    Nothing,
}

impl Next {
    fn root(found: Local) -> Option<Next> {
        Some(Next::Root(found.class?, found.transfer?))
    }
}

/// What is looked up for many members is worked out once, when first asked for.
struct Triage<'a> {
    job: &'a Job,
    comm: &'a Communicator,
    by_rank: OnceCell<BTreeMap<u32, usize>>,
    /// Members whose kernels run.
    running: OnceCell<usize>,
    /// What each member has done, ascending.
    done: OnceCell<Vec<u64>>,
}

/// The causes of an operation that these members are in and do not come out of.
pub(crate) fn inside(job: &Job, comm: &Communicator, members: &[u32]) -> Vec<Cause> {
    let triage = Triage::new(job, comm);
    let members: Vec<usize> = members.iter().map(|&at| at as usize).collect();
    let mut causes: Vec<Cause> = members.iter().filter_map(|&at| triage.kernel(at)).collect();
    // What did not start at all holds up what started in part.
    let first = causes.iter().map(|cause| cause.class).min();
    causes.retain(|cause| Some(cause.class) == first);
    if !causes.is_empty() {
        return causes;
    }
    if !comm.silent.is_empty() {
        // Only what a rank's own transfers tell, whatever those without input do.
        let root = |&at: &usize| match triage.next(at) {
            Next::Root(
                class @ (FindingClass::ReceiverNotReady
                | FindingClass::NetworkStalled
                | FindingClass::FlushStalled),
                link,
            ) => Some(triage.root(at, class, &link)),
            _ => None,
        };
        return members.iter().filter_map(root).collect();
    }
    let causes = triage.follow_links(&members);
    if !causes.is_empty() {
        return causes;
    }
    let is_rest = |&&at: &&usize| triage.through(triage.vector(at).front()) > 0;
    let left: Vec<Cause> =
        members.iter().filter(is_rest).map(|&at| triage.left_behind(at)).collect();
    // Not so many GPUs die at once: something between them.
    let are_many = left.len() > 1 && 2 * left.len() > comm.vectors.len();
    if left.is_empty() || are_many { vec![triage.unexplained(&members)] } else { left }
}

/// What holds up a member whose peers are through with the operation: other than that its GPU is
/// dead, if its kernel or its transfers tell.
pub(crate) fn alone(job: &Job, comm: &Communicator, member: usize) -> Option<Cause> {
    let triage = Triage::new(job, comm);
    let kernel = triage.kernel(member).filter(|it| it.class == FindingClass::KernelPartlyStarted);
    kernel.or_else(|| match triage.next(member) {
        Next::Root(
            class @ (FindingClass::GpuNotProducing
            | FindingClass::FlushStalled
            | FindingClass::GpuNotConsuming),
            link,
        ) => Some(triage.root(member, class, &link)),
        _ => None,
    })
}

/// The process's proxy thread makes no progress, as one of its communicators shows, whose
/// [`awaited`] ranks are these.
pub(crate) fn stalled(
    job: &Job,
    comm: &Communicator,
    member: usize,
    awaited: &BTreeSet<i32>,
) -> Option<Cause> {
    Triage::new(job, comm).stalled(member, awaited)
}

/// The ranks with which others have transfers under way: so have they, even if their proxy threads
/// have not told of any, which tell of kernels too.
pub(crate) fn awaited(comm: &Communicator) -> BTreeSet<i32> {
    let transfers = comm.flights.values().flat_map(|flight| &flight.transfers);
    transfers.filter(|transfer| transfer.is_open()).map(|transfer| transfer.peer).collect()
}

impl<'a> Triage<'a> {
    fn new(job: &'a Job, comm: &'a Communicator) -> Triage<'a> {
        let (by_rank, running, done) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Triage { job, comm, by_rank, running, done }
    }

    /// The member that is this rank of the communicator.
    fn of_rank(&self, rank: i32) -> Option<usize> {
        let rank = u32::try_from(rank).ok()?;
        let all = || self.comm.vectors.iter().enumerate().map(|(at, v)| (v.rank, at)).collect();
        self.by_rank.get_or_init(all).get(&rank).copied()
    }

    fn running(&self) -> usize {
        let runs = |v: &&Vector| v.has_started() == Some(true);
        *self.running.get_or_init(|| self.comm.vectors.iter().filter(runs).count())
    }

    /// How many members are through with an operation.
    fn through(&self, operation: u64) -> usize {
        let done = self.done.get_or_init(|| {
            let mut done: Vec<u64> = self.comm.vectors.iter().map(|v| v.done).collect();
            done.sort_unstable();
            done
        });
        done.len() - done.partition_point(|&done| done < operation)
    }

    fn vector(&self, at: usize) -> &Vector {
        &self.comm.vectors[at]
    }

    fn transfers(&self, at: usize) -> &[Transfer] {
        state::transfers(self.comm, at)
    }

    fn rank(&self, at: usize) -> u32 {
        self.job.rank(self.vector(at).process)
    }

    fn cause(&self, class: FindingClass, at: usize, text: String) -> Cause {
        Cause {
            class,
            confidence: Confidence::Confirmed,
            roots: vec![self.vector(at).process],
            edge: None,
            evidence: vec![Evidence::of(class, self.rank(at), text)],
            alternatives: Vec::new(),
        }
    }

    fn stalled(&self, at: usize, awaited: &BTreeSet<i32>) -> Option<Cause> {
        let is_awaited = i32::try_from(self.vector(at).rank).is_ok_and(|it| awaited.contains(&it));
        let state = state::with_proxy(self.job, self.comm, at, is_awaited);
        let found = rules::proxy_stalled(&state)?;
        let who = words::rank(self.job, self.vector(at).process);
        let more = match (&found.thread, &found.transfer) {
            (Some(thread), _) => words::usage(thread),
            (None, Some(transfer)) => words::transfer(transfer),
            (None, None) => String::new(),
        };
        Some(self.cause(FindingClass::ProxyStalled, at, format!("{who}: {}; {more}", found.why)))
    }

    /// What the member's kernel tells.
    fn kernel(&self, at: usize) -> Option<Cause> {
        let found = rules::kernel(&state::inside(self.comm, at))?;
        let (vector, running) = (self.vector(at), self.running());
        let text = format!(
            "{}: in operation {}{}, {} ({}; {running} of {} members run it)",
            words::rank(self.job, vector.process),
            vector.front(),
            words::since(self.job, vector.age_ns),
            found.why,
            words::counts(vector),
            self.comm.vectors.len(),
        );
        Some(self.cause(found.class?, at, text))
    }

    /// The member's transfer that belongs to `one` of the member `from`.
    fn other_side(&self, at: usize, from: usize, one: &Transfer) -> Option<&Transfer> {
        let rank = i32::try_from(self.vector(from).rank).ok()?;
        self.transfers(at).iter().find(|other| {
            other.is_send != one.is_send && other.peer == rank && other.channel == one.channel
        })
    }

    fn next(&self, at: usize) -> Next {
        let state = state::inside(self.comm, at);
        let own = rules::flush_stalled(&state).or_else(|| rules::receive_not_taken(&state));
        if let Some(root) = own.and_then(Next::root) {
            return root;
        }
        let mut to = Vec::new();
        let sent = |it: &&Transfer| it.is_send && it.reached == Some(3);
        for transfer in state.transfers.iter().filter(sent) {
            let Some(peer) = self.of_rank(transfer.peer) else {
                // Whether it arrived, only the other side could tell.
                if self.comm.silent.is_empty() {
                    return Next::Root(FindingClass::NetworkStalled, *transfer);
                }
                continue;
            };
            match self.other_side(peer, at, transfer) {
                // It arrived: the receiver is what the sender waits for.
                Some(other) if other.reached >= Some(2) => to.push((peer, *transfer)),
                _ => return Next::Root(FindingClass::NetworkStalled, *transfer),
            }
        }
        if let Some(root) = rules::gpu_stands_still(&state).and_then(Next::root) {
            return root;
        }
        let mut waits_for_silent = false;
        for transfer in state.transfers.iter().filter(|it| it.waits_for_peer()) {
            match self.of_rank(transfer.peer) {
                Some(peer) => to.push((peer, *transfer)),
                None => waits_for_silent = !self.comm.silent.is_empty(),
            }
        }
        if to.is_empty() && !waits_for_silent { Next::Nothing } else { Next::Go(to) }
    }

    fn follow_links(&self, members: &[usize]) -> Vec<Cause> {
        let next: Vec<(usize, Next)> = members.iter().map(|&at| (at, self.next(at))).collect();
        // Of each member the first that waits for it.
        let mut waiters: BTreeMap<usize, (usize, Transfer)> = BTreeMap::new();
        for &(from, ref one) in &next {
            let Next::Go(to) = one else { continue };
            for &(at, link) in to {
                let first = waiters.entry(at).or_insert((from, link));
                if from < first.0 {
                    *first = (from, link);
                }
            }
        }
        let mut causes = Vec::new();
        for &(at, ref one) in &next {
            match one {
                Next::Root(class, link) => causes.push(self.root(at, *class, link)),
                // Others wait for it, and its transfers say nothing.
                Next::Nothing => {
                    causes.extend(waiters.get(&at).map(|waiter| self.blank(at, waiter)));
                }
                Next::Go(_) => {}
            }
        }
        causes
    }

    fn root(&self, at: usize, class: FindingClass, link: &Transfer) -> Cause {
        let process = self.vector(at).process;
        let text = format!("{}: {}", words::rank(self.job, process), words::transfer(link));
        let mut cause = self.cause(class, at, text);
        let other = self.of_rank(link.peer).map(|at| self.vector(at).process);
        if let Some(line) = cause.evidence.first_mut() {
            line.channel = Some(link.channel);
            line.peer = other.map(|other| self.job.rank(other));
        }
        if let Some(other) = other.filter(|_| class != FindingClass::GpuNotProducing) {
            cause.edge = Some(if link.is_send { (process, other) } else { (other, process) });
        }
        cause.roots.extend(other.filter(|_| class == FindingClass::NetworkStalled));
        cause
    }

    /// A member that another one waits for, without transfers that say why.
    fn blank(&self, at: usize, &(from, link): &(usize, Transfer)) -> Cause {
        // A send without a buffer at the other side is clear; a receive may wait for anything.
        let class = if link.is_send {
            FindingClass::ReceiverNotReady
        } else {
            FindingClass::GpuNotProducing
        };
        let text = format!(
            "{} waits for {}: {}",
            words::rank(self.job, self.vector(from).process),
            words::rank(self.job, self.vector(at).process),
            words::transfer(&link)
        );
        let mut cause = self.cause(class, at, text);
        if link.is_send {
            cause.edge = Some((self.vector(from).process, self.vector(at).process));
        }
        if self.transfers(at).is_empty() {
            cause.confidence = Confidence::Suspect;
            cause.alternatives.push("its transfers are not in the input".into());
        }
        cause
    }

    /// Nothing says more than that everybody is in the operation.
    fn unexplained(&self, members: &[usize]) -> Cause {
        let vectors = || members.iter().map(|&at| self.vector(at));
        let run = vectors().filter(|v| v.has_started() == Some(true)).count();
        let all_run = run == members.len();
        let front = vectors().map(Vector::front).min().unwrap_or(0);
        let text = format!(
            "{} of {} members are in operation {front}, {}",
            members.len(),
            self.comm.vectors.len(),
            if all_run {
                "its kernel runs on each, and no network transfer is in flight"
            } else {
                "and nothing tells more"
            }
        );
        let line = Evidence {
            rule: FindingClass::KernelNotEnding.code(),
            rank: None,
            peer: None,
            channel: None,
            text,
        };
        let roots = self.comm.vectors.iter().filter(|_| all_run).map(|v| v.process).collect();
        let unknown = "a kernel that did not start, or a transfer: the input tells neither";
        Cause {
            class: FindingClass::KernelNotEnding,
            confidence: if all_run { Confidence::Confirmed } else { Confidence::Suspect },
            roots,
            edge: None,
            evidence: vec![line],
            alternatives: if all_run { Vec::new() } else { vec![unknown.into()] },
        }
    }

    /// Others are through with the operation, and nothing but that tells why these are not.
    fn left_behind(&self, at: usize) -> Cause {
        let vector = self.vector(at);
        let through = self.through(vector.front());
        let text = format!(
            "{}: in operation {}{} ({}), which {through} of {} members finished",
            words::rank(self.job, vector.process),
            vector.front(),
            words::since(self.job, vector.age_ns),
            words::counts(vector),
            self.comm.vectors.len(),
        );
        self.cause(FindingClass::GpuDead, at, text)
    }
}
