// SPDX-License-Identifier: Apache-2.0
/*!
The names and labels of Open Mosaic's profiler (`profiler/telemetry_export.cc` in
open-mosaic/mosaic), as Prometheus receives them through an OpenTelemetry collector.

Pass the totals since the start. Like Mosaic, it exports only the send side. Mosaic's histograms
have one average for each of its windows; these have each operation and transfer, so that the sum
divided by the count is the average over all of them, with or without `rate()`. Latency and rate are
states: their count is 1. Buckets are coarse, at powers of two of seconds and bytes. If only a sum
is known, its values are in the bucket of their mean, over a size class or a channel.

As in Mosaic, an operation's time is from its start to the last ProxyOp's stop, by the host's clock;
without a ProxyOp it has none.

The latency of a channel's transfers is that of the link to its peer.
*/

use super::super::prom::{Text, bounds, number, up_to};
use super::{Process, Row};
use crate::window::{Channel, CommKey, Link, LinkKey, Metrics, Mode, OperationKey, Operations};
use ncclscope_operations::Histogram;
use ncclscope_operations::stats::to_f64;
use std::collections::BTreeMap;

/// Writes Mosaic's counters and histograms.
#[must_use]
pub fn mosaic(processes: &[(Process, &Metrics)], max_series: usize) -> String {
    let mut of = Mosaic::default();
    processes.iter().for_each(|(process, metrics)| of.add(process, metrics));
    let mut text = Text::new(max_series);
    of.collectives(&mut text);
    of.p2p(&mut text);
    of.ranks(&mut text);
    of.transfers(&mut text);
    text.finish()
}

/// The figures with the same labels.
type Rows<'a, T> = BTreeMap<Row, Vec<&'a T>>;

/// The figures that Mosaic sums, by its labels.
#[derive(Default)]
struct Mosaic<'a> {
    collectives: Rows<'a, Operations>,
    p2p: Rows<'a, Operations>,
    ranks: Rows<'a, Link>,
    transfers: Rows<'a, Channel>,
    links: Rows<'a, Link>,
}

/// The values of a metric, in the base unit of its [`Unit`].
enum Spread<'a> {
    /// Each value is known.
    Values(&'a Histogram),
    /// Their sum and their number.
    Sum(f64, u64),
}

/// A metric's unit: the bounds of its buckets, and the factor from the base unit.
#[derive(Clone, Copy)]
struct Unit {
    bounds: &'static str,
    factor: f64,
}

const BYTES: Unit = Unit { bounds: "By", factor: 1.0 };
const MICROSECONDS: Unit = Unit { bounds: "s", factor: 1e6 };
const MB_PER_S: Unit = Unit { bounds: "By/s", factor: 1e-6 };
const COUNT: Unit = Unit { bounds: "1", factor: 1.0 };

impl<'a> Mosaic<'a> {
    fn add(&mut self, process: &Process, metrics: &'a Metrics) {
        for (key, of) in metrics.operations.iter().filter(|(key, _)| &*key.func != "Recv") {
            let mut row = common(process, &key.comm);
            row.push(("rank", key.rank.to_string()));
            row.push(("operation", operation(key)));
            let rows = if key.is_p2p { &mut self.p2p } else { &mut self.collectives };
            rows.entry(row).or_default().push(of);
        }
        for (key, of) in metrics.links.iter().filter(|(key, _)| key.is_send) {
            let mut row = common(process, &key.comm);
            row.push(("source_rank", key.rank.to_string()));
            row.push(("dest_rank", key.peer.to_string()));
            self.ranks.entry(row).or_default().push(of);
        }
        for (key, of) in metrics.channels.iter().filter(|(key, _)| key.is_send) {
            let Some(peer) = key.peer else { continue };
            let mut row = common(process, &key.comm);
            row.push(("source_rank", key.rank.to_string()));
            row.push(("dest_rank", peer.to_string()));
            row.push(("channel", key.channel.to_string()));
            let link = LinkKey { comm: key.comm.clone(), rank: key.rank, peer, is_send: true };
            if let Some(link) = metrics.links.get(&link) {
                self.links.entry(row.clone()).or_default().push(link);
            }
            self.transfers.entry(row).or_default().push(of);
        }
    }

    fn collectives(&self, text: &mut Text) {
        let of = &self.collectives;
        counter(text, "nccl_profiler_collective_bytes_total", of, |o| o.bytes);
        operations(text, "collective", of);
        counter(text, "nccl_profiler_collective_count_sum", of, |o| o.count);
    }

    fn p2p(&self, text: &mut Text) {
        let bytes = |o: &'a Operations| Some(Spread::Sum(to_f64(o.bytes), o.count));
        histogram(text, "nccl_profiler_p2p_bytes", BYTES, &self.p2p, bytes);
        operations(text, "p2p", &self.p2p);
    }

    fn ranks(&self, text: &mut Text) {
        counter(text, "nccl_profiler_rank_bytes_total", &self.ranks, |l| l.bytes);
        let name = "nccl_profiler_rank_latency_microseconds";
        histogram(text, name, MICROSECONDS, &self.ranks, latency);
        let rate = |l: &'a Link| Some(Spread::Sum(l.line(Mode::Avg)?.rate_mb_s * 1e6, 1));
        histogram(text, "nccl_profiler_rank_rate", MB_PER_S, &self.ranks, rate);
    }

