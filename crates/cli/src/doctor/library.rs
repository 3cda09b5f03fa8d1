// SPDX-License-Identifier: Apache-2.0
//! Whether this host's C library is new enough for the plugin.

use super::check::Check;
use crate::plugin::{GlibcVersion, needed_glibc};
use ncclscope_node::nccl::find_all;
use std::path::{Path, PathBuf};

/// The text before the version in glibc's binary.
const BEFORE_VERSION: &[u8] = b"stable release version ";

/// The check for the plugin at `path`; `None` if a version is unknown.
pub(super) fn check(path: &Path) -> Option<Check> {
    Some(compared(needed_glibc(path)?, of_host()?))
}

fn compared(needed: GlibcVersion, here: GlibcVersion) -> Check {
    let version = |GlibcVersion(major, minor)| format!("{major}.{minor}");
    let detail = format!("glibc {} here, the plugin needs {}", version(here), version(needed));
    if here < needed {
        let advice = "the loader refuses the plugin: use one that was built on an older system";
        return Check::fail("C library", detail, advice);
    }
    Check::ok("C library", detail)
}

/// The version of the C library that this program has loaded.
fn of_host() -> Option<GlibcVersion> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let files = maps.lines().filter_map(|line| line.split_once('/'));
    let files = files.map(|(_, path)| PathBuf::from(format!("/{path}")));
    let is_libc = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "libc.so.6" || name.starts_with("libc-2.")
    };
    let found = find_all(&{ files }.find(is_libc)?, &[BEFORE_VERSION.to_vec()]).ok()?;
    GlibcVersion::parse(found.first()?.as_deref()?.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn an_older_library_is_a_failure() {
        let of = |needed, here| compared(needed, here).status;
        let (old, new) = (GlibcVersion(2, 28), GlibcVersion(2, 34));
        assert_eq!(
            (of(old, new), of(new, new), of(new, old)),
            (Status::Ok, Status::Ok, Status::Fail)
        );
        let text = compared(new, old).detail;
        assert_eq!(text, "glibc 2.28 here, the plugin needs 2.34");
    }

    #[test]
    fn the_versions_of_this_program_are_known() {
        let program = std::env::current_exe().unwrap();
        let check = check(&program).expect("tests are linked with glibc");
        assert_eq!(check.status, Status::Ok, "{check:?}");
    }
}
