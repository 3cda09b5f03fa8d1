// SPDX-License-Identifier: Apache-2.0
//! Tests in a private mount namespace, which not every machine allows.

use std::io::Write;

/// True if `unshare` and `mount` fail; then prints that the test is skipped.
///
/// # Panics
/// If `NCCLSCOPE_REQUIRE_NAMESPACES` is 1.
#[must_use]
pub fn are_forbidden(stderr: &str) -> bool {
    let are_forbidden = stderr.contains("unshare:") || stderr.contains("mount:");
    if are_forbidden {
        let required = std::env::var_os("NCCLSCOPE_REQUIRE_NAMESPACES").is_some_and(|v| v == "1");
        assert!(!required, "no right to mount a file system here: {stderr}");
        // The test harness captures what macros print, so this writes to stderr directly.
        let line = format!("skipped: no right to mount a file system here: {stderr}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    are_forbidden
}
