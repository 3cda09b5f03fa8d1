// SPDX-License-Identifier: Apache-2.0
//! The lanes of a process that was killed, before and after they are put into its recording.

mod common;

use common::lanes_file;
use ncclscope_trace::lanes_file::{Adopted, Owner, SLABS_AT, TABLE, adopt};
use ncclscope_trace::layout::{HEADER_BYTES, Header, SLAB_BYTES};
use ncclscope_trace::scratch::{lane, slot};
use ncclscope_trace::{Detail, Handle, Recording, Start, Writer};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

struct Case {
    dir: tempfile::TempDir,
    recording: PathBuf,
    lanes: PathBuf,
}

const OWNER: (u32, u32) = (77, 5);

/// A recording without blocks and a lanes file with four words of a lane and a step in flight.
fn killed() -> Case {
    let dir = tempfile::tempdir().unwrap();
    let (recording, lanes) = (dir.path().join("x.nscope"), dir.path().join("x.lanes"));
    let (pid, process) = OWNER;
    let header = Header { pid, process, lanes_file: Some(lanes.clone()), ..Header::default() };
    Writer::create(&recording, header, 1 << 20).unwrap();
    let owner = Owner { pid, process, recording: recording.clone() };
    let (handle, parent) = (Handle(9), Handle::NULL);
    let start = Start { ticks: 1000, comm: 0, handle, parent, detail: Detail::Group }.pack();
    let file = lanes_file(&lanes, &owner, start.words());
    let op = Handle::slot_op(5, 0, 9, 0);
    let step = SLABS_AT + slot::STEPS as u64;
    file.write_all_at(&op.0.to_le_bytes(), SLABS_AT).unwrap();
    file.write_all_at(&900u64.to_le_bytes(), step).unwrap();
    let tag = 9u32 << 5 | slot::LIVE;
    file.write_all_at(&tag.to_le_bytes(), step + slot::STEP_TAG as u64).unwrap();
    file.set_len(SLABS_AT + SLAB_BYTES as u64).unwrap();
    Case { dir, recording, lanes }
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
    assert_eq!(adopt(&case.lanes).unwrap(), Adopted::Kept);
    assert!(!case.lanes.exists());
    expect_whole(&case);
    let header = Recording::open(&case.recording).unwrap().header().clone();
    assert_eq!((header.lanes_shared, header.lanes_file), (true, None));
}

#[test]
fn the_lanes_of_a_living_process_are_left_alone() {
    let case = killed();
    let owner = File::open(&case.lanes).unwrap();
    owner.lock().unwrap();
    assert_eq!(adopt(&case.lanes).unwrap(), Adopted::Alive);
    drop(owner);
    assert_eq!(adopt(&case.lanes).unwrap(), Adopted::Kept);
}

#[test]
fn lanes_that_nobody_can_use_are_removed() {
    let closed = killed();
    let file = OpenOptions::new().read(true).write(true).open(&closed.recording).unwrap();
    let mut page = [0; HEADER_BYTES];
    file.read_exact_at(&mut page, 0).unwrap();
    page[16] = 1;
    file.write_all_at(&page, 0).unwrap();
    assert_eq!(adopt(&closed.lanes).unwrap(), Adopted::Useless);
    assert!(!closed.lanes.exists());
    let gone = killed();
    std::fs::remove_file(&gone.recording).unwrap();
    assert_eq!(adopt(&gone.lanes).unwrap(), Adopted::Useless);
    let of_another = killed();
    let page = Owner { pid: 1, process: 5, recording: of_another.recording.clone() }.encode();
    let file = OpenOptions::new().write(true).open(&of_another.lanes).unwrap();
    file.write_all_at(&page, 0).unwrap();
    let problem = Recording::open(&of_another.recording).unwrap().problems()[0].clone();
    assert!(problem.contains("are not here"), "{problem}");
    assert_eq!(adopt(&of_another.lanes).unwrap(), Adopted::Useless);
    assert!(Recording::open(&of_another.recording).unwrap().header().lanes_file.is_some());
}

#[test]
fn a_file_without_its_first_page_is_somebodys_in_a_moment() {
    let case = killed();
    let young = case.dir.path().join("young.lanes");
    File::create(&young).unwrap();
    assert_eq!(adopt(&young).unwrap(), Adopted::Alive);
    assert!(young.exists());
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
