// SPDX-License-Identifier: Apache-2.0
//! Libraries that the tests of this crate need as files: made in the running test's target folder
//! and profile, unless this build has made them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// The plugin.
///
/// # Panics
/// If it does not build. So does [`allocator`].
#[must_use]
pub fn plugin() -> PathBuf {
    static ONCE: Once = Once::new();
    let profile = profile();
    ONCE.call_once(|| build(&profile, &["--package", "ncclscope-plugin"]));
    profile.join("libnccl_profiler_ncclscope.so")
}

/// The library to preload that `examples/allocator.rs` is.
#[must_use]
pub fn allocator() -> PathBuf {
    static ONCE: Once = Once::new();
    let profile = profile();
    ONCE.call_once(|| build(&profile, &["--package", "fake-nccl", "--example", "allocator"]));
    profile.join("examples/liballocator.so")
}

/// `TARGET/PROFILE` of the running test, which lies in `deps` there.
fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("the running test");
    test.ancestors().nth(2).expect("a target folder").to_owned()
}

fn build(profile: &Path, what: &[&str]) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet"]).args(what).arg("--target-dir");
    cargo.arg(profile.parent().expect("a target folder"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo starts").success(), "{what:?} does not build");
}
