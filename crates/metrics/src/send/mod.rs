// SPDX-License-Identifier: Apache-2.0
/*!
Sends OTLP, for a rank and for the agent: the destination ([`environment`]) and the delivery
([`Sender`]).

This module does **not** encode anything or start a thread: its caller does, because a rank's thread
must block the host's signals. It does not decide what happens on an invalid value: a rank continues
without metrics, the agent exits. It does not speak gRPC, which needs a runtime, and does not
compress. The agent adds both, as a [`Transport`].
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
