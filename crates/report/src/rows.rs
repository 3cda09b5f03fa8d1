// SPDX-License-Identifier: Apache-2.0
//! Merges the operations and links of all ranks into the report's rows.

use crate::buckets::Latency;
use crate::distribution::Distribution;
use crate::groups::{self, Cell, KeyFacts, Member};
use crate::key::Key;
use crate::schema::{Durations, LastRank, OperationRow, PeerRow, PeerWaits};
use crate::transfer::{Clocks, Collectives, Last, Parts, Transfer, Unknown};
use ncclscope_inspector::Member as FileMember;
use ncclscope_operations::bandwidth::{algbw_gbs, bus_factor};
use ncclscope_operations::hash::Map;
use ncclscope_operations::operation::{Completion, End, Operation, Timing};
use ncclscope_operations::peers::{Link, LinkKey};
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{GpuClocks, Selection, Timeline};
use ncclscope_trace::StrId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operations with the same key.
#[derive(Debug, Default)]
struct Sums {
    datatype: String,
    nranks: Option<u32>,
    timings: BTreeMap<Timing, u64>,
    durations: BTreeMap<Timing, Distribution>,
    with_waiting: Distribution,
    collectives: Collectives,
    unaligned: u64,
}

impl Sums {
    /// Adds durations by [`Timing`], and returns the number of operations.
    fn add_timings(&mut self, timings: [(u64, Distribution); Timing::ALL.len()]) -> u64 {
        let mut all = 0;
        for (timing, (count, durations)) in Timing::ALL.into_iter().zip(timings) {
            if count != 0 {
                all += count;
                *self.timings.entry(timing).or_default() += count;
                self.durations.entry(timing).or_default().merge(durations);
            }
        }
        all
    }
}

#[derive(Debug, Default)]
struct Merged {
    sums: Sums,
    count: u64,
    open: u64,
    ranks: u64,
}

/// [`Key`] in the numbers of one recording. It has the position of the communicator, because a
/// process may have several ranks of one communicator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ProcessKey {
    comm: Option<usize>,
    func: StrId,
    bytes: Option<u64>,
    algo: StrId,
    proto: StrId,
    channels: Option<u16>,
    /// The training step, if steps are asked for.
    step: Option<u64>,
}

/// The operations of a rank in a row, of all training steps.
#[derive(Default)]
struct RankSums {
    count: u64,
    open: u64,
    parts: Parts,
}

/// The operations of one process with the same key.
#[derive(Debug)]
struct ProcessSums {
    key: ProcessKey,
    datatype: StrId,
    /// Lane and start of the operation that `datatype` belongs to.
    first: (u8, u64),
    open: u64,
    unaligned: u64,
    /// Number of operations and their durations, by [`Timing`].
    timings: [(u64, Distribution); Timing::ALL.len()],
    with_waiting: Distribution,
    parts: Parts,
}

/// Operations of one process, in memory that does not grow with their number.
#[derive(Debug, Default)]
pub(crate) struct ProcessRows {
    places: Map<ProcessKey, usize>,
    sums: Vec<ProcessSums>,
    latest: usize,
}

impl ProcessRows {
    /// Adds an operation.
    pub(crate) fn add(
        &mut self,
        timeline: &Timeline<'_>,
        operation: &Operation,
        step: Option<u64>,
    ) {
        let event = timeline.event(operation.event);
        let first = (event.lane, event.start.ticks);
        let key = ProcessKey {
            comm: operation.comm,
            func: operation.func,
            bytes: operation.bytes,
            algo: operation.algo,
            proto: operation.proto,
            channels: operation.channels,
            step,
        };
        if self.sums.get(self.latest).is_none_or(|sums| sums.key != key) {
            self.latest = *self.places.entry(key).or_insert_with(|| {
                self.sums.push(ProcessSums::new(key, operation.datatype, first));
                self.sums.len() - 1
            });
        }
        let sums = &mut self.sums[self.latest];
        if first < sums.first {
            (sums.first, sums.datatype) = (first, operation.datatype);
        }
        let (count, durations) = &mut sums.timings[operation.timing as usize];
        *count += 1;
        if let Some(ns) = operation.duration_ns {
            durations.add(ns);
        }
        if let Some(ns) = operation.with_waiting_ns {
            sums.with_waiting.add(ns);
            operation.seq.into_iter().for_each(|seq| sums.parts.add(seq, ns, operation.end));
        }
        sums.open += u64::from(operation.completion == Completion::Open);
        sums.unaligned += u64::from(operation.is_unaligned);
    }
}

