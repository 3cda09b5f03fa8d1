// SPDX-License-Identifier: Apache-2.0
/*!
OTLP over HTTP, for a rank and for the agent: where it goes ([`environment`]), and the way there
([`Sender`]).

This crate does **not** encode anything (that is `export`), start a thread (its caller does, since a
rank's must be shielded from the host's signals), or decide what to say of a value that cannot be
used: a rank goes on without, the agent ends.
*/
#![forbid(unsafe_code)]

pub mod environment;
mod sender;

pub use sender::{Lost, Sender, Target, client};
