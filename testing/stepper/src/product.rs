// SPDX-License-Identifier: Apache-2.0
//! The plugin as it ships, built beside the running program.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the plugin in the release profile, into the target folder of the program `stepper`.
///
/// # Errors
/// Cargo's words.
pub fn plugin(stepper: &Path) -> Result<PathBuf, String> {
    let target = target(stepper)?;
    build(target, &["--release", "--package", "ncclscope-plugin"])?;
    Ok(target.join("release/libnccl_profiler_ncclscope.so"))
}

/// Builds the plugin that breaks the contract on purpose.
///
/// # Errors
/// Cargo's words.
pub fn planted(stepper: &Path) -> Result<PathBuf, String> {
    let target = target(stepper)?;
    build(target, &["--package", "stepper", "--example", "planted"])?;
    Ok(target.join("debug/examples/libplanted.so"))
}

/// `TARGET` of `TARGET/PROFILE/stepper`.
fn target(stepper: &Path) -> Result<&Path, String> {
    let target = stepper.parent().and_then(Path::parent);
    target.ok_or_else(|| format!("{} is in no target folder", stepper.display()))
}

fn build(target: &Path, words: &[&str]) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet"]).args(words).arg("--target-dir").arg(target);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    match cargo.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        Err(error) => Err(format!("cargo build: {error}")),
    }
}
