// SPDX-License-Identifier: Apache-2.0
//! Removes what the ranks that tests killed left in `/dev/shm`.
//!
//! A full run of the tests leaves 2 GiB there, in the memory of the machine: the lanes files of
//! ncclscope, which wait an hour for a recording whose directory was deleted, and the segments of
//! NCCL. If half of the file system is used, ranks keep their lanes in private memory, and the
//! tests that read the lanes of killed ranks fail.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const MEMORY: &str = "/dev/shm";

/// The files that were there before the tests.
pub(super) struct Before(HashSet<OsString>);

impl Before {
    /// To be called before the tests.
    pub(super) fn now() -> Before {
        Before(names().collect())
    }

    /// Removes what the tests left. A file that cannot be removed stays.
    pub(super) fn clean(&self) {
        let left = self.lanes().into_iter().chain(self.segments());
        left.for_each(|path| drop(std::fs::remove_file(path)));
    }

    /// New lanes files of processes whose test is over.
    fn lanes(&self) -> Vec<PathBuf> {
        let of_a_test = |lanes: &PathBuf| recording(lanes).is_some_and(|file| is_of_a_test(&file));
        self.created("ncclscope-").filter(of_a_test).collect()
    }

    /// New segments of NCCL that no process uses.
    fn segments(&self) -> Vec<PathBuf> {
        let new: Vec<PathBuf> = self.created("nccl-").collect();
        // Looked up after the names: a process maps its segment right after it has created it.
        let mapped = mapped();
        new.into_iter().filter(|path| !mapped.contains(path)).collect()
    }

    fn created(&self, prefix: &str) -> impl Iterator<Item = PathBuf> {
        let is_new = |name: &OsString| !self.0.contains(name);
        let is_one = move |name: &OsString| name.as_bytes().starts_with(prefix.as_bytes());
        names().filter(is_new).filter(is_one).map(|name| Path::new(MEMORY).join(name))
    }
}

fn names() -> impl Iterator<Item = OsString> {
    std::fs::read_dir(MEMORY).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// The recording that a lanes file names: docs/trace-format.md, lanes file.
fn recording(lanes: &Path) -> Option<PathBuf> {
    let mut page = [0; 4096];
    File::open(lanes).and_then(|mut file| file.read_exact(&mut page)).ok()?;
    let length = usize::from(u16::from_le_bytes([page[16], page[17]]));
    let path = page.get(18..18 + length).filter(|_| page.starts_with(b"NCCLLANE"))?;
    Some(OsStr::from_bytes(path).into())
}

/// True if the recording was in a temporary directory that its test has removed.
fn is_of_a_test(recording: &Path) -> bool {
    recording.starts_with(std::env::temp_dir()) && recording.parent().is_some_and(|at| !at.exists())
}

/// The files in memory that processes have mapped.
fn mapped() -> HashSet<PathBuf> {
    let maps = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps = maps.filter_map(|entry| std::fs::read_to_string(entry.path().join("maps")).ok());
    let paths = |maps: String| {
        let paths = maps.lines().filter_map(|line| Some(line[line.find(MEMORY)?..].into()));
        paths.collect::<Vec<PathBuf>>()
    };
    maps.flat_map(paths).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lanes file in memory whose recording is in `directory`.
    fn lanes(name: &str, directory: &Path) -> PathBuf {
        let path = Path::new(MEMORY).join(format!("ncclscope-{name}-{}.lanes", std::process::id()));
        let recording = directory.join("x.nscope");
        let recording = recording.as_os_str().as_bytes();
        let mut page = b"NCCLLANE".to_vec();
        page.resize(4096, 0);
        page[16..18]
            .copy_from_slice(&u16::try_from(recording.len()).expect("it is written").to_le_bytes());
        page[18..18 + recording.len()].copy_from_slice(recording);
        std::fs::write(&path, page).expect("it is written");
        path
    }

    #[test]
    fn only_what_is_new_and_belongs_to_a_test_is_left_over() {
        let here = std::env::temp_dir();
        let gone = here.join("xtask-leftovers-gone");
        let old = lanes("old", &gone);
        let before = Before::now();
        let new = lanes("new", &gone);
        let kept = [lanes("there", &here), lanes("elsewhere", Path::new("/gone")), old];
        // Other tests run at the same time.
        let left = before.lanes();
        assert!(left.contains(&new) && kept.iter().all(|path| !left.contains(path)), "{left:?}");
        for path in kept.into_iter().chain([new]) {
            std::fs::remove_file(path).expect("it is ours");
        }
    }
}
