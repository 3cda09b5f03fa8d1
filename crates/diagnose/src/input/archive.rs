// SPDX-License-Identifier: Apache-2.0
/*!
Dumps in archives: `.tar`, `.tar.gz`, `.zip`, and single files as `.gz`.

Members are read into memory one at a time, and only those that begin like a dump. Nothing is
written to disk; names only tell the rank, and are shown. Archives in archives are not opened.
*/

use super::dumps::{Content, cannot_read, since_1970};
use super::file::{
    BEGINNING, FIRST, FileKind, MAX_DUMP, file_kind, is_json_dump, is_tar, is_zip, too_large,
};
use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

/// An archive that unfolds to more than this many times its size, and to more than one dump of the
/// greatest size, is refused. JSON dumps with stacks shrink to an 80th.
const MOST_TIMES: u64 = 256;
/// Reads the dumps of an archive. Returns warnings about what cannot be read.
pub(crate) fn read(
    path: &Path,
    dump: &mut dyn FnMut(&Content<'_>) -> Option<String>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut visitor = Visitor { path, dump, warnings: &mut warnings };
    if let Err(error) = visitor.read() {
        warnings.push(cannot_read(path, &error.to_string()));
    }
    warnings
}

struct Visitor<'a> {
    path: &'a Path,
    dump: &'a mut dyn FnMut(&Content<'_>) -> Option<String>,
    warnings: &'a mut Vec<String>,
}

impl Visitor<'_> {
    fn read(&mut self) -> std::io::Result<()> {
        let mut file = File::open(self.path)?;
        let metadata = file.metadata()?;
        let written_ns = metadata.modified().ok().and_then(since_1970);
        let left = Cell::new(metadata.len().saturating_mul(MOST_TIMES).saturating_add(MAX_DUMP));
        let first = beginning(&mut file, FIRST)?;
        file.rewind()?;
        let file = BufReader::new(file);
        if is_zip(&first) {
            return self.zip(file, &left, written_ns);
        }
        if is_tar(&first) {
            return self.tar(Limited { inner: file, left: &left });
        }
        let mut inner = Limited { inner: flate2::bufread::MultiGzDecoder::new(file), left: &left };
        let first = beginning(&mut inner, FIRST)?;
        let is_tar = is_tar(&first);
        let whole = first.chain(inner);
        match is_tar {
            true => self.tar(whole),
            false => self.member(self.path.with_extension(""), whole, written_ns),
        }
    }

    fn zip(
        &mut self,
        file: BufReader<File>,
        left: &Cell<u64>,
        written_ns: Option<u64>,
    ) -> std::io::Result<()> {
        let mut archive = zip::ZipArchive::new(file)?;
        for at in 0..archive.len() {
            let inner = archive.by_index(at)?;
            if inner.is_file() {
                // Times in zip files have no time zone.
                let path = self.path.join(inner.name());
                self.member(path, Limited { inner, left }, written_ns)?;
            }
        }
        Ok(())
    }

    fn tar(&mut self, file: impl Read) -> std::io::Result<()> {
        for entry in tar::Archive::new(file).entries()? {
            let entry = entry?;
            if entry.header().entry_type().is_file() {
                let path = self.path.join(&*entry.path()?);
                let seconds = entry.header().mtime().ok();
                let written_ns = seconds.and_then(|seconds| seconds.checked_mul(1_000_000_000));
                self.member(path, entry, written_ns)?;
            }
        }
        Ok(())
    }

    /// Reads a member, if it is a dump.
    fn member(
        &mut self,
        path: PathBuf,
        mut file: impl Read,
        written_ns: Option<u64>,
    ) -> std::io::Result<()> {
        let mut bytes = beginning(&mut file, BEGINNING)?;
        let kind = file_kind(&bytes);
        let is_dump = match kind {
            FileKind::Pickle | FileKind::RasText | FileKind::RasMonitor => true,
            FileKind::Json => is_json_dump(&*bytes),
            _ => false,
        };
        if is_dump {
            let rest = MAX_DUMP + 1 - bytes.len() as u64;
            file.take(rest).read_to_end(&mut bytes)?;
            self.warnings.extend(match bytes.len() as u64 > MAX_DUMP {
                true => Some(cannot_read(&path, &too_large())),
                false => (self.dump)(&Content { path: &path, kind, bytes: &bytes, written_ns }),
            });
        }
        Ok(())
    }
}

/// The first bytes of a file, up to so many.
fn beginning(file: &mut impl Read, most: usize) -> std::io::Result<Vec<u8>> {
    let mut first = Vec::new();
    file.take(most as u64).read_to_end(&mut first)?;
    Ok(first)
}

/// What is unfolded, up to a limit for the whole archive.
struct Limited<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        let too_much = || {
            std::io::Error::other(format!("it unfolds to more than {MOST_TIMES} times its size"))
        };
        self.left.set(left.ok_or_else(too_much)?);
        Ok(read)
    }
}
