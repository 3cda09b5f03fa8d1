// SPDX-License-Identifier: Apache-2.0
/*!
Blocks: a checksummed header and the records of one lane, delta-coded.

Header, 64 bytes little-endian: `magic:u32 crc:u32 len:u32 epoch:u32 seq:u64 lane:u16 0:u16
records:u32 first_pos:u64 next_pos:u64 first_ticks:u64 0:u64`. The checksum covers everything after
itself, `len` bytes from the header's start, padding to eight bytes included.

Payload, for each record: its code, `a|b` of word 0 as exclusive-or with the previous record of the
same code, `c` and then every further word as the zigzag difference to that record's, LEB128. Word
1 (ticks) is the difference to the previous record of any code. Words that are two 32-bit halves
([`crate::record::schema`]) are coded as two numbers. Predictions start at 0 (ticks: `first_ticks`).
*/

use crate::crc::crc32;
use crate::define::{u16_at, u32_at, u64_at};
use crate::kind::{EventKind, KINDS};
use crate::record::{self, MAX_WORDS, Record, schema};
use crate::schema::{MOST_WORDS, Schema};
use std::collections::HashMap;

/// "NSB1".
pub const MAGIC: u32 = u32::from_le_bytes(*b"NSB1");
/// Bytes of a block's header.
pub const HEADER: usize = 64;
/// Lane number of blocks that hold the recording's own records (clock comparisons).
pub const META_LANE: u16 = u16::MAX;
/// Words that [`Encoder::encode`] takes at most, so that a block stays below 192 KiB.
pub const MAX_BLOCK_WORDS: usize = 16 * 1024;

/// The header of a block, but for magic, checksum and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockHeader {
    /// Use of the segment that the block lies in.
    pub epoch: u32,
    /// Number of the block in the recording.
    pub seq: u64,
    /// The lane its records come from, or [`META_LANE`].
    pub lane: u16,
    /// How many records it holds.
    pub records: u32,
    /// Lane position (in words) of the first record.
    pub first_pos: u64,
    /// Lane position after the last record.
    pub next_pos: u64,
    /// Where the first record's ticks are counted from.
    pub first_ticks: u64,
}

/// Records by kind of event.
pub type KindCounts = [u64; KINDS];

/// What kind of event a record of these words belongs to; `None` for the recording's own.
#[must_use]
pub fn kind_of(words: &[u64]) -> Option<EventKind> {
    let code = words.first()?.to_le_bytes()[0];
    match code {
        record::STOP | record::STATE => Some(crate::Handle(*words.get(2)?).kind()),
        record::STEP | record::STEP_LONG => Some(EventKind::ProxyStep),
        code if code >= record::START => Some(EventKind::from_nibble(u64::from(code))),
        _ => None,
    }
}

/// Makes blocks. Keeps its buffer between blocks.
#[derive(Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
    counts: KindCounts,
}

impl Encoder {
    /// Encodes whole records from `words` (at most [`MAX_BLOCK_WORDS`]) into a block, which
    /// [`Encoder::block`] then holds, and returns how many words went in. Words that no schema
    /// knows end the block: the second number tells how many were skipped as garbage.
    pub fn encode(&mut self, mut header: BlockHeader, words: &[u64]) -> (usize, usize) {
        self.out.clear();
        self.out.resize(HEADER, 0);
        self.counts = [0; KINDS];
        header.first_ticks = words.get(1).copied().unwrap_or(0);
        let mut predict = Prediction::new(header.first_ticks);
        let mut bytes = Bytes { bytes: [0; RECORD], len: 0 };
        let (mut at, mut garbage, mut records) = (0, 0, 0);
        while let Some(&head) = words.get(at) {
            let [code, ..] = head.to_le_bytes();
            let Some((len, halves)) = schema(code) else {
                garbage = words.len() - at;
                break;
            };
            let Some(record) = words.get(at..at + len) else { break };
            if let Some(kind) = kind_of(record) {
                self.counts[kind.index()] += 1;
            }
            bytes.len = 0;
            predict.encode(record, halves, &mut bytes);
            self.out.extend_from_slice(bytes.bytes.get(..bytes.len).unwrap_or(&[]));
            at += len;
            records += 1;
        }
        header.records = records;
        header.next_pos = header.first_pos.wrapping_add((at + garbage) as u64);
        self.seal(&header);
        (at, garbage)
    }

