// SPDX-License-Identifier: Apache-2.0
/*!
The names and labels of NVIDIA's Inspector (`inspector_prom.cc` in NVIDIA/nccl), for its
`NCCL_INSPECTOR_PROM_DUMP`.

As in Inspector, an operation's time is that of its kernel channels by the GPU's timer, even if
their stop is not its end; operations without it are omitted.

The values are means over the given metrics, so pass a window. As in Inspector, the mean of
bandwidths is geometric; it comes from a histogram, and is exact within 0.6 % if the values differ
by less than a factor of five. A message size is the power-of-two range that contains the mean size
of the operations.
*/

use super::super::prom::{Text, number};
use super::{Process, Row};
use crate::window::{CommKey, Metrics, Operations};
use ncclscope_operations::Histogram;
use ncclscope_operations::stats::to_f64;
use std::collections::BTreeMap;

/// Writes Inspector's gauges.
#[must_use]
pub fn inspector(processes: &[(Process, &Metrics)], max_series: usize) -> String {
    let mut groups: BTreeMap<(bool, Row, Option<u8>), Operations> = BTreeMap::new();
    for (process, metrics) in processes {
        for (key, of) in &metrics.operations {
            if of.compat.kernel.count > 0 {
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
        for ((_, row, class), of) in groups.iter().filter(|((p2p, ..), _)| *p2p == is_p2p) {
            let mean = class.map(|_| size_range(to_f64(of.bytes) / to_f64(of.count.max(1))));
            let size = ("message_size", mean.unwrap_or_else(|| known("")));
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

/// Formats a number with as many digits as Inspector does.
fn six_digits(value: f64) -> String {
    number(format!("{value:.5e}").parse().unwrap_or(value))
}

fn duration_us(of: &Operations) -> Option<f64> {
    Some(of.compat.kernel.mean()? * 1e6)
}

fn bandwidth_gbs(of: &Operations) -> Option<f64> {
    Some(geometric_mean(&of.compat.kernel_bandwidth)? * 1e-9)
}

/// The geometric mean of the values above zero, each taken as the middle of its bucket; `None` if
/// there are none.
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

/// The text, or Inspector's word for an unknown value.
fn known(text: &str) -> String {
    if text.is_empty() { "unknown" } else { text }.to_owned()
}

/// The size as Inspector's range, which is one whole unit wide: `4-5MB` for 4.5 MiB.
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
