// SPDX-License-Identifier: Apache-2.0
/*!
The content of a window: totals and distributions instead of events.

Windows can be added ([`Metrics::merge`]): those of a process to its totals since its start, and
those of several processes to the totals of a node. This module does not know how they are exported.
*/

use ncclscope_operations::Histogram;
use ncclscope_operations::Timing;
use ncclscope_operations::stats::LinearFit;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A name from NCCL, such as a function or an algorithm. Empty if NCCL gave none.
pub type Name = Arc<str>;

/// A communicator, the same on all of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommKey {
    /// NCCL's hash of the communicator.
    pub hash: u64,
    /// Its name (`ncclConfig_t::commName`); empty if it has none.
    pub name: Name,
    /// Ranks; 0 if NCCL does not report it.
    pub ranks: u32,
    /// Nodes; 0 if NCCL does not report it.
    pub nodes: u32,
}

impl CommKey {
    /// The key of all communicators that are not distinguished: unknown ones, and those beyond the
    /// limit ([`crate::Collector::comm`]).
    #[must_use]
    pub fn others() -> CommKey {
        CommKey { hash: 0, name: Name::default(), ranks: 0, nodes: 0 }
    }
}

/// Operations that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationKey {
    /// The communicator.
    pub comm: CommKey,
    /// The communicator rank that executed them.
    pub rank: i32,
    /// NCCL's function, such as `AllReduce` or `Send`.
    pub func: Name,
    /// Send or receive, not a collective.
    pub is_p2p: bool,
    /// Algorithm; empty for a P2P.
    pub algo: Name,
    /// Protocol; empty for a P2P.
    pub proto: Name,
    /// Number of channels; 0 if unknown.
    pub channels: u16,
    /// Bytes, as a power of two: the class holds sizes from `2^class` to `2^(class+1) - 1`, class 0
    /// also 0. `None` if NCCL does not report the facts that determine the size.
    pub size_class: Option<u8>,
    /// The source of the durations.
    pub timing: Timing,
    /// Whether this rank used the network: a ProxyOp of the operation moved data. In a communicator
    /// that spans nodes, a rank whose neighbours are on its own node does not use it.
    pub network: bool,
}

/// The totals of operations with one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operations {
    /// Number of operations.
    pub count: u64,
    /// Sum of their bytes, as nccl-tests count them; operations of unknown size count 0.
    pub bytes: u64,
    /// Their durations, s.
    pub duration: Histogram,
    /// Bus bandwidth of each operation with a known time from arrival to end, B/s.
    pub bus_bandwidth: Histogram,
    /// Algorithm bandwidth of each of these, B/s.
    pub algo_bandwidth: Histogram,
    /// Number of network steps that carried data, on the send side.
    pub transfers: u64,
    /// Sum of their bytes.
    pub transfer_bytes: u64,
    /// Sum of their times on the network, s.
    pub transfer_seconds: f64,
    /// The same operations as other projects measure them.
    pub compat: Compat,
}

/// Operations as other projects measure them. Operations without the times that a project uses are
/// left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compat {
    /// From the first kernel channel's start to the last one's stop, by the GPU's timer, s
    /// (NVIDIA's Inspector).
    pub kernel: Histogram,
    /// Bus bandwidth over that time, B/s.
    pub kernel_bandwidth: Histogram,
    /// From the operation's start to the last ProxyOp's stop, by the host's clock, s (Open Mosaic).
    pub proxy: Histogram,
}

/// One direction between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey {
    /// The communicator.
    pub comm: CommKey,
    /// This process's rank.
    pub rank: i32,
    /// The other rank.
    pub peer: i32,
    /// Whether this process sends.
    pub is_send: bool,
}

/// The transfers over a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// Steps that stopped.
    pub transfers: u64,
    /// Sum of their bytes, as far as NCCL reports sizes.
    pub bytes: u64,
    /// Sizes, B.
    pub size: Histogram,
    /// Times on the network, s.
    pub seconds: Histogram,
    /// Sum of the times of the steps in each wait, s.
    pub waits: Waits,
    /// The sends from which latency and rate are computed: those of a window; in a sum over time
    /// ([`Metrics::add_window`]) those of the last windows that together have [`ENOUGH_SENDS`].
    pub fit: Fit,
    /// The sends after those in `fit`, while they are fewer than [`ENOUGH_SENDS`].
    pub gathering: Fit,
}

/// Least number of sends from which a link's latency and rate are computed.
pub const ENOUGH_SENDS: f64 = 16.0;

/// Network times of sends (us) over their sizes (B). Receives are not included, because their times
/// contain the wait for the sender.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fit {
    /// A fit of all sends ([`Mode::Avg`]).
    pub all: LinearFit,
    /// The least time of the sends of each size ([`Mode::Min`]), at most [`LEAST_SIZES`].
    pub least: BTreeMap<u32, f64>,
}

/// Most sizes for which the least time is kept.
pub const LEAST_SIZES: usize = 64;

/// Which transfers a [`LinkLine`] is fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// All transfers.
    Avg,
    /// The fastest of each size.
    Min,
}

