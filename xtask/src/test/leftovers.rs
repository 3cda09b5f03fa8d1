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
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

    /// New lanes files of dead processes whose test is over.
    fn lanes(&self) -> Vec<PathBuf> {
        self.created("ncclscope-").filter(|lanes| is_of_a_test(lanes).unwrap_or(false)).collect()
    }

    /// New segments of NCCL that no process uses.
    fn segments(&self) -> Vec<PathBuf> {
        let segments = self.created("nccl-").filter(|path| is_segment(path) && is_old(path));
        let new: Vec<PathBuf> = segments.collect();
        // Looked up after the names: a process uses its segment from its creation on.
        let used = used();
        new.into_iter().filter(|path| !used.contains(path)).collect()
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

/// True for the lanes file of a dead process of this mount namespace whose recording was in a
/// temporary directory that its test has removed: docs/trace-format.md, lanes file.
fn is_of_a_test(lanes: &Path) -> Option<bool> {
    let file = File::open(lanes).ok()?;
    let mut page = [0; 4096];
    (&file).read_exact(&mut page).ok()?;
    let length = usize::from(u16::from_le_bytes([page[16], page[17]]));
    let path = page.get(18..18 + length).filter(|_| page.starts_with(b"NCCLLANE"))?;
    let recording = Path::new(OsStr::from_bytes(path));
    let is_gone = recording.parent().is_some_and(|directory| !directory.exists());
    let mounts = std::fs::metadata("/proc/self/ns/mnt").ok()?.ino();
    Some(
        page[4048..4056] == mounts.to_le_bytes()
            && recording.starts_with(std::env::temp_dir())
            && is_gone
            && file.try_lock().is_ok(),
    )
}

/// Whether the name is one that NCCL gives: `nccl-` and six letters or digits of `mkstemp`.
fn is_segment(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
    name.len() == "nccl-XXXXXX".len() && name[5..].iter().all(u8::is_ascii_alphanumeric)
}

/// A segment of processes of another PID namespace, which are not seen here, is likely to have
/// been opened by all of them after this time; NCCL needs its name no more.
fn is_old(path: &Path) -> bool {
    let age = std::fs::metadata(path).and_then(|of| of.modified()).map(|at| at.elapsed());
    age.is_ok_and(|age| age.is_ok_and(|age| age > Duration::from_secs(60)))
}

/// The files in memory that processes have open or mapped.
fn used() -> HashSet<PathBuf> {
    let processes = || std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps = processes().filter_map(|one| std::fs::read_to_string(one.path().join("maps")).ok());
    let mapped = |maps: String| {
        let paths = maps.lines().filter_map(|line| Some(line[line.find(MEMORY)?..].into()));
        paths.collect::<Vec<PathBuf>>()
    };
    let open = processes().filter_map(|one| std::fs::read_dir(one.path().join("fd")).ok());
    let open = open.flatten().flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    maps.flat_map(mapped).chain(open).collect()
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
        let mounts = std::fs::metadata("/proc/self/ns/mnt").expect("it is there").ino();
        page[4048..4056].copy_from_slice(&mounts.to_le_bytes());
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
        let alive = lanes("alive", &gone);
        let owner = File::open(&alive).expect("it is there");
        owner.lock().expect("no process has it");
        let kept = [lanes("there", &here), lanes("elsewhere", Path::new("/gone")), old, alive];
        // Other tests run at the same time.
        let left = before.lanes();
        assert!(left.contains(&new) && kept.iter().all(|path| !left.contains(path)), "{left:?}");
        for path in kept.into_iter().chain([new]) {
            std::fs::remove_file(path).expect("it is ours");
        }
    }

    #[test]
    fn segments_have_the_names_that_nccl_gives() {
        let is = |name: &str| is_segment(&Path::new(MEMORY).join(name));
        assert!(is("nccl-43jWBU"));
        assert!(!is("nccl-tests.tar.gz") && !is("nccl-d.bugs") && !is("nccl-"));
    }
}
