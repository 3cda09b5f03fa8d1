// SPDX-License-Identifier: Apache-2.0
/*!
Descriptors that stay open for long, in a process that is not ours.

A host may close whatever is open (`close_range`, as daemons do) and open files of its own, which
get our numbers: what we wrote would then go into its files. So ours have numbers that a host hardly
comes to, never those of the standard files, and before each use [`Identity`] tells whether the
number still leads to what we opened. A descriptor that does not is let go, not closed.
*/

use core::mem::ManuallyDrop;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The least number that ours get, where so many are allowed; hosts get the lowest that are free.
const HIGH: libc::rlim_t = 1000;

/// What a descriptor leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    device: (u32, u32),
    inode: u64,
}

impl Identity {
    /// What `file` leads to; nothing is asked of a file's server.
    ///
    /// # Errors
    /// The system's: it may not be open.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Identity> {
        // SAFETY: zero is a valid value of this plain C struct.
        let mut found: libc::statx = unsafe { core::mem::zeroed() };
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // By number: glibc has the function from 2.28 on only.
        // SAFETY: the name is a string, and `found` valid to write to; any number may be asked for.
        let result = unsafe {
            libc::syscall(
                libc::SYS_statx,
                file.as_raw_fd(),
                c"".as_ptr(),
                flags,
                libc::STATX_INO,
                &raw mut found,
            )
        };
        if result == 0 {
            let device = (found.stx_dev_major, found.stx_dev_minor);
            return Ok(Identity { device, inode: found.stx_ino });
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Kernels before 4.11, and containers that do not know the call.
            Some(libc::ENOSYS | libc::EPERM) => Identity::of_older(file),
            _ => Err(error),
        }
    }

    /// Device and inode.
    pub(crate) fn words(self) -> (u64, u64) {
        let (major, minor) = self.device;
        (u64::from(major) << 32 | u64::from(minor), self.inode)
    }

    fn of_older(file: BorrowedFd<'_>) -> io::Result<Identity> {
        // SAFETY: zero is a valid value of this plain C struct.
        let mut found: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `found` is valid to write to.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut found) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Identity {
            device: (libc::major(found.st_dev), libc::minor(found.st_dev)),
            inode: found.st_ino,
        })
    }

    /// True while the number of `file` leads to it.
    pub(crate) fn is(self, file: impl AsFd) -> bool {
        Identity::of(file.as_fd()).is_ok_and(|found| found == self)
    }
}

/// The same open file under a number that the host hardly comes to; under its own where there is
/// none. The standard files' numbers it never keeps.
///
/// # Errors
/// The system's, where it has the number of a standard file and can have no other.
pub(crate) fn move_up<T: From<OwnedFd> + Into<OwnedFd>>(file: T) -> io::Result<T> {
    let file: OwnedFd = file.into();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid to write to.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let high = i32::try_from(HIGH.min(limit.rlim_cur / 4 * 3)).unwrap_or(0);
    for least in [high.max(3), 3] {
        // SAFETY: the descriptor is open.
        let moved = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
        if moved >= 0 {
            // SAFETY: it was made just now, and nothing else has it.
            return Ok(T::from(unsafe { OwnedFd::from_raw_fd(moved) }));
        }
    }
    if file.as_raw_fd() > 2 { Ok(T::from(file)) } else { Err(io::Error::last_os_error()) }
}

/// Lets a descriptor go whose number the host may have given to a file of its own.
pub(crate) fn let_go(file: impl IntoRawFd) {
    let _ = file.into_raw_fd();
}

/// Opens `path` for reading and writing, if it leads to what it led to.
pub(crate) fn open_again(path: &Path, identity: Identity) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    if !identity.is(&file) {
        return Err(io::ErrorKind::NotFound.into());
    }
    move_up(file)
}

/// A file that refuses whatever is written to it.
pub(crate) fn refusing() -> io::Result<File> {
    let (one, _) = UnixStream::pair()?;
    // A socket has no offsets to write at.
    move_up(File::from(OwnedFd::from(one)))
}

/// A descriptor with its identity; it is closed only if it is still ours.
#[derive(Debug)]
pub(crate) struct Kept<T: AsFd> {
    file: ManuallyDrop<T>,
    identity: Identity,
}

impl<T: AsFd + From<OwnedFd> + Into<OwnedFd>> Kept<T> {
    /// Moves `file` up and keeps it.
    ///
    /// # Errors
    /// As [`move_up`].
    pub(crate) fn new(file: T) -> io::Result<Kept<T>> {
        let file = move_up(file)?;
        let identity = Identity::of(file.as_fd())?;
        Ok(Kept { file: ManuallyDrop::new(file), identity })
    }
}

impl<T: AsFd> Kept<T> {
    /// It, unless the host has closed it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.identity.is(&*self.file).then_some(&*self.file)
    }

    /// What it led to.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }
}

impl<T: AsFd> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    /// Gives the number of `of` to another file, as a host does that closes and opens.
    fn give_to(of: &impl AsRawFd, other: &File) {
        // SAFETY: both are open; what had the number is closed.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), of.as_raw_fd()) } >= 0);
    }

    #[test]
    fn numbers_are_high_and_the_file_the_same() {
        let low = file();
        low.write_all_at(b"x", 0).unwrap();
        let before = Identity::of(low.as_fd()).unwrap();
        let high = move_up(low).unwrap();
        assert!(high.as_raw_fd() >= 700, "{high:?}");
        assert!(before.is(&high));
        assert_eq!(before, Identity::of_older(high.as_fd()).unwrap());
    }

    #[test]
    fn what_the_host_has_taken_is_neither_used_nor_closed() {
        let (kept, others) = (Kept::new(file()).unwrap(), file());
        let number = kept.get().unwrap().as_raw_fd();
        give_to(&*kept.file, &others);
        assert!(kept.get().is_none());
        drop(kept);
        // SAFETY: the number is the host's, and open.
        let of_host = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(Identity::of(of_host.as_fd()).unwrap(), Identity::of(others.as_fd()).unwrap());
    }

    #[test]
    fn a_file_is_found_again_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let identity = Identity::of(File::create(&path).unwrap().as_fd()).unwrap();
        open_again(&path, identity).unwrap();
        let other = folder.path().join("other");
        File::create(&other).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(open_again(&path, identity).is_err(), "another file of that name");
    }

    #[test]
    fn what_refuses_takes_nothing() {
        assert!(refusing().unwrap().write_all_at(b"x", 0).is_err());
    }
}
