// SPDX-License-Identifier: Apache-2.0
//! Builds the files that other tasks and the tests run: the product, and the programs that stand in
//! for a GPU.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;

use serde_json::Value;

use crate::outcome::Outcome;
use crate::process;

const PACKAGES: &[&str] = &[
    "ncclscope-plugin",
    "ncclscope-cli",
    "ncclscope-agent",
    "cpu-cuda",
    "rig",
    "invariants",
    "gpu-kit",
];

/// The plugin's file as named by Cargo, which allows no `-`; the name that NCCL looks for follows.
const PLUGIN_BUILT: &str = "libnccl_profiler_ncclscope.so";
const PLUGIN_NAMED: &str = "libnccl-profiler-ncclscope.so";

/// The build settings of the shipped plugin. They repeat `[profile.dist]` of Cargo.toml, because
/// they also build commits that do not have that profile.
pub(crate) const SHIPPED_PLUGIN: &[&str] = &[
    "--package",
    "ncclscope-plugin",
    "--profile",
    "dist",
    "--config",
    "profile.dist.inherits=\"release\"",
    "--config",
    "profile.dist.lto=\"fat\"",
    "--config",
    "profile.dist.codegen-units=1",
];

/// The profile in which [`PACKAGES`] are built.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Profile {
    /// As for tests, so that nothing is built again after them.
    Tests,
    /// Optimised, without LTO.
    Release,
    /// As it ships.
    Dist,
}

/// Builds [`PACKAGES`] and returns the folder that holds them.
pub(crate) fn products(profile: Profile) -> Outcome<PathBuf> {
    let profile = match profile {
        Profile::Tests => return Ok(for_tests(false)?.join("debug")),
        Profile::Release => "release",
        Profile::Dist => "dist",
    };
    let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
    process::check(process::command(&["cargo", "build", "--profile", profile]).args(packages))?;
    let folder = target()?.join(profile);
    named_plugin(&folder)?;
    Ok(folder)
}

/// Builds the tool and the agent, which is next to it, and returns the tool; for tests, with all
/// that is built for them.
pub(crate) fn tool(profile: Profile) -> Outcome<PathBuf> {
    let profile = match profile {
        Profile::Tests => return Ok(for_tests(false)?.join("debug/ncclscope")),
        Profile::Release => "release",
        Profile::Dist => "dist",
    };
    let words = ["cargo", "build", "-p", "ncclscope-cli", "-p", "ncclscope-agent"];
    process::check(process::command(&words).args(["--profile", profile]))?;
    Ok(target()?.join(profile).join("ncclscope"))
}

/// Builds the plugin as it ships, and returns its file under the name that NCCL looks for.
pub(crate) fn shipped_plugin() -> Outcome<PathBuf> {
    process::check(process::command(&["cargo", "build"]).args(SHIPPED_PLUGIN))?;
    named_plugin(&target()?.join("dist"))
}

/// Gives the plugin in `folder` the name that NCCL looks for.
fn named_plugin(folder: &Path) -> Outcome<PathBuf> {
    let named = folder.join(PLUGIN_NAMED);
    if !named.is_symlink() {
        // The tool creates a hard link, which leads to the old file after the next build.
        if named.exists() {
            fs::remove_file(&named)?;
        }
        symlink(PLUGIN_BUILT, &named)?;
    }
    Ok(named)
}

/// Builds, in the tests' profile and with their features, the libraries, programs and examples that
/// tests run or load; with `shipped`, also the plugin as it ships. Returns the target folder.
pub(crate) fn for_tests(shipped: bool) -> Outcome<PathBuf> {
    let words = ["cargo", "build", "--workspace", "--lib", "--bins", "--examples"];
    std::thread::scope(|scope| {
        // Beside the other build, because its link-time optimisation uses one core.
        let plugin = shipped.then(|| scope.spawn(|| shipped_plugin().map_err(|e| e.to_string())));
        process::check(&mut process::command(&words))?;
        match plugin.map(ScopedJoinHandle::join) {
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) => Err("the build of the plugin panicked".into()),
            Some(Ok(Ok(_))) | None => target(),
        }
    })
}

/// The target folder, which may be set by the environment or a configuration.
fn target() -> Outcome<PathBuf> {
    let words = ["cargo", "metadata", "--no-deps", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&process::stdout(&mut process::command(&words))?)?;
    let target = metadata["target_directory"].as_str();
    Ok(target.ok_or("cargo metadata without target_directory")?.into())
}
