// SPDX-License-Identifier: Apache-2.0
//! A fuzz target: a reader, and how its input is made and mutated.

use crate::random::Random;

/// A reader of input.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Well-formed input.
    pub(crate) samples: fn() -> Vec<Vec<u8>>,
    pub(crate) mutate: fn(&mut Random, &mut Vec<u8>),
    /// Reads the input; false if the reader refuses all of it.
    pub(crate) read: fn(&[u8]) -> bool,
    /// Number of inputs in the test.
    pub(crate) inputs: u64,
    /// Seeds that once found an error.
    pub(crate) found: &'static [u64],
}

impl Target {
    /// The seeds of the test.
    pub(crate) fn short(&self) -> impl Iterator<Item = u64> + use<> {
        (1..=self.inputs).chain(self.found.iter().copied())
    }
}
