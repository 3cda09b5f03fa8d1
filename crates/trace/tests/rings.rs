// SPDX-License-Identifier: Apache-2.0
//! How the parts of a recording affect each other: definitions, events and heartbeats, with a
//! frozen ring and without.

use ncclscope_trace::kind::KINDS;
use ncclscope_trace::layout::{BLOCKS, DEFINITIONS, HEARTBEATS, Header, LANE_STRIDE, SEGMENT};
use ncclscope_trace::progress::Progress;
use ncclscope_trace::reader::OlderPart;
use ncclscope_trace::record::KernelLaunch;
use ncclscope_trace::scratch::lane;
use ncclscope_trace::{
    ClockSync, Comm, Definition, Detail, EventKind, Follower, Handle, Heartbeat, News, Recording,
    Start, Writer,
};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Size argument for the smallest ring: four segments.
const LEAST: u64 = 0;

struct Case {
    dir: tempfile::TempDir,
    path: PathBuf,
    writer: Writer,
    launches: u64,
}

/// The header of a lane that a thread has used.
fn used_lane() -> [u8; LANE_STRIDE] {
    let mut header = [0; LANE_STRIDE];
    header[lane::STATE] = 1;
    let kinds = EventKind::KernelLaunch.bit().to_le_bytes();
    header[lane::KINDS..lane::KINDS + 4].copy_from_slice(&kinds);
    header
}

fn case(ring_bytes: u64) -> Case {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h-1.nscope");
    let mut writer = Writer::create(&path, Header::default(), ring_bytes).unwrap();
    writer.write_lane(1, &used_lane()).unwrap();
    Case { dir, path, writer, launches: 0 }
}

impl Case {
    /// Appends a block of launches, which cannot be compressed.
    fn launch(&mut self, count: u64) {
        let launch = |n: u64| {
            let handle = Handle::value(5, EventKind::KernelLaunch, 1, n);
            let stream = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let detail = Detail::KernelLaunch(KernelLaunch { stream });
            let parent = Handle(5000 * n);
            Start { ticks: n, comm: 0, handle, parent, detail }.pack()
        };
        let (from, to) = (self.launches, self.launches + count);
        let words: Vec<u64> = (from..to).flat_map(|n| launch(n).words().to_vec()).collect();
        self.writer.append(1, 5 * from, &words).unwrap();
        self.launches = to;
    }

    /// Appends launches until `segments` segments are filled.
    fn fill(&mut self, segments: u64) {
        // A thousand launches take about 15 KiB.
        for _ in 0..17 * segments {
            self.launch(1000);
        }
    }

    fn overwritten(&self) -> u64 {
        self.writer.header().overwritten[EventKind::KernelLaunch.index()]
    }

    fn close(&mut self) {
        self.writer.header_mut().closed = true;
        self.writer.sync_header().unwrap();
    }

    fn copy(&self) -> PathBuf {
        let copy = self.dir.path().join("copy.nscope");
        self.writer.checkpoint().unwrap().write(&copy, &[]).unwrap();
        copy
    }
}

fn comm(index: u16) -> Definition {
    let name = Some(format!("pipeline stage {index} of a name as long as they come"));
    Definition::Comm(Comm { index, hash: u64::from(index) + 1, name, ..Comm::default() })
}

fn launches(path: &Path) -> Vec<u64> {
    let recording = Recording::open(path).unwrap();
    assert_eq!(recording.problems(), &[] as &[String]);
    recording.records(1).map(|record| record.ticks()).collect()
}

fn progress(ticks: u64) -> Heartbeat {
    Heartbeat::Progress(Progress { ticks, api: ticks, ..Progress::default() })
}

