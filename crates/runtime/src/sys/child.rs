// SPDX-License-Identifier: Apache-2.0
//! Descriptors that the child of a fork must close: their locks and listening sockets would
//! otherwise exist as long as the child does.

use super::descriptor::{Identity, Kept};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A descriptor that the child of a fork closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClosedInChild {
    /// The lanes file, which is locked.
    Lanes,
    /// The control socket, which is listened to.
    Control,
}

struct Number {
    number: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

const NONE: i32 = -1;
static OWN: [Number; 2] = [const {
    let (device, inode) = (AtomicU64::new(0), AtomicU64::new(0));
    Number { number: AtomicI32::new(NONE), device, inode }
}; 2];

impl ClosedInChild {
    /// Makes children close `file`, as long as its number leads to it.
    pub(crate) fn keep<T: AsFd>(self, file: &Kept<T>) {
        let Some(fd) = file.get().map(|file| file.as_fd().as_raw_fd()) else { return };
        let own = &OWN[self as usize];
        let (device, inode) = file.identity().words();
        own.number.store(NONE, Ordering::Relaxed);
        own.device.store(device, Ordering::Release);
        own.inode.store(inode, Ordering::Release);
        own.number.store(fd, Ordering::Release);
    }
}

/// Closes these descriptors in the child of a fork. Async-signal-safe.
pub(crate) fn close_own() {
    for own in &OWN {
        let fd = own.number.swap(NONE, Ordering::AcqRel);
        let kept = (own.device.load(Ordering::Acquire), own.inode.load(Ordering::Acquire));
        if fd == NONE {
            continue;
        }
        // SAFETY: the number is only used to ask what it leads to, and may be closed.
        let found = Identity::of(unsafe { BorrowedFd::borrow_raw(fd) });
        if found.is_ok_and(|found| found.words() == kept) {
            // SAFETY: the child's copy of our descriptor, which nothing uses there: its owners are
            // threads that the child does not have, and statics that are not dropped.
            unsafe { libc::close(fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::lanes::LanesFile;
    use ncclscope_recorder::region::Region;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// Like a host that closes all files: the lock stays, and the file can be opened again.
    #[test]
    fn lanes_that_the_host_has_closed_stay_locked_and_are_found_again() {
        let folder = tempfile::Builder::new().prefix("nccl-").tempdir_in("/dev/shm").unwrap();
        let lanes = LanesFile::create(folder.path(), 7, 1).unwrap();
        let number = lanes.with_room(0).unwrap().as_raw_fd();
        let region = Region::new();
        region.reserve(lanes.with_room(0)).unwrap();
        // SAFETY: the inode behind the number is checked before each use.
        assert_eq!(unsafe { libc::close(number) }, 0);
        assert!(lanes.with_room(0).is_none());
        lanes.find_again();
        assert!(lanes.with_room(0).is_some());
        let locked = || File::open(lanes.path()).unwrap().try_lock_shared().is_err();
        assert!(locked());
        // The child of a fork closes it.
        super::close_own();
        assert!(lanes.with_room(0).is_none() && locked());
        region.leave();
        assert!(!locked());
    }
}
