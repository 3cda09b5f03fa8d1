// SPDX-License-Identifier: Apache-2.0
//! Random choices that depend on a seed alone.

use crate::outcome::Outcome;

/// A source of random numbers (splitmix64, public domain, Sebastiano Vigna).
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// One of `items`.
    ///
    /// # Errors
    /// There are none.
    pub(super) fn one<'a, T>(&mut self, items: &'a [T]) -> Outcome<&'a T> {
        let at = usize::try_from(self.below(items.len() as u64))?;
        Ok(items.get(at).ok_or("nothing to choose from")?)
    }

    /// A number from `low` to `high`, all equally likely.
    #[expect(clippy::cast_precision_loss, reason = "53 bits, all that a float keeps")]
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// Puts `items` into a random order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let at = usize::try_from(self.below(last as u64 + 1)).unwrap_or(0);
            items.swap(last, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_all_and_depends_on_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Dice::new(seed).shuffle(&mut items);
            items
        };
        let (one, other) = (shuffled(1), shuffled(2));
        assert_eq!(one, shuffled(1));
        assert_ne!(one, other);
        let mut sorted = one;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..50));
    }

    #[test]
    fn numbers_are_in_their_range() {
        let mut dice = Dice::new(7);
        assert!(
            (0..1000).all(|_| dice.below(3) < 3 && (2.0..4.0).contains(&dice.between(2.0, 4.0)))
        );
        assert_eq!(dice.below(0), 0);
        assert!(dice.one::<u8>(&[]).is_err() && [1, 2].contains(dice.one(&[1, 2]).expect("one")));
    }
}