#[test]
fn forty_thousand_communicators_one_after_another_are_all_there() {
    const COMMS: u16 = 40_000;
    let mut case = case(64 << 20);
    let mut follower = Follower::open(&case.path).unwrap();
    let mut followed = 0;
    for index in 0..COMMS {
        case.writer.define(&comm(index)).unwrap();
        if index % 10 == 0 {
            case.launch(3);
        }
        case.writer.define(&Definition::CommEnd { index, ticks: 7 }).unwrap();
        if index % 1000 == 0 || index == COMMS - 1 {
            // The process would do this once a second.
            case.writer.sync_header().unwrap();
            follower
                .poll(|news| match news {
                    News::Definition(Definition::Comm(told)) => {
                        assert_eq!(told.hash, followed + 1);
                        followed += 1;
                    }
                    News::Definition(_) | News::Record(..) | News::Heartbeat(_) => {}
                })
                .unwrap();
        }
    }
    assert_eq!((followed, follower.missed_blocks()), (u64::from(COMMS), 0));
    assert!(case.writer.header().more_definitions > 4 << 20);
    case.close();
    for path in [case.path.clone(), case.copy()] {
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.problems(), &[] as &[String]);
        assert_eq!(recording.header().definitions_lost, 0);
        assert_eq!(recording.comms().len(), usize::from(COMMS));
        for (index, found) in (0..).zip(recording.comms()) {
            assert_eq!(Definition::Comm(found.clone()), comm(index));
            assert_eq!(recording.comm_end(index), Some(7));
        }
        assert!(launches(&path).into_iter().eq(0..case.launches));
    }
}

#[test]
fn definitions_leave_half_of_the_ring_and_count_the_rest() {
    let mut case = case(LEAST);
    let mut kept = 0;
    while case.writer.header().definitions_lost == 0 {
        case.launch(100);
        case.writer.define(&comm(kept)).unwrap();
        kept += 1;
    }
    let bytes = case.writer.header().definitions + case.writer.header().more_definitions;
    assert!(bytes > HEARTBEATS - DEFINITIONS + 2 * SEGMENT - 1000, "{bytes}");
    case.fill(9);
    case.close();
    let recording = Recording::open(&case.path).unwrap();
    assert_eq!(recording.comms().len(), usize::from(kept) - 1);
    let lost = case.overwritten();
    assert!(launches(&case.path).into_iter().eq(lost..case.launches));
    assert!(launches(&case.copy()).into_iter().eq(lost..case.launches));
}

#[test]
fn a_definition_that_failed_is_tried_again_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.nscope");
    let mut writer = Writer::create(&path, Header::default(), LEAST).unwrap();
    writer.define(&comm(0)).unwrap();
    let whole = writer.header().clone();
    // The beginning of a definition, as an attempt on a full disk leaves it.
    let mut torn = Vec::new();
    comm(1).encode(&mut torn);
    torn.truncate(torn.len() / 2);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&torn, DEFINITIONS + whole.definitions).unwrap();
    assert_eq!(Recording::open(&path).unwrap().comms().len(), 1);
    let short = Definition::CommEnd { index: 0, ticks: 9 };
    writer.define(&short).unwrap();
    writer.define(&comm(1)).unwrap();
    writer.sync_header().unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!((recording.comms().len(), recording.comm_end(0)), (2, Some(9)));
}

