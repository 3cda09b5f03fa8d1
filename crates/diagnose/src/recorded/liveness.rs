// SPDX-License-Identifier: Apache-2.0
//! Whether the process of a recording runs, ended, is dead or is stopped.

use super::awaited::Awaited;
use crate::input::snapshot::{Member, Seen, Sight, Snapshot};
use crate::job::{ProcessStatus, Stop};
use ncclscope_findings::Doubt;
use ncclscope_limits::clocks::HOSTS_NS;
use ncclscope_limits::hangs::{KILLED_NS, SILENCE_NS};
use std::collections::HashMap;

/// The latest recorded time of each host, and of all.
pub(super) struct HostEnds {
    pub(super) by_machine: HashMap<String, u64>,
    pub(super) latest: u64,
    /// The job is over, and not all of its processes were stopped until shortly before.
    shows_stops: bool,
}

impl HostEnds {
    pub(super) fn new(snapshots: &[Snapshot], is_over: bool) -> HostEnds {
        let mut by_machine: HashMap<String, u64> = HashMap::new();
        for snapshot in snapshots {
            let end = by_machine.entry(snapshot.facts.identity.machine().to_owned()).or_default();
            *end = snapshot.end_ns.max(*end);
        }
        let latest = by_machine.values().copied().max().unwrap_or(0);
        let shows_stops = is_over && !snapshots.iter().all(was_stopped);
        HostEnds { by_machine, latest, shows_stops }
    }

    fn of_host(&self, snapshot: &Snapshot) -> u64 {
        self.by_machine.get(snapshot.facts.identity.machine()).copied().unwrap_or(0)
    }

    /// The time up to which a process's ages are counted: the latest time of its host while it
    /// runs.
    pub(super) fn now(&self, snapshot: &Snapshot) -> u64 {
        let host = self.of_host(snapshot);
        if snapshot.is_closed || host > snapshot.end_ns.saturating_add(SILENCE_NS) {
            snapshot.end_ns
        } else {
            host
        }
    }

    /// Whether the process runs, and a doubt about that. Only its own host shows that it ended, by
    /// the end of its recording or by other recordings that continue, unless ranks of that host
    /// waited for it while it was still recorded. A damaged one that ends early shows neither.
    pub(super) fn status(
        &self,
        snapshot: &Snapshot,
        hang_ns: u64,
        awaited: Option<Awaited>,
        grows: &dyn Fn(&Snapshot) -> bool,
    ) -> (ProcessStatus, Option<Doubt>) {
        let is_open = !snapshot.is_copy && !snapshot.is_closed;
        if let Some(by) = is_open.then(|| stopped_by(snapshot)).flatten() {
            return (ProcessStatus::Stopped(by), None);
        }
        if self.shows_stops && was_stopped(snapshot) {
            return (ProcessStatus::Stopped(Stop::Before), None);
        }
        let end_and = |silence_ns: u64| snapshot.end_ns.saturating_add(silence_ns);
        let is_behind_host = self.of_host(snapshot) > end_and(SILENCE_NS);
        let is_behind = self.latest > end_and(SILENCE_NS + HOSTS_NS);
        // A process that was itself waiting when it died is not what the others wait for. A process
        // that ended in order with work in flight, as is normal, counts as waiting only if it had
        // waited for a tenth of the time for which the others then waited for it.
        let awaited_ns = awaited.map(|awaited| awaited.since_ns);
        let theirs = awaited_ns.map_or(0, |since| self.latest.saturating_sub(since));
        let trifle = if snapshot.is_closed { (theirs / 10).min(KILLED_NS) } else { 0 };
        let hang_ns = hang_ns.max(trifle);
        let waited = |member: &Member| {
            let oldest = member.pairs.values().filter_map(|side| side.since_ns).min();
            let since = member.since_ns.filter(|_| member.done < member.entered());
            let call = member.connects_p2p.map(|call| call.since_ns);
            let since = since.into_iter().chain(oldest).chain(call).min();
            since.is_some_and(|since| snapshot.end_ns.saturating_sub(since) >= hang_ns)
        };
        let waits = snapshot.comms.iter().any(waited);
        // Whether what seems to be in flight has ended is lost.
        if waits && snapshot.is_closed && !snapshot.damage.is_empty() {
            return (ProcessStatus::Silent, Some(Doubt::EndLost(snapshot.rank)));
        }
        if snapshot.is_copy || waits {
            return (ProcessStatus::Running, None);
        }
        if snapshot.is_closed && (is_behind_host || is_behind || awaited_ns.is_some()) {
            return (ProcessStatus::Ended, None);
        }
        // A process that continued for a while after the others began to wait for it is late, no
        // matter when it died.
        let lived = |since: u64| snapshot.end_ns >= since.saturating_add(SILENCE_NS + HOSTS_NS);
        let on_host = awaited.and_then(|awaited| awaited.on_host_ns).map(lived);
        let anywhere = awaited_ns.is_some_and(lived);
        let is_late = on_host.unwrap_or(anywhere && !is_behind_host);
        if !is_behind_host && !is_behind || is_late || grows(snapshot) {
            return (ProcessStatus::Running, None);
        }
        if !snapshot.damage.is_empty() {
            return (ProcessStatus::Silent, Some(Doubt::EndLost(snapshot.rank)));
        }
        if is_behind_host && !(anywhere && on_host.is_none()) {
            return (ProcessStatus::Dead, None);
        }
        let silent_ns = self.latest.saturating_sub(snapshot.end_ns);
        let doubt = Doubt::SilentSince(snapshot.rank, silent_ns, is_behind_host);
        (ProcessStatus::Dead, Some(doubt))
    }
}

