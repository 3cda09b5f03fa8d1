// SPDX-License-Identifier: Apache-2.0
//! Attributes: what distinguishes the series of a metric.

use crate::window::{ChannelKey, CommKey, LinkKey, OperationKey, RankKey};
use ncclscope_operations::Timing;
use std::sync::Arc;

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    /// A text.
    Text(Arc<str>),
    /// A number.
    Int(i64),
    /// A boolean.
    Bool(bool),
}

impl Attribute {
    /// The value as a label of Prometheus, whose labels are all texts.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Attribute::Text(text) => text.to_string(),
            Attribute::Int(number) => number.to_string(),
            Attribute::Bool(yes) => yes.to_string(),
        }
    }
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Attribute::Text(text.into())
    }
}

/// Attributes of a point, in the order of [`ATTRIBUTES`].
pub type Attributes = Vec<(&'static str, Attribute)>;

/// Attributes that multiply the number of series by the size of the job, so each is exported only
/// on request. Without an attribute, points that differ only in it are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// `nccl.rank` and `nccl.proxy.lane`.
    pub rank: bool,
    /// `nccl.peer.rank`.
    pub peer: bool,
    /// `nccl.channel.id`.
    pub channel: bool,
}

impl Labels {
    /// All labels.
    pub const ALL: Labels = Labels { rank: true, peer: true, channel: true };

    /// Whether an attribute is exported.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        match name {
            RANK | LANE => self.rank,
            PEER => self.peer,
            CHANNEL => self.channel,
            _ => true,
        }
    }
}

/// The attribute of the series that merges those over the cap, as in OpenTelemetry.
pub const OVERFLOW: &str = "otel.metric.overflow";

/// The CUDA device, by its index in the process.
pub const DEVICE: &str = "nccl.device.index";
/// The CUDA device, by its UUID.
pub const DEVICE_UUID: &str = "nccl.device.uuid";

pub(crate) const OPERATION: &str = "nccl.operation.name";
pub(crate) const TYPE: &str = "nccl.operation.type";
pub(crate) const COMM: &str = "nccl.communicator.name";
pub(crate) const HASH: &str = "nccl.communicator.hash";
pub(crate) const SIZE: &str = "nccl.communicator.size";
pub(crate) const NODES: &str = "nccl.communicator.nodes";
pub(crate) const ALGO: &str = "nccl.algorithm";
pub(crate) const PROTO: &str = "nccl.protocol";
pub(crate) const CHANNELS: &str = "nccl.channels";
pub(crate) const BUCKET: &str = "nccl.message_size.bucket";
pub(crate) const TIMING: &str = "nccl.timing";
pub(crate) const SCOPE: &str = "nccl.scope";
pub(crate) const NETWORK: &str = "nccl.network";
pub(crate) const DIRECTION: &str = "nccl.direction";
pub(crate) const WAIT: &str = "nccl.wait";
pub(crate) const FIT: &str = "nccl.fit.mode";
pub(crate) const CAUSE: &str = "nccl.loss.cause";
pub(crate) const EVENT: &str = "nccl.event.type";
pub(crate) const RANK: &str = "nccl.rank";
pub(crate) const PEER: &str = "nccl.peer.rank";
pub(crate) const CHANNEL: &str = "nccl.channel.id";
pub(crate) const LIBRARY: &str = "nccl.library";
pub(crate) const CLASS: &str = "nccl.finding.class";
pub(crate) const CONFIDENCE: &str = "nccl.finding.confidence";
pub(crate) const AT_FAULT: &str = "nccl.finding.rank";
pub(crate) const LANE: &str = "nccl.proxy.lane";

/// Each attribute with its description.
pub const ATTRIBUTES: &[(&str, &str)] = &[
    (OPERATION, "NCCL's function: `AllReduce`, `Send`, …"),
    (TYPE, "`collective` or `p2p`"),
    (COMM, "the communicator's name (`ncclConfig_t::commName`); absent without one"),
    (
        HASH,
        "NCCL's hash of the communicator, 16 hexadecimal digits; `0000000000000000` stands for \
         unknown communicators, and for all beyond the 64 that a rank distinguishes at a time",
    ),
    (SIZE, "ranks of the communicator; absent if NCCL does not report it"),
    (NODES, "nodes of the communicator; absent if NCCL does not report it"),
    (ALGO, "`RING`, `TREE`, …; absent for a P2P"),
    (PROTO, "`SIMPLE`, `LL`, `LL128`; absent for a P2P"),
    (CHANNELS, "channels that the operation uses; absent if unknown"),
    (
        BUCKET,
        "size of the operation: `1MiB-2MiB` from 1 MiB to below 2 MiB; absent if unknown \
         (AllGather and ReduceScatter on profiler API v1 to v3, which does not report the \
         number of ranks)",
    ),
    (
        TIMING,
        "the clock of the duration: `kernel` (the GPU's timer), `cuda_event`, `proxy`, \
         `kernel_lead` (the GPU's timer, a lower bound), `enqueue`",
    ),
    (
        SCOPE,
        "`inter`: the communicator spans nodes; `intra`: it does not; absent if NCCL does not \
         report its nodes",
    ),
    (NETWORK, "whether the rank's own part of the operation went over the network"),
    (DIRECTION, "`send` or `receive`, seen from the rank that reports"),
    (WAIT, "what transfers waited for: `gpu`, `peer` (send side), `network`, `flush`"),
    (FIT, "sends that the regression uses: `avg` all, `min` the fastest of each size"),
    (
        CAUSE,
        "the cause: `lane_full`, `no_lane`, `no_slot`, `unmatched`, `overflow`, `unfinished` (its \
         communicator ended before it did), `overtaken` (its end is missing: a later operation of \
         the communicator is over, or it is by the rank's watchdog), `lost_end` (its stop or state \
         was lost), `stray` (kernel times of another work), `stale`, `unknown`; from the agent \
         also `unwritten`; for requests `queue_full` (the collector was not available for too \
         long) and `refused` (it rejected the request or a part of it)",
    ),
    (EVENT, "kind of event; absent if unknown"),
    (RANK, "the rank that reports, on request"),
    (PEER, "the rank at the other end, on request"),
    (CHANNEL, "the channel, on request"),
    (LIBRARY, "a library that can communicate without NCCL"),
    (CLASS, "the class of a finding, such as `network-stalled` (docs/findings.md)"),
    (CONFIDENCE, "`confirmed` or `suspect`"),
    (AT_FAULT, "the rank of the job that is at fault; absent if none is known to be"),
    (LANE, "lane of the proxy thread, if ranks are requested"),
    (OVERFLOW, "`true`: the sum of the series over the cap; it has no other attributes"),
];