impl ProcessSums {
    fn new(key: ProcessKey, datatype: StrId, first: (u8, u64)) -> ProcessSums {
        ProcessSums {
            key,
            datatype,
            first,
            open: 0,
            unaligned: 0,
            timings: Default::default(),
            with_waiting: Distribution::default(),
            parts: Parts::default(),
        }
    }

    fn cell(&self) -> Cell {
        let mut cell = Cell::default();
        for (at, (count, durations)) in self.timings.iter().enumerate() {
            cell.counts[at] = *count;
            cell.durations[at] = (durations.count(), durations.sum());
        }
        cell.with_waiting = (self.with_waiting.count(), self.with_waiting.sum());
        cell
    }
}

#[derive(Debug, Default)]
pub(crate) struct OperationRows {
    rows: BTreeMap<Key, Merged>,
    pub(crate) groups: groups::Sums,
}

/// The operations of one rank in a row, from an input that has only their durations.
#[derive(Debug)]
pub(crate) struct RankOperations {
    rank: i32,
    nranks: u32,
    host: Arc<str>,
    timings: [(u64, Distribution); Timing::ALL.len()],
    with_waiting: Distribution,
    parts: Parts,
}

impl RankOperations {
    /// No operations of this rank.
    pub(crate) fn of(member: &FileMember) -> RankOperations {
        RankOperations {
            rank: member.rank,
            nranks: member.nranks,
            host: member.host.as_str().into(),
            timings: Default::default(),
            with_waiting: Distribution::default(),
            parts: Parts::default(),
        }
    }

    /// Adds a collective with its number and the time of its kernel; of one that only the host
    /// timed, the time is not used.
    pub(crate) fn add(&mut self, timing: Timing, seq: u64, ns: f64) {
        let (count, durations) = &mut self.timings[timing as usize];
        *count += 1;
        if timing != Timing::Enqueue {
            durations.add(ns);
        }
        if timing == Timing::Kernel {
            self.with_waiting.add(ns);
            self.parts.add(seq, ns, None);
        }
    }
}

impl OperationRows {
    /// Adds the operations of one rank.
    pub(crate) fn add_rank(&mut self, key: Key, of: RankOperations) {
        let merged = self.rows.entry(key).or_default();
        merged.count = merged.count.max(of.timings.iter().map(|(count, _)| count).sum());
        merged.ranks += 1;
        let sums = &mut merged.sums;
        (sums.datatype, sums.nranks) = ("unknown".into(), Some(of.nranks));
        sums.with_waiting.merge(of.with_waiting);
        sums.add_timings(of.timings);
        let clocks = Clocks { host: &of.host, host_ns: &|_| None };
        sums.collectives.add(of.parts, Some(of.rank), &clocks);
    }

    /// Adds the operations of one process.
    pub(crate) fn add(&mut self, timeline: &Timeline<'_>, clocks: &GpuClocks, rows: ProcessRows) {
        let host = host(timeline);
        let mut members: BTreeMap<Option<usize>, Option<usize>> = BTreeMap::new();
        let mut by_rank: BTreeMap<(Option<usize>, Key), RankSums> = BTreeMap::new();
        for row in rows.sums {
            let key = key(timeline, &row.key);
            if self.groups.is_wanted() {
                let member = || self.groups.member(member(timeline, row.key.comm));
                let member = *members.entry(row.key.comm).or_insert_with(member);
                self.groups.add((member, row.key.step, key.clone()), row.cell());
            }
            let sums = &mut self.rows.entry(key.clone()).or_default().sums;
            if sums.datatype.is_empty() {
                sums.datatype = timeline.string(row.datatype).into();
                sums.nranks = nranks(timeline, row.key.comm);
            }
            sums.unaligned += row.unaligned;
            sums.with_waiting.merge(row.with_waiting);
            let rank = by_rank.entry((row.key.comm, key)).or_default();
            rank.open += row.open;
            rank.parts.merge(row.parts);
            rank.count += sums.add_timings(row.timings);
        }
        for ((comm, key), rank) in by_rank {
            let host_ns = |end| match end {
                End::Gpu(ns) => clocks.of_comm(comm?).map(|clock| clock.host_ns(ns)),
                End::Host(ticks) => Some(timeline.ns(ticks)),
            };
            let clocks = Clocks { host: &host, host_ns: &host_ns };
            let merged = self.rows.entry(key).or_default();
            let number = comm.and_then(|comm| timeline.rank(comm));
            merged.sums.collectives.add(rank.parts, number, &clocks);
            merged.count = merged.count.max(rank.count);
            merged.open = merged.open.max(rank.open);
            merged.ranks += 1;
        }
    }

