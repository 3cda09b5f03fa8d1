// SPDX-License-Identifier: Apache-2.0
//! Reads files of all versions, whole and damaged ones.

#[path = "common/job.rs"]
mod job;

use job::Job;
use ncclscope_inspector::{FileFacts, Files, find, is_start, read};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}

/// The facts of a file with this text, and the numbers of its collectives.
fn facts(dir: &Path, text: &str) -> (Result<FileFacts, String>, Vec<u64>) {
    let path = dir.join("n0-pid100.log");
    std::fs::write(&path, text).unwrap();
    let mut numbers = Vec::new();
    let facts = read(&path, &mut |_, _, one| numbers.push(one.seq));
    (facts, numbers)
}

fn files(dir: &Path) -> Files {
    Files::read(&find(&[dir.to_owned()]).unwrap(), |_, _, _| ()).unwrap()
}

#[test]
fn all_versions_have_the_same_collectives() {
    let (_dir, path) = folder();
    for version in ["v4.0", "v4.1", "v4.2", "v4.3"] {
        let text = Job::new(version).file(2);
        let (facts, numbers) = facts(&path, &text);
        let facts = facts.unwrap();
        assert_eq!(numbers, (0..64).collect::<Vec<u64>>(), "{version}");
        assert!(!facts.is_damaged(), "{version}: {facts:?}");
        let [of] = &facts.members[..] else { panic!("{facts:?}") };
        assert_eq!((of.member.rank, of.member.nranks, of.collectives), (2, 4, 64));
        assert_eq!((of.member.host.as_str(), of.member.pid), ("n2", 102));
        let has_name = !["v4.0", "v4.1"].contains(&version);
        assert_eq!(of.member.comm_name.as_deref(), has_name.then_some("DP"));
    }
}

#[test]
fn sizes_and_times_are_as_nccl_tests_defines_them() {
    let (_dir, path) = folder();
    let job = Job { is_verbose: true, ..Job::new("v4.2") };
    let text = job.file(0).replace("AllReduce", "AllGather");
    std::fs::write(path.join("a.log"), text).unwrap();
    let mut first = None;
    let facts = read(&path.join("a.log"), &mut |_, _, one| {
        first.get_or_insert_with(|| (one.bytes, one.ns, one.start_ns, one.algo.map(str::to_owned)));
    });
    let start = 1_700_000_000_000_000_000;
    assert_eq!(first, Some((Some(4_000_000), 400_000.0, Some(start), Some("RING".into()))));
    assert_eq!(facts.unwrap().members[0].started, 64);
}

#[test]
fn a_cut_off_line_is_left_out_and_told() {
    let (_dir, path) = folder();
    let text = Job::new("v4.3").file(0);
    let (cut, numbers) = facts(&path, &text[..text.len() - 20]);
    let cut = cut.unwrap();
    assert_eq!((cut.is_torn, cut.unreadable, numbers.len()), (true, 0, 63));
    let damage = files(&path).damage();
    assert!(damage[0].ends_with("its last line is cut off, and left out"), "{damage:?}");
}

/// In v4.3, operations after a lost line may be of another communicator.
#[test]
fn without_its_header_an_operation_is_of_no_communicator() {
    let (_dir, path) = folder();
    let text = Job::new("v4.3").file(0);
    let lines: Vec<&str> = text.lines().collect();
    let garbled = [&lines[..10], &["{\"header\": garbage"], &lines[11..]].concat().join("\n");
    let (garbled, numbers) = facts(&path, &garbled);
    let garbled = garbled.unwrap();
    assert_eq!((garbled.unreadable, garbled.first_unreadable, garbled.headless), (1, 11, 54));
    assert_eq!(numbers.len(), 9);
    // As many as the line with the header announces, and no more.
    let more = format!("{text}{}\n", lines[5]);
    let (more, numbers) = facts(&path, &more);
    assert_eq!((more.unwrap().headless, numbers.len()), (1, 64));
}

#[test]
fn a_version_to_come_is_refused_and_named() {
    let (_dir, path) = folder();
    let (refused, _) = facts(&path, &Job::new("v5.0").file(0));
    let why = refused.unwrap_err();
    assert_eq!(why, "it is NCCL Inspector's JSON of format v5.0; v4.0 to v4.3 are read");
}

#[test]
fn garbage_is_counted_and_never_more() {
    let (_dir, path) = folder();
    let long = format!("{}\n{}", "x".repeat(3 << 20), Job::new("v4.2").file(0));
    let (read, numbers) = facts(&path, &long);
    assert_eq!((read.unwrap().unreadable, numbers.len()), (1, 64));
    for text in ["", "\n\n", "{}", "[]\n", "\u{0}\n", "{\"coll_perf\":{\"coll_sn\":-1}}\n"] {
        let (read, numbers) = facts(&path, text);
        assert!(read.is_ok() && numbers.is_empty(), "{text:?}");
    }
    assert!(!is_start(&path.join("n0-pid100.log")) && !is_start(&path));
}

#[test]
fn copies_and_empty_files_are_left_out_and_told() {
    let (_dir, path) = folder();
    Job::new("v4.1").write(&path);
    std::fs::write(path.join("n9-pid9.log"), "").unwrap();
    std::fs::write(path.join("other.log"), "").unwrap();
    let earlier: String = Job::new("v4.1").file(1).lines().take(9).collect::<Vec<_>>().join("\n");
    std::fs::write(path.join("a-copy.log"), earlier).unwrap();
    let files = files(&path);
    assert_eq!((files.facts.len(), files.copies.len(), files.unreadable.len()), (4, 1, 1));
    assert!(files.copies[0].contains("a-copy.log is left out: it is a copy of "), "{files:?}");
    assert!(files.unreadable[0].ends_with("n9-pid9.log: it is empty"), "{files:?}");
    assert_eq!(files.gaps(), [""; 0]);
}

#[test]
fn missing_ranks_other_jobs_and_losses_are_told() {
    let (_dir, path) = folder();
    Job { ranks: 8, dropped: 5, ..Job::new("v4.3") }.write(&path);
    for rank in [1, 5, 6] {
        std::fs::remove_file(path.join(format!("n{rank}-pid{}.log", 100 + rank))).unwrap();
    }
    let other = Job::new("v4.3").file(0).replace("0x1f", "0x2f").replace("DP", "TP");
    std::fs::write(path.join("other.log"), other).unwrap();
    let files = files(&path);
    assert_eq!(
        files.gaps(),
        [
            "communicator 0x1f of 8 ranks: no file of 1, 5-6",
            "communicator 0x2f of 4 ranks: no file of 1-3",
            "the files are of 2 groups of processes that share no communicator: they may be of \
             several jobs",
        ]
    );
    let (count, what, advice) = files.dropped().unwrap();
    assert_eq!(count, 25);
    assert!(what.starts_with("25 collectives and 0 point-to-point operations"), "{what}");
    assert!(advice.starts_with("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE"), "{advice}");
}
