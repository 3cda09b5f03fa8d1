// SPDX-License-Identifier: Apache-2.0
//! Following a recording: while it is written, overwritten, torn, closed, killed and replaced.

mod common;

use common::lanes_file;
use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::lanes_file::{Owner, adopt};
use ncclscope_trace::layout::{BLOCKS, Header, SEGMENT};
use ncclscope_trace::record::{Detail, KernelLaunch, Packed};
use ncclscope_trace::{
    ClockSync, Comm, Definition, End, EventKind, Follower, Handle, News, Record, Start, StrId,
    Writer,
};
use proptest::prelude::*;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A record that a block cannot compress.
fn launch(n: u64) -> Packed {
    let handle = Handle::value(5, EventKind::KernelLaunch, 1, n);
    let stream = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let detail = Detail::KernelLaunch(KernelLaunch { stream });
    Start { ticks: n, comm: 0, handle, parent: Handle::NULL, detail }.pack()
}

fn words(ticks: std::ops::Range<u64>) -> Vec<u64> {
    ticks.flat_map(|n| launch(n).words().to_vec()).collect()
}

fn poll(follower: &mut Follower) -> Vec<News> {
    let mut told = Vec::new();
    follower.poll(|news| told.push(news)).unwrap();
    told
}

/// Lanes and time stamps of the new records.
fn ticks(follower: &mut Follower) -> Vec<(usize, u64)> {
    let told = poll(follower).into_iter();
    let record = |news| match news {
        News::Record(lane, record) => Some((lane, record.ticks())),
        News::Definition(_) | News::Heartbeat(_) => None,
    };
    told.filter_map(record).collect()
}

struct Case {
    _dir: tempfile::TempDir,
    path: PathBuf,
    writer: Writer,
}

fn case() -> Case {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h-1.nscope");
    let writer = Writer::create(&path, Header::default(), 0).unwrap();
    Case { _dir: dir, path, writer }
}

#[test]
fn each_thing_is_told_once_and_definitions_first() {
    let mut case = case();
    let mut follower = Follower::open(&case.path).unwrap();
    assert_eq!(poll(&mut follower), []);
    let text = Definition::String { id: StrId(3), text: "RING".into() };
    let comm = Definition::Comm(Comm { hash: 7, ..Comm::default() });
    case.writer.define(&text).unwrap();
    case.writer.append(1, 0, launch(4).words()).unwrap();
    let sync = ClockSync { ticks: 9, monotonic_ns: 5, realtime_ns: 6, error_ns: 7 };
    case.writer.append(META_LANE, 0, Record::clock_sync(&sync).words()).unwrap();
    let record = |n| News::Record(1, Record::unpack(launch(n).words()).unwrap());
    assert_eq!(poll(&mut follower), [News::Definition(text), record(4)]);
    assert_eq!((follower.last_ticks(), follower.tick_map().realtime_ns(9)), (9, 6));
    assert_eq!(poll(&mut follower), []);
    case.writer.define(&comm).unwrap();
    case.writer.header_mut().stale = 3;
    case.writer.sync_header().unwrap();
    assert_eq!(poll(&mut follower), [News::Definition(comm)]);
    assert_eq!((follower.header().stale, follower.end()), (3, None));
    case.writer.append(1, 5, launch(5).words()).unwrap();
    case.writer.header_mut().closed = true;
    case.writer.sync_header().unwrap();
    assert_eq!(poll(&mut follower), [record(5)]);
    assert_eq!((follower.end(), follower.missed_blocks()), (Some(End::Closed), 0));
    case.writer.append(1, 10, launch(6).words()).unwrap();
    assert_eq!(poll(&mut follower), [], "after the end nothing is new");
}

#[test]
fn a_late_follower_reads_what_is_left_and_counts_the_rest() {
    let mut case = case();
    let mut written = 0;
    while case.writer.header().overwritten[EventKind::KernelLaunch.index()] == 0 {
        case.writer.append(1, written, &words(written..written + 500)).unwrap();
        written += 500;
    }
    let mut follower = Follower::open(&case.path).unwrap();
    let told = ticks(&mut follower);
    let lost = case.writer.header().overwritten[EventKind::KernelLaunch.index()];
    assert_eq!(told, (lost..written).map(|n| (1, n)).collect::<Vec<_>>());
    assert_eq!(follower.missed_blocks(), lost / 500);
}