    /// The rows, the facts of each key, and the sums for the groups.
    pub(crate) fn finish(self) -> (Vec<OperationRow>, BTreeMap<Key, KeyFacts>, groups::Sums) {
        let mut facts = BTreeMap::new();
        let rows = self.rows.into_iter().map(|(key, merged)| {
            let (row, of_key) = row(key.clone(), merged);
            facts.insert(key, of_key);
            row
        });
        (rows.collect(), facts, self.groups)
    }
}

/// The process as a member of a communicator.
fn member(timeline: &Timeline<'_>, comm: Option<usize>) -> Member {
    Member {
        comm: comm.map(|comm| comm_name(timeline.comm(comm))),
        comm_rank: comm.and_then(|comm| timeline.rank(comm)),
        host: timeline.recording().header().host.clone(),
    }
}

/// A key that is the same for processes with the same clock: the host.
fn host(timeline: &Timeline<'_>) -> Arc<str> {
    let recording = timeline.recording();
    let boot = recording.identity().boot_id.as_deref().unwrap_or_default();
    format!("{} {boot}", recording.header().host).into()
}

fn nranks(timeline: &Timeline<'_>, comm: Option<usize>) -> Option<u32> {
    comm.map(|comm| timeline.comm(comm).ranks).filter(|&ranks| ranks != 0)
}

fn key(timeline: &Timeline<'_>, key: &ProcessKey) -> Key {
    let text = |id: StrId| timeline.recording().string(id).map(str::to_owned);
    let comm = key.comm.map(|comm| comm_name(timeline.comm(comm)));
    Key {
        comm: comm.unwrap_or_else(|| "unknown".into()),
        func: timeline.string(key.func).into(),
        bytes: key.bytes,
        algo: text(key.algo),
        proto: text(key.proto),
        channels: key.channels,
    }
}

fn row(key: Key, merged: Merged) -> (OperationRow, KeyFacts) {
    let Merged { mut sums, count, open, ranks } = merged;
    // The source of most operations; of equal ones the better source.
    let most =
        sums.timings.iter().max_by_key(|&(timing, count)| (*count, std::cmp::Reverse(*timing)));
    let timing = most.map_or(Timing::Enqueue, |(timing, _)| *timing);
    let durations_of = sums.durations.get_mut(&timing);
    let timed = durations_of.as_ref().map_or(0, |of| of.count());
    let total = durations_of.as_ref().filter(|_| timed != 0).map(|of| of.sum());
    let quantiles = durations_of.and_then(Distribution::quantiles);
    let with_waiting = sums.with_waiting.quantiles();
    let joined = sums.collectives.transfer(&key.func, sums.nranks);
    let unknown = match joined {
        _ if with_waiting.is_none() => Some(Unknown::Arrival),
        _ if key.func == "Send" || key.func == "Recv" => Some(Unknown::Pair),
        ref joined => joined.as_ref().err().copied(),
    };
    let mut transfer = joined.ok().filter(|_| unknown.is_none());
    let transfer_ns = transfer.as_mut().and_then(|transfer| transfer.ns.quantiles());
    let waiting_ns = transfer.as_mut().and_then(|transfer| transfer.waiting_ns.quantiles());
    let transfers = transfer.as_mut().map(|transfer| &mut transfer.ns);
    let durations_of = sums.durations.get_mut(&timing);
    let latency = Latency::of(durations_of, &mut sums.with_waiting, transfers);
    let mean = |of: &Transfer| of.ns.sum() / to_f64(of.ns.count().max(1));
    let mean = transfer.as_ref().map(mean);
    let after_last = transfer.as_ref().map(Transfer::after_last);
    let (arrived, all) = (sums.with_waiting.count(), sums.with_waiting.sum());
    let total_waiting = after_last.map(|mean| (all - mean * to_f64(arrived)).max(0.0));
    let last = transfer.as_ref().zip(total_waiting);
    let last = last.map_or_else(Vec::new, |(transfer, ns)| last_ranks(transfer.last(arrived, ns)));
    let algbw = |times: Option<[f64; 4]>| algbw_gbs(key.bytes?, times?[1]);
    let factor = bus_factor(&key.func, sums.nranks);
    let busbw = |times| Some(algbw(times)? * factor?);
    let facts = KeyFacts { timing, transfer: mean.zip(after_last), factor };
    let row = OperationRow {
        comm_name: None,
        datatype: sums.datatype,
        channels: key.channels,
        count,
        open,
        unaligned: sums.unaligned,
        ranks,
        timing: timing.name(),
        timings: sums.timings.iter().map(|(timing, count)| (timing.name(), *count)).collect(),
        timed,
        duration_ns: quantiles.map(durations),
        total_ns: total.map(to_u64),
        total_with_waiting_ns: (arrived != 0).then(|| to_u64(all)),
        total_waiting_ns: total_waiting.map(to_u64),
        transfer_ns: transfer_ns.map(durations),
        transfers: transfer.as_ref().map_or(0, |transfer| transfer.joined),
        transfer_unknown: unknown.map(Unknown::text),
        with_waiting_ns: with_waiting.map(durations),
        waiting_ns: waiting_ns.map(durations),
        last_rank: last.first().copied(),
        last,
        algbw_gbs: algbw(transfer_ns),
        busbw_gbs: busbw(transfer_ns),
        busbw_with_waiting_gbs: busbw(with_waiting),
        comm: key.comm,
        func: key.func,
        bytes: key.bytes,
        algorithm: key.algo,
        protocol: key.proto,
        latency,
    };
    (row, facts)
}

