// SPDX-License-Identifier: Apache-2.0
/*!
Blocks: a checksummed header and the records of one lane, delta-coded.

Header, 64 bytes little-endian: `magic:u32 crc:u32 len:u32 epoch:u32 seq:u64 lane:u16 0:u16
records:u32 first_pos:u64 next_pos:u64 first_ticks:u64 last_ticks:u64`. The checksum covers
everything after itself, `len` bytes from the header's start, padding to eight bytes included.

The payload has network steps as `step_code` encodes them, beginning with a byte from `0x7f` on.
Every other record is its code followed by numbers: `a|b` of word 0 as exclusive-or with the
previous record of the same code; `c` as the zigzag difference to that record's; word 1 (ticks) as
the difference to the previous record of any code; and every further word as the difference to the
previous record of the same code. Words that are two 32-bit halves ([`crate::record::schema`]) are
two numbers. Predictions start at 0 (ticks: `first_ticks`). The numbers follow a mask of those that
are not 0, and only these are stored; everything is LEB128.
*/

use crate::bytes::{
    In, Out, high, low, u16_at, u32_at, u64_at, unzigzag, unzigzag32, zigzag, zigzag32,
};
use crate::kind::{EventKind, KINDS};
use crate::pairs::{BlockPairs, P2P_START};
use crate::record::{self, MAX_WORDS, Record, STEP, schema};
use crate::schema::{MOST_WORDS, Schema};
use crate::step::Step;
use crate::step_code::{CORRECTIONS, STEP_WORDS, Steps};
use crc32fast::hash as crc32;
use std::collections::HashMap;

/// "NSB1".
pub const MAGIC: u32 = u32::from_le_bytes(*b"NSB1");
/// Bytes of a block's header.
pub const HEADER: usize = 64;
/// Lane number of blocks that hold the recording's own records (clock comparisons,
/// counts of sends and receives).
pub const META_LANE: u16 = u16::MAX;
/// Most words of a block, so that it stays below 192 KiB.
pub const MAX_BLOCK_WORDS: usize = 16 * 1024;

/// The header of a block without magic, checksum and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockHeader {
    /// Number of the use of the segment: how many segments the writer had begun before.
    pub epoch: u32,
    /// Number of the block in the recording.
    pub seq: u64,
    /// The lane its records come from, or [`META_LANE`].
    pub lane: u16,
    /// Its number of records.
    pub records: u32,
    /// Lane position (in words) of the first record.
    pub first_pos: u64,
    /// Lane position after the last record.
    pub next_pos: u64,
    /// The base of the first record's ticks.
    pub first_ticks: u64,
    /// The latest time stamp of its records; 0 if the writer did not store it.
    pub last_ticks: u64,
}

/// Records by kind of event.
pub type KindCounts = [u64; KINDS];

/// The kind of event that a record of these words belongs to; `None` for records that the recorder
/// writes about itself (clock comparisons, marks, heartbeats).
#[must_use]
pub fn kind_of(words: &[u64]) -> Option<EventKind> {
    let code = words.first()?.to_le_bytes()[0];
    match code {
        record::STOP | record::STATE => Some(crate::Handle(*words.get(2)?).kind()),
        record::STEP | record::STEP_LONG => Some(EventKind::ProxyStep),
        code if code >= record::START => {
            Some(EventKind::from_low_bits(u64::from(code - record::START)))
        }
        _ => None,
    }
}

/// Most bytes of a block: a record takes at most eleven for each of its words.
pub(crate) const MAX_BLOCK: usize = HEADER + 11 * MAX_BLOCK_WORDS;
/// Bytes after a block that [`Out`] may overwrite.
const BEHIND: usize = 8;

/// An encoded block before it has a place in the recording.
#[derive(Clone, Debug, Default)]
pub struct Block {
    bytes: Vec<u8>,
    /// The lane its records come from, or [`META_LANE`].
    pub lane: u16,
    /// Records in it by kind of event.
    pub counts: KindCounts,
    /// Its sends and receives.
    pub(crate) pairs: BlockPairs,
    /// The latest time stamp of its records.
    pub(crate) last_ticks: u64,
    /// Number of words after an unknown code, which are left out; such words end the block.
    pub garbage: u64,
    /// Lane position after its last word.
    pub end: u64,
}

