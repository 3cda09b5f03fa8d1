// SPDX-License-Identifier: Apache-2.0
/*!
The lanes file: the memory that a rank's callbacks write to, which survives a SIGKILL.

It lies in memory (tmpfs), not beside the recording: the kernel writes dirty pages of a disk's file
back, and the next store to such a page waits for the file system. Its owner holds an exclusive
`flock` for life, so that a process that gets the lock knows that the owner is dead.

```text
0        owner: `NCCLLANE`, pid:u32@8, process:u32@12, length:u16@16 and path of the recording @18,
         home @4032: device:u64 inode:u64 mounts:u64 boot:u8[16], orphan since:u64@4072 (in s),
         1 if there is no recording yet: u8@4080, directory missing since:u64@4088 (in s)
4 KiB    lane table, as in the recording                         (crate::scratch)
324 KiB  256 lane rings of 1 MiB, then 128 slot slabs of 80 KiB, as in the recording's scratch
```
*/

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::files::open_regular;
use crate::handle::LANES;
use crate::layout::{HEADER_BYTES, Header, LANE_STRIDE, LANE_TABLE, RING_BYTES, SLAB_BYTES, SLABS};
use crate::scratch::LaneHeader;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The start of the lane table.
pub const TABLE: u64 = 4096;
/// The start of the rings.
pub const RINGS: u64 = TABLE + (LANES * LANE_STRIDE) as u64;
/// The start of the slabs.
pub const SLABS_AT: u64 = RINGS + (LANES * RING_BYTES) as u64;
/// Bytes of the whole file.
pub const BYTES: u64 = SLABS_AT + (SLABS * SLAB_BYTES) as u64;
/// Prefix of the file names.
pub const PREFIX: &str = "ncclscope-";
/// Suffix of the file names.
pub const SUFFIX: &str = ".lanes";
const MAGIC: [u8; 8] = *b"NCCLLANE";
const PATH: usize = 18;
const HOME: usize = 4032;
const ORPHAN_SINCE: usize = 4072;
const NO_RECORDING: usize = 4080;
const MISSING_SINCE: usize = 4088;
/// How long a lanes file is kept for a process that can see its recording.
const ORPHAN_FOR: Duration = Duration::from_secs(7 * 86_400);
/// How long a lanes file may be without an owner.
const UNOWNED_FOR: Duration = Duration::from_secs(60);
/// The same if the recording's directory no longer exists where the owner saw it. It may come back
/// if it was renamed.
const DELETED_FOR: Duration = Duration::from_secs(3_600);

/// The identity of a recording's directory, which distinguishes it from directories of the same
/// path in other containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Device and inode of the directory.
    pub directory: (u64, u64),
    /// Number of the mount namespace, because device numbers of unmounted file systems are used
    /// again.
    pub mounts: u64,
    /// The kernel's boot id.
    pub boot: [u8; 16],
}

impl Home {
    /// The identity of the directory of `recording`, as this process sees it. `None` if the system
    /// does not report it.
    #[must_use]
    pub fn of(recording: &Path) -> Option<Home> {
        let directory = std::fs::metadata(recording.parent()?).ok()?;
        let (mounts, boot) = Home::namespace()?;
        Some(Home { directory: (directory.dev(), directory.ino()), mounts, boot })
    }

    /// This process's mount namespace and boot id.
    fn namespace() -> Option<(u64, [u8; 16])> {
        let mounts = std::fs::metadata("/proc/self/ns/mnt").ok()?.ino();
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        Some((mounts, u128::from_str_radix(&digits, 16).ok()?.to_be_bytes()))
    }

    fn encode(&self) -> [u8; 40] {
        let mut out = [0; 40];
        let (device, inode) = self.directory;
        for (to, word) in out.chunks_exact_mut(8).zip([device, inode, self.mounts]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out[24..].copy_from_slice(&self.boot);
        out
    }

    /// `None` if all bytes are zero: the system did not report it.
    fn decode(bytes: &[u8]) -> Option<Home> {
        let boot = bytes.get(24..40)?.try_into().ok()?;
        let home = Home {
            directory: (u64_at(bytes, 0)?, u64_at(bytes, 8)?),
            mounts: u64_at(bytes, 16)?,
            boot,
        };
        (home.boot != [0; 16]).then_some(home)
    }
}

/// The owner of a lanes file: the content of its first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Process bits of the handles.
    pub process: u32,
    /// The recording that the lanes belong to.
    pub recording: PathBuf,
    /// The identity of the recording's directory.
    pub home: Option<Home>,
    /// Whether there is a recording. If not, the lanes are useless once the process is dead.
    pub has_recording: bool,
}

