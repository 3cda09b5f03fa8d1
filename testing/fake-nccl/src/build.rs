// SPDX-License-Identifier: Apache-2.0
//! Libraries that the tests of this crate need as files, in the running test's profile.

use built::Artefact;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The plugin.
///
/// # Panics
/// If it is missing and does not build.
#[must_use]
pub fn plugin() -> PathBuf {
    static PLUGIN: LazyLock<PathBuf> = LazyLock::new(|| path(built::PLUGIN));
    PLUGIN.clone()
}

/// The library of `examples/allocator.rs`, to be preloaded.
#[must_use]
pub fn allocator() -> PathBuf {
    static ALLOCATOR: LazyLock<PathBuf> = LazyLock::new(|| path(built::ALLOCATOR));
    ALLOCATOR.clone()
}

/// The library of `examples/rccl.rs`, to be the caller of a script.
///
/// # Panics
/// If it is missing and does not build.
#[must_use]
pub fn rccl() -> PathBuf {
    static RCCL: LazyLock<PathBuf> = LazyLock::new(|| path(built::RCCL));
    RCCL.clone()
}

fn path(artefact: Artefact) -> PathBuf {
    artefact.path().expect("it is built")
}
