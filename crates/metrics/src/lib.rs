// SPDX-License-Identifier: Apache-2.0
/*!
Metrics of ranks and of the agent: measurement, names, and delivery to a collector.

[`Collector`] takes a process's records as they come, and returns a [`Metrics`] for each window.
[`encode`] converts it to OTLP and Prometheus' text by one table of names. [`send`] delivers encoded
requests to a collector, for ranks and for the agent.

[`collect`] and [`encode`] share only the window ([`Metrics`]), and [`send`] depends on neither.

This crate does **not** find an operation's end (that is `operations`), read the environment or a
clock, start threads, or speak TLS or gRPC: a rank links it, and the agent adds both.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

pub mod collect;
pub mod encode;
mod merge;
pub mod send;
mod window;

pub use collect::{Collector, Foreign};
pub use window::{
    Channel, ChannelKey, CommKey, Compat, Device, ENOUGH_SENDS, FindingKey, Fit, LEAST_SIZES, Link,
    LinkKey, LinkLine, Metrics, Mode, Name, OldestInFlight, OperationKey, Operations, Proxy, Rank,
    RankKey, Waits,
};
