// SPDX-License-Identifier: Apache-2.0
//! Generates `docs/metrics.md`.

use super::attributes::ATTRIBUTES;
use super::places;
use super::{METRICS, prom};
use std::fmt::Write;

const INTRODUCTION: &str = "# Metrics

This page is generated from the table in `crates/metrics/src/encode/names.rs` (`cargo run -p \
ncclscope-metrics --example metrics-docs`); do not edit it.

In OTLP, histograms are base-2 exponential histograms. The Prometheus text format has none: there
they are classic histograms, whose `le` are powers of two and whose counts are exact unless the
values differ by more than a factor of 2^160. Absent attributes are absent labels in Prometheus.

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

The bandwidths are over the time from the rank's arrival to the end, and exist only where both are
known: not with `kernel_lead` and `enqueue`, and with `proxy` only if the kernel's start was seen or
the rank sends its own data first (RING, sends). A rank cannot know when the others arrive, so its
bandwidth contains its wait for them; the rank that arrives last waits for no other. Over the ranks
of a communicator the highest bandwidth is therefore that of the transfer, and a rank that is higher
than the others by itself is the one they wait for (`--labels rank`). `ncclscope report` joins the
ranks and gives the transfer itself. Network
figures without ranks are sums over all links or channels, and the regression is over all their
sends.

Latency, rate and fit of a link come from the last windows that have at least 16 sends together:
where every window has as many, a link that degrades shows when the next window ends. Everything
else counts from the start. Of sends of one size there is no telling what of the time is latency:
the rate is then their size divided by their time, and there is no latency.

A rank distinguishes 64 communicators at a time. All others share the series whose
`nccl.communicator.hash` is `0000000000000000`; their share stays there when such a communicator
later gets a series of its own. A rank distinguishes 2,048 links and 2,048 channels; all others are
in one series, with rank and peer -1 and the hash `0000000000000000`.

With PXN, another rank of the node sends a rank's data. The agent reads the recordings of both and
counts these transfers for the rank whose data they are: by link, by channel and with its operation.
A rank that exports its metrics itself does not know the other's communicator: there they are in the
series of the hash `0000000000000000` of the rank that sends, and the operation has none.

Some networks receive from several peers in one request (`maxRecvs` above 1: up to 8 peers). All of
these receives end with the slowest sender, so that their waits do not tell one peer from another.
The series of the send side do.

What does not go through NCCL is in no figure, and neither are replays of CUDA graphs of which NCCL
reports nothing: `nccl.graph.invisible` counts the operations of such graphs, as they were captured,
and how often they are replayed is not known. `nccl.invisible.libraries` tells which libraries that
can communicate without NCCL are loaded: NVSHMEM, DeepEP, MSCCL++, and the extensions of vLLM,
SGLang and TensorRT-LLM, which have all-reduce kernels of their own. A rank looks for them by the
names of mapped files 5 s, 1 min and 10 min after it began. Whether they are used cannot be seen,
and neither can PyTorch's symmetric memory, which is in PyTorch's own libraries.

The series of a finalized communicator end, and so do those of an exited process: in a rank after it
has exported the last operations, and in the agent two minutes later. Rates over all communicators
are always correct; the sum of the totals covers only the communicators that still have series.
Operations that had not ended 15 s after their communicator count as lost (`unfinished`).
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

const PLACES_HEAD: &str = "
The agent adds these to all figures of a process, so that a job can be chosen and two compared. A
rank that exports by itself has them in the resource of its requests. A process with several ranks
(JAX) has a device for each: its series then have `nccl.rank` and the device themselves.

| attribute | what |
| --- | --- |
";

const COMPAT: &str = "
## Names of other projects

`NCCLSCOPE_PROM_COMPAT=inspector` gives the gauges of NVIDIA's Inspector: `nccl_bus_bandwidth_gbs`,
`nccl_collective_exec_time_microseconds`, `nccl_p2p_bus_bandwidth_gbs` and
`nccl_p2p_exec_time_microseconds`, with its labels `version`, `slurm_job_id`, `node`, `gpu`,
`comm_name`, `n_nodes`, `nranks`, `collective` or `p2p_operation`, `message_size` and `algo_proto`.
Times are those of the kernel channels by the GPU's timer, as in Inspector; operations without them
are omitted. `message_size` is the range of the
mean size within a power of two.

`NCCLSCOPE_PROM_COMPAT=mosaic` gives the names of Open Mosaic's profiler, as Prometheus shows them
behind an OpenTelemetry collector: `nccl_profiler_collective_bytes_total`,
`nccl_profiler_collective_count_sum`, `nccl_profiler_rank_bytes_total`, and `_sum`, `_count` and
`_bucket` of `nccl_profiler_{collective,p2p}_{time_microseconds,num_transfers_count}`,
`nccl_profiler_{collective,p2p}_transfer_{size_bytes,time_microseconds}`, `nccl_profiler_p2p_bytes`,
`nccl_profiler_rank_{latency_microseconds,rate}` and
`nccl_profiler_transfer_{size_bytes,time_microseconds,latency_microseconds}`. As in Mosaic, only the
send side counts, and an operation's time is from its start to its last ProxyOp's stop. Each
operation and transfer is one value, where Mosaic has one average per window; the sum divided by the
count is the same. If only a sum is known, its values are in the bucket of their mean. Latency and
rate are states: their `_count` is 1, so that they are used without `rate()`. The latency of a
channel's transfers is that of the link to its peer.

Both stop at the cap; `ncclscope_series_over_cap` is then the number of missing series.
";

/// The page as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(INTRODUCTION);
    for alike in METRICS.chunk_by(|one, next| one.attributes == next.attributes) {
        let attributes = alike.iter().take(1).flat_map(|metric| metric.attributes);
        let attributes: Vec<String> = attributes.map(|name| format!("`{name}`")).collect();
        let attributes =
            if attributes.is_empty() { "no attributes".into() } else { attributes.join(", ") };
        // Writing to a String cannot fail.
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
    out.push_str(PLACES_HEAD);
    for (name, what) in places::ATTRIBUTES {
        let _ = writeln!(out, "| `{name}` | {what} |");
    }
    out.push_str(COMPAT);
    out
}
