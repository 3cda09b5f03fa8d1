// SPDX-License-Identifier: Apache-2.0
//! Tests in a file system of their own, which not every machine allows to mount.

use std::io::Write;

/// True where that cannot be had, by what `unshare` and `mount` say; then a line says that the test
/// is skipped.
///
/// # Panics
/// If `NCCLSCOPE_REQUIRE_NAMESPACES` is 1.
#[must_use]
pub fn are_forbidden(stderr: &str) -> bool {
    let are_forbidden = stderr.contains("unshare:") || stderr.contains("mount:");
    if are_forbidden {
        let required = std::env::var_os("NCCLSCOPE_REQUIRE_NAMESPACES").is_some_and(|v| v == "1");
        assert!(!required, "no right to mount a file system here: {stderr}");
        // Past the test harness, which captures what is printed by macro.
        let line = format!("skipped: no right to mount a file system here: {stderr}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    are_forbidden
}
