// SPDX-License-Identifier: Apache-2.0
//! The lanes of a process that was killed, before and after they are put into its recording.

mod common;

use common::lanes_file;
use ncclscope_trace::lanes_file::{Adopted, Owner, SLABS_AT, TABLE, adopt};
use ncclscope_trace::layout::{HEADER_BYTES, Header, LANE_TABLE, SLAB_BYTES};
use ncclscope_trace::scratch::{lane, slot};
use ncclscope_trace::{Detail, Handle, Recording, Start, Writer};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

struct Case {
    dir: tempfile::TempDir,
    recording: PathBuf,
    lanes: PathBuf,
}

const OWNER: (u32, u32) = (77, 5);

/// A recording without blocks and a lanes file with four words of a lane and a step in flight.
fn killed() -> Case {
    let dir = tempfile::tempdir().unwrap();
    let (recording, lanes) = (dir.path().join("x.nscope"), dir.path().join("ncclscope-x.lanes"));
    let (pid, process) = OWNER;
    let header = Header { pid, process, lanes_file: Some(lanes.clone()), ..Header::default() };
    Writer::create(&recording, header, 1 << 20).unwrap();
    let owner = Owner::new(pid, process, recording.clone());
    let (handle, parent) = (Handle(9), Handle::NULL);
    let start = Start { ticks: 1000, comm: 0, handle, parent, detail: Detail::Group }.pack();
    let file = lanes_file(&lanes, &owner, start.words());
    let op = Handle::slot_op(5, 0, 9, 0);
    let step = SLABS_AT + slot::STEPS as u64;
    file.write_all_at(&op.0.to_le_bytes(), SLABS_AT).unwrap();
    file.write_all_at(&900u64.to_le_bytes(), step).unwrap();
    let tag = op.step_tag() | slot::LIVE;
    file.write_all_at(&tag.to_le_bytes(), step + slot::STEP_TAG as u64).unwrap();
    file.set_len(SLABS_AT + SLAB_BYTES as u64).unwrap();
    Case { dir, recording, lanes }
}

fn user() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

fn adopt_own(lanes: &Path) -> std::io::Result<Adopted> {
    adopt(lanes, user())
}

/// Replaces the page that identifies the owner.
fn own(lanes: &Path, owner: &Owner) {
    let file = OpenOptions::new().write(true).open(lanes).unwrap();
    file.write_all_at(&owner.encode(), 0).unwrap();
}

fn expect_whole(case: &Case) {
    let recording = Recording::open(&case.recording).unwrap();
    let ticks: Vec<u64> = recording.records(0).map(|record| record.ticks()).collect();
    assert_eq!(ticks, [1000, 900], "{:?}", recording.problems());
    let [problem] = recording.problems() else { panic!("{:?}", recording.problems()) };
    assert!(problem.contains("1 records taken from its lanes, 1 network steps"), "{problem}");
}

#[test]
fn lanes_are_read_where_they_are_and_after_they_were_adopted() {
    let case = killed();
    expect_whole(&case);
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Kept);
    assert!(!case.lanes.exists());
    expect_whole(&case);
    let header = Recording::open(&case.recording).unwrap().header().clone();
    assert_eq!((header.lanes_shared, header.lanes_file), (true, None));
    let file = OpenOptions::new().write(true).open(&case.recording).unwrap();
    file.write_all_at(&[1], LANE_TABLE + lane::THREAD as u64).unwrap();
    let changed = Recording::open(&case.recording).unwrap();
    let told = |problem: &String| problem.starts_with("the lane table is missing or damaged");
    assert_eq!(changed.problems().iter().filter(|problem| told(problem)).count(), 1);
}

#[test]
fn the_lanes_of_a_living_process_are_left_alone() {
    let case = killed();
    let owner = File::open(&case.lanes).unwrap();
    owner.lock().unwrap();
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Alive);
    drop(owner);
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Kept);
}

