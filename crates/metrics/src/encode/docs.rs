// SPDX-License-Identifier: Apache-2.0
//! `docs/metrics.md`.

use super::attributes::ATTRIBUTES;
use super::{METRICS, prom};
use std::fmt::Write;

const INTRODUCTION: &str = "# Metrics

This page is generated from the table in `crates/metrics/src/encode/names.rs` (`cargo run -p \
ncclscope-metrics --example metrics-docs`); do not edit it.

In OTLP histograms are base-2 exponential histograms. The Prometheus text format has none, so that
they are classic histograms there, whose `le` are powers of two and whose counts are exact unless
the values differ by more than a factor of 2^160. Absent attributes are absent labels in Prometheus.

An operation counts in the window in which it ended, with all its children; it is never split, and
an operation that does not end delays no other. Its duration ends with its last child, and
`nccl.timing` names the clock of the duration:

- `kernel`: the GPU's timer in the kernel channels
- `cuda_event`: two CUDA events around the kernel's launch, if one launch was for one operation
  ([NCCLSCOPE_CUDA_EVENTS](probe.md))
- `proxy`: the host's clock until the last network operation stopped
- `kernel_lead`: the GPU's timer until one thread of the kernel finished, which is a lower bound
  (TREE, NVLS and other algorithms, sends and receives, without a network part)
- `enqueue`: the host's clock while the operation was enqueued

Bandwidths exist only if the clock measures the operation (not `kernel_lead` and `enqueue`). Network
figures without ranks are sums over all links or channels, and the regression is over all their
sends.

A rank tells 64 communicators apart at a time. All others share the series whose
`nccl.communicator.hash` is `0000000000000000`; their share stays there when such a communicator
later gets a series of its own. A rank tells 2,048 links and as many channels apart; the rest is in
the same series, with rank and peer -1. The series of a finalized communicator end, and so do those
of an exited process: in a rank after it has exported the last operations, and in the agent two
minutes later. Rates over all communicators are always right; the sum of the totals covers only the
communicators that still have series. Operations that had not ended 15 s after their communicator
count as lost (`unfinished`).
";

const HEAD: &str = "
| metric | kind | unit | what | in Prometheus |
| --- | --- | --- | --- | --- |
";

const ATTRIBUTES_HEAD: &str = "
## Attributes

`nccl.rank`, `nccl.peer.rank`, `nccl.channel.id` and `nccl.proxy.lane` multiply the series by the
size of the job: they are present only on request (`NCCLSCOPE_LABELS`, `--labels` of the agent).
Beyond the cap on series, new series are summed in one overflow series per metric, with
`otel.metric.overflow`, and `ncclscope.series.dropped` counts them. The sum stays there after their
communicator or process has ended.

| attribute | what |
| --- | --- |
";

const COMPAT: &str = "
## Names of other projects

`NCCLSCOPE_PROM_COMPAT=inspector` gives the gauges of NVIDIA's Inspector: `nccl_bus_bandwidth_gbs`,
`nccl_collective_exec_time_microseconds`, `nccl_p2p_bus_bandwidth_gbs` and
`nccl_p2p_exec_time_microseconds`, with its labels `version`, `slurm_job_id`, `node`, `gpu`,
`comm_name`, `n_nodes`, `nranks`, `collective` or `p2p_operation`, `message_size` and `algo_proto`.
Operations of which only the enqueue time is known are omitted. `message_size` is the range of the
mean size within a power of two.

`NCCLSCOPE_PROM_COMPAT=mosaic` gives the names of Open Mosaic's profiler, as Prometheus shows them
behind an OpenTelemetry collector: `nccl_profiler_collective_bytes_total`,
`nccl_profiler_collective_count_sum`, `nccl_profiler_rank_bytes_total`, and `_sum`, `_count` and
`_bucket` of `nccl_profiler_{collective,p2p}_{time_microseconds,num_transfers_count}`,
`nccl_profiler_{collective,p2p}_transfer_{size_bytes,time_microseconds}`, `nccl_profiler_p2p_bytes`,
`nccl_profiler_rank_{latency_microseconds,rate}` and
`nccl_profiler_transfer_{size_bytes,time_microseconds,latency_microseconds}`. As in Mosaic, only the
send side counts. Each operation and transfer is one value, where Mosaic has one average per window;
the sum divided by the count is the same. If only a sum is known, its values are in the bucket of
their mean. Latency and rate are states: their `_count` is 1, so that they are used without
`rate()`. The transfers of a channel have `dest_rank` and the latency only if the rank sends to one
peer.

Both stop at the cap; `ncclscope_series_over_cap` then is the number of missing series.
";

/// The page.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(INTRODUCTION);
    for alike in METRICS.chunk_by(|one, next| one.attributes == next.attributes) {
        let attributes = alike.iter().take(1).flat_map(|metric| metric.attributes);
        let attributes: Vec<String> = attributes.map(|name| format!("`{name}`")).collect();
        let attributes =
            if attributes.is_empty() { "no attributes".into() } else { attributes.join(", ") };
        // A String takes all that is written to it.
        let _ = write!(out, "\nWith {attributes}:\n{HEAD}");
        for metric in alike {
            let (name, kind, unit) = (metric.name, metric.kind.name(), metric.unit);
            let (what, prometheus) = (metric.description, prom::name(metric));
            let _ = writeln!(out, "| `{name}` | {kind} | `{unit}` | {what} | `{prometheus}` |");
        }
    }
    out.push_str(ATTRIBUTES_HEAD);
    for (name, what) in ATTRIBUTES {
        let _ = writeln!(out, "| `{name}` | {what} |");
    }
    out.push_str(COMPAT);
    out
}
