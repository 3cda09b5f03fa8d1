// SPDX-License-Identifier: Apache-2.0
/*!
Reads pickled data (protocols 0 to 5) without running anything in it.

Only the opcodes that make plain data are known: numbers, texts, lists, tuples, sets, dictionaries,
and the memo that shares them. Whatever names a class or a function is refused, as is what would
unfold to more than `MAX_NODES` values, or to texts of more than `MAX_TEXT` bytes. Of the stacks,
which share their frames, one line is kept (the user's). The opcodes are those of Python's
`pickletools`.
*/

use super::frames::{self, UsersLine, Whose};
use serde_json::{Map, Number, Value};
use std::collections::HashMap;

/// Maximum number of values that a pickle may expand to.
const MAX_NODES: usize = 5_000_000;
/// Maximum total length of the expanded texts, bytes: the memo shares one text among many places.
const MAX_TEXT: usize = 128 << 20;
/// Maximum depth of nesting.
const MAX_DEPTH: usize = 64;

/// A value. Containers hold positions of other nodes, so that shared nodes stay shared.
#[derive(Debug, Clone)]
enum Node {
    Plain(Value),
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
}

#[derive(Debug, Default)]
struct Machine<'a> {
    rest: &'a [u8],
    nodes: Vec<Node>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: HashMap<u64, usize>,
}

/// The remaining limits of the expansion.
#[derive(Debug)]
struct Budget {
    nodes: usize,
    text: usize,
    /// Whose code a file is, by the node of its name: stacks share these.
    files: HashMap<usize, Whose>,
}

impl Budget {
    fn spend(&mut self, node: &Node) -> Result<(), String> {
        let text = match node {
            Node::Plain(Value::String(text)) => text.len(),
            _ => 0,
        };
        let (nodes, text) = (self.nodes.checked_sub(1), self.text.checked_sub(text));
        self.nodes = nodes.ok_or("pickle: unfolds to too many values")?;
        self.text = text.ok_or("pickle: unfolds to too much text")?;
        Ok(())
    }
}

/// Decodes a pickle; keys of dictionaries become texts.
///
/// # Errors
/// A sentence: what is truncated, unknown or refused.
pub fn read(bytes: &[u8]) -> Result<Value, String> {
    let (machine, root, mut left) = Machine::run(bytes)?;
    machine.unfold(root, 0, &mut left)
}

/// Decodes the pickle of a dump. Its entries are handed over one at a time, and are not in the
/// value.
///
/// # Errors
/// Those of [`read`].
pub(super) fn read_dump(bytes: &[u8], entry: &mut dyn FnMut(&Value)) -> Result<Value, String> {
    let (mut machine, root, mut left) = Machine::run(bytes)?;
    for item in machine.take_list(root, "entries") {
        entry(&machine.unfold(item, 2, &mut left)?);
    }
    machine.unfold(root, 0, &mut left)
}

/// True if `bytes` may be a pickle: protocol 2 or later, or an earlier one that contains a dict.
#[must_use]
pub fn looks_like(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 1..=5, ..] | [b'}', b'q' | b'p', ..] | [b'(', b'd', ..])
}

impl<'a> Machine<'a> {
    /// Executes a pickle. Returns the root of the result, and the limits of its expansion.
    fn run(bytes: &'a [u8]) -> Result<(Machine<'a>, usize, Budget), String> {
        let mut machine = Machine { rest: bytes, ..Machine::default() };
        while machine.step()? {}
        let root = machine.pop()?;
        Ok((machine, root, Budget { nodes: MAX_NODES, text: MAX_TEXT, files: HashMap::new() }))
    }

    /// Takes the items out of a list that a dictionary has under this key.
    fn take_list(&mut self, dict: usize, key: &str) -> Vec<usize> {
        let Some(Node::Dict(fields)) = self.nodes.get(dict) else { return Vec::new() };
        let field = fields.iter().rfind(|(name, _)| self.text_of(*name) == key);
        match field.map(|&(_, list)| list).and_then(|list| self.nodes.get_mut(list)) {
            Some(Node::List(items)) => std::mem::take(items),
            _ => Vec::new(),
        }
    }

    fn text_of(&self, node: usize) -> &str {
        match self.nodes.get(node) {
            Some(Node::Plain(Value::String(text))) => text,
            _ => "",
        }
    }

