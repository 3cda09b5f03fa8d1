// SPDX-License-Identifier: Apache-2.0
/*!
The names of tracks and arguments in all trace formats.

docs/traces.md contains these tables; a test compares them. An argument has the same name as in
`report` and the metrics, if it exists there, and ends in its unit.
*/

use std::fmt::Write;

/// Tracks: name, category of their slices, and their content. `R` is a rank, `C` a channel.
pub const TRACKS: &[(&str, &str, &str)] = &[
    (
        "Steps and marks",
        "mark",
        "training steps and marks of the application, starts and stops of the recording",
    ),
    (
        "Operations",
        "operation",
        "each collective, send and receive, as long as `report` says that it took (`duration_ns`; \
         `timing` says by which clock)",
    ),
    ("API calls", "api", "the application's calls into NCCL, and kernel launches"),
    (
        "Groups",
        "group",
        "groups, and while NCCL enqueues each operation (Coll, P2p): not how long it takes",
    ),
    (
        "Copy engine",
        "copy_engine",
        "collectives by copy engines, their synchronizations and copies",
    ),
    (
        "Kernel channel C",
        "kernel",
        "what each channel of a kernel does, and its phases, by the GPU's own timer",
    ),
    (
        "Proxy send to rank R, channel C",
        "proxy, step",
        "the network part of operations: each transfer (`ProxyStep`) with its states, which say \
         what it waits for",
    ),
    ("Proxy receive from rank R, channel C", "proxy, step", "as sends"),
    ("Proxy control", "proxy", "what the proxy thread does between transfers"),
    (
        "Network plugin send to rank R, channel C",
        "net",
        "what the network plugin reports of these transfers (`NetPlugin`); receives likewise",
    ),
    ("Network plugin", "net", "what it reports of transfers that were not recorded"),
];

/// Arguments: name, slices that have it, and its meaning.
pub const ARGUMENTS: &[(&str, &str, &str)] = &[
    ("nccl_seq", "operations", "NCCL's number of the operation, by communicator and function"),
    (
        "bytes",
        "operations, transfers, copies, network plugin",
        "size; of an operation as nccl-tests define it",
    ),
    ("datatype", "operations, calls", "NCCL's name"),
    ("algorithm", "operations", "such as `RING`"),
    ("protocol", "operations", "such as `SIMPLE`"),
    ("channels", "operations", "channels that NCCL announces"),
    ("comm_peer", "operations", "the other rank of a send or receive, in the communicator"),
    ("root", "operations, calls", "root rank of Broadcast, Reduce, Gather and Scatter"),
    ("warps", "operations", "warps of a block of the kernel"),
    ("variant", "operations", "variant of the kernel, where NCCL names one (API v7)"),
    ("symmetric", "operations", "1: a symmetric kernel"),
    ("alignment", "operations", "bytes to which all buffers of the operation are aligned"),
    ("user_tag", "operations, calls", "`userProfilerTag` of the call (API v7)"),
    ("comm", "operations", "the communicator's hash; `unknown-N` where NCCL gives none"),
    ("comm_name", "operations", "the name that the application gave it"),
    ("role", "operations", "role of the communicator that the application set, such as `tp`"),
    ("comm_rank", "operations, foreign transfers", "this rank in the communicator"),
    ("nranks", "operations", "ranks of the communicator"),
    ("ranks", "CeSync", "ranks that take part"),
    ("timing", "operations", "which clock the duration is from"),
    ("duration_ns", "operations", "duration, as in `report`"),
    ("end", "operations", "`unseen`: enqueued, and nothing shows its end"),
    ("count", "calls", "elements, as the caller gave them"),
    ("cuda_stream", "calls, launches, CeColl", "handle of the CUDA stream"),
    ("graph_captured", "calls", "1: captured into a CUDA graph"),
    ("external_id", "calls", "the application's own id; PyTorch's `External id`"),
    ("depth", "group calls", "nesting of ncclGroupStart"),
    ("cuda_event_ns", "launches", "time between two CUDA events around the launch"),
    ("gpu_ns", "kernel channels and phases", "duration by the GPU's timer"),
    ("steps", "ProxyOp", "transfers that NCCL announces"),
    ("steps_done", "ProxyOp", "transfers that ended, where it is another number"),
    ("pid", "foreign transfers", "process that the transfer belongs to (PXN)"),
    ("step", "ProxyStep, network plugin", "number of the transfer"),
    ("polls", "ProxyStep", "how often NCCL looked again"),
    ("complete", "CeSync", "1: the closing synchronization"),
    ("copies", "CeBatch", "copies"),
    ("synchronization", "CeColl", "NCCL's name of the strategy"),
    ("device", "network plugin", "device index (InfiniBand)"),
    ("socket", "network plugin", "descriptor of the socket"),
    ("network", "network plugin", "`InfiniBand`, `sockets` or `other`"),
    ("qp", "network plugin", "queue pair (InfiniBand)"),
    ("op", "network plugin", "opcode (InfiniBand), or 0 send, 1 receive (socket)"),
    ("value", "marks", "number of the training step; one in how many operations is recorded"),
    (
        "open",
        "all",
        "1: it was not over when the recording ended, and lasts to that; a ProxyOp that NCCL never \
         stops (shared memory) lasts as long as its operation",
    ),
];

pub(crate) fn is_argument(name: &str) -> bool {
    ARGUMENTS.iter().any(|(known, ..)| *known == name)
}

/// The tables of docs/traces.md.
#[must_use]
pub fn tables() -> String {
    let mut text = String::from("| track | category | holds |\n| --- | --- | --- |\n");
    for (name, category, holds) in TRACKS {
        let _ = writeln!(text, "| {name} | {category} | {holds} |");
    }
    text.push_str("\n| argument | of | is |\n| --- | --- | --- |\n");
    for (name, of, is) in ARGUMENTS {
        let _ = writeln!(text, "| `{name}` | {of} | {is} |");
    }
    text
}
