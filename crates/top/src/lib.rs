// SPDX-License-Identifier: Apache-2.0
/*!
The live view of a job (`ncclscope top`): what it shows for each rank, and how keys change it.

A source makes a [`Reading`] of the ranks once per interval. [`judge`] turns it into a [`Picture`]:
rates, waiting shares and flags, row by row; [`Patience`] and [`Stragglers`] remember what earlier
readings showed. [`View`] holds what the user chose (order, filter,
selected rank), takes keys, and [`draw`] paints it with ratatui.

This crate does **not** read recordings, ask processes or agents, read clocks, or touch a terminal:
`cli` does that. The text of a reading must be printable already.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod group;
mod judge;
mod patience;
mod picture;
mod reading;
mod stragglers;
mod units;
mod view;
mod waiting;
mod work;

pub use judge::judge;
pub use patience::Patience;
pub use picture::{Flag, FunctionRate, LinkRate, Operation, Picture, Row, Severity};
pub use reading::{Flight, Life, Rank, Reading};
pub use stragglers::Stragglers;
pub use view::{Column, Key, Step, View, cell, draw};
pub use work::{Comm, Function, FunctionKey, Link, LinkKey, Work};
