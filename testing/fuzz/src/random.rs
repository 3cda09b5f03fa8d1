// SPDX-License-Identifier: Apache-2.0
//! Pseudorandom numbers from a seed (splitmix64).

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % end).unwrap_or(0)
    }

    /// One element of `all`, which must not be empty.
    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A number at which arithmetic is likely to go wrong, or any number.
    pub(crate) fn number(&mut self) -> u64 {
        let any = self.next();
        let edge = 1_u64.checked_shl(u32::try_from(self.below(65)).unwrap_or(0)).unwrap_or(0);
        *self.of(&[
            0,
            1,
            edge,
            edge.wrapping_sub(1),
            edge.wrapping_neg(),
            any,
            any >> 32,
            any >> 48,
        ])
    }
}
