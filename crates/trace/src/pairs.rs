// SPDX-License-Identifier: Apache-2.0
/*!
Counts of the sends and receives that were written before a segment of the block ring.

A reader of a recording's end adds those that it reads itself. The counts include overwritten
records. A writer that has more than [`MOST_PAIRS`] pairs stops writing counts.
*/

use crate::fields::{Field, record_fields};
use crate::kind::EventKind;
use crate::start::P2p;
use crate::string::StrId;
use crate::words::{MAX_WORDS, PAIR_COUNT, Pack, Packed, START, Sink};
use std::collections::BTreeMap;

/// Most pairs that a writer counts, which bounds its memory and the counts in each segment.
pub const MOST_PAIRS: usize = 2048;

/// The code of a start of [`EventKind::P2p`].
pub(crate) const P2P_START: u8 = START + EventKind::P2p as u8;

record_fields! {
    /// Number of sends to (or receives from) one other rank of a communicator whose starts are in
    /// blocks before this record's.
    #[derive(Default)]
    pub struct PairCount: 4 {
        /// The latest time stamp of those blocks, in ticks.
        ticks: u64 = (1, 0),
        /// [`crate::Comm::index`].
        comm: u16 = (0, 16),
        /// The other rank.
        peer: i32 = (0, 32),
        /// NCCL's function, which distinguishes sends from receives.
        func: StrId = (2, 0),
        /// Their number.
        count: u64 = (3, 0),
    }
}

impl PairCount {
    /// Packs the record.
    #[must_use]
    pub fn pack(&self) -> Packed {
        let mut words = [PAIR_COUNT.into(), 0, 0, 0];
        self.set(&mut words);
        Pack.put(words)
    }
}

/// The key of a count: communicator, function and other rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Pair {
    comm: u16,
    func: StrId,
    peer: i32,
}

/// How many of the latest entries of a block are searched for an equal pair.
const NEAR: usize = 8;

/// The sends and receives of one block.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPairs(Vec<(Pair, u32)>);

impl BlockPairs {
    /// Counts a start of the code [`P2P_START`].
    #[cold]
    #[inline(never)]
    pub(crate) fn add(&mut self, record: &[u64]) {
        let mut words = [0; MAX_WORDS];
        words.iter_mut().zip(record).for_each(|(word, &of)| *word = of);
        let P2p { peer, func, .. } = P2p::get(&words);
        let pair = Pair { comm: u16::take(&words, 0, 16), func, peer };
        match self.0.iter_mut().rev().take(NEAR).find(|(of, _)| *of == pair) {
            Some((_, count)) => *count += 1,
            None => self.0.push((pair, 1)),
        }
    }

    /// Merges the entries of equal pairs, because they stay in memory until their block is written.
    pub(crate) fn merge(&mut self) {
        if self.0.len() <= NEAR {
            return;
        }
        self.0.sort_unstable();
        self.0.dedup_by(|(later, more), (pair, count)| {
            let is_same = later == pair;
            *count += if is_same { *more } else { 0 };
            is_same
        });
    }

    /// Removes all entries and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Bytes of memory of the entries.
    pub(crate) const fn bytes(&self) -> usize {
        self.0.len() * size_of::<(Pair, u32)>()
    }
}

/// The sends and receives of all blocks so far; `None` after more than [`MOST_PAIRS`] pairs.
#[derive(Clone, Debug)]
pub(crate) struct AllPairs(Option<BTreeMap<Pair, u64>>);

impl Default for AllPairs {
    fn default() -> AllPairs {
        AllPairs(Some(BTreeMap::new()))
    }
}

impl AllPairs {
    pub(crate) fn add(&mut self, block: &BlockPairs) {
        let Some(all) = &mut self.0 else { return };
        for &(pair, count) in &block.0 {
            *all.entry(pair).or_default() += u64::from(count);
        }
        if all.len() > MOST_PAIRS {
            self.0 = None;
        }
    }

