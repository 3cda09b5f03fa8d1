// SPDX-License-Identifier: Apache-2.0
//! What a task returns.

use std::error::Error;
use std::process::ExitCode;

/// What every task returns: the exit status, or an error that ends as one line on stderr.
pub(crate) type Outcome<T = ExitCode> = Result<T, Box<dyn Error>>;
