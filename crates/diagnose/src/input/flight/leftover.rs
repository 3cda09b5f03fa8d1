// SPDX-License-Identifier: Apache-2.0
/*!
Dumps of another job, or of another time, beside those of the job.

PyTorch writes to one path for each rank, so that dumps of an earlier and larger job stay. Two dumps
are of one moment only if no rank has completed a collective of a group that another rank of that
group has not called: it needs each rank. Of dumps that do not agree, those that agree with the
newest are of the job.
*/

use super::dump::{Dump, Group};
use super::status::Span;
use crate::words::named_ranks;
use ncclscope_operations::human::{duration, if_one};
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The functions of which one rank may be done before another has called them.
const ROOTED: [&str; 4] = ["broadcast", "reduce", "gather", "scatter"];

/// The ranks whose dumps are left out, and a note about them.
pub(super) fn of(dumps: &BTreeMap<u32, Dump>) -> (BTreeSet<u32>, Option<String>) {
    let mut newest_first: Vec<(&u32, &Dump)> = dumps.iter().collect();
    newest_first.sort_by_key(|(rank, dump)| (std::cmp::Reverse(dump.newest_ns()), **rank));
    let mut kept: BTreeMap<GroupKey<'_>, Span> = BTreeMap::new();
    let mut left_out: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    let newest_ns = newest_first.first().map_or(0, |(_, dump)| dump.newest_ns());
    for (&rank, dump) in newest_first {
        let spans = spans(dump);
        let agrees = |(key, span): (&GroupKey<'_>, &Span)| {
            kept.get(key).is_none_or(|known| known.agrees(*span))
        };
        if spans.iter().all(agrees) {
            for (key, span) in spans {
                let known = kept.entry(key).or_insert(span);
                *known = known.with(span);
            }
        } else {
            let own = Some(dump.newest_ns()).filter(|&ns| ns > 0);
            left_out.insert(rank, own.map(|own| newest_ns.saturating_sub(own)));
        }
    }
    let note = note(&left_out);
    (left_out.into_keys().collect(), note)
}

/// Finds the groups of numbers without a name. Where members have completed a collective that needs
/// each rank, a dump of the same moment has numbers that agree with theirs.
pub(super) fn name_by_numbers(dumps: &mut BTreeMap<u32, Dump>) {
    if !dumps.values().any(Dump::has_unnamed) {
        return;
    }
    let mut known: HashMap<String, HashMap<Vec<u32>, Span>> = HashMap::new();
    // Without an entry the numbers may be those of sends and receives.
    let all = dumps.values().flat_map(|dump| spans(dump).into_iter().map(move |it| (dump, it)));
    let all = all.filter(|(dump, ((name, _), _))| dump.of(name).next().is_some());
    for (_, ((name, ranks), span)) in all {
        let of_name = known.entry(name.to_owned()).or_default();
        let all = of_name.entry(ranks.to_owned()).or_insert(span);
        *all = all.with(span);
    }
    for dump in dumps.values_mut() {
        dump.name_by_numbers(|name, group| {
            known.get(name)?.get(&group.ranks[..]).copied().filter(|span| span.done > 0)
        });
    }
}

fn note(left_out: &BTreeMap<u32, Option<u64>>) -> Option<String> {
    left_out.first_key_value()?;
    // A dump without operations has no time.
    let least = left_out.values().flatten().min();
    let before = least.map_or_else(String::new, |ns| {
        format!(", {} or more before the newest", duration(to_f64(*ns)))
    });
    let ranks: Vec<u32> = left_out.keys().copied().collect();
    let (dumps, are) = (if_one(ranks.len(), "dump", "dumps"), if_one(ranks.len(), "is", "are"));
    Some(format!(
        "the {dumps} of {} {are} left out: of another job or another time{before}; calls and \
         completions do not agree with those of the other ranks",
        named_ranks(&ranks),
    ))
}

/// A group by name and ranks.
type GroupKey<'a> = (&'a str, &'a [u32]);

/// The groups of a dump in which each rank needs each other.
fn spans(dump: &Dump) -> BTreeMap<GroupKey<'_>, Span> {
    let span = |(name, group): (&'_ String, &Group)| {
        let (called, _, done) = group.status?;
        let is_free =
            |func: &str| ROOTED.iter().any(|part| func.contains(part) && !is_for_all(func));
        let mut entries = dump.of(name);
        let needs_all = entries.all(|entry| !entry.is_p2p && !is_free(&entry.call.func));
        (group.ranks.len() > 1 && needs_all).then_some(Span { called, done })
    };
    let named = dump.groups.iter().filter_map(|(name, group)| {
        Some(((name.as_str(), &group.ranks[..]), span((name, group))?))
    });
    named.collect()
}

/// True for functions in which each rank needs data of each.
fn is_for_all(func: &str) -> bool {
    let parts = ["all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter"];
    parts.iter().any(|part| func.contains(part))
}