#[test]
fn lanes_that_no_process_can_use_are_removed() {
    let closed = killed();
    let file = OpenOptions::new().read(true).write(true).open(&closed.recording).unwrap();
    let mut page = [0; HEADER_BYTES];
    file.read_exact_at(&mut page, 0).unwrap();
    page[16] = 1;
    Header::seal(&mut page);
    file.write_all_at(&page, 0).unwrap();
    assert_eq!(adopt_own(&closed.lanes).unwrap(), Adopted::Useless);
    assert!(!closed.lanes.exists());
    let gone = killed();
    std::fs::remove_file(&gone.recording).unwrap();
    assert_eq!(adopt_own(&gone.lanes).unwrap(), Adopted::Useless);
    let of_another = killed();
    let page = Owner::new(1, 5, of_another.recording.clone()).encode();
    let file = OpenOptions::new().write(true).open(&of_another.lanes).unwrap();
    file.write_all_at(&page, 0).unwrap();
    let problem = Recording::open(&of_another.recording).unwrap().problems()[0].clone();
    assert!(problem.contains("are not here"), "{problem}");
    assert_eq!(adopt_own(&of_another.lanes).unwrap(), Adopted::Useless);
    assert!(Recording::open(&of_another.recording).unwrap().header().lanes_file.is_some());
}

/// The same path can be another directory, or nothing, in another container; and a file system that
/// is mounted later may get the device number of an earlier one.
#[test]
fn lanes_whose_recording_cannot_be_seen_from_here_are_left() {
    let home = |case: &Case| Owner::new(OWNER.0, OWNER.1, case.recording.clone());
    type Change = fn(&mut Owner);
    let changes: [Change; 6] = [
        |owner| owner.home = None,
        |owner| owner.recording = "/nonexistent/x.nscope".into(),
        |owner| owner.recording = "/dev/null/x.nscope".into(),
        |owner| owner.home.iter_mut().for_each(|home| home.directory.1 += 1),
        |owner| owner.home.iter_mut().for_each(|home| home.mounts += 1),
        |owner| owner.home.iter_mut().for_each(|home| home.boot[3] ^= 1),
    ];
    for change in changes {
        let case = killed();
        let mut owner = home(&case);
        change(&mut owner);
        own(&case.lanes, &owner);
        let elsewhere = case.dir.path().join("elsewhere");
        std::fs::rename(&case.recording, &elsewhere).unwrap();
        for _ in 0..2 {
            assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Orphan);
        }
        // A process in the same container starts.
        std::fs::rename(&elsewhere, &case.recording).unwrap();
        own(&case.lanes, &home(&case));
        assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Kept);
        expect_whole(&case);
    }
    let case = killed();
    std::fs::write(&case.recording, "a later ncclscope's, for all we know").unwrap();
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Orphan);
}

#[test]
fn lanes_that_no_process_came_for_go_after_a_week() {
    const SINCE: u64 = 4072;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (days, expected) in [(6, Adopted::Orphan), (8, Adopted::Useless)] {
        let case = killed();
        own(&case.lanes, &Owner::new(1, 2, "/nonexistent/x.nscope".into()));
        let file = OpenOptions::new().write(true).open(&case.lanes).unwrap();
        file.write_all_at(&(now - 86_400 * days).to_le_bytes(), SINCE).unwrap();
        assert_eq!(adopt_own(&case.lanes).unwrap(), expected);
        assert_eq!(case.lanes.exists(), expected == Adopted::Orphan);
    }
}

/// A run's directory that is deleted after a kill, before another process starts on the host.
#[test]
fn lanes_of_a_deleted_directory_go_after_an_hour() {
    const MISSING: u64 = 4088;
    type Change = fn(&mut Owner);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let cases: [(u64, Change, Adopted); 4] = [
        (59, |_| (), Adopted::Orphan),
        (61, |_| (), Adopted::Useless),
        // Another mount namespace, and a file system that is not mounted.
        (61, |owner| owner.home.as_mut().unwrap().mounts += 1, Adopted::Orphan),
        (61, |owner| owner.home.as_mut().unwrap().directory.0 += 1, Adopted::Orphan),
    ];
    for (minutes, change, expected) in cases {
        let case = killed();
        let run = tempfile::tempdir().unwrap();
        let mut owner = Owner::new(OWNER.0, OWNER.1, run.path().join("x.nscope"));
        change(&mut owner);
        own(&case.lanes, &owner);
        run.close().unwrap();
        let file = OpenOptions::new().write(true).open(&case.lanes).unwrap();
        file.write_all_at(&(now - 60 * minutes).to_le_bytes(), MISSING).unwrap();
        assert_eq!(adopt_own(&case.lanes).unwrap(), expected, "{minutes} min, {owner:?}");
        assert_eq!(case.lanes.exists(), expected == Adopted::Orphan);
    }
}

