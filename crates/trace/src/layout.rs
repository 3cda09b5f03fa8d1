// SPDX-License-Identifier: Apache-2.0
/*!
The offsets of the parts of a recording, and its header.

```text
0        header, 4 KiB
4 KiB    lane table: 256 lane headers of 1,280 bytes       (crate::scratch)
384 KiB  definitions, append-only                          (crate::define)
576 KiB  ring of heartbeats: three segments of 256 KiB         (crate::codec)
1,344 KiB block ring: segments of 256 KiB                  (crate::codec)
...      scratch: lane rings of 1 MiB, slot slabs of 80 KiB, if `lanes_shared`
```

Both rings are written segment by segment and start over when they are full; what is overwritten in
the block ring is counted in the header by kind of event. Definitions that do not fit continue in a
segment of the block ring. The memory that the rank's callbacks write to is a separate file
([`crate::lanes_file`]). After a SIGKILL it holds the records that were not yet in blocks, and is
appended to the blocks as the scratch.
*/

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::clock::ClockSource;
use crate::error::Error;
use crate::handle::{LANES, SLOTS};
use crate::kind::{KINDS, MOST_KINDS};
use crate::version::{CURRENT, FormatVersion};
use header::{
    CHECKSUM, COMMS_LOST, DEFINITIONS_LOST, FREEZES, GARBAGE_WORDS, HOST, HOST_MAX, LANES_CHECKSUM,
    LANES_FILE, LANES_FILE_MAX, LANES_SHARED, LEFT_OUT, MORE_DEFINITIONS, OVERWRITTEN,
    OVERWRITTEN_BLOCKS, PANICS, STALE, STRINGS_LOST, UNKNOWN_EVENTS, UNWRITTEN, WITHOUT_LANE,
    WITHOUT_SLOT,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// First bytes of a recording.
pub const MAGIC: [u8; 8] = *b"NCCLSCOP";
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// The start of the lane table.
pub const LANE_TABLE: u64 = 4096;
/// Bytes of a lane header.
pub const LANE_STRIDE: usize = 1280;
/// The start of the definitions.
pub const DEFINITIONS: u64 = 384 << 10;
/// The start of the ring of heartbeats, and the limit of the first part of the definitions.
pub const HEARTBEATS: u64 = 576 << 10;
/// Segments of the ring of heartbeats.
pub const HEARTBEAT_SEGMENTS: u32 = 3;
/// The start of the block ring.
pub const BLOCKS: u64 = HEARTBEATS + HEARTBEAT_SEGMENTS as u64 * SEGMENT;
const _: () = assert!(LANE_TABLE + (LANES * LANE_STRIDE) as u64 <= DEFINITIONS);
/// Bytes of a segment of the block ring.
pub const SEGMENT: u64 = 256 << 10;
/// Most segments of a block ring.
pub const MOST_SEGMENTS: u32 = 1 << 20;
/// The least and the greatest size of a block ring, in bytes.
pub const RING_LIMITS: std::ops::RangeInclusive<u64> = 4 * SEGMENT..=MOST_SEGMENTS as u64 * SEGMENT;
/// First bytes of a segment of the block ring that holds definitions.
pub const EXTENT_HEAD: [u8; 16] = *b"NSDEFS1\0\0\0\0\0\0\0\0\0";
/// Bytes of a lane's ring; a power of two.
pub const RING_BYTES: usize = 1 << 20;
/// Bytes of a ProxyOp slot: a 64-byte header and eight 32-byte steps.
pub const SLOT_BYTES: usize = 320;
/// Slots of a slab.
pub const SLAB_SLOTS: usize = 256;
/// Bytes of a slab.
pub const SLAB_BYTES: usize = SLOT_BYTES * SLAB_SLOTS;
/// Number of slabs.
pub const SLABS: usize = SLOTS / SLAB_SLOTS;

/// The bytes after the header's checksum. If checksum and seal are zero, the writer's version had
/// no checksum.
const SEAL: [u8; 4] = *b"CRC\x01";

/// Largest value that is read from a counter, so that sums of forged counters do not overflow.
pub(crate) const MOST_COUNTED: u64 = 1 << 44;

/// The recording's header. Everything is written by the drain thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version of the format.
    pub version: FormatVersion,
    /// The process ended its recording in order. Otherwise it runs, or was killed.
    pub closed: bool,
    /// The lanes are in this file, after the blocks.
    pub lanes_shared: bool,
    /// Path of the lanes file on the host ([`crate::lanes_file`]). If there is none and
    /// `lanes_shared` is false, up to one drain period is missing after a kill.
    pub lanes_file: Option<PathBuf>,
    /// Process id.
    pub pid: u32,
    /// Process bits of this recording's handles.
    pub process: u32,
    /// The clock that ticks come from.
    pub clock: ClockSource,
    /// Nominal ticks per second.
    pub hz: u64,
    /// Number of segments of the block ring.
    pub segments: u32,
    /// Blocks written so far: the next block's number.
    pub next_block: u64,
    /// Bytes of definitions in front of the ring of heartbeats.
    pub definitions: u64,
    /// Bytes of definitions in segments of the block ring.
    pub more_definitions: u64,
    /// Activation mask that the plugin asked NCCL for.
    pub mask: u32,
    /// Host name.
    pub host: String,
    /// Records overwritten in the block ring, by kind.
    pub overwritten: [u64; KINDS],
    /// Blocks overwritten in the block ring.
    pub overwritten_blocks: u64,
    /// How often the block ring was frozen ([`crate::Writer::freeze_events`]).
    pub freezes: u32,
    /// Records that could not be written (no space, I/O error), by kind.
    pub unwritten: [u64; KINDS],
    /// Definitions that did not fit.
    pub definitions_lost: u64,
    /// Words in lanes that were not a record, which is a defect of the plugin.
    pub garbage_words: u64,
    /// Start events of kinds that this plugin does not know (they are newer than it).
    pub unknown_events: u64,
    /// `init` calls that found the communicator table full.
    pub comms_lost: u64,
    /// Panics in callbacks, which are caught; a defect of the plugin.
    pub panics: u64,
    /// Stops and states of handles that were not a live event of the process (NCCL stops some
    /// twice).
    pub stale: u64,
    /// Strings that did not fit into the table.
    pub strings_lost: u64,
    /// The file is a copy that was made while recording continued ([`crate::dump`]).
    pub copy: bool,
    /// The checksum of the lane table ([`lanes_checksum`]); `None` if the recording was not ended
    /// in order, or by a version without it.
    pub lanes_checksum: Option<u32>,
    /// Operations that were left out because they were not in the sample (`sample=1/N`).
    pub left_out: u64,
    /// Events lost because more threads than lanes made callbacks, by kind.
    pub without_lane: [u64; KINDS],
    /// ProxyOps lost because all slots were taken, and their steps, by kind.
    pub without_slot: [u64; KINDS],
    /// Sums of the four counters by kind above for kinds of a later version, by the kind's number.
    /// Readers fill it in; it is not written.
    pub later_kinds: BTreeMap<u8, u64>,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            version: CURRENT,
            closed: false,
            lanes_shared: false,
            lanes_file: None,
            pid: 0,
            process: 0,
            clock: ClockSource::Monotonic,
            hz: 1_000_000_000,
            segments: 0,
            next_block: 0,
            definitions: 0,
            more_definitions: 0,
            mask: 0,
            host: String::new(),
            overwritten: [0; KINDS],
            overwritten_blocks: 0,
            freezes: 0,
            unwritten: [0; KINDS],
            definitions_lost: 0,
            garbage_words: 0,
            unknown_events: 0,
            comms_lost: 0,
            panics: 0,
            stale: 0,
            strings_lost: 0,
            copy: false,
            lanes_checksum: None,
            left_out: 0,
            without_lane: [0; KINDS],
            without_slot: [0; KINDS],
            later_kinds: BTreeMap::new(),
        }
    }
}

