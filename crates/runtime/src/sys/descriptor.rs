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

/// How the files of a recording are opened in the recorded process.
pub(crate) const FILES: Files = Files { settle, duplicate };
/// Maximum number of attempts to open a file that the host closes each time.
const TRIES: usize = 5;

/// Minimum number for our descriptors, if the limit allows it; hosts get the lowest free numbers.
const HIGH: libc::rlim_t = 1000;

/// What a descriptor leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    device: (u32, u32),
    inode: u64,
}

impl Identity {
    /// The identity of the open `file`; asks no file server.
    ///
    /// # Errors
    /// The system's error, such as that it is not open.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Identity> {
        look(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC)
    }

    /// The identity of what `path` leads to now.
    pub(crate) fn at(path: &Path) -> io::Result<Identity> {
        look(libc::AT_FDCWD, &CString::new(path.as_os_str().as_bytes())?, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Device and inode.
    pub(crate) fn words(self) -> (u64, u64) {
        let (major, minor) = self.device;
        (u64::from(major) << 32 | u64::from(minor), self.inode)
    }

    /// True if the descriptor of `file` leads to this identity.
    pub(crate) fn is(self, file: impl AsFd) -> bool {
        Identity::of(file.as_fd()).is_ok_and(|found| found == self)
    }
}

/// The identity of `name` relative to `file`.
fn look(file: c_int, name: &CStr, flags: c_int) -> io::Result<Identity> {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut found: libc::statx = unsafe { core::mem::zeroed() };
    let (mask, to) = (libc::STATX_INO, &raw mut found);
    // By system call number, because glibc has the function from 2.28 on only.
    // SAFETY: the name is a string, and `found` is valid to write to; any descriptor number is
    // allowed.
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
    // SAFETY: the name is a string, and `found` is valid to write to; any descriptor number is
    // allowed.
    if unsafe { libc::fstatat(file, name.as_ptr(), &raw mut found, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Identity {
        device: (libc::major(found.st_dev), libc::minor(found.st_dev)),
        inode: found.st_ino,
    })
}

/// The same open file under a number that the host is unlikely to use; under its own number if none
/// is free. Never keeps the number of a standard file.
///
/// # Errors
/// The system's error, if the file has the number of a standard file and can get no other.
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
        // SAFETY: any descriptor number is allowed.
        let moved = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
        if moved >= 0 {
            // SAFETY: just made, and owned by nothing else.
            return Ok(unsafe { OwnedFd::from_raw_fd(moved) });
        }
    }
    Err(io::Error::last_os_error())
}

fn is_same(one: &impl AsFd, other: &impl AsFd) -> bool {
    Identity::of(one.as_fd()).is_ok_and(|identity| identity.is(other))
}

