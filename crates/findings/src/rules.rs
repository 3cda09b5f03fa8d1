// SPDX-License-Identifier: Apache-2.0
/*!
The rules for one rank: why its operation does not end, judged from the rank's own state alone.

Each rule is a function of a [`RankState`]. [`apply_rules`] applies them in the order of `RULES`,
and the first match counts, because an earlier cause explains the later ones: without a proxy thread
no kernel and no transfer is seen to advance, and a kernel that did not start produces no data. The
watchdog applies all rules to the operations in flight in its process. `diagnose` compares the
ranks, so it applies single rules to the ranks that its wait graph leads to.

A finding with a class names the cause. One without a class names what the rank waits for: the cause
is not visible from one rank.

What the state of the oldest step of a transfer means, with the class if this rank is the cause:

| | the step is posted | 1 | 2 | 3 |
| --- | --- | --- | --- | --- |
| send | N1 | N1: the GPU produces nothing | waits for the receiver's buffer | N3: in transit |
| receive | N2: the network takes no receive | waits for the sender | N4: not flushed | N1, N5 |

A GPU's kernel treats channels independently of each other, but the transfers of one channel in
order: it takes no data while it waits for other data of that channel, or cannot pass on what it
has. So N1 and N5 hold only if no transfer of the same channel waits for another rank. Data that
arrived and is not taken is N1 if the GPU also has data to pass on (a send of that channel has steps
left), because the other ranks miss that data; if it only receives, it is N5.

A receive of LL or LL128 over a network plugin may be reported as arrived before its data came
([`Transfer::may_be_early`]): the kernel then polls for the data itself. Such a receive shows
neither N1, N4 nor N5; it may still wait for its sender.
*/

use crate::class::FindingClass;
use crate::rank::{Ahead, Launch, Pending, RankState, Thread, Transfer};
use ncclscope_limits::hangs;

/// The finding of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFinding {
    /// The class; `None` if the cause is not visible from one rank.
    pub class: Option<FindingClass>,
    /// The observation, in one sentence.
    pub why: String,
    /// The rank that it waits for, or the other end of the link.
    pub peer: Option<i32>,
    /// The transfer that shows it.
    pub transfer: Option<Transfer>,
    /// The thread that shows it.
    pub thread: Option<Thread>,
}

impl RankFinding {
    fn of(class: FindingClass, why: impl Into<String>) -> RankFinding {
        RankFinding { class: Some(class), ..RankFinding::open(None, why) }
    }

    fn open(peer: Option<i32>, why: impl Into<String>) -> RankFinding {
        RankFinding { class: None, why: why.into(), peer, transfer: None, thread: None }
    }

    fn by(self, transfer: &Transfer) -> RankFinding {
        RankFinding { peer: Some(transfer.peer), transfer: Some(*transfer), ..self }
    }
}

/// A rule: the finding in a state, if the rule matches.
type Rule = fn(&RankState) -> Option<RankFinding>;

/// All rules, in order of precedence.
const RULES: &[Rule] = &[
    call_not_enqueued,
    proxy_stalled,
    proxy_gone,
    gpu_lost,
    end_not_reported,
    behind_another,
    kernel,
    network,
];

/// The rules over the kernel.
const KERNEL: &[Rule] = &[kernel_not_started, kernel_partly_started];

/// The rules over the transfers.
const NETWORK: &[Rule] = &[
    flush_stalled,
    receive_not_taken,
    nothing_came,
    network_stalled,
    peer_takes_nothing,
    gpu_stands_still,
];

/// Applies all rules to the state of one rank.
#[must_use]
pub fn apply_rules(state: &RankState) -> RankFinding {
    let found = RULES.iter().find_map(|rule| rule(state));
    found.or_else(|| waits_on_network(state)).unwrap_or_else(|| kernel_alone(state))
}

/// The rules over transfers that a proxy thread does for another process (PXN): its kernel and its
/// call are not known there.
const FOREIGN: &[Rule] = &[proxy_stalled, network_stalled, peer_takes_nothing];

