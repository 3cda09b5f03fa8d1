// SPDX-License-Identifier: Apache-2.0
/*!
The lanes file: the live memory of a rank's callbacks, which outlives a SIGKILL.

It lies in memory (tmpfs), not beside the recording: the kernel writes dirty pages of a disk's file
back, and the next store to such a page waits for the file system. Its owner holds an exclusive
`flock` for life, so that whoever gets the lock knows that the owner is dead.

```text
0        owner: `NCCLLANE`, pid:u32@8, process:u32@12, length:u16@16 and path of the recording @18
4 KiB    lane table, as in the recording                         (crate::scratch)
36 KiB   64 lane rings of 1 MiB, then 64 slot slabs of 80 KiB, as in the recording's scratch
```
*/

use crate::define::{u16_at, u32_at};
use crate::handle::LANES;
use crate::layout::{HEADER_BYTES, Header, LANE_STRIDE, LANE_TABLE, RING_BYTES, SLAB_BYTES, SLABS};
use crate::scratch::LaneHeader;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where the lane table begins.
pub const TABLE: u64 = 4096;
/// Where the rings begin.
pub const RINGS: u64 = TABLE + (LANES * LANE_STRIDE) as u64;
/// Where the slabs begin.
pub const SLABS_AT: u64 = RINGS + (LANES * RING_BYTES) as u64;
/// Bytes of the whole file.
pub const BYTES: u64 = SLABS_AT + (SLABS * SLAB_BYTES) as u64;
/// How file names begin.
pub const PREFIX: &str = "ncclscope-";
/// How file names end.
pub const SUFFIX: &str = ".lanes";
const MAGIC: [u8; 8] = *b"NCCLLANE";
const PATH: usize = 18;

/// Whose lanes they are: the file's first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Process bits of the handles.
    pub process: u32,
    /// The recording that the lanes belong to.
    pub recording: PathBuf,
}

impl Owner {
    /// The page. A path that does not fit is left out: nobody can then adopt the file.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let path = self.recording.as_os_str().as_bytes();
        let path = if path.len() <= HEADER_BYTES - PATH { path } else { &[] };
        let length = u16::try_from(path.len()).unwrap_or(0);
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &self.pid.to_le_bytes());
        put(12, &self.process.to_le_bytes());
        put(16, &length.to_le_bytes());
        put(PATH, path);
        out
    }

    /// Reads the page; `None` if it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Owner> {
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let length = usize::from(u16_at(bytes, 16)?);
        let path = bytes.get(PATH..PATH + length)?;
        Some(Owner {
            pid: u32_at(bytes, 8)?,
            process: u32_at(bytes, 12)?,
            recording: OsStr::from_bytes(path).into(),
        })
    }

    /// Reads the page of an open lanes file.
    #[must_use]
    pub fn of(file: &File) -> Option<Owner> {
        let mut page = [0; HEADER_BYTES];
        file.read_exact_at(&mut page, 0).ok()?;
        Owner::decode(&page)
    }

    /// True if this process wrote the recording with that header.
    #[must_use]
    pub fn wrote(&self, header: &Header) -> bool {
        self.pid == header.pid && self.process == header.process
    }
}

/// What became of a lanes file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// Its owner lives: nothing was touched.
    Alive,
    /// Its contents are in the recording now, and the file is gone.
    Kept,
    /// The recording is closed, or not there: the file was removed.
    Useless,
}

/// Puts the lanes of a dead process into its recording and removes the file `lanes`.
///
/// # Errors
/// The system's; both files are then as they were, or the recording has become longer.
pub fn adopt(lanes: &Path) -> io::Result<Adopted> {
    let file = OpenOptions::new().read(true).write(true).open(lanes)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Adopted::Alive),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Without its first page it was created just now, and its owner is about to take the lock.
    let Some(owner) = Owner::of(&file) else { return Ok(Adopted::Alive) };
    let adopted = match OpenOptions::new().read(true).write(true).open(&owner.recording) {
        Ok(recording) => keep(&file, &owner, lanes, &recording)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Adopted::Useless,
        Err(error) => return Err(error),
    };
    std::fs::remove_file(lanes)?;
    Ok(adopted)
}

fn keep(file: &File, owner: &Owner, lanes: &Path, recording: &File) -> io::Result<Adopted> {
    let mut page = [0; HEADER_BYTES];
    recording.read_exact_at(&mut page, 0)?;
    let mut header = Header::decode(&page).map_err(io::Error::other)?;
    let is_its = owner.wrote(&header) && header.lanes_file.as_deref() == Some(lanes);
    if header.closed || !is_its {
        return Ok(Adopted::Useless);
    }
    copy(file, TABLE, RINGS - TABLE, recording, LANE_TABLE)?;
    let mut table = vec![0; LANES * LANE_STRIDE];
    file.read_exact_at(&mut table, TABLE)?;
    for (lane, bytes) in table.chunks(LANE_STRIDE).enumerate() {
        let words = LaneHeader::decode(bytes).map_or(0, |header| header.head);
        let used = words.saturating_mul(8).min(RING_BYTES as u64);
        let at = RINGS + (lane * RING_BYTES) as u64;
        copy(file, at, used, recording, header.ring_offset(lane))?;
    }
    copy(file, SLABS_AT, (SLABS * SLAB_BYTES) as u64, recording, header.slab_offset(0))?;
    header.lanes_shared = true;
    header.lanes_file = None;
    recording.write_all_at(&header.encode(), 0)?;
    Ok(Adopted::Kept)
}

/// Copies up to `len` bytes, leaving out pieces (of a slab's size, so that no slot is cut) that are
/// all zero.
fn copy(from: &File, at: u64, len: u64, to: &File, to_at: u64) -> io::Result<()> {
    let mut piece = vec![0; SLAB_BYTES];
    let mut done = 0;
    while done < len {
        let want = usize::try_from(len - done).unwrap_or(SLAB_BYTES).min(SLAB_BYTES);
        let read = from.read_at(&mut piece[..want], at + done)?;
        if read == 0 {
            break;
        }
        if piece[..read].iter().any(|&byte| byte != 0) {
            to.write_all_at(&piece[..read], to_at + done)?;
        }
        done += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_kept() {
        let owner = Owner { pid: 7, process: 1023, recording: "/x/y-7.nscope".into() };
        assert_eq!(Owner::decode(&owner.encode()), Some(owner));
        assert_eq!(Owner::decode(&[0; HEADER_BYTES]), None);
        let long = Owner { pid: 7, process: 1, recording: "x".repeat(5000).into() };
        assert_eq!(Owner::decode(&long.encode()).unwrap().recording, PathBuf::new());
    }
}
