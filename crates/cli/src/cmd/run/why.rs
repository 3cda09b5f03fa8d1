// SPDX-License-Identifier: Apache-2.0
//! The reason why no rank wrote a recording, in one line.

use super::watch::NcclProcess;
use crate::plugin;
use crate::plugin::loading::{LIBRARY_PATH, Loading, PLUGIN};
use ncclscope_control::table::{DIR, MODE};
use ncclscope_control::value::Mode;
use ncclscope_node::nccl::Release;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Prefix of NCCL's messages if it finds no plugin, in all releases.
const NOT_FOUND: &str = "PROFILER/Plugin: Could not";
/// Number of bytes read from the beginning of NCCL's log: the plugin is loaded with the first
/// communicator.
const LOG_MAX: u64 = 1 << 20;

/// The command's processes and their environment.
pub(super) struct NoRecording<'a> {
    pub(super) seen: &'a BTreeMap<u32, NcclProcess>,
    pub(super) loading: &'a Loading,
    pub(super) directory: &'a Path,
    /// The value of `NCCLSCOPE_MODE`.
    pub(super) mode: Option<String>,
    /// NCCL's own message, if there is one.
    pub(super) said: Option<String>,
    /// The command's exit code.
    pub(super) code: u8,
}

impl NoRecording<'_> {
    pub(super) fn text(&self) -> String {
        let said = self.said.as_ref().map(|line| format!(" (NCCL says: {line})"));
        let said = said.unwrap_or_default();
        let ended = match self.code {
            0 => String::new(),
            code => format!(" (the command ended with exit code {code})"),
        };
        format!("no rank wrote a recording: {}{ended}{said}", self.reason())
    }

    fn reason(&self) -> String {
        if is_off(self.mode.as_deref()) {
            return "NCCLSCOPE_MODE is off".into();
        }
        if let Some((pid, seen)) = self.seen.iter().find(|(_, seen)| seen.has_plugin) {
            return self.loaded(*pid, seen);
        }
        let fault =
            |(pid, seen): (&u32, &NcclProcess)| Some((*pid, seen.clone(), self.fault(seen)?));
        if let Some((pid, seen, fault)) = self.seen.iter().find_map(fault) {
            return format!("in {} (pid {pid}) {fault}", seen.name);
        }
        match self.seen.iter().next() {
            Some((pid, seen)) => format!(
                "{} (pid {pid}) loaded NCCL ({}) and made no communicator, or its NCCL did not \
                 find the plugin; NCCL_DEBUG=INFO shows which",
                seen.name,
                seen.library.display()
            ),
            None => "no process of the command on this machine was seen to load libnccl.so or \
                     librccl.so; ranks elsewhere need `ncclscope run` or `ncclscope env` there"
                .into(),
        }
    }

    /// The reason for a process that has loaded the plugin.
    fn loaded(&self, pid: u32, seen: &NcclProcess) -> String {
        let name = &seen.name;
        match seen.environment.get(DIR.name) {
            Some(other) if Path::new(other) != self.directory => {
                format!("{name} (pid {pid}) has NCCLSCOPE_DIR={other}")
            }
            _ if is_off(seen.environment.get(MODE.name).map(String::as_str)) => {
                format!("{name} (pid {pid}) has NCCLSCOPE_MODE=off")
            }
            _ if !plugin::is_ours(&self.loading.path) => {
                let path = self.loading.path.display();
                format!("{name} (pid {pid}) loaded {path}, which is not ncclscope's plugin")
            }
            _ => format!("{name} (pid {pid}) loaded the plugin, and its message is above"),
        }
    }

    /// What keeps the NCCL of a process from loading the plugin.
    fn fault(&self, seen: &NcclProcess) -> Option<String> {
        let library = seen.library.display();
        let release = Release::of(&seen.library).ok().flatten();
        if let Some(release) = release.as_ref().filter(|release| release.api().is_none()) {
            return Some(format!("{} has no profiler interface ({library})", release.name()));
        }
        let told = self.loading.plugin.to_string_lossy();
        match seen.environment.get(PLUGIN) {
            None => {
                return Some(format!(
                    "{PLUGIN} is not set: what started it dropped it: call `ncclscope run` behind \
                     that, or use `ncclscope plugin-path --link`"
                ));
            }
            Some(value) if *value != told => {
                return Some(format!("{PLUGIN} was changed to {value}"));
            }
            Some(_) => {}
        }
        let Some(folder) = &self.loading.folder else {
            let release = release.filter(|release| !release.takes_paths())?;
            return Some(format!("{} loads no plugin by its path", release.name()));
        };
        if seen.is_secure {
            return Some(format!(
                "the loader ignores {LIBRARY_PATH}: it runs setuid or with file capabilities"
            ));
        }
        let listed = seen.environment.get(LIBRARY_PATH).map_or("", String::as_str);
        if !std::env::split_paths(listed).any(|entry| entry == *folder) {
            return Some(format!(
                "{LIBRARY_PATH} lost {}: set it last (`ncclscope env`), or use `ncclscope \
                 plugin-path --link`",
                folder.display()
            ));
        }
        if seen.user != geteuid().as_raw()
            && !is_open_to(&folder.join(&self.loading.plugin), seen.user)
        {
            let (user, folder) = (seen.user, folder.display());
            return Some(format!(
                "runs as uid {user}, which cannot read {folder}: put the plugin into a folder that \
                 every user can read, and nothing else there"
            ));
        }
        (!seen.sees_plugin)
            .then(|| format!("{}/{told} cannot be seen: another container?", folder.display()))
    }
}

