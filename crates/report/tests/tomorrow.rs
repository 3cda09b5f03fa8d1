// SPDX-License-Identifier: Apache-2.0
//! Records of a later version are counted by name in the report, and all other records are there.

use ncclscope_report::ReportBuilder;
use ncclscope_trace::Heartbeat;
use ncclscope_trace::layout::{BLOCKS, RING_BYTES};
use ncclscope_trace::progress::Thread;
use ncclscope_trace::schema::Declaration;
use ncclscope_trace::{Definition, Recording, Writer, layout::Header};
use std::os::unix::fs::FileExt;

const NEW: u8 = 77;
/// Bytes of a block header.
const HEADER: usize = 64;

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ (0xedb8_8320 * (crc & 1)))
    })
}

/// Changes the only record of the block at `at` into one with code [`NEW`], whose words are coded
/// alike.
fn renew(file: &std::fs::File, at: u64) {
    let mut head = [0; HEADER];
    file.read_exact_at(&mut head, at).unwrap();
    assert_eq!(head[..4], *b"NSB1");
    let len = usize::try_from(u32::from_le_bytes(head[8..12].try_into().unwrap())).unwrap();
    let mut block = vec![0; len];
    file.read_exact_at(&mut block, at).unwrap();
    block[HEADER] = NEW;
    let crc = crc32(&block[8..]);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&block, at).unwrap();
}

#[test]
fn what_a_later_version_records_is_counted_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later.nscope");
    let header = Header { process: 7, host: "node-1".into(), ..Header::default() };
    let mut writer = Writer::create(&path, header, RING_BYTES as u64).unwrap();
    let name = "tensor memory".into();
    let new = Declaration { code: NEW, name, words: 5, halves: 0, fields: vec![] };
    writer.define(&Definition::Record(new.into())).unwrap();
    let thread = Heartbeat::Thread(Thread { ticks: 9, tid: 3, ..Thread::default() }).pack();
    writer.append(0, 0, thread.words()).unwrap();
    writer.header_mut().closed = true;
    writer.sync_header().unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    renew(&file, BLOCKS);
    let mut builder = ReportBuilder::default();
    builder.add(&Recording::open(&path).unwrap());
    let problems = builder.finish().problems;
    let said = "1 `tensor memory` record is of a later version, and not shown";
    assert!(problems.iter().any(|problem| problem.ends_with(said)), "{problems:?}");
}
