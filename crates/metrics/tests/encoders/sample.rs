// SPDX-License-Identifier: Apache-2.0
//! Metrics whose figures are all known.

use ncclscope_metrics::{
    Channel, ChannelKey, CommKey, Compat, FindingKey, Link, LinkKey, Metrics, OperationKey,
    Operations, Proxy, Rank, RankKey, Waits,
};
use ncclscope_operations::{Histogram, Timing};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn comm() -> CommKey {
    CommKey { hash: 0xabc, name: "tp \"0\"\\\n".into(), ranks: 4, nodes: 2 }
}

pub(crate) fn histogram(values: &[f64]) -> Histogram {
    let mut histogram = Histogram::default();
    values.iter().for_each(|value| histogram.add(*value));
    histogram
}

/// 4 MiB AllReduces of a rank, timed by its kernels.
pub(crate) fn all_reduce(rank: i32) -> (OperationKey, Operations) {
    let key = OperationKey {
        comm: comm(),
        rank,
        func: "AllReduce".into(),
        is_p2p: false,
        algo: "RING".into(),
        proto: "SIMPLE".into(),
        channels: 2,
        size_class: Some(22),
        timing: Timing::Kernel,
        network: true,
    };
    let of = Operations {
        count: 3,
        bytes: 12 * MIB,
        duration: histogram(&[0.001, 0.002, 0.004]),
        bus_bandwidth: histogram(&[1.5e9, 3e9, 6e9]),
        algo_bandwidth: histogram(&[1e9, 2e9, 4e9]),
        transfers: 24,
        transfer_bytes: 18 * MIB,
        transfer_seconds: 0.5,
        compat: Compat {
            kernel: histogram(&[0.001, 0.002, 0.004]),
            kernel_bandwidth: histogram(&[1.5e9, 3e9, 6e9]),
            proxy: histogram(&[0.002, 0.004, 0.008]),
        },
    };
    (key, of)
}

/// Sends of 512 B of which only the enqueueing was recorded.
fn send(rank: i32) -> (OperationKey, Operations) {
    let (key, _) = all_reduce(rank);
    let key = OperationKey {
        func: "Send".into(),
        is_p2p: true,
        algo: "".into(),
        proto: "".into(),
        channels: 0,
        size_class: Some(9),
        timing: Timing::Enqueue,
        network: false,
        ..key
    };
    let of = Operations {
        count: 2,
        bytes: 1024,
        duration: histogram(&[0.0, 1e-6]),
        ..Operations::default()
    };
    (key, of)
}

/// A link over which a transfer takes `latency_us` and 1 us for each 1000 bytes.
fn link(latency_us: f64) -> Link {
    let mut link = Link {
        transfers: 4,
        bytes: 10_000,
        size: histogram(&[1000.0, 2000.0, 3000.0, 4000.0]),
        waits: Waits { gpu: 0.25, peer: 0.5, network: 1.0, flush: 2.0 },
        ..Link::default()
    };
    let us = |bytes: u32| latency_us + f64::from(bytes) / 1000.0;
    let sizes = [1000, 2000, 3000, 4000];
    sizes.into_iter().for_each(|bytes| link.seconds.add(us(bytes) / 1e6));
    // As many transfers as are needed to show latency and rate.
    (0..4).flat_map(|_| sizes).for_each(|bytes| link.fit.add(bytes, us(bytes)));
    link
}

fn transfers() -> Channel {
    Channel { transfers: 4, bytes: 10_000, seconds: 0.125, ..Channel::default() }
}

fn kernels() -> Channel {
    Channel { kernels: 3, kernel_seconds: 0.007, ..Channel::default() }
}

/// Two ranks of one process, each with a link to two peers.
pub(crate) fn metrics() -> Metrics {
    let mut metrics = Metrics::default();
    for rank in [0, 1] {
        metrics.operations.extend([all_reduce(rank), send(rank)]);
        for (peer, latency_us) in [(2, 10.0), (3, 30.0)] {
            let key = LinkKey { comm: comm(), rank, peer, is_send: true };
            metrics.links.insert(key, link(latency_us));
        }
        for (number, is_send) in [(0, true), (0, false), (1, true)] {
            let key = ChannelKey { comm: comm(), rank, channel: number, peer: Some(2), is_send };
            metrics.channels.insert(key.clone(), transfers());
            if is_send {
                metrics.channels.insert(ChannelKey { peer: None, ..key }, kernels());
            }
        }
        let rank_of = Rank {
            gap: histogram(&[0.0, 0.01]),
            in_flight: 2,
            oldest: f64::from(rank) + 0.5,
            captured: 3,
            invisible: 1,
            hidden: 1,
        };
        metrics.ranks.insert(RankKey { comm: comm(), rank }, rank_of);
    }
    metrics.proxies.insert(3, Proxy { operations: 6, busy: 0.75 });
    metrics.lost.insert(("lane_full", "ProxyStep"), 5);
    metrics.lost.insert(("unknown", ""), 1);
    metrics.beside.insert("nvshmem".into(), 1);
    metrics.masks_changed = 1;
    let (class, confidence) = ("host-stuck", "confirmed");
    metrics.findings.insert(FindingKey { class, confidence, rank: Some(5) }, 1);
    metrics.exports_lost.extend([("queue_full", 2), ("refused", 0)]);
    metrics.events.insert("ProxyStep", 100);
    metrics
}