/// Offsets within the header.
pub(crate) mod header {
    use crate::kind::MOST_KINDS;

    pub(super) const LANES_SHARED: usize = 20;
    pub(crate) const DEFINITIONS_LOST: usize = 72;
    pub(crate) const GARBAGE_WORDS: usize = 80;
    pub(crate) const UNKNOWN_EVENTS: usize = 88;
    pub(crate) const COMMS_LOST: usize = 96;
    pub(crate) const PANICS: usize = 104;
    pub(crate) const STALE: usize = 112;
    pub(crate) const STRINGS_LOST: usize = 120;
    pub(crate) const LEFT_OUT: usize = 128;
    pub(super) const LANES_CHECKSUM: usize = 140;
    pub(super) const FREEZES: usize = 228;
    pub(super) const MORE_DEFINITIONS: usize = 232;
    pub(super) const OVERWRITTEN_BLOCKS: usize = 240;
    pub(super) const CHECKSUM: usize = 248;
    pub(super) const HOST: usize = 256;
    pub(super) const HOST_MAX: usize = 255;
    pub(crate) const OVERWRITTEN: usize = 512;
    pub(crate) const UNWRITTEN: usize = OVERWRITTEN + 8 * MOST_KINDS;
    pub(crate) const WITHOUT_LANE: usize = UNWRITTEN + 8 * MOST_KINDS;
    pub(crate) const WITHOUT_SLOT: usize = WITHOUT_LANE + 8 * MOST_KINDS;
    pub(super) const LANES_FILE: usize = WITHOUT_SLOT + 8 * MOST_KINDS;
    pub(super) const LANES_FILE_MAX: usize = 1023;
    const _: () = assert!(LANES_FILE + LANES_FILE_MAX < super::HEADER_BYTES);
}

