// SPDX-License-Identifier: Apache-2.0
//! The Python with readers and tools of other projects, which `cargo xtask test` makes.

use std::env;
use std::path::PathBuf;

/// That Python, for a test that needs `package` of it: without it, it prints a line that begins
/// with `skipped:`, so that the test can return.
///
/// # Panics
/// `NCCLSCOPE_TEST_PYTHON` names none, and `NCCLSCOPE_REQUIRE_NCCL` is set.
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
