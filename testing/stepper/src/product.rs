// SPDX-License-Identifier: Apache-2.0
//! The plugin as it ships, and one that breaks the contract.

use std::path::{Path, PathBuf};

/// The plugin as it ships, in the target folder of the program `stepper`.
///
/// # Errors
/// It is not there and does not build: see [`built::Artefact::path_in`].
pub fn plugin(stepper: &Path) -> Result<PathBuf, String> {
    built::PLUGIN.path_in(&target(stepper)?.join("dist"))
}

/// The plugin that breaks the contract on purpose.
///
/// # Errors
/// It is not there and does not build: see [`built::Artefact::path_in`].
pub fn planted(stepper: &Path) -> Result<PathBuf, String> {
    built::PLANTED.path_in(&target(stepper)?.join("debug"))
}

/// `TARGET` of `TARGET/PROFILE/stepper`.
fn target(stepper: &Path) -> Result<&Path, String> {
    let target = stepper.parent().and_then(Path::parent);
    target.ok_or_else(|| format!("{} is in no target folder", stepper.display()))
}