impl Header {
    /// Events that were lost because no lane or no slot was free, by kind.
    #[must_use]
    pub fn without_memory(&self) -> [u64; KINDS] {
        std::array::from_fn(|kind| self.without_lane[kind].saturating_add(self.without_slot[kind]))
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(to) = out.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        };
        put(0, &MAGIC);
        put(8, &self.version.major.to_le_bytes());
        put(10, &self.version.minor.to_le_bytes());
        put(16, &u32::from(self.closed).to_le_bytes());
        put(LANES_SHARED, &u32::from(self.lanes_shared).to_le_bytes());
        put(24, &self.pid.to_le_bytes());
        put(28, &self.process.to_le_bytes());
        put(32, &u32::from(self.clock == ClockSource::Tsc).to_le_bytes());
        put(36, &self.segments.to_le_bytes());
        put(40, &self.hz.to_le_bytes());
        put(48, &self.next_block.to_le_bytes());
        put(56, &self.definitions.to_le_bytes());
        put(64, &self.mask.to_le_bytes());
        put(DEFINITIONS_LOST, &self.definitions_lost.to_le_bytes());
        put(GARBAGE_WORDS, &self.garbage_words.to_le_bytes());
        put(UNKNOWN_EVENTS, &self.unknown_events.to_le_bytes());
        put(COMMS_LOST, &self.comms_lost.to_le_bytes());
        put(PANICS, &self.panics.to_le_bytes());
        put(STALE, &self.stale.to_le_bytes());
        put(STRINGS_LOST, &self.strings_lost.to_le_bytes());
        put(LEFT_OUT, &self.left_out.to_le_bytes());
        put(136, &u32::from(self.copy).to_le_bytes());
        if let Some(crc) = self.lanes_checksum {
            put(LANES_CHECKSUM, &lanes_seal(crc));
        }
        put(FREEZES, &self.freezes.to_le_bytes());
        put(MORE_DEFINITIONS, &self.more_definitions.to_le_bytes());
        put(OVERWRITTEN_BLOCKS, &self.overwritten_blocks.to_le_bytes());
        let host = self.host.as_bytes();
        put(HOST, host.get(..host.len().min(HOST_MAX)).unwrap_or(&[]));
        let lanes = self.lanes_file.as_deref().map_or(&[][..], |p| p.as_os_str().as_bytes());
        // A truncated path would name another file, so it is left out.
        put(LANES_FILE, if lanes.len() <= LANES_FILE_MAX { lanes } else { &[] });
        for kind in 0..KINDS {
            put(OVERWRITTEN + 8 * kind, &self.overwritten[kind].to_le_bytes());
            put(UNWRITTEN + 8 * kind, &self.unwritten[kind].to_le_bytes());
            put(WITHOUT_LANE + 8 * kind, &self.without_lane[kind].to_le_bytes());
            put(WITHOUT_SLOT + 8 * kind, &self.without_slot[kind].to_le_bytes());
        }
        Header::seal(&mut out);
        out
    }

    /// Writes the checksum of a header whose bytes were changed.
    pub fn seal(page: &mut [u8]) {
        let crc = checksum(page);
        if let Some((to, seal)) = page.get_mut(CHECKSUM..).and_then(|at| at.split_first_chunk_mut())
        {
            *to = crc.to_le_bytes();
            seal.iter_mut().zip(SEAL).for_each(|(to, byte)| *to = byte);
        }
    }

    /// False if the checksum of a header is wrong.
    fn is_sound(page: &[u8]) -> bool {
        match page.get(CHECKSUM..CHECKSUM + 8) {
            None | Some([0, 0, 0, 0, 0, 0, 0, 0]) => true,
            Some(found) => found.starts_with(&checksum(page).to_le_bytes()) && found[4..] == SEAL,
        }
    }

    /// Reads a header from a file's first bytes.
    ///
    /// # Errors
    /// Any [`Error`] but `Io`.
    pub fn decode(bytes: &[u8]) -> Result<Header, Error> {
        if bytes.is_empty() {
            return Err(Error::Empty);
        }
        if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
            return Err(Error::NotARecording);
        }
        if bytes.len() < HEADER_BYTES {
            return Err(Error::TruncatedHeader { len: bytes.len() as u64 });
        }
        let u16_ = |at| u16_at(bytes, at).unwrap_or(0);
        let u32_ = |at| u32_at(bytes, at).unwrap_or(0);
        let u64_ = |at| u64_at(bytes, at).unwrap_or(0);
        let count = |at| u64_(at).min(MOST_COUNTED);
        let version = FormatVersion { major: u16_(8), minor: u16_(10) };
        version.check_readable()?;
        if !Header::is_sound(bytes) {
            return Err(Error::HeaderChecksum);
        }
        let host = bytes.get(HOST..HOST + HOST_MAX).unwrap_or(&[]);
        let host = host.split(|&b| b == 0).next().unwrap_or(&[]);
        let lanes = bytes.get(LANES_FILE..LANES_FILE + LANES_FILE_MAX).unwrap_or(&[]);
        let lanes = lanes.split(|&b| b == 0).next().filter(|path| !path.is_empty());
        let header = Header {
            version,
            closed: u32_(16) != 0,
            lanes_shared: u32_(LANES_SHARED) != 0,
            lanes_file: lanes.map(|path| OsStr::from_bytes(path).into()),
            pid: u32_(24),
            process: u32_(28),
            clock: if u32_(32) == 1 { ClockSource::Tsc } else { ClockSource::Monotonic },
            segments: u32_(36),
            hz: u64_(40),
            next_block: u64_(48),
            definitions: u64_(56),
            more_definitions: u64_(MORE_DEFINITIONS),
            overwritten_blocks: count(OVERWRITTEN_BLOCKS),
            freezes: u32_(FREEZES),
            mask: u32_(64),
            host: String::from_utf8_lossy(host).into_owned(),
            overwritten: std::array::from_fn(|k| count(OVERWRITTEN + 8 * k)),
            unwritten: std::array::from_fn(|k| count(UNWRITTEN + 8 * k)),
            definitions_lost: count(DEFINITIONS_LOST),
            garbage_words: count(GARBAGE_WORDS),
            unknown_events: count(UNKNOWN_EVENTS),
            comms_lost: count(COMMS_LOST),
            panics: count(PANICS),
            stale: count(STALE),
            strings_lost: count(STRINGS_LOST),
            left_out: count(LEFT_OUT),
            copy: u32_(136) != 0,
            lanes_checksum: (u32_(LANES_CHECKSUM + 4) == 1).then(|| u32_(LANES_CHECKSUM)),
            without_lane: std::array::from_fn(|k| count(WITHOUT_LANE + 8 * k)),
            without_slot: std::array::from_fn(|k| count(WITHOUT_SLOT + 8 * k)),
            later_kinds: later_kinds(bytes, &[OVERWRITTEN, UNWRITTEN, WITHOUT_LANE, WITHOUT_SLOT]),
        };
        if header.segments == 0 || header.segments > MOST_SEGMENTS {
            return Err(Error::Corrupt("impossible number of segments"));
        }
        if header.definitions > HEARTBEATS - DEFINITIONS {
            return Err(Error::Corrupt("more definitions than there is room for"));
        }
        Ok(header)
    }

    /// Sets `lanes_shared` and the checksum of the lane table in the bytes of a header, and updates
    /// its own checksum. All other bytes stay, because the writer's version may be later.
    pub(crate) fn take_lanes_in(page: &mut [u8], table: &[u8]) {
        if let Some(seal) = page.get_mut(LANES_CHECKSUM..LANES_CHECKSUM + 8) {
            seal.copy_from_slice(&lanes_seal(lanes_checksum(table)));
        }
        page.iter_mut().skip(LANES_FILE).take(LANES_FILE_MAX).for_each(|byte| *byte = 0);
        if let Some(flag) = page.get_mut(LANES_SHARED..LANES_SHARED + 4) {
            flag.copy_from_slice(&1_u32.to_le_bytes());
        }
        Header::seal(page);
    }

    /// Whether the segments may be in another order than their blocks' age, besides the point where
    /// the ring starts over.
    #[must_use]
    pub fn is_irregular(&self) -> bool {
        self.freezes != 0 || self.more_definitions != 0
    }

    /// The start of the scratch.
    #[must_use]
    pub fn scratch_offset(&self) -> u64 {
        BLOCKS + u64::from(self.segments) * SEGMENT
    }

    /// The start of a lane's ring.
    #[must_use]
    pub fn ring_offset(&self, lane: usize) -> u64 {
        self.scratch_offset() + (lane * RING_BYTES) as u64
    }

    /// The start of a slab.
    #[must_use]
    pub fn slab_offset(&self, slab: usize) -> u64 {
        self.scratch_offset() + (LANES * RING_BYTES + slab * SLAB_BYTES) as u64
    }
}

