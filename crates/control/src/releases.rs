// SPDX-License-Identifier: Apache-2.0
/*!
What releases of NCCL, and of AMD's RCCL, do with kernel channel events (KernelCh), in one table
each. They decide which events the plugin requests, which kernel times are used, what `ncclscope
doctor` says, and a part of docs/env.md.
*/

use ncclscope_trace::{Comm, Vendor};

/// Why the GPU's and the host's counts of kernels differ in a release, so that a kernel event has
/// the times of another kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drift {
    /// No known cause.
    Never,
    /// A rank's send to itself from another buffer (an `all_to_all` of PyTorch): the kernels count
    /// it (`profiler()` of `src/device/common.h`), and the host, which counts operations of the
    /// proxy, does not (`nProxyOps` in `addP2pToPlan` of `src/enqueue.cc`).
    SelfSend,
    /// Sends of a rank to itself, as for [`Drift::SelfSend`]. Broadcasts from several roots in one
    /// group (an uneven AllGather of PyTorch): the kernels count them, and the host does not
    /// (`src/scheduler/allgatherv_sched.cc@v2.30.7-1`).
    GroupedRoots,
    /// Any Broadcast: from 2.31 on the host counts only what it profiles
    /// (`ncclProfilerPostPlanWork` of `src/plugin/profiler.cc@v2.31.2-1`, NVIDIA/nccl#2368).
    /// These are all sends and receives, also of a rank to itself.
    Broadcast,
}

impl Drift {
    /// Whether a rank's send to itself makes the counts differ.
    #[must_use]
    pub const fn has_self_sends(self) -> bool {
        matches!(self, Drift::SelfSend | Drift::GroupedRoots)
    }
}

/// What kernel channel events add to a CUDA graph of ranks on one node, as `cargo xtask
/// event-costs` counts it on the CPU stand-in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InGraphs {
    /// The release has no kernel channel events.
    Nothing,
    /// A host function for each launch, and a thread per communicator that polls while work is
    /// queued.
    Polls,
    /// A host function for each launch.
    HostFunctions,
    /// NCCL may crash.
    Crashes,
    /// Nobody counted it.
    Untried,
}

/// Kernel channel events of a range of releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// The first release, as `ncclGetVersion` has it: 22809 is 2.28.9.
    pub from: u32,
    /// Whether they are requested by default.
    pub by_default: bool,
    /// Why the counts of kernels differ.
    pub drift: Drift,
    /// What the events add to a CUDA graph.
    pub in_graphs: InGraphs,
    /// Reason for `by_default`, in one sentence.
    pub reason: &'static str,
}

const NCCL: [Release; 7] = [
    Release {
        from: 0,
        by_default: true,
        drift: Drift::Never,
        in_graphs: InGraphs::Nothing,
        reason: "NCCL 2.26 is the first release that has them",
    },
    Release {
        from: 22_600,
        by_default: true,
        drift: Drift::SelfSend,
        in_graphs: InGraphs::Polls,
        reason: "they show when kernels ran, until a rank sends to itself (an all_to_all of \
                 PyTorch): then NCCL 2.26 to 2.30 report one kernel's times for another",
    },
    Release {
        from: 22_900,
        by_default: false,
        drift: Drift::GroupedRoots,
        in_graphs: InGraphs::Polls,
        reason: GROUPED_ROOTS,
    },
    Release {
        from: 23_003,
        by_default: false,
        drift: Drift::GroupedRoots,
        in_graphs: InGraphs::Crashes,
        reason: "NCCL 2.30.3 may crash with kernel events and graphs (NVIDIA/nccl#2112)",
    },
    Release {
        from: 23_004,
        by_default: false,
        drift: Drift::GroupedRoots,
        in_graphs: InGraphs::Polls,
        reason: GROUPED_ROOTS,
    },
    Release {
        from: 23_100,
        by_default: false,
        drift: Drift::Broadcast,
        in_graphs: InGraphs::HostFunctions,
        reason: "after a Broadcast NCCL 2.31 reports one kernel's times for another, or none \
                 (NVIDIA/nccl#2368), and kernel events cost 4 to 13 % on 128 KiB to 4 MiB \
                 (NVIDIA/nccl#2355)",
    },
    Release {
        from: 23_200,
        by_default: false,
        drift: Drift::Broadcast,
        in_graphs: InGraphs::HostFunctions,
        reason: "after a Broadcast NCCL from 2.31 on reports one kernel's times for another, or \
                 none, and may crash when the communicator is destroyed (NVIDIA/nccl#2368)",
    },
];

