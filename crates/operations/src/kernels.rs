// SPDX-License-Identifier: Apache-2.0
/*!
Finds the time from which the kernel channel events (KernelCh) of a communicator have wrong times.
[`ncclscope_control::releases`] lists the releases with this defect.

NCCL's kernels count their works on each channel, and its profiler on the host keeps the same count;
it assigns times to a kernel by that number. If one side counts a work that the other omits, all
later times belong to other works, and a channel may have no times at all.

If others turn kernel events off in NCCL's activation mask, the plugin keeps them off (docs/ras.md),
and later operations have no kernel at all.
*/

use crate::hash::Map;
use crate::steps::earliest;
use ncclscope_control::releases::{Drift, of_comm};
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::{Comm, Handle, Start, StrId};

/// NCCL's name of the function that makes the counts differ.
const BROADCAST: &str = "Broadcast";
/// Most functions that are tracked for a communicator.
const FUNCTIONS: usize = 32;

/// Finds from the API calls since when the kernels of each communicator have the times of others.
#[derive(Debug, Default)]
pub struct Drifts {
    comms: Map<u16, Calls>,
    /// Id of the string `Broadcast`, which may be defined after the calls.
    broadcast: Option<StrId>,
    /// Since when kernel events are off, in ticks.
    off: Option<u64>,
}

/// The calls of a communicator.
#[derive(Debug)]
struct Calls {
    drift: Drift,
    /// Time of the communicator's `init`, in ticks; distinguishes it from a later one with the same
    /// number.
    made: u64,
    /// Time of the first call of each function, in ticks.
    first: Vec<(StrId, u64)>,
    /// Time of the first call of each function that follows a call with another root in the same
    /// group, in ticks.
    roots: Vec<(StrId, u64)>,
    /// Group, function and root of the latest call.
    latest: (Handle, StrId, i32),
}

impl Drifts {
    /// Removes a finalized communicator.
    pub fn forget(&mut self, comm: u16) {
        self.comms.remove(&comm);
    }

    /// Adds a communicator.
    pub fn comm(&mut self, comm: &Comm) {
        let drift = of_comm(comm).drift;
        // A communicator of one rank runs no kernel for a Broadcast.
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

    /// Takes a definition of the process's string table.
    pub fn string(&mut self, id: StrId, text: &str) {
        if text == BROADCAST {
            self.broadcast = Some(id);
        }
    }

    /// Takes the start of a collective's API call.
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

    /// Notes that kernel events are off since `ticks`.
    pub fn off(&mut self, ticks: u64) {
        self.off = earliest(self.off, Some(ticks));
    }

    /// True if kernel events are off for an operation that started at `start`.
    #[must_use]
    pub fn is_off(&self, start: u64) -> bool {
        self.off.is_some_and(|off| start >= off)
    }

    /// Time from which a communicator's kernel times are wrong or missing, in ticks; `None` if
    /// they are neither.
    #[must_use]
    pub fn since(&self, comm: u16) -> Option<u64> {
        earliest(self.drift(comm), self.off)
    }

    fn drift(&self, comm: u16) -> Option<u64> {
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
            // The name is defined after the calls.
            drifts.string(StrId(7), "Broadcast");
            drifts.since(3)
        };
        assert_eq!(since(23_203, &[(1, 5, 0), (2, 7, 0), (3, 7, 1)]), Some(11));
        assert_eq!(since(23_203, &[(1, 5, 0), (1, 5, 1)]), None, "no Broadcast");
        assert_eq!(since(23_007, &[(1, 7, 0), (2, 7, 1)]), None, "in groups of their own");
        assert_eq!(since(23_007, &[(1, 7, 0), (2, 7, 0), (2, 7, 1), (2, 7, 2)]), Some(12));
        assert_eq!(since(22_809, &[(1, 7, 0), (1, 7, 1)]), None, "2.28 counts them");
    }
}
