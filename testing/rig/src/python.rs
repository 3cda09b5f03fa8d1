// SPDX-License-Identifier: Apache-2.0
//! The Python with other projects' readers and tools, which `cargo xtask test` installs.

use std::env;
use std::path::PathBuf;

/// Path of this Python, for a test that needs its package `package`. `None` without the package;
/// then it has printed a line that begins with `skipped:`, so that the test can return.
///
/// # Panics
/// `NCCLSCOPE_TEST_PYTHON` names no such Python, and `NCCLSCOPE_REQUIRE_NCCL` is set.
#[must_use]
#[expect(clippy::print_stdout, reason = "a skipped test must say so")]
pub fn with_or_skip(package: &str) -> Option<PathBuf> {
    let found = env::var_os("NCCLSCOPE_TEST_PYTHON").map(PathBuf::from);
    if found.is_none() {
        let missing = format!("NCCLSCOPE_TEST_PYTHON names no Python with {package}");
        assert!(env::var_os("NCCLSCOPE_REQUIRE_NCCL").is_none(), "{missing}");
        println!("skipped: {missing}");
    }
    found
}