    fn seal(&mut self, header: &BlockHeader) {
        self.out.resize(self.out.len().next_multiple_of(8), 0);
        let len = u32::try_from(self.out.len()).unwrap_or(u32::MAX);
        let mut h = [0u8; HEADER];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(to) = h.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        };
        put(0, &MAGIC.to_le_bytes());
        put(8, &len.to_le_bytes());
        put(12, &header.epoch.to_le_bytes());
        put(16, &header.seq.to_le_bytes());
        put(24, &header.lane.to_le_bytes());
        put(28, &header.records.to_le_bytes());
        put(32, &header.first_pos.to_le_bytes());
        put(40, &header.next_pos.to_le_bytes());
        put(48, &header.first_ticks.to_le_bytes());
        if let Some(to) = self.out.get_mut(..HEADER) {
            to.copy_from_slice(&h);
        }
        let crc = crc32(self.out.get(8..).unwrap_or(&[]));
        if let Some(to) = self.out.get_mut(4..8) {
            to.copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// The last block's bytes.
    #[must_use]
    pub fn block(&self) -> &[u8] {
        &self.out
    }

    /// Records of the last block by kind of event.
    #[must_use]
    pub fn counts(&self) -> &KindCounts {
        &self.counts
    }
}

/// Why bytes are not a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadBlock {
    /// Nothing was written here.
    Absent,
    /// It begins like a block, but the checksum or the length is wrong: torn.
    Torn,
}

/// A block's header, total length and payload.
///
/// # Errors
/// [`BadBlock`] if `bytes` do not begin with a whole block.
pub fn parse(bytes: &[u8]) -> Result<(BlockHeader, usize, &[u8]), BadBlock> {
    if u32_at_or_zero(bytes, 0) != MAGIC {
        return Err(BadBlock::Absent);
    }
    let len = u32_at_or_zero(bytes, 8) as usize;
    let whole = bytes.get(..len).filter(|b| b.len() >= HEADER).ok_or(BadBlock::Torn)?;
    if crc32(&whole[8..]) != u32_at_or_zero(whole, 4) {
        return Err(BadBlock::Torn);
    }
    let header = BlockHeader {
        epoch: u32_at_or_zero(whole, 12),
        seq: u64_at(whole, 16).unwrap_or(0),
        lane: u16_at(whole, 24).unwrap_or(0),
        records: u32_at_or_zero(whole, 28),
        first_pos: u64_at(whole, 32).unwrap_or(0),
        next_pos: u64_at(whole, 40).unwrap_or(0),
        first_ticks: u64_at(whole, 48).unwrap_or(0),
    };
    Ok((header, len, &whole[HEADER..]))
}

fn u32_at_or_zero(bytes: &[u8], at: usize) -> u32 {
    u32_at(bytes, at).unwrap_or(0)
}

/// Decodes the records of a block's payload; ends early where the payload does not decode. What
/// the file declares and this version does not know comes as [`Record::Unknown`].
#[derive(Debug)]
pub struct Decoder<'a> {
    payload: &'a [u8],
    left: u32,
    schema: &'a Schema,
    predict: Prediction,
    /// What is expected of records that are longer than any of this version, or have other codes.
    others: HashMap<u8, [u64; MOST_WORDS]>,
}

impl<'a> Decoder<'a> {
    /// A decoder of the block that [`parse`] returned.
    #[must_use]
    pub fn new(header: &BlockHeader, payload: &'a [u8], schema: &'a Schema) -> Decoder<'a> {
        let (left, predict) = (header.records, Prediction::new(header.first_ticks));
        Decoder { payload, left, schema, predict, others: HashMap::new() }
    }

    #[cold]
    fn other(&mut self, code: u8, (len, halves): (usize, u32)) -> Option<Record> {
        let before = self.others.entry(code).or_insert([0; MOST_WORDS]);
        let ticks = &mut self.predict.ticks;
        take_words(&mut self.payload, (code, halves), before.get_mut(..len)?, ticks)?;
        let ticks = before[1];
        Some(Record::unpack(before).unwrap_or(Record::Unknown { ticks, code }))
    }
}

impl Iterator for Decoder<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        self.left = self.left.checked_sub(1)?;
        let (&code, payload) = self.payload.split_first()?;
        self.payload = payload;
        let (len, halves) = self.schema.of(code)?;
        if len > MAX_WORDS || usize::from(code) >= record::CODES {
            return self.other(code, (len, halves));
        }
        let before = &mut self.predict.by_code[usize::from(code)];
        let ticks = &mut self.predict.ticks;
        take_words(&mut self.payload, (code, halves), before.get_mut(..len)?, ticks)?;
        let ticks = before[1];
        Some(Record::unpack(before).unwrap_or(Record::Unknown { ticks, code }))
    }
}

