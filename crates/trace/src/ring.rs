// SPDX-License-Identifier: Apache-2.0
/*!
The place of a writer's next block: the segments of a ring and what each of them holds.

Segments are used one after another, then the oldest is used again. Two operations change that
order. A segment may be given to definitions permanently ([`Ring::give_away`]). And a ring can be
frozen ([`Ring::freeze`]): then its newest three quarters are kept, and later blocks use the rest as
a ring, so that events before and after a hang are both kept.
*/

use crate::codec::KindCounts;
use crate::kind::KINDS;
use crate::layout::SEGMENT;

/// Number of blocks in a segment, and of their records by kind.
pub(crate) type Held = (u64, KindCounts);

/// The fraction of a frozen ring that is still written is one in this many.
const LATER: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Blocks of this epoch; frozen or not.
    Blocks { epoch: u32, frozen: bool },
    /// Definitions; the segment is never used for blocks again.
    Definitions,
}

#[derive(Clone, Debug)]
struct Segment {
    holds: Use,
    blocks: u64,
    records: KindCounts,
}

impl Segment {
    fn new(holds: Use) -> Segment {
        Segment { holds, blocks: 0, records: [0; KINDS] }
    }

    fn forget(&mut self) -> Held {
        (std::mem::take(&mut self.blocks), std::mem::replace(&mut self.records, [0; KINDS]))
    }
}

/// A ring of segments of the file.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    base: u64,
    count: u32,
    /// The segments that were ever used.
    used: Vec<Segment>,
    current: u32,
    offset: u64,
    epoch: u32,
    /// Number of the next block.
    number: u64,
    is_frozen: bool,
}

impl Ring {
    /// An empty ring of `count` segments, of which there is at least one.
    pub(crate) fn new(base: u64, count: u32) -> Ring {
        let first = Segment::new(Use::Blocks { epoch: 0, frozen: false });
        Ring {
            base,
            count,
            used: vec![first],
            current: 0,
            offset: 0,
            epoch: 0,
            number: 0,
            is_frozen: false,
        }
    }

    /// The start of a segment.
    pub(crate) fn place(&self, segment: u32) -> u64 {
        self.base + u64::from(segment) * SEGMENT
    }

    /// The offset in the file at which the next block is written if it fits into the segment.
    pub(crate) fn at(&self) -> u64 {
        self.place(self.current) + self.offset
    }

    /// Number and epoch of the next block.
    pub(crate) fn next_block(&self) -> (u64, u32) {
        (self.number, self.epoch)
    }

