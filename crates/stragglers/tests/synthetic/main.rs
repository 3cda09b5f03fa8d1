// SPDX-License-Identifier: Apache-2.0
//! Synthetic jobs with a known truth.

mod buckets;
mod finds;
mod graphs;
mod hosts;
mod links;
mod missing;
mod pipeline;
mod pxn;
mod to_itself;