/// True if the user may read the file, according to the modes on its path; group membership and
/// access lists may allow more.
fn is_open_to(file: &Path, user: u32) -> bool {
    // If the path is a link, the link's own directory must be accessible as well.
    let Ok(real) = file.canonicalize() else { return true };
    let may = |(path, others): (&Path, u32)| {
        std::fs::metadata(path).is_ok_and(|about| {
            let owners = if about.uid() == user { others << 6 } else { 0 };
            about.mode() & (owners | others << 3 | others) != 0
        })
    };
    let above = file.ancestors().skip(1).chain(real.ancestors().skip(1));
    let above = above.filter(|folder| *folder != Path::new("")).map(|folder| (folder, 1));
    user == 0 || std::iter::once((&*real, 4)).chain(above).all(may)
}

fn is_off(mode: Option<&str>) -> bool {
    mode.is_some_and(|mode| MODE.parse(mode.trim()) == Ok(Mode::Off))
}

/// NCCL's message that it found no plugin, from the files that `NCCL_DEBUG_FILE` names (`%h` host,
/// `%p` process id), if they were written after `since`.
pub(super) fn nccl_says(since: SystemTime) -> Option<String> {
    let pattern = std::env::var("NCCL_DEBUG_FILE").ok()?;
    let (folder, name) = pattern.rsplit_once('/').unwrap_or((".", &pattern));
    let start = name.split('%').next()?;
    let files = std::fs::read_dir(if folder.is_empty() { "/" } else { folder }).ok()?;
    let logs = files.flatten().filter(|file| {
        let is_new = file.metadata().and_then(|m| m.modified()).is_ok_and(|when| when >= since);
        is_new && file.file_name().to_string_lossy().starts_with(start)
    });
    logs.take(256).find_map(|log| line_of(&log.path()))
}

fn line_of(log: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(log).ok()?.take(LOG_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().find_map(|line| line.find(NOT_FOUND).map(|at| &line[at..]))?;
    Some(line.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_of_ones_own_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.so");
        std::fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let user = geteuid().as_raw();
        mode(&file, 0o644);
        mode(dir.path(), 0o700);
        assert!(is_open_to(&file, user) && is_open_to(&file, 0));
        assert!(!is_open_to(&file, user + 1));
        mode(dir.path(), 0o711);
        assert!(is_open_to(&file, user + 1));
        mode(&file, 0o600);
        assert!(!is_open_to(&file, user + 1));
    }
}