    /// Whether the current segment has room for `bytes`.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.offset + bytes as u64 <= SEGMENT
    }

    /// Nothing was written to the current segment.
    pub(crate) fn is_at_start(&self) -> bool {
        self.offset == 0
    }

    /// Notes that a block of `bytes` was written at [`Ring::at`].
    pub(crate) fn wrote(&mut self, bytes: usize, records: &KindCounts) {
        self.offset += bytes as u64;
        self.number += 1;
        if let Some(segment) = self.used.get_mut(self.current as usize) {
            segment.blocks += 1;
            segment.records.iter_mut().zip(records).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Goes to the next segment, and returns its content, which is overwritten.
    pub(crate) fn advance(&mut self) -> Held {
        let next = self.unused().or_else(|| self.oldest(|_, frozen| !frozen));
        // If definitions have taken all of the unfrozen segments, the oldest frozen one is used.
        let next = next.or_else(|| self.oldest(|_, _| true)).unwrap_or(self.current);
        self.epoch = self.epoch.wrapping_add(1);
        let blocks = Segment::new(Use::Blocks { epoch: self.epoch, frozen: false });
        (self.current, self.offset) = (next, 0);
        self.put(next, blocks)
    }

    /// A segment that definitions may take: an unused one, or the oldest. `None` if they already
    /// have half of the ring.
    pub(crate) fn spare(&self) -> Option<u32> {
        let taken = self.used.iter().filter(|segment| segment.holds == Use::Definitions).count();
        if 2 * (taken as u64 + 1) > u64::from(self.count) {
            return None;
        }
        self.unused().or_else(|| self.oldest(|segment, _| segment != self.current))
    }

    /// Gives a segment of [`Ring::spare`] to definitions, and returns its content, which is
    /// overwritten.
    pub(crate) fn give_away(&mut self, segment: u32) -> Held {
        self.put(segment, Segment::new(Use::Definitions))
    }

    /// Freezes the ring: keeps all but its oldest quarter. False if it is already frozen.
    pub(crate) fn freeze(&mut self) -> bool {
        if self.is_frozen {
            return false;
        }
        self.is_frozen = true;
        let unused = self.count - u32::try_from(self.used.len()).unwrap_or(self.count);
        let mut spare = (self.count / LATER).max(1).saturating_sub(unused);
        while spare > 0
            && let Some(oldest) = self.oldest(|segment, frozen| segment != self.current && !frozen)
        {
            // Temporarily, so that the next call finds the second oldest.
            self.set_frozen(oldest, true);
            spare -= 1;
        }
        for segment in &mut self.used {
            if let Use::Blocks { frozen, .. } = &mut segment.holds {
                *frozen = !*frozen;
            }
        }
        true
    }

    /// Ends the freeze: the oldest segment is overwritten next.
    pub(crate) fn thaw(&mut self) {
        self.is_frozen = false;
        for index in 0..self.used.len() {
            self.set_frozen(u32::try_from(index).unwrap_or(0), false);
        }
    }

    /// Notes that a segment was overwritten, and returns its content.
    pub(crate) fn forget(&mut self, segment: u32) -> Held {
        self.used.get_mut(segment as usize).map(Segment::forget).unwrap_or_default()
    }

    /// The segments that hold blocks, the oldest first: number, epoch, and an upper bound of the
    /// bytes.
    pub(crate) fn blocks(&self) -> Vec<(u32, u32, u64)> {
        let mut all: Vec<_> = (0..)
            .zip(&self.used)
            .filter_map(|(index, segment)| match segment.holds {
                Use::Blocks { epoch, .. } if index == self.current => {
                    Some((index, epoch, self.offset))
                }
                Use::Blocks { epoch, .. } => Some((index, epoch, SEGMENT)),
                Use::Definitions => None,
            })
            .collect();
        all.sort_by_key(|&(_, epoch, _)| self.epoch.wrapping_sub(epoch));
        all.reverse();
        all
    }

    /// The segments that hold definitions.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = u32> {
        let all = (0..).zip(&self.used);
        all.filter(|(_, segment)| segment.holds == Use::Definitions).map(|(index, _)| index)
    }

    /// The end of the last segment that was ever used, or of its used part if it is the current
    /// one.
    pub(crate) fn end(&self) -> u64 {
        let last = u32::try_from(self.used.len()).unwrap_or(0).saturating_sub(1);
        self.place(last) + if last == self.current { self.offset } else { SEGMENT }
    }

    fn put(&mut self, at: u32, segment: Segment) -> Held {
        match self.used.get_mut(at as usize) {
            Some(there) => std::mem::replace(there, segment).forget(),
            None => {
                self.used.push(segment);
                Held::default()
            }
        }
    }

    fn set_frozen(&mut self, at: u32, is: bool) {
        if let Some(segment) = self.used.get_mut(at as usize)
            && let Use::Blocks { frozen, .. } = &mut segment.holds
        {
            *frozen = is;
        }
    }

    fn unused(&self) -> Option<u32> {
        let next = u32::try_from(self.used.len()).unwrap_or(u32::MAX);
        (next < self.count).then_some(next)
    }

    /// The segment with the oldest blocks among those for which `may(number, frozen)` is true.
    fn oldest(&self, may: impl Fn(u32, bool) -> bool) -> Option<u32> {
        let ages = (0..).zip(&self.used).filter_map(|(index, segment)| match segment.holds {
            Use::Blocks { epoch, frozen } if may(index, frozen) => {
                Some((self.epoch.wrapping_sub(epoch), index))
            }
            _ => None,
        });
        ages.max().map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(ring: &mut Ring, segments: u32) -> Vec<u32> {
        let one = |ring: &mut Ring| {
            ring.wrote(1, &[1; KINDS]);
            ring.advance();
            ring.current
        };
        (0..segments).map(|_| one(ring)).collect()
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut ring = Ring::new(0, 4);
        assert_eq!(fill(&mut ring, 6), [1, 2, 3, 0, 1, 2]);
        let order: Vec<u32> = ring.blocks().iter().map(|&(segment, ..)| segment).collect();
        assert_eq!(order, [3, 0, 1, 2]);
        assert_eq!(ring.advance(), (1, [1; KINDS]));
    }

    #[test]
    fn a_frozen_ring_goes_around_in_its_oldest_part() {
        let mut ring = Ring::new(0, 8);
        fill(&mut ring, 9);
        assert!(ring.freeze() && !ring.freeze());
        assert_eq!(fill(&mut ring, 5), [2, 3, 2, 3, 2]);
        ring.thaw();
        assert_eq!(fill(&mut ring, 8), [4, 5, 6, 7, 0, 1, 3, 2]);
    }

    #[test]
    fn a_frozen_ring_uses_what_was_never_used() {
        let mut ring = Ring::new(0, 8);
        fill(&mut ring, 3);
        ring.freeze();
        assert_eq!(fill(&mut ring, 6), [4, 5, 6, 7, 4, 5]);
    }

    #[test]
    fn definitions_take_half_at_most_and_never_the_current_one() {
        for frozen in [false, true] {
            let mut ring = Ring::new(0, 4);
            fill(&mut ring, 4);
            if frozen {
                ring.freeze();
            }
            for expected in [Some(1), Some(2), None] {
                assert_eq!(ring.spare(), expected);
                expected.into_iter().for_each(|segment| _ = ring.give_away(segment));
            }
            assert_eq!(ring.definitions().collect::<Vec<_>>(), [1, 2]);
            let rest = fill(&mut ring, 4);
            assert!(rest.iter().all(|segment| [0, 3].contains(segment)), "what is left goes on");
        }
    }
}
