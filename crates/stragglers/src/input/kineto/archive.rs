// SPDX-License-Identifier: Apache-2.0
//! Traces in archives: `.tar`, `.tar.gz`, `.tgz`, `.zip`.

use crate::input::Error;
use flate2::read::MultiGzDecoder;
use ncclscope_kineto::Trace;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use tar::Archive;
use zip::ZipArchive;
use zip::result::ZipError;

/// Maximum ratio of an archive's unpacked size to its own; traces compress to a twentieth at best.
const MOST_TIMES: u64 = 100;
/// Unpacked size that any archive may have, bytes.
pub(super) const LEAST_ROOM: u64 = 16 << 20;

/// What an archive has: its traces, and why some of them cannot be read.
pub(super) type Found = (Vec<Trace>, Vec<Error>);

/// True if the file name is that of a trace.
#[must_use]
pub fn is_trace(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_trace = [".json", ".json.gz"].iter().any(|end| name.ends_with(end));
    is_trace && is_of_user(&name) && name != "run.json"
}

/// True if the file name is that of an archive of traces.
#[must_use]
pub fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_of_user(&name) && [".tar", ".tar.gz", ".tgz", ".zip"].iter().any(|end| name.ends_with(end))
}

/// False for the files in which macOS keeps the attributes of another: `._trace.json`.
fn is_of_user(name: &str) -> bool {
    !name.starts_with("._")
}

/// Unpacks the traces of an archive into temporary files, because a trace may be read twice.
///
/// # Errors
/// It has no trace, or there is no place for it.
pub(super) fn unpack(path: &Path) -> Result<Found, Error> {
    let mut unpacker = Unpacker { path, left: 0, found: Found::default() };
    let ended = unpacker.all();
    let (traces, mut failed) = unpacker.found;
    match ended {
        // Of an archive that is cut off, what is before the cut.
        Err(error) if !error.is_of_place() && !traces.is_empty() => failed.push(error),
        Err(error) => return Err(error),
        Ok(()) => {}
    }
    match traces.is_empty() && failed.is_empty() {
        true => Err(Error::new(path, "it has no trace (*.json, *.json.gz)")),
        false => Ok((traces, failed)),
    }
}

struct Unpacker<'a> {
    path: &'a Path,
    /// Bytes that may still be unpacked.
    left: u64,
    found: Found,
}

impl Unpacker<'_> {
    fn all(&mut self) -> Result<(), Error> {
        let path = self.path;
        let error = |e: io::Error| Error::new(path, e);
        let file = ncclscope_trace::open_to_read(path).map_err(error)?;
        let packed = file.metadata().map_err(error)?.len();
        self.left = packed.saturating_mul(MOST_TIMES).saturating_add(LEAST_ROOM);
        if path.extension().is_some_and(|end| end == "zip") {
            return self.zip(file);
        }
        let bytes: Box<dyn Read> = match path.extension().is_some_and(|end| end == "tar") {
            true => Box::new(file),
            false => Box::new(MultiGzDecoder::new(file)),
        };
        let mut archive = Archive::new(bytes);
        for entry in archive.entries().map_err(error)? {
            let mut entry = entry.map_err(error)?;
            let inside = entry.path().map_err(error)?.into_owned();
            if entry.header().entry_type().is_file() && is_trace(&inside) {
                self.one(&inside, &mut entry)?;
            }
        }
        Ok(())
    }

    fn zip(&mut self, file: File) -> Result<(), Error> {
        let path = self.path;
        let error = |e: ZipError| Error::new(path, e);
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(error)?;
        for at in 0..archive.len() {
            let mut entry = archive.by_index(at).map_err(error)?;
            let inside = PathBuf::from(entry.name());
            if entry.is_file() && is_trace(&inside) {
                self.one(&inside, &mut entry)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, inside: &Path, bytes: &mut dyn Read) -> Result<(), Error> {
        let place = std::env::temp_dir();
        let no_place = |e: io::Error| Error::of_place(&place, e);
        let mut copy = tempfile::NamedTempFile::new_in(&place).map_err(no_place)?;
        let mut part = bytes.take(self.left.saturating_add(1));
        let copied = copy_to(&mut part, &mut copy).map_err(|failed| match failed {
            CopyError::Read(e) => Error::new(self.path, e),
            CopyError::Write(e) => no_place(e),
        })?;
        self.left = self.left.checked_sub(copied).ok_or_else(|| {
            let times = "it unpacks to more than 100 times its size: unpack it, and name the files";
            Error::new(self.path, times)
        })?;
        let name = self.path.join(inside);
        match Trace::scan(copy.path()) {
            Ok(trace) => self.found.0.push(Trace { path: name, ..trace }),
            Err(e) => self.found.1.push(Error::new(&name, e)),
        }
        Ok(())
    }
}

/// The side of a copy that failed.
enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies everything and returns the number of bytes.
fn copy_to(from: &mut impl Read, to: &mut impl Write) -> Result<u64, CopyError> {
    let (mut buffer, mut copied) = (vec![0; 64 << 10], 0);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break to.flush().map(|()| copied).map_err(CopyError::Write),
            Ok(read) => {
                to.write_all(&buffer[..read]).map_err(CopyError::Write)?;
                copied += read as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(CopyError::Read(e)),
        }
    }
}
