// SPDX-License-Identifier: Apache-2.0
//! The plugin as it ships, built beside the running program.

use std::path::{Path, PathBuf};

/// Builds the plugin in the release profile, into the target folder of the program `stepper`.
///
/// # Errors
/// Cargo's words.
pub fn plugin(stepper: &Path) -> Result<PathBuf, String> {
    let directory = target(stepper)?.join("release");
    built::build(&directory, &["--package", "ncclscope-plugin"])?;
    Ok(directory.join("libnccl_profiler_ncclscope.so"))
}

/// Builds the plugin that breaks the contract on purpose.
///
/// # Errors
/// Cargo's words.
pub fn planted(stepper: &Path) -> Result<PathBuf, String> {
    let directory = target(stepper)?.join("debug");
    built::build(&directory, &["--package", "stepper", "--example", "planted"])?;
    Ok(directory.join("examples/libplanted.so"))
}

/// `TARGET` of `TARGET/PROFILE/stepper`.
fn target(stepper: &Path) -> Result<&Path, String> {
    let target = stepper.parent().and_then(Path::parent);
    target.ok_or_else(|| format!("{} is in no target folder", stepper.display()))
}
