// SPDX-License-Identifier: Apache-2.0
/*!
The report: schema `ncclscope.report/3`.

These structures *are* the JSON: each field is a key. Fields may be added, but never renamed or
given another meaning. An unknown value is `null`. Bandwidths and sizes are those of nccl-tests
([`ncclscope_operations::bandwidth`]); times are nanoseconds unless the name says otherwise.
*/

use crate::buckets::Latency;
use serde::Serialize;
use std::collections::BTreeMap;

/// Value of [`Report::schema`].
pub const SCHEMA: &str = "ncclscope.report/3";

/// What the recordings of one run say.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// One row for each process and communicator.
    pub ranks: Vec<RankRow>,
    /// One row for each process.
    pub processes: Vec<ProcessRow>,
    /// For how long all ranks were recorded, together, in the chosen time: what the shares of
    /// `roles` are shares of.
    pub total_recorded_ns: u64,
    /// Time by what communicators are for and by function, longest first.
    pub roles: Vec<RoleRow>,
    /// Bandwidth by size, as nccl-tests prints it: largest first.
    pub sizes: Vec<SizeRow>,
    /// How long operations take, by role, function and size: those with the most time first.
    pub latencies: Vec<LatencyRow>,
    /// One row for each communicator, function, size, algorithm, protocol and channel count.
    pub operations: Vec<OperationRow>,
    /// Operations and API calls that were not over at the end of their recording.
    pub open_operations: Vec<OpenOperation>,
    /// One row for each communicator and pair of ranks that used the network.
    pub peers: Vec<PeerRow>,
    /// The windows of recording of each process, in order.
    pub windows: Vec<Window>,
    /// Operations added up as asked for; `null` if that was not.
    pub groups: Option<Groups>,
    /// What was not recorded.
    pub lost: Lost,
    /// Damage and contradictions, each with the file it concerns.
    pub problems: Vec<String>,
    /// The plugin's notes about itself.
    pub notes: Vec<String>,
    /// What cannot be known for this run.
    pub unknowable: Vec<String>,
}

/// A process in a communicator. Events of no known communicator have a row of their own, in which
/// what belongs to the communicator is `null`.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// Rank in the job: the launcher's, else that in the largest communicator; `null` unknown.
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
    /// What the application said that the communicator is for, such as `tp`.
    pub role: Option<String>,
    /// NCCL's version, e.g. `2.28.9`.
    pub nccl_version: Option<String>,
    /// Profiler API version that NCCL used.
    pub api_version: Option<u32>,
    /// Counts by kind of event; kinds that never occurred are left out.
    pub events: BTreeMap<&'static str, EventCounts>,
    /// How often each state occurred, those of steps included.
    pub states: BTreeMap<String, u64>,
    /// Roles of the process's threads, one for each lane used.
    pub threads: Vec<&'static str>,
    /// Its clocks.
    pub clock: Clock,
    /// When the communicator was made, `CLOCK_REALTIME` in ns since 1970.
    pub start_ns: Option<u64>,
    /// The latest time in the recording, likewise.
    pub end_ns: Option<u64>,
    /// The recording's file name.
    pub file: String,
}

/// A process: the facts of its recording's identity (docs/trace-format.md), by their keys. What is
/// not known is left out.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    /// The recording's file name.
    pub file: String,
    /// Numbers are numbers, all else is text.
    pub identity: BTreeMap<String, Fact>,
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
    /// Those of them that stopped.
    pub stopped: u64,
    /// `started - stopped`.
    pub open: u64,
    /// Events that were not recorded. Known by process: they stand in its first row.
    pub dropped: u64,
    /// Stops of events that had stopped before.
    pub stale: u64,
    /// Events whose parent is not in the recording.
    pub unknown_parent: u64,
}

/// How good a row's times are.
#[derive(Clone, Debug, Serialize)]
pub struct Clock {
    /// Where time stamps come from: `tsc` or `monotonic`.
    pub source: &'static str,
    /// Error of host times against `CLOCK_REALTIME`, ns.
    pub error_ns: u32,
    /// Error of GPU times on the host's clock in the worst window of 30 s, ns; `null` if there are
    /// none or nothing bounds it.
    pub gpu_error_ns: Option<u64>,
    /// The step of the GPU's timer: all its times differ by multiples of it, ns; `null` if there
    /// are too few.
    pub gpu_granularity_ns: Option<u64>,
}

