// SPDX-License-Identifier: Apache-2.0
//! A copy of a recording that continues.

use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::dump::Rest;
use ncclscope_trace::layout::Header;
use ncclscope_trace::record::{Detail, KernelLaunch};
use ncclscope_trace::{
    Comm, Definition, EventKind, Handle, Mark, MarkKind, Record, Recording, Start, Step, StrId,
    Writer,
};
use proptest::prelude::*;
use std::path::Path;

/// The words of launches with random-looking contents, which a block cannot compress.
fn launches(numbers: std::ops::Range<u64>) -> Vec<u64> {
    let launch = |n: u64| {
        let handle = Handle::value(5, EventKind::KernelLaunch, 1, n);
        let stream = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let detail = Detail::KernelLaunch(KernelLaunch { stream });
        Start { ticks: n, comm: 0, handle, parent: Handle::NULL, detail }.pack()
    };
    numbers.flat_map(|n| launch(n).words().to_vec()).collect()
}

fn ticks(path: &Path) -> Vec<u64> {
    let recording = Recording::open(path).unwrap();
    assert_eq!(recording.problems(), [] as [String; 0]);
    let header = recording.header();
    assert!(header.closed && header.copy && header.lanes_file.is_none());
    recording.records(1).map(|record| record.ticks()).collect()
}

fn append(writer: &mut Writer, numbers: std::ops::Range<u64>) {
    writer.append(1, numbers.start * 5, &launches(numbers)).unwrap();
}

#[test]
fn definitions_marks_and_what_is_under_way_come_along() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("a.nscope"), dir.path().join("b.nscope"));
    let mut writer = Writer::create(&path, Header::default(), 0).unwrap();
    writer.define(&Definition::Comm(Comm { hash: 7, ..Comm::default() })).unwrap();
    writer.define(&Definition::Role { hash: 7, text: "tp".into() }).unwrap();
    append(&mut writer, 0..10);
    let mark = Mark { ticks: 10, what: MarkKind::Step, name: StrId::NONE, value: 3 };
    writer.append(META_LANE, 0, &mark.words()).unwrap();
    let checkpoint = writer.checkpoint().unwrap();
    append(&mut writer, 10..20);
    writer.define(&Definition::Note("later".into())).unwrap();
    let step = Step { ticks: 11, step: 4, ..Step::default() };
    let rest = Rest { lane: 1, position: 50, words: step.pack().words().to_vec() };
    checkpoint.write(&copy, &[rest]).unwrap();

    let recording = Recording::open(&copy).unwrap();
    let records: Vec<Record> = recording.records(1).collect();
    assert_eq!((records.len(), records[10]), (11, Record::Step(step)));
    assert_eq!(recording.marks(), [mark]);
    assert_eq!(recording.role(&recording.comms()[0]), Some("tp"));
    assert_eq!(recording.notes(), [] as [String; 0]);
    // An existing file is not overwritten, and a failed copy leaves no partial file behind.
    let again = writer.checkpoint().unwrap().write(&copy, &[]);
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    let nowhere = writer.checkpoint().unwrap().write(&dir.path().join("no/such"), &[]);
    assert_eq!(nowhere.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever was written before and after the moment of the copy, the copy has the last records
    /// of that moment and counts the others.
    #[test]
    fn a_copy_has_what_was_there_or_counts_it(
        before in prop::collection::vec(1u64..6000, 0..12),
        after in prop::collection::vec(1u64..6000, 0..12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("a.nscope"), dir.path().join("b.nscope"));
        let mut writer = Writer::create(&path, Header::default(), 0).unwrap();
        let mut end = 0;
        for count in before {
            append(&mut writer, end..end + count);
            end += count;
        }
        let (checkpoint, moment) = (writer.checkpoint().unwrap(), end);
        for count in after {
            append(&mut writer, end..end + count);
            end += count;
        }
        checkpoint.write(&copy, &[]).unwrap();
        let got = ticks(&copy);
        let lost = Recording::open(&copy).unwrap().header().overwritten;
        let lost = lost[EventKind::KernelLaunch.index()];
        prop_assert_eq!(got, (lost..moment).collect::<Vec<_>>());
    }
}

