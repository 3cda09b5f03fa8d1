// SPDX-License-Identifier: Apache-2.0
/*!
The table of all metrics.

Names follow OpenTelemetry's rules (dots, no unit in the name, units of UCUM). The `hw.*` and
`network.*` conventions do not cover collectives, so the namespace is `nccl`.
*/

use super::attributes::{
    ALGO, AT_FAULT, BUCKET, CAUSE, CHANNEL, CHANNELS, CLASS, COMM, CONFIDENCE, DIRECTION, EVENT,
    FIT, HASH, LANE, LIBRARY, NETWORK, NODES, OPERATION, PEER, PROTO, RANK, SCOPE, SIZE, TIMING,
    TYPE, WAIT,
};
use super::value::{Kind, Value};
use crate::window::{Channel, Link, Mode, Operations, Proxy, Rank};

/// A metric as exporters and docs/metrics.md describe it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit, after UCUM.
    pub unit: &'static str,
    /// Its description.
    pub description: &'static str,
    /// The attributes of its series.
    pub attributes: &'static [&'static str],
    /// The place of its values in a [`Metrics`](crate::Metrics).
    pub(crate) source: Source,
}

/// Reads a value from a `T`; `None` if it has none.
type Take<T> = fn(&T) -> Option<Value>;

/// The place of a metric's values in a `Metrics`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Operation(Take<Operations>),
    Link(Take<Link>),
    /// One series for each value of an attribute.
    LinkBy(&'static str, &'static [(&'static str, Take<Link>)]),
    /// From channels with a peer.
    Transfers(Take<Channel>),
    /// From channels without a peer.
    Kernels(Take<Channel>),
    Rank(Take<Rank>),
    Proxy(Take<Proxy>),
    Events,
    Lost,
    ExportsLost,
    Beside,
    MasksChanged,
    Findings,
    /// Not in a `Metrics`: the limiter counts it.
    Limiter,
}

const OF_OPERATION: &[&str] = &[
    OPERATION, TYPE, COMM, HASH, SIZE, NODES, ALGO, PROTO, CHANNELS, BUCKET, TIMING, SCOPE,
    NETWORK, RANK,
];
const OF_LINK: &[&str] = &[COMM, HASH, SIZE, NODES, DIRECTION, RANK, PEER];
const OF_WAIT: &[&str] = &[COMM, HASH, SIZE, NODES, DIRECTION, RANK, PEER, WAIT];
const OF_FIT: &[&str] = &[COMM, HASH, SIZE, NODES, DIRECTION, RANK, PEER, FIT];
const OF_CHANNEL: &[&str] = &[COMM, HASH, SIZE, NODES, DIRECTION, RANK, PEER, CHANNEL];
const OF_KERNEL: &[&str] = &[COMM, HASH, SIZE, NODES, RANK, CHANNEL];
const OF_RANK: &[&str] = &[COMM, HASH, SIZE, NODES, RANK];

macro_rules! metric {
    ($name:literal, $kind:ident, $unit:literal, $attributes:expr, $source:expr, $text:literal) => {
        Metric {
            name: $name,
            kind: Kind::$kind,
            unit: $unit,
            description: $text,
            attributes: $attributes,
            source: $source,
        }
    };
}

/// The number of series over the cap.
pub(crate) const DROPPED: &str = "ncclscope.series.dropped";

/// All metrics.
#[rustfmt::skip]
pub static METRICS: &[Metric] = &[
    metric!("nccl.operations", Counter, "{operation}", OF_OPERATION,
        Source::Operation(|o| Some(Value::Count(o.count))),
        "Operations that ended, or for whose end no event is expected"),
    metric!("nccl.operation.io", Counter, "By", OF_OPERATION,
        Source::Operation(|o| Some(Value::Count(o.bytes))),
        "Bytes of operations, as nccl-tests count them"),
    metric!("nccl.operation.duration", Histogram, "s", OF_OPERATION,
        Source::Operation(|o| Value::histogram(&o.duration)),
        "Time from an operation's start to its last child's end; nccl.timing says by which clock"),
    metric!("nccl.operation.bus_bandwidth", Histogram, "By/s", OF_OPERATION,
        Source::Operation(|o| Value::histogram(&o.bus_bandwidth)),
        "Bus bandwidth of each operation, as nccl-tests define it, from this rank's arrival to \
         the end, with the wait for later ranks"),
    metric!("nccl.operation.algorithm_bandwidth", Histogram, "By/s", OF_OPERATION,
        Source::Operation(|o| Value::histogram(&o.algo_bandwidth)),
        "Algorithm bandwidth of each operation: its bytes divided by the same time"),
    metric!("nccl.operation.transfers", Counter, "{transfer}", OF_OPERATION,
        Source::Operation(|o| Some(Value::Count(o.transfers))),
        "Network transfers of operations, send side"),
    metric!("nccl.operation.transfer.io", Counter, "By", OF_OPERATION,
        Source::Operation(|o| Some(Value::Count(o.transfer_bytes))),
        "Bytes of network transfers of operations, send side"),
    metric!("nccl.operation.transfer.time", Counter, "s", OF_OPERATION,
        Source::Operation(|o| Some(Value::Sum(o.transfer_seconds))),
        "Total time of the network transfers of operations, send side"),
    metric!("nccl.operation.gap", Histogram, "s", OF_RANK,
        Source::Rank(|r| Value::histogram(&r.gap)),
        "Time from an operation's end to the enqueueing of the communicator's next, 0 if they \
         overlap"),
    metric!("nccl.operations.in_flight", Sum, "{operation}", OF_RANK,
        Source::Rank(|r| r.shows_flight().then_some(Value::Count(r.in_flight))),
        "Operations that began and have not ended; absent if that cannot be seen \
         (nccl.operations.hidden)"),
    metric!("nccl.operations.oldest_age", Max, "s", OF_RANK,
        Source::Rank(|r| r.shows_flight().then_some(Value::Sum(r.oldest))),
        "Time since the oldest operation in flight was enqueued, 0 if there is none"),
    metric!("nccl.operations.hidden", Sum, "{process}", OF_RANK,
        Source::Rank(|r| (r.hidden > 0).then_some(Value::Count(r.hidden))),
        "Processes in which the communicator's operations show no end, so that no hang is seen \
         (NCCLSCOPE_CUDA_EVENTS); absent if there are none"),
    metric!("nccl.graph.calls", Counter, "{call}", OF_RANK,
        Source::Rank(|r| (r.captured > 0).then_some(Value::Count(r.captured))),
        "Calls that were captured into CUDA graphs; a replay counts as an operation where NCCL \
         reports its kernels or network traffic"),
    metric!("nccl.graph.invisible", Counter, "{operation}", OF_RANK,
        Source::Rank(|r| (r.invisible > 0).then_some(Value::Count(r.invisible))),
        "Operations in CUDA graphs whose kernels and network traffic NCCL does not report: \
         their replays are in no figure"),
    metric!("nccl.invisible.libraries", Sum, "{process}", &[LIBRARY],
        Source::Beside,
        "Processes in which a library is loaded that can communicate without NCCL: what it moves \
         is in no figure"),
    metric!("nccl.mask.changed", Sum, "{process}", &[],
        Source::MasksChanged,
        "Processes whose activation mask was changed from outside (RAS, CONTROL PROFILER_MASK); \
         absent if there are none"),
    metric!("nccl.finding", Max, "{finding}", &[CLASS, CONFIDENCE, AT_FAULT],
        Source::Findings,
        "1 while a job hangs, for each cause and rank at fault, as `ncclscope diagnose` names \
         them"),
    metric!("nccl.link.transfers", Counter, "{transfer}", OF_LINK,
        Source::Link(|l| Some(Value::Count(l.transfers))),
        "Network transfers between two ranks"),
    metric!("nccl.link.io", Counter, "By", OF_LINK,
        Source::Link(|l| Some(Value::Count(l.bytes))),
        "Bytes of network transfers between two ranks whose size NCCL reports"),
    metric!("nccl.link.transfer.size", Histogram, "By", OF_LINK,
        Source::Link(|l| Value::histogram(&l.size)),
        "Sizes of network transfers between two ranks"),
    metric!("nccl.link.transfer.duration", Histogram, "s", OF_LINK,
        Source::Link(|l| Value::histogram(&l.seconds)),
        "Times of transfers in the network; on the receive side with the wait for the sender"),
    metric!("nccl.link.wait.time", Counter, "s", OF_WAIT,
        Source::LinkBy(WAIT, &[
            ("gpu", |l| Some(Value::Sum(l.waits.gpu))),
            ("peer", |l| Some(Value::Sum(l.waits.peer))),
            ("network", |l| Some(Value::Sum(l.waits.network))),
            ("flush", |l| Some(Value::Sum(l.waits.flush))),
        ]),
        "Total time that transfers spent in each wait"),
    metric!("nccl.link.latency", Max, "s", OF_FIT,
        Source::LinkBy(FIT, &[
            ("avg", |l| latency(l, Mode::Avg)),
            ("min", |l| latency(l, Mode::Min)),
        ]),
        "Time of a send of no bytes, by linear regression of time over size. `avg` is over all \
         sends, `min` over the fastest of each size"),
    metric!("nccl.link.rate", Max, "By/s", OF_FIT,
        Source::LinkBy(FIT, &[("avg", |l| rate(l, Mode::Avg)), ("min", |l| rate(l, Mode::Min))]),
        "Bytes per second of a send after its latency, by the same regression"),
    metric!("nccl.link.fit.r2", Max, "1", OF_FIT,
        Source::LinkBy(FIT, &[("avg", |l| r2(l, Mode::Avg)), ("min", |l| r2(l, Mode::Min))]),
        "Share of the variance of the times of sends that the regression explains, 0 to 1"),
    metric!("nccl.channel.transfers", Counter, "{transfer}", OF_CHANNEL,
        Source::Transfers(|c| Some(Value::Count(c.transfers))),
        "Network transfers of a channel"),
    metric!("nccl.channel.io", Counter, "By", OF_CHANNEL,
        Source::Transfers(|c| Some(Value::Count(c.bytes))),
        "Bytes of network transfers of a channel"),
    metric!("nccl.channel.transfer.time", Counter, "s", OF_CHANNEL,
        Source::Transfers(|c| Some(Value::Sum(c.seconds))),
        "Total time of the network transfers of a channel"),
    metric!("nccl.channel.kernels", Counter, "{kernel}", OF_KERNEL,
        Source::Kernels(|c| Some(Value::Count(c.kernels))),
        "Operations that a channel's kernel finished with a valid time"),
    metric!("nccl.channel.kernel.time", Counter, "s", OF_KERNEL,
        Source::Kernels(|c| Some(Value::Sum(c.kernel_seconds))),
        "Total time of a channel's kernels by the GPU's timer"),
    metric!("nccl.proxy.operations", Counter, "{operation}", &[LANE],
        Source::Proxy(|p| Some(Value::Count(p.operations))),
        "ProxyOps that the proxy progress threads finished"),
    metric!("nccl.proxy.busy.time", Counter, "s", &[LANE],
        Source::Proxy(|p| Some(Value::Sum(p.busy))),
        "Time in which a proxy progress thread had at least one ProxyOp open"),
    metric!("nccl.events.started", Counter, "{event}", &[EVENT], Source::Events,
        "Events that started"),
    metric!("nccl.events.lost", Counter, "{event}", &[CAUSE, EVENT], Source::Lost,
        "Events that are missing from the other metrics"),
    metric!("ncclscope.export.lost", Counter, "{request}", &[CAUSE], Source::ExportsLost,
        "Requests with metrics of a rank that did not reach the collector"),
    metric!("ncclscope.series.dropped", Counter, "{series}", &[], Source::Limiter,
        "Series over the cap that are summed in an overflow series, counted at each export"),
];

fn latency(link: &Link, mode: Mode) -> Option<Value> {
    Some(Value::Sum(link.line(mode)?.latency_us? * 1e-6))
}

fn rate(link: &Link, mode: Mode) -> Option<Value> {
    Some(Value::Sum(link.line(mode)?.rate_mb_s * 1e6))
}

fn r2(link: &Link, mode: Mode) -> Option<Value> {
    Some(Value::Sum(link.line(mode)?.r2?))
}

#[cfg(test)]
mod tests {
    use super::super::attributes::ATTRIBUTES;
    use super::*;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c);
        assert!(names.iter().all(|name| name.starts_with("nccl") && name.chars().all(is_plain)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
        assert!(METRICS.iter().any(|metric| metric.name == DROPPED));
    }

    #[test]
    fn attributes_are_explained_and_in_use() {
        let used = |name| METRICS.iter().any(|metric| metric.attributes.contains(&name));
        for (name, _) in ATTRIBUTES {
            assert!(used(*name) || *name == super::super::attributes::OVERFLOW, "{name}");
        }
        for name in METRICS.iter().flat_map(|metric| metric.attributes) {
            assert!(ATTRIBUTES.iter().any(|(known, _)| known == name), "{name}");
        }
    }
}