fn last_ranks(ranks: Vec<(i32, Last)>) -> Vec<LastRank> {
    let row = |(comm_rank, Last { times, waiting_ns })| LastRank {
        rank: None,
        comm_rank,
        times,
        waiting_ns: to_u64(waiting_ns),
    };
    ranks.into_iter().map(row).collect()
}

fn durations(quantiles: [f64; 4]) -> Durations {
    let [min, p50, p99, max] = quantiles.map(to_u64);
    Durations { min, p50, p99, max }
}

/// Links by communicator, sender and receiver: those that the sender and the receiver recorded.
#[derive(Debug, Default)]
pub(crate) struct PeerRows(BTreeMap<(String, i32, i32), [Option<Link>; 2]>);

impl PeerRows {
    /// Adds the links of one process.
    pub(crate) fn add(&mut self, timeline: &Timeline<'_>, selection: &Selection) {
        let links = timeline.links().iter();
        for (key, link) in links.filter(|(key, _)| selection.has_comm(Some(key.comm))) {
            let LinkKey { comm, rank, peer, is_send } = *key;
            let (src, dst) = if is_send { (rank, peer) } else { (peer, rank) };
            let row = self.0.entry((comm_name(timeline.comm(comm)), src, dst)).or_default();
            let sum = row[usize::from(!is_send)].get_or_insert_default();
            sum.transfers += link.transfers;
            sum.sized += link.sized;
            sum.bytes += link.bytes;
            sum.is_told |= link.is_told;
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

fn peer_row(
    comm: String,
    comm_src: i32,
    comm_dst: i32,
    [send, receive]: [Option<Link>; 2],
) -> PeerRow {
    let best = send.or(receive).unwrap_or_default();
    // With a slope of 0 or less the sizes do not explain the times.
    let line = send.and_then(|link| link.fit.line()).filter(|line| line.slope > 0.0);
    let wait = |link: Option<Link>, state: usize| link.map(|link| to_u64(link.waits_ns[state]));
    let has_sizes = |link: &Link| link.is_told || link.sized == link.transfers;
    let transfer = send.filter(|link| has_sizes(link) && link.waits_ns[2] > 0.0);
    PeerRow {
        comm,
        comm_name: None,
        src: None,
        dst: None,
        comm_src,
        comm_dst,
        bytes: (best.sized > 0 || best.is_told || best.transfers == 0).then_some(best.bytes),
        transfers: best.transfers,
        // With a negative intercept the times are not on a line.
        latency_ns: line
            .map(|line| line.intercept)
            .filter(|&us| us >= 0.0)
            .map(|us| to_u64(us * 1e3)),
        transfer_gbs: transfer.map(|link| to_f64(link.bytes) / link.waits_ns[2]),
        // The slope is in µs per byte.
        rate_gbs: line.map(|line| 1e-3 / line.slope),
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

/// Time from `start` (ticks) to the end of the recording, ns.
pub(crate) fn age_ns(timeline: &Timeline<'_>, start: u64) -> u64 {
    let ticks = timeline.recording().last_ticks().saturating_sub(start);
    to_u64(timeline.clock().duration_ns(ticks))
}
