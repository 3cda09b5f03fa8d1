// SPDX-License-Identifier: Apache-2.0
//! Writing and reading whole files: in order, wrapped, torn, killed, damaged.

use ncclscope_trace::codec::{Block, Encoder, META_LANE};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::layout::{BLOCKS, DEFINITIONS, Header, LANE_STRIDE, LANE_TABLE, SEGMENT};
use ncclscope_trace::record::{Detail, KernelLaunch, Packed, step_flags};
use ncclscope_trace::scratch::{lane, slot};
use ncclscope_trace::{
    ClockSync, Comm, Definition, Error, EventKind, Handle, Record, Recording, Start, Step, StrId,
    Visitor, Writer, read_header,
};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Case {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Case {
    fn new() -> Case {
        let dir = tempfile::tempdir().unwrap();
        Case { path: dir.path().join("h-1.nscope"), _dir: dir }
    }

    fn writer(&self, header: Header) -> Writer {
        Writer::create(&self.path, header, 0).unwrap()
    }

    fn file(&self) -> File {
        OpenOptions::new().write(true).open(&self.path).unwrap()
    }
}

/// The header of a lane that a thread has used.
fn used_lane() -> [u8; LANE_STRIDE] {
    let mut header = [0; LANE_STRIDE];
    header[lane::STATE] = 1;
    header
}

fn launch(n: u64) -> Packed {
    let handle = Handle::value(5, EventKind::KernelLaunch, 1, n);
    let detail = Detail::KernelLaunch(KernelLaunch { stream: 0x7f00 });
    Start { ticks: 1000 + n, comm: 0, handle, parent: Handle::NULL, detail }.pack()
}

fn words(records: &[Packed]) -> Vec<u64> {
    records.iter().flat_map(|r| r.words().to_vec()).collect()
}

#[test]
fn what_is_written_is_read() {
    let case = Case::new();
    let mut writer = case.writer(Header { pid: 1, host: "h".into(), ..Header::default() });
    writer.write_lane(1, &used_lane()).unwrap();
    let comm = Comm { index: 0, hash: 7, ranks: 2, ..Comm::default() };
    writer.define(&Definition::Comm(comm.clone())).unwrap();
    writer.define(&Definition::String { id: StrId(3), text: "RING".into() }).unwrap();
    writer.define(&Definition::CommEnd { index: 0, ticks: 9 }).unwrap();
    writer.define(&Definition::Note("a word".into())).unwrap();
    let records: Vec<Packed> = (0..100).map(launch).collect();
    writer.append(1, 0, &words(&records[..60])).unwrap();
    writer.append(1, 300, &words(&records[60..])).unwrap();
    let sync = ClockSync { ticks: 4, monotonic_ns: 5, realtime_ns: 6, error_ns: 7 };
    writer.append(META_LANE, 0, Record::clock_sync(&sync).words()).unwrap();
    writer.header_mut().closed = true;
    writer.sync_header().unwrap();

    let recording = Recording::open(&case.path).unwrap();
    assert_eq!(recording.problems(), &[] as &[String]);
    assert_eq!(recording.comms(), &[comm]);
    assert_eq!(recording.comm_end(0), Some(9));
    assert_eq!(recording.string(StrId(3)), Some("RING"));
    assert_eq!(recording.notes(), &["a word"]);
    assert_eq!(recording.tick_map().realtime_ns(4), 6);
    let read: Vec<Record> = recording.records(1).collect();
    let expected: Vec<Record> =
        records.iter().map(|r| Record::unpack(r.words()).unwrap()).collect();
    assert_eq!(read, expected);
    assert_eq!(recording.records(2).count(), 0);
    assert_eq!(recording.last_ticks(), 1099);
}

#[test]
fn a_full_ring_keeps_the_newest_and_counts_the_rest() {
    let case = Case::new();
    let mut writer = case.writer(Header::default());
    writer.write_lane(1, &used_lane()).unwrap();
    let (mut pos, mut pushed) = (0, 0u64);
    // Random-looking records, which blocks cannot compress.
    while writer.header().overwritten[EventKind::KernelLaunch.index()] == 0 {
        let batch: Vec<Packed> = (0..1000)
            .map(|i| {
                let n = pushed + i;
                let handle = Handle::value(5, EventKind::KernelLaunch, 1, n);
                let stream = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let detail = Detail::KernelLaunch(KernelLaunch { stream });
                Start { ticks: n, comm: 0, handle, parent: Handle::NULL, detail }.pack()
            })
            .collect();
        let words = words(&batch);
        writer.append(1, pos, &words).unwrap();
        pos += words.len() as u64;
        pushed += 1000;
    }
    writer.header_mut().closed = true;
    writer.sync_header().unwrap();
    let recording = Recording::open(&case.path).unwrap();
    let read: Vec<u64> = recording.records(1).map(|r| r.ticks()).collect();
    let lost = recording.header().overwritten[EventKind::KernelLaunch.index()];
    assert_eq!(read.len() as u64 + lost, pushed);
    assert_eq!(read, (lost..pushed).collect::<Vec<u64>>());
    assert_eq!(recording.problems(), &[] as &[String]);
}

/// The file is the same however many blocks a write contains, also across the ring's end.
#[test]
fn blocks_written_together_lie_as_if_one_by_one() {
    let written = |together: usize| {
        let case = Case::new();
        let mut writer = case.writer(Header::default());
        let (mut encoder, mut position) = (Encoder::default(), 0);
        let mut blocks: Vec<Block> = (0..2_000u64)
            .map(|block| {
                let records: Vec<Packed> = (0..block % 90)
                    .chain([9])
                    .map(|n| launch((block + n).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                    .collect();
                let words = words(&records);
                encoder.encode(1, &mut position, &mut &words[..]).expect("there are records")
            })
            .collect();
        for blocks in blocks.chunks_mut(together) {
            writer.append_blocks(blocks).1.unwrap();
        }
        assert!(writer.header().overwritten_blocks > 0, "the ring is full");
        writer.sync_header().unwrap();
        std::fs::read(&case.path).unwrap()
    };
    let one_by_one = written(1);
    assert!([2, 8, 2_000].into_iter().all(|together| written(together) == one_by_one));
}

#[test]
fn a_torn_block_is_named_and_the_rest_is_read() {
    let case = Case::new();
    let mut writer = case.writer(Header::default());
    writer.append(1, 0, &words(&[launch(0), launch(1)])).unwrap();
    let first_end = writer.blocks_end();
    writer.append(1, 10, &words(&[launch(2)])).unwrap();
    writer.header_mut().closed = true;
    writer.sync_header().unwrap();
    case.file().write_all_at(&[0xee], first_end + 70).unwrap();
    let recording = Recording::open(&case.path).unwrap();
    assert_eq!(recording.records(1).count(), 2);
    assert!(recording.problems()[0].contains("torn block"), "{:?}", recording.problems());
}

#[test]
fn a_killed_process_leaves_its_lanes() {
    let case = Case::new();
    let mut writer = case.writer(Header { lanes_shared: true, pid: 77, ..Header::default() });
    let in_blocks = words(&[launch(0), launch(1)]);
    writer.append(1, 0, &in_blocks).unwrap();
    writer.sync_header().unwrap();
    let header = writer.header().clone();
    let file = case.file();
    // The lane has four records, of which two are in blocks, and half of a fifth.
    let all = words(&[launch(0), launch(1), launch(2), launch(3), launch(4)]);
    let head = all.len() as u64 - 2;
    for (i, word) in all.iter().take(all.len() - 2).enumerate() {
        file.write_all_at(&word.to_le_bytes(), header.ring_offset(1) + 8 * i as u64).unwrap();
    }
    let mut lane_header = [0u8; LANE_STRIDE];
    lane_header[lane::STATE] = 1;
    lane_header[lane::HEAD..lane::HEAD + 8].copy_from_slice(&head.to_le_bytes());
    lane_header[lane::LOST + 8 * 4] = 3;
    file.write_all_at(&lane_header, LANE_TABLE + LANE_STRIDE as u64).unwrap();
    // One ProxyOp with a send step that has reached SendPeerWait.
    let op = Handle::slot_op(5, 1, 9, 0);
    let at = header.slab_offset(0);
    file.set_len(header.slab_offset(1)).unwrap();
    file.write_all_at(&op.0.to_le_bytes(), at).unwrap();
    file.write_all_at(&[1], at + slot::FLAGS as u64).unwrap();
    let step = at + (slot::STEPS + 2 * slot::STEP_BYTES) as u64;
    let start = 900u64 | 5 << 48;
    file.write_all_at(&start.to_le_bytes(), step).unwrap();
    file.write_all_at(&4u32.to_le_bytes(), step + 12).unwrap();
    file.write_all_at(&2u32.to_le_bytes(), step + slot::STEP_NUMBER as u64).unwrap();
    let tag = op.step_tag() | slot::LIVE | 2 | 4;
    file.write_all_at(&tag.to_le_bytes(), step + slot::STEP_TAG as u64).unwrap();

    let recording = Recording::open(&case.path).unwrap();
    let problem = &recording.problems()[0];
    assert!(problem.contains("process 77 was killed"), "{problem}");
    assert!(problem.contains("2 records taken from its lanes, 1 network steps"), "{problem}");
    assert!(problem.contains("torn tail of 3 words"), "{problem}");
    let read: Vec<Record> = recording.records(1).collect();
    assert_eq!(read.iter().map(Record::ticks).collect::<Vec<_>>(), [1000, 1001, 1002, 1003, 900]);
    let expected = Step {
        ticks: 900,
        flags: step_flags::IS_SEND | step_flags::FIRST | step_flags::SECOND,
        repeats: 5,
        step: 2,
        op_ref: op.op_ref(),
        size: 0,
        states: [0, 4, 0],
        end: 103 >> 4,
    };
    assert_eq!(read.last(), Some(&Record::Step(expected)));
    assert_eq!(recording.lanes()[1].header.lost[4], 3);

    // The drain thread has freed the first of the records that are in no block.
    let tail = (3 * all.len() / 5) as u64;
    lane_header[lane::TAIL..lane::TAIL + 8].copy_from_slice(&tail.to_le_bytes());
    file.write_all_at(&lane_header, LANE_TABLE + LANE_STRIDE as u64).unwrap();
    let recording = Recording::open(&case.path).unwrap();
    let problem = &recording.problems()[0];
    assert!(problem.contains("1 records taken from its lanes"), "{problem}");
    assert!(problem.contains("5 words that were not written in time lost"), "{problem}");

    // A step that started after the newest record must not seem to be as old as the machine.
    file.write_all_at(&5000u64.to_le_bytes(), step).unwrap();
    let recording = Recording::open(&case.path).unwrap();
    assert_eq!(recording.last_ticks(), 5000);
    let [step] = recording.lanes()[1].in_flight() else { panic!("one step") };
    assert_eq!((step.ticks, step.end), (5000, 0));
}

/// A copy of a live recording that is read after its process was killed.
#[test]
fn lanes_that_are_seconds_newer_than_the_recording_are_left_out() {
    for (ms, tail, is_older) in [(3_000, 15, true), (500, 15, false), (3_000, 5, false)] {
        let case = Case::new();
        let hz = 1_000_000_000;
        let mut writer = case.writer(Header { lanes_shared: true, hz, ..Header::default() });
        writer.append(1, 0, &words(&[launch(0)])).unwrap();
        writer.append_clock(&ClockSync { ticks: 1000, ..ClockSync::default() }).unwrap();
        writer.sync_header().unwrap();
        let ring = writer.header().ring_offset(1);
        let all = words(&(0..4).map(|at| launch(at * ms * 1_000_000)).collect::<Vec<_>>());
        let file = case.file();
        for (i, word) in all.iter().enumerate() {
            file.write_all_at(&word.to_le_bytes(), ring + 8 * i as u64).unwrap();
        }
        let mut lane_header = used_lane();
        for (at, value) in [(lane::HEAD, all.len() as u64), (lane::TAIL, tail)] {
            lane_header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        file.write_all_at(&lane_header, LANE_TABLE + LANE_STRIDE as u64).unwrap();
        let recording = Recording::open(&case.path).unwrap();
        let left = recording.records(1).count();
        let problem = &recording.problems()[0];
        assert_eq!(recording.is_copy(), is_older, "{ms} {tail} {problem}");
        assert_eq!(problem.contains("seconds newer"), is_older, "{problem}");
        assert_eq!(left == 1, is_older, "{left}");
    }
}

#[test]
fn every_truncation_is_an_error_or_a_named_problem() {
    let case = Case::new();
    let mut writer = case.writer(Header::default());
    writer.define(&Definition::Note("x".into())).unwrap();
    writer.append(1, 0, &words(&(0..500).map(launch).collect::<Vec<_>>())).unwrap();
    writer.header_mut().closed = true;
    writer.sync_header().unwrap();
    let full = std::fs::metadata(&case.path).unwrap().len();
    assert!(full > BLOCKS && full < BLOCKS + SEGMENT);
    for cut in [full - 1, BLOCKS + 10, BLOCKS, DEFINITIONS + 3, DEFINITIONS, 5000, 4095, 100, 0] {
        case.file().set_len(cut).unwrap();
        match Recording::open(&case.path) {
            Ok(recording) => {
                assert!(!recording.problems().is_empty(), "cut at {cut} goes unnoticed");
                assert_eq!(recording.records(1).count(), 0, "cut at {cut}");
                let error = recording.with_content().unwrap_err();
                assert!(matches!(error, Error::NothingLeft { .. }), "cut at {cut}: {error}");
            }
            Err(error) => assert!(cut < 4096, "cut at {cut}: {error}"),
        }
    }
}

#[test]
fn what_is_left_of_a_recording_says_whose_it_is() {
    for (rank, whose) in
        [(None, "process 7 on node-0"), (Some("11"), "rank 11 (process 7 on node-0)")]
    {
        let case = Case::new();
        let header = Header { pid: 7, host: "node-0".into(), ..Header::default() };
        let mut writer = case.writer(header);
        if let Some(rank) = rank {
            let fact = Definition::Identity { key: "rank".into(), value: rank.into() };
            writer.define(&fact).unwrap();
        }
        writer.append(1, 0, &words(&(0..500).map(launch).collect::<Vec<_>>())).unwrap();
        writer.header_mut().closed = true;
        writer.sync_header().unwrap();
        case.file().set_len(BLOCKS).unwrap();
        let error = Recording::open(&case.path).unwrap().with_content().unwrap_err();
        let said = format!("truncated or damaged: of {whose} only the header is left");
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn refuses_to_overwrite_and_to_read_nothing() {
    let case = Case::new();
    drop(case.writer(Header::default()));
    assert!(Writer::create(&case.path, Header::default(), 0).is_err());
    let missing = Recording::open(&case.path.with_extension("gone"));
    assert!(matches!(missing, Err(Error::Io(_))));
}

/// The records of a visit, by lane, each with the time up to which everything had been read before
/// it.
#[derive(Default)]
struct Visited {
    records: Vec<(usize, Record, u64)>,
    reached: u64,
}

impl Visitor for Visited {
    fn record(&mut self, lane: usize, record: &Record) {
        self.records.push((lane, *record, self.reached));
    }

    fn reached(&mut self, ticks: u64) {
        assert!(ticks > self.reached);
        self.reached = ticks;
    }
}

#[test]
fn a_visit_takes_all_lanes_in_the_order_of_time() {
    let case = Case::new();
    let mut writer = case.writer(Header { pid: 1, host: "h".into(), ..Header::default() });
    let records: Vec<Packed> = (0..90).map(launch).collect();
    // The records of lane 2 are from the time in between, but were written last.
    for (lane, from) in [(1, 0), (1, 60), (2, 30)] {
        let part = words(&records[from..from + 30]);
        writer.append(lane, (from * 5) as u64, &part).unwrap();
    }
    writer.header_mut().closed = true;
    writer.sync_header().unwrap();
    let (recording, mut visited) = (Recording::open(&case.path).unwrap(), Visited::default());
    recording.visit(&mut visited);
    for lane in [1, 2] {
        let of_lane = visited.records.iter().filter(|(of, ..)| *of == lane);
        assert!(of_lane.map(|(_, record, _)| *record).eq(recording.records(lane)));
    }
    assert_eq!(visited.records.len(), 90);
    assert!(visited.records.is_sorted_by_key(|(_, record, _)| record.ticks()));
    assert!(visited.records.iter().all(|(_, record, reached)| record.ticks() >= *reached));
    assert_eq!(visited.reached, 1060);
}

/// The header is written in place, also while it is read: once a second in a job, and ten thousand
/// times as often here. (Reading a page takes a tenth of the time between; without a pause, five
/// reads in a row may be torn.)
#[test]
fn a_header_is_sound_whenever_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h-1.nscope");
    let mut writer = Writer::create(&path, Header { pid: 7, ..Header::default() }, 0).unwrap();
    let is_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_read.load(Ordering::Relaxed) {
                writer.header_mut().stale += 0x1001;
                writer.header_mut().without_slot = [writer.header().stale; KINDS];
                writer.sync_header().unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let read = || -> Result<(), String> {
            let file = File::open(&path).map_err(|error| error.to_string())?;
            for _ in 0..50_000 {
                let (header, _) = read_header(&file).map_err(|error| error.to_string())?;
                if header.without_slot != [header.stale; KINDS] {
                    return Err(format!("{header:?}"));
                }
            }
            Ok(())
        };
        let result = read();
        is_read.store(true, Ordering::Relaxed);
        result.unwrap();
    });
}