/// What the next record is expected to hold.
#[derive(Debug)]
struct Prediction {
    ticks: u64,
    by_code: [[u64; MAX_WORDS]; 32],
}

const CODE_MASK: u8 = 31;
const AB: u64 = 0xff_ffff;

impl Prediction {
    fn new(first_ticks: u64) -> Prediction {
        Prediction { ticks: first_ticks, by_code: [[0; MAX_WORDS]; 32] }
    }

    #[inline(always)]
    fn encode(&mut self, record: &[u64], halves: u16, to: &mut Bytes) {
        let &[head, ticks, ref words @ ..] = record else { return };
        let code = head.to_le_bytes()[0];
        let previous = &mut self.by_code[usize::from(code & CODE_MASK)];
        let [head_before, _, before @ ..] = previous;
        to.put(u64::from(code));
        to.put((head >> 8 ^ *head_before >> 8) & AB);
        to.put_delta32(head >> 32, *head_before >> 32);
        to.put_delta(ticks, self.ticks);
        (*head_before, self.ticks) = (head, ticks);
        let mut halves = halves >> 2;
        for (&word, before) in words.iter().zip(before) {
            if halves & 1 != 0 {
                to.put_delta32(word, *before);
                to.put_delta32(word >> 32, *before >> 32);
            } else {
                to.put_delta(word, *before);
            }
            *before = word;
            halves >>= 1;
        }
    }
}

/// Takes a record's words behind its code, over those of the one before it with that code.
#[inline(always)]
fn take_words(
    from: &mut &[u8],
    (code, halves): (u8, u32),
    words: &mut [u64],
    ticks: &mut u64,
) -> Option<()> {
    let [head, time, rest @ ..] = words else { return None };
    let ab = (take(from)? ^ *head >> 8) & AB;
    let c = take_delta32(from, *head >> 32)?;
    *head = u64::from(code) | ab << 8 | c << 32;
    *ticks = take_delta(from, *ticks)?;
    *time = *ticks;
    let mut halves = halves >> 2;
    for word in rest {
        *word = if halves & 1 != 0 {
            take_delta32(from, *word)? | take_delta32(from, *word >> 32)? << 32
        } else {
            take_delta(from, *word)?
        };
        halves >>= 1;
    }
    Some(())
}

/// Bytes that the longest record may take, code and word 0 included.
const RECORD: usize = 1 + 10 * (2 * MAX_WORDS + 1);

/// A record's bytes as they come.
struct Bytes {
    bytes: [u8; RECORD],
    len: usize,
}

impl Bytes {
    /// LEB128. Most values take one byte or two.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    fn put(&mut self, value: u64) {
        if value < 1 << 7 {
            self.push([value as u8]);
        } else if value < 1 << 14 {
            self.push([value as u8 | 0x80, (value >> 7) as u8]);
        } else if value < 1 << 21 {
            self.push([value as u8 | 0x80, (value >> 7) as u8 | 0x80, (value >> 14) as u8]);
        } else {
            self.put_long(value);
        }
    }

    #[inline(always)]
    fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(to) = self.bytes.get_mut(self.len..self.len + N) {
            to.copy_from_slice(&bytes);
        }
        self.len += N;
    }

    #[inline(never)]
    fn put_long(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push([value.to_le_bytes()[0] | 0x80]);
            value >>= 7;
        }
        self.push([value.to_le_bytes()[0]]);
    }

    #[inline(always)]
    fn put_delta(&mut self, value: u64, before: u64) {
        let delta = value.wrapping_sub(before).cast_signed();
        self.put((delta << 1 ^ delta >> 63).cast_unsigned());
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    fn put_delta32(&mut self, value: u64, before: u64) {
        let delta = (value as u32).wrapping_sub(before as u32).cast_signed();
        self.put(u64::from((delta << 1 ^ delta >> 31).cast_unsigned()));
    }
}