impl Block {
    /// Sets the number of the block and the epoch of its segment, and returns the bytes to write.
    pub fn placed(&mut self, number: u64, epoch: u32) -> &[u8] {
        put(&mut self.bytes, 12, &epoch.to_le_bytes());
        put(&mut self.bytes, 16, &number.to_le_bytes());
        let crc = crc32(self.bytes.get(8..).unwrap_or(&[]));
        put(&mut self.bytes, 4, &crc.to_le_bytes());
        &self.bytes
    }

    /// Its number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it has a header")]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory of its content.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.bytes.len() + self.pairs.bytes()
    }
}

/// Most blocks whose memory is kept for reuse: more than the drain thread makes in one round.
pub const SPARE: usize = 8;
/// Capacity in bytes of a block of a busy lane, so that a longer block fits when the memory is
/// reused.
const ROOM: usize = 64 << 10;

/// Encodes records into blocks.
#[derive(Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
    /// Written blocks whose memory is reused: fresh memory costs a page fault for each 4 KiB.
    spare: Vec<Block>,
}

impl Encoder {
    /// Keeps written blocks for their memory; at most [`SPARE`].
    pub fn reuse(&mut self, written: impl IntoIterator<Item = Block>) {
        let room = SPARE.saturating_sub(self.spare.len());
        self.spare.extend(written.into_iter().take(room));
    }

    /// Encodes the whole records at the start of `words`, which begin at position `from` of `lane`,
    /// into a block, and advances `words` and `from` past them. `None` if no whole record is left.
    pub fn encode(&mut self, lane: u16, from: &mut u64, words: &mut &[u64]) -> Option<Block> {
        // Even an empty block costs some KiB of predictions.
        if words.is_empty() {
            return None;
        }
        let part = words.get(..MAX_BLOCK_WORDS).unwrap_or(words);
        let first_ticks = part.get(1).copied().unwrap_or(0);
        let header = BlockHeader { lane, first_pos: *from, first_ticks, ..BlockHeader::default() };
        let (block, used) = self.block(header, part);
        if used == 0 {
            self.reuse([block]);
            return None;
        }
        *words = words.get(used..).unwrap_or(&[]);
        *from = from.wrapping_add(used as u64);
        Some(block)
    }

    /// Encodes whole records; returns the block and the number of words that it covers.
    fn block(&mut self, mut header: BlockHeader, words: &[u64]) -> (Block, usize) {
        if self.out.is_empty() {
            self.out = vec![0; MAX_BLOCK + BEHIND];
        }
        let mut counts = [0; KINDS];
        let (mut steps, mut others) =
            (Steps::new(header.first_ticks), Prediction::new(header.first_ticks));
        let Block { mut bytes, mut pairs, .. } = self.spare.pop().unwrap_or_default();
        pairs.clear();
        let mut out = Out::new(&mut self.out, HEADER);
        let (mut at, mut garbage, mut step_count, mut other_count) = (0, 0, 0, 0);
        while let Some(rest) = words.get(at..)
            && let Some(&head) = rest.first()
        {
            let [code, ..] = head.to_le_bytes();
            if code == STEP {
                let run = steps.encode_run(rest, &mut out, &mut header.last_ticks);
                if run == 0 {
                    break;
                }
                step_count += run;
                at += run * STEP_WORDS;
                continue;
            }
            let Some((len, halves)) = schema(code) else {
                garbage = rest.len();
                break;
            };
            let Some(record) = rest.get(..len) else { break };
            if let Some(kind) = kind_of(record) {
                counts[kind.index()] += 1;
            }
            if code == P2P_START {
                pairs.add(record);
            }
            others.encode(record, halves, &mut out);
            header.last_ticks = header.last_ticks.max(record.get(1).copied().unwrap_or(0));
            other_count += 1;
            at += len;
        }
        let length = out.at;
        counts[EventKind::ProxyStep.index()] += step_count as u64;
        header.records = u32::try_from(step_count + other_count).unwrap_or(u32::MAX);
        header.next_pos = header.first_pos.wrapping_add((at + garbage) as u64);
        pairs.merge();
        bytes.clear();
        if length > ROOM / 8 {
            bytes.reserve(ROOM);
        }
        bytes.extend_from_slice(self.out.get(..length).unwrap_or(&[]));
        bytes.resize(length.next_multiple_of(8), 0);
        put_header(&mut bytes, &header);
        let BlockHeader { lane, next_pos: end, last_ticks, .. } = header;
        let garbage_words = garbage as u64;
        let block = Block { bytes, lane, counts, pairs, last_ticks, garbage: garbage_words, end };
        (block, at + garbage)
    }
}

