// SPDX-License-Identifier: Apache-2.0
/*!
Whether the process of a recording runs, ended, is dead or is stopped.

| state | facts |
| --- | --- |
| stopped | the kernel shows it, and nothing was recorded for a while |
| stopped before | it did not even compare its clocks until shortly before the job was over |
| not recorded | it is damaged, and closed with what only seems to be in flight |
| runs | the recording is a copy, or the process was waiting at its end |
| ended in order | the recording is closed, and others go on or wait for the process |
| runs | no recording goes on after its end; or its own grows; or the process is late |
| not recorded | the recording is damaged |
| dead | recordings of its host go on after its end |
| silent since | only those of other hosts do, or only ranks there waited before its end |

The first row that fits counts. A process without further records ended in the interval of
[`End::of_silent`]: others went on if they recorded after that interval, and after the error of
clocks if these are of another host.
*/

use super::awaited::Awaited;
use super::times::End;
use crate::input::snapshot::{Seen, Sight, Snapshot};
use crate::job::{ProcessStatus, Stop};
use ncclscope_findings::Doubt;
use ncclscope_limits::clocks::HOSTS_NS;
use ncclscope_limits::hangs::{KILLED_NS, SILENCE_NS};
use std::collections::HashMap;

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    Runs,
    /// In order.
    Ended,
    Dead,
    Stopped(Stop),
    /// Perhaps dead.
    Silent {
        /// Its latest record.
        since_ns: u64,
        /// Other recordings of its host go on.
        on_host: bool,
    },
    /// Its end is lost.
    NotRecorded,
}

