// SPDX-License-Identifier: Apache-2.0
//! Files of others in `../shared/data`.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A file or folder below `../shared/data`; prints a line if it is not there.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = data.join(name);
    if !path.exists() {
        // The test harness captures what macros print, so this writes to stderr directly.
        let mut out = std::io::stderr();
        writeln!(out, "skipped: {} not found", path.display()).unwrap();
        return None;
    }
    Some(path)
}