/// None was tried on a GPU; what they take over from NCCL was read in ROCm/rocm-systems
/// (`projects/rccl`).
const RCCL: [Release; 4] = [
    Release {
        from: 0,
        by_default: true,
        drift: Drift::Never,
        in_graphs: InGraphs::Untried,
        reason: "they show when kernels ran; before 2.27 not checked",
    },
    Release {
        from: 22_700,
        by_default: true,
        drift: Drift::SelfSend,
        in_graphs: InGraphs::Untried,
        reason: "they show when kernels ran, until a rank sends to itself; not tried",
    },
    Release {
        from: 22_900,
        by_default: false,
        drift: Drift::GroupedRoots,
        in_graphs: InGraphs::Untried,
        reason: "RCCL's 2.30 has NCCL's schedule of grouped broadcasts \
                 (`src/scheduler/allgatherv_sched.cc`), after which one kernel's times may be \
                 reported for another, and ncclCommDestroy may not return; not tried",
    },
    Release {
        from: 23_100,
        by_default: false,
        drift: Drift::Broadcast,
        in_graphs: InGraphs::Untried,
        reason: "not checked; NCCL 2.31 reports one kernel's times for another after a Broadcast",
    },
];

const GROUPED_ROOTS: &str = "after grouped broadcasts from several roots (an uneven all_gather of \
                             PyTorch) NCCL 2.29 and 2.30 report one kernel's times for another, or \
                             wait for times that never arrive, which blocks ncclCommDestroy \
                             (workaround: NCCL_ALLGATHERV_ENABLE=0)";

/// The row of a release. 0 is an unknown release and gets the first row: on by default, no known
/// drift.
#[must_use]
pub fn of_release(vendor: Vendor, version: u32) -> &'static Release {
    let table = table(vendor);
    table.iter().rev().find(|row| row.from <= version).unwrap_or(&table[0])
}

/// The row of a communicator's release.
#[must_use]
pub fn of_comm(comm: &Comm) -> &'static Release {
    of_release(comm.vendor, comm.nccl_version)
}

const fn table(vendor: Vendor) -> &'static [Release] {
    match vendor {
        Vendor::Nvidia => &NCCL,
        Vendor::Amd => &RCCL,
    }
}

/// The table in Markdown, without releases that have no kernel channel events.
pub(crate) fn markdown() -> String {
    let mut out = String::from("| NCCL from | `auto` is | why |\n| --- | --- | --- |\n");
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        for row in table(vendor).iter().filter(|row| row.in_graphs != InGraphs::Nothing) {
            let state = if row.by_default { "on" } else { "off" };
            let Release { from, reason, .. } = row;
            let from = vendor.release(*from).unwrap_or_default();
            // A reason is printed once.
            let earlier = out.lines().find(|line| line.contains(reason));
            let earlier = earlier.and_then(|line| line.split(" | ").next());
            let row = earlier.map(|row| format!("as {}", row.trim_start_matches("| ")));
            let why = row.as_deref().unwrap_or(reason);
            out.push_str(&format!("| {from} | {state} | {why} |\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_release_has_its_row() {
        for table in [Vendor::Nvidia, Vendor::Amd].map(table) {
            assert!(table.is_sorted_by_key(|row| row.from) && table[0].from == 0);
        }
        let of_release = |version| of_release(Vendor::Nvidia, version);
        let on = [0, 22_304, 22_605, 22_809];
        assert!(on.iter().all(|&version| of_release(version).by_default));
        let off = [22_900, 22_907, 23_002, 23_003, 23_004, 23_007, 23_100, 23_102, 23_203, 23_300];
        assert!(off.iter().all(|&version| !of_release(version).by_default));
        assert_eq!([0, 22_505].map(|version| of_release(version).drift), [Drift::Never; 2]);
        let sends = [22_605, 22_707, 22_809, 22_907, 23_007];
        assert!(sends.iter().all(|&version| of_release(version).drift.has_self_sends()));
        assert!(!of_release(23_100).drift.has_self_sends());
        assert_eq!(of_release(23_007).drift, Drift::GroupedRoots);
        assert_eq!(of_release(23_203).drift, Drift::Broadcast);
        assert!(markdown().contains("| 2.30.3 | off | NCCL 2.30.3 may crash"));
        let rccl = |version| super::of_release(Vendor::Amd, version);
        assert!([0, 22_707, 22_803].iter().all(|&version| rccl(version).by_default));
        assert!(!rccl(23_004).by_default && rccl(23_102).drift == Drift::Broadcast);
        assert!(markdown().contains("| RCCL 2.29.0 | off | RCCL's 2.30 has NCCL's schedule"));
    }
}
