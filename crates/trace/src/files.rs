// SPDX-License-Identifier: Apache-2.0
//! Opens files whose names were read somewhere: whatever is there, it does not make us wait.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens an ordinary file to be read, and written if `write`.
///
/// # Errors
/// The system's, or that it is a symbolic link, a FIFO, a device, or a directory.
pub(crate) fn open_regular(path: &Path, write: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not an ordinary file"))
}