/// The disk is full at each place where a definition can need space, in the first part and where
/// the next one begins: the attempt fails, counts nothing, and succeeds later. A small file system
/// in memory stands for the disk.
#[test]
fn a_full_disk_loses_no_definition() {
    let (dir, sandbox) = (tempfile::tempdir().unwrap(), std::env::var_os("NCCLSCOPE_FULL_DISK"));
    if sandbox.is_none() {
        let mount =
            format!("mount -t tmpfs -o size=1m none {} && exec \"$@\"", dir.path().display());
        let mut command = std::process::Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &mount, "sh"]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "a_full_disk_loses_no_definition", "--nocapture"]);
        let output = command.env("NCCLSCOPE_FULL_DISK", dir.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if stderr.contains("unshare:") || stderr.contains("mount:") {
            let required = std::env::var_os("NCCLSCOPE_REQUIRE_NAMESPACES");
            assert!(required.is_none_or(|value| value != "1"), "{stderr}");
            // Writes to stderr directly: the test harness captures what macros print.
            let line = format!("skipped: no right to mount a small file system here: {stderr}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return;
        }
        assert!(output.status.success(), "{}{stderr}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let dir = PathBuf::from(sandbox.unwrap());
    let path = dir.join("a.nscope");
    let mut writer = Writer::create(&path, Header::default(), LEAST).unwrap();
    let filler = dir.join("filler");
    let fill = || {
        let file = std::fs::File::create(&filler).unwrap();
        let mut at = 0;
        while file.write_all_at(&[1; 4096], at).is_ok() {
            at += 4096;
        }
    };
    let mut failures = 0;
    for index in 0..5_000 {
        // Every page of the recording needs space on the file system once.
        fill();
        if let Err(error) = writer.define(&comm(index)) {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert!(writer.define(&comm(index)).is_err(), "still full");
            failures += 1;
            std::fs::remove_file(&filler).unwrap();
            writer.define(&comm(index)).unwrap();
        }
        let _ = std::fs::remove_file(&filler);
    }
    writer.sync_header().unwrap();
    assert!(failures > 100 && writer.header().more_definitions > 0, "{failures}");
    assert_eq!(writer.header().definitions_lost, 0);
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.comms().len(), 5_000);
    assert_eq!(recording.header().unwritten, [0; KINDS]);
}

/// Two hours of a hang, with one look per second.
#[test]
fn heartbeats_never_overwrite_events() {
    let mut case = case(LEAST);
    case.launch(1000);
    case.writer.append_clock(&ClockSync { ticks: 2000, ..ClockSync::default() }).unwrap();
    let end = case.writer.blocks_end();
    let mut follower = Follower::open(&case.path).unwrap();
    let (mut records, mut latest) = (0, 0);
    for second in 0..7_200 {
        let words: Vec<u64> =
            (0..20).flat_map(|_| progress(3000 + second).pack().words().to_vec()).collect();
        case.writer.append_heartbeats(&words).unwrap();
        let sync = ClockSync { ticks: 3000 + second, ..ClockSync::default() };
        case.writer.append_clock(&sync).unwrap();
        if second % 600 == 0 {
            follower
                .poll(|news| match news {
                    News::Record(..) => records += 1,
                    News::Heartbeat(heartbeat) => latest = heartbeat.ticks(),
                    News::Definition(_) => {}
                })
                .unwrap();
            assert_eq!((records, latest, follower.last_ticks()), (1000, 3000 + second, latest));
        }
    }
    assert_eq!(case.writer.blocks_end(), end, "nothing of it came to the block ring");
    case.close();
    for path in [case.path.clone(), case.copy()] {
        assert!(launches(&path).into_iter().eq(0..1000));
        let recording = Recording::open(&path).unwrap();
        let heartbeats = recording.heartbeats();
        assert!(heartbeats.is_sorted_by_key(Heartbeat::ticks) && heartbeats.len() > 20 * 300);
        assert_eq!(heartbeats.last(), Some(&progress(10_199)));
        assert_eq!(recording.last_ticks(), 10_199);
    }
}

#[test]
fn clocks_stay_beside_the_events_whose_time_they_tell() {
    let mut case = case(LEAST);
    for second in 0..10 {
        case.launch(1);
        let (ticks, realtime_ns) = (1000 * second, 5_000 * second);
        let sync = ClockSync { ticks, realtime_ns, ..ClockSync::default() };
        case.writer.append_clock(&sync).unwrap();
    }
    // The ring of heartbeats wraps several times, and has none of the above any more.
    for second in 0..20_000 {
        let sync = ClockSync { ticks: 1_000_000 + second, ..ClockSync::default() };
        case.writer.append_clock(&sync).unwrap();
    }
    let recording = Recording::open(&case.path).unwrap();
    assert_eq!(recording.tick_map().realtime_ns(4_000), 20_000);
    assert_eq!(recording.tick_map().realtime_ns(4_500), 22_500);
}

#[test]
fn what_led_to_a_hang_stays_and_what_follows_is_recorded() {
    for (segments, filled) in [(4, 2), (4, 6), (8, 3), (8, 10)] {
        let mut case = case(segments * SEGMENT);
        let mut follower = Follower::open(&case.path).unwrap();
        case.fill(filled);
        case.writer.sync_header().unwrap();
        let hang = case.launches;
        // The oldest quarter may be overwritten.
        let kept = case.overwritten() + 17_000 * (segments / 4);
        case.writer.freeze_events();
        case.writer.freeze_events();
        assert_eq!(case.writer.header().freezes, 1);
        case.fill(segments);
        case.close();
        for path in [case.path.clone(), case.copy()] {
            let read = launches(&path);
            assert!(read.is_sorted_by(|a, b| a < b));
            let led: Vec<u64> = read.iter().copied().filter(|n| (kept..hang).contains(n)).collect();
            assert!(led.iter().copied().eq(kept.min(hang)..hang), "{segments} {filled}");
            assert_eq!(read.last(), Some(&(case.launches - 1)));
            assert_eq!(read.len() as u64 + case.overwritten(), case.launches);
        }
        let mut told = Vec::new();
        follower
            .poll(|news| {
                if let News::Record(_, record) = news {
                    told.push(record.ticks());
                }
            })
            .unwrap();
        assert!(told == launches(&case.path), "a follower that comes late");
        assert_eq!(1000 * follower.missed_blocks(), case.overwritten());
    }
}

#[test]
fn after_a_thaw_the_oldest_goes_first() {
    let mut case = case(8 * SEGMENT);
    let mut follower = Follower::open(&case.path).unwrap();
    let mut told = 0;
    for round in 0..30 {
        match round % 6 {
            2 => case.writer.freeze_events(),
            5 => case.writer.thaw_events(),
            _ => {}
        }
        for _ in 0..4 {
            case.launch(1000);
            case.launch(1000);
            case.writer.sync_header().unwrap();
            follower.poll(|news| told += u64::from(matches!(news, News::Record(..)))).unwrap();
        }
    }
    assert_eq!((told, follower.missed_blocks()), (case.launches, 0), "live, nothing is missed");
    case.writer.thaw_events();
    case.fill(24);
    case.close();
    let read = launches(&case.path);
    assert!(read.iter().copied().eq(case.overwritten()..case.launches));
    assert!(read == launches(&case.copy()));
}

#[test]
fn a_recording_is_its_users_to_write_and_tells_when_it_has_no_name() {
    let case = case(LEAST);
    for path in [case.path.clone(), case.copy()] {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o133, 0);
    }
    assert!(!case.writer.is_unlinked().unwrap());
    std::fs::remove_dir_all(case.dir.path()).unwrap();
    assert!(case.writer.is_unlinked().unwrap());
}

