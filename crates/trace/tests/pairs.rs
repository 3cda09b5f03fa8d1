// SPDX-License-Identifier: Apache-2.0
//! The counts of sends and receives at the beginning of segments.

use ncclscope_trace::layout::{BLOCKS, Header, LANE_STRIDE, SEGMENT};
use ncclscope_trace::pairs::MOST_PAIRS;
use ncclscope_trace::record::{KernelLaunch, P2p, Packed};
use ncclscope_trace::scratch::lane;
use ncclscope_trace::{Detail, EventKind, Handle, Record, Recording, Start, StrId, Writer};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The strings of the functions: of sends and of receives.
const FUNCS: [StrId; 2] = [StrId(3), StrId(4)];

/// Number of sends and receives by communicator, function and peer.
type Counts = BTreeMap<(u16, StrId, i32), u64>;

struct Case {
    dir: tempfile::TempDir,
    path: PathBuf,
    writer: Writer,
    /// Number of the next record, which is also its time stamp.
    next: u64,
    written: Counts,
    /// The time stamp of the first send or receive.
    first: Option<u64>,
}

fn case(segments: u64) -> Case {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h-1.nscope");
    let mut writer = Writer::create(&path, Header::default(), segments * SEGMENT).unwrap();
    for (at, kind) in [(0, EventKind::P2p), (1, EventKind::KernelLaunch)] {
        let mut header = [0; LANE_STRIDE];
        header[lane::STATE] = 1;
        header[lane::KINDS..lane::KINDS + 4].copy_from_slice(&kind.bit().to_le_bytes());
        writer.write_lane(at, &header).unwrap();
    }
    Case { dir, path, writer, next: 1, written: Counts::new(), first: None }
}

