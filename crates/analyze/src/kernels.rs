// SPDX-License-Identifier: Apache-2.0
/*!
What a release's kernel channel events (KernelCh) are worth: one table.

NCCL's kernels count their works on each channel, and its profiler, on the host, counts along: a
kernel's times are those with the same number. Where one side counts what the other leaves out, all
later times are another work's, and a channel may show none at all.
*/

/// What makes the two counts part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drift {
    /// Nothing that is known.
    Never,
    /// Broadcasts from several roots in one group (an uneven AllGather of PyTorch): kernels count
    /// them (`profiler()` of `src/device/common.h`), and the host does not
    /// (`src/scheduler/allgatherv_sched.cc@v2.30.7-1`).
    GroupedRoots,
    /// Any Broadcast: from 2.31 on the host counts only what it profiles
    /// (`ncclProfilerPostPlanWork` of `src/plugin/profiler.cc@v2.31.2-1`, NVIDIA/nccl#2368).
    Broadcast,
}

/// Kernel channel events of a range of releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// The first release, as `ncclGetVersion` has it: 22809 is 2.28.9.
    pub from: u32,
    /// Whether NCCL is asked for them unless the user says otherwise.
    pub by_default: bool,
    /// What makes the counts part.
    pub drift: Drift,
    /// Why, in one sentence.
    pub reason: &'static str,
}

const TABLE: [Release; 7] = [
    Release {
        from: 0,
        by_default: true,
        drift: Drift::Never,
        reason: "NCCL 2.26 is the first release that has them",
    },
    Release {
        from: 22_600,
        by_default: true,
        drift: Drift::Never,
        reason: "they tell when kernels ran",
    },
    Release {
        from: 22_900,
        by_default: true,
        drift: Drift::GroupedRoots,
        reason: "they tell when kernels ran; times after grouped broadcasts from several roots \
                 are not believed (NCCL_ALLGATHERV_ENABLE=0 avoids those)",
    },
    Release {
        from: 23_003,
        by_default: false,
        drift: Drift::GroupedRoots,
        reason: "NCCL 2.30.3 may crash with them (NVIDIA/nccl#2112)",
    },
    Release {
        from: 23_004,
        by_default: true,
        drift: Drift::GroupedRoots,
        reason: "they tell when kernels ran; times after grouped broadcasts from several roots \
                 are not believed (NCCL_ALLGATHERV_ENABLE=0 avoids those)",
    },
    Release {
        from: 23_100,
        by_default: false,
        drift: Drift::Broadcast,
        reason: "after a Broadcast NCCL 2.31 gives each kernel the times of another one, or none \
                 (NVIDIA/nccl#2368), and they cost 4 to 13 % on 128 KiB to 4 MiB \
                 (NVIDIA/nccl#2355)",
    },
    Release {
        from: 23_200,
        by_default: false,
        drift: Drift::Broadcast,
        reason: "after a Broadcast NCCL from 2.31 on gives each kernel the times of another one, \
                 or none, and may crash when the communicator is destroyed (NVIDIA/nccl#2368)",
    },
];

/// The row of a release; 0 is one that is not known, of which the best is assumed.
#[must_use]
pub fn of_release(nccl_version: u32) -> &'static Release {
    let row = TABLE.iter().rev().find(|row| row.from <= nccl_version);
    row.unwrap_or(&TABLE[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_release_has_its_row() {
        assert!(TABLE.is_sorted_by_key(|row| row.from) && TABLE[0].from == 0);
        let on = [0, 22_304, 22_605, 22_809, 22_907, 23_002, 23_004, 23_007];
        assert!(on.iter().all(|&version| of_release(version).by_default));
        let off = [23_003, 23_100, 23_102, 23_203, 23_300];
        assert!(off.iter().all(|&version| !of_release(version).by_default));
        assert_eq!(of_release(22_809).drift, Drift::Never);
        assert_eq!(of_release(23_007).drift, Drift::GroupedRoots);
        assert_eq!(of_release(23_203).drift, Drift::Broadcast);
    }
}
