// SPDX-License-Identifier: Apache-2.0
/*!
What the plugin and the tool say to each other, each thing once: quantities and recording windows as
users write them.

It is linked into every rank: it starts nothing, and keeps no state. It does **not** act on what it
reads; the runtime and the tool do.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

pub mod quantity;
pub mod window;