    fn transfers(&self, text: &mut Text) {
        let size = |c: &'a Channel| Some(Spread::Sum(to_f64(c.bytes), c.transfers));
        histogram(text, "nccl_profiler_transfer_size_bytes", BYTES, &self.transfers, size);
        let time = |c: &'a Channel| Some(Spread::Sum(c.seconds, c.transfers));
        let name = "nccl_profiler_transfer_time_microseconds";
        histogram(text, name, MICROSECONDS, &self.transfers, time);
        let name = "nccl_profiler_transfer_latency_microseconds";
        histogram(text, name, MICROSECONDS, &self.links, latency);
    }
}

fn latency(link: &Link) -> Option<Spread<'_>> {
    Some(Spread::Sum(link.line(Mode::Avg)?.latency_us? * 1e-6, 1))
}

/// Mosaic's name of an operation.
fn operation(key: &OperationKey) -> String {
    let OperationKey { func, algo, proto, channels, .. } = key;
    if key.is_p2p {
        return func.to_string();
    }
    format!("Comm{}_{func}_{algo}_{proto}_{channels}Chnl", key.comm.hash)
}

/// The labels of all series.
fn common(process: &Process, comm: &CommKey) -> Row {
    let row = vec![
        ("communicator", comm.hash.to_string()),
        ("comm_nranks", comm.ranks.to_string()),
        ("hostname", process.node.clone()),
        ("local_rank", process.local_rank.clone()),
        ("gpu_uuid", process.gpu_uuid.clone()),
    ];
    row.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// Writes the metrics that collectives and P2P share.
fn operations<'a>(text: &mut Text, kind: &str, of: &Rows<'a, Operations>) {
    let name = |part: &str| format!("nccl_profiler_{kind}_{part}");
    let time = |o: &'a Operations| Some(Spread::Values(&o.compat.proxy));
    histogram(text, &name("time_microseconds"), MICROSECONDS, of, time);
    let transfers = |o: &'a Operations| Some(Spread::Sum(to_f64(o.transfers), o.count));
    histogram(text, &name("num_transfers_count"), COUNT, of, transfers);
    let size = |o: &'a Operations| Some(Spread::Sum(to_f64(o.transfer_bytes), o.transfers));
    histogram(text, &name("transfer_size_bytes"), BYTES, of, size);
    let time = |o: &'a Operations| Some(Spread::Sum(o.transfer_seconds, o.transfers));
    histogram(text, &name("transfer_time_microseconds"), MICROSECONDS, of, time);
}

fn counter<T>(text: &mut Text, name: &str, of: &Rows<'_, T>, take: impl Fn(&T) -> u64) {
    if !of.is_empty() {
        text.head(name, "counter", "As Open Mosaic's profiler counts it");
    }
    for (row, of) in of {
        let sum: u64 = of.iter().map(|of| take(of)).sum();
        text.line(name, row, &sum.to_string());
    }
}

/// Writes the histograms of a metric, without empty ones.
fn histogram<'a, T>(
    text: &mut Text,
    name: &str,
    unit: Unit,
    of: &Rows<'a, T>,
    take: impl Fn(&'a T) -> Option<Spread<'a>>,
) {
    let spreads = |of: &Vec<&'a T>| -> Vec<Spread<'a>> {
        let spreads = of.iter().filter_map(|of| take(of));
        spreads.filter(|spread| spread.sum_and_count().1 > 0).collect()
    };
    let rows = of.iter().map(|(row, of)| (row, spreads(of)));
    let rows: Vec<_> = rows.filter(|(_, spreads)| !spreads.is_empty()).collect();
    if !rows.is_empty() {
        text.head(name, "histogram", "As Open Mosaic's profiler averages it: sum by count");
    }
    let bucket = format!("{name}_bucket");
    for (row, spreads) in rows {
        let add = |(sum, count), (s, n): (f64, u64)| (sum + s, count + n);
        let (sum, count) = spreads.iter().map(Spread::sum_and_count).fold((0.0, 0), add);
        let mut line = |le: String, count: u64| {
            text.line(&bucket, &[row.as_slice(), &[("le", le)]].concat(), &count.to_string());
        };
        for exponent in bounds(unit.bounds) {
            let within = spreads.iter().map(|spread| spread.up_to(exponent)).sum();
            line(number(f64::from(exponent).exp2() * unit.factor), within);
        }
        line("+Inf".into(), count);
        text.line(&format!("{name}_sum"), row, &number(sum * unit.factor));
        text.line(&format!("{name}_count"), row, &count.to_string());
    }
}

impl Spread<'_> {
    fn sum_and_count(&self) -> (f64, u64) {
        match self {
            Spread::Values(values) => (values.sum, values.count),
            Spread::Sum(sum, count) => (*sum, *count),
        }
    }

    /// Number of values that are at most `2^exponent`.
    fn up_to(&self, exponent: i32) -> u64 {
        match *self {
            Spread::Values(values) => up_to(values, exponent),
            Spread::Sum(sum, count) => {
                let is_within = sum <= f64::from(exponent).exp2() * to_f64(count);
                if is_within { count } else { 0 }
            }
        }
    }
}