/// Also if the ring has overwritten that block.
#[test]
fn what_comes_before_a_block_is_told_first_and_each_block_once() {
    for blocks in [4, 400] {
        let mut case = case();
        let mut written = 0;
        let mut write = |count: u64| {
            for _ in 0..count {
                case.writer.append(1, written, &words(written..written + 500)).unwrap();
                written += 500;
            }
        };
        write(3);
        let mut follower = Follower::open(&case.path).unwrap();
        assert_eq!((ticks(&mut follower).len(), follower.next_block()), (1500, 3));
        let end = follower.next_block();
        write(blocks);
        let mut again = Follower::open(&case.path).unwrap();
        let mut before = Vec::new();
        again.poll_before(end, |news| before.push(news)).unwrap();
        let overwritten = case.writer.header().overwritten_blocks;
        let left = 3_u64.saturating_sub(overwritten);
        assert_eq!(before.len() as u64, 500 * left);
        assert_eq!((again.next_block(), again.missed_blocks()), (end, 0));
        let told = ticks(&mut again);
        let first = 500 * overwritten.max(3);
        assert_eq!(told, (first..written).map(|n| (1, n)).collect::<Vec<_>>());
        assert_eq!(again.missed_blocks(), overwritten.saturating_sub(3));
    }
}

#[test]
fn a_writer_at_full_speed_is_followed_without_a_gap_that_is_not_counted() {
    const RECORDS: u64 = 60_000;
    let mut case = case();
    let mut follower = Follower::open(&case.path).unwrap();
    let writer = std::thread::spawn(move || {
        for n in 0..RECORDS {
            case.writer.append(1, 5 * n, launch(n).words()).unwrap();
        }
        case.writer.header_mut().closed = true;
        case.writer.sync_header().unwrap();
        case
    });
    let mut told = Vec::new();
    while follower.end().is_none() {
        told.extend(ticks(&mut follower));
    }
    assert!(told.is_sorted_by(|a, b| a < b), "a record came twice, or too late");
    assert_eq!(told.len() as u64 + follower.missed_blocks(), RECORDS);
    assert_eq!(told.last(), Some(&(1, RECORDS - 1)));
    drop(writer.join().unwrap());
}

const OWNER: (u32, u32) = (77, 5);

/// A recording with one block, and a lanes file with that block's record and another one.
fn with_lanes(folder: &Path) -> (PathBuf, PathBuf, File) {
    let (path, lanes) = (folder.join("x.nscope"), folder.join("ncclscope-x.lanes"));
    let (pid, process) = OWNER;
    let header = Header { pid, process, lanes_file: Some(lanes.clone()), ..Header::default() };
    let mut writer = Writer::create(&path, header, 0).unwrap();
    writer.append(0, 0, &words(1000..1001)).unwrap();
    let owner = Owner::new(pid, process, path.clone());
    let file = lanes_file(&lanes, &owner, &words(1000..1002));
    file.lock().unwrap();
    (path, lanes, file)
}

#[test]
fn what_a_killed_process_left_in_its_lanes_is_told_once() {
    for adopted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, lanes, owner) = with_lanes(dir.path());
        let mut follower = Follower::open(&path).unwrap();
        assert_eq!(ticks(&mut follower), [(0, 1000)], "it lives");
        assert_eq!(follower.end(), None);
        drop(owner);
        if adopted {
            let user = std::fs::metadata(&lanes).unwrap().uid();
            adopt(&lanes, user).unwrap();
        }
        assert_eq!(ticks(&mut follower), [(0, 1001)], "it was killed");
        assert_eq!(follower.end(), Some(End::Killed));
        assert_eq!(follower.lanes()[0].head, words(0..2).len() as u64);
        assert_eq!(ticks(&mut follower), []);
    }
}

#[test]
fn a_file_that_was_replaced_is_read_to_its_end_and_told() {
    let mut case = case();
    let mut follower = Follower::open(&case.path).unwrap();
    assert!(follower.is_current());
    std::fs::remove_file(&case.path).unwrap();
    assert!(!follower.is_current());
    Writer::create(&case.path, Header::default(), 0).unwrap();
    case.writer.append(1, 0, launch(1).words()).unwrap();
    assert_eq!(ticks(&mut follower), [(1, 1)]);
    assert!(!follower.is_current());
    assert!(Follower::open(&case.path).unwrap().is_current());
}

