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
they are classic histograms with powers of two as `le`, and counts are exact unless the values
differ by more than a factor of 2^160. Absent attributes are absent labels in Prometheus.

An operation counts in the window in which it ended, with all its children. Its duration ends with
its last child. `nccl.timing` names the clock:

- `kernel`: the GPU's timer in the kernel channels
- `cuda_event`: two CUDA events around the launch of one operation ([probe.md](probe.md))
- `proxy`: the host's clock until the last network operation stopped
- `kernel_lead`: the GPU's timer until one thread of the kernel finished, a lower bound (TREE, NVLS
  and other algorithms, sends and receives, without a network part)
- `enqueue`: the host's clock while the operation was enqueued

Bandwidths are over the time from the rank's arrival to the end, and exist only if both are known:
not with `kernel_lead` and `enqueue`, and with `proxy` only if the kernel's start was seen or the
rank sends its own data first (RING, sends). A rank's bandwidth contains its wait for later ranks,
so the highest bandwidth over the ranks of a communicator is that of the transfer. A single rank
with a higher bandwidth than its peers is the one that they wait for (`--labels rank`).

Latency, rate and fit of a link come from the last windows that together have at least 16 sends.
Everything else counts from the start. If all sends have one size, the rate is their size divided
by their time, and there is no latency.

Limits:

- A rank distinguishes 64 communicators at a time, 2,048 links and 2,048 channels. The rest share
  the series whose `nccl.communicator.hash` is `0000000000000000` (rank and peer -1).
- With PXN, the agent counts a transfer for the rank that owns the data; a rank that exports its
  metrics itself cannot, and the hash is `0000000000000000`.
- Some networks receive from several peers in one request (`maxRecvs` above 1). These receives end
  with the slowest sender; the send side distinguishes the peers.
- What does not go through NCCL is in no figure, and neither are replays of CUDA graphs that NCCL
  does not report (`nccl.graph.invisible` counts their operations at capture).
  `nccl.invisible.libraries` names the loaded libraries that can communicate without NCCL: NVSHMEM,
  DeepEP, MSCCL++, and the extensions of vLLM, SGLang and TensorRT-LLM. A rank looks for them 5 s,
  1 min and 10 min after it began. PyTorch's symmetric memory cannot be seen.
- The series of a finalized communicator end, and so do those of an exited process (in the agent
  two minutes later). Rates over all communicators are always correct. Operations that had not
  ended 15 s after their communicator count as lost (`unfinished`).

A row that begins with \"with\" gives the attributes (`nccl.…`) of the metrics below it.
`communicator.*` is name, hash, size and nodes.

| metric | kind | unit | what | in Prometheus |
| --- | --- | --- | --- | --- |
";

const ATTRIBUTES_HEAD: &str = "
## Attributes

`nccl.rank`, `nccl.peer.rank`, `nccl.channel.id` and `nccl.proxy.lane` multiply the series by the
size of the job: they are present only on request (`NCCLSCOPE_LABELS`, `--labels` of the agent).
Beyond the cap on series, new series are summed in one overflow series per metric, with
`otel.metric.overflow`, and `ncclscope.series.dropped` counts them.

| attribute | what |
| --- | --- |
";

const PLACES_HEAD: &str = "
The agent adds these to all figures of a process. A rank that exports by itself has them in the
resource of its requests. A process with several ranks (JAX) has a device for each.

| attribute | what |
| --- | --- |
";

const COMPAT: &str = "
## Names of other projects

`NCCLSCOPE_PROM_COMPAT=inspector` gives the gauges of NVIDIA's Inspector: `nccl_bus_bandwidth_gbs`,
`nccl_collective_exec_time_microseconds`, `nccl_p2p_bus_bandwidth_gbs` and
`nccl_p2p_exec_time_microseconds`, with its labels `version`, `slurm_job_id`, `node`, `gpu`,
`comm_name`, `n_nodes`, `nranks`, `collective` or `p2p_operation`, `message_size` and `algo_proto`.
Times are those of the kernel channels; operations without them are omitted. `message_size` is the
range of the mean size within a power of two.

`NCCLSCOPE_PROM_COMPAT=mosaic` gives the names of Open Mosaic's profiler, as Prometheus shows them
behind an OpenTelemetry collector: `nccl_profiler_collective_bytes_total`,
`nccl_profiler_collective_count_sum`, `nccl_profiler_rank_bytes_total`, and `_sum`, `_count` and
`_bucket` of `nccl_profiler_{collective,p2p}_{time_microseconds,num_transfers_count}`,
`nccl_profiler_{collective,p2p}_transfer_{size_bytes,time_microseconds}`, `nccl_profiler_p2p_bytes`,
`nccl_profiler_rank_{latency_microseconds,rate}` and
`nccl_profiler_transfer_{size_bytes,time_microseconds,latency_microseconds}`. As in Mosaic, only the
send side counts, and an operation's time ends with its last ProxyOp. Each operation and transfer is
one value, where Mosaic has one average per window. Latency and rate are states: their `_count` is
1, so use them without `rate()`.

Both stop at the cap; `ncclscope_series_over_cap` is then the number of missing series.
";

/// The page as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(INTRODUCTION);
    for group in METRICS.chunk_by(|one, next| one.attributes == next.attributes) {
        let attributes = group.first().map_or(String::new(), |metric| names(metric.attributes));
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| with {attributes} | | | | |");
        for metric in group {
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

/// The attributes of a group of metrics, those of the communicator as one.
fn names(attributes: &[&str]) -> String {
    const COMMUNICATOR: &str = "nccl.communicator.";
    let short = attributes.iter().map(|name| match name.strip_prefix(COMMUNICATOR) {
        Some(_) => "communicator.*",
        None => name.trim_start_matches("nccl."),
    });
    let mut short: Vec<String> = short.map(|name| format!("`{name}`")).collect();
    short.dedup();
    if short.is_empty() { "no attributes".into() } else { short.join(", ") }
}