/// Collects attributes; unknown ones are left out.
#[derive(Default)]
pub(crate) struct Builder(pub(crate) Attributes);

impl Builder {
    pub(crate) fn text(mut self, name: &'static str, text: &Arc<str>) -> Self {
        if !text.is_empty() {
            self.0.push((name, Attribute::Text(text.clone())));
        }
        self
    }

    pub(crate) fn str(mut self, name: &'static str, text: &str) -> Self {
        if !text.is_empty() {
            self.0.push((name, text.into()));
        }
        self
    }

    pub(crate) fn int(mut self, name: &'static str, number: impl Into<i64>) -> Self {
        self.0.push((name, Attribute::Int(number.into())));
        self
    }

    fn bool(mut self, name: &'static str, yes: bool) -> Self {
        self.0.push((name, Attribute::Bool(yes)));
        self
    }

    fn known(self, name: &'static str, number: impl Into<i64>) -> Self {
        let number = number.into();
        if number == 0 { self } else { self.int(name, number) }
    }

    fn comm(self, comm: &CommKey) -> Self {
        self.text(COMM, &comm.name)
            .str(HASH, &format!("{:016x}", comm.hash))
            .known(SIZE, comm.ranks)
            .known(NODES, comm.nodes)
    }
}

pub(crate) fn operation(key: &OperationKey) -> Attributes {
    Builder::default()
        .text(OPERATION, &key.func)
        .str(TYPE, if key.is_p2p { "p2p" } else { "collective" })
        .comm(&key.comm)
        .text(ALGO, &key.algo)
        .text(PROTO, &key.proto)
        .known(CHANNELS, key.channels)
        .str(BUCKET, &key.size_class.map(bucket).unwrap_or_default())
        .str(TIMING, Timing::name(key.timing))
        .str(SCOPE, scope(&key.comm))
        .bool(NETWORK, key.network)
        .int(RANK, key.rank)
        .0
}

pub(crate) fn link(key: &LinkKey) -> Attributes {
    let builder = Builder::default().comm(&key.comm).str(DIRECTION, direction(key.is_send));
    builder.int(RANK, key.rank).int(PEER, key.peer).0
}

pub(crate) fn channel(key: &ChannelKey) -> Attributes {
    let builder = Builder::default().comm(&key.comm).str(DIRECTION, direction(key.is_send));
    let builder = builder.int(RANK, key.rank);
    match key.peer {
        Some(peer) => builder.int(PEER, peer),
        None => builder,
    }
    .int(CHANNEL, key.channel)
    .0
}

pub(crate) fn rank(key: &RankKey) -> Attributes {
    Builder::default().comm(&key.comm).int(RANK, key.rank).0
}

fn scope(comm: &CommKey) -> &'static str {
    match comm.nodes {
        0 => "",
        1 => "intra",
        _ => "inter",
    }
}

fn direction(is_send: bool) -> &'static str {
    if is_send { "send" } else { "receive" }
}

/// The range of a size class as text: `1MiB-2MiB`.
fn bucket(class: u8) -> String {
    let text = |power: u8| {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        format!("{}{}", 1u32 << (power % 10), units[usize::from(power / 10).min(6)])
    };
    let low = if class == 0 { "0B".to_owned() } else { text(class) };
    format!("{low}-{}", text(class.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_binary_units() {
        assert_eq!(bucket(0), "0B-2B");
        assert_eq!(bucket(9), "512B-1KiB");
        assert_eq!(bucket(22), "4MiB-8MiB");
        assert_eq!(bucket(63), "8EiB-16EiB");
    }

    #[test]
    fn labels_are_off_until_asked_for() {
        let names = ATTRIBUTES.iter().map(|(name, _)| *name);
        let off: Vec<_> = names.filter(|name| !Labels::default().has(name)).collect();
        assert_eq!(off, [RANK, PEER, CHANNEL, LANE]);
        assert!(off.iter().all(|name| Labels::ALL.has(name)));
    }
}
