// SPDX-License-Identifier: Apache-2.0
//! Transfers of a table of vectors in the form of a job.

use ncclscope_findings::rank::Transfer;
use ncclscope_trace::vectors::OpenTransfer;
use std::collections::BTreeSet;

/// The first transfer with each peer on each channel in each direction: that of the oldest
/// operation. Those behind it wait for their turn.
pub(super) fn first_of_each(all: &[OpenTransfer]) -> impl Iterator<Item = &OpenTransfer> {
    let mut seen = BTreeSet::new();
    all.iter().filter(move |it| seen.insert((it.peer, it.channel, it.is_send)))
}

pub(super) fn transfer(it: &OpenTransfer) -> Transfer {
    let &OpenTransfer { steps, posted, ready, transmitted, done, .. } = it;
    Transfer {
        is_send: it.is_send,
        channel: it.channel,
        peer: it.peer,
        steps,
        posted,
        ready,
        transmitted,
        done,
        reached: it.reached,
        still_ns: ns(it.still_ms),
        may_be_early: it.may_be_early,
        ..Transfer::default()
    }
}

pub(super) fn ns(ms: u32) -> u64 {
    u64::from(ms) * 1_000_000
}
