// SPDX-License-Identifier: Apache-2.0
/*!
The communication of a job: which worker took part in which operation, and when.

Times are ns by each worker's own clock; the clocks are not aligned here. This module only holds the
data of an input.
*/

use crate::time_blocks::TimeBlocks;
use ncclscope_findings::{CommId, RankLocation};
use ncclscope_limits::slow;
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet};

/// A position in the job's parallel layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LayoutPosition {
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Pipeline stage.
    pub stage: u32,
}

/// A worker has one timeline: a process, or a tensor-parallel group that the input shows as one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Worker {
    /// Its rank in the job; for a group, the first one.
    pub rank: u32,
    /// Its position in the layout, if the input identifies workers only by that.
    pub cell: Option<LayoutPosition>,
    /// Its pipeline stage, if known.
    pub stage: Option<u32>,
    /// Its data-parallel rank, if known.
    pub dp_rank: Option<u32>,
    /// Host name; empty if unknown.
    pub host: String,
    /// Process id, if known.
    pub pid: Option<u32>,
    /// Local rank: its number among the processes of the job on its host, if known.
    pub local_rank: Option<u32>,
    /// CUDA device number in its process, if known.
    pub device: Option<u32>,
    /// The UUID of its GPU, or of its part of one (MIG); empty if unknown.
    pub gpu: String,
    /// Identifies the machine, and so the clock, among hosts of the same name; empty if unknown.
    pub machine: String,
}

/// Whether the members of an operation complete it together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndSync {
    /// No member can end before all have arrived, and all end within a few network latencies.
    Together,
    /// Members may end far apart (Broadcast, Reduce), or their times include something else.
    Apart,
}

/// One member's part in an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part {
    /// Index of its worker.
    pub worker: usize,
    /// Arrival, ns by the worker's own clock.
    pub start: f64,
    /// End for this member, ns by the worker's own clock.
    pub end: f64,
}

/// The class of a collective. Collectives of one class are comparable: same communicator, function
/// and size.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CollectiveClass {
    /// The communicator's name.
    pub comm: String,
    /// The function.
    pub func: String,
    /// The size as nccl-tests defines it; `None` if unknown.
    pub bytes: Option<u64>,
    /// Members of the communicator.
    pub members: u32,
}

/// A collective with the parts of its members.
#[derive(Clone, PartialEq, Debug)]
pub struct Collective {
    /// Index of its class.
    pub class: usize,
    /// Index of its algorithm, protocol and channels in [`Job::shapes`].
    pub shape: usize,
    /// Its training step, if known.
    pub step: Option<i64>,
    /// Whether its members end it together.
    pub ends: EndSync,
    /// Whether the ends of its parts are known; if not, they are lower bounds.
    pub has_ends: bool,
    /// The recorded members, each worker once.
    pub parts: Vec<Part>,
}

/// The class of sends and receives; those of one class are comparable.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct P2pClass {
    /// The communicator's name.
    pub comm: String,
    /// `Send`, `Recv`, or `SendRecv` for a group of both.
    pub func: &'static str,
    /// Bytes of all its sends, or of its receives if it has no sends; `None` if unknown.
    pub bytes: Option<u64>,
}

/// Sends and receives that a worker began and ended as one group.
#[derive(Clone, PartialEq, Debug)]
pub struct P2pBatch {
    /// Index in [`Job::p2p_classes`]; `None` if unknown.
    pub class: Option<usize>,
    /// The worker and its times.
    pub part: Part,
    /// The earliest and the latest time from which its GPU does other work, ns by the worker's own
    /// clock: until the end, the last data that it sends may be in the proxy's buffers.
    pub released: (f64, f64),
    /// The training step, if known.
    pub step: Option<i64>,
    /// The batches at the other ends, as indices into [`Job::batches`].
    pub partners: Vec<usize>,
    /// The other end of one of its sends or receives was not recorded.
    pub is_lacking: bool,
    /// Whether its end is known; if not, it is a lower bound.
    pub has_end: bool,
}

/// The delay between the enqueueing of a kernel and its start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Launch {
    /// Index of its worker.
    pub worker: usize,
    /// From the end of its enqueueing to its start on the GPU, ns.
    pub delay: f64,
}

