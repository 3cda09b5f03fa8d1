// SPDX-License-Identifier: Apache-2.0
/*!
From a process's records, as they come, to windows: [`Collector`].

Who calls [`Collector::close`] decides when a window ends, by time or by [`Collector::events`]. An
operation belongs to the window in which it settles, with all its children: it is never split. One
that does not settle is counted as in flight, and holds up no window. Links, channels and proxy
threads are counted as their records come, also for what is in flight.
*/

mod collector;
mod comms;
mod family;
mod launches;
mod load;
mod network;
mod settle;

pub use collector::Collector;