/// The hour begins anew whenever the directory is there.
#[test]
fn a_directory_that_comes_back_is_not_deleted() {
    const MISSING: u64 = 4088;
    let case = killed();
    let run = tempfile::tempdir().unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&case.lanes).unwrap();
    let missing_since = || {
        let mut since = [0; 8];
        file.read_exact_at(&mut since, MISSING).unwrap();
        u64::from_le_bytes(since)
    };
    // A file that is no recording: the directory is there, and the lanes are kept.
    std::fs::write(run.path().join("x.nscope"), "x").unwrap();
    own(&case.lanes, &Owner::new(OWNER.0, OWNER.1, run.path().join("x.nscope")));
    let hidden = run.path().with_extension("hidden");
    std::fs::rename(run.path(), &hidden).unwrap();
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Orphan);
    assert!(missing_since() > 0);
    std::fs::rename(&hidden, run.path()).unwrap();
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Orphan);
    assert_eq!(missing_since(), 0);
}

#[test]
fn the_lanes_of_another_user_are_left_alone() {
    let case = killed();
    let error = adopt(&case.lanes, user() + 1).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    expect_whole(&case);
}

/// Files that a hostile or broken process may leave: the reader neither waits for them nor writes
/// to them.
#[test]
fn lanes_and_recordings_that_are_no_files_are_left_alone() {
    let case = killed();
    let fifo = case.dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let link = case.dir.path().join("link");
    std::os::unix::fs::symlink(&case.recording, &link).unwrap();
    for recording in [&fifo, &link] {
        own(&case.lanes, &Owner::new(OWNER.0, OWNER.1, recording.clone()));
        assert!(adopt_own(&case.lanes).is_err(), "{recording:?}");
    }
    let lanes = case.dir.path().join("link.lanes");
    std::os::unix::fs::symlink(&case.lanes, &lanes).unwrap();
    for lanes in [&fifo, &lanes] {
        assert!(adopt_own(lanes).is_err(), "{lanes:?}");
    }
    own(&case.lanes, &Owner::new(OWNER.0, OWNER.1, case.recording.clone()));
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Kept);
}

#[test]
fn lanes_of_a_process_that_died_before_it_had_a_recording_go_at_once() {
    let case = killed();
    own(&case.lanes, &Owner::without_recording(OWNER.0));
    let owner = File::open(&case.lanes).unwrap();
    owner.lock().unwrap();
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Alive);
    drop(owner);
    assert_eq!(adopt_own(&case.lanes).unwrap(), Adopted::Useless);
    assert!(!case.lanes.exists());
}

#[test]
fn a_file_without_its_first_page_has_an_owner_in_a_moment() {
    let case = killed();
    let young = case.dir.path().join("young.lanes");
    File::create(&young).unwrap();
    assert_eq!(adopt_own(&young).unwrap(), Adopted::Alive);
    assert!(young.exists());
    // A process that ended within its first `init` left it.
    let file = File::options().write(true).open(&young).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(61)).unwrap();
    assert_eq!(adopt_own(&young).unwrap(), Adopted::Useless);
    assert!(!young.exists());
}

#[test]
fn words_in_private_memory_are_left_out_and_told() {
    let case = killed();
    let file = OpenOptions::new().write(true).open(&case.lanes).unwrap();
    let all = (1u64 << 17).to_le_bytes();
    file.write_all_at(&all, TABLE + lane::HIDDEN as u64).unwrap();
    let recording = Recording::open(&case.recording).unwrap();
    assert_eq!(recording.records(0).count(), 1, "the step in flight");
    let problem = &recording.problems()[0];
    assert!(problem.contains("words in private memory lost"), "{problem}");
}
