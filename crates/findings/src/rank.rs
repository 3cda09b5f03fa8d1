// SPDX-License-Identifier: Apache-2.0
/*!
The state of an operation that does not end, on one rank: its call, its kernel, its transfers and
the proxy thread that moves them.

The watchdog fills in this data from the operations in flight in its process, `diagnose` from a
recording. A field that its source does not know has a value that matches no rule: `None`, an empty
list, [`Launch::Unknown`]. This module does **not** apply rules: that is [`crate::rules`].
*/

use ncclscope_limits::hangs;
/// The state of one operation of a communicator on one rank, with its network transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankState {
    /// The call has entered NCCL, and NCCL has not enqueued the operation.
    pub pending: Option<Pending>,
    /// Its kernel, from NCCL's events.
    pub kernel: Kernel,
    /// Its kernel, from the CUDA events around the launch.
    pub launch: Launch,
    /// An operation of another communicator that is ahead of the kernel.
    pub behind: Option<Ahead>,
    /// Its transfers.
    pub transfers: Vec<Transfer>,
    /// The candidates for the proxy thread that moves its transfers.
    pub proxy_threads: Vec<Thread>,
    /// The proxy thread has work: an open transfer, or one that it has not begun.
    pub awaits_proxy: bool,
    /// A rank of the same process that has not entered the operation.
    pub absent: Option<i32>,
    /// The other rank of a send or receive.
    pub peer: Option<i32>,
    /// All other members are known to be in the operation. One rank alone cannot know that.
    pub have_peers_entered: bool,
    /// Other members are on its host: their GPUs give it data over NVLink or shared memory, of
    /// which no transfer tells, and what they wait for is not known.
    pub shares_host: bool,
}

/// An operation whose kernel runs or waits for its turn, and which was enqueued before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Its number in its communicator.
    pub number: u64,
    /// Whether both are known to be on one stream. The streams of a graph's replay are not known,
    /// nor those of NCCL before 2.28.
    pub is_same_stream: bool,
}

/// The stage of a call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// A group was opened and not closed (`ncclGroupEnd` was not called).
    OpenGroup,
    /// The call is in NCCL, before a launch.
    Inside,
    /// The call is in the CUDA launch of the kernel.
    Launch,
    /// The call is in NCCL, after the launch.
    Launched,
    /// NCCL took the operation and has not finished enqueuing it.
    Enqueuing,
}

/// The kernel of an operation, from NCCL's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Channels that it uses.
    pub channels: u32,
    /// Channels on which it started.
    pub started: u32,
    /// Channels on which it ended.
    pub stopped: u32,
    /// It has started on some channel; `None` if kernels are not recorded.
    pub has_started: Option<bool>,
    /// It cannot end before it has started on all of its channels.
    pub needs_all: bool,
    /// Its stop event comes before its end.
    pub stops_early: bool,
}

/// The state of a kernel, from the CUDA events around its launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// There are no CUDA events.
    #[default]
    Unknown,
    /// The stream has not reached it.
    NotStarted,
    /// The stream has reached it, and it has not ended.
    Running,
    /// The driver reports an error.
    Failed {
        /// The driver's error code.
        status: i32,
    },
    /// It has ended.
    Done,
}

/// A network transfer (ProxyOp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// A send, else a receive.
    pub is_send: bool,
    /// Channel.
    pub channel: u8,
    /// The other side's rank in the communicator.
    pub peer: i32,
    /// Number of steps.
    pub steps: u32,
    /// Posted steps.
    pub posted: u32,
    /// Steps that the GPU has filled (send) or that have arrived (receive).
    pub ready: u32,
    /// Steps that were given to the network (send) or flushed (receive).
    pub transmitted: u32,
    /// Completed steps.
    pub done: u32,
    /// The state of the oldest step in flight, 0 to 3; `None` if no step is in flight. 0: it is
    /// posted. Send: 1 the GPU fills it, 2 it waits for a buffer of the receiver, 3 it is in
    /// transit. Receive: 1 it waits for data, 2 data is flushed to the GPU, 3 the GPU reads it.
    pub reached: Option<u8>,
    /// Time since its state last changed, ns.
    pub still_ns: u64,
    /// The proxy thread has begun it.
    pub in_progress: bool,
    /// A receive that the network may report as complete before its data arrived: NCCL does not
    /// require completion of LL and LL128 receives (`src/transport/net.cc`,
    /// `ncclParamNetOptionalRecvCompletion`). NCCL's own networks do not make use of that; network
    /// plugins may (aws-ofi-nccl does).
    pub may_be_early: bool,
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
            may_be_early: false,
        }
    }
}

impl Transfer {
    /// Some of its steps are not complete.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.done < self.steps
    }

    /// A receive that waits for its sender, or a send that waits for its receiver. Includes
    /// receives of [`Transfer::is_only_told`], which may still wait.
    #[must_use]
    pub const fn waits_for_peer(&self) -> bool {
        matches!((self.is_send, self.reached), (false, Some(1)) | (true, Some(2)))
            || self.is_only_told()
    }

    /// A receive whose data the network reported, but may not have delivered
    /// ([`Transfer::may_be_early`]).
    #[must_use]
    pub const fn is_only_told(&self) -> bool {
        self.may_be_early && !self.is_send && matches!(self.reached, Some(2 | 3))
    }
}

/// The kernel's accounting of a thread between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// `R`, `S`, `D`…; 0: it does not exist any more.
    pub state: u8,
    /// The kernel function in which it waits; empty if unknown.
    pub place: String,
    /// Time between the two moments, ns; 0 if there was only one.
    pub span_ns: u64,
    /// CPU time that it used, ns.
    pub cpu_ns: u64,
    /// Time in which it was runnable and did not run, ns.
    pub delay_ns: u64,
}

impl Thread {
    /// It has exited.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.state == 0
    }

    /// It was stopped, by a debugger or a signal.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// It used less than 1 % of the time although it could have run. A proxy thread with transfers
    /// in flight polls, so it uses all the CPU time it gets.
    #[must_use]
    pub const fn is_still(&self) -> bool {
        let Thread { span_ns, delay_ns, cpu_ns, .. } = *self;
        span_ns > 0 && cpu_ns < span_ns / 100 && delay_ns < span_ns / 10
    }

    /// It was runnable nearly all the time, and never ran. A thread that runs now and then is slow,
    /// not stuck.
    #[must_use]
    pub const fn is_starved(&self) -> bool {
        let Thread { span_ns, delay_ns, cpu_ns, .. } = *self;
        span_ns >= hangs::STARVED_NS && delay_ns > span_ns / 10 * 9 && cpu_ns < span_ns / 1000
    }

    /// It used more than 1 % of the time.
    #[must_use]
    pub const fn is_at_work(&self) -> bool {
        self.cpu_ns > self.span_ns / 100
    }
}
