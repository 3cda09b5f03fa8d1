// SPDX-License-Identifier: Apache-2.0
//! Release builds of what other tasks and the tests run as files: the product as it ships, and the
//! machinery that stands in for a GPU.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::Value;

use crate::{Outcome, process};

/// What is built.
const PACKAGES: &[&str] =
    &["ncclscope-plugin", "ncclscope-cli", "cpu-cuda", "rig", "invariants", "gpu-kit"];

/// The plugin's file as Cargo names it, and as NCCL looks for it: Cargo allows no `-` there.
const PLUGIN_BUILT: &str = "libnccl_profiler_ncclscope.so";
const PLUGIN_NAMED: &str = "libnccl-profiler-ncclscope.so";

/// Builds [`PACKAGES`] and returns the folder that holds them.
pub(crate) fn release() -> Outcome<PathBuf> {
    let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
    process::check(process::command(&["cargo", "build", "--release"]).args(packages))?;
    let folder = target()?.join("release");
    let named = folder.join(PLUGIN_NAMED);
    if !named.is_symlink() {
        symlink(PLUGIN_BUILT, named)?;
    }
    Ok(folder)
}

/// The target folder, which the environment or a configuration may have moved.
fn target() -> Outcome<PathBuf> {
    let words = ["cargo", "metadata", "--no-deps", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&process::stdout(&mut process::command(&words))?)?;
    let target = metadata["target_directory"].as_str();
    Ok(target.ok_or("cargo metadata without target_directory")?.into())
}
