// SPDX-License-Identifier: Apache-2.0
/*!
OTLP, for a rank and for the agent: where it goes ([`environment`]), and the way there ([`Sender`]).

This module does **not** encode anything, start a thread (its caller does, since a rank's must be
shielded from the host's signals), or decide what to say of a value that cannot be used: a rank goes
on without, the agent ends. Nor does it speak gRPC, which needs a runtime, or compress. The agent
adds both, as a [`Transport`].
*/

pub mod environment;
mod http;
mod pace;
mod resolver;
mod sender;
mod transport;

pub use http::{Http, Target, client};
pub use pace::part_of;
pub use sender::{Lost, Sender};
pub use transport::{Answer, Transport};
