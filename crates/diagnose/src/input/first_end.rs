// SPDX-License-Identifier: Apache-2.0
/*!
Which process of a killed job ended first.

A launcher kills all other ranks within a second after one has died. The waits of these ranks then
say nothing about the cause, but the order in which processes ended may. A process that closed its
recording ended at its last record. A killed process ended up to one heartbeat interval after its
last record, so only larger differences between processes count. Only times of one host are
compared, because clocks of hosts differ.
*/

use super::snapshot::Snapshot;
use crate::job::{Process, ProcessStatus};
use crate::words::named_ranks;
use ncclscope_operations::human::{duration, if_one};
use ncclscope_operations::stats::to_f64;
use std::collections::BTreeMap;

/// A process whose records end this much before those of the others is gone, ns: a heartbeat and a
/// half.
const BEFORE_NS: u64 = 1_500_000_000;
/// Processes killed together differ in their last records by less than this, ns: a heartbeat and a
/// little.
const AT_ONCE_NS: u64 = 1_200_000_000;
/// Minimum number of processes of a host that must show when they were killed.
const LEAST: usize = 3;

/// The ranks that ended first.
pub(super) struct FirstEnd {
    /// A note that names them.
    pub(super) note: String,
    /// Those among them that did not end in order.
    pub(super) broke_off: Vec<u32>,
    /// When the first of them ended, ns since 1970.
    pub(super) end_ns: u64,
}

/// The ranks that ended first, if the recordings of a killed job show them. Ranks that a verdict
/// can call gone are left out.
pub(super) fn find(snapshots: &[Snapshot], processes: &[Process]) -> Option<FirstEnd> {
    let mut by_machine: BTreeMap<&str, Vec<&Snapshot>> = BTreeMap::new();
    for (snapshot, process) in snapshots.iter().zip(processes) {
        // The end of a damaged recording may be lost.
        if process.status == ProcessStatus::Running && snapshot.damage.is_empty() {
            by_machine.entry(snapshot.facts.identity.machine()).or_default().push(snapshot);
        }
    }
    let closed = snapshots.iter().filter(|one| one.is_closed).count();
    let find: fn(&[&Snapshot]) -> Option<First> = match closed {
        0 => broke_off,
        // Otherwise the job was about to end.
        few if 2 * few <= snapshots.len() => ended_in_order,
        _ => return None,
    };
    let found: Vec<First> = by_machine.values().filter_map(|all| find(all)).collect();
    let end_ns = found.iter().map(|first| first.end_ns).min().unwrap_or(0);
    let befores: Option<Vec<u64>> = found.iter().map(|first| first.before_ns).collect();
    let hosts = found.len();
    let mut first: Vec<u32> = found.into_iter().flat_map(|first| first.ranks).collect();
    if first.is_empty() {
        return None;
    }
    first.sort_unstable();
    let before = befores.and_then(|all| all.into_iter().min()).map(|ns| duration(to_f64(ns)));
    let (ranks, its) = (named_ranks(&first), if_one(first.len(), "its", "their"));
    let if_error = if_one(first.len(), "if it ended by an error", "if these ended by an error");
    let note = match (closed, before) {
        (0, before) => format!(
            "the last records of {ranks} are {} older than those of the other ranks of {its} {}, \
             which were killed at once: what ended first is the likely cause",
            before.unwrap_or_default(),
            if_one(hosts, "host", "hosts")
        ),
        (_, Some(before)) => format!(
            "{ranks} ended in order {before} or more before other ranks of {its} {} were killed: \
             the likely cause, {if_error}",
            if_one(hosts, "host", "hosts")
        ),
        (_, None) => format!(
            "{ranks} ended in order, and the others were killed: the likely cause, {if_error}"
        ),
    };
    let broke_off = if closed == 0 { first } else { Vec::new() };
    Some(FirstEnd { note, broke_off, end_ns })
}

/// The ranks of a host that ended first.
struct First {
    ranks: Vec<u32>,
    /// How long before the other ranks of the host, ns; `None` if there are no others.
    before_ns: Option<u64>,
    /// When they ended, ns since 1970.
    end_ns: u64,
}