fn put_header(block: &mut [u8], header: &BlockHeader) {
    let len = u32::try_from(block.len()).unwrap_or(u32::MAX);
    put(block, 0, &[0; HEADER]);
    put(block, 0, &MAGIC.to_le_bytes());
    put(block, 8, &len.to_le_bytes());
    put(block, 24, &header.lane.to_le_bytes());
    put(block, 28, &header.records.to_le_bytes());
    put(block, 32, &header.first_pos.to_le_bytes());
    put(block, 40, &header.next_pos.to_le_bytes());
    put(block, 48, &header.first_ticks.to_le_bytes());
    put(block, 56, &header.last_ticks.to_le_bytes());
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = to.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

/// Why bytes are not a whole block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadBlock {
    /// The bytes do not begin like a block.
    Absent,
    /// The bytes begin like a block, but its checksum or length is wrong.
    Torn,
}

/// A block's header, its length in bytes, and its payload.
pub type Parsed<'a> = (BlockHeader, usize, &'a [u8]);

/// A block's header, total length and payload.
///
/// # Errors
/// [`BadBlock`] if `bytes` do not begin with a whole block.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, BadBlock> {
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
        last_ticks: u64_at(whole, 56).unwrap_or(0),
    };
    Ok((header, len, &whole[HEADER..]))
}

fn u32_at_or_zero(bytes: &[u8], at: usize) -> u32 {
    u32_at(bytes, at).unwrap_or(0)
}

/// Decodes the records of a block's payload, up to the first that cannot be decoded. Records that
/// the file declares and this version does not know are [`Record::Unknown`].
#[derive(Debug)]
pub struct Decoder<'a> {
    from: In<'a>,
    left: u32,
    schema: &'a Schema,
    steps: Box<Steps>,
    others: Box<Prediction>,
    /// Predictions for records with codes or lengths that this version does not have.
    strange: HashMap<u8, [u64; MOST_WORDS]>,
}

impl<'a> Decoder<'a> {
    /// A decoder of the block that [`parse`] returned.
    #[must_use]
    pub fn new(header: &BlockHeader, payload: &'a [u8], schema: &'a Schema) -> Decoder<'a> {
        let (from, left) = (In::new(payload), header.records);
        let steps = Box::new(Steps::new(header.first_ticks));
        let others = Box::new(Prediction::new(header.first_ticks));
        Decoder { from, left, schema, steps, others, strange: HashMap::new() }
    }

    fn other(&mut self) -> Option<Record> {
        let code = self.from.byte();
        let (len, halves) = self.schema.of(code)?;
        let Prediction { ticks, by_code } = &mut *self.others;
        // As long as the longest record: fields that the writer did not have are 0.
        let words: &mut [u64] = match by_code.get_mut(usize::from(code)) {
            Some(words) if len <= MAX_WORDS => words,
            _ => self.strange.entry(code).or_insert([0; MOST_WORDS]),
        };
        take_words(&mut self.from, (code, halves), words.get_mut(..len)?, ticks)?;
        let ticks = words[1];
        Some(Record::unpack(words).unwrap_or(Record::Unknown { ticks, code }))
    }

    /// Number of records that the block's header announces and that are not decoded; at the end of
    /// the iteration, those that cannot be decoded.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }
}