/// Applies the rules to transfers for another process (PXN).
#[must_use]
pub fn apply_foreign_rules(state: &RankState) -> RankFinding {
    FOREIGN.iter().find_map(|rule| rule(state)).unwrap_or_else(|| not_given(state))
}

/// No rule matches: the other process has given nothing to send.
fn not_given(state: &RankState) -> RankFinding {
    let why = "the GPU of the process that it belongs to has given no data for it; look there";
    let found = RankFinding::open(None, why);
    match state.transfers.first() {
        Some(transfer) => found.by(transfer),
        None => found,
    }
}

/// H1d: a call does not return, and no operation in flight holds it up.
fn call_not_enqueued(state: &RankState) -> Option<RankFinding> {
    Some(RankFinding::of(FindingClass::CallNotEnqueued, state.pending?.text()))
}

impl Pending {
    /// The stage of the call, in a sentence.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Pending::OpenGroup => {
                "the application has begun a group of calls, and has not called ncclGroupEnd"
            }
            Pending::Inside => {
                "NCCL prepares it, or connects to other ranks, and has launched nothing yet"
            }
            Pending::Launch => "the CUDA launch of its kernel does not return",
            Pending::Launched => "its kernel is launched, and NCCL does not return from the call",
            Pending::Enqueuing => "NCCL took it, and has not finished enqueuing it",
        }
    }
}

/// P1: the thread that moves network data does not progress.
#[must_use]
pub fn proxy_stalled(state: &RankState) -> Option<RankFinding> {
    let unseen = state.transfers.iter().filter(|transfer| !transfer.in_progress);
    let unseen = unseen.max_by_key(|transfer| transfer.still_ns);
    // A running thread may have other transfers before this one on the same connection.
    let is_at_work = state.proxy_threads.iter().any(Thread::is_at_work);
    if let Some(transfer) = unseen.filter(|it| it.still_ns >= hangs::UNSEEN_NS && !is_at_work) {
        let why = "a transfer was given to the proxy thread, which has not looked at it";
        return Some(RankFinding::of(FindingClass::ProxyStalled, why).by(transfer));
    }
    if !state.awaits_proxy {
        return None;
    }
    // Without work the thread sleeps, which is normal.
    let (thread, why) = state.proxy_threads.iter().find_map(|thread| {
        let tid = thread.tid;
        let why = if thread.is_gone() {
            return None;
        } else if thread.is_stopped() {
            format!("NCCL's proxy thread {tid} is stopped, by a debugger or a signal")
        } else if thread.is_starved() {
            format!("NCCL's proxy thread {tid} gets no CPU time")
        } else if thread.is_still() {
            let place = if thread.place.is_empty() { "the kernel" } else { &thread.place };
            let state = char::from(thread.state);
            format!("NCCL's proxy thread {tid} has work and does not run: {state}, in {place}")
        } else {
            return None;
        };
        Some((thread, why))
    })?;
    let is_begun = !state.transfers.is_empty();
    let begun = if is_begun { "" } else { "; it has not begun this operation" };
    let found = RankFinding::of(FindingClass::ProxyStalled, format!("{why}{begun}"));
    Some(RankFinding { thread: Some(thread.clone()), ..found })
}

/// The proxy thread exits after an error: something else went wrong first.
fn proxy_gone(state: &RankState) -> Option<RankFinding> {
    let first = state.proxy_threads.first().filter(|_| state.awaits_proxy)?;
    if !state.proxy_threads.iter().all(Thread::is_gone) {
        return None;
    }
    let why = format!(
        "NCCL's proxy thread {} has ended, as it does after an error such as a peer that exited",
        first.tid
    );
    Some(match network(state) {
        Some(found) => RankFinding { why: format!("{}; {why}", found.why), ..found },
        None => RankFinding::open(None, why),
    })
}