/// The ranks of a host that closed their recordings before the killed ranks of that host ended.
fn ended_in_order(all: &[&Snapshot]) -> Option<First> {
    let killed = all.iter().filter(|one| !one.is_closed).map(|one| one.end_ns).max();
    let is_before = |end: u64| killed.is_none_or(|killed| end < killed);
    let first: Vec<&&Snapshot> =
        all.iter().filter(|one| one.is_closed && is_before(one.end_ns)).collect();
    let latest = first.iter().map(|one| one.end_ns).max()?;
    let before_ns = killed.map(|killed| killed - latest);
    let ranks = first.iter().map(|one| one.rank).collect();
    Some(First { ranks, before_ns, end_ns: latest })
}

/// The ranks of the process whose records end clearly before those of the host's other processes,
/// which all end together.
fn broke_off(all: &[&Snapshot]) -> Option<First> {
    // A process may have several ranks.
    let ends: BTreeMap<_, u64> =
        all.iter().map(|one| (one.facts.path.as_path(), one.end_ns)).collect();
    let mut ends: Vec<u64> = ends.into_values().collect();
    ends.sort_unstable();
    let (&[first, second, ..], &[.., last]) = (&ends[..], &ends[..]) else { return None };
    let is_clear = ends.len() >= LEAST
        && second.saturating_sub(first) >= BEFORE_NS
        && last - second <= AT_ONCE_NS;
    let ranks = all.iter().filter(|one| one.end_ns == first).map(|one| one.rank);
    is_clear.then(|| First {
        ranks: ranks.collect(),
        before_ns: Some(second - first),
        end_ns: first,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const MS: u64 = 1_000_000;

    /// The note for processes of one host, each with its end (ms) and whether it ended in order.
    fn found(ends: &[(u64, bool)]) -> Option<String> {
        let one = |(&(end, is_closed), rank): (&(u64, bool), u32)| {
            let mut one = Snapshot { rank, end_ns: end * MS, is_closed, ..Snapshot::default() };
            one.facts.path = PathBuf::from(format!("{rank}.nscope"));
            one
        };
        let snapshots: Vec<Snapshot> = ends.iter().zip(0..).map(one).collect();
        Some(find(&snapshots, &vec![Process::default(); ends.len()])?.note)
    }

    #[test]
    fn who_ended_first_is_named_where_the_recordings_show_it() {
        let (open, closed) = (|end| (end, false), |end| (end, true));
        let broke = found(&[open(9000), open(7000), open(9400), open(9100)]).unwrap();
        assert_eq!(
            broke,
            "the last records of rank 1 are 2.00 s older than those of the other ranks of its \
             host, which were killed at once: what ended first is the likely cause"
        );
        assert_eq!(found(&[open(9000), open(8000), open(9400)]), None, "a heartbeat");
        assert_eq!(found(&[open(9000), open(7000)]), None, "one other says little");
        assert_eq!(found(&[open(9000), open(5000), open(7000)]), None, "not at once");
        let ended = found(&[open(9000), closed(8960), open(8500)]).unwrap();
        assert_eq!(
            ended,
            "rank 1 ended in order 40.0 ms or more before other ranks of its host were killed: \
             the likely cause, if it ended by an error"
        );
        assert_eq!(found(&[open(8900), closed(8960), open(8500)]), None, "after them");
        assert_eq!(found(&[closed(8900), closed(8960), open(9000)]), None, "all were to end");
        assert_eq!(found(&[closed(8900), closed(8960)]), None);
        let mut damaged = [9000, 7000, 9400, 9100].map(|end| Snapshot {
            end_ns: end * MS,
            damage: vec!["it is cut off".into()],
            ..Snapshot::default()
        });
        let processes = vec![Process::default(); damaged.len()];
        assert!(find(&damaged, &processes).is_none(), "their ends may be lost");
        damaged.iter_mut().zip(0..).for_each(|(one, at)| {
            one.damage.clear();
            one.facts.path = PathBuf::from(format!("{at}.nscope"));
        });
        assert!(find(&damaged, &processes).is_some());
        let mut apart = [Snapshot { is_closed: true, ..Snapshot::default() }, Snapshot::default()];
        apart[1].facts.identity.host = Some("other".into());
        assert_eq!(
            find(&apart, &[Process::default(), Process::default()]).unwrap().note,
            "rank 0 ended in order, and the others were killed: the likely cause, if it ended by \
             an error"
        );
    }
}
