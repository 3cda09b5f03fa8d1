// SPDX-License-Identifier: Apache-2.0
/*!
The processes of a node that record, or should.

[`node::Node`] follows the recordings of a node's processes while they are written, for `ncclscope
top` and for the agent; [`judged`] says why their jobs hang; [`unrecorded`] finds processes that
have no recording yet; [`nccl`] knows the releases of the libraries that they load.

This crate does **not** export or show what it finds. It only reads files and `/proc`, and prints
warnings about what it cannot read.
*/
#![forbid(unsafe_code)]

pub mod files;
pub mod fresh;
pub mod judged;
mod listing;
mod living;
pub mod nccl;
pub mod node;
pub mod origin;
mod passed;
mod place;
pub mod process;
mod pxn;
pub mod unrecorded;
