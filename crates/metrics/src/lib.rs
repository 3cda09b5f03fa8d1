// SPDX-License-Identifier: Apache-2.0
/*!
Metrics: what is measured all the time, under which names, and the way to a collector.

[`Collector`] takes a process's records as they come and gives, window by window, what settled in
each: a [`Metrics`]. [`encode`] turns that into OTLP and Prometheus' text by one table of names.
[`send`] brings encoded requests to a collector, for ranks and for the agent.

[`collect`] and [`encode`] meet in the window ([`Metrics`]) alone, and [`send`] knows neither.

This crate does **not** find an operation's end (that is `operations`), read the environment or a
clock, start threads, or speak TLS or gRPC: a rank links it, and the agent adds both.
*/
#![forbid(unsafe_code)]

pub mod collect;
pub mod encode;
mod merge;
pub mod send;
mod window;

pub use collect::Collector;
pub use window::{
    Channel, ChannelKey, CommKey, LEAST_SIZES, Link, LinkKey, LinkLine, Metrics, Mode, Name,
    OperationKey, Operations, Proxy, Rank, RankKey, Waits,
};
