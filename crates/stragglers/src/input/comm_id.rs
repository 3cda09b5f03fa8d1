// SPDX-License-Identifier: Apache-2.0
//! The identity of a communicator on all ranks.

use ncclscope_trace::Comm;

/// A communicator on all ranks: (hash, 0), or (0, index) if it has no hash.
pub(super) type CommKey = (u64, u16);

/// A link: communicator, sender, receiver, channel.
pub(super) type LinkId = (CommKey, i32, i32, u8);

pub(super) fn comm_id(comm: &Comm) -> CommKey {
    (comm.hash, if comm.hash == 0 { comm.index } else { 0 })
}
