// SPDX-License-Identifier: Apache-2.0
//! The user's options for reading inputs.

use std::time::Duration;

/// Options of the readers.
#[derive(Clone, Debug)]
pub struct InputOptions {
    /// In a job that still runs, an operation in flight for less than this is not stuck.
    pub hang: Duration,
    /// The run to read where the recordings are of several; the newest if `None`.
    pub run: Option<String>,
}

impl Default for InputOptions {
    fn default() -> InputOptions {
        InputOptions { hang: Duration::from_secs(30), run: None }
    }
}
