// SPDX-License-Identifier: Apache-2.0
/*!
The report: schema `ncclscope.report/3`.

These structures *are* the JSON: each field is a key. Fields may be added, but never renamed or
given another meaning. An unknown value is `null`. Bandwidths and sizes are those of nccl-tests
([`ncclscope_operations::bandwidth`]); times are nanoseconds unless the name says otherwise.
*/

use crate::buckets::Latency;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Value of [`Report::schema`].
pub const SCHEMA: &str = "ncclscope.report/3";

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// One row for each process and communicator.
    pub ranks: Vec<RankRow>,
    /// One row for each process.
    pub processes: Vec<ProcessRow>,
    /// Sum of the recorded times of all ranks within the chosen time: the whole for the shares in
    /// `roles`.
    pub total_recorded_ns: u64,
    /// Time by role of the communicators and by function, longest first.
    pub roles: Vec<RoleRow>,
    /// Bandwidth by size, as nccl-tests prints it: largest first.
    pub sizes: Vec<SizeRow>,
    /// Durations of operations by role, function and size; those with the most time first.
    pub latencies: Vec<LatencyRow>,
    /// One row for each communicator, function, size, algorithm, protocol and channel count.
    pub operations: Vec<OperationRow>,
    /// The ranks for which others waited in collectives, longest first.
    pub late_ranks: Vec<LateRank>,
    /// Operations and API calls that were not over at the end of their recording.
    pub open_operations: Vec<OpenOperation>,
    /// One row for each communicator and pair of ranks that used the network.
    pub peers: Vec<PeerRow>,
    /// The windows of recording of each process, in order.
    pub windows: Vec<Window>,
    /// When others changed the activation mask of each process, in order.
    pub mask_changes: Vec<MaskChange>,
    /// Groups of operations that were asked for; `null` if none were.
    pub groups: Option<Groups>,
    /// What was not recorded.
    pub lost: Lost,
    /// Damage and contradictions, each with its file.
    pub problems: Vec<String>,
    /// The plugin's notes about itself.
    pub notes: Vec<String>,
    /// What cannot be known for this run.
    pub unknowable: Vec<String>,
}

/// A process in a communicator. Events without a known communicator have a separate row, in which
/// the fields of the communicator are `null`.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// Rank in the job: the launcher's, else that in the largest communicator; `null` if unknown.
    pub rank: Option<u32>,
    /// Rank in the communicator.
    pub comm_rank: Option<i32>,
    /// Ranks of the communicator.
    pub nranks: Option<u32>,
    /// Nodes of the communicator.
    pub nodes: Option<u32>,
    /// CUDA device of the rank, as its process counts them.
    pub device: Option<u32>,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// The communicator's hash, or `unknown-N` where the API version gives none.
    pub comm: Option<String>,
    /// The name the application gave it.
    pub comm_name: Option<String>,
    /// The role that the application gave the communicator, such as `tp`.
    pub role: Option<String>,
    /// NCCL's version, e.g. `2.28.9`; with AMD's library `RCCL 2.27.7`.
    pub nccl_version: Option<String>,
    /// Profiler API version that NCCL used.
    pub api_version: Option<u32>,
    /// Counts by kind of event; kinds that never occurred are left out.
    pub events: BTreeMap<&'static str, EventCounts>,
    /// Count of each state, including those of steps.
    pub states: BTreeMap<Cow<'static, str>, u64>,
    /// Roles of the process's threads, one for each lane used.
    pub threads: Vec<&'static str>,
    /// Its clocks.
    pub clock: Clock,
    /// Time of the communicator's `init`, `CLOCK_REALTIME` in ns since 1970.
    pub start_ns: Option<u64>,
    /// The latest time in the recording, as `start_ns`.
    pub end_ns: Option<u64>,
    /// The recording's file name.
    pub file: String,
}

/// A process: the facts of its recording's identity (docs/trace-format.md) by key. Unknown facts
/// are left out.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    /// The recording's file name.
    pub file: String,
    /// The facts by key; numbers as numbers, others as text.
    pub identity: BTreeMap<String, Fact>,
    /// Whether part of it is missing or damaged; `problems` says what.
    pub is_damaged: bool,
}

/// A fact about a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Fact {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

/// Counts of one kind of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventCounts {
    /// Events whose start is in the recording.
    pub started: u64,
    /// Events that stopped, of those in `started`.
    pub stopped: u64,
    /// `started - stopped`.
    pub open: u64,
    /// Events that were not recorded. They are counted per process, so only its first row has them.
    pub dropped: u64,
    /// Stops of events that had stopped before.
    pub stale: u64,
    /// Events whose parent is not in the recording.
    pub unknown_parent: u64,
}

