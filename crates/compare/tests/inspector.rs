// SPDX-License-Identifier: Apache-2.0
//! Compares runs of NCCL Inspector's files.

#[path = "../../inspector/tests/common/job.rs"]
mod job;

use job::Job;
use ncclscope_compare::input::{inspector, saved};
use ncclscope_compare::schema::{State, Verdict};
use ncclscope_compare::{Comparison, Limits, Run, compare};
use ncclscope_inspector::find;

fn run(job: &Job) -> Run {
    let dir = tempfile::tempdir().unwrap();
    job.write(dir.path());
    let found = find(&[dir.path().to_owned()]).unwrap();
    inspector::read("run".into(), &found).unwrap().run
}

fn compared(a: &Job, b: &Job) -> Comparison {
    compare(&[run(a)], &[run(b)], &Limits::default())
}

fn slower(version: &'static str, factor: u64) -> Job {
    Job { transfer_us: 1_000 * factor / 100, ..Job::new(version) }
}

#[test]
fn a_slower_network_is_found_whoever_is_late() {
    for version in ["v4.0", "v4.2", "v4.3"] {
        let a = slower(version, 100);
        let b = Job { late: (1, 900), ..slower(version, 120) };
        let found = compared(&a, &b);
        let [row] = &found.rows[..] else { panic!("{found:#?}") };
        assert_eq!(row.verdict, Verdict::Slower, "{version}: {found:#?}");
        assert!((row.change.unwrap() - 0.2).abs() < 0.01, "{row:?}");
        // Only the waiting changed.
        let late = Job { late: (1, 900), ..slower(version, 100) };
        assert_eq!(compared(&a, &late).answer.state, State::Same);
    }
}

/// 10.95 and 11.05 us are 10 and 11.
#[test]
fn a_microsecond_is_no_difference() {
    let of = |us| Job { transfer_us: us, ..Job::new("v4.2") };
    let found = compared(&of(10), &of(11));
    let [row] = &found.rows[..] else { panic!("{found:#?}") };
    assert_eq!(row.verdict, Verdict::Unknown);
    assert!(row.reason.as_ref().unwrap().contains("whole microseconds"), "{row:?}");
    let [low, high] = row.change_interval.unwrap();
    assert!(low < 0.05 && high > 0.15, "{row:?}");
    assert_eq!(compared(&of(10), &of(13)).rows[0].verdict, Verdict::Slower);
}

#[test]
fn missing_ranks_trees_and_few_collectives_are_unknown() {
    let dir = tempfile::tempdir().unwrap();
    Job::new("v4.2").write(dir.path());
    std::fs::remove_file(dir.path().join("n3-pid103.log")).unwrap();
    let found = find(&[dir.path().to_owned()]).unwrap();
    let part = inspector::read("part".into(), &found).unwrap().run;
    assert_eq!((part.series.len(), part.unrecorded, part.gpus), (0, 1, 4));
    assert!(part.notes.iter().any(|note| note.contains("no file of 3")), "{:?}", part.notes);
    let tree = Job { algorithm: "TREE", ..slower("v4.2", 100) };
    let found = compared(&tree, &Job { algorithm: "TREE", ..slower("v4.2", 200) });
    assert!(found.rows[0].a_is_least && found.rows[0].verdict == Verdict::Unknown);
    let few = |factor| Job { collectives: 5, ..slower("v4.2", factor) };
    assert_eq!(compared(&few(100), &few(200)).rows[0].verdict, Verdict::Unknown);
}

/// A file that was appended to itself has each number twice.
#[test]
fn repeated_numbers_are_not_joined() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::new("v4.2");
    job.write(dir.path());
    let file = job.file(1);
    std::fs::write(dir.path().join("n1-pid101.log"), file.clone() + &file).unwrap();
    let found = find(&[dir.path().to_owned()]).unwrap();
    let run = inspector::read("twice".into(), &found).unwrap().run;
    assert!(run.series.is_empty(), "{run:?}");
}

#[test]
fn its_saved_report_has_the_same_resolution() {
    let dir = tempfile::tempdir().unwrap();
    Job::new("v4.2").write(dir.path());
    let found = find(&[dir.path().to_owned()]).unwrap();
    let (report, _) = ncclscope_report::inspector::read(&found).unwrap();
    let run = saved::of_report("saved".into(), &report).unwrap();
    assert_eq!((run.resolution_ns, run.series.len()), (1e3, 1));
}
