// SPDX-License-Identifier: Apache-2.0
/*!
Recordings that end although their process went on: copies of live recordings that `dump` did not
make, and those whose disk took no more.

A collective completes on a rank only if every rank of its communicator takes part. So a process
lived on if others completed a collective that its recording does not have, later than the last
records of a killed process may be lost.
*/

use super::times::apart_ns;
use crate::input::snapshot::{Member, Snapshot};
use ncclscope_limits::hangs;
use std::collections::HashMap;

/// The latest completion on a communicator by the processes of one machine.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    /// When it was, ns.
    at_ns: u64,
    /// Number of collectives that were then complete.
    done: u64,
}

/// The latest completions on each communicator, by machine.
type Completions = HashMap<(u64, String), HashMap<String, Latest>>;

/// Marks the recordings that end although their process went on as copies: their end says nothing
/// about their process.
pub(super) fn mark(snapshots: &mut [Snapshot]) {
    let completions = completions(snapshots);
    // What a damaged recording lacks is no evidence.
    let is_whole = |one: &Snapshot| !one.lacks_events && one.damage.is_empty();
    for one in snapshots.iter_mut().filter(|one| !one.is_closed && is_whole(one)) {
        let machine = one.facts.identity.machine();
        let went_on = |member: &Member| {
            let all = completions.get(&(member.hash, member.name.clone()));
            all.into_iter().flatten().any(|(on, latest)| {
                let lost = one.end_ns.saturating_add(hangs::LOST_NS + apart_ns(on, machine));
                latest.done > member.enqueued && latest.at_ns > lost
            })
        };
        let is_copy = one.comms.iter().filter(|member| !member.is_captured).any(went_on);
        one.is_copy |= is_copy;
    }
}

fn completions(snapshots: &[Snapshot]) -> Completions {
    let mut completions = Completions::new();
    for one in snapshots {
        for member in one.comms.iter().filter(|it| !it.has_left && it.completed_ns != 0) {
            let on = completions.entry((member.hash, member.name.clone())).or_default();
            let latest = on.entry(one.facts.identity.machine().to_owned()).or_default();
            if member.completed_ns > latest.at_ns {
                *latest = Latest { at_ns: member.completed_ns, done: member.done };
            }
        }
    }
    completions
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// A process whose recording ends at `end`, with so many collectives called and the latest
    /// completed at `completed` (s).
    fn snapshot(rank: u32, host: &str, end: u64, enqueued: u64, completed: u64) -> Snapshot {
        let member = Member {
            hash: 7,
            enqueued,
            done: enqueued,
            completed_ns: completed * S,
            ..Member::default()
        };
        let mut one =
            Snapshot { rank, end_ns: end * S, comms: vec![member], ..Snapshot::default() };
        one.facts.identity.host = Some(host.into());
        one
    }

    fn marked(all: &[Snapshot]) -> Vec<u32> {
        let mut all = all.to_vec();
        mark(&mut all);
        all.iter().filter(|one| one.is_copy).map(|one| one.rank).collect()
    }

    #[test]
    fn a_process_with_whom_others_completed_collectives_later_went_on() {
        let first = snapshot(0, "a", 10, 100, 10);
        assert_eq!(marked(&[first.clone(), snapshot(1, "a", 13, 130, 13)]), [0]);
        assert_eq!(marked(&[first.clone(), snapshot(1, "a", 13, 100, 13)]), [0; 0], "none later");
        assert_eq!(marked(&[first.clone(), snapshot(1, "a", 13, 104, 10)]), [0; 0], "lost records");
        assert_eq!(marked(&[first.clone(), snapshot(1, "b", 12, 130, 12)]), [0; 0], "other clock");
        assert_eq!(marked(&[first.clone(), snapshot(1, "b", 13, 130, 13)]), [0]);
        let closed = Snapshot { is_closed: true, ..first.clone() };
        assert_eq!(marked(&[closed, snapshot(1, "a", 13, 130, 13)]), [0; 0]);
        let lossy = Snapshot { lacks_events: true, ..first };
        assert_eq!(marked(&[lossy, snapshot(1, "a", 13, 130, 13)]), [0; 0]);
    }
}
