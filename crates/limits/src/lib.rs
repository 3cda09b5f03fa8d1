// SPDX-License-Identifier: Apache-2.0
/*!
The limits of all judgements: one table, in which each row has its origin.

A limit decides what is reported: how much longer, how rare, how many, for how long. Nothing else in
the crates that judge may hold a time or a ratio (`cargo xtask tidy`). `ncclscope diagnose
--list-rules` prints [`HANGS`], and `ncclscope stragglers --list-rules` [`SLOWNESS`]. A new row
needs a recording that our simulator did not make, or a derivation.

This crate does **not** hold bounds on memory, time or the length of output, nor constants of
mathematics.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

#[macro_use]
mod table;
pub mod clocks;
pub mod hangs;
pub mod links;
pub mod slow;
pub mod test;

pub use table::{Limit, Origin};

/// The limits of what is slow.
pub const SLOWNESS: [&[Limit]; 4] = [test::LIMITS, slow::LIMITS, links::LIMITS, clocks::LIMITS];
/// The limits of what hangs.
pub const HANGS: [&[Limit]; 2] = [hangs::LIMITS, clocks::LIMITS];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_limit_has_a_name_of_its_own_and_a_reason() {
        let all = || [SLOWNESS.as_slice(), &HANGS[..1]].concat().concat();
        let names: BTreeSet<(&str, &str)> = all().iter().map(|it| (it.name, it.value)).collect();
        assert_eq!(names.len(), all().len());
        for limit in all() {
            assert!(!limit.why.is_empty() && limit.value.contains(' '), "{limit:?}");
        }
    }

    #[test]
    fn times_are_in_nanoseconds() {
        assert_eq!((hangs::SILENCE_NS, clocks::HOSTS_NS), (3_500_000_000, 2_000_000_000));
        assert_eq!((clocks::ONE_GPU, links::IDLE, clocks::RATE_SPAN), (2e4, 1e6, 2e9));
        assert_eq!(hangs::SILENCE_NS, 3 * hangs::HEARTBEAT_NS + hangs::HEARTBEAT_NS / 2);
    }
}