/// `file`, which was just opened as `path`, under a number that the host is unlikely to use. Opens
/// it again if the host has closed it meanwhile. Must be called before anything is written.
///
/// # Errors
/// The system's error, or that the host closes the file each time.
pub(crate) fn settle(file: File, path: &Path) -> io::Result<File> {
    let (mut first, mut opened, mut before) = (Some(file), Vec::new(), None);
    for _ in 0..TRIES {
        let low = ManuallyDrop::new(first.take().map_or_else(|| reopen(path), Ok)?);
        let moved = duplicate_up(low.as_fd());
        opened.push(low);
        let found = moved.as_ref().ok().and_then(|moved| Identity::of(moved.as_fd()).ok());
        // On old kernels, overlayfs reports another file system for a path than for the open file.
        // Then the file counts as ours if two attempts lead to the same one: a host that reuses the
        // number would have opened another file.
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

/// `file` under a second number, which is as high as its own.
///
/// # Errors
/// The system's error.
pub(crate) fn duplicate(file: &File) -> io::Result<File> {
    duplicate_up(file.as_fd()).map(File::from)
}

fn reopen(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Gives the calling thread, and the threads that it starts, their own descriptor table, which
/// keeps only the standard files: the host cannot close their descriptors, and its children do not
/// inherit them. For threads that share no file with others. Does nothing before Linux 5.9, where
/// the copy would keep the host's pipes open.
pub(crate) fn have_own() {
    // ThreadSanitizer knows only one descriptor table, and would report two files of one number as
    // a race.
    if cfg!(tsan) {
        return;
    }
    // SAFETY: no memory is involved; only copies are closed.
    unsafe { libc::syscall(libc::SYS_close_range, 3, !0_u32, libc::CLOSE_RANGE_UNSHARE) };
}

/// Forgets a descriptor without closing it if the host may have reused its number.
pub(crate) fn let_go(file: impl IntoRawFd) {
    let _ = file.into_raw_fd();
}

/// Opens `path` for reading and writing; an error if it no longer has this identity.
pub(crate) fn open_again(path: &Path, identity: Identity) -> io::Result<File> {
    let file = move_up(reopen(path)?)?;
    if identity.is(&file) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// A file to which every write fails.
pub(crate) fn refusing() -> io::Result<File> {
    let (one, _) = UnixStream::pair()?;
    // A socket cannot be written at an offset.
    move_up(File::from(OwnedFd::from(one)))
}

/// A descriptor with its identity; it is closed only if it still leads to that.
#[derive(Debug)]
pub(crate) struct Kept<T: AsFd> {
    file: ManuallyDrop<T>,
    identity: Identity,
}

impl<T: AsFd + From<OwnedFd> + Into<OwnedFd>> Kept<T> {
    /// Moves `file` to a high number and keeps it.
    ///
    /// # Errors
    /// As for [`move_up`].
    pub(crate) fn new(file: T) -> io::Result<Kept<T>> {
        let file = move_up(file)?;
        let identity = Identity::of(file.as_fd())?;
        Ok(Kept { file: ManuallyDrop::new(file), identity })
    }
}

impl<T: AsFd> Kept<T> {
    /// The file; `None` if the host has closed it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.identity.is(&*self.file).then_some(&*self.file)
    }

    /// The identity that the file had when it was opened.
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

    /// Gives the number of `of` to another file, like a host that closes and opens.
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
        // SAFETY: the number is only asked about, and may be closed.
        let low = Identity::of(unsafe { BorrowedFd::borrow_raw(number) });
        assert!(low.is_err() || low.unwrap() != Identity::at(&path).unwrap());
        let second = duplicate(&file).unwrap();
        assert!(second.as_raw_fd() >= 700 && is_same(&file, &second));
    }

    /// Like a host that closes all files while one of ours is being opened.
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
        // Closed by the host, but not reused.
        let path = folder.path().join("closed");
        let low = create(&path);
        // SAFETY: `settle` checks the number, and does not close it.
        unsafe { libc::close(low.as_raw_fd()) };
        assert!(Identity::at(&path).unwrap().is(settle(low, &path).unwrap()));
    }

    #[test]
    fn a_thread_with_descriptors_of_its_own_has_none_of_others() {
        let theirs = file();
        let (number, before) = (theirs.as_raw_fd(), Identity::of(theirs.as_fd()).unwrap());
        let body = move || {
            have_own();
            // SAFETY: the number is only asked about, and may be closed.
            let seen = Identity::of(unsafe { BorrowedFd::borrow_raw(number) });
            seen.is_err()
        };
        let is_gone = std::thread::spawn(body).join().unwrap();
        // SAFETY: no memory is involved; the range contains no descriptor.
        let knows = unsafe { libc::syscall(libc::SYS_close_range, !0_u32, !0_u32, 0) } == 0;
        assert_eq!(is_gone, knows);
        assert!(before.is(&theirs));
    }

    #[test]
    fn what_refuses_takes_nothing() {
        assert!(refusing().unwrap().write_all_at(b"x", 0).is_err());
    }
}
