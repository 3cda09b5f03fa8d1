// SPDX-License-Identifier: Apache-2.0
/*!
Writes the traces of several ranks as one.

Kineto numbers devices and arrows in each trace from 0 on, and two hosts may use the same process
id. Therefore `pid`, arrows' `id` and, if the traces count from different times, `ts` are
renumbered. Everything else is copied unchanged. The members of the traces outside their events are
omitted.
*/

use crate::file;
use crate::json::{Part, Scanner, members};
use crate::rank::Rank;
use crate::write::{Events, FIRST_PID, RankTracks, SORT_INDEX, WriteError, write_lanes};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;

/// First new process number: above the process ids of Linux, and below the numbers of our tracks.
const MOVED_PID: u64 = 1 << 29;
/// The new id of a rank's arrow is the rank's index, shifted left by this, plus the old id. Numbers
/// in JSON are exact up to 53 bits.
const ID_SHIFT: u32 = 40;
/// The sort indices of a rank's processes begin at the rank's index times this number.
const SORT_STRIDE: u64 = 10_000_000;

/// Writes the start of a trace that counts from the earliest of `bases`, ns since 1970.
///
/// # Errors
/// An error of the system.
pub fn begin(out: &mut impl Write, base_ns: i64) -> io::Result<()> {
    write!(
        out,
        "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{base_ns},\
         \"traceEvents\":["
    )
}

/// Writes the end of a trace.
///
/// # Errors
/// An error of the system.
pub fn end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"\n]}\n")
}

/// Numbers that the ranks written so far use.
#[derive(Debug, Default)]
pub struct Shared {
    pids: HashSet<u64>,
    ranks: u64,
}

/// Adds a rank: the events of its trace, then its tracks. Returns the number of slices on these
/// tracks.
///
/// # Errors
/// See [`WriteError`].
pub fn add(
    out: &mut impl Write,
    rank: &Rank<'_, '_>,
    base_ns: i64,
    shared: &mut Shared,
) -> Result<u64, WriteError> {
    let index = shared.ranks;
    shared.ranks += 1;
    let trace = rank.trace();
    let name = trace.identity.rank.map_or(index, |(rank, _)| rank.into());
    let shift_ns = trace.base_ns - base_ns;
    let mut rewriter = Rewriter { index, name, shift_ns, pids: HashMap::new(), shared };
    let mut events = Events::new(out, index == 0);
    let input = file::open(&trace.path).map_err(|e| WriteError::Input(e.into()))?;
    let mut scanner = Scanner::new(input);
    let mut text = Vec::new();
    while let Some(part) = scanner.next().map_err(WriteError::Input)? {
        if let Part::Event(bytes) = part {
            rewriter.event(bytes, &mut text);
            events.copy(&text).map_err(WriteError::Output)?;
        }
    }
    let mut place = RankTracks {
        pid: FIRST_PID + index,
        sort_index: index * SORT_STRIDE + SORT_INDEX,
        base_ns,
        first_id: index << ID_SHIFT,
        device: &mut |pid: &Value| rewriter.pid(pid),
    };
    write_lanes(rank, &mut place, &mut events).map_err(WriteError::Output)
}

struct Rewriter<'s> {
    index: u64,
    /// The rank's number.
    name: u64,
    shift_ns: i64,
    pids: HashMap<u64, u64>,
    shared: &'s mut Shared,
}

