// SPDX-License-Identifier: Apache-2.0
/*!
Finds the kernel launch of each operation, and its duration from CUDA events.

An operation's API call and the launch have the same group call as their parent. Nothing is stored
before the first measured launch, so without `NCCLSCOPE_CUDA_EVENTS` this costs nothing. This module
does **not** process operations; a caller looks up the launch by the operation's API call when the
operation settles.
*/

use ncclscope_operations::hash::Map;
use ncclscope_operations::operation::LaunchEnd;
use ncclscope_trace::{Detail, Handle, Start};
use std::collections::BTreeSet;

/// Most calls and launches that are kept; beyond that all are forgotten.
const MOST: usize = 1 << 16;

/// A group call on one communicator.
type Group = (Handle, u16);

/// The launches whose operations have not settled.
#[derive(Debug, Default)]
pub(super) struct Launches {
    is_used: bool,
    /// The group of each API call.
    groups: Map<Handle, Group>,
    /// The group of each launch that was not measured yet.
    launches: Map<Handle, Group>,
    /// Launches that were measured before their start was read, ns.
    early: Map<Handle, u64>,
    counts: Map<Group, Count>,
    /// Start of the last measured launch of each communicator, in ticks.
    measured: Map<u16, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    calls: u32,
    /// Sends and receives among the calls.
    p2ps: u32,
    launches: u32,
    measured: u32,
    /// Start of the first launch, in ticks.
    first: Option<u64>,
    ns: Option<u64>,
}

impl Count {
    fn measure(&mut self, ns: u64) {
        self.measured += 1;
        self.ns = Some(ns);
    }

    fn end(self) -> LaunchEnd {
        let is_one = self.launches == 1;
        let is_p2p = self.calls > 1 && self.p2ps == self.calls;
        LaunchEnd {
            ns: self.ns.filter(|_| is_one && self.calls == 1),
            shared_ns: self.ns.filter(|_| is_one && is_p2p),
            ended: (self.launches > 0 && self.measured >= self.launches).then_some(true),
        }
    }
}

impl Launches {
    /// Takes the start of an API call or launch; ignores other events.
    pub(super) fn start(&mut self, start: &Start) {
        if !self.is_used {
            return;
        }
        let group = (start.parent, start.comm);
        match start.detail {
            Detail::CollApi(_) | Detail::P2pApi(_) => {
                let count = self.counts.entry(group).or_default();
                count.calls += 1;
                count.p2ps += u32::from(matches!(start.detail, Detail::P2pApi(_)));
                self.groups.insert(start.handle, group);
            }
            Detail::KernelLaunch(_) => {
                let count = self.counts.entry(group).or_default();
                count.launches += 1;
                count.first.get_or_insert(start.ticks);
                match self.early.remove(&start.handle) {
                    Some(ns) => {
                        count.measure(ns);
                        let last = self.measured.entry(start.comm).or_default();
                        *last = start.ticks.max(*last);
                    }
                    None => drop(self.launches.insert(start.handle, group)),
                }
            }
            _ => return,
        }
        if self.counts.len().max(self.groups.len()).max(self.launches.len()) > MOST {
            *self = Launches { is_used: true, ..Launches::default() };
        }
    }

    pub(super) fn measured(&mut self, launch: Handle, ns: u64) {
        let group = self.launches.remove(&launch);
        match group.and_then(|group| self.counts.get_mut(&group)) {
            Some(count) => {
                count.measure(ns);
                if let (Some((_, comm)), Some(first)) = (group, count.first) {
                    let last = self.measured.entry(comm).or_default();
                    *last = first.max(*last);
                }
            }
            None if self.is_used && self.early.len() < MOST => {
                self.early.insert(launch, ns);
            }
            None => {}
        }
        self.is_used = true;
    }

    /// The state of the launch for the operation of this API call. A launch that is not measured
    /// counts as running while only earlier launches were measured and more records are expected
    /// (`is_to_come`).
    pub(super) fn of_call(&self, call: Handle, is_to_come: bool) -> LaunchEnd {
        let group = self.groups.get(&call);
        let Some((group, count)) = group.and_then(|group| Some((group, self.counts.get(group)?)))
        else {
            return LaunchEnd::default();
        };
        let last = self.measured.get(&group.1);
        let is_later = last.is_some_and(|&last| count.first.is_some_and(|first| first > last));
        let runs = is_to_come && count.measured == 0 && is_later;
        let end = count.end();
        LaunchEnd { ended: end.ended.or_else(|| runs.then_some(false)), ..end }
    }

    /// Forgets this API call, whose operation has settled.
    pub(super) fn forget(&mut self, call: Handle) {
        if let Some(group) = self.groups.remove(&call)
            && let Some(count) = self.counts.get(&group)
            && count.calls <= 1
        {
            self.counts.remove(&group);
        }
    }

    /// Forgets finalized communicators.
    pub(super) fn forget_comms(&mut self, comms: &BTreeSet<u16>) {
        self.groups.retain(|_, (_, comm)| !comms.contains(comm));
        self.launches.retain(|_, (_, comm)| !comms.contains(comm));
        self.counts.retain(|(_, comm), _| !comms.contains(comm));
        self.measured.retain(|comm, _| !comms.contains(comm));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::EventKind;
    use ncclscope_trace::record::{ApiCall, KernelLaunch};

    fn handle(kind: EventKind, number: u64) -> Handle {
        Handle::value(1, kind, 0, number)
    }

    fn start(handle: Handle, parent: Handle, detail: Detail) -> Start {
        Start { ticks: 1, comm: 0, handle, parent, detail }
    }

    /// Adds calls in one group, with one launch each.
    fn play(launches: &mut Launches, group: u64, calls: u64) {
        let parent = handle(EventKind::GroupApi, group);
        for call in 0..calls {
            let call = handle(EventKind::CollApi, group * 10 + call);
            launches.start(&start(call, parent, Detail::CollApi(ApiCall::default())));
        }
        let launch = handle(EventKind::KernelLaunch, group);
        launches.start(&start(launch, parent, Detail::KernelLaunch(KernelLaunch { stream: 7 })));
    }

    #[test]
    fn a_launch_of_one_call_is_its_operations_time() {
        let mut launches = Launches::default();
        let call = |group: u64| handle(EventKind::CollApi, group * 10);
        play(&mut launches, 1, 1);
        launches.measured(handle(EventKind::KernelLaunch, 1), 100);
        let of_call = |launches: &Launches, group| launches.of_call(call(group), true).ns;
        assert_eq!(of_call(&launches, 1), None, "from the first measured one on");
        play(&mut launches, 2, 1);
        play(&mut launches, 3, 2);
        launches.measured(handle(EventKind::KernelLaunch, 4), 400);
        play(&mut launches, 4, 1);
        launches.measured(handle(EventKind::KernelLaunch, 2), 200);
        launches.measured(handle(EventKind::KernelLaunch, 3), 300);
        assert_eq!([2, 3, 4].map(|g| of_call(&launches, g)), [Some(200), None, Some(400)]);
        assert_eq!(
            launches.of_call(call(3), true).ended,
            Some(true),
            "two share a launch that ended"
        );
        launches.forget(call(2));
        assert_eq!(of_call(&launches, 2), None);
        assert!(launches.early.is_empty() && launches.launches.is_empty());
    }
}