/// H3c: the CUDA driver reports an error.
fn gpu_lost(state: &RankState) -> Option<RankFinding> {
    let Launch::Failed { status } = state.launch else { return None };
    let why = format!("the CUDA driver reports error {status}: the context is lost");
    Some(RankFinding::of(FindingClass::GpuDead, why))
}

/// P1: the kernel has ended, and the proxy thread does not report it.
fn end_not_reported(state: &RankState) -> Option<RankFinding> {
    let kernel = &state.kernel;
    let is_untold = kernel.stopped != kernel.started || kernel.has_started == Some(false);
    let why = "its kernel has ended, by its CUDA event, and NCCL has not reported that: its proxy \
               thread, which polls for it, does not, or NCCL's counters disagree";
    (state.launch == Launch::Done && is_untold)
        .then(|| RankFinding::of(FindingClass::ProxyStalled, why))
}

/// The kernel did not start because an operation of another communicator is ahead of it.
fn behind_another(state: &RankState) -> Option<RankFinding> {
    let before = state.behind.filter(|_| has_not_started(state))?;
    let Ahead { number, is_same_stream } = before;
    let place = if is_same_stream { "on the same stream" } else { "in its graph or stream" };
    let is = if is_same_stream { "is" } else { "may be" };
    let why = format!(
        "its kernel has not started: it {is} behind operation {number} of another communicator \
         {place}"
    );
    Some(RankFinding::open(None, why))
}

/// H3a: other work, not NCCL's, is before the kernel on its stream.
fn kernel_not_started(state: &RankState) -> Option<RankFinding> {
    if !has_not_started(state) {
        return None;
    }
    let by = if state.launch == Launch::NotStarted { ", by its CUDA event too" } else { "" };
    let why = format!(
        "its kernel has not started{by}: other work is before it on its stream, or it waits for an \
         event there"
    );
    Some(RankFinding::of(FindingClass::KernelNotStarted, why))
}

/// A kernel that the stream has reached may still wait for free SMs: that does not count.
fn has_not_started(state: &RankState) -> bool {
    let is_told = state.kernel.has_started == Some(false) || state.launch == Launch::NotStarted;
    state.kernel.started == 0 && is_told && state.launch != Launch::Running
}

/// H3b: some blocks find no free SM.
fn kernel_partly_started(state: &RankState) -> Option<RankFinding> {
    let kernel = &state.kernel;
    let (started, channels) = (kernel.started, kernel.channels);
    if !kernel.needs_all || started == 0 || started >= channels {
        return None;
    }
    let why = format!(
        "its kernel has started on {started} of {channels} channels: the other ones find no free \
         SM, which other work may occupy"
    );
    Some(RankFinding::of(FindingClass::KernelPartlyStarted, why))
}

/// H3a and H3b, by the number of channels on which the kernel started.
#[must_use]
pub fn kernel(state: &RankState) -> Option<RankFinding> {
    KERNEL.iter().find_map(|rule| rule(state))
}

/// N1 to N5, by the oldest steps in flight.
fn network(state: &RankState) -> Option<RankFinding> {
    NETWORK.iter().find_map(|rule| rule(state))
}

/// The other rank as text; a rule knows communicator ranks only.
fn peer(it: &Transfer) -> String {
    format!("rank {} of the communicator", it.peer)
}

/// The sends or receives whose oldest step in flight is in state `reached`.
fn at(state: &RankState, is_send: bool, reached: u8) -> impl Iterator<Item = &Transfer> {
    let is_it = move |it: &&Transfer| it.is_send == is_send && it.reached == Some(reached);
    state.transfers.iter().filter(is_it)
}

/// N4: received data is not flushed to the GPU, which goes over PCIe.
#[must_use]
pub fn flush_stalled(state: &RankState) -> Option<RankFinding> {
    let it = at(state, false, 2).find(|it| !it.is_only_told())?;
    let why = format!(
        "data from {} arrived on channel {} and is not flushed to the GPU (PCIe)",
        peer(it),
        it.channel
    );
    Some(RankFinding::of(FindingClass::FlushStalled, why).by(it))
}

