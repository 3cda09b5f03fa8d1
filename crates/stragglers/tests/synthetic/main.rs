// SPDX-License-Identifier: Apache-2.0
//! Jobs that are made up, of which everything is known.

mod finds;
mod hosts;
mod pipeline;