/// True if the process did not even compare its clocks for several seconds, until shortly before
/// its end.
fn was_stopped(snapshot: &Snapshot) -> bool {
    let is_long = snapshot.sync.is_some_and(|(_, longest)| longest > SILENCE_NS);
    let resumed = snapshot.sync_resumed_ns;
    let is_whole = !snapshot.is_copy && !snapshot.lacks_events;
    is_long && is_whole && snapshot.end_ns.saturating_sub(resumed) < SILENCE_NS
}

/// What stops a process that exists on this machine and records nothing; `None` if it is gone or
/// runs.
fn stopped_by(snapshot: &Snapshot) -> Option<Stop> {
    let is_silent = |sight: &Sight| sight.at_ns > snapshot.end_ns.saturating_add(SILENCE_NS);
    let sight = snapshot.sight.filter(is_silent)?;
    match sight.seen {
        Seen::Stopped => Some(Stop::Signal),
        Seen::Runs => sight.is_frozen.then_some(Stop::Freezer),
        Seen::Gone => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// A process whose recording ends at 60 s, and whose longest time without a comparison of its
    /// clocks was `longest` until `resumed` (s).
    fn snapshot(rank: u32, longest: u64, resumed: u64) -> Snapshot {
        Snapshot {
            rank,
            end_ns: 60 * S,
            sync: Some((60 * S, longest * S)),
            sync_resumed_ns: resumed * S,
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_process_that_went_on_shortly_before_its_end_was_stopped() {
        let status = |all: &[Snapshot], is_over| {
            HostEnds::new(all, is_over).status(&all[0], S, None, &|_| false).0
        };
        let other = || snapshot(1, 1, 30);
        let stopped = || snapshot(0, 11, 59);
        let was = ProcessStatus::Stopped(Stop::Before);
        assert_eq!(status(&[stopped(), other()], true), was);
        assert_eq!(status(&[stopped(), other()], false), ProcessStatus::Running, "it goes on");
        assert_eq!(status(&[stopped(), stopped()], true), ProcessStatus::Running, "all of them");
        let earlier = snapshot(0, 11, 30);
        assert_eq!(status(&[earlier, other()], true), ProcessStatus::Running, "it went on");
        let short = snapshot(0, 3, 59);
        assert_eq!(status(&[short, other()], true), ProcessStatus::Running);
        let lossy = Snapshot { lacks_events: true, ..stopped() };
        assert_eq!(status(&[lossy, other()], true), ProcessStatus::Running, "its disk was slow");
    }
}
