// SPDX-License-Identifier: Apache-2.0
/*!
Opens files safely: input files of any name, and files that are written in the host's process. Only
the user can read a created file or enter a created directory, wherever it lies, because a recording
holds the command line and variables: who shares a recording says so himself (`chmod`).

[`read_up_to`] reads a part of a file that may end within it, [`read_around_holes`] one that may
have holes.
*/

use crate::error::Error;
use rustix::buffer::spare_capacity;
use rustix::fs::Advice;
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::num::NonZero;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// How files are opened for writing. The plugin replaces the default, because other code of its
/// process may close descriptors that are not its own.
#[derive(Clone, Copy, Debug)]
pub struct Files {
    /// Called with each new file and its path; returns the file to write to.
    pub settle: fn(File, &Path) -> io::Result<File>,
    /// Duplicates a descriptor.
    pub duplicate: fn(&File) -> io::Result<File>,
}

impl Default for Files {
    fn default() -> Files {
        Files { settle: |file, _| Ok(file), duplicate: File::try_clone }
    }
}

impl Files {
    /// Creates a file that does not exist, for reading and writing by its owner only.
    ///
    /// # Errors
    /// An error of the system.
    pub(crate) fn create(self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        (self.settle)(file, path).inspect_err(|_| drop(std::fs::remove_file(path)))
    }
}

/// Creates a directory and its missing parents, for this user only.
///
/// # Errors
/// An error of the system.
pub fn create_directories(dir: &Path) -> io::Result<()> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    created.or_else(|error| if dir.is_dir() { Ok(()) } else { Err(error) })
}

/// Opens a regular file for reading, and writing if `write`. It never blocks, whatever the path is.
///
/// # Errors
/// An error of the system, or that it is a symbolic link, a FIFO, a device, or a directory.
pub(crate) fn open_regular(path: &Path, write: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    regular(OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)?)
}

/// Opens an input file for reading. It does not block on a FIFO or a device. Links are followed,
/// because a user may name one.
///
/// # Errors
/// An error of the system, or that it is no ordinary file.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(file)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not an ordinary file"))
}

/// The first offset from `at` on that is not in a hole of the file; `None` after its last data.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        // The file system does not report holes.
        Err(Errno::INVAL) => Ok((at < file.metadata()?.len()).then_some(at)),
        Err(error) => Err(error.into()),
    }
}

/// The first offset from `at` on that is in a hole of the file; `None` if it is not known.
fn next_hole(file: &File, at: u64) -> Option<u64> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at)).ok()
}

/// Looks for data and holes of a file from its beginning to its end. The system is asked once for
/// each part: some file systems take long to answer.
#[derive(Debug)]
pub(crate) struct Extents<'f> {
    file: &'f File,
    /// The latest part: the start of a hole, that of the data after it, and the end of that data.
    part: [u64; 3],
}

impl<'f> Extents<'f> {
    pub(crate) const fn new(file: &'f File) -> Extents<'f> {
        Extents { file, part: [0; 3] }
    }

    /// As [`next_data`].
    pub(crate) fn next_data(&mut self, at: u64) -> io::Result<Option<u64>> {
        let [hole, data, end] = self.part;
        if (hole..end).contains(&at) {
            return Ok(Some(at.max(data)));
        }
        let Some(data) = next_data(self.file, at)? else { return Ok(None) };
        let end = match next_hole(self.file, data) {
            Some(end) => end,
            None => self.file.metadata()?.len(),
        };
        self.part = [at, data, end];
        Ok(Some(data))
    }

    /// The end of the data at `at`, which [`Extents::next_data`] returned last or lies behind it.
    pub(crate) fn end(&self, at: u64) -> u64 {
        self.part[2].max(at)
    }
}

/// Asks the system to read the `len` bytes at `at` into its cache, without waiting for them.
pub(crate) fn will_need(file: &File, at: u64, len: usize) {
    // A file system that does not know the advice reads the bytes when they are wanted.
    let _ = rustix::fs::fadvise(file, at, NonZero::new(len as u64), Advice::WillNeed);
}

/// Reads up to `len` bytes at `at`; fewer if the file ends.
pub(crate) fn read_up_to(file: &File, at: u64, len: usize) -> Result<Vec<u8>, Error> {
    // The buffer is not zeroed before the read.
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let place = at + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), place) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Reads the `len` bytes at `at`, without a hole at their end. Holes are not read, because the
/// system would cache their zeros.
pub(crate) fn read_around_holes(file: &File, at: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut extents = Extents::new(file);
    let end = at + len as u64;
    let mut place = at;
    while let Some(data) = extents.next_data(place)?.filter(|&data| data < end) {
        let hole = extents.end(data).min(end);
        let range = [data, hole].map(|place| usize::try_from(place - at).unwrap_or(len));
        let found = read_up_to(file, data, range[1] - range[0])?;
        bytes.resize(range[0], 0);
        bytes.extend(found);
        if hole == data {
            break;
        }
        place = hole;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    #[test]
    fn what_lies_around_holes_is_read() {
        let file = tempfile::tempfile().unwrap();
        let data = [(5 << 12, [7; 100]), (40 << 12, [9; 100])];
        data.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        let (at, len) = (4096, 50 << 12);
        let all = read_up_to(&file, at, len).unwrap();
        assert_eq!(all.len() as u64, (40 << 12) + 100 - at);
        assert_eq!(read_around_holes(&file, at, len).unwrap(), all);
        assert!(read_around_holes(&file, 6 << 12, 4096).unwrap().is_empty());
        assert_eq!(read_around_holes(&file, (5 << 12) + 50, 100).unwrap()[49..51], [7, 0]);
    }

    #[test]
    fn parts_of_a_file_are_what_the_system_says() {
        let file = tempfile::tempfile().unwrap();
        for (at, bytes) in [(2 << 12, 3 << 12), (9 << 12, 100), (12 << 12, 1 << 12)] {
            file.write_all_at(&vec![7; bytes], at).unwrap();
        }
        let mut extents = Extents::new(&file);
        for at in (0..14 << 12).step_by(512) {
            let data = next_data(&file, at).unwrap();
            assert_eq!(extents.next_data(at).unwrap(), data, "{at}");
            if let Some(data) = data {
                assert_eq!(Some(extents.end(data)), next_hole(&file, data), "{at}");
            }
        }
    }

    #[test]
    fn what_is_created_is_its_users_alone_wherever_it_lies() {
        let folder = tempfile::tempdir().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o2777)).unwrap();
        let below = folder.path().join("a/b");
        create_directories(&below).unwrap();
        create_directories(&below).unwrap();
        let file = below.join("file");
        Files::default().create(&file).unwrap();
        let found = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        let modes = [&folder.path().join("a"), &below, &file].map(|path| found(path));
        assert_eq!(modes, [0o700, 0o700, 0o600]);
        std::fs::write(folder.path().join("file"), "").unwrap();
        create_directories(&folder.path().join("file/a")).unwrap_err();
        create_directories(&folder.path().join("file")).unwrap_err();
    }
}
