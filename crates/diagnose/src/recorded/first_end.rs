// SPDX-License-Identifier: Apache-2.0
/*!
Which processes of a job ended first, once none of them runs any more.

A launcher kills all other ranks within a second after one has died. The waits of these ranks then
say nothing about the cause, but the order in which processes ended may, as far as the intervals of
[`End`] show it. A process that exited with status 0 ended well, whenever that was, and is compared
with none.
*/

use super::times::{End, apart_ns};
use crate::ending::{FirstEnd, Others};
use crate::input::snapshot::Snapshot;
use crate::job::{Process, ProcessStatus};
use crate::words::named_ranks;
use ncclscope_limits::{clocks, hangs};
use ncclscope_operations::human::{duration, if_one};
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The processes that ended first, if the recordings show them.
pub(super) fn find(snapshots: &[Snapshot]) -> Option<FirstEnd> {
    let failed = || snapshots.iter().filter(|one| one.exit_status() != Some(0));
    // The end of a damaged recording may be lost.
    let known: Vec<&Snapshot> = failed().filter(|one| one.damage.is_empty()).collect();
    let pace_ns = snapshots.iter().filter_map(|one| one.sync.map(|(_, longest)| longest)).max();
    let pace_ns = pace_ns.filter(|&pace| pace > 0).map(|pace| pace.max(hangs::HEARTBEAT_NS));
    let in_order = || are_few_closed(snapshots).then(|| ended_in_order(&known)).flatten();
    before_own_host(&known, pace_ns)
        .or_else(|| before_all(&known, pace_ns))
        .or_else(in_order)
        .or_else(|| alone(failed().collect::<Vec<_>>().as_slice(), snapshots.len()))
}

/// The one process that did not end well, if all others did.
fn alone(failed: &[&Snapshot], of: usize) -> Option<FirstEnd> {
    let first = failed.first().filter(|_| failed.len() < of)?;
    let is_its = |one: &&&Snapshot| one.facts.path == first.facts.path;
    (failed.iter().filter(is_its).count() == failed.len()).then(|| FirstEnd {
        ranks: failed.iter().map(|one| one.rank).collect(),
        before_ns: None,
        end_ns: first.end_ns,
        is_broken_off: !first.is_closed,
        others: Others::EndedWell,
    })
}

/// False if the job was about to end: most of its processes ended in order.
fn are_few_closed(snapshots: &[Snapshot]) -> bool {
    2 * snapshots.iter().filter(|one| one.is_closed).count() <= snapshots.len()
}

/// A note about them, for a job that was killed, unless a verdict can call them gone. Of a job that
/// was about to end, some process ends first in any case.
pub(super) fn note(
    first: &FirstEnd,
    snapshots: &[Snapshot],
    processes: &[Process],
) -> Option<String> {
    let is_of_first = |rank: Option<u32>| rank.is_some_and(|rank| first.ranks.contains(&rank));
    let mut those = processes.iter().filter(|one| is_of_first(one.rank));
    let run = those.all(|one| one.status == ProcessStatus::Running);
    (run && (first.is_broken_off || are_few_closed(snapshots))).then(|| text(first))
}

fn text(first: &FirstEnd) -> String {
    let (ranks, its) = (named_ranks(&first.ranks), if_one(first.ranks.len(), "its", "their"));
    let them = if_one(first.ranks.len(), "it", "these");
    let before = first.before_ns.map(|ns| duration(to_f64(ns)));
    match (first.is_broken_off, before) {
        (true, Some(before)) => format!(
            "{ranks} did not end in order, {before} or more before {}: the likely cause",
            first.others.text()
        ),
        (true, None) => format!("{ranks} did not end in order, and all others did"),
        (false, Some(before)) => {
            let others = match first.others {
                Others::OwnHost => format!("other ranks of {its} host were killed"),
                others => format!("{} ended", others.text()),
            };
            format!(
                "{ranks} ended in order {before} or more before {others}: the likely cause, if \
                 {them} ended by an error"
            )
        }
        (false, None) => format!(
            "{ranks} ended in order, and the other ranks were killed: the likely cause, if {them} \
             ended by an error"
        ),
    }
}

/// A process that ended, and how.
struct Ended<'a> {
    end: End,
    machine: &'a str,
    is_closed: bool,
}