impl Iterator for Decoder<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let left = self.left.checked_sub(1)?;
        let [first, ..] = self.from.peek(0).to_le_bytes();
        let record = if first >= CORRECTIONS {
            Record::Step(Step::of_short(&self.steps.decode(&mut self.from)))
        } else {
            self.other()?
        };
        if self.from.is_beyond() {
            return None;
        }
        self.left = left;
        Some(record)
    }
}

/// The predicted words of the next record.
#[derive(Debug)]
struct Prediction {
    ticks: u64,
    by_code: [[u64; MAX_WORDS]; record::CODES],
}

/// Bits of word 0 between the code and `c`.
const AB: u64 = 0xff_ffff;
/// Numbers of a record: two of word 0, and two of a word at most.
const NUMBERS: usize = 2 * MAX_WORDS;

impl Prediction {
    fn new(first_ticks: u64) -> Prediction {
        Prediction { ticks: first_ticks, by_code: [[0; MAX_WORDS]; record::CODES] }
    }

    #[inline(always)]
    fn encode(&mut self, record: &[u64], halves: u16, out: &mut Out<'_>) {
        let &[head, ticks, ref words @ ..] = record else { return };
        let [code, ..] = head.to_le_bytes();
        let Some(previous) = self.by_code.get_mut(usize::from(code)) else { return };
        let [head_before, _, before @ ..] = previous;
        let mut numbers = Numbers::default();
        numbers.add((head >> 8 ^ *head_before >> 8) & AB);
        numbers.add(zigzag32(high(head).wrapping_sub(high(*head_before))).into());
        numbers.add(zigzag(ticks.wrapping_sub(self.ticks)));
        (*head_before, self.ticks) = (head, ticks);
        let mut halves = halves >> 2;
        for (&word, before) in words.iter().zip(before) {
            if halves & 1 != 0 {
                numbers.add(zigzag32(low(word).wrapping_sub(low(*before))).into());
                numbers.add(zigzag32(high(word).wrapping_sub(high(*before))).into());
            } else {
                numbers.add(zigzag(word.wrapping_sub(*before)));
            }
            *before = word;
            halves >>= 1;
        }
        out.word(code.into(), 1);
        numbers.put(out);
    }
}

/// The numbers of one record; a 0 takes one bit of the mask.
#[derive(Default)]
struct Numbers {
    other: [u64; NUMBERS],
    len: usize,
    mask: u64,
}

impl Numbers {
    #[inline(always)]
    fn add(&mut self, number: u64) {
        if let Some(to) = self.other.get_mut(self.len) {
            *to = number;
        }
        self.mask |= u64::from(number != 0) << self.len;
        self.len += 1;
    }

    #[inline(always)]
    fn put(&self, out: &mut Out<'_>) {
        out.number(self.mask);
        let mut mask = self.mask;
        while mask != 0 {
            let number = self.other.get(mask.trailing_zeros() as usize);
            out.number(number.copied().unwrap_or(0));
            mask &= mask - 1;
        }
    }
}