    /// Executes one opcode; false at the end of the pickle.
    fn step(&mut self) -> Result<bool, String> {
        let code = self.u8()?;
        match code {
            b'.' => return Ok(false),
            0x80 => {
                let protocol = self.u8()?;
                if protocol > 5 {
                    return Err(format!("pickle protocol {protocol} is not known (0 to 5 are)"));
                }
            }
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.above_mark()?),
            b'2' => {
                let top = *self.stack.last().ok_or("pickle: nothing to copy")?;
                self.stack.push(top);
            }
            b'N' => self.push(Value::Null),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' | b'K' | b'M' | 0x8a | 0x8b | b'I' | b'L' | b'F' | b'G' => self.number(code)?,
            b'X' | b'T' | b'U' | b'B' | b'C' | b'S' | b'V' | 0x8c | 0x8d | 0x8e => {
                self.text(code)?;
            }
            b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j' => self.memo(code)?,
            _ => self.container(code)?,
        }
        if self.nodes.len() > MAX_NODES {
            return Err(format!("pickle: more than {MAX_NODES} values"));
        }
        Ok(true)
    }

    fn container(&mut self, code: u8) -> Result<(), String> {
        match code {
            b']' | b')' | 0x8f => self.add(Node::List(Vec::new())),
            b'}' => self.add(Node::Dict(Vec::new())),
            b'l' | b't' | 0x91 => {
                let items = self.above_mark()?;
                self.add(Node::List(items));
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let at = self.stack.len().checked_sub(count).ok_or("pickle: short tuple")?;
                let items = self.stack.split_off(at);
                self.add(Node::List(items));
            }
            b'd' => {
                let pairs = pairs(&self.above_mark()?)?;
                self.add(Node::Dict(pairs));
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.above_mark()?;
                self.extend(items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(vec![(key, value)])?;
            }
            b'u' => {
                let pairs = pairs(&self.above_mark()?)?;
                self.set(pairs)?;
            }
            b'c' | b'i' | b'o' | b'b' | b'R' | b'P' | b'Q' | 0x81..=0x84 | 0x92 | 0x93 => {
                return Err("pickle: it wants to run code, which is refused; only plain data, as \
                            PyTorch's Flight Recorder writes it, is read"
                    .into());
            }
            other => return Err(format!("pickle: opcode {other:#04x} is not plain data")),
        }
        Ok(())
    }

    fn number(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'K' => Value::from(self.u8()?),
            b'M' => Value::from(u16::from_le_bytes(self.array()?)),
            b'J' => Value::from(i32::from_le_bytes(self.array()?)),
            0x8a => {
                let len = usize::from(self.u8()?);
                long(self.take(len)?)
            }
            0x8b => {
                let len = self.length(4)?;
                long(self.take(len)?)
            }
            b'G' => float(f64::from_be_bytes(self.array()?)),
            b'F' => float(self.line()?.trim().parse().map_err(|_| "pickle: bad number")?),
            _ => match self.line()?.trim().trim_end_matches('L') {
                "00" => Value::Bool(false),
                "01" => Value::Bool(true),
                digits => Value::from(digits.parse::<i64>().map_err(|_| "pickle: bad number")?),
            },
        };
        self.push(value);
        Ok(())
    }

    fn text(&mut self, code: u8) -> Result<(), String> {
        let len = match code {
            b'X' | b'T' | b'B' => self.length(4)?,
            b'U' | b'C' | 0x8c => self.length(1)?,
            0x8d | 0x8e => self.length(8)?,
            _ => {
                // The quotes of protocol 0; escape sequences are not decoded.
                let line = self.line()?.trim_matches(['\'', '"']).to_owned();
                self.push(Value::String(line));
                return Ok(());
            }
        };
        let text = String::from_utf8_lossy(self.take(len)?).into_owned();
        self.push(Value::String(text));
        Ok(())
    }

    fn memo(&mut self, code: u8) -> Result<(), String> {
        let key = match code {
            b'q' | b'h' => self.length(1)? as u64,
            b'r' | b'j' => self.length(4)? as u64,
            0x94 => self.memo.len() as u64,
            _ => self.line()?.trim().parse().map_err(|_| "pickle: bad name in the memo")?,
        };
        if matches!(code, b'g' | b'h' | b'j') {
            let node = *self.memo.get(&key).ok_or("pickle: nothing under that name")?;
            self.stack.push(node);
        } else {
            let top = *self.stack.last().ok_or("pickle: nothing to keep")?;
            self.memo.insert(key, top);
        }
        Ok(())
    }

    fn add(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn push(&mut self, value: Value) {
        self.add(Node::Plain(value));
    }

    fn pop(&mut self) -> Result<usize, String> {
        self.stack.pop().ok_or_else(|| "pickle: the stack is empty".into())
    }

    fn above_mark(&mut self) -> Result<Vec<usize>, String> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or("pickle: no mark")?))
    }

    fn extend(&mut self, items: Vec<usize>) -> Result<(), String> {
        match self.stack.last().and_then(|&top| self.nodes.get_mut(top)) {
            Some(Node::List(list)) => list.extend(items),
            _ => return Err("pickle: no list to add to".into()),
        }
        Ok(())
    }

    fn set(&mut self, pairs: Vec<(usize, usize)>) -> Result<(), String> {
        match self.stack.last().and_then(|&top| self.nodes.get_mut(top)) {
            Some(Node::Dict(dict)) => dict.extend(pairs),
            _ => return Err("pickle: no dictionary to add to".into()),
        }
        Ok(())
    }

    fn unfold(&self, node: usize, depth: usize, left: &mut Budget) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err(format!("pickle: nested more than {MAX_DEPTH} deep"));
        }
        let node = self.nodes.get(node).ok_or("pickle: a value is missing")?;
        left.spend(node)?;
        Ok(match node {
            Node::Plain(value) => value.clone(),
            Node::List(items) => {
                let items = items.iter().map(|&item| self.unfold(item, depth + 1, left));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Node::Dict(pairs) => {
                let mut map = Map::new();
                for &(key, value) in pairs {
                    let key = match self.unfold(key, depth + 1, left)? {
                        Value::String(text) => text,
                        // Python allows no such keys, and each nesting level would double the size
                        // of the one below.
                        Value::Object(_) => return Err("pickle: a dictionary is a key".into()),
                        other => other.to_string(),
                    };
                    let value = match key == frames::KEY {
                        true => self.users_line(value, left)?,
                        false => self.unfold(value, depth + 1, left)?,
                    };
                    map.insert(key, value);
                }
                Value::Object(map)
            }
        })
    }

    /// The user's line of a stack; null if it is none.
    fn users_line(&self, stack: usize, left: &mut Budget) -> Result<Value, String> {
        let mut line = UsersLine::default();
        let number = |node: usize| match self.nodes.get(node) {
            Some(Node::Plain(value)) => value.as_u64().unwrap_or(0),
            _ => 0,
        };
        let Some(Node::List(frames)) = self.nodes.get(stack) else { return Ok(Value::Null) };
        for &frame in frames {
            let Some(Node::Dict(fields)) = self.nodes.get(frame) else { continue };
            let field = |name: &str| fields.iter().find(|(key, _)| self.text_of(*key) == name);
            let of = |name: &str| field(name).map_or("", |(_, value)| self.text_of(*value));
            let Some(&(_, file)) = field("filename") else { continue };
            let path = self.text_of(file);
            let whose = *left.files.entry(file).or_insert_with(|| frames::whose(path));
            if line.wants(whose, path) {
                let at = field("line").map_or(0, |(_, value)| number(*value));
                line.add(whose, of("name"), path, at);
            }
            if whose == Whose::User {
                break;
            }
        }
        let value = line.text().map_or(Value::Null, Value::String);
        left.spend(&Node::Plain(value.clone()))?;
        Ok(value)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or("pickle: cut off")?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| "pickle: cut off".into())
    }

    fn u8(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    /// A little-endian length of this many bytes.
    fn length(&mut self, bytes: usize) -> Result<usize, String> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|_| "pickle: impossible length".into())
    }

    fn line(&mut self) -> Result<String, String> {
        let end = self.rest.iter().position(|&b| b == b'\n').ok_or("pickle: cut off")?;
        let line = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.take(1)?;
        Ok(line)
    }
}

