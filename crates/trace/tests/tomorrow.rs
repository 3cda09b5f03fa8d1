// SPDX-License-Identifier: Apache-2.0
//! A recording of a later version, made by hand from docs/trace-format.md: records that this
//! version knows are read, and the others are counted by name.

use ncclscope_trace::counters::{COUNTERS, Counter, CounterLocation};
use ncclscope_trace::layout::{BLOCKS, DEFINITIONS, HEADER_BYTES, Header, LANE_STRIDE, RING_BYTES};
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::schema::{Declaration, Field};
use ncclscope_trace::scratch::lane;
use ncclscope_trace::{
    Definition, Detail, EventKind, Handle, Record, Recording, Start, State, Step, Writer,
};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A record code that this version does not have; its record is longer than any that it has.
const NEW: u8 = 100;
const NEW_WORDS: u8 = 14;
/// The base from which the steps' times are counted.
const STEP_TICKS: u64 = 1 << 40;
/// A kind of events that this version does not have.
const KIND: u8 = 17;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn zigzag(value: u64) -> u64 {
    let value = value.cast_signed();
    (value << 1 ^ value >> 63).cast_unsigned()
}

/// The records of a block, each as words, coded as the page describes.
struct Coder {
    before: std::collections::HashMap<u8, Vec<u64>>,
    ticks: u64,
}

impl Coder {
    fn put(&mut self, out: &mut Vec<u8>, words: &[u64], halves: u32) {
        let code = words[0].to_le_bytes()[0];
        let before = self.before.entry(code).or_insert_with(|| vec![0; words.len()]);
        let half = |word: u64, before: u64| {
            let low = u32::try_from(word & 0xffff_ffff).unwrap();
            let delta =
                low.wrapping_sub(u32::try_from(before & 0xffff_ffff).unwrap()).cast_signed();
            u64::from((delta << 1 ^ delta >> 31).cast_unsigned())
        };
        let mut numbers = vec![
            (words[0] >> 8 ^ before[0] >> 8) & 0xff_ffff,
            half(words[0] >> 32, before[0] >> 32),
            zigzag(words[1].wrapping_sub(self.ticks)),
        ];
        self.ticks = words[1];
        for at in 2..words.len() {
            if halves >> at & 1 != 0 {
                numbers.push(half(words[at], before[at]));
                numbers.push(half(words[at] >> 32, before[at] >> 32));
            } else {
                numbers.push(zigzag(words[at].wrapping_sub(before[at])));
            }
        }
        before.copy_from_slice(words);
        out.push(code);
        let mask = numbers.iter().rev().fold(0, |mask, &number| mask << 1 | u64::from(number != 0));
        varint(out, mask);
        numbers.into_iter().filter(|&number| number != 0).for_each(|number| varint(out, number));
    }
}

/// Three network steps of operation 0x1005, coded by hand from the page; the last one is as the
/// coder predicts it.
fn steps(ticks: u64) -> (Vec<u8>, Vec<Record>) {
    let mut out = Vec::new();
    // Context 5, operation 0x1005 >> 7 above it, number 7, flags 63, 4096 bytes.
    out.extend([0x7f, 0b10_1111, 5]);
    let numbers = [zigzag(0x1005 >> 7), zigzag(7), 63, zigzag(4096)];
    numbers.into_iter().for_each(|number| varint(&mut out, number));
    // 10 after the ticks; the states 1, 1 + 20 and 21 + 300 later; the end 4 before the last state.
    out.extend(0b1_010_001_010_011_001_u16.to_be_bytes());
    let numbers = [10, 1, 20, 300, 4_u64.wrapping_neg()].map(zigzag);
    let at = [0, 8, 12, 20, 32];
    let bits: u64 = numbers.into_iter().zip(at).map(|(number, at)| number << at).sum();
    out.extend(&bits.to_le_bytes()[..5]);
    // A second step after the same interval, with the same times, and a third: for the third, the
    // context is predicted, too.
    out.extend([0x7f, 1, 5, 0x80, 0]);
    out.extend([0x80, 0]);
    let step = |index: u32| {
        Record::Step(Step {
            ticks: ticks + 10 * (u64::from(index) + 1),
            flags: 63,
            repeats: 0,
            step: 7 + index,
            op_ref: 0x1005,
            size: 4096,
            states: [1, 21, 321],
            end: 317,
        })
    };
    (out, (0..3).map(step).collect())
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xedb8_8320 * (crc & 1));
        }
    }
    !crc
}