/// The processes of each host that ended before each of the others of that host did.
fn before_own_host(known: &[&Snapshot], pace_ns: Option<u64>) -> Option<FirstEnd> {
    let by_machine = by_machine(known);
    let others = if by_machine.len() == 1 { Others::All } else { Others::OwnHost };
    let each = by_machine.values().filter_map(|all| before_all(all, pace_ns));
    let all = each.reduce(|mut all, one| {
        all.ranks.extend(one.ranks);
        all.before_ns = all.before_ns.zip(one.before_ns).map(|(a, b)| a.min(b));
        all.end_ns = all.end_ns.min(one.end_ns);
        all.is_broken_off |= one.is_broken_off;
        all
    });
    let mut all = FirstEnd { others, ..all? };
    all.ranks.sort_unstable();
    Some(all)
}

/// The processes, at most half of them, that ended before each of the others did.
fn before_all(known: &[&Snapshot], pace_ns: Option<u64>) -> Option<FirstEnd> {
    // A process may have several ranks.
    let ends: BTreeMap<&Path, Ended<'_>> = known
        .iter()
        .map(|one| {
            let (machine, is_closed) = (one.facts.identity.machine(), one.is_closed);
            let end = End::of_ended(one, pace_ns);
            (one.facts.path.as_path(), Ended { end, machine, is_closed })
        })
        .collect();
    let mut ordered: Vec<(&Path, &Ended<'_>)> =
        ends.iter().map(|(path, end)| (*path, end)).collect();
    ordered.sort_by_key(|(_, it)| it.end.latest);
    let ended = |at: usize| (ordered[at].1.machine, ordered[at].1.end);
    let mut after = vec![Next::default(); ordered.len()];
    let mut next = Next::default();
    for at in (0..ordered.len()).rev() {
        let (machine, end) = ended(at);
        next.add(machine, u64::MAX - end.earliest);
        after[at] = next;
    }
    let mut before = Next::default();
    let split = |count: usize| {
        let (machine, end) = ended(count - 1);
        before.add(machine, end.latest);
        before.is_before(&after[count]).then_some(())?;
        let (first, others) = ordered.split_at(count);
        Some((first, lead(first, others)?))
    };
    let (first, before_ns) = (1..=ordered.len() / 2).find_map(split)?;
    let paths: BTreeSet<&Path> = first.iter().map(|(path, _)| *path).collect();
    let of_first = known.iter().filter(|one| paths.contains(one.facts.path.as_path()));
    let mut ranks: Vec<u32> = of_first.map(|one| one.rank).collect();
    ranks.sort_unstable();
    Some(FirstEnd {
        ranks,
        before_ns: Some(before_ns),
        end_ns: first.iter().map(|(_, it)| it.end.earliest).min().unwrap_or(0),
        is_broken_off: first.iter().any(|(_, it)| !it.is_closed),
        others: Others::OtherHosts,
    })
}

fn by_machine<'a>(known: &[&'a Snapshot]) -> BTreeMap<&'a str, Vec<&'a Snapshot>> {
    let mut by_machine: BTreeMap<&str, Vec<&Snapshot>> = BTreeMap::new();
    for &one in known {
        by_machine.entry(one.facts.identity.machine()).or_default().push(one);
    }
    by_machine
}

/// Of ends on one side of a time, the next to it and the next on another machine. Times of the
/// later side are counted down from the largest.
#[derive(Clone, Copy, Default)]
struct Next<'a> {
    ns: u64,
    machine: &'a str,
    elsewhere: Option<u64>,
}

impl<'a> Next<'a> {
    fn add(&mut self, machine: &'a str, ns: u64) {
        if machine == self.machine {
            self.ns = self.ns.max(ns);
        } else if ns > self.ns {
            *self = Next { ns, machine, elsewhere: Some(self.ns) };
        } else {
            self.elsewhere = self.elsewhere.max(Some(ns));
        }
    }

    /// True if the next ends of this side were before the next ones of the later side, by the
    /// clocks of their machines. Only if both are of one machine do those elsewhere say more.
    fn is_before(&self, after: &Next<'_>) -> bool {
        let is = |ns: u64, after: u64, apart: u64| ns.saturating_add(apart) < u64::MAX - after;
        let elsewhere = |ns: Option<u64>, after: Option<u64>| {
            ns.zip(after).is_none_or(|(ns, after)| is(ns, after, clocks::HOSTS_NS))
        };
        is(self.ns, after.ns, apart_ns(self.machine, after.machine))
            && elsewhere(Some(self.ns), after.elsewhere)
            && elsewhere(self.elsewhere, Some(after.ns))
    }
}

