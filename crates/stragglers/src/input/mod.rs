// SPDX-License-Identifier: Apache-2.0
/*!
The inputs: recordings, PyTorch's traces, tables of operations.

Each module reads one kind of input into a [`crate::Job`] without analysing it. [`Error`] says in
one sentence what is wrong with an input.
*/

use std::fmt;
use std::path::Path;

mod comm_id;
mod gpu_waits;
pub mod kineto;
mod link_times;
mod plan;
pub mod recording;
pub mod semantics;
mod shortages;
pub mod table;

/// Why an input cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(String);

impl Error {
    pub(crate) fn new(path: &Path, what: impl fmt::Display) -> Error {
        Error(format!("cannot read {}: {what}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