/// N2: the step began, and the rank's own network has not taken the receive. With registered user
/// buffers NCCL begins the step before the kernel runs, so this counts only if the GPU is known to
/// work on the operation.
#[must_use]
pub fn receive_not_taken(state: &RankState) -> Option<RankFinding> {
    let has_moved = |it: &Transfer| it.done > 0 || it.is_send && it.ready > 0;
    let runs = state.kernel.has_started.unwrap_or_else(|| state.transfers.iter().any(has_moved));
    let it = at(state, false, 0).next().filter(|_| runs)?;
    let why = format!(
        "the network of this rank does not take the receive from {} on channel {}",
        peer(it),
        it.channel
    );
    Some(RankFinding::of(FindingClass::ReceiverNotReady, why).by(it))
}

/// No data has come from a rank. It may not have entered the operation; it then takes no data
/// either, which is not a fault of the path to it.
fn nothing_came(state: &RankState) -> Option<RankFinding> {
    if state.have_peers_entered {
        return None;
    }
    let is_silent = |it: &&Transfer| !it.is_send && matches!(it.reached, Some(0 | 1));
    let it = state.transfers.iter().filter(is_silent).find(|it| it.ready == 0)?;
    let why = format!(
        "no data has come from {}, which may never have entered, or may be stuck itself: compare \
         the ranks with ncclscope diagnose",
        peer(it)
    );
    Some(RankFinding::open(None, why).by(it))
}

/// N3: data is in transit for too long. Only the other side knows whether it arrived.
fn network_stalled(state: &RankState) -> Option<RankFinding> {
    let it = at(state, true, 3).next()?;
    let why = format!(
        "data to {} was given to the network on channel {} and is not delivered: the link, a NIC, \
         or the other side",
        peer(it),
        it.channel
    );
    Some(RankFinding::of(FindingClass::NetworkStalled, why).by(it))
}

/// The other rank has no buffer for the data. Its network, its proxy thread or its GPU may be the
/// cause, or a receive of fewer bytes: this rank cannot know.
fn peer_takes_nothing(state: &RankState) -> Option<RankFinding> {
    let it = at(state, true, 2).next()?;
    let why = format!(
        "{} takes no data on channel {}: its network, its proxy thread or its GPU, or it receives \
         less; compare the ranks with ncclscope diagnose",
        peer(it),
        it.channel
    );
    Some(RankFinding::open(None, why).by(it))
}

/// N1 and N5: the transfers of a channel wait for this GPU, and it waits for no other rank there. A
/// GPU that receives nothing from the network may wait for one of its host.
#[must_use]
pub fn gpu_stands_still(state: &RankState) -> Option<RankFinding> {
    let is_free = |it: &&Transfer| !of_channel(state, it.channel).any(|it| it.waits_elsewhere());
    let unsent = |it: &&Transfer| it.is_send && matches!(it.reached, Some(0 | 1));
    if let Some(it) = state.transfers.iter().filter(unsent).find(is_free) {
        let receives = of_channel(state, it.channel).any(|it| !it.is_send);
        return Some(match state.shares_host && !receives {
            true => may_wait_on_its_host(it),
            false => gpu_not_producing(it, "produces no data for"),
        });
    }
    let unread: Vec<&Transfer> = at(state, false, 3).filter(is_free).collect();
    let passes_on =
        |it: &&&Transfer| of_channel(state, it.channel).any(|it| it.is_send && it.is_open());
    if let Some(it) = unread.iter().find(passes_on) {
        return Some(gpu_not_producing(it, "has data to pass on and takes none from"));
    }
    let it = unread.first()?;
    let why = format!(
        "this GPU does not take the data that arrived from {} on channel {}",
        peer(it),
        it.channel
    );
    Some(RankFinding::of(FindingClass::GpuNotConsuming, why).by(it))
}

