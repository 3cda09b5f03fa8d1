// SPDX-License-Identifier: Apache-2.0
//! Reads slices from traces without the code that wrote them.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// A slice; times in ns since 1970.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    pub(crate) track: String,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) name: String,
    pub(crate) args: Map<String, Value>,
}

fn sorted(mut slices: Vec<Shown>) -> Vec<Shown> {
    let key = |s: &Shown| {
        let args = Value::Object(s.args.clone()).to_string();
        (s.track.clone(), s.start, std::cmp::Reverse(s.length), s.name.clone(), args)
    };
    slices.sort_by_cached_key(key);
    slices
}

/// Nanoseconds of a number of microseconds with three decimals.
fn nanos(micros: &Value) -> u64 {
    format!("{:.3}", micros.as_f64().unwrap()).replace('.', "").parse().unwrap()
}

/// The slices of processes from `pid` on in Chrome's format.
pub(crate) fn chrome(bytes: &[u8], pid: u64) -> Vec<Shown> {
    let json: Value = serde_json::from_slice(bytes).unwrap();
    let base = json["baseTimeNanoseconds"].as_u64().unwrap();
    let (mut tracks, mut slices) = (HashMap::new(), Vec::new());
    for event in json["traceEvents"].as_array().unwrap() {
        if event["pid"].as_u64().is_none_or(|it| it < pid) {
            continue;
        }
        let track = (event["pid"].to_string(), event["tid"].to_string());
        if event["name"] == "thread_name" {
            tracks.insert(track, event["args"]["name"].as_str().unwrap().to_owned());
        } else if event["ph"] == "X" {
            slices.push(Shown {
                track: tracks[&track].clone(),
                start: base + nanos(&event["ts"]),
                length: nanos(&event["dur"]),
                name: event["name"].as_str().unwrap().into(),
                args: event["args"].as_object().unwrap().clone(),
            });
        }
    }
    sorted(slices)
}

/// The arrows of a category in Chrome's format between processes from `pid` on: where each begins
/// and ends, as track and microseconds.
pub(crate) fn arrows(bytes: &[u8], category: &str, pid: u64) -> Vec<[(String, String); 2]> {
    let json: Value = serde_json::from_slice(bytes).unwrap();
    let (mut tracks, mut arrows) = (HashMap::new(), HashMap::<String, [_; 2]>::new());
    let events = json["traceEvents"].as_array().unwrap().iter();
    for event in events.filter(|event| event["pid"].as_u64().is_some_and(|it| it >= pid)) {
        let tid = event["tid"].to_string();
        if event["name"] == "thread_name" {
            tracks.insert(tid, event["args"]["name"].to_string());
        } else if event["cat"] == category && event["ph"] != "X" {
            let end = (tracks[&tid].clone(), event["ts"].to_string());
            let ends = arrows.entry(event["id"].to_string()).or_default();
            ends[usize::from(event["ph"] == "f")] = Some(end);
        }
    }
    let mut arrows: Vec<_> = arrows.into_values().map(|ends| ends.map(Option::unwrap)).collect();
    arrows.sort_unstable();
    arrows
}

/// The fields of a protobuf message: number, and value or bytes.
#[derive(Clone, Copy)]
enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

impl<'b> Field<'b> {
    fn number(self) -> u64 {
        if let Field::Number(number) = self { number } else { panic!("bytes") }
    }

    fn bytes(self) -> &'b [u8] {
        if let Field::Bytes(bytes) = self { bytes } else { panic!("a number") }
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes().into()).unwrap()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes.split_off_first().unwrap();
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    unreachable!()
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let number = bytes.split_off(..8).unwrap();
                Field::Number(u64::from_le_bytes(number.try_into().unwrap()))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                Field::Bytes(bytes.split_off(..length).unwrap())
            }
            wire => panic!("a field of type {wire}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn get<'b>(message: &[(u64, Field<'b>)], number: u64) -> Option<Field<'b>> {
    message.iter().find(|(it, _)| *it == number).map(|(_, field)| *field)
}

/// State of a packet sequence so far.
#[derive(Default)]
struct Sequence {
    now: u64,
    track: u64,
    /// By field number of `InternedData` and interning id.
    interned: HashMap<(u64, u64), String>,
}

