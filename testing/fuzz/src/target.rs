// SPDX-License-Identifier: Apache-2.0
//! Something that reads input, and how input for it is made and changed.

use crate::random::Random;

/// Something that reads input.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Well-formed input.
    pub(crate) samples: fn() -> Vec<Vec<u8>>,
    pub(crate) mutate: fn(&mut Random, &mut Vec<u8>),
    /// Reads it; false if it refuses all of it.
    pub(crate) read: fn(&[u8]) -> bool,
    /// How many inputs the test runs.
    pub(crate) inputs: u64,
    /// Seeds that found something once.
    pub(crate) found: &'static [u64],
}

impl Target {
    /// The seeds of the test.
    pub(crate) fn short(&self) -> impl Iterator<Item = u64> + use<> {
        (1..=self.inputs).chain(self.found.iter().copied())
    }
}