fn start(ticks: u64, comm: u16, detail: Detail) -> Packed {
    let handle = Handle(ticks.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Start { ticks, comm, handle, parent: Handle(handle.0 >> 7), detail }.pack()
}

impl Case {
    /// Appends a block of sends and receives.
    fn pairs(&mut self, pairs: impl IntoIterator<Item = (u16, usize, i32)>) {
        let mut words = Vec::new();
        self.first.get_or_insert(self.next);
        for (comm, func, peer) in pairs {
            let func = FUNCS[func];
            let detail = Detail::P2p(P2p { peer, func, ..P2p::default() });
            words.extend(start(self.next, comm, detail).words());
            *self.written.entry((comm, func, peer)).or_default() += 1;
            self.next += 1;
        }
        self.writer.append(0, 0, &words).unwrap();
    }

    /// Appends about `segments` segments of other records.
    fn fill(&mut self, segments: u64) {
        for _ in 0..11 * segments {
            let launch =
                |ticks| start(ticks, 0, Detail::KernelLaunch(KernelLaunch { stream: ticks << 40 }));
            let words = (self.next..self.next + 1000).flat_map(|n| launch(n).words().to_vec());
            self.writer.append(1, 0, &words.collect::<Vec<_>>()).unwrap();
            self.next += 1000;
        }
    }

    fn close(&mut self) {
        self.writer.header_mut().closed = true;
        self.writer.sync_header().unwrap();
    }

    fn copy(&self, name: &str) -> PathBuf {
        let copy = self.dir.path().join(name);
        self.writer.checkpoint().unwrap().write(&copy, &[]).unwrap();
        copy
    }
}

fn is_overwritten(recording: &Recording) -> bool {
    recording.header().overwritten.iter().any(|&count| count != 0)
}

/// The counts of everything before the recording's end, as read from that end, plus what follows in
/// it.
fn counted(path: &Path, segments: usize) -> Option<Counts> {
    let recording = Recording::open_end(path, segments).unwrap();
    let mut counts = Counts::new();
    for it in recording.pairs_before()? {
        *counts.entry((it.comm, it.func, it.peer)).or_default() += it.count;
    }
    recording.visit_lane(0, |record| {
        let Record::Start(start) = record else { return };
        let Detail::P2p(p2p) = start.detail else { return };
        *counts.entry((start.comm, p2p.func, p2p.peer)).or_default() += 1;
    });
    Some(counts)
}

#[test]
fn the_end_knows_what_was_before_also_where_it_was_overwritten() {
    let mut case = case(8);
    case.pairs([(0, 0, 1), (0, 1, 1), (5, 0, -1)]);
    for round in 0..60 {
        case.fill(1);
        case.pairs([(0, round % 2, 1), (1, 0, 7), (1, 0, 7)]);
        case.writer.sync_header().unwrap();
        for segments in [1, 2, 3, 8] {
            assert_eq!(counted(&case.path, segments), Some(case.written.clone()), "{round}");
        }
    }
    let recording = Recording::open(&case.path).unwrap();
    assert!(is_overwritten(&recording) && recording.damage().is_empty());
    assert!(recording.last_ticks() < case.next, "the counts have no time of their own");
    let copy = case.copy("copy.nscope");
    for segments in [1, 2, 8] {
        assert_eq!(counted(&copy, segments), Some(case.written.clone()));
    }
}

#[test]
fn what_did_not_reach_the_file_is_not_counted_and_counts_are_tried_again() {
    let mut case = case(4);
    case.pairs([(0, 0, 1)]);
    case.fill(1);
    let good = case.writer.go_on_in(File::open(&case.path).unwrap());
    // All writes fail: their records must not be counted.
    let detail = Detail::P2p(P2p { peer: 9, func: FUNCS[0], ..P2p::default() });
    for _ in 0..3 {
        case.writer.append(0, 0, start(1, 0, detail).words()).unwrap_err();
    }
    let words: Vec<u64> = (0..16_000).flat_map(|n| start(n, 0, detail).words().to_vec()).collect();
    case.writer.append(0, 0, &words).unwrap_err();
    assert_eq!(case.writer.header().unwritten[EventKind::P2p.index()], 16_003);
    case.writer.go_on_in(good);
    case.fill(3);
    case.close();
    for segments in [1, 2, 4] {
        assert_eq!(counted(&case.path, segments), Some(case.written.clone()), "{segments}");
    }
}

/// A recording without sends and receives has no counts, nor does one with too many pairs; the
/// latter's older part can still be read.
#[test]
fn without_pairs_and_with_too_many_nothing_is_written() {
    let mut case = case(8);
    case.fill(5);
    let blocks = case.writer.header().next_block;
    assert_eq!(blocks, 55);
    let most = i32::try_from(MOST_PAIRS).unwrap();
    let all = (0..most).map(|peer| (0, 0, peer));
    // Two blocks, since there are too many words for one.
    case.pairs(all.clone().take(1000));
    case.pairs(all.skip(1000));
    case.fill(2);
    assert_eq!(counted(&case.path, 2), Some(case.written.clone()));
    case.pairs([(1, 0, 0)]);
    case.fill(2);
    case.close();
    assert!(counted(&case.path, 1).is_none());
    let end = Recording::open_end(&case.path, 1).unwrap();
    assert!(is_overwritten(&end) && end.pairs_before().is_none());
    let mut older = 0;
    let part = end.visit_older(EventKind::P2p.bit(), |_| older += 1).unwrap();
    assert_eq!((older, part.is_complete), (MOST_PAIRS + 1, false));
}

#[test]
fn damaged_counts_and_holes_behind_them_are_not_counted_with() {
    let mut case = case(8);
    case.pairs([(0, 0, 1)]);
    case.fill(5);
    case.close();
    let file = OpenOptions::new().read(true).write(true).open(&case.path).unwrap();
    let whole = counted(&case.path, 2);
    assert_eq!(whole, Some(case.written.clone()));
    let segments = (case.writer.blocks_end() - BLOCKS).div_ceil(SEGMENT);
    let oldest_read = BLOCKS + (segments - 2) * SEGMENT;
    // Damages the counts, and then the block after the one that follows them.
    for at in [oldest_read + 70, oldest_read + 40_000] {
        let mut there = [0; 8];
        file.read_exact_at(&mut there, at).unwrap();
        file.write_all_at(&[0x5a; 8], at).unwrap();
        assert_eq!(counted(&case.path, 2), None, "{at}");
        assert_eq!(counted(&case.path, 1), whole, "{at}");
        let end = Recording::open_end(&case.path, 2).unwrap();
        let older = end.visit_older(EventKind::P2p.bit(), |_| {}).unwrap();
        let torn = |lines: &[String]| lines.iter().filter(|it| it.contains("torn block")).count();
        assert_eq!((torn(end.problems()), torn(&older.problems)), (1, 0), "told once");
        file.write_all_at(&there, at).unwrap();
    }
    assert_eq!(counted(&case.path, 2), whole);
}

#[derive(Clone, Debug)]
enum Step {
    Pairs(Vec<(u16, usize, i32)>),
    Fill,
    Freeze,
    Thaw,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pair = (0_u16..2, 0_usize..2, 0_i32..3);
    let step = prop_oneof![
        6 => prop::collection::vec(pair, 1..8).prop_map(Step::Pairs),
        6 => Just(Step::Fill),
        1 => Just(Step::Freeze),
        1 => Just(Step::Thaw),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The counts are right for any order of segments. They are unknown only if there is a gap
    /// between the segments that were read, which a frozen ring leaves, or if the end begins before
    /// the first counts.
    #[test]
    fn counts_are_those_that_were_written(steps in steps(), segments in 1_usize..9) {
        let mut case = case(8);
        for step in steps {
            match step {
                Step::Pairs(pairs) => case.pairs(pairs),
                Step::Fill => case.fill(1),
                Step::Freeze => case.writer.freeze_events(),
                Step::Thaw => case.writer.thaw_events(),
            }
        }
        let is_frozen = case.writer.header().freezes != 0;
        case.close();
        for path in [case.path.clone(), case.copy("copy.nscope")] {
            let counted = counted(&path, segments);
            prop_assert!(counted.is_none() || counted == Some(case.written.clone()));
            let end = Recording::open_end(&path, segments).unwrap();
            let first = end.records(0).next().map(|record| record.ticks());
            let is_late = first.is_some() && first == case.first;
            let has_reason = is_frozen || is_late || case.written.is_empty();
            prop_assert!(counted.is_some() || has_reason, "{} segments", segments);
        }
    }
}
