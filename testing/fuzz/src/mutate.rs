// SPDX-License-Identifier: Apache-2.0
//! Mutations of input: of bytes and of JSON.

use crate::random::Random;
use serde_json::{Map, Value};
use std::ops::Range;

/// Changes the bytes of a range in one to four places.
pub(crate) fn bytes(random: &mut Random, bytes: &mut [u8], range: Range<usize>) {
    for _ in 0..=random.below(4) {
        let at = range.start + random.below(range.len());
        let Some(rest) = bytes.get_mut(at..range.end) else { continue };
        let number = random.number().to_le_bytes();
        // Writes a number of 1 to 8 bytes, or flips a bit.
        let width = *random.of(&[1, 2, 4, 8]);
        match random.below(4) {
            0 => rest.iter_mut().take(1).for_each(|byte| *byte ^= 1 << (number[0] % 8)),
            _ => rest.iter_mut().zip(&number[..width]).for_each(|(to, from)| *to = *from),
        }
    }
}

/// Changes bytes without regard to structure, and also their number.
pub(crate) fn any(random: &mut Random, data: &mut Vec<u8>) {
    match random.below(8) {
        0 => data.truncate(random.below(data.len() + 1)),
        1 => {
            let (from, to) = (random.below(data.len() + 1), random.below(data.len() + 1));
            let part = data[from.min(to)..from.max(to)].to_vec();
            let at = random.below(data.len() + 1);
            data.splice(at..at, part.into_iter().take(4096));
        }
        2 => {
            let from = random.below(data.len() + 1);
            let to = (from + random.below(64)).min(data.len());
            data.drain(from..to);
        }
        _ => {
            let end = data.len();
            bytes(random, data, 0..end);
        }
    }
}

/// Changes a value somewhere in a JSON document; in one of a hundred cases, also damages the text.
pub(crate) fn json(random: &mut Random, data: &mut Vec<u8>) {
    let Ok(mut value) = serde_json::from_slice::<Value>(data) else { return any(random, data) };
    for _ in 0..=random.below(4) {
        change(random, &mut value);
    }
    *data = value.to_string().into_bytes();
    if random.below(100) == 0 {
        any(random, data);
    }
}

fn change(random: &mut Random, value: &mut Value) {
    let goes_on = random.below(8) != 0;
    match value {
        Value::Array(items) if goes_on && !items.is_empty() => {
            let at = random.below(items.len());
            match random.below(12) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => change(random, &mut items[at]),
            }
        }
        Value::Object(map) if goes_on && !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).cloned().unwrap_or_default();
            match random.below(12) {
                0 => drop(map.remove(&key)),
                _ => change(random, &mut map[&key]),
            }
        }
        _ => *value = other(random, value),
    }
}

fn other(random: &mut Random, value: &Value) -> Value {
    let number = random.number();
    match random.below(9) {
        0 => Value::Null,
        1 => Value::from(number),
        2 => Value::from(i64::from_ne_bytes(number.to_ne_bytes())),
        3 => Value::from(f64::from_bits(number)),
        4 => Value::from("\u{1b}[2J\0\u{202e}"),
        5 => Value::from(number.to_string()),
        6 => Value::Array(vec![value.clone(); random.below(5)]),
        7 => Value::Object(Map::from_iter([("name".to_owned(), value.clone())])),
        _ => Value::from(random.below(4)),
    }
}