/// The accuracy of a row's times.
#[derive(Clone, Debug, Serialize)]
pub struct Clock {
    /// Source of time stamps: `tsc` or `monotonic`; `inspector` if the report is of NCCL
    /// Inspector's files, whose times are whole microseconds.
    pub source: &'static str,
    /// Error of host times against `CLOCK_REALTIME`, ns.
    pub error_ns: u32,
    /// Error of GPU times on the host's clock in the worst window of 30 s, ns; `null` if there are
    /// no GPU times or the error is unknown.
    pub gpu_error_ns: Option<u64>,
    /// Resolution of the GPU's timer, ns: all its times differ by multiples of it; `null` if there
    /// are too few.
    pub gpu_granularity_ns: Option<u64>,
}

/// The operations of one function of all communicators with one role.
#[derive(Clone, Debug, Serialize)]
pub struct RoleRow {
    /// The role that the application gave the communicators, else their name, else their size.
    pub role: String,
    /// Function.
    pub func: String,
    /// Number of communicators.
    pub communicators: u64,
    /// Operations of these communicators; a collective counts once.
    pub count: u64,
    /// Number of operations of all ranks in `total_ns`, as in [`OperationRow::timed`].
    pub timed: u64,
    /// Sum of their durations; `null` if there are none.
    pub total_ns: Option<u64>,
    /// Time that all ranks spent in these operations, from arrival to end; overlapping operations
    /// of a rank count once. `null` if unknown.
    pub in_nccl_ns: Option<u64>,
    /// Whether `in_nccl_ns` and `share` are lower bounds (`least`: ends are unknown) or upper
    /// bounds (`most`: arrivals are unknown, so counted from the enqueuing); `null`: neither.
    pub bound: Option<&'static str>,
    /// `in_nccl_ns` as a share of [`Report::total_recorded_ns`]. Operations of several rows may
    /// overlap, so the sum of the shares may exceed 1.
    pub share: Option<f64>,
    /// Part of `judged_ns` in which ranks waited for later ranks.
    pub total_waiting_ns: Option<u64>,
    /// Sum of the times from arrival to end of the operations with a known transfer.
    pub judged_ns: Option<u64>,
}

impl RoleRow {
    /// The sign to write before a time or share that is a bound; empty if it is not one.
    #[must_use]
    pub fn sign(&self) -> &'static str {
        match self.bound {
            Some("least") => ">=",
            Some(_) => "<=",
            None => "",
        }
    }
}

/// The operations of one function and size, of all communicators with the same role and number of
/// ranks.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// As in [`RoleRow`].
    pub role: String,
    /// Function.
    pub func: String,
    /// Size in bytes; `null` if the datatype is unknown.
    pub bytes: Option<u64>,
    /// Ranks of the communicators.
    pub nranks: Option<u32>,
    /// Operations of these communicators; a collective counts once.
    pub count: u64,
    /// The median of the communicators' median transfers; `null` if these are unknown.
    pub transfer_ns: Option<u64>,
    /// The median of the communicators' algorithm bandwidths, GB/s; `null` as `transfer_ns`.
    pub algbw_gbs: Option<f64>,
    /// The median of their bus bandwidths, GB/s; `null` as `transfer_ns`.
    pub busbw_gbs: Option<f64>,
    /// The communicator with the least bus bandwidth.
    pub least: Option<LeastBandwidth>,
    /// The median of their bus bandwidths including the wait, GB/s: a lower bound of `busbw_gbs`.
    pub busbw_with_waiting_gbs: Option<f64>,
}

/// The communicator with the least bus bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeastBandwidth {
    /// The communicator.
    pub comm: String,
    /// The name that the application gave the communicator.
    pub comm_name: Option<String>,
    /// Its bus bandwidth, GB/s.
    pub busbw_gbs: f64,
}

