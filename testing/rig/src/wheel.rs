// SPDX-License-Identifier: Apache-2.0
//! Finds the NCCL libraries that `cargo xtask nccl fetch` has unpacked.

use std::env;
use std::path::{Path, PathBuf};

/// Releases that every test with a real NCCL covers, the oldest first.
pub const RELEASES: [&str; 3] = ["2.28.9", "2.30.7", "2.32.3"];

/// The `libnccl.so.2` of a release, built for CUDA 12.
///
/// It is looked for in `cu12-VERSION/` in the directory that `NCCLSCOPE_NCCL_DIR` names, or else
/// in `$HOME/.cache/ncclscope/nccl`.
///
/// # Errors
/// A text with the path that is missing and the command that makes it.
pub fn find(version: &str) -> Result<PathBuf, String> {
    let path = directory()?.join(format!("cu12-{version}")).join("libnccl.so.2");
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("{} is missing: run `cargo xtask nccl fetch {version}`", path.display()))
}

/// As [`find`], for a test: without the library it prints a line that begins with `skipped:`, so
/// that the test can return.
///
/// # Panics
/// The library is missing and `NCCLSCOPE_REQUIRE_NCCL` is 1.
#[must_use]
#[expect(clippy::print_stdout, reason = "a skipped test must say so")]
pub fn find_or_skip(version: &str) -> Option<PathBuf> {
    let required = env::var_os("NCCLSCOPE_REQUIRE_NCCL").is_some_and(|value| value == "1");
    match find(version) {
        Ok(path) => Some(path),
        Err(missing) => {
            assert!(!required, "{missing}");
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
    }
}
