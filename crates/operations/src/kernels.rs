// SPDX-License-Identifier: Apache-2.0
/*!
How reliable the kernel channel events (KernelCh) of each release are: one table.

NCCL's kernels count their works on each channel, and its profiler on the host keeps the same count:
a kernel's times are those with the same number. If one side counts a work that the other omits, all
later times belong to other works, and a channel may show none at all.
*/

use crate::hash::Map;
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::{Comm, Handle, Start, StrId};

/// NCCL's name of the function that makes counts part.
const BROADCAST: &str = "Broadcast";
/// Functions that each communicator distinguishes.
const FUNCTIONS: usize = 32;

/// The cause by which the two counts differ.
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
    /// Whether they are requested by default.
    pub by_default: bool,
    /// The cause by which the counts differ.
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

/// Since when the kernels of each communicator have others' times, by the API calls.
#[derive(Debug, Default)]
pub struct Drifts {
    comms: Map<u16, Calls>,
    /// The number of the name, which may come later than the calls.
    broadcast: Option<StrId>,
}

/// The calls of a communicator.
#[derive(Debug)]
struct Calls {
    drift: Drift,
    /// When the communicator was made, in ticks: another one may get its number.
    made: u64,
    /// Of each function, when it was called first.
    first: Vec<(StrId, u64)>,
    /// Of each function, when it was first called a second time in a group with another root.
    roots: Vec<(StrId, u64)>,
    /// Group, function and root of the latest call.
    latest: (Handle, StrId, i32),
}

impl Drifts {
    /// The communicator is gone.
    pub fn forget(&mut self, comm: u16) {
        self.comms.remove(&comm);
    }

    /// A communicator.
    pub fn comm(&mut self, comm: &Comm) {
        let drift = of_release(comm.nccl_version).drift;
        // One rank alone has no kernel for it.
        if drift != Drift::Never && comm.ranks != 1 {
            let (latest, made) = ((Handle::NULL, StrId::NONE, 0), comm.ticks);
            let new = || Calls { drift, made, first: Vec::new(), roots: Vec::new(), latest };
            let calls = self.comms.entry(comm.index).or_insert_with(new);
            if calls.made != made {
                *calls = new();
            }
        } else {
            self.comms.remove(&comm.index);
        }
    }

    /// A string of the process's table.
    pub fn string(&mut self, id: StrId, text: &str) {
        if text == BROADCAST {
            self.broadcast = Some(id);
        }
    }

    /// A collective was called.
    pub fn call(&mut self, start: &Start, call: &ApiCall) {
        let Some(calls) = self.comms.get_mut(&start.comm) else { return };
        let new = (start.parent, call.func, call.root);
        let before = std::mem::replace(&mut calls.latest, new);
        let is_grouped = (before.0, before.1) == (new.0, new.1) && before.2 != new.2;
        note(&mut calls.first, call.func, start.ticks);
        if is_grouped {
            note(&mut calls.roots, call.func, start.ticks);
        }
    }

    /// Since when a communicator's kernels are not believed, in ticks.
    pub fn since(&self, comm: u16) -> Option<u64> {
        let (calls, broadcast) = (self.comms.get(&comm)?, self.broadcast?);
        let calls = match calls.drift {
            Drift::Never => return None,
            Drift::GroupedRoots => &calls.roots,
            Drift::Broadcast => &calls.first,
        };
        calls.iter().find(|(func, _)| *func == broadcast).map(|(_, ticks)| *ticks)
    }
}

fn note(calls: &mut Vec<(StrId, u64)>, func: StrId, ticks: u64) {
    if let Some((_, first)) = calls.iter_mut().find(|(of, _)| *of == func) {
        *first = ticks.min(*first);
    } else if calls.len() < FUNCTIONS {
        calls.push((func, ticks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::{Detail, EventKind};

    #[test]
    fn calls_tell_since_when_the_counts_differ() {
        let since = |version: u32, calls: &[(u64, u16, i32)]| {
            let mut drifts = Drifts::default();
            drifts.comm(&Comm { index: 3, ranks: 2, nccl_version: version, ..Comm::default() });
            for (ticks, &(group, func, root)) in (10..).zip(calls) {
                let call = ApiCall { func: StrId(func), root, ..ApiCall::default() };
                let (parent, handle) =
                    (Handle::value(1, EventKind::GroupApi, 0, group), Handle::NULL);
                let detail = Detail::CollApi(call);
                drifts.call(&Start { ticks, comm: 3, handle, parent, detail }, &call);
            }
            // Its name comes last.
            drifts.string(StrId(7), "Broadcast");
            drifts.since(3)
        };
        assert_eq!(since(23_203, &[(1, 5, 0), (2, 7, 0), (3, 7, 1)]), Some(11));
        assert_eq!(since(23_203, &[(1, 5, 0), (1, 5, 1)]), None, "no Broadcast");
        assert_eq!(since(23_007, &[(1, 7, 0), (2, 7, 1)]), None, "in groups of their own");
        assert_eq!(since(23_007, &[(1, 7, 0), (2, 7, 0), (2, 7, 1), (2, 7, 2)]), Some(12));
        assert_eq!(since(22_809, &[(1, 7, 0), (1, 7, 1)]), None, "2.28 counts them");
    }

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
