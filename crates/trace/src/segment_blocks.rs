// SPDX-License-Identifier: Apache-2.0
/*!
Iterates over the intact blocks of a segment.

A block's place follows from the length of the one before it. After a damaged block the next one is
found by its magic number and checksum; blocks begin at multiples of eight bytes. It must have the
same epoch, because blocks of an older use of the segment may follow the newest block.
*/

use crate::bytes::u32_at;
use crate::codec::{self, BadBlock, BlockHeader, HEADER, MAGIC};

/// Most places after a damaged block that have the magic number and are checked. More of them are
/// not accidental.
const MOST_TRIES: usize = 64;
/// Alignment of blocks, in bytes.
const ALIGNMENT: usize = 8;

/// An item of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// A block: its offset, its length, its header, and its payload.
    Block(usize, usize, BlockHeader, &'a [u8]),
    /// The offset and the number of bytes that cannot be read.
    Torn(usize, usize),
}

/// Goes through the bytes of a segment.
#[derive(Debug)]
pub(crate) struct SegmentBlocks<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The epoch of the segment, once it is known.
    epoch: Option<u32>,
}

impl<'a> SegmentBlocks<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> SegmentBlocks<'a> {
        SegmentBlocks { bytes, at: 0, epoch: None }
    }

    fn block(&mut self, at: usize, (header, len, payload): codec::Parsed<'a>) -> Found<'a> {
        self.epoch = Some(header.epoch);
        self.at = at + len;
        Found::Block(at, len, header, payload)
    }

    /// The offset of the next intact block of this epoch after `at`.
    fn next_intact(&self, at: usize, epoch: Option<u32>) -> Option<usize> {
        let magic = MAGIC.to_le_bytes();
        let places = (at + ALIGNMENT..self.bytes.len()).step_by(ALIGNMENT);
        let alike = places.filter(|&at| self.bytes[at..].starts_with(&magic)).take(MOST_TRIES);
        let is_next = |&at: &usize| match codec::parse(&self.bytes[at..]) {
            Ok((header, ..)) => epoch.is_none_or(|epoch| header.epoch == epoch),
            Err(_) => false,
        };
        alike.into_iter().find(is_next)
    }
}

impl<'a> Iterator for SegmentBlocks<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        let (at, bytes) = (self.at, self.bytes);
        let rest = bytes.get(at..).filter(|rest| rest.len() >= HEADER)?;
        let is_torn = match codec::parse(rest) {
            Ok(parsed) => {
                let is_same = self.epoch.is_none_or(|epoch| epoch == parsed.0.epoch);
                return is_same.then(|| self.block(at, parsed));
            }
            Err(BadBlock::Torn) => self.epoch.is_none() || u32_at(rest, 12) == self.epoch,
            Err(BadBlock::Absent) => false,
        };
        // The header of a torn first block may still have the epoch.
        let epoch = self.epoch.or_else(|| u32_at(rest, 12).filter(|_| is_torn));
        let next = self.next_intact(at, epoch);
        self.at = next.unwrap_or(bytes.len());
        (is_torn || next.is_some()).then(|| Found::Torn(at, self.at - at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of 96 bytes with this number and epoch.
    fn block(number: u64, epoch: u32) -> Vec<u8> {
        let mut bytes = vec![0; 96];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&96_u32.to_le_bytes());
        bytes[12..16].copy_from_slice(&epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&number.to_le_bytes());
        let crc = crc32fast::hash(&bytes[8..]).to_le_bytes();
        bytes[4..8].copy_from_slice(&crc);
        bytes
    }

    /// The numbers of the blocks, and the torn parts.
    fn found(bytes: &[u8]) -> (Vec<u64>, Vec<(usize, usize)>) {
        let (mut numbers, mut torn) = (Vec::new(), Vec::new());
        for one in SegmentBlocks::new(bytes) {
            match one {
                Found::Block(_, _, header, _) => numbers.push(header.seq),
                Found::Torn(at, len) => torn.push((at, len)),
            }
        }
        (numbers, torn)
    }

    #[test]
    fn what_follows_a_damaged_block_is_read() {
        let whole: Vec<u8> = (0..4).flat_map(|number| block(number, 7)).chain([0; 200]).collect();
        assert_eq!(found(&whole), (vec![0, 1, 2, 3], vec![]));
        // Damage in the payload, the checksum, the length and the magic number.
        for at in [80, 5, 9, 2] {
            for hit in 0..3 {
                let mut bytes = whole.clone();
                bytes[96 * hit + at] ^= 0x40;
                let left = (0..4).filter(|&number| number != hit as u64).collect();
                assert_eq!(found(&bytes), (left, vec![(96 * hit, 96)]), "{hit} {at}");
            }
        }
        let mut bytes = whole;
        bytes[96 * 3 + 80] ^= 1;
        assert_eq!(found(&bytes), (vec![0, 1, 2], vec![(288, 296)]), "nothing follows");
    }

    #[test]
    fn an_older_use_of_the_segment_is_not_read() {
        let mut bytes = [block(8, 2), block(1, 1)[40..].to_vec(), block(2, 1)].concat();
        assert_eq!(found(&bytes), (vec![8], vec![]));
        bytes[80] ^= 1;
        assert_eq!(found(&bytes), (vec![], vec![(0, bytes.len())]));
    }

    #[test]
    fn forged_blocks_do_not_take_for_ever() {
        let forged = [MAGIC.to_le_bytes(), [0; 4]].concat().repeat(1 << 15);
        let begun = std::time::Instant::now();
        assert_eq!(found(&forged), (vec![], vec![(0, 1 << 18)]));
        assert!(begun.elapsed().as_secs() < 5);
    }
}
