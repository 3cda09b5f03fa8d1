// SPDX-License-Identifier: Apache-2.0
//! Finds the NCCL libraries that `cargo xtask nccl fetch` has unpacked.

use std::env;
use std::path::{Path, PathBuf};

/// An NCCL release in a wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Version, such as `2.30.7`.
    pub version: &'static str,
    /// Major version of the CUDA it is built for, 12 or 13.
    pub cuda: u8,
    /// The newest profiler API version that it supports: it uses this plugin interface if the
    /// plugin has it, otherwise the next older one.
    pub api: u8,
}

const fn release(version: &'static str, cuda: u8, api: u8) -> Release {
    Release { version, cuda, api }
}

/// All releases that ran on the stand-in, oldest first: each one that changed the profiler.
pub const ALL: [Release; 12] = [
    release("2.23.4", 12, 1),
    release("2.24.3", 12, 2),
    release("2.25.1", 12, 2),
    release("2.26.5", 12, 3),
    release("2.27.3", 12, 4),
    release("2.27.7", 12, 4),
    release("2.28.9", 12, 5),
    release("2.28.9", 13, 5),
    release("2.29.7", 12, 6),
    release("2.30.7", 12, 6),
    release("2.31.2", 12, 7),
    release("2.32.3", 12, 7),
];

/// Releases that every test run covers, oldest first: one of each API version, and 2.27.3, which
/// loads plugins differently and is the NCCL of torch 2.8. `cargo xtask test` fetches these
/// (`NCCL_VERSIONS`).
pub const TESTED: [&str; 8] =
    ["2.23.4", "2.25.1", "2.26.5", "2.27.3", "2.27.7", "2.28.9", "2.30.7", "2.32.3"];

/// Releases of [`TESTED`] with events of every level, from API calls to kernels.
pub const RELEASES: [&str; 3] = ["2.28.9", "2.30.7", "2.32.3"];

impl Release {
    /// Path of the release's `libnccl.so.2`: `cuNN-VERSION/` in the directory that
    /// `NCCLSCOPE_NCCL_DIR` names, or else in `$HOME/.cache/ncclscope/nccl`.
    ///
    /// # Errors
    /// A text with the path that is missing and the command that makes it.
    pub fn find(self) -> Result<PathBuf, String> {
        find_for(self.version, self.cuda)
    }
}

/// The `libnccl.so.2` of any release, built for CUDA 12; see [`Release::find`].
///
/// # Errors
/// A text with the path that is missing and the command that makes it.
pub fn find(version: &str) -> Result<PathBuf, String> {
    find_for(version, 12)
}

/// The `libnccl.so.2` of any release, built for the major version `cuda`; see [`Release::find`].
///
/// # Errors
/// A text with the path that is missing and the command that makes it.
pub fn find_for(version: &str, cuda: u8) -> Result<PathBuf, String> {
    let path = directory()?.join(format!("cu{cuda}-{version}")).join("libnccl.so.2");
    if path.is_file() {
        return Ok(path);
    }
    let option = if cuda == 12 { String::new() } else { format!(" --cuda {cuda}") };
    Err(format!("{} is missing: run `cargo xtask nccl fetch {version}{option}`", path.display()))
}

/// [`find`] for a test: without the library it prints a line that begins with `skipped:`, so that
/// the test can return.
///
/// # Panics
/// The library is missing, `NCCLSCOPE_REQUIRE_NCCL` is 1, and the release is one of [`TESTED`];
/// other releases are optional.
#[must_use]
#[expect(clippy::print_stdout, reason = "a skipped test must say so")]
pub fn find_or_skip(version: &str) -> Option<PathBuf> {
    let required = env::var_os("NCCLSCOPE_REQUIRE_NCCL").is_some_and(|value| value == "1");
    match find(version) {
        Ok(path) => Some(path),
        Err(missing) => {
            assert!(!required || !TESTED.contains(&version), "{missing}");
            println!("skipped: {missing}");
            None
        }
    }
}

fn directory() -> Result<PathBuf, String> {
    if let Some(named) = env::var_os("NCCLSCOPE_NCCL_DIR") {
        return Ok(named.into());
    }
    let home = env::var_os("HOME").ok_or("neither NCCLSCOPE_NCCL_DIR nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/ncclscope/nccl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_release_names_the_remedy() {
        let error = find("0.0.0").expect_err("there is no such release");
        assert!(error.contains("cu12-0.0.0/libnccl.so.2 is missing"), "{error}");
        assert!(error.ends_with("`cargo xtask nccl fetch 0.0.0`"), "{error}");
        let error = find_for("0.0.0", 13).expect_err("there is no such release");
        assert!(error.ends_with("`cargo xtask nccl fetch 0.0.0 --cuda 13`"), "{error}");
    }

    #[test]
    fn one_release_of_each_api_version_is_tested() {
        let api = |version: &&str| {
            ALL.iter().find(|release| release.version == *version && release.cuda == 12)
        };
        let mut apis: Vec<_> = TESTED.iter().filter_map(api).map(|release| release.api).collect();
        assert_eq!(apis.len(), TESTED.len());
        apis.dedup();
        assert_eq!(apis, [1, 2, 3, 4, 5, 6, 7]);
        assert!(RELEASES.iter().all(|version| TESTED.contains(version)));
    }
}
