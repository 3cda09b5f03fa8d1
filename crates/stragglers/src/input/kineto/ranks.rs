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
        let without = traces.iter().filter(|trace| own(trace).is_none()).count();
        let from_name = |trace: &Trace| own(trace).or_else(|| in_name(trace));
        let named: Option<Vec<u32>> = traces.iter().map(from_name).collect();
        let is_one_each =
            |of: &Vec<u32>| without == 0 || of.iter().collect::<BTreeSet<_>>().len() == of.len();
        let why = || {
            format!(
                "{} no rank, as a profile that begins before `init_process_group`",
                human::count(without, "trace") + human::if_one(without, " has", " have")
            )
        };
        if let Some(of) = named.filter(is_one_each) {
            let note = || format!("{}: ranks are the numbers in the files' names", why());
            return Ranks { of, is_known: true, note: (without > 0).then(note) };
        }
        let taken: BTreeSet<u32> = traces.iter().filter_map(own).collect();
        let mut free = (0..).filter(|rank| !taken.contains(rank));
        let mut order: Vec<usize> = (0..traces.len()).collect();
        order.sort_by_cached_key(|&at| positions::by_numbers(&traces[at].path.to_string_lossy()));
        let mut of: Vec<u32> = traces.iter().map(|trace| own(trace).unwrap_or(0)).collect();
        let mut places = Vec::with_capacity(without);
        for at in order.into_iter().filter(|&at| own(&traces[at]).is_none()) {
            of[at] = free.next().unwrap_or(u32::MAX);
            let name = traces[at].path.file_name().unwrap_or_default();
            places.push((of[at], name.to_string_lossy().into_owned()));
        }
        let places = positions::list(places.into_iter());
        let note = format!("{}: ranks are positions: {places}", why());
        Ranks { of, is_known: false, note: Some(note) }
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
