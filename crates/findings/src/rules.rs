// SPDX-License-Identifier: Apache-2.0
/*!
The rules that one rank can answer: why its operation does not end, by its own state alone.

Each rule is a function of a [`RankState`]. [`judge`] asks them in the order of `RULES` and the
first that speaks is right: what is earlier explains what is later (without a proxy thread no kernel
and no transfer is seen to move; a kernel that did not start gives no data). The watchdog applies
all of them to what is in flight in its process. `diagnose` knows of each rank what the others show,
so it asks single rules of the ranks that its wait graph leads to.

An answer that has a class names the cause. One without a class names what the rank waits for: the
cause is not visible from one rank.

How the oldest step of a transfer speaks, with the class where this rank is the cause:

| | the step is posted | 1 | 2 | 3 |
| --- | --- | --- | --- | --- |
| send | N1 | N1: the GPU gives nothing | N2: the receiver has no buffer | N3: under way |
| receive | N2: the network takes no receive | waits for the sender | N4: not flushed | N1, N5 |

A GPU works on the channels one by one, and on one channel in step: it takes no data while it waits
for other data there, or cannot pass on what it has. So N1 and N5 hold where no transfer of the same
channel waits for another rank. Data that arrived and is not taken is N1 where the GPU also has
something to pass on (a send of that channel has steps left), because what is missing for others is
what it does not give; else it only receives, and that is N5.
*/

use crate::FindingClass;
use crate::rank::{Launch, Pending, RankState, Thread, Transfer};

/// A transfer that the proxy thread has not looked at for so long is not under way, ns.
const UNSEEN_NS: u64 = 1_000_000_000;

/// What one rank shows of the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The class; none where one rank cannot tell.
    pub class: Option<FindingClass>,
    /// What is seen, in one sentence.
    pub why: String,
    /// The rank that is waited for, or the other end of the link.
    pub peer: Option<i32>,
    /// The transfer that says so.
    pub transfer: Option<Transfer>,
    /// The thread that says so.
    pub thread: Option<Thread>,
}

impl Local {
    fn of(class: FindingClass, why: impl Into<String>) -> Local {
        Local { class: Some(class), ..Local::open(None, why) }
    }

    fn open(peer: Option<i32>, why: impl Into<String>) -> Local {
        Local { class: None, why: why.into(), peer, transfer: None, thread: None }
    }

    fn by(self, transfer: &Transfer) -> Local {
        Local { peer: Some(transfer.peer), transfer: Some(*transfer), ..self }
    }
}

/// A rule: what it sees in a state, if it sees anything.
type Rule = fn(&RankState) -> Option<Local>;

/// All rules, in their order.
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

/// Those of `RULES` that the kernel answers.
const KERNEL: &[Rule] = &[kernel_not_started, kernel_partly_started];

/// Those of `RULES` that the transfers answer.
const NETWORK: &[Rule] = &[
    flush_stalled,
    receive_not_taken,
    nothing_came,
    network_stalled,
    peer_not_ready,
    gpu_stands_still,
];

/// What the state shows by itself.
#[must_use]
pub fn judge(state: &RankState) -> Local {
    let found = RULES.iter().find_map(|rule| rule(state));
    found.or_else(|| waits_on_network(state)).unwrap_or_else(|| kernel_alone(state))
}

/// H1d: a call that does not return, with nothing in flight behind which it could wait.
fn call_not_enqueued(state: &RankState) -> Option<Local> {
    Some(Local::of(FindingClass::CallNotEnqueued, state.pending?.text()))
}

