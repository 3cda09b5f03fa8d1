// SPDX-License-Identifier: Apache-2.0
//! Differences between NCCL releases that do not show in their structs.

/// The rules of one release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The channel of a part of a send or receive is found by reversing the part's bits (up to
    /// 2.27, `ncclP2pChannelForPart` of `src/include/device.h`); later ones simply count.
    pub(crate) reversed_parts: bool,
}

impl Rules {
    /// The rules of an NCCL version (major, minor, patch); those of the newest known version if it
    /// is unknown.
    pub(crate) fn of(version: Option<(u32, u32, u32)>) -> Self {
        let version = version.unwrap_or((u32::MAX, 0, 0));
        Self { reversed_parts: version < (2, 28, 0) }
    }

    /// The part of a send or receive that the channel `delta` after the first moves; there are
    /// `channels` of them, a power of two.
    pub(crate) fn part(self, delta: usize, channels: usize) -> usize {
        let delta = delta & channels.wrapping_sub(1);
        if !self.reversed_parts || channels < 2 {
            return delta;
        }
        delta.reverse_bits() >> (usize::BITS - channels.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_the_release() {
        let parts = |version, channels: usize| {
            let rules = Rules::of(Some(version));
            (0..channels).map(|delta| rules.part(delta, channels)).collect::<Vec<_>>()
        };
        assert_eq!(parts((2, 28, 9), 4), [0, 1, 2, 3]);
        assert_eq!(parts((2, 27, 7), 4), [0, 2, 1, 3]);
        assert_eq!(parts((2, 23, 4), 8), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(parts((2, 23, 4), 1), [0]);
        assert_eq!(Rules::of(None), Rules::of(Some((2, 32, 3))));
    }
}
