// SPDX-License-Identifier: Apache-2.0
/*!
Transfers of a link by blocks of time, in bounded memory.

How fast a link is varies over time: the blocks show by how much. Only transfers of about the
largest size count (the same power of two): what a small one takes is the network's latency. All
blocks have the same width, which doubles whenever there are too many.
*/

use crate::onset::Onset;
use ncclscope_limits::slow;
use ncclscope_operations::stats::{count, to_f64, to_u64};
use std::collections::BTreeMap;

/// Maximum number of blocks.
const MOST: usize = 64;
/// Width of the first blocks, as a power of two in ns.
const NARROWEST: u32 = 20;

/// Width of the widest blocks, likewise: damaged times may span more.
const WIDEST: u32 = u64::BITS - 1;

/// The transfers that ended in one block of time.
#[derive(Clone, Copy, PartialEq, Debug)]
struct TimeBlock {
    /// Number of the block: time since 1970 divided by the width.
    number: u64,
    bytes: u64,
    wire_ns: f64,
}

/// Transfers by blocks of time.
#[derive(Clone, PartialEq, Debug)]
pub struct TimeBlocks {
    /// Size class of the transfers, as a power of two in bytes.
    size: u32,
    /// Width of a block, as a power of two in ns.
    width: u32,
    /// The blocks, sorted by number.
    blocks: Vec<TimeBlock>,
}

impl Default for TimeBlocks {
    fn default() -> TimeBlocks {
        TimeBlocks { size: 0, width: NARROWEST, blocks: Vec::new() }
    }
}

impl TimeBlocks {
    /// Adds a transfer of `bytes` that took `wire_ns` and ended at `end_ns` since 1970.
    pub fn add(&mut self, bytes: u32, wire_ns: f64, end_ns: u64) {
        let Some(size) = bytes.checked_ilog2() else { return };
        if self.reach(size) {
            let number = end_ns >> self.width;
            self.put(TimeBlock { number, bytes: bytes.into(), wire_ns });
            self.bound();
        }
    }

    /// Adds the transfers of another value, such as those of another channel of the link.
    pub fn merge(&mut self, other: &TimeBlocks) {
        if other.blocks.is_empty() || !self.reach(other.size) {
            return;
        }
        let mut other = other.clone();
        while self.width < other.width {
            self.widen();
        }
        while other.width < self.width {
            other.widen();
        }
        other.blocks.into_iter().for_each(|block| self.put(block));
        self.bound();
    }

    /// Wire time per byte of each block, ns, in time order.
    pub fn costs(&self) -> impl Iterator<Item = f64> {
        self.blocks.iter().map(|block| block.wire_ns / to_f64(block.bytes.max(1)))
    }

    /// Start of the first block after which most blocks cost more than `limit` per byte, ns since
    /// 1970.
    pub(crate) fn since(&self, limit: f64) -> Option<u64> {
        let blocks: Vec<(u64, bool)> = self
            .blocks
            .iter()
            .zip(self.costs())
            .map(|(block, cost)| (block.number << self.width, cost > limit))
            .collect();
        Onset::first(&blocks, slow::STAYS)
    }

    /// True if transfers of this size count; a larger size class than before replaces the smaller
    /// ones.
    fn reach(&mut self, size: u32) -> bool {
        if size > self.size {
            self.blocks.clear();
            self.size = size;
        }
        size == self.size
    }

    fn put(&mut self, block: TimeBlock) {
        // Transfers come mostly in time order.
        if let Some(last) = self.blocks.last_mut().filter(|last| last.number == block.number) {
            last.bytes += block.bytes;
            last.wire_ns += block.wire_ns;
            return;
        }
        let at = self.blocks.partition_point(|known| known.number < block.number);
        match self.blocks.get_mut(at).filter(|known| known.number == block.number) {
            Some(known) => {
                known.bytes += block.bytes;
                known.wire_ns += block.wire_ns;
            }
            None => self.blocks.insert(at, block),
        }
    }

