// SPDX-License-Identifier: Apache-2.0
//! A trace in Chrome's format for tests: slices by rank, connected by arrows.

use serde_json::Value;
use std::collections::BTreeMap;

/// The ranks of a run, in the order of their numbers.
pub(crate) struct Trace {
    pub(crate) ranks: Vec<RankTrace>,
}

/// The slices of a rank, by their start.
#[derive(Default)]
pub(crate) struct RankTrace {
    pub(crate) rank: u64,
    pub(crate) slices: Vec<Slice>,
}

/// A slice; times are nanoseconds.
pub(crate) struct Slice {
    pub(crate) track: String,
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) args: Value,
    /// Ids of arrows that leave the slice, and of arrows that point at its start.
    out: Vec<String>,
    into: Vec<String>,
}

impl Trace {
    /// Reads a trace, which must be strict JSON with all required fields.
    pub(crate) fn parse(text: &str) -> Trace {
        let trace: Value = serde_json::from_str(text).expect("the trace is JSON");
        let events = trace["traceEvents"].as_array().expect("the trace has events");
        let mut ranks: BTreeMap<u64, RankTrace> = BTreeMap::new();
        let mut tracks: BTreeMap<(u64, u64), &str> = BTreeMap::new();
        for event in events {
            let process = number(event, "pid");
            match (text_of(event, "ph"), text_of(event, "name")) {
                ("M", "process_name") => {
                    let rank = RankTrace { rank: rank_of(&event["args"]), slices: vec![] };
                    ranks.insert(process, rank);
                }
                ("M", "thread_name") => {
                    let track = (process, number(event, "tid"));
                    tracks.insert(track, text_of(&event["args"], "name"));
                }
                // Counters and instants have no slice.
                ("M" | "C" | "i", _) => {}
                ("X", name) => {
                    let track = tracks[&(process, number(event, "tid"))].to_owned();
                    let start = nanos(event, "ts");
                    let end = start + nanos(event, "dur");
                    let (name, args) = (name.to_owned(), event["args"].clone());
                    let slice = Slice { track, name, start, end, args, out: vec![], into: vec![] };
                    ranks.get_mut(&process).expect("a rank").slices.push(slice);
                }
                // Arrows follow the slice that they belong to.
                (phase @ ("s" | "f"), _) => {
                    let id = text_of(event, "id").to_owned();
                    let rank = ranks.get_mut(&process).expect("a rank");
                    let slice = rank.slices.last_mut().expect("a slice");
                    if phase == "s" { &mut slice.out } else { &mut slice.into }.push(id);
                }
                (phase, name) => panic!("what is {phase} {name}? {event}"),
            }
        }
        let mut ranks: Vec<_> = ranks.into_values().collect();
        ranks.sort_by_key(|rank| rank.rank);
        ranks.iter_mut().for_each(|rank| rank.slices.sort_by_key(|slice| slice.start));
        Trace { ranks }
    }
}

impl RankTrace {
    /// The slices of this name.
    pub(crate) fn named(&self, name: &str) -> Vec<&Slice> {
        self.slices.iter().filter(|slice| slice.name == name).collect()
    }

    /// The operations of a function.
    pub(crate) fn operations(&self, func: &str) -> Vec<&Slice> {
        self.named(func).into_iter().filter(|slice| slice.track == "Operations").collect()
    }

    /// The slices of tracks with this name prefix that arrows lead to from `slice`, directly or
    /// through others of the rank.
    pub(crate) fn below<'a>(&'a self, slice: &'a Slice, track: &str) -> Vec<&'a Slice> {
        let (mut below, mut from): (Vec<&Slice>, _) = (vec![], vec![slice]);
        while let Some(slice) = from.pop() {
            let is_next = |other: &&Slice| other.into.iter().any(|id| slice.out.contains(id));
            let next: Vec<&Slice> = self.slices.iter().filter(is_next).collect();
            from.extend(&next);
            below.extend(next);
        }
        below.sort_by_key(|slice| slice.start);
        below.into_iter().filter(|slice| slice.track.starts_with(track)).collect()
    }
}

impl Slice {
    /// The numeric argument `name` of the slice.
    #[track_caller]
    pub(crate) fn number(&self, name: &str) -> u64 {
        number(&self.args, name)
    }
}

/// The rank in `rank 1 (host 4711)`.
fn rank_of(args: &Value) -> u64 {
    let mut words = text_of(args, "name").split(' ');
    words.find_map(|word| word.parse().ok()).expect("the name of a rank")
}

#[track_caller]
fn text_of<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name} in {value}"))
}

#[track_caller]
fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {value}"))
}

/// Microseconds with three decimals, as nanoseconds.
#[track_caller]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of hours")]
fn nanos(value: &Value, name: &str) -> u64 {
    let micros = value[name].as_f64().unwrap_or_else(|| panic!("no time {name} in {value}"));
    (micros * 1000.0).round() as u64
}