/// Operations with the same key.
#[derive(Clone, Debug, Serialize)]
pub struct OperationRow {
    /// Communicator.
    pub comm: String,
    /// The name that the application gave the communicator.
    pub comm_name: Option<String>,
    /// Function.
    pub func: String,
    /// Size in bytes; `null` if the datatype is unknown.
    pub bytes: Option<u64>,
    /// Datatype of the first such operation, as the caller gave it.
    pub datatype: String,
    /// Algorithm; `null` for sends, receives and copy-engine collectives.
    pub algorithm: Option<String>,
    /// Protocol; as `algorithm`.
    pub protocol: Option<String>,
    /// Channels used.
    pub channels: Option<u16>,
    /// Operations of the rank that has most of them, so a collective counts once and not once per
    /// rank.
    pub count: u64,
    /// Open operations of the rank that has most of them.
    pub open: u64,
    /// Operations of all ranks with a buffer that is not aligned to 16 bytes, which NCCL's kernels
    /// copy in smaller pieces.
    pub unaligned: u64,
    /// Number of recorded ranks that took part.
    pub ranks: u64,
    /// Source of `duration_ns`: that of most of the operations.
    pub timing: &'static str,
    /// All ranks' operations by source, e.g. `{"kernel": 4}`.
    pub timings: BTreeMap<&'static str, u64>,
    /// Number of operations of all ranks in `duration_ns` and `total_ns`: those that are over and
    /// whose duration comes from `timing`.
    pub timed: u64,
    /// Durations of these operations; `null` if there are none.
    pub duration_ns: Option<Durations>,
    /// The sum of these durations.
    pub total_ns: Option<u64>,
    /// The sum of the durations in `with_waiting_ns`.
    pub total_with_waiting_ns: Option<u64>,
    /// Part of `total_with_waiting_ns` in which ranks waited for later ranks; `null` if the
    /// transfer is unknown.
    pub total_waiting_ns: Option<u64>,
    /// From the last rank's arrival to the end of a collective; `null` if it is unknown.
    pub transfer_ns: Option<Durations>,
    /// Number of collectives in `transfer_ns`; of more than 1,024 only a part is used.
    pub transfers: u64,
    /// Why `transfer_ns` is `null`.
    pub transfer_unknown: Option<&'static str>,
    /// From each rank's arrival to the end, including the wait for later ranks; `null` if arrivals
    /// or ends are unknown.
    pub with_waiting_ns: Option<Durations>,
    /// The longest wait of a rank in each collective.
    pub waiting_ns: Option<Durations>,
    /// The rank that the others waited longest for.
    pub last_rank: Option<LastRank>,
    /// All ranks that arrived last, the one that the others waited longest for first; for
    /// [`Report::late_ranks`].
    #[serde(skip)]
    pub(crate) last: Vec<LastRank>,
    /// Algorithm bandwidth of the median transfer, GB/s; `null` if the transfer is unknown.
    pub algbw_gbs: Option<f64>,
    /// Bus bandwidth of the median transfer, GB/s; `null` if the transfer is unknown.
    pub busbw_gbs: Option<f64>,
    /// Bus bandwidth of the median time with waiting, GB/s: a lower bound of `busbw_gbs`.
    pub busbw_with_waiting_gbs: Option<f64>,
    /// The distributions, for [`Report::latencies`].
    #[serde(skip)]
    pub(crate) latency: Latency,
}

/// The durations of operations of one function and size, of all communicators with the same role.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyRow {
    /// As in [`RoleRow`].
    pub role: String,
    /// Function.
    pub func: String,
    /// Size in bytes; `null` if the datatype is unknown.
    pub bytes: Option<u64>,
    /// From each rank's arrival to the end, including the wait for later ranks; for communicators
    /// whose arrivals are unknown, the durations of [`OperationRow::duration_ns`].
    pub with_waiting_ns: Option<Histogram>,
    /// From the last rank's arrival to the end; `null` if it is unknown.
    pub transfer_ns: Option<Histogram>,
}

/// Durations, ns. The least and the greatest are exact; percentiles, by nearest rank, are off by
/// 4 % at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Number of durations.
    pub count: u64,
    /// Shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
    /// The buckets that are not empty, ascending: the first ns, the first ns of the next bucket,
    /// and the number of durations. There are 16 buckets per doubling.
    pub buckets: Vec<[u64; 3]>,
}

/// A rank that the others of its communicator waited for in operations of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LastRank {
    /// Rank in the job; `null` if unknown.
    pub rank: Option<u32>,
    /// Rank in the communicator.
    pub comm_rank: i32,
    /// Number of collectives in which it was last, of `transfers`.
    pub times: u64,
    /// How long all other ranks together waited for it in all collectives of the row, ns. If
    /// `transfers` are only a part of them, it is extrapolated from these.
    pub waiting_ns: u64,
}

