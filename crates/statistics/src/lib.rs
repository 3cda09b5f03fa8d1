// SPDX-License-Identifier: Apache-2.0
/*!
The statistics of the product, and its one test.

**Two samples** are compared by ranks ([`rank_sum`], [`shift`]). **Series** in time say less than
as many independent values ([`inflation`], [`mean_and_error`]). [`median_mad`] and
[`median_of_others`] withstand outliers.

This crate does **not** know NCCL, ranks or files: its input is numbers.
*/
#![forbid(unsafe_code)]

mod adjust;
mod rank;
mod robust;
mod series;
mod tails;

pub use adjust::adjusted;
pub use rank::{least_p, rank_sum, shift};
pub use robust::{median, median_mad, median_of_others};
pub use series::{inflation, mean_and_error};
