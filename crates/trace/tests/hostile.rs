// SPDX-License-Identifier: Apache-2.0
//! Files that would exhaust a reader, or make it wait: each is read, or an error, at once.

use ncclscope_trace::layout::{BLOCKS, Header, LANE_TABLE, SEGMENT};
use ncclscope_trace::schema::Schema;
use ncclscope_trace::scratch::{lane, ring_records};
use ncclscope_trace::{Follower, Recording};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

#[test]
fn a_fifo_is_no_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h-1.nscope");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let errors = [
        Recording::open(&path).map(drop).unwrap_err(),
        Follower::open(&path).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.to_string(), "it is not an ordinary file");
    }
}

#[test]
fn words_without_number_are_torn() {
    let ring = [0xff; 64];
    let head = u64::MAX;
    let (records, torn) = ring_records(&ring, 0, head, &Schema::default());
    assert!(records.is_empty() && torn > 0);
    // The same in a file whose lanes are said to be in it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h-1.nscope");
    let header = Header { segments: 4, lanes_shared: true, ..Header::default() };
    fs::write(&path, header.encode()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&1_u32.to_le_bytes(), LANE_TABLE + lane::STATE as u64).unwrap();
    for (at, value) in [(lane::HEAD, u64::MAX), (lane::TAIL, 3), (lane::HIDDEN, 0)] {
        file.write_all_at(&value.to_le_bytes(), LANE_TABLE + at as u64).unwrap();
    }
    file.set_len(header.slab_offset(0)).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.records(0).count(), 0);
    assert!(recording.problems()[0].contains("torn tail"), "{:?}", recording.problems());
}

/// A ring of 256 GiB, of which one page is not a hole.
#[test]
fn holes_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h-1.nscope");
    let header = Header { segments: 1 << 20, closed: true, ..Header::default() };
    fs::write(&path, header.encode()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(BLOCKS + (SEGMENT << 20)).unwrap();
    file.write_all_at(b"NSB1", BLOCKS + 700_000 * SEGMENT).unwrap();
    let recording = Recording::open(&path).unwrap();
    let problem = &recording.problems()[0];
    assert!(problem.starts_with("segment 700000: torn block"), "{problem}");
}