fn pairs(items: &[usize]) -> Result<Vec<(usize, usize)>, String> {
    if !items.len().is_multiple_of(2) {
        return Err("pickle: a key without a value".into());
    }
    Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

fn float(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// A little-endian number in two's complement, rounded if it does not fit 64 bits.
fn long(bytes: &[u8]) -> Value {
    let is_negative = bytes.last().is_some_and(|&b| b & 0x80 != 0);
    if bytes.len() <= 8 {
        let mut wide = [if is_negative { 0xff } else { 0 }; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        return Value::from(i64::from_le_bytes(wide));
    }
    if let [low @ .., 0] = bytes
        && let Ok(low) = <[u8; 8]>::try_from(low)
    {
        return Value::from(u64::from_le_bytes(low));
    }
    let magnitude = bytes.iter().rev().fold(0.0, |sum, &byte| sum * 256.0 + f64::from(byte));
    let bits = i32::try_from(bytes.len() * 8).unwrap_or(i32::MAX);
    float(if is_negative { magnitude - 2f64.powi(bits) } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// `pickle.dumps({"a": [1, -2, 2**40, 1.5, None, True], 3: ("x", "x")}, protocol)`.
    const SAMPLES: [&[u8]; 3] = [
        b"(dp0\nVa\np1\n(lp2\nI1\naI-2\naL1099511627776L\naF1.5\naNaI01\nasI3\n(Vx\np3\ng3\n\
          tp4\ns.",
        b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\
          \x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00N\x88eK\x03X\x01\x00\x00\x00xq\x03h\x03\x86q\
          \x04u.",
        b"\x80\x05\x95\x2d\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\
          \xff\x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00N\x88eK\x03\x8c\x01x\
          \x94h\x03\x86\x94u.",
    ];

    #[test]
    fn the_same_data_comes_out_of_every_protocol() {
        let expected = json!({"a": [1, -2, 1u64 << 40, 1.5, null, true], "3": ["x", "x"]});
        for sample in SAMPLES {
            assert_eq!(read(sample), Ok(expected.clone()));
            assert!(looks_like(sample));
        }
    }

    #[test]
    fn the_entries_of_a_dump_are_handed_over_and_not_kept() {
        let dump = json!({"entries": [{"a": 1}, {"a": 2}], "version": "2"});
        let (pickle, text) = (crate::fr_out::pickle(&dump), dump.to_string());
        let mut seen = Vec::new();
        let rest = json!({"entries": [], "version": "2"});
        assert_eq!(read_dump(&pickle, &mut |entry| seen.push(entry.clone())), Ok(rest.clone()));
        let mut add = |entry: &Value| seen.push(entry.clone());
        assert_eq!(crate::input::json::parse_dump(text.as_bytes(), &mut add), Ok(rest));
        assert_eq!(seen, [1, 2, 1, 2].map(|a| json!({"a": a})));
    }

    #[test]
    fn what_would_run_code_is_refused() {
        let attacks: [&[u8]; 3] = [
            b"cos\nsystem\n(S'echo hi'\ntR.",
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02hi\x85R.",
            b"\x80\x02]\x81.",
        ];
        for attack in attacks {
            assert!(read(attack).unwrap_err().contains("run code"));
        }
    }

    #[test]
    fn a_small_pickle_cannot_become_a_huge_value() {
        // Each list contains the previous one twice.
        let mut bomb = b"\x80\x02]q\x00".to_vec();
        for level in 0..40u8 {
            bomb.extend([b'0', b']', b'(', b'h', level, b'h', level, b'e', b'q', level + 1]);
        }
        bomb.push(b'.');
        assert!(read(&bomb).unwrap_err().contains("too many values"));
        // A list that contains one text many times.
        let mut texts = b"\x80\x02X\x00\x00\x10\x00".to_vec();
        texts.resize(texts.len() + (1 << 20), b'x');
        texts.extend(b"q\x000](");
        (0..=MAX_TEXT >> 20).for_each(|_| texts.extend(b"h\x00"));
        texts.extend(b"e.");
        assert!(read(&texts).unwrap_err().contains("too much text"));
        // Dictionaries as keys, each nested in the next.
        let keys = [&b"\x80\x02"[..], &b"}".repeat(50), &b"Ns".repeat(49), b"."].concat();
        assert!(read(&keys).unwrap_err().contains("is a key"));
        // A list that contains itself.
        assert!(read(b"\x80\x02]q\x00h\x00a.").unwrap_err().contains("nested"));
    }

    #[test]
    fn long_numbers() {
        assert_eq!(long(&[]), json!(0));
        assert_eq!(long(&[0xff]), json!(-1));
        assert_eq!(long(&[0xff; 8]), json!(-1));
        assert_eq!(long(&[255, 255, 255, 255, 255, 255, 255, 255, 0]), json!(u64::MAX));
        assert_eq!(long(&[0, 0, 0, 0, 0, 0, 0, 0, 0xff]), json!(-(2f64.powi(64))));
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(
            which in 0usize..3,
            changes in proptest::collection::vec((0usize..120, any::<u8>()), 0..6),
            cut in 0usize..130,
        ) {
            let mut bytes = SAMPLES[which].to_vec();
            for (at, byte) in changes {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            bytes.truncate(cut);
            let _ = read(&bytes);
        }

        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
