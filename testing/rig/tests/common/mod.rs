// SPDX-License-Identifier: Apache-2.0
//! Helpers of several tests.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The report on a directory of recordings, as JSON, by the tool `cli`.
#[track_caller]
pub(crate) fn report(cli: &Path, folder: &Path) -> Value {
    let output = Command::new(cli).arg("report").arg(folder).args(["--format", "json"]).output();
    let output = output.expect("the tool starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}
