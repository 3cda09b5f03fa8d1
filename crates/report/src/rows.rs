// SPDX-License-Identifier: Apache-2.0
//! Operations and links of all ranks, merged into the report's rows.

use crate::schema::{Durations, OperationRow, PeerRow, PeerWaits};
use ncclscope_operations::Timeline;
use ncclscope_operations::bandwidth::{algbw_gbs, bus_factor};
use ncclscope_operations::operation::{Completion, Operation, Timing};
use ncclscope_operations::peers::{Link, LinkKey};
use ncclscope_operations::stats::{quantiles, to_u64};
use ncclscope_operations::timeline::comm_name;
use ncclscope_trace::StrId;
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Key {
    comm: String,
    func: String,
    bytes: Option<u64>,
    algo: Option<String>,
    proto: Option<String>,
    channels: Option<u8>,
}

#[derive(Debug, Default)]
struct Merged {
    datatype: String,
    nranks: Option<u32>,
    count: u64,
    open: u64,
    ranks: u64,
    timings: BTreeMap<Timing, u64>,
    durations: BTreeMap<Timing, Vec<f64>>,
}

/// Rows of operations.
#[derive(Debug, Default)]
pub(crate) struct OperationRows(BTreeMap<Key, Merged>);

impl OperationRows {
    /// Adds the operations of one process.
    pub(crate) fn add(&mut self, timeline: &Timeline<'_>, operations: &[Operation]) {
        // By position of the communicator too: one process may hold several ranks of it.
        let mut mine: HashMap<(Option<usize>, Key), (u64, u64)> = HashMap::new();
        for operation in operations {
            let key = key(timeline, operation);
            let merged = self.0.entry(key.clone()).or_default();
            if merged.datatype.is_empty() {
                merged.datatype = timeline.string(operation.datatype).into();
                merged.nranks = nranks(timeline, operation.comm);
            }
            *merged.timings.entry(operation.timing).or_default() += 1;
            if let Some(ns) = operation.duration_ns {
                merged.durations.entry(operation.timing).or_default().push(ns);
            }
            let (count, open) = mine.entry((operation.comm, key)).or_default();
            *count += 1;
            *open += u64::from(operation.completion == Completion::Open);
        }
        for ((_, key), (count, open)) in mine {
            let merged = self.0.entry(key).or_default();
            merged.count = merged.count.max(count);
            merged.open = merged.open.max(open);
            merged.ranks += 1;
        }
    }

    pub(crate) fn finish(self) -> Vec<OperationRow> {
        self.0.into_iter().map(|(key, merged)| row(key, merged)).collect()
    }
}

fn nranks(timeline: &Timeline<'_>, comm: Option<usize>) -> Option<u32> {
    comm.map(|comm| timeline.comm(comm).ranks).filter(|&ranks| ranks != 0)
}

fn key(timeline: &Timeline<'_>, operation: &Operation) -> Key {
    let text = |id: StrId| timeline.recording().string(id).map(str::to_owned);
    let comm = operation.comm.map(|comm| comm_name(timeline.comm(comm)));
    Key {
        comm: comm.unwrap_or_else(|| "unknown".into()),
        func: timeline.string(operation.func).into(),
        bytes: operation.bytes,
        algo: text(operation.algo),
        proto: text(operation.proto),
        channels: operation.channels,
    }
}

fn row(key: Key, mut merged: Merged) -> OperationRow {
    // The source that most have; of equals, the better one.
    let most =
        merged.timings.iter().max_by_key(|&(timing, count)| (*count, std::cmp::Reverse(*timing)));
    let timing = most.map_or(Timing::Enqueue, |(timing, _)| *timing);
    let quantiles = merged.durations.get_mut(&timing).and_then(|values| quantiles(values));
    let algbw =
        quantiles.filter(|_| timing.is_whole()).and_then(|[_, p50, ..]| algbw_gbs(key.bytes?, p50));
    let factor = bus_factor(&key.func, merged.nranks);
    OperationRow {
        comm: key.comm,
        func: key.func,
        bytes: key.bytes,
        datatype: merged.datatype,
        algo: key.algo,
        proto: key.proto,
        channels: key.channels,
        count: merged.count,
        open: merged.open,
        ranks: merged.ranks,
        timing: timing.name(),
        timings: merged.timings.iter().map(|(timing, count)| (timing.name(), *count)).collect(),
        duration_ns: quantiles.map(|q| {
            let [min, p50, p99, max] = q.map(to_u64);
            Durations { min, p50, p99, max }
        }),
        algbw_gbs: algbw,
        busbw_gbs: algbw.zip(factor).map(|(algbw, factor)| algbw * factor),
    }
}

/// Rows of peers: for each the sender's and the receiver's link.
#[derive(Debug, Default)]
pub(crate) struct PeerRows(BTreeMap<(String, i32, i32), [Option<Link>; 2]>);

impl PeerRows {
    /// Adds the links of one process.
    pub(crate) fn add(&mut self, timeline: &Timeline<'_>) {
        for (key, link) in timeline.links().iter() {
            let LinkKey { comm, rank, peer, is_send } = *key;
            let (src, dst) = if is_send { (rank, peer) } else { (peer, rank) };
            let row = self.0.entry((comm_name(timeline.comm(comm)), src, dst)).or_default();
            let sum = row[usize::from(!is_send)].get_or_insert_default();
            sum.transfers += link.transfers;
            sum.sized += link.sized;
            sum.bytes += link.bytes;
            sum.fit.merge(&link.fit);
            for (sum, wait) in sum.waits_ns.iter_mut().zip(link.waits_ns) {
                *sum += wait;
            }
        }
    }

    pub(crate) fn finish(self) -> Vec<PeerRow> {
        self.0
            .into_iter()
            .map(|((comm, src, dst), links)| peer_row(comm, src, dst, links))
            .collect()
    }
}

fn peer_row(comm: String, src: i32, dst: i32, [send, receive]: [Option<Link>; 2]) -> PeerRow {
    let best = send.or(receive).unwrap_or_default();
    // A rate below zero says that the sizes do not explain the times.
    let line = send.and_then(|link| link.fit.line()).filter(|line| line.slope > 0.0);
    let wait = |link: Option<Link>, state: usize| link.map(|link| to_u64(link.waits_ns[state]));
    PeerRow {
        comm,
        src,
        dst,
        bytes: (best.sized > 0 || best.transfers == 0).then_some(best.bytes),
        transfers: best.transfers,
        // Less than nothing says that the times are not on a line.
        latency_us: line.map(|line| line.intercept).filter(|&us| us >= 0.0),
        // The slope is in µs a byte.
        rate_mb_s: line.map(|line| 1.0 / line.slope),
        r2: line.map(|line| line.r2),
        waits_ns: PeerWaits {
            send_gpu: wait(send, 0),
            send_peer: wait(send, 1),
            send_network: wait(send, 2),
            recv_network: wait(receive, 0),
            recv_flush: wait(receive, 1),
            recv_gpu: wait(receive, 2),
        },
    }
}

/// How long ago `start` (ticks) was at the end of the recording, ns.
pub(crate) fn age_ns(timeline: &Timeline<'_>, start: u64) -> u64 {
    let ticks = timeline.recording().last_ticks().saturating_sub(start);
    to_u64(timeline.clock().duration_ns(ticks))
}
