// SPDX-License-Identifier: Apache-2.0
/*!
Why an operation that all members are in does not end: by its kernels, then its network transfers.

The caller checks for a stalled proxy thread first, because without the proxy thread no kernel and
no transfer is seen to advance. Here, kernels that did not start come first. Then the transfers show
for which rank each rank waits: a receive waits for its sender, and a send without a free buffer
waits for its receiver. Following these waits leads to a rank whose transfers wait for no other
rank.
*/

use crate::edges::{Edge, Lost, Path};
use crate::job::{Communicator, InFlightOp, Job, Vector};
use crate::state;
use crate::words;
use ncclscope_findings::rank::{Pending, Transfer};
use ncclscope_findings::{
    Confidence, Doubt, Evidence, FindingClass, RankFinding, confidence, rules,
};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// The sending and the receiving process.
pub(crate) type Link = (u32, u32);

/// A cause inside an operation.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) class: FindingClass,
    /// Processes at fault.
    pub(crate) roots: BTreeSet<u32>,
    /// Set if the cause is a network path.
    pub(crate) edge: Option<Link>,
    /// The communicators that it holds up; the first one shows it.
    pub(crate) comms: Vec<u32>,
    /// See [`ncclscope_findings::Finding::detail`].
    pub(crate) detail: Option<String>,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) doubts: Vec<Doubt>,
}

impl Cause {
    fn new(class: FindingClass, roots: impl IntoIterator<Item = u32>, line: Evidence) -> Cause {
        Cause {
            class,
            roots: roots.into_iter().collect(),
            edge: None,
            comms: Vec::new(),
            detail: None,
            evidence: vec![line],
            doubts: Vec::new(),
        }
    }

    /// With this doubt, if there is one.
    fn but(mut self, doubt: Option<Doubt>) -> Cause {
        self.doubts.extend(doubt);
        self
    }

    /// It is seen in this communicator.
    pub(crate) fn seen_in(self, comm: u32) -> Cause {
        Cause { comms: vec![comm], ..self }
    }

    /// A doubt lowers it.
    pub(crate) fn is_suspect(&self) -> bool {
        confidence(&self.doubts) == Confidence::Suspect
    }
}

/// A job, and the age from which an operation in flight counts as a wait, ns.
pub(crate) type At<'a> = (&'a Job, u64);

/// How the search continues at a rank, according to its transfers.
#[derive(Clone, Debug, PartialEq)]
enum NextHop {
    /// The rank itself is the cause.
    Root(FindingClass, Transfer),
    /// It waits for these members, each with the transfer that shows it.
    WaitsFor(Vec<(usize, Transfer)>),
    /// No transfer of the rank is in flight, or none is recorded.
    Unknown,
}

impl NextHop {
    fn from_finding(found: RankFinding) -> Option<NextHop> {
        Some(NextHop::Root(found.class?, found.transfer?))
    }
}

/// The operation of one communicator, with lookups that are computed once because many members need
/// them.
struct StuckOperation<'a> {
    job: &'a Job,
    comm: &'a Communicator,
    /// The age from which an operation in flight counts as a wait, ns.
    hang_ns: u64,
    by_rank: OnceCell<BTreeMap<u32, usize>>,
    /// The members on each host.
    by_host: OnceCell<BTreeMap<&'a str, Vec<usize>>>,
    /// Number of members whose kernels are running.
    running_kernels: OnceCell<usize>,
    /// [`Communicator::unseen_calls`].
    unseen_calls: OnceCell<u64>,
    /// `done` of the members whose completions are recorded, ascending.
    done: OnceCell<Vec<u64>>,
}

/// The causes for which the operation that these members are in does not end.
pub(crate) fn causes_inside(job: At<'_>, comm: &Communicator, members: &[u32]) -> Vec<Cause> {
    let stuck = StuckOperation::new(job, comm);
    let members: Vec<usize> = members.iter().map(|&at| at as usize).collect();
    let causes = stuck.connecting(&members);
    if !causes.is_empty() {
        return causes;
    }
    let mut causes: Vec<Cause> = members.iter().filter_map(|&at| stuck.kernel_cause(at)).collect();
    // A kernel that has not started at all holds up those that have started only on some channels.
    let first = causes.iter().map(|cause| cause.class).min();
    causes.retain(|cause| Some(cause.class) == first);
    if !causes.is_empty() {
        return causes;
    }
    let causes = stuck.proven(&members, &BTreeSet::new());
    let has_lost = causes.iter().any(|cause| cause.class == FindingClass::NetworkStalled);
    if has_lost || !comm.silent.is_empty() {
        return causes;
    }
    let causes = stuck.follow_links(&members);
    if !causes.is_empty() {
        return causes;
    }
    let is_rest = |&&at: &&usize| stuck.finished(stuck.vector(at).front()) > 0;
    let left: Vec<Cause> =
        members.iter().filter(is_rest).map(|&at| stuck.left_behind(at)).collect();
    if left.is_empty() || stuck.are_too_many(&members, left.len()) {
        vec![stuck.unexplained(&members)]
    } else {
        left
    }
}

