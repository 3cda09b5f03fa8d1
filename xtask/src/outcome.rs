// SPDX-License-Identifier: Apache-2.0
//! What a task returns.

use std::error::Error;
use std::process::ExitCode;

/// The result of a task: the exit status, or an error that is printed as one line on stderr.
pub(crate) type Outcome<T = ExitCode> = Result<T, Box<dyn Error>>;
