// SPDX-License-Identifier: Apache-2.0
/*!
Collects a process's records into windows, as they come: [`Collector`].

The caller of [`Collector::close`] decides when a window ends, by time or by [`Collector::events`].
An operation belongs to the window in which it settles, with all its children: it is never split. An
operation that does not settle is counted as in flight, and does not delay a window. Links, channels
and proxy threads are counted when their records come, including those of operations in flight.
*/

mod collector;
mod comms;
mod family;
mod launches;
mod load;
mod network;
mod pxn;
mod settle;
mod streams;

pub use collector::Collector;
pub use pxn::Foreign;
