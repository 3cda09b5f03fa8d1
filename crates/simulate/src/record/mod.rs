// SPDX-License-Identifier: Apache-2.0
/*!
The recordings of the ranks, in the format that the plugin writes.

This module computes no times. It turns them into NCCL's events, in the order and on the threads of
NCCL 2.30 (profiler API v6), up to the end of the recording.
*/

mod buffer;
mod clock;
mod events;
mod heartbeats;
mod job;
mod network;
mod write;

pub(crate) use clock::EPOCH_NS;
pub(crate) use job::{Job, ThreadState};
pub(crate) use write::{tell_rank, write_rank};
