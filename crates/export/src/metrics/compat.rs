// SPDX-License-Identifier: Apache-2.0
/*!
Metrics under the names of other projects, so that dashboards made for them keep working.

[`inspector`] has the names and labels of NVIDIA's Inspector (`inspector_prom.cc` in NVIDIA/nccl),
for its `NCCL_INSPECTOR_PROM_DUMP`. They are means over what it is given, so give it a window. As
there, the mean of bandwidths is the geometric one; it is taken from a histogram, and within 0.6 %
where the values are less than a factor of five apart. A range of message sizes is that of the mean
size of operations within a power of two.

[`mosaic`] has the names of Open Mosaic's profiler as Prometheus shows them behind an OpenTelemetry
collector. Give it what was measured since the start. Its histograms of averages become summaries,
of which sum by count is the average over all operations, with or without `rate()`; except for
latency and rate, which are states: their count is 1. It has no `_bucket`, and no
`nccl_profiler_transfer_latency`, for which there is no figure.

Neither has names for what is too much: beyond `max_series` samples the rest is left out, and
`ncclscope_series_over_cap` says how many.
*/

use super::prom::{Text, number};
use ncclscope_analyze::Timing;
use ncclscope_analyze::metrics::{Channel, CommKey, Histogram, Link, Metrics, Mode, Operations};
use ncclscope_analyze::stats::to_f64;
use std::collections::BTreeMap;

/// The process whose metrics they are, for labels. What is empty is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Version of the profiler API and of the format, such as `v5.1`.
    pub version: String,
    /// `SLURM_JOB_ID`.
    pub slurm_job_id: String,
    /// The host.
    pub node: String,
    /// The GPU as `GPU` and its index.
    pub gpu: String,
    /// The GPU's UUID.
    pub gpu_uuid: String,
    /// The rank on its node.
    pub local_rank: String,
}