/// The checksum of a lane table (IEEE 802.3): over its bytes up to the last that is not zero,
/// because its end may be a hole of the file.
#[must_use]
pub fn lanes_checksum(table: &[u8]) -> u32 {
    let used = table.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    crc32fast::hash(&table[..used])
}

/// The bytes of the checksum of the lane table in the header: the checksum, and 1.
fn lanes_seal(crc: u32) -> [u8; 8] {
    let [crc, one] = [crc, 1].map(u32::to_le_bytes);
    std::array::from_fn(|at| if at < 4 { crc[at] } else { one[at - 4] })
}

/// The checksum of a header: over all of its bytes but those of the checksum and its seal.
fn checksum(page: &[u8]) -> u32 {
    let page = page.get(..HEADER_BYTES).unwrap_or(page);
    let mut crc = crc32fast::Hasher::new();
    crc.update(page.get(..CHECKSUM).unwrap_or(page));
    crc.update(page.get(CHECKSUM + 8..).unwrap_or(&[]));
    crc.finalize()
}

/// Sums of the counters by kind that begin at `places`, for kinds that this version does not know,
/// by the kind's number.
pub(crate) fn later_kinds(bytes: &[u8], places: &[usize]) -> BTreeMap<u8, u64> {
    let count = |kind: usize| -> u64 {
        places.iter().filter_map(|at| u64_at(bytes, at + 8 * kind)).fold(0, u64::saturating_add)
    };
    let numbers =
        (KINDS..MOST_KINDS).filter_map(|kind| Some((u8::try_from(kind).ok()?, count(kind))));
    numbers.filter(|&(_, count)| count != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip() {
        let header = Header {
            closed: true,
            lanes_shared: true,
            lanes_file: Some("/dev/shm/ncclscope-4711-1.lanes".into()),
            pid: 4711,
            process: 1023,
            clock: ClockSource::Tsc,
            hz: 2_600_000_000,
            segments: 256,
            next_block: 9,
            definitions: 100,
            more_definitions: 101,
            overwritten_blocks: 102,
            freezes: 103,
            mask: 0x7fdf,
            host: "node-17".into(),
            overwritten: std::array::from_fn(|k| k as u64),
            unwritten: std::array::from_fn(|k| 100 + k as u64),
            definitions_lost: 1,
            garbage_words: 2,
            unknown_events: 3,
            comms_lost: 4,
            panics: 5,
            stale: 6,
            strings_lost: 7,
            left_out: 8,
            copy: true,
            without_lane: std::array::from_fn(|k| 200 + k as u64),
            without_slot: std::array::from_fn(|k| 300 + k as u64),
            ..Header::default()
        };
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        assert!(header.scratch_offset() > BLOCKS);
    }

    #[test]
    fn refusals_say_why() {
        let good = Header { segments: 4, ..Header::default() }.encode();
        let says = |bytes: &[u8], word: &str| {
            let text = Header::decode(bytes).unwrap_err().to_string();
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        };
        says(&[], "empty");
        says(&good[..100], "truncated");
        says(b"{\"traceEvents\":[]}", "not an ncclscope recording");
        let mut newer = good;
        newer[8] = 3;
        says(&newer, "newer");
        let mut older = good;
        older[8..12].copy_from_slice(&[1, 0, 4, 0]);
        says(&older, "older");
        let mut impossible = good;
        impossible[36..40].fill(0xff);
        says(&impossible, "corrupt header: it contradicts its checksum");
        Header::seal(&mut impossible);
        says(&impossible, "segments");
    }

    #[test]
    fn no_flipped_bit_of_a_header_goes_unseen() {
        let good = Header { segments: 4, pid: 7, host: "node".into(), ..Header::default() };
        let bytes = good.encode();
        for bit in 0..8 * HEADER_BYTES {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = Header::decode(&flipped).expect_err(&format!("bit {bit}"));
            let is_told = match bit / 8 {
                0..8 => matches!(error, Error::NotARecording),
                8..10 => matches!(error, Error::NewerFormat { .. } | Error::OlderFormat { .. }),
                _ => matches!(error, Error::HeaderChecksum),
            };
            assert!(is_told, "bit {bit}: {error}");
        }
    }

    #[test]
    fn a_header_without_a_checksum_is_read() {
        let mut header = Header { segments: 4, pid: 7, ..Header::default() };
        header.version.minor = 1;
        let mut bytes = header.encode();
        bytes[CHECKSUM..CHECKSUM + 8].fill(0);
        assert_eq!(Header::decode(&bytes).unwrap(), header);
        bytes[24] ^= 2;
        assert_eq!(Header::decode(&bytes).unwrap().pid, 5);
    }

    #[test]
    fn a_header_into_which_the_lanes_are_taken_is_sound() {
        let lanes_file = Some("/dev/shm/ncclscope-7-1.lanes".into());
        let header = Header { segments: 4, lanes_file, ..Header::default() };
        let mut bytes = header.encode();
        Header::take_lanes_in(&mut bytes, &[7, 0, 0]);
        let taken = Header::decode(&bytes).unwrap();
        let lanes_checksum = Some(crc32fast::hash(&[7]));
        assert_eq!(
            taken,
            Header { lanes_shared: true, lanes_file: None, lanes_checksum, ..header }
        );
    }
}