fn take(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take_delta(from: &mut &[u8], before: u64) -> Option<u64> {
    let z = take(from)?;
    Some(before.wrapping_add(z >> 1 ^ (z & 1).wrapping_neg()))
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
fn take_delta32(from: &mut &[u8], before: u64) -> Option<u64> {
    let z = take(from)? as u32;
    Some(u64::from((before as u32).wrapping_add(z >> 1 ^ (z & 1).wrapping_neg())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Coll, Detail, KernelCh, Packed, Start, Step};
    use crate::{Handle, State, StrId};
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = Packed> {
        let ticks = 0u64..1 << 50;
        prop_oneof![
            (ticks.clone(), any::<u64>()).prop_map(|(t, h)| Record::stop(t, Handle(h))),
            (ticks.clone(), any::<u64>(), any::<u8>(), any::<u32>(), any::<u64>())
                .prop_map(|(t, h, s, x, a)| Record::state(t, Handle(h), State(s), x, a)),
            (ticks.clone(), any::<(u8, u16, u32, u32, u32)>(), any::<[u64; 3]>(), any::<u64>())
                .prop_map(|(ticks, (flags, repeats, step, op_ref, size), states, end)| {
                    let states = states.map(|d| d >> (end & 63));
                    Step { ticks, flags, repeats, step, op_ref, size, states, end: end >> 20 }
                        .pack()
                }),
            (ticks.clone(), any::<[u64; 7]>(), any::<[u16; 5]>(), any::<(i32, u8, bool)>())
                .prop_map(|(ticks, w, s, (root, channels, symmetric))| {
                    let coll = Coll {
                        func: StrId(s[0]),
                        datatype: StrId(s[1]),
                        algo: StrId(s[2]),
                        proto: StrId(s[3]),
                        seq: w[0],
                        count: w[1],
                        root,
                        channels,
                        warps: channels,
                        rank: root,
                        group: Handle(w[2]),
                        variant: StrId(s[4]),
                        symmetric,
                        user_tag: w[3],
                    };
                    let (handle, parent) = (Handle(w[4]), Handle(w[5]));
                    Start { ticks, comm: s[4], handle, parent, detail: Detail::Coll(coll) }.pack()
                }),
            (ticks, any::<[u64; 3]>(), any::<(u16, u8)>()).prop_map(
                |(ticks, w, (comm, channel))| {
                    let detail = Detail::KernelCh(KernelCh { channel, ptimer: w[0] });
                    Start { ticks, comm, handle: Handle(w[1]), parent: Handle(w[2]), detail }.pack()
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn decode_is_the_inverse_of_encode(records in prop::collection::vec(any_record(), 0..60)) {
            let words: Vec<u64> = records.iter().flat_map(|r| r.words().to_vec()).collect();
            let header = BlockHeader { seq: 3, lane: 2, first_pos: 70, ..BlockHeader::default() };
            let mut encoder = Encoder::default();
            prop_assert_eq!(encoder.encode(header, &words), (words.len(), 0));
            let (read, len, payload) = parse(encoder.block()).unwrap();
            prop_assert_eq!(len, encoder.block().len());
            prop_assert_eq!((read.seq, read.lane), (3, 2));
            prop_assert_eq!(read.next_pos, 70 + words.len() as u64);
            let decoded: Vec<Record> = Decoder::new(&read, payload, &Schema::default()).collect();
            let expected: Vec<Record> =
                records.iter().map(|r| Record::unpack(r.words()).unwrap()).collect();
            prop_assert_eq!(decoded, expected);
        }

        #[test]
        fn damage_is_noticed(records in prop::collection::vec(any_record(), 1..20),
                             at: prop::sample::Index, flip in 1u8..) {
            let words: Vec<u64> = records.iter().flat_map(|r| r.words().to_vec()).collect();
            let mut encoder = Encoder::default();
            encoder.encode(BlockHeader::default(), &words);
            let mut bytes = encoder.block().to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(parse(&bytes).is_err());
        }

        #[test]
        fn garbage_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..300), n in 0u32..40
        ) {
            let header = BlockHeader { records: n, ..BlockHeader::default() };
            let decoded = Decoder::new(&header, &bytes, &Schema::default()).count();
            prop_assert!(decoded <= n as usize);
            prop_assert!(parse(&bytes).is_err());
        }
    }

    #[test]
    fn unknown_words_end_a_block() {
        let mut words = Record::stop(5, Handle(9)).words().to_vec();
        words.extend([0xff, 1, 2]);
        let mut encoder = Encoder::default();
        assert_eq!(encoder.encode(BlockHeader::default(), &words), (3, 3));
    }
}
