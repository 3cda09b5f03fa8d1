// SPDX-License-Identifier: Apache-2.0
/*!
Checks the footer of a Parquet file before the library reads it. `parquet` 60 allocates as many
entries as a forged footer claims, and an allocation that fails ends the process: a column group
with 100 million children took 9 GB (`schema_from_array_helper`).

The footer is `FileMetaData` in Thrift's compact protocol, its length in 4 bytes, and `PAR1`
(<https://github.com/apache/parquet-format>, <https://github.com/apache/thrift>,
`thrift-compact-protocol.md`).
*/

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// The bytes after `FileMetaData`.
const TAIL: u64 = 8;
/// Maximum nesting of values; that of Parquet's metadata is below ten.
const DEPTH: u32 = 32;
/// Types of the compact protocol.
const I32: u8 = 5;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// False if the footer claims more entries of a list, or children of a column group, than it holds.
/// True if there is no footer, of which the library says what is wrong.
///
/// # Errors
/// The file cannot be read.
pub(super) fn is_sound(mut file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    let Some(before) = length.checked_sub(TAIL) else { return Ok(true) };
    file.seek(SeekFrom::Start(before))?;
    let mut tail = [0; 8];
    file.read_exact(&mut tail)?;
    let [a, b, c, d, magic @ ..] = tail;
    let own = u32::from_le_bytes([a, b, c, d]);
    let Some(start) = before.checked_sub(own.into()).filter(|_| &magic == b"PAR1") else {
        return Ok(true);
    };
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(own.into()).read_to_end(&mut bytes)?;
    Ok(metadata(&bytes).is_some())
}

/// Walks through `FileMetaData`; `None` if it claims more than it holds.
fn metadata(bytes: &[u8]) -> Option<()> {
    let mut walk = Walk { rest: bytes };
    walk.fields(|walk, field, kind| match (field, kind) {
        (2, LIST) => walk.schema(),
        _ => walk.value(kind, 1),
    })
}

/// The bytes that are left.
struct Walk<'a> {
    rest: &'a [u8],
}

impl Walk<'_> {
    /// The list of `SchemaElement`, whose field 5 is the number of children.
    fn schema(&mut self) -> Option<()> {
        let (count, kind) = self.list()?;
        for _ in 0..count {
            if kind != STRUCT {
                self.element(kind, 1)?;
                continue;
            }
            self.fields(|walk, field, kind| match (field, kind) {
                (5, I32) => {
                    let children = usize::try_from(walk.signed()?).ok()?;
                    (children < count).then_some(())
                }
                _ => walk.value(kind, 2),
            })?;
        }
        Some(())
    }

    /// The fields of a struct: calls `each` with their number and type.
    fn fields(&mut self, mut each: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut field = 0_i64;
        loop {
            let head = self.byte()?;
            let (step, kind) = (head >> 4, head & 0xf);
            if kind == 0 {
                return Some(());
            }
            field = if step == 0 { self.signed()? } else { field.checked_add(step.into())? };
            each(self, field, kind)?;
        }
    }

    /// A field's value.
    fn value(&mut self, kind: u8, depth: u32) -> Option<()> {
        // The type of a field tells whether it is true.
        if matches!(kind, 1 | 2) { Some(()) } else { self.element(kind, depth) }
    }

    /// An entry of a list, or any value but a field's boolean.
    fn element(&mut self, kind: u8, depth: u32) -> Option<()> {
        if depth > DEPTH {
            return None;
        }
        match kind {
            1..=3 => self.skip(1),
            4..=6 => self.number().map(|_| ()),
            7 => self.skip(8),
            8 => {
                let length = usize::try_from(self.number()?).ok()?;
                self.skip(length)
            }
            9 | 10 => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.element(kind, depth + 1))
            }
            11 => self.map(depth),
            STRUCT => self.fields(|walk, _, kind| walk.value(kind, depth + 1)),
            13 => self.skip(16),
            _ => None,
        }
    }

    fn map(&mut self, depth: u32) -> Option<()> {
        let count = self.number()?;
        if count == 0 {
            return Some(());
        }
        let kinds = self.byte()?;
        (0..count).try_for_each(|_| {
            self.element(kinds >> 4, depth + 1)?;
            self.element(kinds & 0xf, depth + 1)
        })
    }

    /// The head of a list: the number of its entries, each of a byte or more, and their type.
    fn list(&mut self) -> Option<(usize, u8)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.number()? } else { (head >> 4).into() };
        let count = usize::try_from(count).ok().filter(|&count| count <= self.rest.len())?;
        Some((count, head & 0xf))
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// A number of seven bits a byte, the lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.rest = self.rest.get(length..)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footer of a version, and a schema of as many elements, of which the first has a name and
    /// this number of children, zigzag.
    fn footer(elements: u8, children: &[u8]) -> Vec<u8> {
        let first = [&[0x48, 1, b'r', 0x15], children, &[0]].concat();
        let others = vec![0; usize::from(elements) - 1];
        [&[0x15, 2, 0x19, elements << 4 | STRUCT], &first[..], &others, &[0]].concat()
    }

    #[test]
    fn a_group_has_no_more_children_than_there_are_elements() {
        assert_eq!(metadata(&footer(3, &[4])), Some(()));
        assert_eq!(metadata(&footer(3, &[6])), None, "3 children of 3 elements");
        assert_eq!(metadata(&footer(3, &[1])), None, "-1 children");
        assert_eq!(metadata(&footer(3, &[0xfe, 0xff, 0xff, 0xff, 0xf])), None);
    }

    #[test]
    fn lists_have_no_more_entries_than_bytes() {
        // A list of columns' orders (field 7) of 100 structs without fields, of which two follow.
        let list = [0x79, 0xfc, 100, 0, 0, 0];
        assert_eq!(metadata(&list), None);
        assert_eq!(metadata(&[0x79, 0x2c, 0, 0, 0]), Some(()));
        assert_eq!(metadata(&[0x79; 200]), None, "nested too deeply");
        for cut in 0..4 {
            assert_eq!(metadata(&list[..cut]), None);
        }
    }
}