/// A rank that the others waited for in collectives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LateRank {
    /// Rank in the job; `null` if unknown.
    pub rank: Option<u32>,
    /// If the rank in the job is unknown, the communicator, and the rank in it.
    pub comm: Option<String>,
    /// The name that the application gave `comm`.
    pub comm_name: Option<String>,
    /// As `comm`.
    pub comm_rank: Option<i32>,
    /// Its host's name; `null` if it has no recording.
    pub host: Option<String>,
    /// How long all other ranks together waited for it, ns: the sum of the rows'
    /// [`LastRank::waiting_ns`], so that of a row with more than 1,024 collectives a rare wait may
    /// be missing or too long.
    pub waiting_ns: u64,
    /// `waiting_ns` as a share of the time from arrival to end of all ranks in collectives with a
    /// known transfer, which is the sum of `judged_ns` of `roles`.
    pub share: f64,
}

/// A distribution of durations, ns; percentiles by nearest rank. Those of more than 4,096 durations
/// are off by 0.4 % at most; the least and the greatest are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Durations {
    /// Shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

/// An operation or API call that was not over.
#[derive(Clone, Debug, Serialize)]
pub struct OpenOperation {
    /// Rank in the job: the launcher's, else that in the largest communicator; `null` if unknown.
    pub rank: Option<u32>,
    /// Rank in the communicator.
    pub comm_rank: Option<i32>,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Communicator.
    pub comm: Option<String>,
    /// The name that the application gave the communicator.
    pub comm_name: Option<String>,
    /// Function, or `GroupApi`.
    pub func: String,
    /// Size.
    pub bytes: Option<u64>,
    /// Its number on its communicator, from 1, as the watchdog and `diagnose` count it: collectives
    /// separately from sends and receives. `null` if the recording lost operations.
    pub number: Option<u64>,
    /// NCCL's sequence number, per communicator and function; `null` for sends and receives.
    pub nccl_seq: Option<u64>,
    /// The other rank of a send or receive, in the job.
    pub peer: Option<u32>,
    /// The other rank of a send or receive, in the communicator.
    pub comm_peer: Option<i32>,
    /// From its start to the end of the recording, ns.
    pub age_ns: u64,
    /// What it waits for, one sentence each.
    pub waits_for: Vec<String>,
}

/// Network traffic from one rank to another.
#[derive(Clone, Debug, Serialize)]
pub struct PeerRow {
    /// Communicator.
    pub comm: String,
    /// The name that the application gave the communicator.
    pub comm_name: Option<String>,
    /// Sending rank, in the job; `null` if unknown.
    pub src: Option<u32>,
    /// Receiving rank, in the job; `null` if unknown.
    pub dst: Option<u32>,
    /// Sending rank, in the communicator.
    pub comm_src: i32,
    /// Receiving rank, in the communicator.
    pub comm_dst: i32,
    /// Bytes; `null` if NCCL gave no sizes.
    pub bytes: Option<u64>,
    /// Number of completed network steps: the sender's if it was recorded, else the receiver's.
    pub transfers: u64,
    /// Network time of a send of size 0, ns, by linear regression; `null` with fewer than two
    /// sizes, or if the result is negative.
    pub latency_ns: Option<u64>,
    /// Bandwidth of one transfer: bytes by their time on the network, GB/s; `null` if the sender
    /// was not recorded or some sizes are unknown.
    pub transfer_gbs: Option<f64>,
    /// Bandwidth without the latency, by the same regression: the inverse of the time that each
    /// byte adds to a send, GB/s.
    pub rate_gbs: Option<f64>,
    /// Share of the variance that the regression explains.
    pub r2: Option<f64>,
    /// Time that steps spent in each state; steps overlap, so the sums may exceed the duration of
    /// the run.
    pub waits_ns: PeerWaits,
}

/// Time of the steps between two ranks by state, ns. The fields of a side that was not recorded are
/// `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerWaits {
    /// The sender waited for its GPU to produce data.
    pub send_gpu: Option<u64>,
    /// The sender waited for the receiver to post its buffer.
    pub send_peer: Option<u64>,
    /// The data was on the network.
    pub send_network: Option<u64>,
    /// The receiver waited for data: for the sender, or the network.
    pub recv_network: Option<u64>,
    /// The receiver flushed data to its GPU.
    pub recv_flush: Option<u64>,
    /// The receiver waited for its GPU to consume data.
    pub recv_gpu: Option<u64>,
}

/// A recording window: operations that are issued in this time are recorded.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Window {
    /// The recording's file name.
    pub file: String,
    /// When it began, `CLOCK_REALTIME` ns.
    pub start_ns: u64,
    /// When it was stopped, as `start_ns`; `null` if it was not.
    pub stop_ns: Option<u64>,
    /// One operation in this many is recorded.
    pub sample: u64,
}

