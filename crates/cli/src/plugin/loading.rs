// SPDX-License-Identifier: Apache-2.0
/*!
The environment with which NCCL loads the plugin: a bare name in `NCCL_PROFILER_PLUGIN`, and the
plugin's folder at the head of `LD_LIBRARY_PATH`.

Only this form works with each release from 2.23 on (`docs/loading.md`): 2.27.3 turns a path into
`libnccl-profiler-/a/path.so.so`, and up to 2.25 a short name gets no prefix. The folder must not
change which other libraries the job loads, and its name must not contain characters that are
special to the loader; otherwise the plugin gets a link in a folder of its own, in the user's cache.
*/

use crate::plugin::{self, NAME};
use ncclscope_console::failure::Failure;
use ncclscope_control::table::{self, CHAIN};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// The variable that names the plugin.
pub(crate) const PLUGIN: &str = "NCCL_PROFILER_PLUGIN";
/// The folders that the dynamic loader searches first.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The file that NCCL loads if the variable is unset, in each release from 2.23 on.
pub(crate) const DEFAULT: &str = "libnccl-profiler.so";
/// The file that RCCL loads then up to 2.28; from 2.30 on it loads [`DEFAULT`].
pub(crate) const DEFAULT_OF_RCCL: &str = "librccl-profiler.so";
/// NCCL keeps the value in 255 bytes with a final zero, and cuts a longer one silently
/// (NCCL `src/plugin/plugin_open.cc:37@v2.30.7-1`).
const VALUE_MAX: usize = 254;

/// The values to set.
#[derive(Debug)]
pub(crate) struct Loading {
    /// The plugin's file.
    pub(crate) path: PathBuf,
    /// The value of `NCCL_PROFILER_PLUGIN`.
    pub(crate) plugin: OsString,
    /// The folder at the head of `LD_LIBRARY_PATH`; `None` if the value is a path.
    pub(crate) folder: Option<PathBuf>,
    /// The value of `NCCLSCOPE_CHAIN`: the plugin that the variable named before.
    pub(crate) chain: Option<String>,
}

impl Loading {
    /// The values for the plugin that [`plugin::find`] finds. Warns the user of special cases.
    pub(crate) fn find() -> Result<Loading, Failure> {
        let path = plugin::find()?;
        let mut loading = Loading::of(&path)?;
        if loading.folder.is_none() {
            ncclscope_console::failure::warn(format_args!(
                "NCCL gets the plugin as {}, a path, which 2.27.3 does not load: put it into a \
                 folder of its own, without `:`, `;` or `$` in its path",
                path.display()
            ));
        }
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        loading.chain = set(PLUGIN).filter(|other| set(CHAIN.name).is_none() && is_another(other));
        if let Some(other) = &loading.chain {
            ncclscope_console::failure::tell(format_args!(
                "{PLUGIN} names {other}: it gets every callback too ({})",
                CHAIN.name
            ));
        }
        Ok(loading)
    }

    /// The values for the plugin at the absolute path `path`.
    pub(crate) fn of(path: &Path) -> Result<Loading, Failure> {
        let named = |folder, name: &OsStr| Loading {
            path: path.to_owned(),
            plugin: name.to_owned(),
            folder: Some(folder),
            chain: None,
        };
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name())
            && is_library(name)
            && can_be_listed(folder)
            && has_nothing_else(folder, name)
        {
            return Ok(named(folder.to_owned(), name));
        }
        if let Some(folder) = folder_of_its_own(path) {
            return Ok(named(folder, NAME.as_ref()));
        }
        let length = path.as_os_str().len();
        if length > VALUE_MAX {
            return Err(Failure::environment(format!(
                "the plugin's path has {length} bytes, and NCCL cuts it at {VALUE_MAX}: copy \
                 {NAME} to a shorter path and name it in NCCLSCOPE_PLUGIN"
            )));
        }
        Ok(Loading { path: path.into(), plugin: path.into(), folder: None, chain: None })
    }

    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![(PLUGIN, self.plugin.clone())];
        if let Some(folder) = &self.folder {
            let before = std::env::var_os(LIBRARY_PATH).unwrap_or_default();
            variables.push((LIBRARY_PATH, at_the_head(folder, &before)));
        }
        variables.extend(self.chain.as_ref().map(|chain| (CHAIN.name, chain.into())));
        variables
    }
}

/// `LD_LIBRARY_PATH` with `folder` first. An empty entry means the working directory.
fn at_the_head(folder: &Path, before: &OsStr) -> OsString {
    let mut value = folder.as_os_str().to_owned();
    let rest = before.as_bytes().strip_prefix(value.as_bytes());
    if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":")) {
        return before.to_owned();
    }
    if !before.is_empty() {
        value.push(":");
        value.push(before);
    }
    value
}

