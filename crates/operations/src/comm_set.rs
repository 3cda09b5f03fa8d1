// SPDX-License-Identifier: Apache-2.0
//! A set of communicators by number, with one bit each, because a process may create tens of
//! thousands of communicators.

/// Numbers of communicators ([`ncclscope_trace::Comm::index`]).
#[derive(Debug, Default)]
pub struct CommSet {
    words: Vec<u64>,
}

impl CommSet {
    /// Adds a communicator.
    pub fn insert(&mut self, comm: u16) {
        let (word, bit) = place(comm);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Removes a communicator. False if it was not there.
    pub fn remove(&mut self, comm: u16) -> bool {
        let (at, bit) = place(comm);
        let Some(word) = self.words.get_mut(at).filter(|word| **word & bit != 0) else {
            return false;
        };
        *word &= !bit;
        true
    }

    /// Whether the communicator is in the set.
    #[must_use]
    pub fn contains(&self, comm: u16) -> bool {
        let (word, bit) = place(comm);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }
}

const fn place(comm: u16) -> (usize, u64) {
    ((comm / 64) as usize, 1 << (comm % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_bit_of_its_own() {
        let mut set = CommSet::default();
        let some = [0, 63, 64, 4_000, u16::MAX];
        assert!(!set.remove(0) && !set.contains(u16::MAX));
        some.into_iter().for_each(|comm| set.insert(comm));
        assert!((0..=u16::MAX).filter(|&comm| set.contains(comm)).eq(some));
        assert_eq!(size_of_val(&set.words[..]), 8 << 10);
        assert!(set.remove(64) && !set.remove(64) && !set.contains(64) && set.contains(63));
    }
}