fn gpu_not_producing(it: &Transfer, does: &str) -> RankFinding {
    let why = format!(
        "this GPU {does} {} on channel {}, and waits for none: its kernel stands still, or its \
         peers called something else",
        peer(it),
        it.channel
    );
    RankFinding::of(FindingClass::GpuNotProducing, why).by(it)
}

fn may_wait_on_its_host(it: &Transfer) -> RankFinding {
    let why = format!(
        "this GPU produces no data for {} on channel {}: its kernel stands still, or it waits for \
         data of another GPU on its host; compare the ranks with ncclscope diagnose",
        peer(it),
        it.channel
    );
    RankFinding::open(None, why).by(it)
}

fn of_channel(state: &RankState, channel: u8) -> impl Iterator<Item = &Transfer> {
    state.transfers.iter().filter(move |it| it.channel == channel)
}

impl Transfer {
    /// Its step waits for another rank or for the network.
    const fn waits_elsewhere(&self) -> bool {
        matches!((self.is_send, self.reached), (false, Some(0..=2)) | (true, Some(2 | 3)))
            || self.is_only_told()
    }
}

/// No rule matches: names the rank that the transfers wait for.
fn waits_on_network(state: &RankState) -> Option<RankFinding> {
    let silent = state.transfers.iter().find(|it| !it.is_send && matches!(it.reached, Some(0 | 1)));
    if let Some(it) = silent {
        let done = state.transfers.iter().map(|it| it.done).max().unwrap_or(0);
        let why = format!(
            "it waits for data from {} (up to {done} steps are done): compare the ranks with \
             ncclscope diagnose",
            peer(it)
        );
        return Some(RankFinding::open(None, why).by(it));
    }
    if let Some(it) = state.transfers.iter().find(|it| it.is_only_told()) {
        let why = format!(
            "its network reports data from {} on channel {}, which with the protocols LL and LL128 \
             a network plugin may do before it came: it waits for that data, or its GPU does not \
             take it; compare the ranks with ncclscope diagnose",
            peer(it),
            it.channel
        );
        return Some(RankFinding::open(None, why).by(it));
    }
    let idle = state.transfers.first()?;
    let why = "its network operations have begun, and none of their steps is in flight";
    let is_idle = state.transfers.iter().all(|it| it.reached.is_none());
    is_idle.then(|| RankFinding::open(None, why).by(idle))
}

/// No rule matches and there are no network steps. CUDA events show that the stream has reached the
/// kernel, not that the kernel has started.
fn kernel_alone(state: &RankState) -> RankFinding {
    let RankState { kernel, peer, .. } = state;
    let is_running = state.launch == Launch::Running;
    let has_ended = kernel.started != 0 && kernel.started == kernel.stopped;
    if let Some(rank) = state.absent.filter(|_| kernel.started != 0 || is_running) {
        let why = format!(
            "it waits for rank {rank} of the communicator, which is in this process and has not \
             entered"
        );
        return RankFinding::open(Some(rank), why);
    }
    if has_ended && kernel.stops_early {
        let why = "the first part of its kernel has ended; what the rest waits for cannot be seen \
                   from here: another rank that has not entered, or the path inside the node; \
                   compare the ranks with ncclscope diagnose";
        return RankFinding::open(*peer, why);
    }
    if has_ended {
        return RankFinding::open(
            None,
            "its kernel has ended, and NCCL has not reported all of it",
        );
    }
    let runs = match kernel.started {
        0 if is_running => "its kernel has not ended since its turn came",
        _ => "its kernel runs",
    };
    let place = if kernel.started == 0 { ", or a free SM" } else { "" };
    let why = format!(
        "{runs}, and what it waits for cannot be seen from here: another rank that has not \
         entered, the path inside the node{place}; compare the ranks with ncclscope diagnose"
    );
    RankFinding::open(*peer, why)
}
