// SPDX-License-Identifier: Apache-2.0
/*!
Which group each id in `pg_status` is of, and which groups the process has never called.

`pg_status` has one id for each group that has recorded an operation, also after the ring has
overwritten it; `pg_config` has the name of each group that has a communicator, also if nothing was
ever called. Ids are local to a process. An entry shows the name of its id; for other ids the order
decides: PyTorch gives ids and numbers in the order in which a process creates its groups, so that a
greater number has a greater id, and each name below it has an id of its own below. An id that may
be of several names stays without one.

A process that destroys all its groups and creates them again gives the same names and numbers
again, and greater ids. Of a name the greatest id counts, and no id below that of the default group.
*/

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The name of the default group, which is created first.
const DEFAULT: &str = "0";

/// The groups of the entries, by id.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// The greatest id of each name.
    latest: HashMap<Arc<str>, u64>,
    /// Ids of groups whose name another group has now.
    older: BTreeSet<u64>,
    /// The greatest of these whose name is a number.
    replaced: Option<u64>,
}

impl Ids {
    /// Adds the id of an entry's group.
    pub(super) fn add(&mut self, id: u64, name: &Arc<str>) {
        let Some(known) = self.latest.get_mut(name) else {
            self.latest.insert(Arc::clone(name), id);
            return;
        };
        if *known == id {
            return;
        }
        let older = id.min(*known);
        *known = id.max(*known);
        self.older.insert(older);
        // PyTorch counts from 0 again after all groups were destroyed. A name from the ranks of a
        // group may come again earlier.
        if number(name).is_some() {
            self.replaced = self.replaced.max(Some(older));
        }
    }

    /// The least id of a group that was not destroyed with all groups of its time.
    fn floor(&self) -> u64 {
        let after = self.replaced.map_or(0, |id| id.saturating_add(1));
        after.max(self.latest.get(DEFAULT).copied().unwrap_or(0))
    }

    /// True if an entry of this id is of the group that has the name now.
    pub(super) fn is_latest(&self, id: Option<u64>, name: &str) -> bool {
        id.is_none_or(|id| self.latest.get(name) == Some(&id) && id >= self.floor())
    }
}

/// Numbers of the latest operations of a group that were enqueued, started and completed.
pub(super) type Numbers = (u64, Option<u64>, u64);

/// What the members of a group have called and completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The least number of calls of a member.
    pub(super) called: u64,
    /// The greatest number of completed calls of a member.
    pub(super) done: u64,
}

impl Span {
    /// False if one has completed a call that another has not made.
    pub(super) fn agrees(self, other: Span) -> bool {
        self.done <= other.called && other.done <= self.called
    }

    pub(super) fn with(self, other: Span) -> Span {
        Span { called: self.called.min(other.called), done: self.done.max(other.done) }
    }
}

/// The status of the groups, by name.
#[derive(Debug, Default)]
pub(super) struct Status<'a> {
    pub(super) numbers: BTreeMap<&'a str, Numbers>,
    /// Those of ids without a name.
    pub(super) unnamed: Vec<Numbers>,
    /// Groups that may have one of these.
    pub(super) unknown: BTreeSet<&'a str>,
}

/// Reads `pg_status` for groups of these names.
pub(super) fn read<'a>(
    status: &Map<String, Value>,
    ids: &'a Ids,
    names: impl Iterator<Item = &'a String>,
) -> Status<'a> {
    let floor = ids.floor();
    let all: Vec<&str> = names.map(String::as_str).collect();
    let id_of = |name: &str| ids.latest.get(name).copied().filter(|&id| id >= floor);
    let mut known: BTreeMap<u64, &str> =
        all.iter().filter_map(|&name| Some((id_of(name)?, name))).collect();
    let by_id = status.iter().filter_map(|(id, numbers)| Some((id.parse().ok()?, numbers)));
    let by_id: BTreeMap<u64, &Value> =
        by_id.filter(|(id, _)| *id >= floor && !ids.older.contains(id)).collect();
    let left: Vec<u64> = by_id.keys().copied().filter(|id| !known.contains_key(id)).collect();
    // If groups were created again, some names may be of groups that are gone.
    let found = if floor == 0 { by_order(&left, &known, &all) } else { None };
    let (named, unknown) = found.unwrap_or_else(|| by_rest(&left, &known, &all));
    known.extend(named);
    let unnamed = by_id.iter().filter(|(id, _)| !known.contains_key(id));
    let unnamed = unnamed.map(|(_, status)| numbers(status)).collect();
    let numbers = known.iter().filter_map(|(id, name)| Some((*name, numbers(by_id.get(id)?))));
    Status { numbers: numbers.collect(), unnamed, unknown }
}

