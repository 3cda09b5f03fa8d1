// SPDX-License-Identifier: Apache-2.0
/*!
Since when the kernel channel events (KernelCh) of a communicator are not believed. Which releases
that concerns is in [`ncclscope_control::releases`].

NCCL's kernels count their works on each channel, and its profiler on the host keeps the same count:
a kernel's times are those with the same number. If one side counts a work that the other omits, all
later times belong to other works, and a channel may show none at all.
*/

use crate::hash::Map;
use ncclscope_control::releases::{Drift, of_release};
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::{Comm, Handle, Start, StrId};

/// NCCL's name of the function that makes counts part.
const BROADCAST: &str = "Broadcast";
/// Functions that each communicator distinguishes.
const FUNCTIONS: usize = 32;

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
}