/// How long all of the first processes ended before each of the others at least, ns; `None` if
/// their clocks do not show it.
fn lead(first: &[(&Path, &Ended<'_>)], others: &[(&Path, &Ended<'_>)]) -> Option<u64> {
    let mut latest: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, it) in first {
        let known = latest.entry(it.machine).or_default();
        *known = it.end.latest.max(*known);
    }
    let mut earliest: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, it) in others {
        let known = earliest.entry(it.machine).or_insert(u64::MAX);
        *known = it.end.earliest.min(*known);
    }
    let between = |(of, latest): (&&str, &u64)| {
        let each = earliest.iter().map(|(machine, earliest)| {
            let by = latest.saturating_add(apart_ns(machine, of));
            earliest.checked_sub(by).filter(|&lead| lead > 0)
        });
        each.collect::<Option<Vec<u64>>>()?.into_iter().min()
    };
    latest.iter().map(between).collect::<Option<Vec<u64>>>()?.into_iter().min()
}

/// The processes that closed their recordings before the killed processes of their host ended. All
/// of these are taken to have been killed at once.
fn ended_in_order(known: &[&Snapshot]) -> Option<FirstEnd> {
    let mut found: Option<FirstEnd> = None;
    for all in by_machine(known).values() {
        let killed = all.iter().filter(|one| !one.is_closed).map(|one| one.end_ns).max();
        let is_before = |end: u64| killed.is_none_or(|killed| end < killed);
        let first = || all.iter().filter(|one| one.is_closed && is_before(one.end_ns));
        let Some(latest) = first().map(|one| one.end_ns).max() else { continue };
        let before_ns = killed.map(|killed| killed - latest);
        let known = found.get_or_insert_with(|| FirstEnd {
            ranks: Vec::new(),
            before_ns,
            end_ns: latest,
            is_broken_off: false,
            others: Others::OwnHost,
        });
        known.ranks.extend(first().map(|one| one.rank));
        known.ranks.sort_unstable();
        known.end_ns = known.end_ns.min(latest);
        known.before_ns = known.before_ns.and_then(|known| Some(known.min(before_ns?)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const MS: u64 = 1_000_000;

    /// A process that last recorded, or ended in order, at `end` ms. It compares its clocks once a
    /// second.
    fn snapshot(rank: u32, end: u64, is_closed: bool) -> Snapshot {
        let end_ns = end * MS;
        let sync = Some((end_ns, 1000 * MS));
        let mut one = Snapshot { rank, end_ns, sync, is_closed, ..Snapshot::default() };
        one.facts.path = PathBuf::from(format!("{rank}.nscope"));
        one
    }

    /// The note for processes of one host, each with its end (ms) and whether it ended in order.
    fn found(ends: &[(u64, bool)]) -> Option<String> {
        let one = |(&(end, is_closed), rank): (&(u64, bool), u32)| snapshot(rank, end, is_closed);
        let snapshots: Vec<Snapshot> = ends.iter().zip(0..).map(one).collect();
        find(&snapshots).and_then(|first| note(&first, &snapshots, &[]))
    }

    #[test]
    fn who_ended_first_is_named_where_the_recordings_show_it() {
        let (open, closed) = (|end| (end, false), |end| (end, true));
        assert_eq!(
            found(&[open(9000), open(7000), open(9400), open(9100)]).unwrap(),
            "rank 1 did not end in order, 750 ms or more before all others: the likely cause"
        );
        assert_eq!(found(&[open(9000), open(8000), open(9400)]), None, "it may have lived on");
        assert_eq!(
            found(&[open(9000), open(5000), open(5100), open(9000)]).unwrap(),
            "ranks 1-2 did not end in order, 2.65 s or more before all others: the likely cause"
        );
        let ended = found(&[open(9000), closed(8960), open(8500)]).unwrap();
        assert_eq!(
            ended,
            "rank 1 ended in order 40.0 ms or more before other ranks of its host were killed: \
             the likely cause, if it ended by an error"
        );
        assert_eq!(found(&[open(8900), closed(8960), open(8500)]), None, "after them");
        assert_eq!(found(&[closed(8960), closed(8960), open(9000), closed(8970)]), None, "the end");
        // A process that closed its recording ended at its last record.
        let before = find(&[(9000, true), (8900, true)].map(|(end, _)| snapshot(0, end, true)));
        assert!(before.is_none(), "one process with two ranks");
        let ends = [snapshot(0, 9000, true), snapshot(1, 8900, true), snapshot(2, 9001, true)];
        let before = find(&ends).unwrap();
        assert_eq!((&before.ranks[..], before.before_ns), (&[1][..], Some(100 * MS)));
        assert_eq!(
            text(&before),
            "rank 1 ended in order 100 ms or more before all others ended: the likely cause, if it \
             ended by an error"
        );
    }

    #[test]
    fn who_exited_with_status_0_is_never_the_first() {
        let exit = |rank, end, status| {
            let mut one = snapshot(rank, end, true);
            one.facts.identity.exit_status = Some(status);
            one
        };
        let first = |all: &[Snapshot]| find(all).map(|first| (first.ranks, first.others));
        assert_eq!(first(&[exit(0, 9000, 0), exit(1, 8000, 0), exit(2, 9100, 0)]), None);
        let last_failed = [exit(0, 9000, 0), exit(1, 8000, 0), exit(2, 9100, 1)];
        assert_eq!(first(&last_failed), Some((vec![2], Others::EndedWell)));
        let killed = [exit(0, 9000, 0), exit(1, 8000, 0), snapshot(2, 8500, false)];
        assert_eq!(first(&killed), Some((vec![2], Others::EndedWell)));
        let two_failed = [exit(0, 9000, 0), exit(1, 8000, 1), exit(2, 8500, 1)];
        assert_eq!(first(&two_failed), Some((vec![1], Others::All)), "its error came first");
        let two_killed = [exit(0, 9000, 0), snapshot(1, 8000, false), snapshot(2, 8500, false)];
        assert_eq!(first(&two_killed), None, "at the same time, for all that is known");
    }

    #[test]
    fn a_process_killed_in_its_first_second_may_have_lived_to_its_next_comparison() {
        let early = [100, 900].map(|end| {
            let rank = u32::from(end > 500);
            Snapshot { sync: Some((20 * MS, 10 * MS)), ..snapshot(rank, end, false) }
        });
        assert_eq!(find(&early), None);
    }

    #[test]
    fn records_after_the_time_of_the_next_comparison_show_no_end() {
        let copied = |rank, end| {
            let sync = Some((5000 * MS, 1000 * MS));
            Snapshot { sync, ..snapshot(rank, end, false) }
        };
        assert_eq!(find(&[copied(0, 9000), copied(1, 9001), copied(2, 9002)]), None);
        let at_its_end = [snapshot(0, 7000, false), copied(1, 9001), copied(2, 9002)];
        assert_eq!(find(&at_its_end).unwrap().ranks, [0]);
    }

    #[test]
    fn a_damaged_recording_does_not_show_its_end() {
        let mut damaged = [9000, 7000, 9400, 9100].map(|end| snapshot(0, end, false));
        damaged.iter_mut().zip(0u32..).for_each(|(one, at)| {
            (one.rank, one.facts.path) = (at, PathBuf::from(format!("{at}.nscope")));
        });
        assert!(find(&damaged).is_some());
        damaged[1].damage.push("it is cut off".into());
        assert!(find(&damaged).is_none());
    }

    #[test]
    fn times_of_different_hosts_must_be_further_apart() {
        let on = |host: &str, mut one: Snapshot| {
            one.facts.identity.host = Some(host.into());
            one
        };
        let alone = |end| [on("a", snapshot(0, end, false)), on("b", snapshot(1, 9000, false))];
        assert!(find(&alone(6000)).is_none(), "the other host's clock may be 2 s ahead");
        let found = find(&alone(5000)).unwrap();
        assert_eq!((found.before_ns, found.others), (Some(750 * MS), Others::OtherHosts));
        // On one host nothing is in between.
        let job = [&alone(9000)[..], &[on("a", snapshot(2, 7000, false))]].concat();
        let found = find(&job).unwrap();
        assert_eq!((&found.ranks[..], found.before_ns), (&[2][..], Some(750 * MS)));
        assert_eq!(found.others, Others::OwnHost);
        let mut apart = [snapshot(0, 0, true), snapshot(1, 0, false)];
        apart[1].facts.identity.host = Some("other".into());
        assert_eq!(
            text(&find(&apart).unwrap()),
            "rank 0 ended in order, and the other ranks were killed: the likely cause, if it ended \
             by an error"
        );
    }
}