/// True if NCCL 2.27.3 uses the name unchanged.
fn is_library(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"lib") && name.as_bytes().ends_with(b".so")
}

/// True if the folder's name has no character with a special meaning in a list of folders
/// (`ld.so(8)`).
fn can_be_listed(folder: &Path) -> bool {
    !folder.as_os_str().as_bytes().iter().any(|byte| b":;$".contains(byte))
}

/// True if no other library in `folder` could replace one of the job's.
fn has_nothing_else(folder: &Path, name: &OsStr) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().map(|entry| entry.file_name()).all(|file| {
        let text = file.to_string_lossy();
        let is_ours = file == name || text == NAME || text == plugin::CARGO_NAME;
        is_ours || !(text.ends_with(".so") || text.contains(".so."))
    })
}

/// A folder that contains only a link to the plugin, if the user has a cache folder.
fn folder_of_its_own(path: &Path) -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")))?;
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let folder = cache.join(format!("ncclscope/plugin/{:016x}", hasher.finish()));
    (folder.is_absolute() && can_be_listed(&folder)).then_some(())?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    // If other users could write to the folder, they could load code into the job.
    let metadata = std::fs::symlink_metadata(&folder).ok()?;
    let is_mine = metadata.uid() == rustix::process::geteuid().as_raw();
    (metadata.is_dir() && is_mine && metadata.mode() & 0o022 == 0).then_some(())?;
    link(path, &folder.join(NAME)).ok()?;
    Some(folder)
}

/// Makes `to` a link to `from`, atomically, since a job may be loading it.
pub(crate) fn link(from: &Path, to: &Path) -> io::Result<()> {
    if std::fs::read_link(to).is_ok_and(|there| there == from) {
        return Ok(());
    }
    let mut new = to.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    symlink(from, &new)?;
    std::fs::rename(&new, to).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

/// True if a value of `NCCL_PROFILER_PLUGIN` names another plugin.
fn is_another(value: &str) -> bool {
    let name = Path::new(value).file_name().unwrap_or_default();
    let ours = [NAME, plugin::CARGO_NAME, "ncclscope", DEFAULT, DEFAULT_OF_RCCL];
    !value.eq_ignore_ascii_case("none")
        && !is_static(value)
        && !ours.iter().any(|ours| name == *ours)
        && std::env::var_os(table::PLUGIN.name).is_none_or(|ours| ours != value)
}

/// True for this word and each of its prefixes, which NCCL accepts (`src/plugin/plugin_open.cc`).
pub(crate) fn is_static(value: &str) -> bool {
    !value.is_empty() && "STATIC_PLUGIN".starts_with(&value.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_comes_first_and_what_was_there_stays() {
        let put = |before: &str| at_the_head(Path::new("/p q"), before.as_ref());
        assert_eq!(put(""), "/p q");
        assert_eq!(put("/a:/b"), "/p q:/a:/b");
        assert_eq!(put("/a:"), "/p q:/a:");
        // `ncclscope run` within `ncclscope run`.
        assert_eq!(put("/p q:/a"), "/p q:/a");
        assert_eq!(put("/p q"), "/p q");
        assert_eq!(put("/p q2"), "/p q:/p q2");
    }

    #[test]
    fn a_folder_that_has_other_libraries_is_not_put_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        for name in [NAME, plugin::CARGO_NAME, "ncclscope", "notes.sort"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert!(has_nothing_else(dir.path(), NAME.as_ref()));
        for name in ["libcrypto.so.3", "libnccl.so"] {
            std::fs::write(dir.path().join(name), "").unwrap();
            assert!(!has_nothing_else(dir.path(), NAME.as_ref()));
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        for (folder, is_right) in [("/a b", true), ("/a:b", false), ("/a;b", false), ("/$x", false)]
        {
            assert_eq!(can_be_listed(Path::new(folder)), is_right, "{folder}");
        }
        assert!(is_library("libx.so".as_ref()) && !is_library("x.so".as_ref()));
    }

    #[test]
    fn another_plugin_is_told_from_ours() {
        for other in ["inspector", "/opt/libnccl-profiler-x.so", "libnccl-profiler-x.so"] {
            assert!(is_another(other), "{other}");
        }
        for ours in ["none", "ncclscope", NAME, "/a/libnccl_profiler_ncclscope.so", "static"] {
            assert!(!is_another(ours), "{ours}");
        }
    }
}
