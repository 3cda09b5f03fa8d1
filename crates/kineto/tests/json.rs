// SPDX-License-Identifier: Apache-2.0
//! The scanner gives the same result as serde_json for any JSON, cut into reads anywhere.

use flate2::Compression;
use flate2::write::GzEncoder;
use ncclscope_kineto::file;
use ncclscope_kineto::json::{Error, Part, Scanner, members};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::io::{self, Read, Write};

/// A reader that returns bytes in pieces of these lengths, cyclically.
struct Pieces<'a> {
    bytes: &'a [u8],
    lengths: Vec<usize>,
    next: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.lengths[self.next % self.lengths.len()];
        self.next += 1;
        let length = length.min(self.bytes.len()).min(out.len());
        out[..length].copy_from_slice(&self.bytes[..length]);
        self.bytes = &self.bytes[length..];
        Ok(length)
    }
}

/// Results of a scan: the members, the events, and the position at which further events go.
type Found = (Vec<(String, Value)>, Vec<Value>, u64);

fn scan(input: impl Read) -> Result<Found, Error> {
    let mut scanner = Scanner::new(input);
    let (mut others, mut events) = (Vec::new(), Vec::new());
    while let Some(part) = scanner.next()? {
        match part {
            Part::Member { key, value } => {
                others.push((key, serde_json::from_slice(value).unwrap()));
            }
            Part::Event(bytes) => events.push(serde_json::from_slice(bytes).unwrap()),
        }
    }
    Ok((others, events, scanner.insert()?.at))
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // serde_json rounds other fractions differently when it reads them again.
        any::<i32>().prop_map(|n| (f64::from(n) / 4.0).into()),
        // Brackets, quotes and backslashes inside strings are the difficult cases.
        "[a-z\\[\\]{}\",:\\\\\\n\u{e9}]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec(("[a-z\"\\\\{]{0,6}", inner), 0..5)
                .prop_map(|members| Value::from(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A trace as its members in order; the events may come first, last or in between.
fn trace() -> impl Strategy<Value = (Vec<(String, Value)>, Vec<Value>, usize)> {
    let others = prop::collection::vec(("[a-z\"\\\\]{1,6}", value()), 0..5);
    (others, prop::collection::vec(value(), 0..8), 0usize..6)
}

fn text(others: &[(String, Value)], events: &[Value], at: usize, pretty: bool) -> String {
    let show = |value: &Value| {
        if pretty { serde_json::to_string_pretty(value).unwrap() } else { value.to_string() }
    };
    let gap = if pretty { "\n " } else { "" };
    let mut members: Vec<String> = others
        .iter()
        .map(|(key, value)| format!("{}{gap}:{gap}{}", Value::from(key.as_str()), show(value)))
        .collect();
    let events = format!("\"traceEvents\":{gap}{}", show(&Value::from(events.to_vec())));
    members.insert(at.min(members.len()), events);
    format!("{gap}{{{gap}{}{gap}}}{gap}", members.join(&format!("{gap},{gap}")))
}

proptest! {
    #[test]
    fn finds_what_serde_json_finds(
        (others, events, at) in trace(),
        pretty: bool,
        lengths in prop::collection::vec(1usize..40, 1..6),
    ) {
        let text = text(&others, &events, at, pretty);
        let whole: Value = serde_json::from_str(&text).unwrap();
        let pieces = Pieces { bytes: text.as_bytes(), lengths, next: 0 };
        let (found, found_events, insert) = scan(pieces).unwrap();
        prop_assert_eq!(&found, &others);
        prop_assert_eq!(Value::from(found_events.clone()), whole["traceEvents"].clone());
        // An event inserted at that position is the last one.
        let insert = usize::try_from(insert).unwrap();
        let comma = if found_events.is_empty() { "" } else { "," };
        let more = format!("{}{comma}{{\"x\":1}}{}", &text[..insert], &text[insert..]);
        let more: Value = serde_json::from_str(&more).unwrap();
        prop_assert_eq!(more["traceEvents"].as_array().unwrap().last(), Some(&json!({"x": 1})));
    }

    #[test]
    fn a_cut_is_always_noticed((others, events, at) in trace(), cut: prop::sample::Index) {
        let text = text(&others, &events, at, false);
        let cut = cut.index(text.len());
        prop_assert!(matches!(scan(&text.as_bytes()[..cut]), Err(Error::Truncated)));
    }

    #[test]
    fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut object = b"{\"traceEvents\":[".to_vec();
        object.extend(bytes);
        let mut scanner = Scanner::new(&object[..]);
        for _ in 0..=object.len() {
            match scanner.next() {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Ok(()),
            }
        }
        prop_assert!(false, "more parts than bytes");
    }

    #[test]
    fn members_in_memory(object in prop::collection::btree_map("[a-z{]{0,6}", value(), 0..6)) {
        let text = serde_json::to_string_pretty(&object).unwrap();
        let found: Vec<(String, Value)> = members(text.as_bytes())
            .map(|(key, range)| {
                let value = serde_json::from_slice(&text.as_bytes()[range]).unwrap();
                (String::from_utf8(key.to_vec()).unwrap(), value)
            })
            .collect();
        prop_assert_eq!(found, object.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn compressed_members_are_one_stream(
        (others, events, at) in trace(),
        cut: prop::sample::Index,
    ) {
        let text = text(&others, &events, at, true);
        let (head, tail) = text.as_bytes().split_at(cut.index(text.len()));
        let mut compressed = Vec::new();
        for part in [head, tail] {
            let mut encoder = GzEncoder::new(&mut compressed, Compression::fast());
            encoder.write_all(part).unwrap();
            encoder.finish().unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        // The name does not show that the file is compressed.
        let path = dir.path().join("trace.json");
        std::fs::write(&path, &compressed).unwrap();
        let (found, found_events, _) = scan(file::open(&path).unwrap()).unwrap();
        prop_assert_eq!((found, found_events), (others, events));
        std::fs::write(&path, &compressed[..compressed.len() - 9]).unwrap();
        prop_assert!(scan(file::open(&path).unwrap()).is_err());
    }
}

#[test]
fn a_value_that_is_not_json_concerns_its_event_alone() {
    let text = b"{\"traceEvents\": [{\"a\": NaN}, {\"b\": \"\xff\x01\"}, {\"c\": 1}]}";
    let mut scanner = Scanner::new(&text[..]);
    let mut events = Vec::new();
    while let Some(part) = scanner.next().unwrap() {
        if let Part::Event(bytes) = part {
            events.push(serde_json::from_slice::<Value>(bytes).is_ok());
        }
    }
    assert_eq!(events, [false, false, true]);
}

#[test]
fn what_is_no_trace_is_called_so() {
    let message = |text: &str| scan(text.as_bytes()).unwrap_err().to_string();
    for text in ["[{}]", "hello", "{}", r#"{"a": [1]}"#, r#"{"traceEvents": 7}"#] {
        assert_eq!(message(text), "it is not a trace: it has no array traceEvents", "{text}");
    }
    assert_eq!(message(r#"{"traceEvents": [1 2]}"#), "it is not JSON (byte 19)");
    assert_eq!(message(r#"{"traceEvents": [1,]}"#), "it is not JSON (byte 19)");
    assert_eq!(message(r#"{"traceEvents": [[1}]}"#), "it is not JSON (byte 19)");
    assert_eq!(message(r#"{"traceEvents": []} x"#), "it is not JSON (byte 20)");
    assert_eq!(message(""), "it is cut off: the JSON ends inside a value");
}