impl Liveness {
    /// The status of the process with this rank in a job that was recorded until `latest`, and a
    /// doubt about it.
    pub(super) const fn status(self, rank: u32, latest: u64) -> (ProcessStatus, Option<Doubt>) {
        match self {
            Liveness::Runs => (ProcessStatus::Running, None),
            Liveness::Ended => (ProcessStatus::Ended, None),
            Liveness::Dead => (ProcessStatus::Dead, None),
            Liveness::Stopped(by) => (ProcessStatus::Stopped(by), None),
            Liveness::Silent { since_ns, on_host } => {
                let silent_ns = latest.saturating_sub(since_ns);
                (ProcessStatus::Dead, Some(Doubt::SilentSince(rank, silent_ns, on_host)))
            }
            Liveness::NotRecorded => (ProcessStatus::Silent, Some(Doubt::EndLost(rank))),
        }
    }
}

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
        if snapshot.is_closed || End::of_silent(snapshot).is_before(host, 0) {
            snapshot.end_ns
        } else {
            host
        }
    }

    /// The state of a process, by the facts of the table. `hang_ns` is the age of a wait that
    /// hangs.
    pub(super) fn liveness(
        &self,
        snapshot: &Snapshot,
        hang_ns: u64,
        awaited: Option<Awaited>,
        grows: &dyn Fn(&Snapshot) -> bool,
    ) -> Liveness {
        let is_open = !snapshot.is_copy && !snapshot.is_closed;
        if let Some(by) = is_open.then(|| stopped_by(snapshot)).flatten() {
            return Liveness::Stopped(by);
        }
        if self.shows_stops && was_stopped(snapshot) {
            return Liveness::Stopped(Stop::Before);
        }
        let waits = self.waits(snapshot, hang_ns, awaited);
        let is_damaged = !snapshot.damage.is_empty();
        // Whether what seems to be in flight has ended is lost.
        if waits && snapshot.is_closed && is_damaged {
            return Liveness::NotRecorded;
        }
        if snapshot.is_copy || waits {
            return Liveness::Runs;
        }
        let end = End::of_silent(snapshot);
        let on_host = end.is_before(self.of_host(snapshot), 0);
        let is_behind = on_host || end.is_before(self.latest, HOSTS_NS);
        if snapshot.is_closed && (is_behind || awaited.is_some()) {
            return Liveness::Ended;
        }
        // A process that continued for a while after the others began to wait for it is late, no
        // matter when it died.
        let lived = |since: u64, apart_ns: u64| {
            snapshot.end_ns >= since.saturating_add(SILENCE_NS + apart_ns)
        };
        let by_host = awaited.and_then(|awaited| awaited.on_host_ns).map(|since| lived(since, 0));
        let anywhere = awaited.is_some_and(|awaited| lived(awaited.since_ns, HOSTS_NS));
        let is_late = by_host.unwrap_or(anywhere && !on_host);
        if !is_behind || is_late || grows(snapshot) {
            return Liveness::Runs;
        }
        match on_host && !(anywhere && by_host.is_none()) {
            _ if is_damaged => Liveness::NotRecorded,
            true => Liveness::Dead,
            false => Liveness::Silent { since_ns: end.earliest, on_host },
        }
    }

    /// True if the process itself was waiting at its end: it is not what the others wait for. One
    /// that ended in order with work in flight, as is normal, counts as waiting only if it had
    /// waited for a tenth of the time for which the others then waited for it.
    fn waits(&self, snapshot: &Snapshot, hang_ns: u64, awaited: Option<Awaited>) -> bool {
        let theirs = awaited.map_or(0, |awaited| self.latest.saturating_sub(awaited.since_ns));
        let trifle = if snapshot.is_closed { (theirs / 10).min(KILLED_NS) } else { 0 };
        let hang_ns = hang_ns.max(trifle);
        snapshot.comms.iter().any(|member| {
            let oldest = member.pairs.values().filter_map(|side| side.since_ns).min();
            let since = member.since_ns.filter(|_| member.done < member.entered());
            let call = member.connects_p2p.map(|call| call.since_ns);
            let since = since.into_iter().chain(oldest).chain(call).min();
            since.is_some_and(|since| snapshot.end_ns.saturating_sub(since) >= hang_ns)
        })
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
            HostEnds::new(all, is_over).liveness(&all[0], S, None, &|_| false)
        };
        let other = || snapshot(1, 1, 30);
        let stopped = || snapshot(0, 11, 59);
        let was = Liveness::Stopped(Stop::Before);
        assert_eq!(status(&[stopped(), other()], true), was);
        assert_eq!(status(&[stopped(), other()], false), Liveness::Runs, "it goes on");
        assert_eq!(status(&[stopped(), stopped()], true), Liveness::Runs, "all of them");
        let earlier = snapshot(0, 11, 30);
        assert_eq!(status(&[earlier, other()], true), Liveness::Runs, "it went on");
        let short = snapshot(0, 3, 59);
        assert_eq!(status(&[short, other()], true), Liveness::Runs);
        let lossy = Snapshot { lacks_events: true, ..stopped() };
        assert_eq!(status(&[lossy, other()], true), Liveness::Runs, "its disk was slow");
    }

    /// A process of host `a` whose records end at 60 s, in a job that is recorded until `until` (s)
    /// on host `on`.
    fn behind(until: u64, on: &str) -> [Snapshot; 2] {
        let mut all = [snapshot(0, 1, 30), Snapshot { end_ns: until * S, ..snapshot(1, 1, 30) }];
        all.iter_mut().zip(["a", on]).for_each(|(one, host)| {
            one.facts.identity.host = Some(host.into());
        });
        all
    }

    #[test]
    fn a_process_is_gone_if_others_recorded_after_its_interval_and_the_error_of_clocks() {
        let look = |all: &[Snapshot], grows: bool| {
            let asked = std::cell::Cell::new(0);
            let grows = |_: &Snapshot| {
                asked.set(asked.get() + 1);
                grows
            };
            let ends = HostEnds::new(all, false);
            let found = [0, 1].map(|at| ends.liveness(&all[at], S, None, &grows));
            (found[0], asked.get())
        };
        assert_eq!(look(&behind(63, "a"), false), (Liveness::Runs, 0), "no suspect");
        assert_eq!(look(&behind(64, "a"), false), (Liveness::Dead, 1));
        assert_eq!(look(&behind(64, "a"), true), (Liveness::Runs, 1), "its file grows");
        assert_eq!(look(&behind(65, "b"), false), (Liveness::Runs, 0), "by another clock");
        let silent = Liveness::Silent { since_ns: 60 * S, on_host: false };
        assert_eq!(look(&behind(66, "b"), false), (silent, 1));
        let doubt = Doubt::SilentSince(0, 6 * S, false);
        assert_eq!(silent.status(0, 66 * S), (ProcessStatus::Dead, Some(doubt)));
        let mut damaged = behind(64, "a");
        damaged[0].damage.push("it is cut off".into());
        assert_eq!(look(&damaged, false).0, Liveness::NotRecorded);
        let mut closed = behind(64, "a");
        closed[0].is_closed = true;
        assert_eq!(look(&closed, false), (Liveness::Ended, 0));
    }

    #[test]
    fn ranks_of_one_host_show_that_a_process_was_late_without_an_error_of_clocks() {
        let found = |since: u64, is_on_host: bool| {
            let since_ns = since * S;
            let on_host_ns = is_on_host.then_some(since_ns);
            let awaited = Some(Awaited { since_ns, on_host_ns });
            let all = behind(70, if is_on_host { "a" } else { "b" });
            HostEnds::new(&all, false).liveness(&all[0], S, awaited, &|_| false)
        };
        assert_eq!(found(57, true), Liveness::Dead, "awaited for 3 s before");
        assert_eq!(found(56, true), Liveness::Runs, "awaited for 4 s: it is late");
        let silent = Liveness::Silent { since_ns: 60 * S, on_host: false };
        assert_eq!(found(56, false), silent, "by another clock it may be 2 s");
        assert_eq!(found(54, false), Liveness::Runs);
    }
}
