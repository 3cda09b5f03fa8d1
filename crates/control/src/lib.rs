// SPDX-License-Identifier: Apache-2.0
/*!
What the plugin and the tool must agree on: environment variables with their parsers, requests to a
process and its replies, directories and file names, quantities and recording windows as users write
them.

Every rank links this crate: it starts nothing and keeps no state. It does **not** act on what it
reads; the runtime and the tool do.

Modules, each of which uses those before it: `text`, `quantity`, `window`, `message`, `signal`,
`directories`, `launcher`, `releases` (kernel events by release), `value` (values and parsers),
`variable` (the type of a variable), `aliases`, `table` (the variables), `reader` (in a rank),
`doctor` and `page` (in the tool).
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

pub mod aliases;
pub mod directories;
pub mod doctor;
pub mod launcher;
pub mod message;
pub mod page;
pub mod quantity;
pub mod reader;
pub mod releases;
pub mod signal;
pub mod table;
pub mod text;
pub mod value;
pub mod variable;
pub mod window;
