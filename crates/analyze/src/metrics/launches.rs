// SPDX-License-Identifier: Apache-2.0
/*!
Which kernel launch was for which operation, and how long it took by CUDA events.

An operation's API call and the launch have the same group call above them. Nothing is kept before
the first launch that was measured: without `NCCLSCOPE_CUDA_EVENTS` this costs nothing. This module
does **not** look at operations; they ask by their parent when they settle.
*/

use super::hash::Map;
use ncclscope_trace::{Detail, Handle, Start};

/// Calls and launches that are kept; at more, all are forgotten.
const MOST: usize = 1 << 16;

/// A group call on one communicator.
type Group = (Handle, u16);

/// What is known of launches whose operations have not settled.
#[derive(Debug, Default)]
pub(super) struct Launches {
    is_used: bool,
    /// Of API calls.
    groups: Map<Handle, Group>,
    /// Of launches that were not measured yet.
    launches: Map<Handle, Group>,
    /// Launches that were measured before their start was read, ns.
    early: Map<Handle, u64>,
    counts: Map<Group, Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    calls: u32,
    launches: u32,
    ns: Option<u64>,
}

impl Launches {
    /// An event other than a step started.
    pub(super) fn start(&mut self, start: &Start) {
        if !self.is_used {
            return;
        }
        let group = (start.parent, start.comm);
        match start.detail {
            Detail::CollApi(_) | Detail::P2pApi(_) => {
                self.counts.entry(group).or_default().calls += 1;
                self.groups.insert(start.handle, group);
            }
            Detail::KernelLaunch { .. } => {
                let count = self.counts.entry(group).or_default();
                count.launches += 1;
                match self.early.remove(&start.handle) {
                    Some(ns) => count.ns = Some(ns),
                    None => drop(self.launches.insert(start.handle, group)),
                }
            }
            _ => return,
        }
        if self.counts.len().max(self.groups.len()).max(self.launches.len()) > MOST {
            *self = Launches { is_used: true, ..Launches::default() };
        }
    }

    /// A launch was measured.
    pub(super) fn measured(&mut self, launch: Handle, ns: u64) {
        match self.launches.remove(&launch).and_then(|group| self.counts.get_mut(&group)) {
            Some(count) => count.ns = Some(ns),
            None if self.is_used && self.early.len() < MOST => {
                self.early.insert(launch, ns);
            }
            None => {}
        }
        self.is_used = true;
    }

    /// The time of the launch that was for the operation of this API call alone, ns.
    pub(super) fn of_call(&self, call: Handle) -> Option<u64> {
        let count = self.counts.get(self.groups.get(&call)?)?;
        count.ns.filter(|_| (count.calls, count.launches) == (1, 1))
    }

    /// The operation of this API call has settled.
    pub(super) fn forget(&mut self, call: Handle) {
        if let Some(group) = self.groups.remove(&call)
            && let Some(count) = self.counts.get(&group)
            && count.calls <= 1
        {
            self.counts.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::EventKind;
    use ncclscope_trace::record::ApiCall;

    fn handle(kind: EventKind, number: u64) -> Handle {
        Handle::value(1, kind, 0, number)
    }

    fn start(handle: Handle, parent: Handle, detail: Detail) -> Start {
        Start { ticks: 1, comm: 0, handle, parent, detail }
    }

    /// Calls in one group with one launch each.
    fn play(launches: &mut Launches, group: u64, calls: u64) {
        let parent = handle(EventKind::GroupApi, group);
        for call in 0..calls {
            let call = handle(EventKind::CollApi, group * 10 + call);
            launches.start(&start(call, parent, Detail::CollApi(ApiCall::default())));
        }
        let launch = handle(EventKind::KernelLaunch, group);
        launches.start(&start(launch, parent, Detail::KernelLaunch { stream: 7 }));
    }

    #[test]
    fn a_launch_of_one_call_is_its_operations_time() {
        let mut launches = Launches::default();
        let call = |group: u64| handle(EventKind::CollApi, group * 10);
        play(&mut launches, 1, 1);
        launches.measured(handle(EventKind::KernelLaunch, 1), 100);
        assert_eq!(launches.of_call(call(1)), None, "from the first measured one on");
        play(&mut launches, 2, 1);
        play(&mut launches, 3, 2);
        launches.measured(handle(EventKind::KernelLaunch, 4), 400);
        play(&mut launches, 4, 1);
        launches.measured(handle(EventKind::KernelLaunch, 2), 200);
        launches.measured(handle(EventKind::KernelLaunch, 3), 300);
        assert_eq!([2, 3, 4].map(|g| launches.of_call(call(g))), [Some(200), None, Some(400)]);
        launches.forget(call(2));
        assert_eq!(launches.of_call(call(2)), None);
        assert!(launches.early.is_empty() && launches.launches.is_empty());
    }
}
