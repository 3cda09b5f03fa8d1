// SPDX-License-Identifier: Apache-2.0
/*!
What one rank shows of an operation that does not end: its call, its kernel, its transfers and the
proxy thread that moves them.

Plain data, which the watchdog fills from what is in flight in its process, and `diagnose` from what
a rank recorded. What a source does not tell has the value that lets no rule speak: `None`, an empty
list, [`Launch::Unknown`]. This module does **not** judge: that is [`crate::rules`].
*/

/// What one rank shows of one operation of a communicator, and of the network of that operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankState {
    /// NCCL has the call, and has not handed the operation over.
    pub pending: Option<Pending>,
    /// Its kernel, by NCCL's events.
    pub kernel: Kernel,
    /// Its kernel, by the CUDA events around the launch.
    pub launch: Launch,
    /// The number of an operation of another communicator that has the stream before it.
    pub behind: Option<u64>,
    /// Its transfers.
    pub transfers: Vec<Transfer>,
    /// The threads that may be the one that moves its transfers.
    pub proxy_threads: Vec<Thread>,
    /// That thread has work: of a transfer, or of a part that it has not begun.
    pub awaits_proxy: bool,
    /// A rank of the same process that has not entered the operation.
    pub absent: Option<i32>,
    /// The other rank of a send or receive.
    pub peer: Option<i32>,
    /// All other members are known to be in the operation. One rank alone never knows that.
    pub have_peers_entered: bool,
}

/// Where a call is that did not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// A group was opened and not closed (`ncclGroupEnd` was not called).
    OpenGroup,
    /// In NCCL, before a launch.
    Inside,
    /// In the CUDA launch of the kernel.
    Launch,
    /// In NCCL, after the launch.
    Launched,
    /// NCCL took the operation and has not finished enqueuing it.
    Enqueuing,
}

/// The kernel of an operation, as NCCL tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Channels that it works on.
    pub channels: u32,
    /// Channels on which it started.
    pub started: u32,
    /// Channels on which it ended.
    pub stopped: u32,
    /// It has started on some channel; `None` where nothing would tell.
    pub has_started: Option<bool>,
    /// It does not end before it has run on all of its channels.
    pub needs_all: bool,
    /// Its stop is not its end.
    pub stops_early: bool,
}

/// What CUDA events tell of a kernel's launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// Nothing.
    #[default]
    Unknown,
    /// The stream has not come to it.
    NotStarted,
    /// The stream has come to it, and it has not ended.
    Running,
    /// The driver reports an error.
    Failed {
        /// The driver's number of it.
        status: i32,
    },
    /// It has ended.
    Done,
}

/// A network transfer (ProxyOp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// A send; else a receive.
    pub is_send: bool,
    /// Channel.
    pub channel: u8,
    /// Rank in the communicator of the other side.
    pub peer: i32,
    /// Steps in all.
    pub steps: u32,
    /// Steps that were posted.
    pub posted: u32,
    /// Send: given by the GPU. Receive: arrived.
    pub ready: u32,
    /// Send: given to the network. Receive: flushed.
    pub transmitted: u32,
    /// Steps that are over.
    pub done: u32,
    /// States that the oldest step in flight reached, 0 to 3; `None` with none in flight. 0: it is
    /// posted. Send: 1 the GPU fills it, 2 the receiver has no buffer, 3 it is under way. Receive:
    /// 1 it may come, 2 it is flushed to the GPU, 3 the GPU takes it.
    pub reached: Option<u8>,
    /// How long nothing of it has changed, ns.
    pub still_ns: u64,
    /// The proxy thread has looked at it.
    pub in_progress: bool,
    /// It belongs to another process (PXN).
    pub is_foreign: bool,
}

impl Default for Transfer {
    fn default() -> Transfer {
        Transfer {
            is_send: false,
            channel: 0,
            peer: 0,
            steps: 0,
            posted: 0,
            ready: 0,
            transmitted: 0,
            done: 0,
            reached: None,
            still_ns: 0,
            in_progress: true,
            is_foreign: false,
        }
    }
}

impl Transfer {
    /// Not all of its steps are over.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.done < self.steps
    }

    /// A receive that waits for its sender, or a send that waits for its receiver.
    #[must_use]
    pub const fn waits_for_peer(&self) -> bool {
        matches!((self.is_send, self.reached), (false, Some(1)) | (true, Some(2)))
    }
}

/// Over less time no difference tells that a thread gets no processor: ns.
const TURN_NS: u64 = 1_000_000_000;

/// A thread as the system saw it at two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// `R`, `S`, `D`…; 0: it is gone.
    pub state: u8,
    /// Where it waits in the kernel; empty where that is not known.
    pub place: String,
    /// Between the two moments, ns; 0 where there was one only.
    pub span_ns: u64,
    /// Processor time that it used in between, ns.
    pub cpu_ns: u64,
    /// Time in which it was ready and did not run, ns.
    pub delay_ns: u64,
}

impl Thread {
    /// It does not exist any more.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.state == 0
    }

    /// It was stopped, by a debugger or a signal.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// It used less than a hundredth of the time, and was not kept from more. A proxy thread with
    /// transfers in flight polls: it uses all that it gets.
    #[must_use]
    pub const fn is_still(&self) -> bool {
        let Thread { span_ns, delay_ns, cpu_ns, .. } = *self;
        span_ns > 0 && cpu_ns < span_ns / 100 && delay_ns < span_ns / 10
    }

    /// It was ready nearly all the time, and never ran. One that gets a turn now and then is slow,
    /// not stuck.
    #[must_use]
    pub const fn is_starved(&self) -> bool {
        let Thread { span_ns, delay_ns, cpu_ns, .. } = *self;
        span_ns >= TURN_NS && delay_ns > span_ns / 10 * 9 && cpu_ns < span_ns / 1000
    }

    /// It used more than a hundredth of the time.
    #[must_use]
    pub const fn is_at_work(&self) -> bool {
        self.cpu_ns > self.span_ns / 100
    }
}