/// The operations of one function of all communicators with one role.
#[derive(Clone, Debug, Serialize)]
pub struct RoleRow {
    /// What the application said that the communicators are for, else their name, else their size.
    pub role: String,
    /// Function.
    pub func: String,
    /// How many communicators.
    pub communicators: u64,
    /// Operations of these communicators; a collective counts once.
    pub count: u64,
    /// How many operations of all ranks `total_ns` is of, as in [`OperationRow::timed`].
    pub timed: u64,
    /// Sum of their durations; `null` if there are none.
    pub total_ns: Option<u64>,
    /// For how long ranks were in these operations, from arrival to end, together; what overlaps
    /// on a rank counts once. `null` where that is not known.
    pub in_nccl_ns: Option<u64>,
    /// Whether `in_nccl_ns` and `share` are the `least` that it may be (ends are not known), or the
    /// `most` (arrivals are not known: from the enqueueing); `null`: neither.
    pub bound: Option<&'static str>,
    /// `in_nccl_ns` as a share of [`Report::total_recorded_ns`]. Operations of several rows
    /// overlap, so that shares may add up to more than 1.
    pub share: Option<f64>,
    /// How much of `judged_ns` ranks waited for later ranks.
    pub total_waiting_ns: Option<u64>,
    /// From arrival to end, summed over the operations of which the transfer is known.
    pub judged_ns: Option<u64>,
}

impl RoleRow {
    /// The sign before a time or share that is a bound; else nothing.
    #[must_use]
    pub fn sign(&self) -> &'static str {
        match self.bound {
            Some("least") => ">=",
            Some(_) => "<=",
            None => "",
        }
    }
}

/// The operations of one function and size of all communicators with one role and as many ranks.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// As in [`RoleRow`].
    pub role: String,
    /// Function.
    pub func: String,
    /// Size; `null` where the datatype is unknown.
    pub bytes: Option<u64>,
    /// Ranks of the communicators.
    pub nranks: Option<u32>,
    /// Operations of these communicators; a collective counts once.
    pub count: u64,
    /// The median of the communicators' median transfers; `null` where these are unknown.
    pub transfer_ns: Option<u64>,
    /// The median of the communicators' algorithm bandwidths, GB/s; likewise.
    pub algbw_gbs: Option<f64>,
    /// The median of their bus bandwidths, GB/s; likewise.
    pub busbw_gbs: Option<f64>,
    /// The least of their bus bandwidths, GB/s, and that communicator.
    pub least: Option<LeastBandwidth>,
    /// The median of their bus bandwidths with waiting, GB/s: that of the transfer is no lower.
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
    /// Size; `null` where the datatype is unknown.
    pub bytes: Option<u64>,
    /// Datatype of the first such operation, as the caller gave it.
    pub datatype: String,
    /// Algorithm; `null` for sends, receives and copy-engine collectives.
    pub algorithm: Option<String>,
    /// Protocol; as `algorithm`.
    pub protocol: Option<String>,
    /// Channels used.
    pub channels: Option<u8>,
    /// Operations of the rank that has most of them. A collective counts once, not once a rank.
    pub count: u64,
    /// Open operations of the rank that has most of them.
    pub open: u64,
    /// How many ranks took part, of those recorded.
    pub ranks: u64,
    /// Where `duration_ns` is from: the source that most of the operations have.
    pub timing: &'static str,
    /// All ranks' operations by source, e.g. `{"kernel": 4}`.
    pub timings: BTreeMap<&'static str, u64>,
    /// How many operations of all ranks `duration_ns` and `total_ns` are of: the finished ones
    /// whose duration is from `timing`.
    pub timed: u64,
    /// Durations of these operations; `null` if there are none.
    pub duration_ns: Option<Durations>,
    /// The sum of these durations.
    pub total_ns: Option<u64>,
    /// The sum of the durations that `with_waiting_ns` is of.
    pub total_with_waiting_ns: Option<u64>,
    /// How much of that ranks waited for later ranks; `null` where the transfer is unknown.
    pub total_waiting_ns: Option<u64>,
    /// From the last rank's arrival to the end of a collective; `null` where that is unknown.
    pub transfer_ns: Option<Durations>,
    /// Collectives of which `transfer_ns` is: of more than 1,024 a part.
    pub transfers: u64,
    /// Why `transfer_ns` is `null`.
    pub transfer_unknown: Option<&'static str>,
    /// From each rank's arrival to the end, the wait for later ranks included; `null` where the
    /// arrival, or the end, is unknown.
    pub with_waiting_ns: Option<Durations>,
    /// How much longer than the transfer the rank took that waited longest.
    pub waiting_ns: Option<Durations>,
    /// The rank that arrived last most often.
    pub last_rank: Option<LastRank>,
    /// Algorithm bandwidth of the median transfer, GB/s; `null` where the transfer is unknown.
    pub algbw_gbs: Option<f64>,
    /// Bus bandwidth of the median transfer, GB/s; likewise.
    pub busbw_gbs: Option<f64>,
    /// Bus bandwidth of the median with waiting, GB/s: that of the transfer is no lower.
    pub busbw_with_waiting_gbs: Option<f64>,
    /// The distributions, for [`Report::latencies`].
    #[serde(skip)]
    pub(crate) latency: Latency,
}