#[test]
fn the_largest_ring_can_be_read() {
    let case = case(u64::MAX);
    assert_eq!(case.writer.header().segments, 1 << 20);
    assert!(Recording::open(&case.path).is_ok());
}

#[test]
fn the_end_of_a_recording_is_what_was_written_last() {
    // A ring that is not full, full, and partly overwritten; also with segments that hold
    // definitions.
    for (fill, definitions) in [(3, 0), (8, 0), (11, 0), (13, 4000)] {
        let mut case = case(8 * SEGMENT);
        for index in 0..definitions {
            case.writer.define(&comm(index)).unwrap();
        }
        case.fill(fill);
        case.close();
        let all = launches(&case.path);
        let end = Recording::open_end(&case.path, 2).unwrap();
        assert!(!end.is_whole() && end.problems().is_empty(), "{:?}", end.problems());
        assert_eq!(end.comms().len(), usize::from(definitions));
        let last: Vec<u64> = end.records(1).map(|record| record.ticks()).collect();
        assert!(last.len() < all.len() && last.len() > 15_000, "{} of {}", last.len(), all.len());
        assert!(all.ends_with(&last));
        let mut older: Vec<u64> = Vec::new();
        let kind = EventKind::KernelLaunch.bit();
        let part = end.visit_older(kind, |record| older.push(record.ticks())).unwrap();
        let is_complete = case.overwritten() == 0;
        assert_eq!(part, OlderPart { is_complete, problems: vec![] });
        older.sort_unstable();
        assert_eq!([older, last].concat(), all);
        let no_kind = end.visit_older(EventKind::P2p.bit(), |_| panic!("decoded")).unwrap();
        assert_eq!(no_kind, part);
        let whole = Recording::open_end(&case.path, 8).unwrap();
        assert!(whole.is_whole() && whole.records(1).count() == all.len());
        assert_eq!(whole.visit_older(kind, |_| panic!("decoded")).unwrap(), part);
    }
}

