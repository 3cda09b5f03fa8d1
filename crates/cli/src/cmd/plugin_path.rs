// SPDX-License-Identifier: Apache-2.0
//! `ncclscope plugin-path`: what to set `NCCL_PROFILER_PLUGIN` to.

use crate::failure::Failure;
use crate::plugin;
use std::io::Write;
use std::process::ExitCode;

pub(crate) fn run() -> Result<ExitCode, Failure> {
    let path = plugin::find()?;
    writeln!(std::io::stdout(), "{}", path.display())?;
    Ok(ExitCode::SUCCESS)
}
