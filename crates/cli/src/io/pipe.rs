// SPDX-License-Identifier: Apache-2.0
//! Output to pipes and devices.

use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a named pipe may be without a reader.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval of the attempts to open it.
const PAUSE: Duration = Duration::from_millis(50);

/// True if the path is a pipe or a device, which a file cannot replace.
pub(crate) fn is_one(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// Opens a pipe or a device for writing. Waits a limited time for the reader of a named pipe.
///
/// # Errors
/// The system's error, or that nothing reads the pipe.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_within(path, PATIENCE)
}

fn open_within(path: &Path, patience: Duration) -> io::Result<File> {
    let mut options = File::options();
    options.write(true);
    if !std::fs::metadata(path)?.file_type().is_fifo() {
        return options.open(path);
    }
    let mut no_wait = options.clone();
    no_wait.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let end = Instant::now() + patience;
    loop {
        match no_wait.open(path) {
            // While this descriptor is open, the reader stays, so that the second open does not
            // block.
            Ok(_first) => return options.open(path),
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                return Err(error);
            }
            Err(_) if Instant::now() >= end => {
                let text = "no process reads this pipe: start its reader first";
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, text));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::Command;

    #[test]
    fn a_pipe_needs_a_reader_but_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(is_one(&path) && !is_one(folder.path()));
        let error = open_within(&path, Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("no process reads"), "{error}");
        let place = path.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(place).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        let mut pipe = open_within(&path, Duration::from_secs(20)).unwrap();
        pipe.write_all(b"whole").unwrap();
        drop(pipe);
        assert_eq!(reader.join().unwrap(), "whole");
    }
}