#[test]
fn damage_before_the_end_of_a_recording_is_told_when_that_part_is_read() {
    let mut case = case(8 * SEGMENT);
    case.fill(5);
    case.close();
    let all = launches(&case.path).len();
    // Damages the second block of the first segment.
    let file = OpenOptions::new().write(true).open(&case.path).unwrap();
    file.write_all_at(&[0x5a; 8], BLOCKS + 20_000).unwrap();
    let end = Recording::open_end(&case.path, 2).unwrap();
    let (last, mut older) = (end.records(1).count(), 0);
    assert!(end.problems().is_empty(), "{:?}", end.problems());
    let part = end.visit_older(EventKind::KernelLaunch.bit(), |_| older += 1).unwrap();
    assert_eq!((older + last, part.is_complete), (all - 1000, false));
    let [torn, missing] = part.problems.as_slice() else { panic!("{part:?}") };
    assert!(torn.starts_with("segment 0: torn block at byte "), "{torn}");
    assert_eq!(missing, "1 block in the middle is missing or damaged");
}

/// Asserts that a reading of the recording's end reports `what`, and that a whole reading reports
/// damage, too.
#[track_caller]
fn told(path: &Path, what: &str) {
    let end = Recording::open_end(path, 2).unwrap();
    let (read, all) = end.part().unwrap();
    assert!(read == 2 * SEGMENT && all > read, "{read} of {all}");
    let said = |recording: &Recording| recording.damage().join("; ");
    assert_eq!(said(&end), what);
    let whole = said(&Recording::open(path).unwrap());
    assert!(whole.contains("missing") || whole.contains("torn"), "{whole}");
}

#[test]
fn segments_that_are_gone_before_the_end_are_told_without_reading_them() {
    const ONE: &str = "1 segment before the end is missing or damaged";
    for (fill, first) in [(5, 0), (11, 4)] {
        let mut case = case(8 * SEGMENT);
        case.fill(fill);
        case.close();
        let file = OpenOptions::new().read(true).write(true).open(&case.path).unwrap();
        let punch = |at: u64, bytes: u64| {
            let mut there = vec![0; usize::try_from(bytes).unwrap()];
            file.read_exact_at(&mut there, at).unwrap();
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, at, bytes).unwrap();
            there
        };
        let begin = BLOCKS + first * SEGMENT;
        // The oldest segment, one in the middle, the middle of a segment, and the last 40 KiB of
        // one.
        let holes = [
            (begin, SEGMENT),
            (begin + SEGMENT, SEGMENT),
            (begin + SEGMENT + (64 << 10), 64 << 10),
            (begin + 2 * SEGMENT - (40 << 10), 40 << 10),
        ];
        for (at, bytes) in holes {
            let there = punch(at, bytes);
            told(&case.path, ONE);
            file.write_all_at(&there, at).unwrap();
        }
        // Zeros instead of a hole, in place of the first block's header.
        let zeros = vec![0; 16];
        let mut there = vec![0; 16];
        file.read_exact_at(&mut there, begin).unwrap();
        file.write_all_at(&zeros, begin).unwrap();
        told(&case.path, ONE);
        file.write_all_at(&there, begin).unwrap();
        let end = Recording::open_end(&case.path, 2).unwrap();
        assert!(end.problems().is_empty(), "{:?}", end.problems());
    }
}

#[test]
fn a_ring_that_is_cut_where_it_is_old_is_told() {
    for closed in [true, false] {
        let mut case = case(8 * SEGMENT);
        case.fill(11);
        case.writer.header_mut().closed = closed;
        case.writer.sync_header().unwrap();
        let file = OpenOptions::new().write(true).open(&case.path).unwrap();
        file.set_len(BLOCKS + 6 * SEGMENT + 1000).unwrap();
        let end = Recording::open_end(&case.path, 2).unwrap();
        assert_eq!(end.damage(), ["2 segments before the end are missing or damaged"]);
    }
}
