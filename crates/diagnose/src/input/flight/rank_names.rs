// SPDX-License-Identifier: Apache-2.0
/*!
The rank of each dump, from the names of the files.

Names have more numbers than the rank: a time, a node, a process id. All files of a job name the
rank at the same place. That is the place at which each file has another number, and most of these
are ranks that the dumps' groups list. The number after the word `rank` comes first, then the last
one of a name, the one before it, and so on.
*/

use crate::missing::MAX_RANKS;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of numbers of a name that are looked at, from either end.
const MOST: usize = 8;

/// Where a name has the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// After the word `rank`.
    Word,
    /// So many numbers before the last one.
    FromEnd(usize),
    /// So many numbers after the first one.
    FromStart(usize),
}

/// The rank of each file, in order, each with the ranks that its groups list; or why it is unknown.
pub(super) fn ranks(files: &[(&Path, BTreeSet<u32>)]) -> Vec<Result<u32, String>> {
    let names: Vec<Vec<Number>> = files.iter().map(|(path, _)| numbers(&name(path))).collect();
    let listed: BTreeSet<u32> = files.iter().flat_map(|(_, ranks)| ranks).copied().collect();
    let places = std::iter::once(Place::Word)
        .chain((0..MOST).map(Place::FromEnd))
        .chain((0..MOST).map(Place::FromStart));
    let fit = |place: Place| {
        let all: Vec<u32> = names.iter().map(|name| at(name, place)).collect::<Option<_>>()?;
        let distinct: BTreeSet<u32> = all.iter().copied().collect();
        (distinct.len() == all.len()).then(|| distinct.intersection(&listed).count())
    };
    // The first of the best.
    let best =
        places.filter_map(|place| Some((fit(place)?, place))).fold(None, |best, one| match best {
            Some((most, _)) if most >= one.0 => best,
            _ => Some(one),
        });
    let place = best.map_or(Place::FromEnd(0), |(_, place)| place);
    let mut taken: BTreeMap<u32, &Path> = BTreeMap::new();
    let mut found = Vec::new();
    for ((path, _), name) in files.iter().zip(&names) {
        let rank = at(name, place).ok_or_else(|| "no number in its name can be a rank".to_owned());
        found.push(rank.and_then(|rank| match taken.insert(rank, path) {
            Some(other) => Err(format!("rank {rank} has a second dump, {}", other.display())),
            None => Ok(rank),
        }));
    }
    found
}

/// A number of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    /// `None` if it is too large for a rank.
    value: Option<u32>,
    follows_rank: bool,
}

/// The name of a file, without its extension; if that has no number, after the name of its folder.
fn name(path: &Path) -> String {
    let text = |part: Option<&std::ffi::OsStr>| {
        part.unwrap_or_default().to_string_lossy().to_ascii_lowercase()
    };
    let stem = text(path.file_stem());
    match stem.contains(|c: char| c.is_ascii_digit()) {
        true => stem,
        false => text(path.parent().and_then(Path::file_name)) + "/" + &stem,
    }
}

fn numbers(name: &str) -> Vec<Number> {
    let mut found = Vec::new();
    let mut rest = name;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        let value = number[..end].parse().ok().filter(|&value| value < MAX_RANKS);
        let word = before.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        found.push(Number { value, follows_rank: word.ends_with("rank") });
        rest = &number[end..];
    }
    found
}

fn at(name: &[Number], place: Place) -> Option<u32> {
    let number = match place {
        Place::Word => name.iter().rev().find(|number| number.follows_rank),
        Place::FromEnd(before) => name.iter().rev().nth(before),
        Place::FromStart(after) => name.get(after),
    };
    number?.value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks of files with these names, whose groups list these ranks.
    fn found(names: &[&str], listed: &[u32]) -> Vec<Option<u32>> {
        let listed: BTreeSet<u32> = listed.iter().copied().collect();
        let files: Vec<(&Path, BTreeSet<u32>)> =
            names.iter().map(|name| (Path::new(*name), listed.clone())).collect();
        ranks(&files).into_iter().map(Result::ok).collect()
    }

    #[test]
    fn the_rank_is_found_wherever_it_stands() {
        let all = |names: &[&str]| assert_eq!(found(names, &[0, 1, 2, 3]), [Some(2), Some(3)]);
        all(&["_dump_2", "_dump_3"]);
        all(&["nccl_trace_rank_2", "nccl_trace_rank_3"]);
        all(&["nccl_trace_rank_2_1758581242", "nccl_trace_rank_3_1758581243"]);
        all(&["dump_2_1758581242", "dump_3_1758581242"]);
        all(&["2-20260101-1", "3-20260101-1"]);
        all(&["rank_2_flight_recorder.json", "rank_3_flight_recorder.json"]);
        all(&["trace_container-node02_2", "trace_container-node02_3"]);
        all(&["node1/rank2/trace.json", "node1/rank3/trace.json"]);
        all(&["2.log", "3.log"]);
        all(&["job17-r2.pkl", "job17-r3.pkl"]);
    }

    #[test]
    fn groups_that_list_other_numbers_do_not_hide_the_rank() {
        assert_eq!(found(&["rank_2.json", "rank_3.json"], &[0, 1]), [Some(2), Some(3)]);
        assert_eq!(found(&["dump_5"], &[]), [Some(5)]);
    }

    #[test]
    fn what_cannot_be_told_is_said() {
        assert_eq!(found(&["a_1758581242", "b"], &[0, 1]), [None, None]);
        assert_eq!(found(&["dump_1", "other_1"], &[0, 1]), [Some(1), None]);
        let files = [(Path::new("x/dump_1"), BTreeSet::new()), (Path::new("y/dump_1"), [1].into())];
        let error = ranks(&files).pop().unwrap().unwrap_err();
        assert_eq!(error, "rank 1 has a second dump, x/dump_1");
    }
}
