// SPDX-License-Identifier: Apache-2.0
//! The lanes file of this process, and those of dead processes.

use crate::sys;
use crate::sys::child::ClosedInChild;
use crate::sys::descriptor::{self, Identity, Kept};
use ncclscope_recorder::region::Region;
use ncclscope_trace::lanes_file::{self, Owner, PREFIX, SUFFIX};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How many further names are tried for a lanes file.
const NAMES: u32 = 16;

/// The lanes file of this process, locked as long as the process lives.
#[derive(Debug)]
pub(crate) struct LanesFile {
    file: Kept<File>,
    /// The file opened again, after the host closed it.
    again: OnceLock<Kept<File>>,
    path: PathBuf,
}

impl LanesFile {
    /// Creates the file in `folder`, which must lie in memory (tmpfs) and be at most half full. The
    /// file belongs to no recording yet. Another process that looks for files of dead ones may lock
    /// and remove it before this one has locked it: then the next name is taken, because that
    /// process may still remove the first.
    pub(crate) fn create(folder: &Path, pid: u32, nonce: u32) -> io::Result<LanesFile> {
        let mut number = 0;
        loop {
            match LanesFile::create_as(folder, pid, nonce.wrapping_add(number)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && number < NAMES => {
                    number += 1;
                }
                result => break result,
            }
        }
    }

    fn create_as(folder: &Path, pid: u32, nonce: u32) -> io::Result<LanesFile> {
        let path = folder.join(format!("{PREFIX}{pid}-{nonce:08x}{SUFFIX}"));
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let begun = descriptor::settle(file, &path).and_then(Kept::new).and_then(|file| {
            ClosedInChild::Lanes.keep(&file);
            let lanes = LanesFile { file, again: OnceLock::new(), path: path.clone() };
            lanes.begin(pid).map(|()| lanes)
        });
        begun.inspect_err(|_| drop(std::fs::remove_file(&path)))
    }

    /// Takes the lock, then writes the owner into the file. A file without an owner was left by a
    /// process that was killed before that; the next process that gets its lock removes it.
    fn begin(&self, pid: u32) -> io::Result<()> {
        let file = self.file().ok_or(io::ErrorKind::NotFound)?;
        match sys::memory_files(file) {
            None => return Err(io::Error::other("it is not in memory (tmpfs)")),
            Some((free, total)) if free < total / 2 => {
                return Err(io::Error::other("it is more than half full"));
            }
            Some(_) => {}
        }
        file.try_lock()?;
        if !Identity::at(&self.path).is_ok_and(|named| named == self.file.identity()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        file.write_all_at(&Owner::without_recording(pid).encode(), 0)
    }

    /// The open file; `None` if the host has closed it.
    fn file(&self) -> Option<&File> {
        self.file.get().or_else(|| self.again.get()?.get())
    }

    /// Opens the file again, once, if the host has closed it. The lock that shows that the owner
    /// lives is still held, by the mapping of the lanes. If opening fails, further lanes are
    /// private.
    pub(crate) fn find_again(&self) {
        if self.file().is_some() || self.again.get().is_some() {
            return;
        }
        let again = descriptor::open_again(&self.path, self.file.identity());
        if let Ok(file) = again.and_then(Kept::new) {
            ClosedInChild::Lanes.keep(&file);
            let _ = self.again.set(file);
        }
    }

    /// Stores which recording the lanes belong to. Until then no other process can add them to one.
    pub(crate) fn belongs_to(&self, owner: &Owner) -> io::Result<()> {
        let file = self.file().ok_or(io::ErrorKind::NotFound)?;
        file.write_all_at(&owner.encode(), 0)
    }

    /// The file, if `bytes` more leave half of the file system free; else `None`. NCCL needs the
    /// file system too, and crashes if it is full (NVIDIA/nccl#2326).
    pub(crate) fn with_room(&self, bytes: u64) -> Option<&File> {
        self.file().filter(|file| has_room(file, bytes))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file's name; the memory remains until the process exits.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn has_room(file: &File, bytes: u64) -> bool {
    sys::memory_files(file).is_some_and(|(free, total)| free >= bytes + total / 2)
}

/// Releases the lanes file in the child of a fork. The lock belongs to the descriptor and the
/// mapping, which the child shares and would hold as long as it lives. Async-signal-safe.
pub(crate) fn close_in_child(region: &Region) {
    sys::child::close_own();
    region.leave();
}

/// Adds the lanes that killed processes left in `folder` to their recordings, on a thread of its
/// own, because the file system may be slow or hang. If no thread can be started, the next process
/// on the host does it.
pub(crate) fn adopt_stale(folder: &Path) {
    let folder = folder.to_owned();
    let body = move || {
        descriptor::have_own();
        // A panic here does not matter to this process.
        let _ = std::panic::catch_unwind(|| adopt_all(&folder));
    };
    let _ = sys::spawn_quiet("ncclscope/adopt", body);
}

/// Skips files that cannot be read or written, and files of other users.
fn adopt_all(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let user = sys::peer::user();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_one = name.to_str().is_some_and(|n| n.starts_with(PREFIX) && n.ends_with(SUFFIX));
        if is_one {
            let _ = lanes_file::adopt(&entry.path(), user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes of a host that begin at the same time look for files of dead ones meanwhile.
    #[test]
    fn a_file_that_others_look_at_while_it_is_created_is_kept() {
        let folder = tempfile::Builder::new().prefix("nccl-").tempdir_in("/dev/shm").unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    adopt_all(folder.path());
                    // Each process of a host looks once: sixteen names in a row are not met.
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            });
            let all = (0..2_000).map(|number| {
                let lanes = LanesFile::create(folder.path(), 7, 32 * number);
                lanes.map(|lanes| lanes.path().exists())
            });
            let failed: Vec<_> = all.filter(|one| !matches!(one, Ok(true))).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(failed.is_empty(), "{failed:?}");
        });
    }

    #[test]
    fn what_a_process_leaves_that_had_no_recording_yet_is_removed_at_once() {
        let folder = tempfile::Builder::new().prefix("nccl-").tempdir_in("/dev/shm").unwrap();
        let lanes = LanesFile::create(folder.path(), 7, 1).unwrap();
        let path = lanes.path().to_owned();
        adopt_all(folder.path());
        assert!(path.exists(), "its owner lives");
        // What the kernel does when the process ends.
        lanes.file().unwrap().unlock().unwrap();
        adopt_all(folder.path());
        assert!(!path.exists());
    }
}