    /// The words of the [`PairCount`] records; empty if there are no pairs, or too many.
    pub(crate) fn words(&self, ticks: u64) -> Vec<u64> {
        let all = self.0.iter().flatten();
        let record = |(&Pair { comm, func, peer }, &count)| {
            PairCount { ticks, comm, peer, func, count }.pack()
        };
        all.flat_map(|one| record(one).words().to_vec()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Handle;
    use crate::codec::{Encoder, MAX_BLOCK, META_LANE};
    use crate::layout::SEGMENT;
    use crate::record::{Detail, Record, Start};

    fn send(comm: u16, peer: i32, func: StrId) -> Packed {
        let detail = Detail::P2p(P2p { peer, func, ..P2p::default() });
        Start { ticks: 1, comm, handle: Handle(1), parent: Handle::NULL, detail }.pack()
    }

    fn counts(all: &AllPairs) -> Vec<PairCount> {
        let words = all.words(9);
        let records = words.chunks(4).map(|words| Record::unpack(words).unwrap());
        let count = |record| match record {
            Record::PairCount(count) => count,
            other => panic!("{other:?}"),
        };
        records.map(count).collect()
    }

    #[test]
    fn each_pair_is_counted_apart() {
        let mut block = BlockPairs::default();
        let pairs = [(0, 1, 3), (0, 1, 3), (0, -1, 3), (0, 1, 4), (7, 1, 3), (0, 1, 3)];
        for (comm, peer, func) in pairs {
            block.add(send(comm, peer, StrId(func)).words());
        }
        block.merge();
        assert_eq!(block.0.len(), 4);
        let mut all = AllPairs::default();
        assert_eq!(counts(&all), []);
        all.add(&block);
        all.add(&block);
        let of =
            |comm, func, peer, count| PairCount { ticks: 9, comm, func: StrId(func), peer, count };
        assert_eq!(counts(&all), [of(0, 3, -1, 2), of(0, 3, 1, 6), of(0, 4, 1, 2), of(7, 3, 1, 2)]);
        block.clear();
        assert_eq!(block.bytes(), 0);
    }

    /// For any order and number of pairs.
    #[test]
    fn a_block_has_each_pair_once() {
        for peers in [1, 2, 7, 8, 9, 100] {
            let mut block = BlockPairs::default();
            for peer in (0..peers).chain((0..peers).rev()).chain(0..peers) {
                block.add(send(0, peer, StrId(3)).words());
            }
            block.merge();
            assert_eq!(block.0.len(), usize::try_from(peers).unwrap());
            assert!(block.0.iter().all(|&(_, count)| count == 3), "{peers}: {block:?}");
        }
    }

    #[test]
    fn too_many_pairs_are_given_up_for_good() {
        let (mut all, mut block) = (AllPairs::default(), BlockPairs::default());
        let most = i32::try_from(MOST_PAIRS).unwrap();
        (0..most).for_each(|peer| block.add(send(0, peer, StrId(3)).words()));
        all.add(&block);
        assert_eq!(counts(&all).len(), MOST_PAIRS);
        let mut one = BlockPairs::default();
        one.add(send(1, 0, StrId(3)).words());
        all.add(&one);
        all.add(&one);
        assert_eq!(counts(&all), []);
    }

    /// The counts begin a segment, and the block for which the segment was begun follows them.
    #[test]
    fn the_largest_counts_leave_room_for_the_largest_block() {
        let wild = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let pair = |at: u64| {
            let [a, b, c, d, ..] = wild(at).to_le_bytes();
            let peer = if at.is_multiple_of(2) {
                i32::MAX - i32::from(d)
            } else {
                i32::from(d) - i32::MAX
            };
            Pair { comm: u16::from_le_bytes([a, b]), func: StrId(u16::from(c) << 8), peer }
        };
        let all = (0..MOST_PAIRS as u64).map(|at| (pair(at), wild(at) | 1 << 63));
        let words = AllPairs(Some(all.collect())).words(u64::MAX);
        let mut rest = &words[..];
        let block = Encoder::default().encode(META_LANE, &mut 0, &mut rest).unwrap();
        assert!(rest.is_empty() && block.len() > 15 * MOST_PAIRS, "{}", block.len());
        assert!((block.len() + MAX_BLOCK) as u64 <= SEGMENT);
    }
}