impl Owner {
    /// The owner of lanes that belong to `recording`, whose directory exists.
    #[must_use]
    pub fn new(pid: u32, process: u32, recording: PathBuf) -> Owner {
        let home = Home::of(&recording);
        Owner { pid, process, recording, home, has_recording: true }
    }

    /// The owner of lanes that belong to no recording yet.
    #[must_use]
    pub fn without_recording(pid: u32) -> Owner {
        Owner { pid, process: 0, recording: PathBuf::new(), home: None, has_recording: false }
    }

    /// The page's bytes. A path that does not fit is left out; then no process can adopt the file.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let path = self.recording.as_os_str().as_bytes();
        let path = if path.len() <= HOME - PATH { path } else { &[] };
        let length = u16::try_from(path.len()).unwrap_or(0);
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &self.pid.to_le_bytes());
        put(12, &self.process.to_le_bytes());
        put(16, &length.to_le_bytes());
        put(PATH, path);
        put(HOME, &self.home.map_or([0; 40], |home| home.encode()));
        put(NO_RECORDING, &[u8::from(!self.has_recording)]);
        out
    }

    /// Decodes the page; `None` if it is not one.
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
            home: Home::decode(bytes.get(HOME..)?),
            has_recording: *bytes.get(NO_RECORDING)? == 0,
        })
    }

    /// Reads the page of an open lanes file.
    #[must_use]
    pub fn of(file: &File) -> Option<Owner> {
        let mut page = [0; HEADER_BYTES];
        file.read_exact_at(&mut page, 0).ok()?;
        Owner::decode(&page)
    }

    /// Whether the recording's directory exists; `None` if this process cannot see that. If it was
    /// deleted or renamed, what is left of its path is on its file system. In another container,
    /// which may have got the number of the owner's mount namespace, and if the file system is not
    /// mounted, that is on another one.
    fn has_directory(&self) -> Option<bool> {
        let home = self.home?;
        if Home::namespace() != Some((home.mounts, home.boot)) {
            return None;
        }
        let mut path = self.recording.ancestors().skip(1);
        let is_missing = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        match std::fs::metadata(path.next()?) {
            Ok(_) => Some(true),
            Err(error) if is_missing(&error) => {
                let left = path.find_map(|path| std::fs::metadata(path).ok())?;
                (left.dev() == home.directory.0).then_some(false)
            }
            Err(_) => None,
        }
    }

    /// True if this process wrote the recording with that header.
    #[must_use]
    pub fn wrote(&self, header: &Header) -> bool {
        self.pid == header.pid && self.process == header.process
    }
}

/// What [`adopt`] did with a lanes file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// Its owner is alive; nothing was changed.
    Alive,
    /// Its contents were moved into the recording, and the file removed.
    Kept,
    /// The file was removed, because the recording is closed, was deleted or never existed.
    Useless,
    /// The recording is not visible here; its path may be that of another container. The file is
    /// kept for a week, for a process that sees the recording; for an hour, if the recording's
    /// directory was deleted.
    Orphan,
}

/// What the recording's path in a lanes file leads to.
enum Found {
    /// The recording of the lanes, with the outcome.
    Its(Adopted),
    /// No file, or a recording of another process.
    Gone,
    /// A file that is not a readable recording.
    Unknown,
}

/// Opens the lanes file that a recording names, for reading. A recording may name any path, so only
/// files with the name of a lanes file are opened.
///
/// # Errors
/// An error of the system, or that the name or the kind of file is another one.
pub fn open(path: &Path) -> io::Result<File> {
    let name = path.file_name().map_or(&[][..], OsStr::as_bytes);
    if name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes()) {
        return open_regular(path, false);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is not that of a lanes file"))
}