#[test]
fn a_copy_made_while_the_writer_laps_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.nscope");
    let mut writer = Writer::create(&path, Header::default(), 0).unwrap();
    append(&mut writer, 0..60_000);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let checkpoints = std::sync::mpsc::sync_channel(0);
    std::thread::scope(|scope| {
        let (send, stop) = (checkpoints.0, &stop);
        scope.spawn(move || {
            let mut end = 60_000;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                append(&mut writer, end..end + 500);
                end += 500;
                if send.send((writer.checkpoint().unwrap(), end)).is_err() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let mut copies = 0;
        while copies < 10 {
            let (checkpoint, moment) = checkpoints.1.iter().next().unwrap();
            let copy = dir.path().join("b.nscope");
            if let Err(error) = checkpoint.write(&copy, &[]) {
                assert!(error.to_string().contains("overwritten while"), "{error}");
                continue;
            }
            copies += 1;
            let lost = Recording::open(&copy).unwrap().header().overwritten;
            let lost = lost[EventKind::KernelLaunch.index()];
            assert_eq!(ticks(&copy), (lost..moment).collect::<Vec<_>>());
            std::fs::remove_file(&copy).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(checkpoints.1);
    });
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Containers with the same host name and process id 7 are asked to dump to a directory that they
/// share.
#[test]
fn processes_of_one_name_write_to_one_place_and_each_has_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("dump");
    std::fs::create_dir(&place).unwrap();
    let dump = |process: u32| {
        let path = dir.path().join(format!("{process}.nscope"));
        let header = Header { pid: 7, process, host: "h".into(), ..Header::default() };
        let mut writer = Writer::create(&path, header, 0).unwrap();
        append(&mut writer, 0..1000 * u64::from(process));
        (0..2).map(move |_| writer.checkpoint().unwrap())
    };
    let dumps: Vec<_> = (1..=16).map(|process| (process, dump(process))).collect();
    let place = &place;
    std::thread::scope(|scope| {
        for (process, mut checkpoints) in dumps {
            scope.spawn(move || {
                let write = |checkpoint: ncclscope_trace::dump::Checkpoint| {
                    checkpoint.write_into(place, "h-7.nscope", 1000 + process, &[])
                };
                let file = write(checkpoints.next().unwrap()).unwrap();
                assert_eq!(Recording::open(&file).unwrap().header().process, process);
                assert_eq!(ticks(&file).len(), 1000 * process as usize);
                let again = write(checkpoints.next().unwrap()).unwrap_err();
                assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
            });
        }
    });
    let names = names(place);
    assert_eq!((names.len(), names[0].as_str()), (16, "h-7.nscope"), "{names:?}");
    assert!(names[1..].iter().all(|name| name.starts_with("h-7.nscope.10")), "{names:?}");
}

#[test]
fn a_copy_follows_no_link_and_takes_nothing_away() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "mine").unwrap();
    let mut writer = Writer::create(&dir.path().join("a.nscope"), Header::default(), 0).unwrap();
    append(&mut writer, 0..10);
    for (name, nonce) in [("b.nscope", 5), ("b.nscope.0.part", 6)] {
        std::os::unix::fs::symlink(&victim, dir.path().join(name)).unwrap();
        let copy = writer.checkpoint().unwrap().write_into(dir.path(), "b.nscope", nonce, &[]);
        if nonce == 5 {
            assert_eq!(copy.unwrap(), dir.path().join("b.nscope.5"));
            std::fs::remove_file(dir.path().join("b.nscope.5")).unwrap();
        } else {
            assert_eq!(copy.unwrap(), dir.path().join("b.nscope.6"));
        }
        let exact = writer.checkpoint().unwrap().write(&dir.path().join("b.nscope"), &[]);
        assert_eq!(exact.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
    }
}
