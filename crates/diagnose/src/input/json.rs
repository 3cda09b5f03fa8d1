// SPDX-License-Identifier: Apache-2.0
/*!
Reads the JSON of dumps within a budget.

In memory, a value takes up to fifty times its text. Therefore the values of a file are counted
while they are read, and a file with too many is refused, as with pickles. Values that no reader
uses are skipped and not counted: the stacks of a dump's entries but for one line, and, beside
recordings, everything except RAS's output.
*/

use super::frames::{self, UsersLine};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::fmt;

/// Maximum cost of a file's values, in values; one takes about 40 bytes.
const MAX_COST: usize = 5_000_000;
/// Maximum total length of a file's texts, bytes.
const MAX_TEXT: usize = 128 << 20;
/// Additional cost of an array for the room that it reserves; `OBJECT_COST` is that of an object.
const ARRAY_COST: usize = 4;
const OBJECT_COST: usize = 8;
/// Keys that RAS's output has.
const RAS_KEYS: [&str; 2] = ["nccl_version", "communicators"];

/// Which values of the outermost object are kept; of the others only the keys are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// All values are kept.
    Dump,
    /// The values of RAS's output are kept.
    Ras,
}

/// Parses JSON, and tolerates commas before closing brackets, missing ones before a key, and a line
/// `OK` before it, as NCCL's RAS writes them.
///
/// # Errors
/// A sentence with the position, or that the limits were exceeded.
pub(super) fn parse(bytes: &[u8], keep: Keep) -> Result<Value, String> {
    let bytes = without_ok(bytes);
    let first = read(bytes, keep, &Budget::new(), None);
    // A document that exceeds the limits does so without the commas, too.
    let read = match first {
        Err(error) if error.is_syntax() => {
            read(&with_commas_right(bytes), keep, &Budget::new(), None).map_err(|_| error)
        }
        other => other,
    };
    in_words(read)
}

/// Parses a dump. Its entries are handed over one at a time, and are not in the value. If the text
/// is not valid JSON, [`parse`] may still put its commas right.
///
/// # Errors
/// Those of [`parse`].
pub(super) fn parse_dump(bytes: &[u8], entry: &mut dyn FnMut(&Value)) -> Result<Value, String> {
    in_words(read(without_ok(bytes), Keep::Dump, &Budget::new(), Some(entry)))
}

fn in_words(read: Result<Value, serde_json::Error>) -> Result<Value, String> {
    read.map_err(|error| match error.is_data() {
        true => error.to_string(),
        false => format!("not valid JSON: {error}"),
    })
}

fn read<'a>(
    bytes: &[u8],
    keep: Keep,
    budget: &'a Budget,
    entry: Option<&'a mut dyn FnMut(&Value)>,
) -> Result<Value, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let keep = (keep == Keep::Ras).then_some(&RAS_KEYS[..]);
    let value = Bounded { budget, keep, entry }.deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// What follows the line `OK`, with which RAS answers on its socket.
pub(super) fn without_ok(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"OK").map_or(bytes, <[u8]>::trim_ascii_start)
}

/// Removes commas before a closing bracket, and adds those that are missing before a text, outside
/// of strings.
fn with_commas_right(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut in_text, mut is_escaped) = (Vec::with_capacity(bytes.len()), false, false);
    let mut last = b'{';
    for (at, &byte) in bytes.iter().enumerate() {
        if in_text {
            in_text = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
        } else {
            in_text = byte == b'"';
            if in_text && !matches!(last, b'{' | b'[' | b',' | b':') {
                out.push(b',');
            }
            if !byte.is_ascii_whitespace() {
                last = byte;
            }
            let mut rest = bytes[at + 1..].iter().filter(|b| !b.is_ascii_whitespace());
            if byte == b',' && matches!(rest.next(), Some(b']' | b'}')) {
                continue;
            }
        }
        out.push(byte);
    }
    out
}

/// The remaining limits.
struct Budget {
    values: Cell<usize>,
    text: Cell<usize>,
}

impl Budget {
    fn new() -> Budget {
        Budget { values: Cell::new(MAX_COST), text: Cell::new(MAX_TEXT) }
    }

    fn spend<E: Error>(&self, cost: usize) -> Result<(), E> {
        let left = self.values.get().checked_sub(cost);
        self.values.set(left.ok_or_else(|| E::custom("it has too many values"))?);
        Ok(())
    }

    fn spend_text<E: Error>(&self, text: &str) -> Result<(), E> {
        let left = self.text.get().checked_sub(text.len());
        self.text.set(left.ok_or_else(|| E::custom("it has too much text"))?);
        Ok(())
    }
}

/// Reads one value; of the outermost object only what is to be kept.
struct Bounded<'a> {
    budget: &'a Budget,
    keep: Option<&'a [&'a str]>,
    /// What takes the entries of a dump.
    entry: Option<&'a mut dyn FnMut(&Value)>,
}

