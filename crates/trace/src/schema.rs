// SPDX-License-Identifier: Apache-2.0
/*!
A recording's declaration of its own records, so that a reader of another version can skip records
that it does not know.

A writer declares each of its records at the file's beginning: code, name, number of words, which
words are two numbers, and the fields. From it a reader knows the length of a record. It ignores
fields after those that it knows; fields that an older writer does not have are 0.
*/

use crate::bytes::{u16_at, u32_at};
use crate::record::{self, FieldLayout, Layout, Meaning};
use crate::step_code::CORRECTIONS;
use std::sync::{Arc, LazyLock};

/// Most words of a record, in any version.
pub const MOST_WORDS: usize = 32;

/// A record as the writer of a file declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// The lowest byte of its first word.
    pub code: u8,
    /// Its name.
    pub name: String,
    /// How many words it has; at most [`MOST_WORDS`].
    pub words: u8,
    /// Mask of the words that are coded as two 32-bit numbers: bit i for word i.
    pub halves: u32,
    /// The fields, without code, time stamp and the fields of all starts.
    pub fields: Vec<Field>,
}

/// A field of a record as the writer of a file declares it; see [`FieldLayout`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// The word that it begins in.
    pub word: u8,
    /// The lowest of its bits there.
    pub shift: u8,
    /// Its number of bits.
    pub bits: u8,
    /// Its number of words.
    pub words: u8,
    /// The meaning of the bits: index of a variant of [`Meaning`]; other numbers are of a later
    /// version.
    pub meaning: u8,
}

/// The declarations of this version, with their bytes. They are shared, because the many recordings
/// of a run have the same ones.
static OWN: LazyLock<Vec<(Vec<u8>, Arc<Declaration>)>> = LazyLock::new(|| {
    let with_bytes = |declaration: Declaration| {
        let mut body = Vec::new();
        declaration.encode(&mut body);
        (body, Arc::new(declaration))
    };
    declarations().map(with_bytes).collect()
});

/// The lengths of the records that this version writes.
static OWN_LENGTHS: LazyLock<Arc<Lengths>> = LazyLock::new(|| {
    let mut lengths = [(0, 0); 256];
    for (_, own) in OWN.iter() {
        lengths[usize::from(own.code)] = (own.words, own.halves);
    }
    Arc::new(lengths)
});

/// For each code, the number of words and the mask of those that are two numbers.
type Lengths = [(u8, u32); 256];

/// The records that this version writes.
pub(crate) fn declarations() -> impl Iterator<Item = Declaration> {
    let known = |code| record::layout(code).map(|(name, layout)| (code, name, layout));
    (0..=u8::MAX).filter_map(known).map(|(code, name, layout)| declare(code, name, &layout))
}

fn declare(code: u8, name: &str, layout: &Layout) -> Declaration {
    let fields = layout.fields.iter().map(Field::of).collect();
    let words = byte(layout.words);
    Declaration { code, name: name.into(), words, halves: layout.halves.into(), fields }
}

impl Field {
    fn of(layout: &FieldLayout) -> Field {
        Field {
            name: layout.name.into(),
            word: byte(layout.word),
            shift: layout.shift.to_le_bytes()[0],
            bits: layout.bits.to_le_bytes()[0],
            words: byte(layout.words),
            meaning: match layout.meaning {
                Meaning::Unsigned => 0,
                Meaning::Signed => 1,
                Meaning::Flag => 2,
                Meaning::Text => 3,
                Meaning::Handle => 4,
            },
        }
    }
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

impl Declaration {
    /// Appends `code:u8 words:u8 fields:u16 halves:u32 name`, then of each field `word:u8 shift:u8
    /// bits:u8 words:u8 meaning:u8 name`; a name is its length in a byte and its bytes.
    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        let fields = u16::try_from(self.fields.len()).unwrap_or(u16::MAX);
        body.extend([self.code, self.words]);
        body.extend(fields.to_le_bytes());
        body.extend(self.halves.to_le_bytes());
        put_name(&self.name, body);
        for field in self.fields.iter().take(fields.into()) {
            body.extend([field.word, field.shift, field.bits, field.words, field.meaning]);
            put_name(&field.name, body);
        }
    }

