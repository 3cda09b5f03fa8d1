// SPDX-License-Identifier: Apache-2.0
//! Indented JSON, byte for byte as serde_json writes it. The beginning of a line is one piece here,
//! and not one for each level: a report of thousands of ranks has millions of lines.

use serde_json::ser::Formatter;
use std::io::{self, Write};

/// The beginning of a line with room for many levels.
const LINE: &[u8; 66] = b",\n                                                                ";
/// Spaces of a level.
const STEP: usize = 2;

/// The place in the document.
#[derive(Debug, Default)]
pub(crate) struct Indented {
    depth: usize,
    /// The array or object that ends next has a value.
    has_value: bool,
}

impl Indented {
    /// Begins a line, after a comma unless it is the first of an array or object.
    fn line(&self, out: &mut (impl Write + ?Sized), is_first: bool) -> io::Result<()> {
        let mut spaces = STEP * self.depth;
        let most = LINE.len() - 2;
        out.write_all(&LINE[usize::from(is_first)..2 + spaces.min(most)])?;
        while spaces > most {
            spaces -= most;
            out.write_all(&LINE[2..2 + spaces.min(most)])?;
        }
        Ok(())
    }

    fn begin(&mut self, out: &mut (impl Write + ?Sized), with: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        out.write_all(with)
    }

    fn end(&mut self, out: &mut (impl Write + ?Sized), with: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.line(out, true)?;
        }
        out.write_all(with)
    }
}

impl Formatter for Indented {
    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.line(out, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.line(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;
    use serde_json::{Serializer, Value, json};

    #[test]
    fn it_is_what_serde_json_writes() {
        let mut deep = json!([{}, [], "a\nb", null]);
        for _ in 0..70 {
            deep = json!({"a": 1, "b": [deep, {"c": []}, 2.5], "d": {}});
        }
        // Empty ones after full ones, and the other way round.
        let flat: Value = json!([[], [1], [], {"a": {}}, {}]);
        for value in [&deep, &flat, &json!(7), &json!({})] {
            let mut out = Vec::new();
            value
                .serialize(&mut Serializer::with_formatter(&mut out, Indented::default()))
                .unwrap();
            assert_eq!(
                String::from_utf8(out).unwrap(),
                serde_json::to_string_pretty(value).unwrap()
            );
        }
    }
}
