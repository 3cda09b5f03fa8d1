// SPDX-License-Identifier: Apache-2.0
//! A communicator with its members, and the values that they exchange.
//!
//! Every value is a small integer that depends on rank, element and step, so sums are exact in any
//! order, and a stale result of another step or communicator is wrong.

use crate::cuda::Floats;
use crate::failure::Failure;
use crate::nccl::Comm;

/// A communicator and its members.
#[derive(Debug)]
pub struct Team<'a> {
    /// The communicator.
    pub comm: Comm<'a>,
    /// For each rank of the communicator, its rank in the job.
    pub members: Vec<usize>,
    /// This rank's number in the communicator.
    pub rank: usize,
}

impl Team<'_> {
    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The input of the team's `rank` at `element` in a step.
    pub(crate) fn input(&self, rank: usize, element: usize, step: usize) -> f32 {
        small(element % 97 + self.members[rank] * 3 + step % 11)
    }

    /// This rank's input of `count` elements.
    pub(crate) fn values(&self, count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| self.input(self.rank, i, step)).collect()
    }

    /// The sum over all ranks at each element. The part that does not depend on the element is
    /// added up once: jobs check millions of them.
    pub(crate) fn sum(&self, step: usize) -> impl Fn(usize) -> f32 {
        let size = self.size();
        let of_ranks: usize = self.members.iter().map(|member| member * 3 + step % 11).sum();
        move |element| small(of_ranks + size * (element % 97))
    }
}

/// A small integer as an exact float.
fn small(value: usize) -> f32 {
    f32::from(u16::try_from(value).unwrap_or(u16::MAX))
}

/// Compares every element with its expected value.
pub(crate) fn check(floats: &Floats<'_>, expected: impl Fn(usize) -> f32) -> Result<(), Failure> {
    let wrong = |(i, &got): (usize, &f32)| {
        let want = expected(i);
        (got.to_bits() != want.to_bits())
            .then(|| Failure::Wrong(format!("element {i} is {got}, not {want}")))
    };
    floats.read()?.iter().enumerate().find_map(wrong).map_or(Ok(()), Err)
}