impl Rewriter<'_> {
    /// Writes the event's bytes with its new numbers to `text`.
    fn event(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        text.clear();
        let mut changes: Vec<(Range<usize>, String)> = Vec::new();
        let mut metadata = None;
        let mut args = None;
        for (key, range) in members(bytes) {
            let value = || serde_json::from_slice::<Value>(&bytes[range.clone()]).ok();
            match key {
                b"pid" => {
                    let new = value().map(|value| self.pid(&value).to_string());
                    changes.extend(new.map(|new| (range.clone(), new)));
                }
                b"id" => {
                    let new = value().map(|value| self.id(&value).to_string());
                    changes.extend(new.map(|new| (range.clone(), new)));
                }
                b"ts" if self.shift_ns != 0 => {
                    let ns = crate::event::time_of(&bytes[range.clone()]);
                    changes.extend(ns.map(|ns| (range.clone(), micros(ns + self.shift_ns))));
                }
                b"name" if bytes[range.clone()].starts_with(b"\"process_") => {
                    metadata = value().and_then(|it| it.as_str().map(str::to_owned));
                }
                b"args" => args = Some(range),
                _ => {}
            }
        }
        if let (Some(name), Some(range)) = (metadata, args) {
            let new = self.metadata(&name, &bytes[range.clone()]);
            changes.extend(new.map(|new| (range, new.to_string())));
        }
        changes.sort_by_key(|(range, _)| range.start);
        let mut at = 0;
        for (range, new) in changes {
            text.extend_from_slice(&bytes[at..range.start]);
            text.extend_from_slice(new.as_bytes());
            at = range.end;
        }
        text.extend_from_slice(&bytes[at..]);
    }

    /// A process number that no other rank uses; the old one if it is free.
    fn pid(&mut self, old: &Value) -> Value {
        let Some(number) = old.as_u64() else {
            let name = text_of(old);
            return format!("rank {} {name}", self.name).trim_end().into();
        };
        let pids = &mut self.shared.pids;
        let new = *self.pids.entry(number).or_insert_with(|| {
            let moved = (MOVED_PID..).find(|pid| !pids.contains(pid)).unwrap_or(number);
            let new = if pids.contains(&number) { moved } else { number };
            pids.insert(new);
            new
        });
        new.into()
    }

    fn id(&self, old: &Value) -> Value {
        match old.as_u64() {
            Some(number) if number >> ID_SHIFT == 0 => (number | self.index << ID_SHIFT).into(),
            _ => format!("{}:{}", self.index, text_of(old)).into(),
        }
    }

    /// The args of an event that names or sorts a process.
    fn metadata(&self, name: &str, args: &[u8]) -> Option<Value> {
        if !matches!(name, "process_name" | "process_sort_index") {
            return None;
        }
        let mut args: Value = serde_json::from_slice(args).ok()?;
        if let Some(text) = args["name"].as_str() {
            args["name"] = format!("rank {}: {text}", self.name).into();
        }
        if let Some(index) = args["sort_index"].as_u64() {
            args["sort_index"] = (self.index * SORT_STRIDE + index.min(SORT_STRIDE - 1)).into();
        }
        Some(args)
    }
}

/// A text, or a number as text.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats microseconds with three decimals, as Kineto writes them; negative times become 0.
fn micros(ns: i64) -> String {
    let ns = ns.max(0);
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_apart_and_the_rest_is_kept() {
        let mut shared = Shared::default();
        let mut text = |index: u64, shift_ns: i64, bytes: &str| {
            let pids = HashMap::new();
            let mut rewriter =
                Rewriter { index, name: index + 4, shift_ns, pids, shared: &mut shared };
            let mut text = Vec::new();
            rewriter.event(bytes.as_bytes(), &mut text);
            String::from_utf8(text).unwrap()
        };
        let event = r#"{ "ph": "s", "id": 7, "pid": 0, "tid": 1, "ts": 2.5, "args": {"pid": 9} }"#;
        assert_eq!(text(0, 0, event), event);
        assert_eq!(
            text(1, 1_000_000, event),
            event
                .replace("7", "1099511627783")
                .replace(r#""pid": 0"#, r#""pid": 536870912"#)
                .replace("2.5", "1002.500")
        );
        // Numbers that are no ids of ranks stay apart as texts.
        let odd = |number: &str| text(1, 0, &format!(r#"{{"id": {number}, "pid": {number}}}"#));
        let odd = ["-1", "-2", "1099511627777"].map(odd);
        assert_eq!(odd[0], r#"{"id": "1:-1", "pid": "rank 5 -1"}"#);
        assert_eq!(odd[1], r#"{"id": "1:-2", "pid": "rank 5 -2"}"#);
        assert_eq!(odd[2], r#"{"id": "1:1099511627777", "pid": 1099511627777}"#);
        let name = r#"{"name":"process_name","ph":"M","pid":"Spans","args":{"name":"python"}}"#;
        assert_eq!(
            text(1, 0, name),
            name.replace("Spans", "rank 5 Spans").replace("python", "rank 5: python")
        );
    }
}