/// Decodes a record's words after its code into `words`, which hold the previous record of that
/// code.
#[inline(always)]
fn take_words(
    from: &mut In<'_>,
    (code, halves): (u8, u32),
    words: &mut [u64],
    ticks: &mut u64,
) -> Option<()> {
    let [head, time, rest @ ..] = words else { return None };
    let mut mask = from.number();
    let mut take = || {
        let number = if mask & 1 != 0 { from.number() } else { 0 };
        mask >>= 1;
        number
    };
    let ab = (take() ^ *head >> 8) & AB;
    let c = high(*head).wrapping_add(unzigzag32(low(take())));
    *head = u64::from(code) | ab << 8 | u64::from(c) << 32;
    *ticks = ticks.wrapping_add(unzigzag(take()));
    *time = *ticks;
    let mut halves = halves >> 2;
    for word in rest {
        *word = if halves & 1 != 0 {
            let first = low(*word).wrapping_add(unzigzag32(low(take())));
            let second = high(*word).wrapping_add(unzigzag32(low(take())));
            u64::from(first) | u64::from(second) << 32
        } else {
            word.wrapping_add(unzigzag(take()))
        };
        halves >>= 1;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Coll, Detail, KernelCh, Packed, Start, Step};
    use crate::{Handle, State};
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
            (ticks.clone(), any::<[u64; MAX_WORDS]>(), any::<u16>()).prop_map(
                |(ticks, words, comm)| {
                    let (handle, parent) = (Handle(words[2]), Handle(words[3]));
                    let detail = Detail::Coll(Coll::get(&words));
                    Start { ticks, comm, handle, parent, detail }.pack()
                }
            ),
            (ticks, any::<[u64; 3]>(), any::<(u16, u8)>()).prop_map(
                |(ticks, w, (comm, channel))| {
                    let detail = Detail::KernelCh(KernelCh { channel, ptimer: w[0] });
                    Start { ticks, comm, handle: Handle(w[1]), parent: Handle(w[2]), detail }.pack()
                }
            ),
        ]
    }

    /// One block of all words, which lie in lane 2 from position 70 on.
    fn block_of(words: &[u64]) -> Block {
        let (mut from, mut rest) = (70, words);
        let block = Encoder::default().encode(2, &mut from, &mut rest).unwrap_or_else(|| {
            let header = BlockHeader { lane: 2, first_pos: 70, ..BlockHeader::default() };
            Encoder::default().block(header, &[]).0
        });
        assert_eq!((from, from - 70), (block.end, (words.len() - rest.len()) as u64));
        block
    }

    proptest! {
        #[test]
        fn decode_is_the_inverse_of_encode(records in prop::collection::vec(any_record(), 0..60)) {
            let words: Vec<u64> = records.iter().flat_map(|r| r.words().to_vec()).collect();
            let mut block = block_of(&words);
            let bytes = block.placed(3, 9);
            let (read, len, payload) = parse(bytes).unwrap();
            prop_assert_eq!(len, bytes.len());
            prop_assert_eq!((read.seq, read.epoch, read.lane), (3, 9, 2));
            prop_assert_eq!(read.next_pos, 70 + words.len() as u64);
            let decoded: Vec<Record> = Decoder::new(&read, payload, &Schema::default()).collect();
            let expected: Vec<Record> =
                records.iter().map(|r| Record::unpack(r.words()).unwrap()).collect();
            let last = expected.iter().map(Record::ticks).max();
            prop_assert_eq!(read.last_ticks, last.unwrap_or(0));
            prop_assert_eq!(decoded, expected);
        }

        /// Any words may be in a lane, not only those that callbacks write.
        #[test]
        fn any_words_come_back(
            records in
                prop::collection::vec((0..record::CODES, any::<[u64; MAX_WORDS]>(), 0..64), 0..60),
            ops in 1u64..200,
        ) {
            let mut words: Vec<u64> = Vec::new();
            for (code, mut record, by) in records {
                let code = u8::try_from(code).unwrap();
                let Some((len, _)) = schema(code) else { continue };
                record.iter_mut().for_each(|word| *word >>= by);
                // Mostly steps of a few operations.
                let code = if code % 3 == 0 { STEP } else { code };
                let len = if code == STEP { 5 } else { len };
                record[0] = record[0] & !0xff | u64::from(code);
                record[2] = if code == STEP { record[2] % ops * 3 } else { record[2] };
                words.extend(&record[..len]);
            }
            let mut block = block_of(&words);
            let (read, _, payload) = parse(block.placed(0, 0)).unwrap();
            let schema = Schema::default();
            let mut decoded = Decoder::new(&read, payload, &schema);
            let mut rest = &words[..];
            while let Some(&head) = rest.first() {
                let (len, _) = record::schema(head.to_le_bytes()[0]).unwrap();
                prop_assert_eq!(decoded.next(), Record::unpack(&rest[..len]));
                rest = &rest[len..];
            }
            prop_assert_eq!(decoded.next(), None);
        }

        #[test]
        fn damage_is_noticed(records in prop::collection::vec(any_record(), 1..20),
                             at: prop::sample::Index, flip in 1u8..) {
            let words: Vec<u64> = records.iter().flat_map(|r| r.words().to_vec()).collect();
            let mut bytes = block_of(&words).placed(0, 0).to_vec();
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
            let steps: Vec<u8> = bytes.iter().map(|byte| byte | 0x7f).collect();
            let decoded = Decoder::new(&header, &steps, &Schema::default()).count();
            prop_assert!(decoded <= n as usize);
            prop_assert!(parse(&bytes).is_err());
        }
    }

    /// A block of any records fits into [`MAX_BLOCK`].
    #[test]
    fn the_worst_words_fit_a_block() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state ^ state << 32
        };
        for code in 0..record::CODES {
            let code = u8::try_from(code).unwrap();
            let Some((len, _)) = schema(code) else { continue };
            let mut words: Vec<u64> = (0..MAX_BLOCK_WORDS).map(|_| random()).collect();
            words
                .chunks_mut(len)
                .for_each(|record| record[0] = record[0] & !0xff | u64::from(code));
            let mut block = block_of(&words);
            assert_eq!(block.end, 70 + (words.len() / len * len) as u64);
            let (header, _, payload) = parse(block.placed(0, 0)).unwrap();
            let schema = Schema::default();
            let mut decoded = Decoder::new(&header, payload, &schema);
            for record in words.chunks_exact(len) {
                assert_eq!(decoded.next(), Record::unpack(record));
            }
        }
    }

    #[test]
    fn the_memory_of_a_written_block_leaves_no_trace_in_the_next() {
        let long: Vec<u64> = (0..100)
            .flat_map(|at| Record::stop(at, Handle(u64::MAX / (at + 1))).words().to_vec())
            .collect();
        let short = Record::stop(5, Handle(9));
        let mut encoder = Encoder::default();
        let encode = |encoder: &mut Encoder, words: &[u64]| {
            encoder.encode(2, &mut 70, &mut &words[..]).expect("there are words")
        };
        let mut fresh = encode(&mut encoder, short.words());
        let written = encode(&mut encoder, &long);
        let memory = written.bytes.as_ptr();
        encoder.reuse((0..2 * SPARE).map(|_| written.clone()));
        assert_eq!(encoder.spare.len(), SPARE);
        encoder.spare.clear();
        encoder.reuse([written]);
        let mut again = encode(&mut encoder, short.words());
        assert_eq!(again.bytes.as_ptr(), memory);
        assert_eq!(again.placed(1, 2), fresh.placed(1, 2));
        assert_eq!((again.counts, again.end), (fresh.counts, fresh.end));
    }

    #[test]
    fn a_record_that_is_cut_off_stays() {
        let words: Vec<u64> =
            (0..2).flat_map(|at| Record::stop(at, Handle(9)).words().to_vec()).collect();
        let whole = words.len() / 2;
        let (mut from, mut rest) = (70, words.get(..words.len() - 1).unwrap());
        let mut encoder = Encoder::default();
        let block = encoder.encode(2, &mut from, &mut rest).expect("there is a whole record");
        assert_eq!(
            (block.end, from, rest),
            (70 + whole as u64, block.end, &words[whole..words.len() - 1])
        );
        assert!(encoder.encode(2, &mut from, &mut rest).is_none());
        assert!(encoder.encode(2, &mut from, &mut &[][..]).is_none());
    }

    #[test]
    fn unknown_words_end_a_block() {
        let mut words = Record::stop(5, Handle(9)).words().to_vec();
        words.extend([0xff, 1, 2]);
        let block = block_of(&words);
        assert_eq!((block.garbage, block.end), (3, 76));
    }
}