/// What the transfers of a link waited for.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Pace {
    /// The part of their wire time in which the GPUs at the ends may have kept the next transfer
    /// back, ns.
    pub held_ns: f64,
    /// Time for which they were in flight, with that in which they queued behind others, ns.
    pub flight_ns: f64,
}

/// A transfer as both of its ends show it. Times are ns by the clock of each end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Transfer {
    /// Bytes.
    pub bytes: u32,
    /// When the sender gave the data to the network.
    pub given: f64,
    /// When the receiver was ready for it: it had posted the receive, and had the data before.
    pub ready: f64,
    /// When the receiver had it.
    pub came: f64,
}

/// The traffic from one sender to one receiver over one channel.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LinkTraffic {
    /// The communicator's name.
    pub comm: String,
    /// Index of the sender in [`Job::workers`].
    pub src: usize,
    /// Index of the receiver.
    pub dst: usize,
    /// Channel.
    pub channel: u8,
    /// Network steps with a known size.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their wire time, ns.
    pub wire_ns: f64,
    /// What they waited for, the longest included; zero if unknown.
    pub pace: Pace,
    /// The transfers of about the largest size, by blocks of time; empty if unknown.
    pub blocks: TimeBlocks,
    /// A sample of the transfers at both ends; empty if one of them was not recorded.
    pub sample: Vec<Transfer>,
    /// They are those that begin after an idle time; others of the link are traffic of their own.
    pub is_first: bool,
}

/// For how long one process was short of processor time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CpuShortage {
    /// Index in [`Job::workers`].
    pub worker: usize,
    /// How long the process was watched, ns.
    pub watched: f64,
    /// Time for which its timers were late, ns: it was stopped, or found no free processor.
    pub late: f64,
    /// Time for which the worst of its threads was ready but did not run, ns.
    pub delay: f64,
    /// The longest delay of a timer, ns.
    pub longest: f64,
    /// Time for which its control group's quota held threads up, summed over processors, ns.
    pub throttled: f64,
    /// Time of the first such shortage, ns since 1970.
    pub since: Option<u64>,
}

impl CpuShortage {
    /// A time as a share of the time for which the process was watched.
    pub(crate) fn share(&self, ns: f64) -> f64 {
        if self.watched > 0.0 { ns / self.watched } else { 0.0 }
    }
}

/// For how long one GPU held up the transfers of a communicator.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuStall {
    /// The communicator's name.
    pub comm: String,
    /// Index in [`Job::workers`].
    pub worker: usize,
    /// Its network transfers.
    pub transfers: u64,
    /// Time for which it could have continued but did not, ns (mean of its channels).
    pub ns: f64,
    /// That time by blocks of time; each time counts as one byte.
    pub blocks: TimeBlocks,
    /// Bytes of these transfers.
    pub bytes: u64,
    /// Of these, those whose waits show what the GPU did: twice those of the lesser direction, on
    /// channels on which one operation both received and sent over the network. If 0, the time is 0
    /// whether the GPU is slow or not.
    pub shown: u64,
}

