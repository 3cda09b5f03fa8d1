// SPDX-License-Identifier: Apache-2.0
//! Sets of channels, by the number that NCCL reports: a byte, so that RCCL's channels from 256 on
//! have the numbers of others.

/// A set of channels.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChannelSet([u64; 4]);

impl ChannelSet {
    /// Adds a channel.
    pub fn insert(&mut self, channel: u8) {
        self.0[usize::from(channel / 64)] |= 1 << (channel % 64);
    }

    /// Number of channels in it.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The channels that are not in `others`, in order.
    pub fn without(&self, others: &ChannelSet) -> impl Iterator<Item = u32> {
        let (words, others) = (self.0, others.0);
        let has = |words: [u64; 4], at: u8| words[usize::from(at / 64)] >> (at % 64) & 1 != 0;
        (0..=u8::MAX).filter(move |&at| has(words, at) && !has(others, at)).map(u32::from)
    }
}

impl FromIterator<u8> for ChannelSet {
    fn from_iter<T: IntoIterator<Item = u8>>(channels: T) -> ChannelSet {
        let mut set = ChannelSet::default();
        channels.into_iter().for_each(|channel| set.insert(channel));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_a_channel_of_its_own() {
        let (all, some) = (ChannelSet::from_iter(0..=255), ChannelSet::from_iter([0, 63, 64, 255]));
        assert_eq!((all.count(), some.count(), ChannelSet::default().count()), (256, 4, 0));
        assert!(some.without(&ChannelSet::from_iter([64])).eq([0, 63, 255]));
        assert_eq!((all.without(&some).count(), some.without(&all).count()), (252, 0));
    }
}