/// Latency and rate of a link, by linear regression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkLine {
    /// Time of a transfer of 0 bytes, us; `None` if it would be negative, because the times are not
    /// on a line.
    pub latency_us: Option<f64>,
    /// Bytes by the time without the latency, MB/s (10^6); with sends of one size, by the whole
    /// time.
    pub rate_mb_s: f64,
    /// Share of the times' variance that the line explains, 0 to 1; `None` with sends of one size.
    pub r2: Option<f64>,
}

/// The waiting times of steps by cause, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// For the GPU: data to send, or a free buffer to receive into.
    pub gpu: f64,
    /// For the peer's buffer (send side).
    pub peer: f64,
    /// In the network; on the receive side this includes the wait for the sender.
    pub network: f64,
    /// For the flush of received data.
    pub flush: f64,
}

/// A channel of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelKey {
    /// The communicator.
    pub comm: CommKey,
    /// This process's rank.
    pub rank: i32,
    /// The channel.
    pub channel: u8,
    /// The rank at the other end; `None` for kernels, which may have several.
    pub peer: Option<i32>,
    /// Whether it is the send side of the network; else the receive side.
    pub is_send: bool,
}

/// The totals of a channel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Channel {
    /// Steps that stopped.
    pub transfers: u64,
    /// Sum of their bytes.
    pub bytes: u64,
    /// Sum of their times on the network, s.
    pub seconds: f64,
    /// Number of kernel channels that stopped with a valid time (counted on the send side).
    pub kernels: u64,
    /// Sum of their times by the GPU's timer, s.
    pub kernel_seconds: f64,
}

/// The totals of a communicator on one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankKey {
    /// The communicator.
    pub comm: CommKey,
    /// The rank.
    pub rank: i32,
}

/// A CUDA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its index in the process.
    pub index: u32,
    /// Its UUID as `nvidia-smi -L` shows it; empty if the driver does not report it.
    pub uuid: Name,
}

/// The figures of all operations of a communicator on a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rank {
    /// From the end of an operation to the start of the next, s; 0 if they overlap. The next one is
    /// found among the operations that settle together, so an operation that hung comes after those
    /// that overtook it.
    pub gap: Histogram,
    /// Operations that are not over: the state at the window's end.
    pub in_flight: u64,
    /// The age of the oldest operation in flight, s.
    pub oldest: f64,
    /// Processes in which the communicator's operations show no end, according to the rank's
    /// watchdog.
    pub hidden: u64,
    /// Calls that were captured into CUDA graphs.
    pub captured: u64,
    /// Operations of captured calls without recorded kernels and network traffic; no figure
    /// contains their replays.
    pub invisible: u64,
}

/// The operation of a communicator that has been in flight longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestInFlight {
    /// The communicator.
    pub comm: CommKey,
    /// The rank that is in it.
    pub rank: i32,
    /// NCCL's function.
    pub func: Name,
    /// The other rank of a send or receive.
    pub peer: Option<i32>,
    /// Its bytes, as nccl-tests count them; `None` if the size is unknown.
    pub bytes: Option<u64>,
    /// When it started, in ticks.
    pub started: u64,
    /// Number of operations of the communicator in flight.
    pub count: u64,
}

/// The figures of a proxy progress thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Proxy {
    /// Number of ProxyOps that stopped.
    pub operations: u64,
    /// Time in which at least one ProxyOp was open, s.
    pub busy: f64,
}

/// A cause of a hang, and a rank at fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FindingKey {
    /// The class's name, such as `network-stalled`.
    pub class: &'static str,
    /// `confirmed` or `suspect`.
    pub confidence: &'static str,
    /// The rank of the job; `None` if none is known to be at fault.
    pub rank: Option<u32>,
}

/// The measurements of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// By operation.
    pub operations: BTreeMap<OperationKey, Operations>,
    /// By link.
    pub links: BTreeMap<LinkKey, Link>,
    /// By channel.
    pub channels: BTreeMap<ChannelKey, Channel>,
    /// By communicator and rank.
    pub ranks: BTreeMap<RankKey, Rank>,
    /// The devices of the ranks of a process with several ranks, as with JAX; empty for other
    /// processes.
    pub devices: BTreeMap<RankKey, Device>,
    /// By lane of the proxy thread.
    pub proxies: BTreeMap<u8, Proxy>,
    /// Events that are missing from the other totals, by cause (`lane_full`, `no_lane`,
    /// `unwritten`, `stale`, `unknown`; [`crate::Collector`] adds `unmatched`, `overflow`,
    /// `unfinished`, `overtaken` and `stray`) and kind of event (empty if unknown).
    pub lost: BTreeMap<(&'static str, &'static str), u64>,
    /// Requests with metrics that did not reach the collector, by cause (`queue_full`, `refused`).
    pub exports_lost: BTreeMap<&'static str, u64>,
    /// Number of processes in which a library is loaded that can communicate without NCCL, at the
    /// window's end, by library.
    pub beside: BTreeMap<Name, u64>,
    /// Number of processes whose activation mask others changed, at the window's end.
    pub masks_changed: u64,
    /// Why the job hangs at the window's end: 1 for each cause and rank at fault.
    pub findings: BTreeMap<FindingKey, u64>,
    /// Number of events that started, by kind.
    pub events: BTreeMap<&'static str, u64>,
}