#[derive(Default)]
struct Perfetto {
    sequences: HashMap<u64, Sequence>,
    /// Name, parent, and whether the track is a process.
    tracks: HashMap<u64, (String, u64, bool)>,
    open: HashMap<u64, Vec<Shown>>,
    slices: Vec<Shown>,
}

/// The slices of a pftrace (`perfetto/trace/trace_packet.proto`). Where a process has several
/// groups of tracks, their names come before those of tracks.
pub(crate) fn pftrace(bytes: &[u8]) -> Vec<Shown> {
    let mut trace = Perfetto::default();
    for (_, packet) in fields(bytes) {
        trace.packet(&fields(packet.bytes()));
    }
    let groups = trace.tracks.values().filter(|(_, parent, _)| trace.is_process(*parent)).count();
    let marks = trace.tracks.values().filter(|(name, ..)| name == "Steps and marks").count();
    let is_grouped = groups - marks > 1;
    let mut slices = std::mem::take(&mut trace.slices);
    for slice in &mut slices {
        let (name, parent, _) = &trace.tracks[&slice.track.parse().unwrap()];
        let group = &trace.tracks[parent];
        slice.track = match group {
            (group, _, false) if is_grouped => format!("{group}: {name}"),
            _ => name.clone(),
        };
    }
    assert!(trace.open.values().all(Vec::is_empty));
    sorted(slices)
}

impl Perfetto {
    fn is_process(&self, track: u64) -> bool {
        self.tracks.get(&track).is_some_and(|(.., is_process)| *is_process)
    }

    fn packet(&mut self, packet: &[(u64, Field<'_>)]) {
        let sequence = self.sequences.entry(get(packet, 10).unwrap().number()).or_default();
        if let Some(snapshot) = get(packet, 6) {
            let clock = fields(get(&fields(snapshot.bytes()), 1).unwrap().bytes());
            sequence.now = get(&clock, 2).unwrap().number();
        }
        if let Some(defaults) = get(packet, 59) {
            let event = fields(get(&fields(defaults.bytes()), 11).unwrap().bytes());
            sequence.track = get(&event, 11).unwrap().number();
        }
        for (kind, entry) in get(packet, 12).map_or_else(Vec::new, |data| fields(data.bytes())) {
            let entry = fields(entry.bytes());
            let number = get(&entry, 1).unwrap().number();
            sequence.interned.insert((kind, number), get(&entry, 2).unwrap().text());
        }
        if let Some(track) = get(packet, 60) {
            let track = fields(track.bytes());
            let name = get(&track, 2).map_or_else(String::new, Field::text);
            let parent = get(&track, 5).map_or(0, Field::number);
            let uuid = get(&track, 1).unwrap().number();
            self.tracks.insert(uuid, (name, parent, get(&track, 3).is_some()));
        }
        if let Some(event) = get(packet, 11) {
            sequence.now += get(packet, 8).unwrap().number();
            let event = fields(event.bytes());
            let open = self.open.entry(sequence.track).or_default();
            match get(&event, 9).unwrap().number() {
                1 => open.push(sequence.slice(&event)),
                2 => {
                    let mut slice = open.pop().unwrap();
                    slice.length = sequence.now - slice.start;
                    self.slices.push(slice);
                }
                _ => {}
            }
        }
    }
}

impl Sequence {
    fn text(&self, kind: u64, number: Field<'_>) -> String {
        self.interned[&(kind, number.number())].clone()
    }

    fn slice(&self, event: &[(u64, Field<'_>)]) -> Shown {
        let annotations = event.iter().filter(|(number, _)| *number == 4);
        let args = annotations.map(|(_, annotation)| {
            let annotation = fields(annotation.bytes());
            let name = self.text(3, get(&annotation, 1).unwrap());
            let value = match annotation[1] {
                (3, number) => number.number().into(),
                (4, number) => number.number().cast_signed().into(),
                (17, number) => self.text(29, number).into(),
                (kind, _) => panic!("a value of field {kind}"),
            };
            (name, value)
        });
        Shown {
            track: self.track.to_string(),
            start: self.now,
            length: 0,
            name: self.text(2, get(event, 10).unwrap()),
            args: args.collect(),
        }
    }
}
