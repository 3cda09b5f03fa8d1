// SPDX-License-Identifier: Apache-2.0
/*!
Which rank each trace is of.

PyTorch writes `distributedInfo` when a profile begins, so that one that begins before
`init_process_group` has none. Then the rank is the number in the file's name, if that can be the
rank; else the trace has a free number, in the order of the numbers in the names. Both get a note.
*/

use ncclscope_kineto::Trace;
use ncclscope_kineto::facts::Group;
use ncclscope_operations::{human, positions};
use std::collections::BTreeSet;

/// Words that make `WORD_rank3` a number among other things than the ranks of the job.
const OF_OTHERS: [&str; 9] = ["local", "node", "group", "host", "dp", "tp", "pp", "cp", "ep"];

/// The rank of each trace.
pub(super) struct Ranks {
    pub(super) of: Vec<u32>,
    /// No rank is a position.
    pub(super) is_known: bool,
    /// Where ranks are from, if traces do not have them.
    pub(super) note: Option<String>,
}

impl Ranks {
    pub(super) fn of(traces: &[Trace]) -> Ranks {
        let own = |trace: &Trace| trace.identity.rank.map(|(rank, _)| rank);
        let mut found: Vec<Option<u32>> = traces.iter().map(own).collect();
        let lacking: Vec<usize> = (0..found.len()).filter(|&at| found[at].is_none()).collect();
        let named: Vec<(usize, u32)> =
            lacking.iter().filter_map(|&at| Some((at, in_name(&traces[at])?))).collect();
        let mut taken: BTreeSet<u32> = found.iter().flatten().copied().collect();
        for &(at, rank) in &named {
            let is_of_one = named.iter().filter(|(_, other)| *other == rank).count() == 1;
            if is_of_one && !taken.contains(&rank) {
                found[at] = Some(rank);
            }
        }
        taken.extend(found.iter().flatten());
        let mut rest: Vec<usize> =
            lacking.iter().copied().filter(|&at| found[at].is_none()).collect();
        rest.sort_by_cached_key(|&at| positions::by_numbers(&traces[at].path.to_string_lossy()));
        let mut places = Vec::with_capacity(rest.len());
        for (&at, rank) in rest.iter().zip((0..).filter(|rank| !taken.contains(rank))) {
            found[at] = Some(rank);
            let name = traces[at].path.file_name().unwrap_or_default();
            places.push((rank, name.to_string_lossy().into_owned()));
        }
        let names = "ranks are the numbers in the files' names";
        let source = match places.len() {
            0 => names.to_owned(),
            some => {
                let list = positions::list(places.into_iter());
                let names = if some < lacking.len() { names } else { "ranks are" };
                let or = if some < lacking.len() { ", or else" } else { "" };
                format!("{names}{or} positions: {list}")
            }
        };
        let note = format!(
            "{} no rank, as a profile that begins before `init_process_group`: {source}",
            human::count(lacking.len(), "trace") + human::if_one(lacking.len(), " has", " have")
        );
        Ranks {
            of: found.into_iter().flatten().collect(),
            is_known: rest.is_empty(),
            note: (!lacking.is_empty()).then_some(note),
        }
    }
}

/// The rank in the name of a trace, as in `rank3.json` and `trace_rank_3.pt.trace.json`; `None`
/// if there is none or several, or if the trace has a process group without it.
fn in_name(trace: &Trace) -> Option<u32> {
    let name = trace.path.file_name()?.to_string_lossy().to_lowercase();
    let mut ranks = name.match_indices("rank").filter_map(|(at, word)| {
        let (before, after) = (&name[..at], &name[at + word.len()..]);
        let digits = after.strip_prefix(['_', '-', '.', '=', '[', ' ']).unwrap_or(after);
        let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
        Some((before, digits[..end].parse::<u32>().ok()?))
    });
    let (Some((before, rank)), None) = (ranks.next(), ranks.next()) else { return None };
    let words = before.trim_end_matches(|letter: char| !letter.is_ascii_alphabetic());
    let is_of_others = OF_OTHERS.iter().any(|of| words.ends_with(of))
        || before.ends_with(|letter: char| letter.is_ascii_alphabetic());
    let may_have =
        |group: &Group| group.is_cut || group.ranks.is_empty() || group.ranks.contains(&rank);
    let may_be = !is_of_others && trace.groups.iter().all(may_have);
    may_be.then_some(rank)
}
