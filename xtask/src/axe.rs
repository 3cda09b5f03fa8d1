// SPDX-License-Identifier: Apache-2.0
//! axe-core, which checks the accessibility of pages. It is fetched from npm, for tests only, and
//! stays in `$HOME/.cache/ncclscope`.

use std::path::PathBuf;

use crate::nccl::cache;
use crate::outcome::Outcome;
use crate::process;

/// The version that tests use.
const VERSION: &str = "4.14.1";

/// The script's path; fetches it if it is missing. The file appears complete or not at all.
pub(crate) fn fetch() -> Outcome<PathBuf> {
    let folder = cache()?.join("axe-core");
    let script = folder.join(format!("axe-{VERSION}.min.js"));
    if script.exists() {
        return Ok(script);
    }
    let scratch = folder.join(format!("tmp{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let package = format!("axe-core@{VERSION}");
    let mut npm = process::command(&["npm", "pack", "--silent", &package, "--pack-destination"]);
    process::check(npm.arg(&scratch))?;
    let archive = scratch.join(format!("axe-core-{VERSION}.tgz"));
    let mut tar = process::command(&["tar", "--extract", "--gzip", "--file"]);
    tar.arg(&archive).arg("--directory").arg(&scratch).arg("package/axe.min.js");
    process::check(&mut tar)?;
    std::fs::rename(scratch.join("package/axe.min.js"), &script)?;
    std::fs::remove_dir_all(&scratch)?;
    Ok(script)
}
