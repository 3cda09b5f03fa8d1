// SPDX-License-Identifier: Apache-2.0
//! Files that would exhaust a reader or make it wait: each is read, or is an error, at once.

use ncclscope_trace::handle::LANES;
use ncclscope_trace::layout::{BLOCKS, DEFINITIONS, Header, LANE_STRIDE, LANE_TABLE, SEGMENT};
use ncclscope_trace::record::{Detail, KernelLaunch};
use ncclscope_trace::schema::Schema;
use ncclscope_trace::scratch::{lane, ring_records};
use ncclscope_trace::{EventKind, Follower, Handle, Record, Recording, Start, Visitor, Writer};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, fallocate, mknodat};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
    // The same in a recording whose header says that it contains the lanes.
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

/// Nothing else shows that the lane table is damaged.
#[test]
fn counts_that_no_process_can_have_are_damage_and_no_losses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h-1.nscope");
    let header = Header { segments: 4, closed: true, ..Header::default() };
    fs::write(&path, header.encode()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(header.slab_offset(0)).unwrap();
    let count = |at: usize, count: u64| {
        file.write_all_at(&count.to_le_bytes(), LANE_TABLE + at as u64).unwrap();
    };
    count(lane::LOST, 7);
    let recording = Recording::open(&path).unwrap();
    assert_eq!((recording.lanes()[0].header.lost[0], recording.damage()), (7, &[][..]));
    let later = lane::LOST + 8 * 60;
    for at in [lane::LOST + 8, lane::LOST_ENDS, later] {
        count(at, 1 << 61);
        let recording = Recording::open(&path).unwrap();
        let lane = &recording.lanes()[0].header;
        assert_eq!((lane.lost.iter().sum::<u64>(), lane.lost_ends.iter().sum::<u64>()), (7, 0));
        assert!(lane.later_kinds.is_empty());
        assert!(recording.damage()[0].starts_with("lane 0 is damaged: "), "{at}");
        count(at, 0);
    }
}

/// A ring of 256 GiB, all of which except one page is a hole.
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

#[test]
fn much_damage_is_told_in_few_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h-1.nscope");
    let header = Header { segments: 256, closed: true, ..Header::default() };
    fs::write(&path, header.encode()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(BLOCKS + 256 * SEGMENT).unwrap();
    (0..256).for_each(|at| file.write_all_at(b"NSB1", BLOCKS + at * SEGMENT).unwrap());
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.damage().len(), 256);
    let told = recording.damage_in_short();
    assert!(told.len() == 5 && told[4] == "and so on, 252 more", "{told:?}");
}

/// A recording with `blocks` blocks of 100 launches on lane 1, closed by its process.
fn recording(folder: &Path, blocks: u64) -> PathBuf {
    let path = folder.join("h-1.nscope");
    let mut writer = Writer::create(&path, Header::default(), 4 << 20).unwrap();
    let launch = |n: u64| {
        let handle = Handle::value(5, EventKind::KernelLaunch, 1, n);
        let detail = Detail::KernelLaunch(KernelLaunch { stream: 0x7f00 });
        Start { ticks: 1000 + n, comm: 0, handle, parent: Handle::NULL, detail }.pack()
    };
    for block in 0..blocks {
        let numbers = 100 * block..100 * (block + 1);
        let words: Vec<u64> = numbers.flat_map(|n| launch(n).words().to_vec()).collect();
        writer.append(1, 0, &words).unwrap();
    }
    let mut table = [0; LANE_STRIDE];
    table[lane::STATE] = 1;
    writer.write_lane(1, &table).unwrap();
    writer.header_mut().closed = true;
    writer.sync_header().unwrap();
    path
}

#[test]
fn a_hole_instead_of_the_lane_table_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = recording(folder.path(), 3);
    let whole = Recording::open(&path).unwrap();
    assert_eq!((whole.records(1).count(), whole.problems()), (300, &[] as &[String]));
    let file = File::options().write(true).open(&path).unwrap();
    let blocks = |file: &File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    let before = blocks(&file);
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        LANE_TABLE,
        DEFINITIONS - LANE_TABLE,
    )
    .unwrap();
    assert!(blocks(&file) < before, "it is a hole");
    let sparse = Recording::open(&path).unwrap();
    assert_eq!(sparse.records(1).count(), 300);
    let [wrong, untold] = sparse.problems() else { panic!("{:?}", sparse.problems()) };
    let what = "counts of lost events and numbers of threads may be wrong";
    assert_eq!(wrong, &format!("the lane table is missing or damaged: {what}"));
    assert_eq!(untold, "the lane table is missing or damaged: losses of 1 lanes are not known");
    // Recordings of earlier versions have no checksum of the table.
    let mut header = whole.header().clone();
    (header.lanes_checksum, header.version.minor) = (None, 3);
    file.write_all_at(&header.encode(), 0).unwrap();
    let told = damage_of(&path);
    assert_eq!(told, ["the lane table is missing or damaged: losses of 1 lanes are not known"]);
    // A process that was killed has written the table before it counted its blocks.
    header.closed = false;
    file.write_all_at(&header.encode(), 0).unwrap();
    assert_eq!(damage_of(&path), told);
    header.next_block = 0;
    file.write_all_at(&header.encode(), 0).unwrap();
    assert_eq!(damage_of(&path), [] as [String; 0]);
}

fn damage_of(path: &Path) -> Vec<String> {
    Recording::open(path).unwrap().damage().to_vec()
}

#[test]
fn any_changed_byte_of_a_lane_table_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = recording(folder.path(), 3);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let first = LANE_STRIDE as u64;
    for at in
        (first..first + 256).chain([first + LANE_STRIDE as u64 - 1, DEFINITIONS - LANE_TABLE - 1])
    {
        let mut byte = [0];
        file.read_exact_at(&mut byte, LANE_TABLE + at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], LANE_TABLE + at).unwrap();
        let changed = Recording::open(&path).unwrap();
        let told = changed.damage().first().is_some_and(|told| told.starts_with("the lane table"));
        assert_eq!(told, at < (LANES * LANE_STRIDE) as u64, "{at}: {:?}", changed.problems());
        file.write_all_at(&byte, LANE_TABLE + at).unwrap();
    }
}

/// Counts the records, and truncates the file to a given length after the first block.
struct Cut<'f>(u64, &'f File, u64);

impl Visitor for Cut<'_> {
    fn record(&mut self, _lane: usize, _record: &Record) {
        self.0 += 1;
        if self.0 == 100 {
            self.1.set_len(self.2).unwrap();
        }
    }

    fn reached(&mut self, _ticks: u64) {}
}

#[test]
fn a_file_that_shrinks_while_it_is_read_costs_its_end_and_is_told() {
    for cut in [BLOCKS, BLOCKS - 1, 100, 0] {
        let folder = tempfile::tempdir().unwrap();
        let path = recording(folder.path(), 30);
        let file = File::options().write(true).open(&path).unwrap();
        let recording = Recording::open(&path).unwrap();
        let mut visitor = Cut(0, &file, cut);
        recording.visit(&mut visitor);
        assert_eq!((visitor.0, recording.unreadable()), (100, 2900), "cut at {cut}");
        // When the file has its old length again, the truncated part is a hole.
        let again = Recording::open(&path).map(drop).err();
        assert_eq!(again.is_some(), cut < 4096);
        file.set_len(BLOCKS + SEGMENT).unwrap();
        assert_eq!((recording.records(1).count(), recording.unreadable()), (0, 5900));
    }
}