type Row = Vec<(&'static str, String)>;

/// Inspector's gauges.
#[must_use]
pub fn inspector(processes: &[(Process, &Metrics)], max_series: usize) -> String {
    let mut groups: BTreeMap<(bool, Row, u8), Operations> = BTreeMap::new();
    for (process, metrics) in processes {
        for (key, of) in &metrics.operations {
            // Until when an operation was enqueued is not how long it took.
            if key.timing != Timing::Enqueue {
                let mut row = inspector_row(process, &key.comm);
                if key.is_p2p {
                    row.push(("p2p_operation", known(&key.func)));
                } else {
                    row.push(("collective", known(&key.func)));
                    row.push(("algo_proto", format!("{}_{}", known(&key.algo), known(&key.proto))));
                }
                groups.entry((key.is_p2p, row, key.size_class)).or_default().merge(of);
            }
        }
    }
    let mut text = Text::new(max_series);
    let mut gauge = |is_p2p, name, help, take: fn(&Operations) -> Option<f64>| {
        let mut rows = Vec::new();
        for ((_, row, _), of) in groups.iter().filter(|((p2p, ..), _)| *p2p == is_p2p) {
            let size = ("message_size", size_range(to_f64(of.bytes) / to_f64(of.count.max(1))));
            rows.extend(take(of).map(|mean| ([row.as_slice(), &[size]].concat(), mean)));
        }
        if !rows.is_empty() {
            text.head(name, "gauge", help);
            rows.iter().for_each(|(row, mean)| text.line(name, row, &six_digits(*mean)));
        }
    };
    let help = "Mean bus bandwidth of collectives, GB/s";
    gauge(false, "nccl_bus_bandwidth_gbs", help, bandwidth_gbs);
    let help = "Mean duration of collectives, us";
    gauge(false, "nccl_collective_exec_time_microseconds", help, duration_us);
    let help = "Mean bus bandwidth of P2P operations, GB/s";
    gauge(true, "nccl_p2p_bus_bandwidth_gbs", help, bandwidth_gbs);
    let help = "Mean duration of P2P operations, us";
    gauge(true, "nccl_p2p_exec_time_microseconds", help, duration_us);
    text.finish()
}

/// As many digits as Inspector gives.
fn six_digits(value: f64) -> String {
    number(format!("{value:.5e}").parse().unwrap_or(value))
}

fn duration_us(of: &Operations) -> Option<f64> {
    Some(of.duration.mean()? * 1e6)
}

fn bandwidth_gbs(of: &Operations) -> Option<f64> {
    Some(geometric_mean(&of.bus_bandwidth)? * 1e-9)
}

/// The geometric mean of the values above zero, each in the middle of its bucket.
fn geometric_mean(of: &Histogram) -> Option<f64> {
    let (mut count, mut sum) = (0, 0.0);
    for (index, &values) in (of.offset()..).zip(of.buckets()) {
        count += values;
        sum += to_f64(values) * (f64::from(index) + 0.5);
    }
    let width = f64::from(-of.scale()).exp2();
    if count == 0 {
        return None;
    }
    Some((sum / to_f64(count) * width).exp2().clamp(of.min()?, of.max()?))
}

fn inspector_row(process: &Process, comm: &CommKey) -> Row {
    vec![
        ("version", known(&process.version)),
        ("slurm_job_id", known(&process.slurm_job_id)),
        ("node", known(&process.node)),
        ("gpu", known(&process.gpu)),
        ("comm_name", known(&comm.name)),
        ("n_nodes", comm.nodes.to_string()),
        ("nranks", comm.ranks.to_string()),
    ]
}

/// Inspector's word for what is not known.
fn known(text: &str) -> String {
    if text.is_empty() { "unknown" } else { text }.to_owned()
}

/// Inspector's ranges: one whole step of the unit, `4-5MB` for 4.5 MiB.
fn size_range(bytes: f64) -> String {
    if bytes <= 0.0 {
        return "0B".into();
    }
    let (mut value, mut unit) = (bytes, 0);
    let units = ["B", "KB", "MB", "GB", "TB"];
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let low = value.floor().max(1.0);
    format!("{low}-{}{}", low + 1.0, units[unit])
}

/// Mosaic's counters and summaries. Like Mosaic it has the send side only.
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

/// What Mosaic counts together, by its labels.
#[derive(Default)]
struct Mosaic {
    collectives: BTreeMap<Row, Operations>,
    p2p: BTreeMap<Row, Operations>,
    ranks: BTreeMap<Row, Link>,
    transfers: BTreeMap<Row, Channel>,
}

impl Mosaic {
    fn add(&mut self, process: &Process, metrics: &Metrics) {
        for (key, of) in metrics.operations.iter().filter(|(key, _)| &*key.func != "Recv") {
            let mut row = mosaic_row(process, &key.comm);
            row.push(("rank", key.rank.to_string()));
            if key.is_p2p {
                row.push(("operation", key.func.to_string()));
                self.p2p.entry(row).or_default().merge(of);
            } else {
                let (hash, channels) = (key.comm.hash, key.channels);
                let (func, algo, proto) = (&key.func, &key.algo, &key.proto);
                let operation = format!("Comm{hash}_{func}_{algo}_{proto}_{channels}Chnl");
                row.push(("operation", operation));
                self.collectives.entry(row).or_default().merge(of);
            }
        }
        for (key, of) in metrics.links.iter().filter(|(key, _)| key.is_send) {
            let mut row = mosaic_row(process, &key.comm);
            row.push(("source_rank", key.rank.to_string()));
            row.push(("dest_rank", key.peer.to_string()));
            self.ranks.entry(row).or_default().merge(of);
        }
        for (key, of) in metrics.channels.iter().filter(|(key, _)| key.is_send) {
            let mut row = mosaic_row(process, &key.comm);
            row.push(("source_rank", key.rank.to_string()));
            row.push(("channel", key.channel.to_string()));
            self.transfers.entry(row).or_default().merge(of);
        }
    }

    fn collectives(&self, text: &mut Text) {
        let name = |part: &str| format!("nccl_profiler_collective_{part}");
        counter(text, &name("bytes_total"), &self.collectives, |o| o.bytes);
        summary(text, &name("time_microseconds"), &self.collectives, time);
        counter(text, &name("count_sum"), &self.collectives, |o| o.count);
        operations(text, "collective", &self.collectives);
    }

    fn p2p(&self, text: &mut Text) {
        let bytes = |o: &Operations| Some((to_f64(o.bytes), o.count));
        summary(text, "nccl_profiler_p2p_bytes", &self.p2p, bytes);
        summary(text, "nccl_profiler_p2p_time_microseconds", &self.p2p, time);
        operations(text, "p2p", &self.p2p);
    }

    fn ranks(&self, text: &mut Text) {
        counter(text, "nccl_profiler_rank_bytes_total", &self.ranks, |l| l.bytes);
        let latency = |l: &Link| Some((l.line(Mode::Avg)?.latency_us?, 1));
        summary(text, "nccl_profiler_rank_latency_microseconds", &self.ranks, latency);
        let rate = |l: &Link| Some((l.line(Mode::Avg)?.rate_mb_s, 1));
        summary(text, "nccl_profiler_rank_rate", &self.ranks, rate);
    }

    fn transfers(&self, text: &mut Text) {
        let size = |c: &Channel| Some((to_f64(c.bytes), c.transfers));
        summary(text, "nccl_profiler_transfer_size_bytes", &self.transfers, size);
        let time = |c: &Channel| Some((c.seconds * 1e6, c.transfers));
        summary(text, "nccl_profiler_transfer_time_microseconds", &self.transfers, time);
    }
}

fn mosaic_row(process: &Process, comm: &CommKey) -> Row {
    let row = vec![
        ("communicator", comm.hash.to_string()),
        ("comm_nranks", comm.ranks.to_string()),
        ("hostname", process.node.clone()),
        ("local_rank", process.local_rank.clone()),
        ("gpu_uuid", process.gpu_uuid.clone()),
    ];
    row.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn time(of: &Operations) -> Option<(f64, u64)> {
    Some((of.duration.sum * 1e6, of.duration.count))
}

/// What collectives and P2P have alike.
fn operations(text: &mut Text, kind: &str, of: &BTreeMap<Row, Operations>) {
    let name = |part: &str| format!("nccl_profiler_{kind}_{part}");
    let transfers = |o: &Operations| Some((to_f64(o.transfers), o.count));
    summary(text, &name("num_transfers_count"), of, transfers);
    let size = |o: &Operations| Some((to_f64(o.transfer_bytes), o.transfers));
    summary(text, &name("transfer_size_bytes"), of, size);
    let time = |o: &Operations| Some((o.transfer_seconds * 1e6, o.transfers));
    summary(text, &name("transfer_time_microseconds"), of, time);
}

fn counter<T>(text: &mut Text, name: &str, of: &BTreeMap<Row, T>, take: impl Fn(&T) -> u64) {
    if !of.is_empty() {
        text.head(name, "counter", "As Open Mosaic's profiler counts it");
        of.iter().for_each(|(row, of)| text.line(name, row, &take(of).to_string()));
    }
}

/// Sums and how many things they are sums of; those of nothing are left out.
fn summary<T>(
    text: &mut Text,
    name: &str,
    of: &BTreeMap<Row, T>,
    take: impl Fn(&T) -> Option<(f64, u64)>,
) {
    let rows = of.iter().filter_map(|(row, of)| Some((row, take(of)?)));
    let rows: Vec<_> = rows.filter(|(_, (_, count))| *count > 0).collect();
    if !rows.is_empty() {
        text.head(name, "summary", "As Open Mosaic's profiler averages it: sum by count");
        for (row, (sum, count)) in rows {
            text.line(&format!("{name}_sum"), row, &number(sum));
            text.line(&format!("{name}_count"), row, &count.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_geometric_mean_is_that_of_the_values() {
        let mut of = Histogram::default();
        assert_eq!(geometric_mean(&of), None);
        of.add(0.0);
        assert_eq!(geometric_mean(&of), None);
        of.add(3e9);
        assert_eq!(geometric_mean(&of), Some(3e9), "all in one bucket, bounded by the greatest");
        of.add(12e9);
        let mean = geometric_mean(&of).unwrap();
        assert!((mean / 6e9 - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn ranges_are_those_of_inspector() {
        let cases = [
            (0.0, "0B"),
            (0.5, "1-2B"),
            (1023.0, "1023-1024B"),
            (1024.0, "1-2KB"),
            (4.5 * 1024.0 * 1024.0, "4-5MB"),
            (4.99 * 1024.0 * 1024.0 * 1024.0, "4-5GB"),
            (4096.0 * 1024.0f64.powi(4), "4096-4097TB"),
        ];
        for (bytes, range) in cases {
            assert_eq!(size_range(bytes), range);
        }
    }
}