#[test]
fn a_damaged_block_costs_its_segment_at_most() {
    let mut case = case();
    let mut follower = Follower::open(&case.path).unwrap();
    case.writer.append(1, 0, &words(0..10)).unwrap();
    let damaged = case.writer.blocks_end();
    case.writer.append(1, 50, &words(10..20)).unwrap();
    case.writer.append(1, 100, &words(20..30)).unwrap();
    let file = OpenOptions::new().write(true).open(&case.path).unwrap();
    file.write_all_at(&[0xee; 8], damaged + 70).unwrap();
    assert_eq!(ticks(&mut follower).len(), 10, "the rest may be on its way");
    let mut next = 30;
    while case.writer.blocks_end() <= BLOCKS + SEGMENT {
        case.writer.append(1, 5 * next, &words(next..next + 1000)).unwrap();
        next += 1000;
    }
    let told = ticks(&mut follower);
    let first = told.first().map(|&(_, ticks)| ticks);
    assert_eq!(first, Some(next - 1000), "the first block of the next segment: {told:?}");
    assert_eq!(follower.missed_blocks(), 1 + (next - 30) / 1000);
}

#[derive(Clone, Debug)]
enum Step {
    /// Append a number of records to a lane.
    Append(u16, u64),
    Define,
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u16..3, prop_oneof![1u64..20, 1000u64..1001, 2500u64..3000])
            .prop_map(|(lane, records)| Step::Append(lane, records)),
        1 => Just(Step::Define),
        2 => Just(Step::Poll),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_block_is_told_once_in_order_or_missed(steps in steps()) {
        let mut case = case();
        let mut follower = Follower::open(&case.path).unwrap();
        let (mut now, mut defined) = (0, 0u16);
        // Lane and first time stamp of each block.
        let mut blocks = Vec::new();
        let mut told = Vec::new();
        for step in steps.iter().chain([&Step::Poll]) {
            match step {
                Step::Append(lane, records) => {
                    blocks.push((usize::from(*lane), now..now + records));
                    case.writer.append(*lane, 0, &words(now..now + records)).unwrap();
                    now += records;
                }
                Step::Define => {
                    defined += 1;
                    let definition = Definition::CommEnd { index: defined, ticks: 0 };
                    case.writer.define(&definition).unwrap();
                }
                Step::Poll => told.extend(poll(&mut follower)),
            }
        }
        let mut expected_definition = 0;
        let mut left = told.iter().filter(|news| {
            let is_definition = matches!(news, News::Definition(_));
            expected_definition += u16::from(is_definition);
            !is_definition
        });
        let mut missed = 0;
        let mut next = left.next();
        for (lane, records) in blocks {
            let first = |news: &&News| {
                matches!(news, News::Record(_, record) if record.ticks() == records.start)
            };
            if !next.as_ref().is_some_and(first) {
                missed += 1;
                continue;
            }
            for ticks in records {
                let News::Record(of, record) = next.unwrap() else { unreachable!() };
                prop_assert_eq!((*of, record.ticks()), (lane, ticks));
                next = left.next();
            }
        }
        prop_assert_eq!(next, None);
        prop_assert_eq!(missed, follower.missed_blocks());
        prop_assert_eq!(expected_definition, defined);
    }

    #[test]
    fn damage_never_makes_up_a_record(
        damage in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), 1usize..300),
            1..20,
        ),
        polled_before in any::<bool>(),
    ) {
        let mut case = case();
        let mut follower = Follower::open(&case.path).unwrap();
        for block in 0..30 {
            case.writer.append(1, 0, &words(1000 * block..1000 * (block + 1))).unwrap();
            if polled_before && block == 10 {
                follower.poll(|_| {}).unwrap();
            }
        }
        let file = OpenOptions::new().write(true).open(&case.path).unwrap();
        let size = usize::try_from(case.writer.blocks_end()).unwrap();
        for (at, byte, len) in damage {
            file.write_all_at(&vec![byte; len], at.index(size) as u64).unwrap();
        }
        for _ in 0..2 {
            for (lane, ticks) in ticks(&mut follower) {
                prop_assert_eq!(lane, 1);
                prop_assert!(ticks < 30_000);
            }
        }
        if let Ok(mut late) = Follower::open(&case.path) {
            let all = ticks(&mut late);
            prop_assert!(all.into_iter().all(|(lane, ticks)| lane == 1 && ticks < 30_000));
        }
    }
}