/// A block of records; each has its words, and a mask of which of them are halves.
fn block(number: u64, lane: u16, records: &[(Vec<u64>, u32)]) -> Vec<u8> {
    let first_ticks = records[0].0[1];
    let mut coder = Coder { before: std::collections::HashMap::new(), ticks: first_ticks };
    let mut payload = Vec::new();
    records.iter().for_each(|(words, halves)| coder.put(&mut payload, words, *halves));
    let words: usize = records.iter().map(|(words, _)| words.len()).sum();
    around((number, lane), &payload, (records.len(), words), first_ticks)
}

/// The block around a payload of a number of records and words.
fn around(
    (number, lane): (u64, u16),
    payload: &[u8],
    (records, words): (usize, usize),
    first_ticks: u64,
) -> Vec<u8> {
    let mut out = Vec::from(*b"NSB1");
    out.extend([0; 4]);
    let len = (64 + payload.len()).next_multiple_of(8);
    out.extend(u32::try_from(len).unwrap().to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    out.extend(number.to_le_bytes());
    out.extend(lane.to_le_bytes());
    out.extend([0; 2]);
    out.extend(u32::try_from(records).unwrap().to_le_bytes());
    for word in [0, words as u64, first_ticks, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(payload);
    out.resize(len, 0);
    let crc = crc32(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

/// A stop; with `more`, as in the later version, with one word after those that it has today.
fn stop(ticks: u64, handle: Handle, more: bool) -> (Vec<u64>, u32) {
    let mut words = Record::stop(ticks, handle).words().to_vec();
    words.extend(more.then_some(0xfeed));
    (words, 0)
}

fn unknown(ticks: u64) -> (Vec<u64>, u32) {
    let mut words = vec![u64::from(NEW) | 5 << 8 | 9 << 32, ticks];
    words.extend((2..u64::from(NEW_WORDS)).map(|word| u64::MAX / (word + ticks)));
    (words, 0b1000)
}

/// The header of a lane that a thread has used.
fn used_lane() -> [u8; LANE_STRIDE] {
    let mut header = [0; LANE_STRIDE];
    header[lane::STATE] = 1;
    header
}

fn write(path: &Path, longer_stops: bool) -> Vec<Handle> {
    let header = Header { segments: 4, process: 7, ..Header::default() };
    let mut writer = Writer::create(path, header, RING_BYTES as u64).unwrap();
    (0..2).for_each(|lane| writer.write_lane(lane, &used_lane()).unwrap());
    let field = Field { name: "depth".into(), word: 0, shift: 8, bits: 8, words: 1, meaning: 99 };
    let (name, fields) = ("tensor memory".into(), vec![field]);
    let new = Declaration { code: NEW, name, words: NEW_WORDS, halves: 0b1000, fields };
    writer.define(&Definition::Record(new.into())).unwrap();
    if longer_stops {
        let name = "stop".into();
        let stop = Declaration { code: 1, name, words: 4, halves: 0, fields: vec![] };
        writer.define(&Definition::Record(stop.into())).unwrap();
    }
    writer.sync_header().unwrap();
    let file = OpenOptions::new().write(true).read(true).open(path).unwrap();
    let handle = |number| Handle::value(7, EventKind::Coll, 0, number);
    let handles: Vec<Handle> = (1..=3).map(handle).collect();
    let records = [
        stop(100, handles[0], longer_stops),
        unknown(110),
        stop(120, handles[1], longer_stops),
        unknown(130),
        unknown(140),
        stop(150, handles[2], longer_stops),
    ];
    let first = block(0, 0, &records);
    file.write_all_at(&first, BLOCKS).unwrap();
    let (payload, steps) = steps(STEP_TICKS);
    let second = around((1, 1), &payload, (steps.len(), 5 * steps.len()), STEP_TICKS);
    file.write_all_at(&second, BLOCKS + first.len() as u64).unwrap();
    end(&file, 2);
    handles
}

/// Closes the recording of `blocks` blocks as a later minor version.
fn end(file: &File, blocks: u64) {
    let mut header = vec![0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).unwrap();
    header[10..12].copy_from_slice(&99_u16.to_le_bytes());
    header[16..20].copy_from_slice(&1_u32.to_le_bytes());
    header[48..56].copy_from_slice(&blocks.to_le_bytes());
    // The checksum covers everything except itself and its marker.
    let crc = crc32(&[&header[..248], &header[256..]].concat());
    header[248..252].copy_from_slice(&crc.to_le_bytes());
    header[252..256].copy_from_slice(b"CRC\x01");
    file.write_all_at(&header, 0).unwrap();
}

/// Adds to the counter of kind `kind`, in counters that begin at `at`.
fn count(bytes: &mut [u8], at: usize, kind: u8, number: u64) {
    let at = at + 8 * usize::from(kind);
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

#[test]
fn events_of_a_later_kind_are_passed_over_and_their_losses_have_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later.nscope");
    let mut writer =
        Writer::create(&path, Header { process: 7, ..Header::default() }, RING_BYTES as u64)
            .unwrap();
    let (code, name) = (16 + KIND, "TmaCopy".into());
    let new = Declaration { code, name, words: 4, halves: 0, fields: vec![] };
    writer.define(&Definition::Record(new.into())).unwrap();
    let mut lane = [0; LANE_STRIDE];
    lane[0] = 2;
    count(&mut lane, 256, KIND, 5);
    count(&mut lane, 768, KIND, 6);
    count(&mut lane, 256, 40, 1);
    writer.write_lane(255, &lane).unwrap();
    writer.sync_header().unwrap();
    let later = Handle(7 << 54 | u64::from(KIND) << 48 | 255 << 40 | 9);
    let handle = Handle::value(7, EventKind::KernelCh, 255, 1);
    let detail = Detail::KernelCh(KernelCh { channel: 1, ptimer: 2 });
    let child = Start { ticks: 120, comm: 1, handle, parent: later, detail };
    let records = [
        (vec![code.into(), 100, later.0, 0], 0),
        (child.pack().words().to_vec(), 0),
        stop(130, later, false),
        (Record::state(140, later, State(99), 1, 2).words().to_vec(), 0),
        stop(150, handle, false),
    ];
    let file = OpenOptions::new().write(true).read(true).open(&path).unwrap();
    file.write_all_at(&block(0, 255, &records), BLOCKS).unwrap();
    let overwritten = 7_u64;
    file.write_all_at(&overwritten.to_le_bytes(), 512 + 8 * u64::from(KIND)).unwrap();
    end(&file, 1);
    let recording = Recording::open(&path).unwrap();
    let other = |ticks| Record::Unknown { ticks, code };
    let expected = [
        other(100),
        Record::Start(child),
        other(130),
        other(140),
        Record::Stop { ticks: 150, handle },
    ];
    assert_eq!(recording.records(255).collect::<Vec<_>>(), expected);
    assert_eq!(recording.record_name(code), Some("TmaCopy"));
    let losses: Vec<_> = recording.losses_of_later_kinds().into_iter().collect();
    assert_eq!(losses, [("TmaCopy".to_owned(), 5 + 6 + 7), ("kind 40".to_owned(), 1)]);
    assert_eq!(recording.problems(), [] as [&str; 0]);
}

#[test]
fn what_a_later_version_adds_is_passed_over_and_counted_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for longer_stops in [false, true] {
        let path = folder.path().join(format!("later-{longer_stops}.nscope"));
        let handles = write(&path, longer_stops);
        let recording = Recording::open(&path).unwrap();
        let records: Vec<Record> = recording.records(0).collect();
        let known = |at: usize, ticks| Record::Stop { ticks, handle: handles[at] };
        let other = |ticks| Record::Unknown { ticks, code: NEW };
        let expected =
            [known(0, 100), other(110), known(1, 120), other(130), other(140), known(2, 150)];
        assert_eq!(records, expected, "{:?}", recording.problems());
        let (_, steps) = steps(STEP_TICKS);
        assert_eq!(recording.records(1).collect::<Vec<_>>(), steps);
        assert_eq!(recording.record_name(NEW), Some("tensor memory"));
        assert_eq!(recording.problems(), [] as [&str; 0]);
    }
}

/// A recording of only one segment in this version's format: the declaration, and a block of
/// records.
fn recording_of(path: &Path, declared: Declaration, block: &[u8]) -> Recording {
    let header = Header { segments: 4, process: 7, ..Header::default() };
    let mut writer = Writer::create(path, header, RING_BYTES as u64).unwrap();
    (0..2).for_each(|lane| writer.write_lane(lane, &used_lane()).unwrap());
    writer.define(&Definition::Record(declared.into())).unwrap();
    writer.sync_header().unwrap();
    let file = OpenOptions::new().write(true).read(true).open(path).unwrap();
    file.write_all_at(block, BLOCKS).unwrap();
    end(&file, 1);
    Recording::open(path).unwrap()
}

#[test]
fn fields_that_an_earlier_version_did_not_have_are_0() {
    let folder = tempfile::tempdir().unwrap();
    let handle = Handle::value(7, EventKind::KernelCh, 0, 1);
    let detail = Detail::KernelCh(KernelCh { channel: 1, ptimer: 99 });
    let start = Start { ticks: 120, comm: 1, handle, parent: Handle(5), detail };
    let mut words = start.pack().words().to_vec();
    // The GPU's time was added in a later version.
    words.pop();
    let code = words[0].to_le_bytes()[0];
    let (name, length) = ("KernelCh".into(), u8::try_from(words.len()).unwrap());
    let declared = Declaration { code, name, words: length, halves: 0, fields: vec![] };
    let block = block(0, 0, &[(words.clone(), 0), (words, 0)]);
    let recording = recording_of(&folder.path().join("earlier.nscope"), declared, &block);
    let detail = Detail::KernelCh(KernelCh { channel: 1, ptimer: 0 });
    let expected = Record::Start(Start { detail, ..start });
    assert_eq!(recording.records(0).collect::<Vec<_>>(), [expected, expected]);
    assert_eq!((recording.unreadable(), recording.problems()), (0, &[] as &[String]));
}

#[test]
fn records_that_cannot_be_read_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let name = "never used".into();
    let declared = Declaration { code: NEW, name, words: 2, halves: 0, fields: vec![] };
    let handle = Handle::value(7, EventKind::Coll, 0, 1);
    // The second record has a code that is declared nowhere.
    let records = [stop(100, handle, false), (vec![101, 110], 0), stop(120, handle, false)];
    let path = folder.path().join("undeclared.nscope");
    let recording = recording_of(&path, declared, &block(0, 0, &records));
    assert_eq!(recording.records(0).collect::<Vec<_>>(), [Record::Stop { ticks: 100, handle }]);
    assert_eq!(recording.unreadable(), 2);
}

#[test]
fn counters_of_a_later_version_are_read_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later.nscope");
    let mut writer =
        Writer::create(&path, Header { process: 7, ..Header::default() }, RING_BYTES as u64)
            .unwrap();
    let counter = |place, at, by_kind, name: &str| {
        Definition::Counter(Counter { place, at, by_kind, name: name.into() })
    };
    for counter in [
        counter(CounterLocation::Header, 144, false, "looks that came late"),
        counter(CounterLocation::Header, 144, false, "looks that came late"),
        counter(CounterLocation::Header, 3584, true, "events of the wrong colour"),
        counter(CounterLocation::Header, 152, false, "what never happened"),
        counter(CounterLocation::Lanes, 216, false, "turns of a ring"),
    ] {
        writer.define(&counter).unwrap();
    }
    let file = OpenOptions::new().write(true).read(true).open(&path).unwrap();
    let mut lane = [0; LANE_STRIDE];
    lane[0] = 2;
    lane[216] = 3;
    // The counter of a kind that both versions have.
    count(&mut lane, 256, 1, 5);
    writer.write_lane(9, &lane).unwrap();
    writer.write_lane(255, &lane).unwrap();
    writer.sync_header().unwrap();
    file.write_all_at(&7_u64.to_le_bytes(), 144).unwrap();
    file.write_all_at(&20_u64.to_le_bytes(), 3584).unwrap();
    file.write_all_at(&22_u64.to_le_bytes(), 3584 + 8 * 63).unwrap();
    end(&file, 0);
    let recording = Recording::open(&path).unwrap();
    let found: Vec<_> = recording.counters_of_later_versions().iter().collect();
    let expected = [
        (&"events of the wrong colour".to_owned(), &42),
        (&"looks that came late".to_owned(), &7),
        (&"turns of a ring".to_owned(), &6),
    ];
    assert_eq!(found, expected);
    assert_eq!(recording.lanes()[9].header.lost[1], 5);
    assert_eq!(recording.problems(), [] as [&str; 0]);
}

#[test]
fn every_counter_is_declared_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("now.nscope");
    let writer =
        Writer::create(&path, Header { process: 7, ..Header::default() }, RING_BYTES as u64);
    drop(writer.unwrap());
    let bytes = std::fs::read(&path).unwrap();
    let mut rest = &bytes[usize::try_from(DEFINITIONS).unwrap()..];
    let mut names = Vec::new();
    while let Some((definition, len)) = Definition::decode(rest) {
        rest = &rest[len..];
        if let Definition::Counter(counter) = definition {
            names.push(counter.name);
        }
    }
    assert_eq!(names, COUNTERS.map(|(_, _, _, name)| name));
}

#[test]
fn every_record_is_declared_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("now.nscope");
    let writer =
        Writer::create(&path, Header { process: 7, ..Header::default() }, RING_BYTES as u64);
    drop(writer.unwrap());
    let recording = Recording::open(&path).unwrap();
    for code in 0..=u8::MAX {
        let known = ncclscope_trace::record::layout(code).map(|(name, _)| name);
        assert_eq!(recording.record_name(code), known, "code {code}");
    }
    let bytes = std::fs::read(&path).unwrap();
    let at = usize::try_from(DEFINITIONS).unwrap();
    assert_eq!(bytes[at], 9, "they come first");
}