/// Moves the lanes of a dead process into its recording and removes the file `lanes`. The file must
/// belong to `user` (the caller's effective user id), because its contents name the file that is
/// written.
///
/// # Errors
/// An error of the system, or that the file belongs to another user. Both files are then unchanged,
/// except that the recording may be longer.
pub fn adopt(lanes: &Path, user: u32) -> io::Result<Adopted> {
    let file = open_regular(lanes, true)?;
    if file.metadata()?.uid() != user {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's"));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Adopted::Alive),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let Some(owner) = Owner::of(&file) else {
        // Either the file was just created and its owner has not locked it yet, or the owner died
        // before. An owner that stood still for so long takes another name (`LanesFile::create`).
        let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
        if age < UNOWNED_FOR {
            return Ok(Adopted::Alive);
        }
        std::fs::remove_file(lanes)?;
        return Ok(Adopted::Useless);
    };
    // The owner held the lock when it wrote this page, so it is dead.
    if !owner.has_recording {
        std::fs::remove_file(lanes)?;
        return Ok(Adopted::Useless);
    }
    let found = match open_regular(&owner.recording, true) {
        Ok(recording) => keep(&file, &owner, lanes, &recording)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Gone,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Found::Gone,
        Err(error) => return Err(error),
    };
    let adopted = match found {
        Found::Its(adopted) => adopted,
        // The directory is the original one, so the recording was deleted.
        Found::Gone if owner.home.is_some() && Home::of(&owner.recording) == owner.home => {
            Adopted::Useless
        }
        Found::Gone | Found::Unknown if is_forgotten(&file, &owner)? => Adopted::Useless,
        Found::Gone | Found::Unknown => return Ok(Adopted::Orphan),
    };
    std::fs::remove_file(lanes)?;
    Ok(adopted)
}

/// True if the lanes were found without their recording for so long that they are not kept.
fn is_forgotten(file: &File, owner: &Owner) -> io::Result<bool> {
    let is_deleted = match owner.has_directory() {
        Some(false) => has_waited(file, MISSING_SINCE, DELETED_FOR)?,
        Some(true) => file.write_all_at(&[0; 8], MISSING_SINCE as u64).map(|()| false)?,
        None => false,
    };
    Ok(has_waited(file, ORPHAN_SINCE, ORPHAN_FOR)? || is_deleted)
}

/// True if the time stored at `at` is more than `limit` ago; the first call stores it.
fn has_waited(file: &File, at: usize, limit: Duration) -> io::Result<bool> {
    let mut since = [0; 8];
    file.read_at(&mut since, at as u64)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match u64::from_le_bytes(since) {
        0 => file.write_all_at(&now.to_le_bytes(), at as u64).map(|()| false),
        since => Ok(now.saturating_sub(since) > limit.as_secs()),
    }
}

fn keep(file: &File, owner: &Owner, lanes: &Path, recording: &File) -> io::Result<Found> {
    let mut page = Vec::new();
    recording.take(HEADER_BYTES as u64).read_to_end(&mut page)?;
    let Ok(header) = Header::decode(&page) else { return Ok(Found::Unknown) };
    if !owner.wrote(&header) {
        return Ok(Found::Gone);
    }
    // A closed recording, or one that contains its lanes, needs no lanes file.
    if header.closed || header.lanes_shared {
        return Ok(Found::Its(Adopted::Useless));
    }
    if header.lanes_file.as_deref() != Some(lanes) {
        return Ok(Found::Gone);
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
    Header::take_lanes_in(&mut page, &table);
    recording.write_all_at(&page, 0)?;
    Ok(Found::Its(Adopted::Kept))
}

/// Copies up to `len` bytes. Pieces that are all zero are left out; a piece has the size of a slab,
/// so that no slot is cut.
pub(crate) fn copy(from: &File, at: u64, len: u64, to: &File, to_at: u64) -> io::Result<()> {
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
    fn a_recording_makes_us_open_nothing_but_lanes() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, other] =
            ["ncclscope-1-2.lanes", "id_ed25519"].map(|name| folder.path().join(name));
        for path in [&ours, &other] {
            std::fs::write(path, "x").unwrap();
        }
        open(&ours).unwrap();
        for path in [&other, Path::new("/dev/tty"), Path::new("/"), Path::new("")] {
            assert_eq!(open(path).unwrap_err().to_string(), "its name is not that of a lanes file");
        }
    }

    #[test]
    fn the_owner_is_kept() {
        let here = Owner::new(7, 1023, "/proc/y-7.nscope".into());
        assert!(here.home.is_some());
        let nowhere = Owner::new(7, 1023, "/x/y-7.nscope".into());
        assert_eq!(nowhere.home, None);
        let young = Owner::without_recording(7);
        for owner in [here, nowhere, young] {
            assert_eq!(Owner::decode(&owner.encode()), Some(owner));
        }
        assert_eq!(Owner::decode(&[0; HEADER_BYTES]), None);
        let long = Owner::new(7, 1, "x".repeat(5000).into());
        assert_eq!(Owner::decode(&long.encode()).unwrap().recording, PathBuf::new());
    }
}