/// How long the operations of one function and size take, of all communicators with one role.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyRow {
    /// As in [`RoleRow`].
    pub role: String,
    /// Function.
    pub func: String,
    /// Size; `null` where the datatype is unknown.
    pub bytes: Option<u64>,
    /// From each rank's arrival to the end, the wait for later ranks included; of communicators
    /// whose arrivals are unknown, as in [`OperationRow::duration_ns`].
    pub with_waiting_ns: Option<Histogram>,
    /// From the last rank's arrival to the end; `null` where that is unknown.
    pub transfer_ns: Option<Histogram>,
}

/// Durations, ns. The least and the greatest are exact; percentiles, by nearest rank, are off by
/// 4 % at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// How many there are.
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
    /// and how many durations. There are 16 for each doubling.
    pub buckets: Vec<[u64; 3]>,
}

/// The rank that arrived last most often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LastRank {
    /// Rank in the job; `null` unknown.
    pub rank: Option<u32>,
    /// Rank in the communicator.
    pub comm_rank: i32,
    /// How often, of `transfers`.
    pub times: u64,
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
    /// Rank in the job: the launcher's, else that in the largest communicator; `null` unknown.
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
    /// Its number on its communicator, from 1, as the watchdog and `diagnose` count: collectives
    /// apart from sends and receives. `null` where the recording lost some.
    pub number: Option<u64>,
    /// NCCL's sequence number among those of its function; sends and receives have none.
    pub nccl_seq: Option<u64>,
    /// The other rank of a send or receive, in the job.
    pub peer: Option<u32>,
    /// The same in the communicator.
    pub comm_peer: Option<i32>,
    /// From its start to the end of the recording, ns.
    pub age_ns: u64,
    /// What has not happened yet.
    pub waits_for: Vec<String>,
}

/// Network traffic from one rank to another.
#[derive(Clone, Debug, Serialize)]
pub struct PeerRow {
    /// Communicator.
    pub comm: String,
    /// The name that the application gave the communicator.
    pub comm_name: Option<String>,
    /// Sending rank, in the job; `null` unknown.
    pub src: Option<u32>,
    /// Receiving rank, in the job; `null` unknown.
    pub dst: Option<u32>,
    /// Sending rank, in the communicator.
    pub comm_src: i32,
    /// Receiving rank, in the communicator.
    pub comm_dst: i32,
    /// Bytes; `null` if NCCL gave no sizes.
    pub bytes: Option<u64>,
    /// Network steps that were completed: by the sender where it was recorded, else the receiver.
    pub transfers: u64,
    /// Network time of a send of size 0, ns, by linear regression; `null` with fewer than two
    /// sizes, and where the line gives less than 0.
    pub latency_ns: Option<u64>,
    /// Bandwidth that one transfer gets: bytes by their time on the network, GB/s; `null` where the
    /// sender or some sizes are not known.
    pub transfer_gbs: Option<f64>,
    /// The same without `latency_ns`, by the same regression: bytes that a send adds in its time.
    pub rate_gbs: Option<f64>,
    /// Share of the variance that the regression explains.
    pub r2: Option<f64>,
    /// Time spent by steps; steps overlap, so that sums may exceed the run.
    pub waits_ns: PeerWaits,
}

