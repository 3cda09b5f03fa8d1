// SPDX-License-Identifier: Apache-2.0
/*!
Finds the plugin: in `NCCLSCOPE_PLUGIN`, beside this executable, in `../lib`, or in `..`, where the
Python package has it.

Cargo names the library `libnccl_profiler_ncclscope.so`, but NCCL looks for a name with dashes. If
only Cargo's file exists, or it is newer, a file with NCCL's name is created beside it. The file is
checked before use: the loader maps the segments in its headers, and a truncated file kills the job.
*/

mod elf;
pub(crate) mod loading;

pub(crate) use elf::{GlibcVersion, fault, needed_glibc};

use ncclscope_console::failure::Failure;
use ncclscope_control::table::PLUGIN;
use ncclscope_node::nccl::find_all;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file name that NCCL looks for if `NCCL_PROFILER_PLUGIN` is `ncclscope`.
pub(crate) const NAME: &str = "libnccl-profiler-ncclscope.so";
/// Cargo's name for the file.
pub(crate) const CARGO_NAME: &str = "libnccl_profiler_ncclscope.so";

/// The absolute path of a complete plugin for this machine.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let path = locate()?;
    let path = std::path::absolute(&path)
        .map_err(|e| Failure::environment(format!("cannot use {}: {e}", path.display())))?;
    match fault(&path) {
        Some(fault) => {
            Err(Failure::environment(format!("{}, the plugin, {fault}", path.display())))
        }
        None => Ok(path),
    }
}

/// Whether the file at `path` is ncclscope's plugin, and not another tool's.
pub(crate) fn is_ours(path: &Path) -> bool {
    let found = find_all(path, &[b"\0ncclscope_version\0".to_vec()]).unwrap_or_default();
    found.iter().all(Option::is_some)
}

fn locate() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os(PLUGIN.name).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        return Err(Failure::environment(format!(
            "{} is {}, which is not a file",
            PLUGIN.name,
            path.display()
        )));
    }
    let executable = std::env::current_exe()
        .map_err(|e| Failure::environment(format!("cannot find the path of this program: {e}")))?;
    let here = executable.parent().unwrap_or_else(|| Path::new("."));
    let directories = [here.to_owned(), here.join("../lib"), here.join("..")];
    directories.iter().find_map(|directory| in_directory(directory)).ok_or_else(|| {
        Failure::environment(format!(
            "cannot find {NAME} beside {}, in ../lib or in ..: install it there, or name it in \
             NCCLSCOPE_PLUGIN",
            executable.display()
        ))
    })
}

fn in_directory(directory: &Path) -> Option<PathBuf> {
    let (named, built) = (directory.join(NAME), directory.join(CARGO_NAME));
    match (metadata(&named), metadata(&built)) {
        (Some(named_is), Some(built_is)) if is_older(&named_is, &built_is) => {
            // The existing copy would load, but it may not be the latest build.
            Some(if link(&built, &named).is_ok() { named } else { built })
        }
        (Some(_), _) => Some(named),
        (None, Some(_)) => Some(if link(&built, &named).is_ok() { named } else { built }),
        (None, None) => None,
    }
}

fn metadata(path: &Path) -> Option<Metadata> {
    std::fs::metadata(path).ok().filter(Metadata::is_file)
}

fn is_older(named: &Metadata, built: &Metadata) -> bool {
    let is_same = (named.dev(), named.ino()) == (built.dev(), built.ino());
    !is_same && (named.mtime(), named.mtime_nsec()) < (built.mtime(), built.mtime_nsec())
}

/// Makes `to` a link to or a copy of `from`, atomically, since a job may be loading it.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    let new = to.with_extension(format!("so.{}", std::process::id()));
    std::fs::hard_link(from, &new).or_else(|_| std::fs::copy(from, &new).map(|_| ()))?;
    std::fs::rename(&new, to).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_name_gets_the_other_and_is_kept_up_to_date() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(in_directory(dir.path()), None);
        let (named, built) = (dir.path().join(NAME), dir.path().join(CARGO_NAME));
        std::fs::write(&built, "one").unwrap();
        assert_eq!(in_directory(dir.path()), Some(named.clone()));
        assert_eq!(std::fs::read(&named).unwrap(), b"one");
        // Like Cargo, which replaces the file.
        std::fs::remove_file(&built).unwrap();
        std::fs::write(&built, "two").unwrap();
        assert_eq!(in_directory(dir.path()), Some(named.clone()));
        assert_eq!(std::fs::read(&named).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        std::fs::remove_file(&built).unwrap();
        assert_eq!(in_directory(dir.path()), Some(named));
    }
}
