// SPDX-License-Identifier: Apache-2.0
/*!
Descriptors that stay open for long, in a process that is not ours.

A host may close any descriptor (`close_range`, as daemons do) and open files of its own, which then
get our numbers: our writes would go into its files. Our descriptors therefore have high numbers
that a host is unlikely to use, never those of the standard files, and before each use [`Identity`]
checks whether the number still leads to the file that we opened. A descriptor that does not is
dropped, not closed.

Until a file has its high number, the host may take the low one between any two calls of ours.
Therefore nothing is written to a file before [`settle`] has found the path's file under the high
number, and the low number is closed only if it still leads there. A descriptor without a path, such
as a connection, can only be moved at once.
*/

use core::ffi::{CStr, c_int};
use core::mem::ManuallyDrop;
use ncclscope_trace::Files;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// How a recording's files are opened in the process that is recorded.
pub(crate) const FILES: Files = Files { settle, duplicate };
/// How often a file is opened that the host closes each time.
const TRIES: usize = 5;

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
        look(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC)
    }

    /// What `path` leads to now.
    fn at(path: &Path) -> io::Result<Identity> {
        look(libc::AT_FDCWD, &CString::new(path.as_os_str().as_bytes())?, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Device and inode.
    pub(crate) fn words(self) -> (u64, u64) {
        let (major, minor) = self.device;
        (u64::from(major) << 32 | u64::from(minor), self.inode)
    }

    /// True while the number of `file` leads to it.
    pub(crate) fn is(self, file: impl AsFd) -> bool {
        Identity::of(file.as_fd()).is_ok_and(|found| found == self)
    }
}

/// What `name` leads to from `file`.
fn look(file: c_int, name: &CStr, flags: c_int) -> io::Result<Identity> {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut found: libc::statx = unsafe { core::mem::zeroed() };
    let (mask, to) = (libc::STATX_INO, &raw mut found);
    // By number: glibc has the function from 2.28 on only.
    // SAFETY: the name is a string, and `found` valid to write to; any number may be asked for.
    let result = unsafe { libc::syscall(libc::SYS_statx, file, name.as_ptr(), flags, mask, to) };
    if result == 0 {
        let device = (found.stx_dev_major, found.stx_dev_minor);
        return Ok(Identity { device, inode: found.stx_ino });
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Kernels before 4.11, and containers that do not know the call.
        Some(libc::ENOSYS | libc::EPERM) => look_older(file, name, flags),
        _ => Err(error),
    }
}

fn look_older(file: c_int, name: &CStr, flags: c_int) -> io::Result<Identity> {
    let flags = flags & !libc::AT_STATX_DONT_SYNC;
    // SAFETY: zero is a valid value of this plain C struct.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the name is a string, and `found` valid to write to; any number may be asked for.
    if unsafe { libc::fstatat(file, name.as_ptr(), &raw mut found, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Identity {
        device: (libc::major(found.st_dev), libc::minor(found.st_dev)),
        inode: found.st_ino,
    })
}

/// The same open file under a number that the host hardly comes to; under its own where there is
/// none. The standard files' numbers it never keeps.
///
/// # Errors
/// The system's, where it has the number of a standard file and can have no other.
pub(crate) fn move_up<T: From<OwnedFd> + Into<OwnedFd>>(file: T) -> io::Result<T> {
    let low = file.into();
    match duplicate_up(low.as_fd()) {
        Ok(moved) => {
            if !is_same(&low, &moved) {
                let_go(low);
            }
            Ok(T::from(moved))
        }
        Err(_) if low.as_raw_fd() > 2 => Ok(T::from(low)),
        Err(error) => Err(error),
    }
}

fn duplicate_up(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid to write to.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let high = i32::try_from(HIGH.min(limit.rlim_cur / 4 * 3)).unwrap_or(0);
    for least in [high.max(3), 3] {
        // SAFETY: any number may be asked for.
        let moved = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
        if moved >= 0 {
            // SAFETY: it was made just now, and nothing else has it.
            return Ok(unsafe { OwnedFd::from_raw_fd(moved) });
        }
    }
    Err(io::Error::last_os_error())
}

fn is_same(one: &impl AsFd, other: &impl AsFd) -> bool {
    Identity::of(one.as_fd()).is_ok_and(|identity| identity.is(other))
}

/// `file`, which was opened as `path` just now, under a number that the host hardly comes to. Where
/// the host has closed it since, it is opened again. Nothing is written before this.
///
/// # Errors
/// The system's, and that the host closes it each time.
pub(crate) fn settle(file: File, path: &Path) -> io::Result<File> {
    let (mut first, mut opened, mut before) = (Some(file), Vec::new(), None);
    for _ in 0..TRIES {
        let low = ManuallyDrop::new(first.take().map_or_else(|| reopen(path), Ok)?);
        let moved = duplicate_up(low.as_fd());
        opened.push(low);
        let found = moved.as_ref().ok().and_then(|moved| Identity::of(moved.as_fd()).ok());
        // overlayfs of old kernels tells another file system for the path than for what is open: a
        // host that opens files of its own has another one the next time.
        if let (Ok(moved), Some(found)) = (moved, found)
            && (Identity::at(path).is_ok_and(|at| at == found) || before == Some(found))
        {
            let ours = opened.into_iter().filter(|low| found.is(&**low));
            ours.for_each(|low| drop(ManuallyDrop::into_inner(low)));
            return Ok(File::from(moved));
        }
        before = found;
    }
    Err(io::Error::other("the process closes it as often as it is opened"))
}

/// `file` under a second number, as high as its own.
///
/// # Errors
/// The system's.
pub(crate) fn duplicate(file: &File) -> io::Result<File> {
    duplicate_up(file.as_fd()).map(File::from)
}

fn reopen(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Gives the calling thread, and those it starts, descriptors of their own, but for the standard
/// files: the host closes none of theirs, and what they have open no child of the host's has. For a
/// thread that shares no file with another. Before Linux 5.9 it does nothing: to copy all of the
/// host's would keep its pipes open.
pub(crate) fn have_own() {
    // ThreadSanitizer knows one table of descriptors, and takes two files of one number for a race.
    if cfg!(tsan) {
        return;
    }
    // SAFETY: no memory is involved; nothing is closed but copies.
    unsafe { libc::syscall(libc::SYS_close_range, 3, !0_u32, libc::CLOSE_RANGE_UNSHARE) };
}

/// Lets a descriptor go whose number the host may have given to a file of its own.
pub(crate) fn let_go(file: impl IntoRawFd) {
    let _ = file.into_raw_fd();
}

/// Opens `path` for reading and writing, if it leads to what it led to.
pub(crate) fn open_again(path: &Path, identity: Identity) -> io::Result<File> {
    let file = move_up(reopen(path)?)?;
    if identity.is(&file) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
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
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        assert_eq!(before, look_older(high.as_raw_fd(), c"", flags).unwrap());
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

    fn create(path: &Path) -> File {
        OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
    }

    #[test]
    fn a_new_file_is_settled_and_its_low_number_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let low = create(&path);
        let number = low.as_raw_fd();
        let file = settle(low, &path).unwrap();
        assert!(file.as_raw_fd() >= 700 && Identity::at(&path).unwrap().is(&file));
        // SAFETY: the number is only asked for, and may lead nowhere.
        let low = Identity::of(unsafe { BorrowedFd::borrow_raw(number) });
        assert!(low.is_err() || low.unwrap() != Identity::at(&path).unwrap());
        let second = duplicate(&file).unwrap();
        assert!(second.as_raw_fd() >= 700 && is_same(&file, &second));
    }

    /// As a host does that closes all files while one of ours is being opened.
    #[test]
    fn a_file_whose_number_the_host_took_is_opened_again_and_the_hosts_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (low, host) = (create(&path), file());
        give_to(&low, &host);
        let number = low.as_raw_fd();
        let settled = settle(low, &path).unwrap();
        assert!(Identity::at(&path).unwrap().is(&settled));
        // SAFETY: the number is the host's, and open.
        let of_host = unsafe { OwnedFd::from_raw_fd(number) };
        assert!(is_same(&of_host, &host));
        // Closed, and not taken.
        let path = folder.path().join("closed");
        let low = create(&path);
        // SAFETY: `settle` asks for the number, and does not close it.
        unsafe { libc::close(low.as_raw_fd()) };
        assert!(Identity::at(&path).unwrap().is(settle(low, &path).unwrap()));
    }

    #[test]
    fn a_thread_with_descriptors_of_its_own_has_none_of_others() {
        let theirs = file();
        let (number, before) = (theirs.as_raw_fd(), Identity::of(theirs.as_fd()).unwrap());
        let body = move || {
            have_own();
            // SAFETY: the number is only asked for, and may lead nowhere.
            let seen = Identity::of(unsafe { BorrowedFd::borrow_raw(number) });
            seen.is_err()
        };
        let is_gone = std::thread::spawn(body).join().unwrap();
        // SAFETY: no memory is involved; the least number there is, of nothing.
        let knows = unsafe { libc::syscall(libc::SYS_close_range, !0_u32, !0_u32, 0) } == 0;
        assert_eq!(is_gone, knows);
        assert!(before.is(&theirs));
    }

    #[test]
    fn what_refuses_takes_nothing() {
        assert!(refusing().unwrap().write_all_at(b"x", 0).is_err());
    }
}
