// SPDX-License-Identifier: Apache-2.0
//! The workloads of `docs/nccl-events.md`.

/// A row of the page's table: the calls, and the steps that make them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) steps: &'static [&'static str],
    /// Description for people.
    pub(super) about: &'static str,
}

/// The workloads of the page.
pub(super) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "allreduce",
        steps: &["allreduce:1048576"],
        about: "one `ncclAllReduce` of 4 MiB",
    },
    Workload {
        name: "broadcast",
        steps: &["broadcast:65536"],
        about: "one `ncclBroadcast` of 256 KiB",
    },
    Workload {
        name: "sendrecv",
        steps: &["sendrecv:65536"],
        about: "one `ncclSend` and one `ncclRecv` of 256 KiB in a group",
    },
    Workload {
        name: "group",
        steps: &["group:3x65536"],
        about: "three `ncclAllReduce` of 256 KiB in a group",
    },
    Workload {
        name: "graph",
        steps: &["graph:3x65536"],
        about: "one `ncclAllReduce` of 256 KiB captured in a CUDA graph that is launched 3 times",
    },
    Workload {
        name: "split",
        steps: &["split:65536"],
        about: "`ncclCommSplit` with shared resources, then an AllGather on the child, an \
                AllReduce on the parent and one on the child",
    },
];
