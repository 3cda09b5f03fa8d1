// SPDX-License-Identifier: Apache-2.0
//! Libraries that the tests of this crate need as files, in the running test's profile.

use std::path::PathBuf;
use std::sync::LazyLock;

/// The plugin.
///
/// # Panics
/// If it does not build. So does [`allocator`].
#[must_use]
pub fn plugin() -> PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| build(&["--package", "ncclscope-plugin"]));
    BUILT.join("libnccl_profiler_ncclscope.so")
}

/// The library to preload that `examples/allocator.rs` is.
#[must_use]
pub fn allocator() -> PathBuf {
    static BUILT: LazyLock<PathBuf> =
        LazyLock::new(|| build(&["--package", "fake-nccl", "--example", "allocator"]));
    BUILT.join("examples/liballocator.so")
}

/// Builds once, and gives the directory with what was built.
fn build(words: &[&str]) -> PathBuf {
    let directory = built::directory().expect("a build directory");
    built::build(&directory, words).expect("it builds");
    directory
}
