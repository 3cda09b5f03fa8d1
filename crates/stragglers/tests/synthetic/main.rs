// SPDX-License-Identifier: Apache-2.0
//! Synthetic jobs, whose truth is known.

mod buckets;
mod finds;
mod hosts;
mod missing;
mod pipeline;
mod pxn;