/// A time in which NCCL's activation mask was not as the plugin requested it, because others
/// changed it: `CONTROL PROFILER_MASK` of NCCL's RAS, or another library.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct MaskChange {
    /// The recording's file name.
    pub file: String,
    /// When it began, `CLOCK_REALTIME` ns; at most 0.1 s early.
    pub start_ns: u64,
    /// When it ended, as `start_ns`, at most 0.1 s late; `null` if it did not.
    pub end_ns: Option<u64>,
    /// The mask.
    pub mask: u32,
}

/// What was not recorded, over all processes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Lost {
    /// Sum of everything below but `overwritten`, `stray_kernel_times`, `unknown_events` and
    /// `panics`.
    pub total: u64,
    /// Events that were not recorded at all: their thread's lane was full.
    pub by_kind: BTreeMap<&'static str, u64>,
    /// Stops and states that were not recorded, of events that were.
    pub ends_by_kind: BTreeMap<&'static str, u64>,
    /// Events that were not recorded at all: there was no lane for their thread.
    pub without_lane_by_kind: BTreeMap<&'static str, u64>,
    /// ProxyOps that were not recorded, and their steps: too many were in flight.
    pub without_slot_by_kind: BTreeMap<&'static str, u64>,
    /// Records that could not be written to the file.
    pub unwritten_by_kind: BTreeMap<&'static str, u64>,
    /// Oldest records that were overwritten by newer ones, as intended in a bounded recording.
    pub overwritten_by_kind: BTreeMap<&'static str, u64>,
    /// Strings and communicators that did not fit into the file.
    pub definitions: u64,
    /// Strings that did not fit into the plugin's table.
    pub strings: u64,
    /// Communicators that did not fit into the plugin's table.
    pub comms: u64,
    /// Recordings removed while they were written, with all that they had. Not in `total`.
    pub removed: u64,
    /// Kernel channels whose GPU times were dropped because they were another work's, or that NCCL
    /// did not report for that reason. Not in `total`.
    pub stray_kernel_times: u64,
    /// Words in lanes that were not a record, which is a defect of ncclscope.
    pub garbage_words: u64,
    /// Events of kinds that the plugin did not know.
    pub unknown_events: u64,
    /// Panics in the plugin's callbacks, which are caught; a defect of ncclscope.
    pub panics: u64,
    /// The losses in sentences, each with advice.
    pub losses: Vec<Loss>,
}

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// What, how much, and why.
    pub what: String,
    /// A setting that prevents it; `null` if there is none.
    pub advice: Option<String>,
}

/// Operations grouped by some of their properties.
#[derive(Clone, Debug, Serialize)]
pub struct Groups {
    /// The properties: keys of the rows.
    pub by: Vec<&'static str>,
    /// The groups: sorted by the first key if it is a number, else by time, longest first.
    pub rows: Vec<GroupRow>,
}

/// A group of operations, with one field for each key.
#[derive(Clone, Debug, Serialize)]
pub struct GroupRow {
    /// The properties that its operations share.
    #[serde(flatten)]
    pub keys: BTreeMap<&'static str, Label>,
    /// Number of operations of all ranks: a collective of 8 ranks counts 8 times. For a channel,
    /// the number of kernels.
    pub count: u64,
    /// Sum of their sizes; for a channel, the bytes sent over the network. `null` if unknown.
    pub total_bytes: Option<u64>,
    /// Number of operations in `total_ns`: those that are over and whose duration comes from the
    /// source of most operations with their communicator, function and size
    /// ([`OperationRow::timing`]).
    pub timed: u64,
    /// The sum of their durations; `null` if there are none.
    pub total_ns: Option<u64>,
    /// The part of `total_ns` whose durations begin with the enqueuing (sources `proxy` and
    /// `enqueue`) and are too long, because the host runs ahead of the GPU.
    pub from_enqueue_ns: Option<u64>,
    /// Sum of the times from arrival to end of the operations with a known transfer;
    /// `total_waiting_ns` and `total_transfer_ns` are its parts.
    pub judged_ns: Option<u64>,
    /// Part of `judged_ns` in which ranks waited for later ranks; `null` if the transfer is
    /// unknown.
    pub total_waiting_ns: Option<u64>,
    /// Part of `judged_ns` after the last rank's arrival.
    pub total_transfer_ns: Option<u64>,
    /// Bus bandwidth of all transfers together, GB/s.
    pub busbw_gbs: Option<f64>,
}

/// The value of a property of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum Label {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// Unknown: `null`.
    Unknown(()),
}
