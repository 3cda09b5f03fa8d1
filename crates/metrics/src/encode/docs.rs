// SPDX-License-Identifier: Apache-2.0
//! `docs/metrics.md`.

use super::attributes::ATTRIBUTES;
use super::{METRICS, prom};
use std::fmt::Write;

const INTRODUCTION: &str = "# Metrics

Made from the table in `crates/metrics/src/encode/names.rs` (`cargo run -p ncclscope-metrics \
--example metrics-docs`); do not edit.

Histograms are base-2 exponential ones in OTLP. Prometheus' text format has none: there they are
classic ones, whose `le` are powers of two and whose counts are exact unless the values are more
than a factor of 2^160 apart. Absent attributes are absent labels in Prometheus.

An operation counts in the window in which it ended, with all its children; it is never split, and
one that does not end holds up no other. Its duration is that of its last child's end, and
`nccl.timing` says from which clock. There are five: `kernel`, the GPU's timer in the kernel
channels; `cuda_event`, two CUDA events around the kernel's launch, where one launch was for one
operation ([NCCLSCOPE_CUDA_EVENTS](probe.md)); `proxy`, the host's clock until the last network
operation stopped; `kernel_lead`, the GPU's timer until one thread of the kernel was through, which
is the least that it took (TREE, NVLS and other algorithms, sends and receives, without a network
part); `enqueue`, the host's clock while the operation was enqueued. Bandwidths are only given where
the clock says something about them (not `kernel_lead` and `enqueue`). Network figures without
ranks are sums over all links or channels, and the regression is over all their sends.

A rank tells 64 communicators apart at a time. What any other one does is in the series whose
`nccl.communicator.hash` is `0000000000000000`, and stays there when the communicator gets a series
of its own. It tells 2,048 links and as many channels apart; what goes over further ones is in the
same series, with rank and peer -1. The series of a communicator that was finalized end, as those
of a process do that ends: after its last operations were exported by a rank, and two minutes
later in the agent. Rates over all communicators are right at any time; the sum of the totals is
that of those that are there.
Operations that had not ended 15 s after their communicator are lost as `unfinished`.
";

const HEAD: &str = "
| metric | kind | unit | what | in Prometheus |
| --- | --- | --- | --- | --- |
";

const ATTRIBUTES_HEAD: &str = "
## Attributes

`nccl.rank`, `nccl.peer.rank`, `nccl.channel.id` and `nccl.proxy.lane` multiply series by the size
of the job: they are only there if asked for. Beyond the cap on series, what is new goes into one
series of its metric, with `otel.metric.overflow`, and `ncclscope.series.dropped` counts it. What
is in there stays there, also when its communicator or process is gone.

| attribute | what |
| --- | --- |
";

const COMPAT: &str = "
## Names of other projects

`NCCLSCOPE_PROM_COMPAT=inspector` gives the gauges of NVIDIA's Inspector: `nccl_bus_bandwidth_gbs`,
`nccl_collective_exec_time_microseconds`, `nccl_p2p_bus_bandwidth_gbs` and
`nccl_p2p_exec_time_microseconds`, with its labels `version`, `slurm_job_id`, `node`, `gpu`,
`comm_name`, `n_nodes`, `nranks`, `collective` or `p2p_operation`, `message_size` and `algo_proto`.
Operations of which only the enqueue time is known are left out. `message_size` is the range of the
mean size within a power of two.

`NCCLSCOPE_PROM_COMPAT=mosaic` gives the names of Open Mosaic's profiler, as Prometheus shows them
behind an OpenTelemetry collector: `nccl_profiler_collective_bytes_total`,
`nccl_profiler_collective_count_sum`, `nccl_profiler_rank_bytes_total`, and `_sum`, `_count` and
`_bucket` of `nccl_profiler_{collective,p2p}_{time_microseconds,num_transfers_count}`,
`nccl_profiler_{collective,p2p}_transfer_{size_bytes,time_microseconds}`, `nccl_profiler_p2p_bytes`,
`nccl_profiler_rank_{latency_microseconds,rate}` and
`nccl_profiler_transfer_{size_bytes,time_microseconds,latency_microseconds}`. Only the send side
counts, as there. Each operation and transfer is one value, where Mosaic has one average for each of
its windows; sum by count is the same. Where only a sum is known, its values are in the bucket of
their mean. Latency and rate are states: their `_count` is 1, to be used without `rate()`. Of the
transfers of a channel, `dest_rank` and the latency are there where the rank sends to one peer only.

Both stop at the cap, and then `ncclscope_series_over_cap` says how many series are missing.
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
