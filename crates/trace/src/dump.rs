// SPDX-License-Identifier: Apache-2.0
/*!
A copy of a recording at one moment, while the recording goes on.

[`Writer::checkpoint`] fixes the moment between two writes; copying takes longer and blocks no
thread. Blocks that are overwritten before they are copied count as overwritten, as in the recording
itself.
*/

use crate::codec;
use crate::files::{Files, open_regular, read_up_to};
use crate::lanes_file;
use crate::layout::{DEFINITIONS, HEADER_BYTES, Header, LANE_TABLE};
use crate::names::SUFFIX;
use crate::writer::Writer;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most partial files (`.part`) beside a path: of concurrent copies, and left over from interrupted
/// ones.
const PARTS: u32 = 1000;

/// Records of a lane that are in no block yet: the steps in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rest {
    /// The lane.
    pub lane: u16,
    /// Position in the lane, in words.
    pub position: u64,
    /// Whole records.
    pub words: Vec<u64>,
}

impl Writer {
    /// Fixes the recording's present state, to be copied while recording continues. The caller must
    /// have appended all records and written the lane table.
    ///
    /// # Errors
    /// An error of the system, if it has no file descriptor left.
    pub fn checkpoint(&self) -> io::Result<Checkpoint> {
        let at = self.twin()?;
        Ok(Checkpoint { from: (at.files.duplicate)(&at.file)?, at })
    }
}

/// A recording at one moment.
#[derive(Debug)]
pub struct Checkpoint {
    from: File,
    at: Writer,
}

impl Checkpoint {
    /// Copies the recording of that moment, and `rest`, to `path`, which must not exist. The copy
    /// has a temporary name (`.part`) until it is complete, so that readers never see a part of it.
    ///
    /// # Errors
    /// An error of the system, that `path` exists, or that the whole ring was overwritten during
    /// the copy.
    pub fn write(self, path: &Path, rest: &[Rest]) -> io::Result<()> {
        if path.try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (file, part) = create_part(path, self.at.files)?;
        let result = self.copy(file, rest);
        let result = result.and_then(|()| publish(&part, path));
        let _ = std::fs::remove_file(&part);
        result
    }

    /// As [`Checkpoint::write`], into a directory that may have dumps of other processes. The file
    /// is called `name`; if another process has a file of that name there (a process of another
    /// container with the same host name and process id), `number` is appended. Returns the path.
    ///
    /// # Errors
    /// As [`Checkpoint::write`]; also if this process already has a copy there.
    pub fn write_into(
        self,
        dir: &Path,
        name: &str,
        number: u32,
        rest: &[Rest],
    ) -> io::Result<PathBuf> {
        let own = self.at.header.clone();
        let (first, stem) =
            (dir.join(name), name.split_once(SUFFIX).map_or(name, |(stem, _)| stem));
        let second = dir.join(format!("{stem}{SUFFIX}.{number}"));
        if is_copy_of(&first, &own) || is_copy_of(&second, &own) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (file, part) = create_part(&first, self.at.files)?;
        let result = self.copy(file, rest).and_then(|()| match publish(&part, &first) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if is_copy_of(&first, &own) {
                    return Err(error);
                }
                publish(&part, &second).map(|()| second)
            }
            published => published.map(|()| first),
        });
        let _ = std::fs::remove_file(&part);
        result
    }

    fn copy(self, to: File, rest: &[Rest]) -> io::Result<()> {
        let Checkpoint { from, mut at } = self;
        at.file = to;
        let head = DEFINITIONS + at.header.definitions;
        lanes_file::copy(&from, LANE_TABLE, head - LANE_TABLE, &at.file, LANE_TABLE)?;
        for segment in at.events.definitions().collect::<Vec<_>>() {
            let begin = at.events.place(segment);
            let len = usize::try_from(at.definitions_end(segment) - begin).unwrap_or(0);
            at.file.write_all_at(&read(&from, begin, len)?, begin)?;
        }
        // Heartbeats that are overwritten during the copy are not missed: newer ones repeat their
        // counts.
        for (segment, epoch, limit) in at.heartbeats.blocks() {
            let place = at.heartbeats.place(segment);
            copy_segment(&from, &at.file, place, epoch, limit)?;
        }
        let segments = at.events.blocks();
        let newest = segments.last().map(|&(segment, ..)| segment);
        for (segment, epoch, limit) in segments {
            let place = at.events.place(segment);
            if copy_segment(&from, &at.file, place, epoch, limit)? {
                continue;
            }
            if newest == Some(segment) {
                return Err(io::Error::other("all of it was overwritten while it was copied"));
            }
            let held = at.events.forget(segment);
            at.overwrote(&held);
        }
        for Rest { lane, position, words } in rest {
            at.append(*lane, *position, words)?;
        }
        at.file.set_len(at.blocks_end())?;
        (at.header.closed, at.header.copy) = (true, true);
        at.header.lanes_file = None;
        at.sync_header()
    }
}

/// Creates a partial file beside `path`.
fn create_part(path: &Path, files: Files) -> io::Result<(File, PathBuf)> {
    for number in 0..PARTS {
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".{number}.part"));
        let part = PathBuf::from(part);
        match files.create(&part) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return file.map(|file| (file, part)),
        }
    }
    Err(io::Error::other(format!("{PARTS} parts of copies lie beside it")))
}

/// Renames a complete copy from `part` to `path`; an error if `path` exists.
fn publish(part: &Path, path: &Path) -> io::Result<()> {
    match std::fs::hard_link(part, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            // On a file system without hard links, an empty file reserves the name before the
            // rename.
            Files::default().create(path)?;
            std::fs::rename(part, path)
        }
        linked => linked,
    }
}

/// Whether `path` is a copy of a recording of the same process.
fn is_copy_of(path: &Path, own: &Header) -> bool {
    let mut page = [0; HEADER_BYTES];
    let file = open_regular(path, false);
    let read = file.and_then(|file| file.read_exact_at(&mut page, 0));
    let there = read.ok().and_then(|()| Header::decode(&page).ok());
    there.is_some_and(|there| {
        (there.pid, there.process, &there.host) == (own.pid, own.process, &own.host)
    })
}

/// Copies the blocks of epoch `epoch` of the segment at `place`, up to `limit` bytes. False if the
/// writer has begun to reuse the segment.
fn copy_segment(from: &File, to: &File, place: u64, epoch: u32, limit: u64) -> io::Result<bool> {
    let bytes = read(from, place, usize::try_from(limit).unwrap_or(0))?;
    let mut whole = 0;
    while let Some(block) = bytes.get(whole..)
        && let Ok((header, len, _)) = codec::parse(block)
        && header.epoch == epoch
    {
        whole += len;
    }
    // The writer overwrites a segment from its start, so its first block shows whether it is
    // reused.
    let first = read(from, place, codec::HEADER)?;
    let is_same = bytes.starts_with(first.get(..bytes.len()).unwrap_or(&first));
    let is_its = is_same && (whole > 0 || limit == 0);
    if is_its {
        to.write_all_at(bytes.get(..whole).unwrap_or(&[]), place)?;
    }
    Ok(is_its)
}

fn read(file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    read_up_to(file, at, len).map_err(io::Error::other)
}