/// The causes in this operation, which these members are in, that processes with a stalled proxy
/// thread do not explain.
pub(crate) fn causes_beside(
    job: At<'_>,
    comm: &Communicator,
    members: &[u32],
    stalled: &BTreeSet<u32>,
) -> Vec<Cause> {
    let members: Vec<usize> = members.iter().map(|&at| at as usize).collect();
    StuckOperation::new(job, comm).proven(&members, stalled)
}

/// The cause that holds up a member whose peers have finished the operation, if its kernel or its
/// transfers show one other than a dead GPU; else `None`.
pub(crate) fn cause_at_one(job: At<'_>, comm: &Communicator, member: usize) -> Option<Cause> {
    let stuck = StuckOperation::new(job, comm);
    let kernel =
        stuck.kernel_cause(member).filter(|it| it.class == FindingClass::KernelPartlyStarted);
    let lost = || stuck.lost(&[member], &BTreeSet::new()).into_iter().next();
    kernel.or_else(lost).or_else(|| match stuck.next(member) {
        NextHop::Root(
            class @ (FindingClass::GpuNotProducing
            | FindingClass::ReceiverNotReady
            | FindingClass::NetworkStalled
            | FindingClass::FlushStalled
            | FindingClass::GpuNotConsuming),
            link,
        ) => Some(stuck.cause_by_transfer(member, class, &link)),
        NextHop::WaitsFor(to) => to.first().map(|(_, link)| stuck.cut_off(member, link)),
        _ => None,
    })
}

/// The paths on which everything has come that was given to the network: sending and receiving
/// process.
pub(crate) fn moved_links(job: At<'_>, comm: &Communicator) -> BTreeSet<(u32, u32)> {
    let stuck = StuckOperation::new(job, comm);
    let links = (0..comm.vectors.len()).flat_map(|at| stuck.links(at).collect::<Vec<_>>());
    links.filter(|(_, path, _)| *path == Path::Moved).map(|(link, ..)| link).collect()
}

/// H3a, if a member's kernel has stopped on all channels and a later one has not started.
pub(crate) fn next_not_started(job: At<'_>, comm: &Communicator, member: usize) -> Option<Cause> {
    StuckOperation::new(job, comm).next_not_started(member)
}

/// The cause if the process's proxy thread makes no progress, according to its state in one
/// communicator, which has these [`awaited_ranks`].
pub(crate) fn proxy_stalled(
    job: At<'_>,
    comm: &Communicator,
    member: usize,
    awaited_ranks: &BTreeSet<i32>,
) -> Option<Cause> {
    StuckOperation::new(job, comm).proxy_stalled(member, awaited_ranks)
}

/// H1d, if the member's call has not given the operation to the proxy thread, which then has no
/// work.
pub(crate) fn not_given(job: At<'_>, comm: &Communicator, member: usize) -> Option<Cause> {
    let flight = comm.flights.get(&u32::try_from(member).ok()?)?;
    flight.is_not_given().then(|| StuckOperation::new(job, comm).not_given(member))
}

/// The ranks with which other ranks have open transfers. They have work too, even if their own
/// proxy threads, through which NCCL reports transfers and kernels, have reported none.
pub(crate) fn awaited_ranks(comm: &Communicator) -> BTreeSet<i32> {
    let transfers = comm.flights.values().flat_map(|flight| &flight.transfers);
    transfers.filter(|transfer| transfer.is_open()).map(|transfer| transfer.peer).collect()
}

