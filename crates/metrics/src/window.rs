// SPDX-License-Identifier: Apache-2.0
/*!
What a window holds: totals and distributions instead of events.

Windows add up ([`Metrics::merge`]), those of one process to what it did since it began, and those
of several processes to what a node did. Nothing here knows how it is exported.
*/

use ncclscope_operations::Histogram;
use ncclscope_operations::Timing;
use ncclscope_operations::stats::LinearFit;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A name that NCCL gave: a function, an algorithm. Empty where NCCL gave none.
pub type Name = Arc<str>;

/// A communicator, the same on all of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommKey {
    /// NCCL's hash of the communicator.
    pub hash: u64,
    /// Its name (`ncclConfig_t::commName`); empty without one.
    pub name: Name,
    /// Ranks; 0 where NCCL does not tell.
    pub ranks: u32,
    /// Nodes; 0 where NCCL does not tell.
    pub nodes: u32,
}

impl CommKey {
    /// All communicators that are not told apart: those that nothing is known of, and those for
    /// which there is no room ([`crate::Collector::comm`]).
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
    /// The rank that did them.
    pub rank: i32,
    /// NCCL's function, such as `AllReduce` or `Send`.
    pub func: Name,
    /// Send or receive, not a collective.
    pub is_p2p: bool,
    /// Algorithm; empty for a P2P.
    pub algo: Name,
    /// Protocol; empty for a P2P.
    pub proto: Name,
    /// Channels; 0 unknown.
    pub channels: u8,
    /// Bytes, as a power of two: the class holds sizes from `2^class` to `2^(class+1) - 1`, class 0
    /// also 0.
    pub size_class: u8,
    /// Where the durations are from.
    pub timing: Timing,
    /// It went over the network: a ProxyOp of it moved something. Otherwise it stayed on the node.
    pub network: bool,
}

/// What operations of one key came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operations {
    /// Operations.
    pub count: u64,
    /// Their bytes, as nccl-tests count them; none for a datatype that is not known.
    pub bytes: u64,
    /// Their durations, s.
    pub duration: Histogram,
    /// Bus bandwidth of each, B/s, where its duration says something about it (not
    /// [`Timing::Enqueue`]).
    pub bus_bandwidth: Histogram,
    /// Algorithm bandwidth of each, B/s; likewise.
    pub algo_bandwidth: Histogram,
    /// Network steps that carried data, send side.
    pub transfers: u64,
    /// Their bytes.
    pub transfer_bytes: u64,
    /// Their time in the network, s: the sum.
    pub transfer_seconds: f64,
}

/// One direction between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey {
    /// The communicator.
    pub comm: CommKey,
    /// This process's rank.
    pub rank: i32,
    /// The other.
    pub peer: i32,
    /// This process sends.
    pub is_send: bool,
}

/// What went over a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// Steps that stopped.
    pub transfers: u64,
    /// Their bytes, where NCCL told a size.
    pub bytes: u64,
    /// Sizes, B.
    pub size: Histogram,
    /// Times in the network, s.
    pub seconds: Histogram,
    /// Time of the steps in each wait, s: the sum.
    pub waits: Waits,
    /// Network time (us) over size (B) of all sends ([`Mode::Avg`]): a receive's time contains the
    /// wait for the sender.
    pub fit: LinearFit,
    /// The least network time (us) of the sends of each size (B) ([`Mode::Min`]), at most
    /// [`LEAST_SIZES`].
    pub least: BTreeMap<u32, f64>,
}

/// Sizes for which the least time is kept.
pub const LEAST_SIZES: usize = 64;

/// Which transfers a [`LinkLine`] goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// All of them.
    Avg,
    /// The quickest of each size.
    Min,
}

/// Latency and rate of a link, by linear regression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkLine {
    /// Time of a transfer of no bytes, us; `None` where it would be less than nothing, because
    /// the times are not on a line.
    pub latency_us: Option<f64>,
    /// Bytes by time beyond the latency, MB/s (10^6).
    pub rate_mb_s: f64,
    /// Share of the times' variance that the line explains, 0 to 1.
    pub r2: f64,
}

/// What steps waited for, s.
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
    /// Send side of the network, else receive side.
    pub is_send: bool,
}

/// What a channel did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Channel {
    /// Steps that stopped.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their time in the network, s: the sum.
    pub seconds: f64,
    /// Kernel channels that stopped with a valid time (counted on the send side).
    pub kernels: u64,
    /// Their time by the GPU's timer, s: the sum.
    pub kernel_seconds: f64,
}

/// What a communicator did on one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankKey {
    /// The communicator.
    pub comm: CommKey,
    /// The rank.
    pub rank: i32,
}

/// Of all operations of a communicator on a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rank {
    /// From the end of an operation to the start of the next, s; 0 where they overlap. Next is
    /// among those that settle together: a stuck one comes after those that overtook it.
    pub gap: Histogram,
    /// Operations that are not over: the state at the window's end.
    pub in_flight: u64,
    /// The age of the oldest of them, s.
    pub oldest: f64,
}

/// A thread that moves data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Proxy {
    /// ProxyOps that stopped.
    pub operations: u64,
    /// Time in which at least one ProxyOp was open, s.
    pub busy: f64,
}

/// What was measured in a window.
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
    /// By lane of the proxy thread.
    pub proxies: BTreeMap<u8, Proxy>,
    /// Events that are in no figure, by cause (`lane_full`, `no_lane`, `unwritten`,
    /// `stale`, `unknown`; `unmatched`, `overflow` and `unfinished` are the [`crate::Collector`]'s
    /// own) and kind of event (empty where it is not known).
    pub lost: BTreeMap<(&'static str, &'static str), u64>,
    /// Requests with metrics that did not reach the collector, by cause (`queue_full`, `refused`).
    pub exports_lost: BTreeMap<&'static str, u64>,
    /// Events that started, by kind.
    pub events: BTreeMap<&'static str, u64>,
}
