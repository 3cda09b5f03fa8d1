// SPDX-License-Identifier: Apache-2.0
/*!
Finds the time from which the kernel channel events (KernelCh) of a communicator have wrong times.
[`ncclscope_control::releases`] lists the releases with this defect.

NCCL's kernels count their works on each channel, and its profiler on the host keeps the same count;
it assigns times to a kernel by that number. If one side counts a work that the other omits, all
later times belong to other works, and a channel may have no times at all. Each omitted work adds
to the difference, and NCCL keeps 64 times a channel, so that the right ones cannot be found again.

If others turn kernel events off in NCCL's activation mask, the plugin keeps them off (docs/ras.md),
and later operations have no kernel at all.
*/

use crate::hash::Map;
use crate::steps::earliest;
use ncclscope_control::releases::{Drift, of_comm};
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::{Comm, Detail, Handle, Start, StrId};

/// NCCL's name of the function that makes the counts differ.
const BROADCAST: &str = "Broadcast";
/// Most functions that are tracked for a communicator.
const FUNCTIONS: usize = 32;

/// Finds from API calls and operations since when the kernels of each communicator have the times
/// of others.
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
    /// This process's rank; negative if unknown.
    rank: i32,
    /// Time of the first send of this rank to itself, or receive, in ticks. NCCL reports none that
    /// is in place, because it drops them.
    own: Option<u64>,
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
            let new = || Calls {
                drift,
                made: comm.ticks,
                first: Vec::new(),
                roots: Vec::new(),
                latest: (Handle::NULL, StrId::NONE, 0),
                rank: comm.rank,
                own: None,
            };
            let calls = self.comms.entry(comm.index).or_insert_with(new);
            if calls.made != comm.ticks {
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

    /// Takes the start of an event.
    pub fn start(&mut self, start: &Start) {
        if !matches!(start.detail, Detail::CollApi(_) | Detail::Coll(_) | Detail::P2p(_)) {
            return;
        }
        let Some(calls) = self.comms.get_mut(&start.comm) else { return };
        match start.detail {
            Detail::CollApi(call) => calls.call(start, &call),
            // `init` does not have the rank up to API v3.
            Detail::Coll(coll) if calls.rank < 0 => calls.rank = coll.rank,
            Detail::P2p(p2p) if calls.rank >= 0 && p2p.peer == calls.rank => {
                calls.own = earliest(calls.own, Some(start.ticks));
            }
            _ => {}
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

    /// Time from which the counts of a communicator's kernels differ, in ticks.
    pub(crate) fn drift(&self, comm: u16) -> Option<u64> {
        let calls = self.comms.get(&comm)?;
        let broadcasts: &[_] = match calls.drift {
            Drift::Never | Drift::SelfSend => &[],
            Drift::GroupedRoots => &calls.roots,
            Drift::Broadcast => &calls.first,
        };
        let broadcast = broadcasts.iter().find(|(func, _)| Some(*func) == self.broadcast);
        let own = calls.own.filter(|_| calls.drift.has_self_sends());
        earliest(own, broadcast.map(|(_, ticks)| *ticks))
    }
}

impl Calls {
    /// Takes the start of a collective's API call.
    fn call(&mut self, start: &Start, call: &ApiCall) {
        let new = (start.parent, call.func, call.root);
        let before = std::mem::replace(&mut self.latest, new);
        let is_grouped = (before.0, before.1) == (new.0, new.1) && before.2 != new.2;
        note(&mut self.first, call.func, start.ticks);
        if is_grouped {
            note(&mut self.roots, call.func, start.ticks);
        }
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
    use ncclscope_trace::EventKind;
    use ncclscope_trace::record::{Coll, P2p};

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
                drifts.start(&Start { ticks, comm: 3, handle, parent, detail });
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

    #[test]
    fn sends_to_oneself_tell_since_when_the_counts_differ() {
        let since = |version: u32, rank: i32, ranks: u32, peers: &[Option<i32>]| {
            let mut drifts = Drifts::default();
            let comm = Comm { index: 3, rank, ranks, nccl_version: version, ..Comm::default() };
            drifts.comm(&comm);
            for (ticks, &peer) in (10..).zip(peers) {
                let detail = match peer {
                    Some(peer) => Detail::P2p(P2p { peer, ..P2p::default() }),
                    None => Detail::Coll(Coll { rank: 1, ..Coll::default() }),
                };
                let (handle, parent) = (Handle::NULL, Handle::NULL);
                drifts.start(&Start { ticks, comm: 3, handle, parent, detail });
            }
            drifts.since(3)
        };
        let exchange = [Some(0), Some(1), Some(1), Some(0), Some(1)];
        for version in [22_605, 22_707, 22_809, 22_907, 23_007] {
            assert_eq!(since(version, 1, 2, &exchange), Some(11), "{version}");
        }
        for version in [22_304, 23_100, 23_203] {
            assert_eq!(since(version, 1, 2, &exchange), None, "{version} counts them");
        }
        assert_eq!(since(22_809, 2, 3, &exchange), None, "only with others");
        assert_eq!(since(22_809, 1, 1, &exchange), None, "no kernel has times");
        assert_eq!(since(22_605, -1, 2, &exchange), None, "an unknown rank");
        let later = [Some(1), None, Some(0), Some(1)];
        assert_eq!(since(22_605, -1, 2, &later), Some(13), "the rank of a collective");
    }
}