    /// Decodes what [`Declaration::encode`] wrote; `None` if it is invalid.
    pub(crate) fn read(body: &[u8]) -> Option<Arc<Declaration>> {
        let own = OWN.iter().find(|(bytes, _)| bytes == body);
        own.map(|(_, own)| own.clone()).or_else(|| Declaration::decode(body).map(Arc::new))
    }

    fn decode(body: &[u8]) -> Option<Declaration> {
        let (code, words) = (*body.first()?, *body.get(1)?);
        let (count, halves) = (u16_at(body, 2)?, u32_at(body, 4)?);
        // A record has at least code and time stamp. Codes from 0x7f on are not possible, because
        // such bytes begin network steps in blocks.
        let is_code = (1..CORRECTIONS).contains(&code);
        if !is_code || !(2..=MOST_WORDS).contains(&usize::from(words)) {
            return None;
        }
        let mut rest = body.get(8..)?;
        let name = take_name(&mut rest)?;
        let mut fields = Vec::new();
        for _ in 0..count {
            let (&[word, shift, bits, words, meaning], after) = rest.split_first_chunk()?;
            rest = after;
            fields.push(Field { name: take_name(&mut rest)?, word, shift, bits, words, meaning });
        }
        Some(Declaration { code, name, words, halves, fields })
    }
}

pub(crate) fn put_name(name: &str, to: &mut Vec<u8>) {
    let bytes = name.as_bytes();
    let bytes = bytes.get(..usize::from(u8::MAX)).unwrap_or(bytes);
    to.push(byte(bytes.len()));
    to.extend(bytes);
}

pub(crate) fn take_name(from: &mut &[u8]) -> Option<String> {
    let (&len, rest) = from.split_first()?;
    let (name, rest) = rest.split_at_checked(len.into())?;
    *from = rest;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// The lengths of a file's records by code: as the file declares them, else as this version writes
/// them.
#[derive(Clone, Debug)]
pub struct Schema {
    lengths: Arc<Lengths>,
}

impl Default for Schema {
    fn default() -> Schema {
        Schema { lengths: OWN_LENGTHS.clone() }
    }
}

impl Schema {
    /// Sets the length of a record from a declaration of the file.
    pub fn declare(&mut self, declaration: &Declaration) {
        let (at, length) = (usize::from(declaration.code), (declaration.words, declaration.halves));
        if self.lengths[at] != length {
            Arc::make_mut(&mut self.lengths)[at] = length;
        }
    }

    /// The number of words of a record with this code, and the mask of those that are two numbers;
    /// `None` for an unknown code.
    #[inline(always)]
    pub(crate) fn of(&self, code: u8) -> Option<(usize, u32)> {
        let (words, halves) = self.lengths[usize::from(code)];
        (words != 0).then_some((words.into(), halves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_come_back_and_torn_ones_do_not() {
        for declaration in declarations() {
            let mut body = Vec::new();
            declaration.encode(&mut body);
            assert_eq!(Declaration::decode(&body), Some(declaration));
            for cut in 0..body.len() {
                assert_eq!(Declaration::decode(&body[..cut]), None);
            }
        }
    }

    #[test]
    fn what_cannot_be_a_record_is_no_declaration() {
        for (code, words) in [(9, 0), (9, 1), (9, 33), (9, 255), (0, 3), (0x7f, 3), (0xff, 3)] {
            let name = String::new();
            let mut body = Vec::new();
            Declaration { code, name, words, halves: 0, fields: vec![] }.encode(&mut body);
            assert_eq!(Declaration::decode(&body), None, "code {code} with {words} words");
        }
    }
}
