// SPDX-License-Identifier: Apache-2.0
/*!
The inputs: recordings, traces of PyTorch and Nsight Systems, NCCL Inspector's files, tables of
operations.

Each module reads one kind of input into a [`crate::Job`] without analysing it. [`Error`] says in
one sentence what is wrong with an input.
*/

use std::fmt;
use std::path::Path;

mod both_ends;
mod collectives;
mod comm_id;
mod first_records;
mod footer;
mod gpu_waits;
pub mod inspector;
mod kernels;
pub mod kineto;
mod link_times;
mod network;
pub mod nsys;
mod plan;
pub mod recording;
pub mod semantics;
mod shortages;
mod strict_file;
pub mod table;

/// Why an input cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    text: String,
    is_of_place: bool,
}

impl Error {
    pub(crate) fn new(path: &Path, what: impl fmt::Display) -> Error {
        Error { text: format!("cannot read {}: {what}", path.display()), is_of_place: false }
    }

    /// An error about the temporary directory: the input may be sound.
    pub(crate) fn of_place(place: &Path, why: impl fmt::Display) -> Error {
        let place = place.display();
        Error { text: format!("cannot write in {place} (TMPDIR): {why}"), is_of_place: true }
    }

    /// True if the error is about the temporary directory, so that the input may be sound.
    #[must_use]
    pub fn is_of_place(&self) -> bool {
        self.is_of_place
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