/// Names of ids, and names that other ids may be of.
type Named<'a> = (Vec<(u64, &'a str)>, BTreeSet<&'a str>);

/// The names of ids by the order of both; `None` if the names are no numbers, or contradict it.
fn by_order<'a>(
    left: &[u64],
    known: &BTreeMap<u64, &'a str>,
    names: &[&'a str],
) -> Option<Named<'a>> {
    let numbered = names.iter().map(|&name| Some((number(name)?, name)));
    let sorted: BTreeMap<u64, &str> = numbered.collect::<Option<_>>()?;
    let names: Vec<&str> = sorted.values().copied().collect();
    let places: HashMap<&str, usize> = names.iter().copied().zip(0..).collect();
    let places: Option<Vec<(u64, usize)>> =
        known.iter().map(|(id, name)| Some((*id, *places.get(name)?))).collect();
    let (mut found, mut unknown) = (Vec::new(), BTreeSet::new());
    // The ids and names before each known one, and after the last.
    let (mut id, mut at) = (0, 0);
    for (end, to) in places?.into_iter().chain([(u64::MAX, names.len())]) {
        let between = names.get(at..to).filter(|names| names.len() <= to_usize(end - id))?;
        let from = left.partition_point(|&one| one < id);
        let ids = &left[from..left.partition_point(|&one| one < end)];
        let spare = between.len().checked_sub(ids.len())?;
        for (nth, &one) in ids.iter().enumerate() {
            // Each name before has an id before, each name after an id after.
            let (before, after) = (to_usize(one - id), to_usize(end - one - 1));
            let low = nth.max(between.len().saturating_sub(after.saturating_add(1)));
            match between.get(low..=before.min(nth + spare))? {
                [] => return None,
                [name] => found.push((one, *name)),
                several => unknown.extend(several),
            }
        }
        (id, at) = (end.saturating_add(1), to + 1);
    }
    Some((found, unknown))
}

/// The names of ids if the order does not tell: the first group is the default one, and the last
/// name is that of the last id.
fn by_rest<'a>(left: &[u64], known: &BTreeMap<u64, &'a str>, names: &[&'a str]) -> Named<'a> {
    let taken: BTreeSet<&str> = known.values().copied().collect();
    let mut rest: BTreeSet<&str> =
        names.iter().copied().filter(|name| !taken.contains(name)).collect();
    let (mut ids, mut found) = (left, Vec::new());
    if let ([0, more @ ..], Some(&first)) = (ids, rest.get(DEFAULT))
        && ids.len() <= rest.len()
    {
        rest.remove(first);
        found.push((0, first));
        ids = more;
    }
    match (ids, rest.len()) {
        ([], _) => rest.clear(),
        (&[id], 1) => found.extend(rest.pop_first().map(|name| (id, name))),
        _ => {}
    }
    (found, rest)
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The number that PyTorch has given a group as its name; names from ranks are hashes.
fn number(name: &str) -> Option<u64> {
    name.parse::<u32>().ok().map(u64::from)
}

fn numbers(status: &Value) -> Numbers {
    let number = |key: &str| count(&status[key]);
    (
        number("last_enqueued_collective").unwrap_or(0),
        number("last_started_collective"),
        number("last_completed_collective").unwrap_or(0),
    )
}

/// A number that may be given as text, as in `pg_status` of JSON; `None` if it is negative.
fn count(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    }
}