impl<'a> Bounded<'a> {
    fn whole(budget: &'a Budget) -> Bounded<'a> {
        Bounded { budget, keep: None, entry: None }
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        self.budget.spend(1)?;
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.budget.spend_text(value)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let budget = self.budget;
        budget.spend(ARRAY_COST)?;
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Bounded::whole(budget))? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let budget = self.budget;
        budget.spend(OBJECT_COST)?;
        let (mut all, mut entry) = (Map::new(), self.entry);
        while let Some(key) = map.next_key::<String>()? {
            budget.spend(1)?;
            budget.spend_text(&key)?;
            let is_kept = self.keep.is_none_or(|kept| kept.contains(&key.as_str()));
            let value = match is_kept {
                true if key == frames::KEY => map.next_value_seed(Stack { budget })?,
                true => match entry.take_if(|_| key == "entries") {
                    Some(entry) => map.next_value_seed(Entries { budget, entry })?,
                    None => map.next_value_seed(Bounded::whole(budget))?,
                },
                false => map.next_value::<IgnoredAny>().map(|_| Value::Null)?,
            };
            all.insert(key, value);
        }
        Ok(Value::Object(all))
    }
}

/// Reads the entries of a dump, and hands them over; its value is an empty array.
struct Entries<'a> {
    budget: &'a Budget,
    entry: &'a mut dyn FnMut(&Value),
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = Value;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("the entries of a dump")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while let Some(item) = items.next_element_seed(Bounded::whole(self.budget))? {
            (self.entry)(&item);
        }
        Ok(Value::Array(Vec::new()))
    }
}

/// Reads a stack; its value is the user's line.
struct Stack<'a> {
    budget: &'a Budget,
}

impl<'de> DeserializeSeed<'de> for Stack<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        // The stack itself is gone in a moment, so that it has limits of its own.
        let stack = Bounded::whole(&Budget::new()).deserialize(json)?;
        let mut line = UsersLine::default();
        for frame in stack.as_array().into_iter().flatten() {
            let text = |key: &str| frame[key].as_str().unwrap_or_default();
            let (file, at) = (text("filename"), frame["line"].as_u64().unwrap_or(0));
            line.add(frames::whose(file), text("name"), file, at);
        }
        let Some(text) = line.text() else { return Ok(Value::Null) };
        self.budget.spend(1)?;
        self.budget.spend_text(&text)?;
        Ok(Value::String(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(of: &str, count: usize) -> Vec<u8> {
        let entries = vec![of; count].join(",");
        format!("{{\"version\":\"1\",\"entries\":[{entries}]}}").into_bytes()
    }

    #[test]
    fn values_come_as_they_are_but_for_stacks() {
        let text = br#"{"a": [1, -2, 2.5, null, true, "x\n"], "b": {"c": {}, "frames": [{}]}}"#;
        let mut expected: Value = serde_json::from_slice(text).unwrap();
        expected["b"]["frames"] = Value::Null;
        assert_eq!(parse(text, Keep::Dump), Ok(expected));
        assert_eq!(parse(b"[1,\n]", Keep::Dump), Ok(vec![1].into()));
        let expected = serde_json::json!({"a": 1, "b": {"c": "x"}, "d": [2]});
        for text in [
            &br#"{"a": 1 "b": {"c": "x"} "d": [2]}"#[..],
            b"OK\n{\"a\": 1, \"b\": {\"c\": \"x\"}, \"d\": [2,]}",
        ] {
            assert_eq!(parse(text, Keep::Dump), Ok(expected.clone()));
        }
        assert!(parse(b"{\"a\": ", Keep::Dump).unwrap_err().contains("not valid JSON"));
        assert!(parse(b"{} {}", Keep::Dump).unwrap_err().contains("not valid JSON"));
    }

    /// The stacks are not needed: one in another form refuses no dump.
    #[test]
    fn a_stack_in_any_form_is_a_line_or_nothing() {
        let line = |frames: &str| {
            let value = parse(format!("{{\"frames\": {frames}}}").as_bytes(), Keep::Dump);
            value.unwrap()["frames"].clone()
        };
        assert_eq!(line(r#"[{"name": "f", "filename": "a.py", "line": 3}]"#), "a.py:3 in f");
        assert_eq!(line(r#"[{"name": null, "filename": "a.py", "line": -1}, 7]"#), "a.py:0 in ");
        for other in ["null", "7", "\"text\"", "{}", "[[], null]"] {
            assert_eq!(line(other), Value::Null, "{other}");
        }
    }

    #[test]
    fn too_much_is_refused() {
        let lists = entries("[0]", 1_000_000);
        let error = parse(&lists, Keep::Dump).unwrap_err();
        assert!(error.starts_with("it has too many values"), "{error}");
        let value = parse(&lists, Keep::Ras).unwrap();
        assert_eq!((&value["entries"], value.as_object().unwrap().len()), (&Value::Null, 2));
        let stacks = entries(&format!("{{\"frames\":[{}]}}", vec!["[]"; 20].join(",")), 100_000);
        assert!(parse(&stacks, Keep::Dump).is_ok(), "stacks cost nothing");
        let text = entries(&format!("\"{}\"", "x".repeat(1 << 20)), 130);
        let error = parse(&text, Keep::Dump).unwrap_err();
        assert!(error.starts_with("it has too much text"), "{error}");
    }
}