impl Pending {
    /// Where the call is, in a sentence.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Pending::OpenGroup => {
                "the application has begun a group of calls, and not called ncclGroupEnd"
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

/// P1: the thread that moves the network's data does not work.
#[must_use]
pub fn proxy_stalled(state: &RankState) -> Option<Local> {
    let unseen = state.transfers.iter().filter(|transfer| !transfer.in_progress);
    let unseen = unseen.max_by_key(|transfer| transfer.still_ns);
    // A thread that works has others before this one on the same connection.
    let is_at_work = state.proxy_threads.iter().any(Thread::is_at_work);
    if let Some(transfer) = unseen.filter(|it| it.still_ns >= UNSEEN_NS && !is_at_work) {
        let why = "a transfer was given to the proxy thread, which has not looked at it";
        return Some(Local::of(FindingClass::ProxyStalled, why).by(transfer));
    }
    if !state.awaits_proxy {
        return None;
    }
    // Without anything to do it sleeps, which is no fault.
    let (thread, why) = state.proxy_threads.iter().find_map(|thread| {
        let tid = thread.tid;
        let why = if thread.is_gone() {
            return None;
        } else if thread.is_stopped() {
            format!("NCCL's proxy thread {tid} is stopped, by a debugger or a signal")
        } else if thread.is_starved() {
            format!("NCCL's proxy thread {tid} gets no processor")
        } else if thread.is_still() {
            let place = if thread.place.is_empty() { "the kernel" } else { &thread.place };
            let state = char::from(thread.state);
            format!("NCCL's proxy thread {tid} has work and does none: {state}, in {place}")
        } else {
            return None;
        };
        Some((thread, why))
    })?;
    let is_begun = !state.transfers.is_empty();
    let begun = if is_begun { "" } else { "; it has not begun this operation" };
    let found = Local::of(FindingClass::ProxyStalled, format!("{why}{begun}"));
    Some(Local { thread: Some(thread.clone()), ..found })
}

/// It ends when it meets an error: then something else was wrong first.
fn proxy_gone(state: &RankState) -> Option<Local> {
    let first = state.proxy_threads.first().filter(|_| state.awaits_proxy)?;
    if !state.proxy_threads.iter().all(Thread::is_gone) {
        return None;
    }
    let why = format!(
        "NCCL's proxy thread {} has ended, as it does after an error such as a peer that is gone",
        first.tid
    );
    Some(match network(state) {
        Some(found) => Local { why: format!("{}; {why}", found.why), ..found },
        None => Local::open(None, why),
    })
}

/// H3c: the CUDA driver says so.
fn gpu_lost(state: &RankState) -> Option<Local> {
    let Launch::Failed { status } = state.launch else { return None };
    let why = format!("the CUDA driver reports error {status}: the context is lost");
    Some(Local::of(FindingClass::GpuDead, why))
}

/// P1: the GPU is through, and the proxy thread does not say so.
fn end_not_reported(state: &RankState) -> Option<Local> {
    let kernel = &state.kernel;
    let is_untold = kernel.stopped != kernel.started || kernel.has_started == Some(false);
    let why = "its kernel has ended, by its CUDA event, and NCCL has not reported that: its proxy \
               thread, which polls for it, does not";
    (state.launch == Launch::Done && is_untold).then(|| Local::of(FindingClass::ProxyStalled, why))
}

/// It did not start, and only waits for its turn.
fn behind_another(state: &RankState) -> Option<Local> {
    let before = state.behind.filter(|_| has_not_started(state))?;
    let why = format!(
        "its kernel has not started: it is behind operation {before} of another communicator on \
         the same stream"
    );
    Some(Local::open(None, why))
}

/// H3a: something that is not NCCL's is before it on its stream.
fn kernel_not_started(state: &RankState) -> Option<Local> {
    if !has_not_started(state) {
        return None;
    }
    let by = if state.launch == Launch::NotStarted { ", by its CUDA event too" } else { "" };
    let why = format!(
        "its kernel has not started{by}: other work is before it on its stream, or it waits for an \
         event there"
    );
    Some(Local::of(FindingClass::KernelNotStarted, why))
}

/// A kernel whose turn has come may still wait for a place on the GPU.
fn has_not_started(state: &RankState) -> bool {
    let is_told = state.kernel.has_started == Some(false) || state.launch == Launch::NotStarted;
    state.kernel.started == 0 && is_told && state.launch != Launch::Running
}

/// H3b: some blocks find no place.
fn kernel_partly_started(state: &RankState) -> Option<Local> {
    let kernel = &state.kernel;
    let (started, channels) = (kernel.started, kernel.channels);
    if !kernel.needs_all || started == 0 || started >= channels {
        return None;
    }
    let why = format!(
        "its kernel has started on {started} of {channels} channels: the others find no place on \
         the GPU, which something else may hold"
    );
    Some(Local::of(FindingClass::KernelPartlyStarted, why))
}

/// H3a and H3b, by the channels of the kernel that started.
#[must_use]
pub fn kernel(state: &RankState) -> Option<Local> {
    KERNEL.iter().find_map(|rule| rule(state))
}

/// N1 to N5, by the oldest steps in flight.
fn network(state: &RankState) -> Option<Local> {
    NETWORK.iter().find_map(|rule| rule(state))
}

/// The transfers whose oldest step in flight has come so far.
fn at(state: &RankState, is_send: bool, reached: u8) -> impl Iterator<Item = &Transfer> {
    let is_it = move |it: &&Transfer| it.is_send == is_send && it.reached == Some(reached);
    state.transfers.iter().filter(is_it)
}

/// N4: PCIe.
#[must_use]
pub fn flush_stalled(state: &RankState) -> Option<Local> {
    let it = at(state, false, 2).next()?;
    let why = format!(
        "data from rank {} arrived on channel {} and is not flushed to the GPU (PCIe)",
        it.peer, it.channel
    );
    Some(Local::of(FindingClass::FlushStalled, why).by(it))
}

/// N2: the step began, and the rank's own network has not taken the receive. With buffers of the
/// application NCCL begins it before the kernel runs: so it counts only where the GPU is known to
/// work on the operation.
#[must_use]
pub fn receive_not_taken(state: &RankState) -> Option<Local> {
    let has_moved = |it: &Transfer| it.done > 0 || it.is_send && it.ready > 0;
    let runs = state.kernel.has_started.unwrap_or_else(|| state.transfers.iter().any(has_moved));
    let it = at(state, false, 0).next().filter(|_| runs)?;
    let why = format!(
        "the network of this rank does not take the receive from rank {} on channel {}",
        it.peer, it.channel
    );
    Some(Local::of(FindingClass::ReceiverNotReady, why).by(it))
}

/// A rank of which nothing has come need not have entered: then it takes no data either, which is
/// no fault of the path to it.
fn nothing_came(state: &RankState) -> Option<Local> {
    if state.have_peers_entered {
        return None;
    }
    let is_silent = |it: &&Transfer| !it.is_send && matches!(it.reached, Some(0 | 1));
    let it = state.transfers.iter().filter(is_silent).find(|it| it.ready == 0)?;
    let why = format!(
        "nothing of it has come from rank {}, which may never have entered, or have its own \
         trouble: compare the ranks with ncclscope diagnose",
        it.peer
    );
    Some(Local::open(None, why).by(it))
}

/// N3: under way for too long. Whether it arrived, only the other side could tell.
fn network_stalled(state: &RankState) -> Option<Local> {
    let it = at(state, true, 3).next()?;
    let why = format!(
        "data to rank {} was given to the network on channel {} and is not delivered: the link, a \
         NIC, or the other side",
        it.peer, it.channel
    );
    Some(Local::of(FindingClass::NetworkStalled, why).by(it))
}

/// N2, of the other rank: it has no buffer for what is to be sent.
fn peer_not_ready(state: &RankState) -> Option<Local> {
    let it = at(state, true, 2).next()?;
    let why = format!("rank {} takes no data on channel {}", it.peer, it.channel);
    Some(Local::of(FindingClass::ReceiverNotReady, why).by(it))
}

/// N1 and N5: the transfers of a channel wait for this GPU, and it waits for no other rank there.
#[must_use]
pub fn gpu_stands_still(state: &RankState) -> Option<Local> {
    let is_free = |it: &&Transfer| !of_channel(state, it.channel).any(|it| it.waits_elsewhere());
    let unsent = |it: &&Transfer| it.is_send && matches!(it.reached, Some(0 | 1));
    if let Some(it) = state.transfers.iter().filter(unsent).find(is_free) {
        return Some(gpu_not_producing(it, "gives no data for"));
    }
    let unread: Vec<&Transfer> = at(state, false, 3).filter(is_free).collect();
    let passes_on =
        |it: &&&Transfer| of_channel(state, it.channel).any(|it| it.is_send && it.is_open());
    if let Some(it) = unread.iter().find(passes_on) {
        return Some(gpu_not_producing(it, "has data to pass on and takes none from"));
    }
    let it = unread.first()?;
    let why = format!(
        "this GPU does not take the data that arrived from rank {} on channel {}",
        it.peer, it.channel
    );
    Some(Local::of(FindingClass::GpuNotConsuming, why).by(it))
}

fn gpu_not_producing(it: &Transfer, does: &str) -> Local {
    let why = format!(
        "this GPU {does} rank {} on channel {}, and waits for none: its kernel stands still",
        it.peer, it.channel
    );
    Local::of(FindingClass::GpuNotProducing, why).by(it)
}

fn of_channel(state: &RankState, channel: u8) -> impl Iterator<Item = &Transfer> {
    state.transfers.iter().filter(move |it| it.channel == channel)
}

impl Transfer {
    /// Its step is in the hands of another rank, or of the network.
    const fn waits_elsewhere(&self) -> bool {
        matches!((self.is_send, self.reached), (false, Some(0..=2)) | (true, Some(2 | 3)))
    }
}

/// Its transfers explain nothing: whom they wait for.
fn waits_on_network(state: &RankState) -> Option<Local> {
    let silent = state.transfers.iter().find(|it| !it.is_send && matches!(it.reached, Some(0 | 1)));
    if let Some(it) = silent {
        let done = state.transfers.iter().map(|it| it.done).max().unwrap_or(0);
        let why = format!(
            "it waits for data from rank {} (up to {done} steps are done): compare the ranks with \
             ncclscope diagnose",
            it.peer
        );
        return Some(Local::open(None, why).by(it));
    }
    let idle = state.transfers.first()?;
    let why = "its network operations are begun, and no step of them is in flight";
    let is_idle = state.transfers.iter().all(|it| it.reached.is_none());
    is_idle.then(|| Local::open(None, why).by(idle))
}

/// Without network steps. CUDA events tell that the kernel's turn has come, not that it has begun.
fn kernel_alone(state: &RankState) -> Local {
    let RankState { kernel, peer, .. } = state;
    let is_running = state.launch == Launch::Running;
    let has_ended = kernel.started != 0 && kernel.started == kernel.stopped;
    if let Some(rank) = state.absent.filter(|_| kernel.started != 0 || is_running) {
        let why = format!("it waits for rank {rank}, which is in this process and has not entered");
        return Local::open(Some(rank), why);
    }
    if has_ended && kernel.stops_early {
        let why = "one thread of its kernel is through, which is not the kernel's end here; what \
                   the others wait for cannot be seen from here: another rank that has not \
                   entered, or the path inside the node; compare the ranks with ncclscope diagnose";
        return Local::open(*peer, why);
    }
    if has_ended {
        return Local::open(None, "its kernel has ended, and something of it is not reported");
    }
    let runs = match kernel.started {
        0 if is_running => "its kernel has not ended since its turn came",
        _ => "its kernel runs",
    };
    let place = if kernel.started == 0 { ", or a place on the GPU" } else { "" };
    let why = format!(
        "{runs}, and what it waits for cannot be seen from here: another rank that has not \
         entered, the path inside the node{place}; compare the ranks with ncclscope diagnose"
    );
    Local::open(*peer, why)
}
