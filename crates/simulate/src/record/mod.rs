// SPDX-License-Identifier: Apache-2.0
/*!
What ranks record of what took place: ordinary recordings, as the plugin writes them.

Nothing here decides when something takes place; it only says it in NCCL's events, in the order and
on the threads of NCCL 2.30 (profiler API v6), and leaves out what was not yet when recording ended.
*/

mod clock;
mod events;
mod network;
mod tape;
mod vitals;
mod write;

pub(crate) use clock::EPOCH_NS;
pub(crate) use vitals::Stance;
pub(crate) use write::{Job, write_rank};