    fn bound(&mut self) {
        while self.blocks.len() > MOST && self.width < WIDEST {
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.width += 1;
        for block in std::mem::take(&mut self.blocks) {
            self.put(TimeBlock { number: block.number >> 1, ..block });
        }
    }
}

/// For each block of time that one of these has, by how much each took longer than `usual` per
/// byte, as a share of the block.
pub(crate) fn excesses(all: &[TimeBlocks], usual: f64) -> impl Iterator<Item = Vec<f64>> {
    let width = all.iter().map(|of| of.width).max().unwrap_or(NARROWEST);
    let mut blocks: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (at, of) in all.iter().enumerate() {
        for block in &of.blocks {
            let excess = block.wire_ns - usual * to_f64(block.bytes);
            let number = block.number >> (width - of.width);
            let row = blocks.entry(number).or_insert_with(|| vec![0.0; all.len()]);
            row[at] += excess / to_f64(1 << width);
        }
    }
    blocks.into_values()
}

/// What part of each block of time these took, in a run of `span` ns that has at most [`MOST`]
/// blocks; block by block, with the blocks in which none took any.
pub(crate) fn shares(all: &[&TimeBlocks], span: f64) -> Vec<Vec<f64>> {
    let widest = all.iter().map(|of| of.width).max().unwrap_or(NARROWEST);
    let enough = (span.max(1.0) / count(MOST)).log2().ceil();
    let width = widest.max(u32::try_from(to_u64(enough)).unwrap_or(WIDEST)).min(WIDEST);
    let number = |of: &TimeBlocks, block: &TimeBlock| block.number >> (width - of.width);
    let numbers = all.iter().flat_map(|of| of.blocks.iter().map(|block| number(of, block)));
    let first = numbers.min().unwrap_or_default();
    let blocks = usize::try_from(to_u64((span / to_f64(1 << width)).ceil())).unwrap_or(MOST);
    let mut rows = vec![vec![0.0; all.len()]; blocks.min(MOST)];
    for (at, of) in all.iter().enumerate() {
        for block in &of.blocks {
            let place = usize::try_from(number(of, block) - first).unwrap_or(usize::MAX);
            // The run may begin within a block.
            let place = place.min(rows.len().saturating_sub(1));
            rows.iter_mut().skip(place).take(1).for_each(|row| {
                row[at] += block.wire_ns / to_f64(1 << width);
            });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(blocks: &TimeBlocks) -> Vec<f64> {
        blocks.costs().collect()
    }

    #[test]
    fn blocks_are_few_in_order_and_complete() {
        let mut blocks = TimeBlocks::default();
        // In any order: 1,000 transfers over 10 s, the later half at twice the cost.
        for at in (0..1_000u64).map(|at| at * 7 % 1_000) {
            let cost = if at < 500 { 1_000.0 } else { 2_000.0 };
            blocks.add(1_000, cost, at * 10_000_000);
        }
        assert!((MOST / 2..=MOST).contains(&blocks.blocks.len()), "{blocks:?}");
        let bytes: u64 = blocks.blocks.iter().map(|block| block.bytes).sum();
        assert_eq!(bytes, 1_000_000);
        let costs = costs(&blocks);
        assert!(costs.is_sorted() && costs[0] == 1.0 && costs[costs.len() - 1] == 2.0);
        let since = blocks.since(1.5).unwrap();
        let width = 1 << blocks.width;
        assert!((5_000_000_000 - width..=5_000_000_000 + width).contains(&since), "{since}");
        assert_eq!((blocks.since(0.5), blocks.since(2.0)), (Some(0), None));
    }

    #[test]
    fn shares_are_those_of_the_run() {
        let of = |times: &[u64]| {
            let mut blocks = TimeBlocks::default();
            times.iter().for_each(|&at| blocks.add(1, 2e6, at * 1_000_000));
            blocks
        };
        let (one, other) = (of(&[3_000, 3_100, 12_900]), of(&[]));
        let rows = shares(&[&one, &other], 1e10);
        assert!((MOST / 2..=MOST).contains(&rows.len()), "{}", rows.len());
        let mean = rows.iter().map(|row| row[0]).sum::<f64>() / count(rows.len());
        assert!((mean - 6e6 / 1e10).abs() < 1e-4 && rows.iter().all(|row| row[1] == 0.0));
        assert_eq!(rows.iter().filter(|row| row[0] > 0.0).count(), 2);
        assert_eq!(shares(&[&other], 0.0).len(), 0);
        for span in [1e300, f64::INFINITY, f64::NAN, -1.0] {
            assert!(shares(&[&one], span).len() <= MOST, "{span}");
        }
    }

    #[test]
    fn only_transfers_of_the_largest_size_count() {
        let mut blocks = TimeBlocks::default();
        blocks.add(64, 6_400.0, 0);
        blocks.add(1 << 20, 1e6, 1);
        blocks.add(64, 6_400.0, 2);
        blocks.add(0, 1.0, 3);
        let cost = 1e6 / f64::from(1 << 20);
        assert_eq!(costs(&blocks), [cost]);
        let mut small = TimeBlocks::default();
        small.add(64, 6_400.0, 0);
        blocks.merge(&small);
        assert_eq!(costs(&blocks), [cost]);
        small.merge(&blocks);
        assert_eq!(small, blocks);
    }

    #[test]
    fn channels_merge_whatever_their_widths() {
        let of = |times: u64| {
            let mut blocks = TimeBlocks::default();
            (0..times).for_each(|at| blocks.add(512, 512.0, at << 21));
            blocks
        };
        let (mut wide, narrow) = (of(300), of(10));
        let mut other = narrow.clone();
        other.merge(&wide);
        wide.merge(&narrow);
        assert_eq!(wide, other);
        let bytes: u64 = wide.blocks.iter().map(|block| block.bytes).sum();
        assert_eq!(bytes, 310 * 512);
    }
}