impl<'a> StuckOperation<'a> {
    fn new((job, hang_ns): At<'a>, comm: &'a Communicator) -> StuckOperation<'a> {
        StuckOperation {
            job,
            comm,
            hang_ns,
            by_rank: OnceCell::new(),
            by_host: OnceCell::new(),
            running_kernels: OnceCell::new(),
            unseen_calls: OnceCell::new(),
            done: OnceCell::new(),
        }
    }

    /// Position of the member with this rank in the communicator.
    fn member_of_rank(&self, rank: i32) -> Option<usize> {
        let rank = u32::try_from(rank).ok()?;
        let all = || self.comm.vectors.iter().enumerate().map(|(at, v)| (v.rank, at)).collect();
        self.by_rank.get_or_init(all).get(&rank).copied()
    }

    fn running_kernels(&self) -> usize {
        let runs = |v: &&Vector| v.has_started() == Some(true);
        *self.running_kernels.get_or_init(|| self.comm.vectors.iter().filter(runs).count())
    }

    fn unseen_calls(&self) -> u64 {
        *self.unseen_calls.get_or_init(|| self.comm.unseen_calls())
    }

    /// Number of members that have finished an operation.
    fn finished(&self, operation: u64) -> usize {
        let done = self.done.get_or_init(|| {
            let mut done: Vec<u64> = self.comm.finished().collect();
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
        let line = Evidence::of(class, self.rank(at), text);
        Cause::new(class, [self.vector(at).process], line)
    }

    fn proxy_stalled(&self, at: usize, awaited_ranks: &BTreeSet<i32>) -> Option<Cause> {
        let is_awaited =
            i32::try_from(self.vector(at).rank).is_ok_and(|it| awaited_ranks.contains(&it));
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

    fn not_given(&self, at: usize) -> Cause {
        let process = &self.job.processes[self.vector(at).process as usize];
        let proxy = process.threads.iter().find(|it| it.role.is_proxy() && !it.thread.is_gone());
        let thread = proxy.map(|it| format!("; its proxy thread: {}", words::usage(&it.thread)));
        let text = self.in_call(at, Pending::Enqueuing) + &thread.unwrap_or_default();
        self.cause(FindingClass::CallNotEnqueued, at, text)
    }

    /// Text such as `rank 1 (a, pid 7): in operation 5 for 60.0 s, … (5 called, 4 enqueued)`.
    fn in_call(&self, at: usize, pending: Pending) -> String {
        let vector = self.vector(at);
        format!(
            "{}: in {}{}, {} ({})",
            words::rank(self.job, vector.process),
            words::number(self.comm.number(vector)),
            words::since(self.job, vector.age_ns),
            pending.text(),
            words::counts_of(self.comm, self.unseen_calls(), vector),
        )
    }

    /// The causes at members for which NCCL still connects although all have called the operation.
    fn connecting(&self, members: &[usize]) -> Vec<Cause> {
        let connect = || members.iter().filter(|&&at| self.vector(at).is_connecting());
        let is_alone = connect().count() < self.comm.vectors.len();
        let cause = |&at: &usize| {
            let text = self.in_call(at, Pending::Inside);
            let cause = self.cause(FindingClass::CallNotEnqueued, at, text);
            cause.but((!is_alone).then_some(Doubt::CannotConnect))
        };
        // They may be connecting to a member without input.
        connect().filter(|_| self.comm.silent.is_empty()).map(cause).collect()
    }

    fn kernel_cause(&self, at: usize) -> Option<Cause> {
        let found = rules::kernel(&state::inside(self.comm, at))?;
        let (vector, running_kernels) = (self.vector(at), self.running_kernels());
        let text = format!(
            "{}: in {}{}, {} ({}; {running_kernels} of {} {} it)",
            words::rank(self.job, vector.process),
            words::number(self.comm.number(vector)),
            words::since(self.job, vector.age_ns),
            found.why,
            words::counts_of(self.comm, self.unseen_calls(), vector),
            human::count(self.comm.vectors.len(), "member"),
            human::if_one(running_kernels, "runs", "run"),
        );
        let cause = self.cause(found.class?, at, text);
        // A GPU counts as the cause only if it differs from the others.
        let is_alike = cause.class == FindingClass::KernelNotStarted && running_kernels == 0;
        Some(cause.but(is_alike.then_some(Doubt::NoneStarted)))
    }

    /// The paths of a member's transfers: sending and receiving process, what the counts of both
    /// ends show, and the transfer.
    fn links(&self, at: usize) -> impl Iterator<Item = ((u32, u32), Path, &Transfer)> {
        self.transfers(at).iter().filter_map(move |one| {
            let peer = self.member_of_rank(one.peer)?;
            let path = self.edge(at, one)?.path(self.hang_ns);
            let [own, other] = [at, peer].map(|at| self.vector(at).process);
            Some((if one.is_send { (own, other) } else { (other, own) }, path, one))
        })
    }

    /// Both ends of a transfer; `None` if its other side has no input.
    fn edge(&self, at: usize, one: &Transfer) -> Option<Edge> {
        Some(Edge::new(self.job, self.comm, (at, one), self.member_of_rank(one.peer)?))
    }

    /// The paths of these members on which data was lost. Processes in `but` prove nothing.
    fn lost(&self, members: &[usize], but: &BTreeSet<u32>) -> Vec<Cause> {
        let mut lost: BTreeMap<(u32, u32, u8), Cause> = BTreeMap::new();
        for &at in members {
            for ((from, to), path, link) in self.links(at) {
                let Path::Stalled(steps) = path else { continue };
                if [from, to].iter().all(|end| !but.contains(end)) {
                    let cause = || self.cause_by_counts((from, to), link.channel, &steps);
                    lost.entry((from, to, link.channel)).or_insert_with(cause);
                }
            }
        }
        lost.into_values().collect()
    }

    fn cause_by_counts(&self, (from, to): (u32, u32), channel: u8, steps: &Lost) -> Cause {
        let class = FindingClass::NetworkStalled;
        let Lost { given, come, posted, still_ns } = *steps;
        let text = format!(
            "channel {channel}, {} to {}: {} given to the network, {come} came, receives posted \
             for {posted}; both ends stand still for {}",
            words::rank(self.job, from),
            words::rank(self.job, to),
            human::count(given, "step"),
            words::duration(still_ns),
        );
        let mut line = Evidence::of(class, self.job.rank(to), text);
        line.channel = Some(channel);
        line.peer = Some(self.job.rank(from));
        let counts = [("steps_given", given), ("steps_come", come), ("steps_posted", posted)];
        line.figures = counts.map(|(name, steps)| (name, f64::from(steps))).to_vec();
        line.figures.push(("still_ns", to_f64(still_ns)));
        let threads = &self.job.processes[to as usize].threads;
        let takes = threads.iter().any(|it| it.role.is_proxy() && it.thread.is_at_work());
        let cause = Cause { edge: Some((from, to)), ..Cause::new(class, [from, to], line) };
        cause.but((!takes).then(|| Doubt::ProxyNotSeen(self.job.rank(to))))
    }

    fn next(&self, at: usize) -> NextHop {
        let mut state = state::inside(self.comm, at);
        for transfer in state.transfers.iter_mut().filter(|it| it.is_only_told()) {
            let is_delivered = self.edge(at, transfer).is_some_and(|edge| edge.is_delivered());
            transfer.may_be_early = !is_delivered;
        }
        let own = rules::flush_stalled(&state).or_else(|| rules::receive_not_taken(&state));
        if let Some(root) = own.and_then(NextHop::from_finding) {
            return root;
        }
        let mut to = Vec::new();
        let sent = |it: &&Transfer| it.is_send && it.reached == Some(3);
        for transfer in state.transfers.iter().filter(sent) {
            let Some(peer) = self.member_of_rank(transfer.peer) else {
                // Only the other side knows whether the data has arrived.
                if self.comm.silent.is_empty() {
                    return NextHop::Root(FindingClass::NetworkStalled, *transfer);
                }
                continue;
            };
            // If the data arrived, the sender waits for the receiver.
            match self.edge(at, transfer).is_some_and(|edge| edge.has_come()) {
                true => to.push((peer, *transfer)),
                false => return NextHop::Root(FindingClass::NetworkStalled, *transfer),
            }
        }
        if let Some(root) = rules::gpu_stands_still(&state).and_then(NextHop::from_finding) {
            let NextHop::Root(_, link) = root else { return root };
            let other =
                if link.is_send { self.upstream(at, &link) } else { self.downstream(at, &link) };
            return other.map_or(root, |other| NextHop::WaitsFor(vec![(other, link)]));
        }
        let mut waits_for_silent = false;
        for transfer in state.transfers.iter().filter(|it| it.waits_for_peer()) {
            match self.member_of_rank(transfer.peer) {
                Some(peer) => to.push((peer, *transfer)),
                None => waits_for_silent = !self.comm.silent.is_empty(),
            }
        }
        if to.is_empty() && !waits_for_silent { NextHop::Unknown } else { NextHop::WaitsFor(to) }
    }

    /// The member of the same host that waits for the data of a send which its GPU does not give.
    /// In a ring of several GPUs in each host, one GPU receives from the network, and another one,
    /// which gets the data over NVLink or shared memory, sends.
    fn upstream(&self, at: usize, send: &Transfer) -> Option<usize> {
        // If the GPU that receives got more than was sent, the data is on the GPUs of the host.
        let waits = |it: &Transfer| matches!(it.reached, Some(0..=2)) || it.is_only_told();
        self.on_the_ring(at, send, |it| waits(it) && it.transmitted <= send.ready)
    }

    /// The member of the same host whose send waits, so that it takes nothing of what this GPU
    /// receives and passes on to it.
    fn downstream(&self, at: usize, receive: &Transfer) -> Option<usize> {
        self.on_the_ring(at, receive, |it| {
            matches!(it.reached, Some(2 | 3)) && it.done <= receive.done
        })
    }

    /// The member of the same host with the other side's transfer of a channel, if it is like that
    /// and this member has none.
    fn on_the_ring(
        &self,
        at: usize,
        own: &Transfer,
        is_it: impl Fn(&Transfer) -> bool,
    ) -> Option<usize> {
        let of_channel = |it: &&Transfer| it.channel == own.channel && it.is_send != own.is_send;
        if self.transfers(at).iter().any(|it| of_channel(&it)) {
            return None;
        }
        let others = self.on_host(self.host(at)?).iter().copied();
        others.filter(|&other| other != at).find(|&other| {
            let mut transfers = self.transfers(other).iter().filter(of_channel);
            transfers.any(&is_it)
        })
    }

    fn host(&self, at: usize) -> Option<&'a str> {
        self.job.processes[self.vector(at).process as usize].host.as_deref()
    }

    fn on_host(&self, host: &str) -> &[usize] {
        let by_host = self.by_host.get_or_init(|| {
            let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for at in 0..self.comm.vectors.len() {
                self.host(at)
                    .into_iter()
                    .for_each(|host| by_host.entry(host).or_default().push(at));
            }
            by_host
        });
        by_host.get(host).map_or(&[], Vec::as_slice)
    }

    /// The causes that the counts of both ends of a path, or a member's own transfers, prove,
    /// whatever holds up the other members. Those of the processes in `but`, and those with them,
    /// prove nothing.
    fn proven(&self, members: &[usize], but: &BTreeSet<u32>) -> Vec<Cause> {
        let counts = |at: usize| !but.contains(&self.vector(at).process);
        let root = |&at: &usize| match self.next(at) {
            NextHop::Root(
                class @ (FindingClass::ReceiverNotReady
                | FindingClass::NetworkStalled
                | FindingClass::FlushStalled),
                link,
            ) if self.member_of_rank(link.peer).is_none_or(counts) => {
                Some(self.cause_by_transfer(at, class, &link))
            }
            _ => None,
        };
        let own = members.iter().filter(|&&at| counts(at)).filter_map(root);
        self.lost(members, but).into_iter().chain(own).collect()
    }

    fn follow_links(&self, members: &[usize]) -> Vec<Cause> {
        let next: Vec<(usize, NextHop)> = members.iter().map(|&at| (at, self.next(at))).collect();
        // For each awaited member, the first member that waits for it.
        let mut waiters: BTreeMap<usize, (usize, Transfer)> = BTreeMap::new();
        for &(from, ref one) in &next {
            let NextHop::WaitsFor(to) = one else { continue };
            for &(at, link) in to {
                let first = waiters.entry(at).or_insert((from, link));
                if from < first.0 {
                    *first = (from, link);
                }
            }
        }
        // For members that are not known to be in the operation, only a transfer of another member
        // shows it.
        let unseen = waiters.iter().filter(|&(&at, _)| self.job.shows_no_part(self.vector(at)));
        let mut causes: Vec<Cause> =
            unseen.map(|(&at, waiter)| self.cause_without_transfers(at, waiter)).collect();
        for &(at, ref one) in &next {
            match one {
                NextHop::Root(class, link) => causes.push(self.cause_by_transfer(at, *class, link)),
                // Other members wait for it, and its own transfers show nothing.
                NextHop::Unknown => {
                    causes.extend(
                        waiters.get(&at).map(|waiter| self.cause_without_transfers(at, waiter)),
                    );
                }
                NextHop::WaitsFor(_) => {}
            }
        }
        causes
    }

    fn cause_by_transfer(&self, at: usize, class: FindingClass, link: &Transfer) -> Cause {
        let process = self.vector(at).process;
        let text = format!("{}: {}", words::rank(self.job, process), words::transfer(link));
        let mut cause = self.cause(class, at, text);
        let other = self.member_of_rank(link.peer).map(|at| self.vector(at).process);
        if let Some(line) = cause.evidence.first_mut() {
            line.channel = Some(link.channel);
            line.figures = vec![
                ("steps", f64::from(link.steps)),
                ("steps_done", f64::from(link.done)),
                ("still_ns", to_f64(link.still_ns)),
            ];
            line.peer = other.map(|other| self.job.rank(other));
        }
        if let Some(other) = other.filter(|_| class != FindingClass::GpuNotProducing) {
            cause.edge = Some(if link.is_send { (process, other) } else { (other, process) });
        }
        cause.roots.extend(other.filter(|_| class == FindingClass::NetworkStalled));
        let is_gpu = matches!(class, FindingClass::GpuNotProducing | FindingClass::GpuNotConsuming);
        let flight = u32::try_from(at).ok().and_then(|at| self.comm.flights.get(&at));
        let hides_call = is_gpu && flight.is_some_and(InFlightOp::hides_call);
        cause.but(hides_call.then_some(Doubt::CallNotShown))
    }

    /// The cause at a member that another one waits for and whose own transfers show nothing.
    fn cause_without_transfers(&self, at: usize, &(from, link): &(usize, Transfer)) -> Cause {
        // A send without a buffer at the other side is unambiguous, but a receive may wait for
        // anything.
        let class = if self.job.shows_no_part(self.vector(at)) {
            FindingClass::ProxyStalled
        } else if link.is_send {
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
        let has_none = self.transfers(at).is_empty();
        cause
            .but(link.is_only_told().then_some(Doubt::ReportedEarly))
            .but(has_none.then_some(Doubt::TransfersNotShown))
    }

    /// True if the input would show these members' network transfers. Dumps have none. Members on
    /// different hosts use a network, unless NVLink connects the hosts: if none has a transfer,
    /// transfers may not be recorded.
    fn would_show_transfers(&self, members: &[usize]) -> bool {
        let hosts: BTreeSet<&str> = members.iter().filter_map(|&at| self.host(at)).collect();
        let has_some = members.iter().any(|&at| !self.transfers(at).is_empty());
        has_some || !self.job.is_dump && hosts.len() < 2
    }

    /// The cause if the only rank of a communicator does not finish an operation: it waits for no
    /// other rank and has no link.
    fn alone(&self, at: usize) -> Cause {
        let vector = self.vector(at);
        let text = format!(
            "{}: in {}{} of a communicator that has no other rank",
            words::rank(self.job, vector.process),
            words::number(self.comm.number(vector)),
            words::since(self.job, vector.age_ns),
        );
        self.cause(FindingClass::GpuDead, at, text)
    }

    fn is_most(&self, members: usize) -> bool {
        2 * members > self.comm.vectors.len()
    }

    /// True if more of these members have not finished what others have than GPUs fail at the same
    /// time: more than half, or several of one host, which pass on their data.
    fn are_too_many(&self, members: &[usize], left: usize) -> bool {
        let is_in_host = || self.job.is_within_a_host(self.comm);
        let is_between = || is_in_host() && !members.iter().any(|&at| self.may_be_over(at));
        left > 1 && (self.is_most(left) || is_between())
    }

    /// The cause at a member that waits for a transfer with a peer that has finished the operation,
    /// if the counts do not prove it.
    fn cut_off(&self, at: usize, link: &Transfer) -> Cause {
        let cause = self.cause_by_transfer(at, FindingClass::NetworkStalled, link);
        cause.but(Some(Doubt::GpuMayBeDead))
    }

    /// The cause if all members are in the operation and nothing more is known.
    fn unexplained(&self, members: &[usize]) -> Cause {
        if let [at] = *members
            && self.comm.nranks == 1
            && self.vector(at).has_started() == Some(true)
        {
            return self.alone(at);
        }
        let vectors = || members.iter().map(|&at| self.vector(at));
        let run = vectors().filter(|v| v.has_started() == Some(true)).count();
        let all_run = run == members.len();
        let may_be_over = members.iter().any(|&at| self.may_be_over(at));
        let hides_transfers = !self.would_show_transfers(members);
        let has =
            |is: fn(&Transfer) -> bool| members.iter().any(|&at| self.transfers(at).iter().any(is));
        let is_told = has(Transfer::is_only_told);
        let place = match vectors().map(Vector::front).min() {
            Some(front) if !self.comm.is_pair() => format!("operation {front}"),
            _ => "a send and its receive".to_owned(),
        };
        let text = format!(
            "{} of {} {} in {place}, {}",
            members.len(),
            human::count(self.comm.vectors.len(), "member"),
            human::if_one(members.len(), "is", "are"),
            if may_be_over {
                "its kernel has stopped, which need not be its end, and no later one has started"
            } else if is_told {
                "and the data that they wait for is reported as arrived, which with LL and LL128 a \
                 network plugin may do before it came"
            } else if all_run && hides_transfers {
                "its kernel runs on each, and the input shows no network transfers: the network, \
                 NVLink or a device"
            } else if all_run && has(Transfer::is_open) {
                "its kernel runs on each, and their network transfers wait for one another"
            } else if all_run {
                "its kernel runs on each, and no network transfer is in flight"
            } else {
                "and the input shows no more"
            }
        );
        let line = Evidence::about(FindingClass::KernelNotEnding, text);
        // A member of which the input shows no part may not have started.
        let is_hidden = self.comm.vectors.iter().any(|vector| self.job.shows_no_part(vector));
        let is_known = all_run && !is_told && !is_hidden;
        // A member that has finished may be one end of the path at fault.
        let roots = self.comm.vectors.iter().filter(|_| is_known).map(|v| v.process);
        let device = Doubt::OneDevice;
        let unknown = if may_be_over {
            Doubt::MayBeOver
        } else if !is_known {
            Doubt::KernelOrTransfer
        } else if hides_transfers {
            Doubt::UnseenNetwork
        } else if has(Transfer::is_open) {
            Doubt::UnprovenNetwork
        } else {
            device.clone()
        };
        // That nothing else is seen to explain it proves nothing.
        let device = Some(device).filter(|device| is_known && unknown != *device);
        Cause::new(FindingClass::KernelNotEnding, roots, line).but(Some(unknown)).but(device)
    }

    /// The cause if other members have finished the operation and nothing shows why this member has
    /// not.
    fn left_behind(&self, at: usize) -> Cause {
        if let Some(blocked) = self.next_not_started(at) {
            return blocked;
        }
        if let NextHop::WaitsFor(to) = self.next(at)
            && let Some((_, link)) = to.first()
        {
            return self.cut_off(at, link);
        }
        let vector = self.vector(at);
        let finished = self.finished(vector.front());
        let text = format!(
            "{}: in {}{} ({}), which {finished} of {} members finished",
            words::rank(self.job, vector.process),
            words::number(self.comm.number(vector)),
            words::since(self.job, vector.age_ns),
            words::counts_of(self.comm, self.unseen_calls(), vector),
            self.comm.vectors.len(),
        );
        let may_be_over = self.may_be_over(at).then_some(Doubt::MayBeOver);
        self.cause(FindingClass::GpuDead, at, text).but(may_be_over)
    }

    /// H3a, if the member's kernel has stopped on all channels and a later one has not started: the
    /// GPU ran this one, so that it is likelier that the operation is over than that the GPU is
    /// dead.
    fn next_not_started(&self, at: usize) -> Option<Cause> {
        let vector = self.vector(at);
        let later = vector.enqueued.saturating_sub(vector.started?);
        if !self.may_be_over(at) || later == 0 {
            return None;
        }
        let text = format!(
            "{}: the kernel of {} has stopped on all channels, and {} of this communicator {} not \
             started ({})",
            words::rank(self.job, vector.process),
            words::number(self.comm.number(vector)),
            human::count(later, "later one"),
            human::if_one(later, "has", "have"),
            words::counts_of(self.comm, self.unseen_calls(), vector),
        );
        let cause = self.cause(FindingClass::KernelNotStarted, at, text);
        Some(cause.but(Some(Doubt::StoppedButDead)))
    }

    fn may_be_over(&self, at: usize) -> bool {
        let flight = u32::try_from(at).ok().and_then(|at| self.comm.flights.get(&at));
        flight.is_some_and(InFlightOp::may_be_over)
    }
}
