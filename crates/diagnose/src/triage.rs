// SPDX-License-Identifier: Apache-2.0
/*!
Why an operation does not end that all its members are in: kernels, then network transfers.

A stalled proxy thread is asked for before, because without it no kernel and no transfer is seen to
move. Then come kernels that did not start. Then each rank's transfers say whom it waits for: a
receive for its sender, a send that finds no buffer for its receiver; and that is followed to a rank
whose transfers wait for nobody.
*/

use crate::job::{Communicator, Flight, Job, Link, ThreadState, Vector};
use crate::verdict::{Confidence, Evidence};
use crate::words;
use ncclscope_findings::FindingClass;
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

/// A proxy thread that has not looked at a transfer for so long is stalled, ns.
const STALLED_NS: u64 = 1_000_000_000;

/// What a rank's transfers say.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    /// Here it ends.
    Root(FindingClass, Link),
    /// It waits for these members, each with the transfer that says so.
    Go(Vec<(usize, Link)>),
    /// Nothing is in flight, or nothing is known.
    Nothing,
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
    for find in [Triage::not_started, Triage::partly_started] {
        let causes: Vec<Cause> = members.iter().filter_map(|&at| find(&triage, at)).collect();
        if !causes.is_empty() {
            return causes;
        }
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
    triage.partly_started(member).or_else(|| match triage.next(member) {
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
    awaited: &BTreeSet<u32>,
) -> Option<Cause> {
    Triage::new(job, comm).stalled(member, awaited)
}

/// The ranks with which others have transfers under way: so have they, even if their proxy threads
/// have not told of any, which tell of kernels too.
pub(crate) fn awaited(comm: &Communicator) -> BTreeSet<u32> {
    let links = comm.flights.values().flat_map(|flight| &flight.links);
    links.filter(|link| link.done < link.steps).map(|link| link.peer).collect()
}

impl<'a> Triage<'a> {
    fn new(job: &'a Job, comm: &'a Communicator) -> Triage<'a> {
        let (by_rank, running, done) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Triage { job, comm, by_rank, running, done }
    }

    /// The member that is this rank of the communicator.
    fn of_rank(&self, rank: u32) -> Option<usize> {
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

    fn flight(&self, at: usize) -> Option<&Flight> {
        self.comm.flights.get(&u32::try_from(at).ok()?)
    }

    fn links(&self, at: usize) -> &[Link] {
        self.flight(at).map_or(&[], |flight| &flight.links)
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

    fn stalled(&self, at: usize, awaited: &BTreeSet<u32>) -> Option<Cause> {
        let who = words::rank(self.job, self.vector(at).process);
        let waiting = self.links(at).iter().filter(|link| !link.in_progress);
        let oldest = waiting.map(|link| link.still_ns).max();
        let works = |thread: &ThreadState| thread.is_proxy && thread.cpu.is_some_and(|c| c > 0.01);
        let process = self.job.processes.get(self.vector(at).process as usize)?;
        let is_at_work = process.threads.iter().any(works);
        // A thread that works has others before this one on the same connection.
        if let Some(still) = oldest.filter(|&still| still >= STALLED_NS && !is_at_work) {
            let still = words::duration(still);
            let text = format!(
                "{who}: a transfer was given to the proxy thread {still} ago, which has not looked \
                 at it"
            );
            return Some(self.cause(FindingClass::ProxyStalled, at, text));
        }
        let moves = self.links(at).iter().any(|link| link.done < link.steps);
        if !moves && !awaited.contains(&self.vector(at).rank) {
            return None;
        }
        let thread = process.threads.iter().find(|thread| {
            // A proxy thread with transfers in flight polls: it must use its processor. One that
            // gets little of it is slow, and does not hang.
            let is_frozen = thread.cpu.is_some_and(|cpu| cpu < 0.001);
            thread.is_proxy && !thread.is_api && is_frozen
        })?;
        let place =
            thread.place.as_deref().map_or_else(String::new, |place| format!(" in {place}"));
        let cpu = thread.cpu.unwrap_or(0.0) * 100.0;
        let starved = thread.starved.unwrap_or(0.0) * 100.0;
        let text = format!(
            "{who}: proxy thread {} is in state {}{place}, used {cpu:.0} % of a processor and \
             waited {starved:.0} % of the time for one, with transfers in flight",
            thread.tid, thread.state
        );
        Some(self.cause(FindingClass::ProxyStalled, at, text))
    }

    fn not_started(&self, at: usize) -> Option<Cause> {
        let vector = self.vector(at);
        if vector.has_started() != Some(false) {
            return None;
        }
        let started = self.running();
        let text = format!(
            "{}: operation {} is enqueued and its kernel has not started on any channel{} ({}); \
             {started} of {} members run it",
            words::rank(self.job, vector.process),
            vector.front(),
            words::since(self.job, vector.age_ns),
            words::counts(vector),
            self.comm.vectors.len(),
        );
        let mut cause = self.cause(FindingClass::KernelNotStarted, at, text);
        cause.alternatives.push("an earlier kernel on the same stream that is not NCCL's".into());
        Some(cause)
    }

    fn partly_started(&self, at: usize) -> Option<Cause> {
        let (all, started, stopped) = self.flight(at)?.kernel?;
        if started == 0 || started >= all {
            return None;
        }
        let text = format!(
            "{}: the kernel of operation {} runs on {started} of {all} channels ({stopped} ended)",
            words::rank(self.job, self.vector(at).process),
            self.vector(at).front(),
        );
        Some(self.cause(FindingClass::KernelPartlyStarted, at, text))
    }

    /// The member's transfer that belongs to `link` of the member `from`.
    fn other_side(&self, at: usize, from: usize, link: &Link) -> Option<&Link> {
        let rank = self.vector(from).rank;
        self.links(at).iter().find(|other| {
            other.is_send != link.is_send && other.peer == rank && other.channel == link.channel
        })
    }

    fn next(&self, at: usize) -> Next {
        let links = self.links(at);
        let reached = |is_send: bool, state: u8| {
            links.iter().filter(move |l| l.is_send == is_send && l.reached == Some(state))
        };
        if let Some(link) = reached(false, 2).next() {
            return Next::Root(FindingClass::FlushStalled, *link);
        }
        // The step began, and the network has not taken the receive.
        if let Some(link) = reached(false, 0).next() {
            return Next::Root(FindingClass::ReceiverNotReady, *link);
        }
        let mut to = Vec::new();
        for link in reached(true, 3) {
            let Some(peer) = self.of_rank(link.peer) else {
                // Whether it arrived, only the other side could tell.
                if self.comm.silent.is_empty() {
                    return Next::Root(FindingClass::NetworkStalled, *link);
                }
                continue;
            };
            match self.other_side(peer, at, link) {
                // It arrived: the receiver is what the sender waits for.
                Some(other) if other.reached >= Some(2) => to.push((peer, *link)),
                _ => return Next::Root(FindingClass::NetworkStalled, *link),
            }
        }
        let mut waits_for_silent = false;
        for link in reached(true, 2).chain(reached(false, 1)) {
            match self.of_rank(link.peer) {
                Some(peer) => to.push((peer, *link)),
                None => waits_for_silent = !self.comm.silent.is_empty(),
            }
        }
        if !to.is_empty() || waits_for_silent {
            return Next::Go(to);
        }
        self.own_gpu(at)
    }

    /// The transfers wait for the rank's own GPU. Where it also sends, one that takes nothing has
    /// nothing to give either.
    fn own_gpu(&self, at: usize) -> Next {
        let links = self.links(at);
        let waits = |is_send, state| {
            links.iter().find(move |l| l.is_send == is_send && l.reached == Some(state))
        };
        let sends = links.iter().any(|link| link.is_send);
        match (waits(true, 1), waits(false, 3)) {
            (Some(link), _) => Next::Root(FindingClass::GpuNotProducing, *link),
            (None, Some(link)) if sends => Next::Root(FindingClass::GpuNotProducing, *link),
            (None, Some(link)) => Next::Root(FindingClass::GpuNotConsuming, *link),
            (None, None) => Next::Nothing,
        }
    }

    fn follow_links(&self, members: &[usize]) -> Vec<Cause> {
        let next: Vec<(usize, Next)> = members.iter().map(|&at| (at, self.next(at))).collect();
        // Of each member the first that waits for it.
        let mut waiters: BTreeMap<usize, (usize, Link)> = BTreeMap::new();
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

    fn root(&self, at: usize, class: FindingClass, link: &Link) -> Cause {
        let process = self.vector(at).process;
        let text = format!("{}: {}", words::rank(self.job, process), link_text(link));
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
    fn blank(&self, at: usize, &(from, link): &(usize, Link)) -> Cause {
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
            link_text(&link)
        );
        let mut cause = self.cause(class, at, text);
        if link.is_send {
            cause.edge = Some((self.vector(from).process, self.vector(at).process));
        }
        if self.flight(at).is_none_or(|flight| flight.links.is_empty()) {
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

/// `channel 0, send to rank 1: 3 of 8 steps done, the oldest in SendWait for 12 s`.
fn link_text(link: &Link) -> String {
    const SEND: [&str; 4] = ["its start", "SendGPUWait", "SendPeerWait", "SendWait"];
    const RECEIVE: [&str; 4] = ["its start", "RecvWait", "RecvFlushWait", "RecvGPUWait"];
    let way = if link.is_send { "send to" } else { "receive from" };
    let names = if link.is_send { SEND } else { RECEIVE };
    let state = link.reached.and_then(|reached| names.get(usize::from(reached)));
    let state =
        state.map_or_else(|| "none in flight".to_owned(), |state| format!("the oldest in {state}"));
    let pxn = if link.is_foreign { ", for another process (PXN)" } else { "" };
    format!(
        "channel {}, {way} rank {} of the communicator: {} of {} steps done, {state} for {}{pxn}",
        link.channel,
        link.peer,
        link.done,
        link.steps,
        words::duration(link.still_ns)
    )
}