/// Where the time of the steps between two ranks went, ns. A side that was not recorded is `null`.
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

/// Time in which the operations that were issued are in the recording.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Window {
    /// The recording's file name.
    pub file: String,
    /// When it began, `CLOCK_REALTIME` ns.
    pub start_ns: u64,
    /// When it was stopped; `null`: it was not.
    pub stop_ns: Option<u64>,
    /// Every how many-th operation is recorded.
    pub sample: u64,
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
    /// Oldest records that gave way to newer ones, as intended for a bounded recording.
    pub overwritten_by_kind: BTreeMap<&'static str, u64>,
    /// Strings and communicators that found no room in the file.
    pub definitions: u64,
    /// Strings that found no room in the plugin.
    pub strings: u64,
    /// Communicators that found no room in the plugin.
    pub comms: u64,
    /// Kernel channels whose GPU times were another work's, and were dropped, or that NCCL never
    /// reported for that reason. Their events are there, but for the latter: not in `total`.
    pub stray_kernel_times: u64,
    /// Words in lanes that were no record: a defect of ncclscope.
    pub garbage_words: u64,
    /// Events of kinds that the plugin did not know.
    pub unknown_events: u64,
    /// Callbacks that failed inside the plugin and were contained: a defect of ncclscope.
    pub panics: u64,
    /// The same in sentences, with what to do about it.
    pub losses: Vec<Loss>,
}

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// What, how much, and why.
    pub what: String,
    /// What to set so that it does not happen again; `null` if nothing helps.
    pub advice: Option<String>,
}

/// Operations added up by some of their properties.
#[derive(Clone, Debug, Serialize)]
pub struct Groups {
    /// By what: the keys of the rows.
    pub by: Vec<&'static str>,
    /// The groups: by number if the first key is one, else the most time first.
    pub rows: Vec<GroupRow>,
}

/// A group of operations, with one field for each key.
#[derive(Clone, Debug, Serialize)]
pub struct GroupRow {
    /// What its operations have in common.
    #[serde(flatten)]
    pub keys: BTreeMap<&'static str, Label>,
    /// Operations of all ranks: a collective of 8 ranks counts 8 times. Of a channel: kernels.
    pub count: u64,
    /// Their sizes together; of a channel what was sent over the network. `null` unknown.
    pub total_bytes: Option<u64>,
    /// How many of them `total_ns` is of: the finished ones whose duration is from the source that
    /// most of the operations with their communicator, function and size have
    /// ([`OperationRow::timing`]).
    pub timed: u64,
    /// The sum of their durations; `null` if there are none.
    pub total_ns: Option<u64>,
    /// The part of `total_ns` that begins with the enqueueing (sources `proxy` and `enqueue`): the
    /// host runs ahead of the GPU.
    pub from_enqueue_ns: Option<u64>,
    /// From arrival to end, summed over the operations of which the transfer is known: the next two
    /// are parts of it.
    pub judged_ns: Option<u64>,
    /// How much of that ranks waited for later ranks; `null` where the transfer is unknown.
    pub total_waiting_ns: Option<u64>,
    /// The rest of it.
    pub total_transfer_ns: Option<u64>,
    /// Bus bandwidth of the transfers, GB/s: that of all bytes together.
    pub busbw_gbs: Option<f64>,
}

/// What the operations of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum Label {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// Not known: `null`.
    Unknown(()),
}