/// A job in the form that all kinds of input are converted to: the workers, and their parts in
/// operations.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Job {
    /// The workers.
    pub workers: Vec<Worker>,
    /// The classes of collectives.
    pub classes: Vec<CollectiveClass>,
    /// Roles of communicators, by name: as declared by the application, else its name, else the
    /// size. Empty if the input has none.
    pub roles: BTreeMap<String, String>,
    /// Hash and name of communicators, by the name that classes and links use.
    pub comms: BTreeMap<String, CommId>,
    /// The classes of sends and receives.
    pub p2p_classes: Vec<P2pClass>,
    /// Algorithms, protocols and channels of collectives, as text.
    pub shapes: Vec<String>,
    /// The collectives.
    pub collectives: Vec<Collective>,
    /// The sends and receives.
    pub batches: Vec<P2pBatch>,
    /// Work without other participants, with its step.
    pub own: Vec<(Part, Option<i64>)>,
    /// Traffic over network links.
    pub edges: Vec<LinkTraffic>,
    /// Communicators with network traffic, for when a filter has left out [`Job::edges`].
    pub networked: BTreeSet<String>,
    /// Delays of kernel starts.
    pub launches: Vec<Launch>,
    /// The shortages of each process that recorded them.
    pub shortages: Vec<CpuShortage>,
    /// Times in which GPUs held up network transfers, if recorded.
    pub stalls: Vec<GpuStall>,
    /// Times restart at 0 in each step; else one clock runs through all steps.
    pub steps_restart: bool,
    /// Arrival and end are those of kernels on the GPU.
    pub is_kernel_timed: bool,
    /// The input is traces of PyTorch or Nsight Systems, which do not show the sends and receives
    /// of a rank.
    pub is_of_traces: bool,
    /// The input has neither communicators nor numbers of operations: kernels are taken for one
    /// collective by their order and times.
    pub is_matched_by_time: bool,
    /// Kernels that communicate beside NCCL, as text: waits in them look like a rank's own work.
    pub beside: Option<String>,
    /// For workers whose oldest operations were overwritten: arrival of the first complete
    /// operation, ns by the worker's own clock. Steps that began earlier are ignored.
    pub whole_from: BTreeMap<usize, f64>,
    /// Workers with missing operations at unknown times; they are not reported as slow.
    pub gappy: BTreeSet<usize>,
    /// Workers whose recordings mark no steps.
    pub unmarked: BTreeSet<usize>,
    /// Number of parts of collectives that were left out: replays of CUDA graphs in recordings that
    /// are not whole, so that it is unknown which of them belong together.
    pub unmatched_replays: usize,
    /// Ranks of the largest communicator without a recording or trace, as inclusive ranges.
    pub unrecorded: Vec<(u32, u32)>,
    /// Time 0 of the job in ns since 1970; `None` if unknown.
    pub origin_ns: Option<u64>,
    /// Remarks about the input, one sentence each.
    pub notes: Vec<String>,
}

impl Worker {
    /// A worker without a known position in the layout.
    #[must_use]
    pub fn new(rank: u32, host: impl Into<String>) -> Worker {
        let host: String = host.into();
        Worker { rank, machine: host.clone(), host, ..Worker::default() }
    }

    /// A worker that is known by its position in the layout.
    #[must_use]
    pub fn at(rank: u32, cell: LayoutPosition) -> Worker {
        let (stage, dp_rank) = (Some(cell.stage), Some(cell.dp_rank));
        Worker { rank, cell: Some(cell), stage, dp_rank, ..Worker::default() }
    }

    pub(crate) fn place(&self) -> RankLocation {
        RankLocation {
            rank: self.rank,
            host: (!self.host.is_empty()).then(|| self.host.clone()),
            pid: self.pid,
            local_rank: self.local_rank.map(u64::from),
            device: self.device.map(u64::from),
        }
    }
}

impl LinkTraffic {
    /// Wire time per byte, ns.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.wire_ns / to_f64(self.bytes.max(1))
    }

    /// True if there are enough transfers to show the link's speed.
    pub(crate) fn is_enough(&self) -> bool {
        self.transfers >= slow::SAMPLES && self.bytes > 0
    }

    /// Mean bytes of a transfer.
    pub(crate) fn piece(&self) -> f64 {
        to_f64(self.bytes) / to_f64(self.transfers.max(1))
    }
}

impl Job {
    /// Hash and name of a communicator, by the name that classes and links use.
    pub(crate) fn comm_id(&self, text: &str) -> CommId {
        let unknown = || CommId { comm: text.to_owned(), name: None };
        self.comms.get(text).cloned().unwrap_or_else(unknown)
    }

    /// True if a collective lacks members, so that it is unknown for whom the recorded ones waited.
    pub(crate) fn is_lacking(&self, collective: &Collective) -> bool {
        let class = self.classes.get(collective.class);
        class.is_some_and(|class| collective.parts.len() < class.members as usize)
    }

    /// Index of an equal element, which is appended if it is new.
    pub(crate) fn intern<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
        list.iter().position(|known| *known == item).unwrap_or_else(|| {
            list.push(item);
            list.len() - 1
        })
    }
}
