// SPDX-License-Identifier: Apache-2.0
/*!
The statistics of the product, and its one test.

**The one test** ([`compare_unit`]) says whether a unit (a rank, a link, a stage) is slower than its
peers, or than before: SLOW, NOT SLOW or CANNOT TELL, with what would settle it. Its input is what
each unit costs in each block of time, as a share of a step ([`Blocks`]). It looks at

- the *body*: whether the mean is above what healthy units differ by (Student's test, with as many
  blocks as are independent). An exact rank test for few blocks was tried: it reaches no p of 0.01
  below six blocks, and Student's raises at most 0.3 % false alarms on independent values with heavy
  tails without any natural spread;
- *stalls*: whether rare long blocks strike one unit more often than chance would;
- the *past*: the split into before and after that shows most, which pays for all splits tried.

The p value is that of all units of a question together; for several questions adjust it further
([`adjusted`]). The limits, and the only ones, are in [`Limits`]. The design is section 3 of
`../shared/design/judgement.md`; the example `power` prints how often each answer is right.

**Two samples** are compared by ranks ([`rank_sum`], [`shift`]). **Series** in time say less than
as many independent values ([`inflation`], [`mean_and_error`]). [`median_mad`] and
[`median_of_others`] withstand outliers.

This crate does **not** know NCCL, ranks or files: its input is numbers.
*/
#![forbid(unsafe_code)]

mod adjust;
mod answer;
mod blocks;
mod body;
mod change;
mod limits;
mod rank;
mod robust;
mod series;
mod stalls;
mod tails;

pub use adjust::adjusted;
pub use answer::{Answer, Effect, Needs, compare_unit, compare_units};
pub use blocks::{Against, Blocks};
pub use limits::Limits;
pub use rank::{least_p, rank_sum, shift};
pub use robust::{DEVIATION, median, median_error, median_mad, median_of_others};
pub use series::{inflation, mean_and_error};
