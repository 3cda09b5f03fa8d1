// SPDX-License-Identifier: Apache-2.0
//! Finds the late rank in NCCL Inspector's files, if they say when ranks called.

#[path = "../../inspector/tests/common/job.rs"]
mod job;

use job::Job;
use ncclscope_findings::SlowPart;
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_inspector::find;
use ncclscope_stragglers::input::inspector;
use ncclscope_stragglers::model::Worker;
use ncclscope_stragglers::{Limits, SlowReport, analyze};
use std::path::Path;

fn judged(dir: &Path) -> Result<SlowReport, String> {
    let found = find(&[dir.to_owned()]).unwrap();
    let (job, _) = inspector::read(&found)?;
    Ok(analyze(&job, &Limits::default()))
}

fn verbose() -> Job {
    Job { is_verbose: true, late: (2, 3_000), ..Job::new("v4.3") }
}

#[test]
fn the_rank_that_comes_late_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    verbose().write(dir.path());
    let found = judged(dir.path()).unwrap();
    let [of] = &found.findings[..] else { panic!("{found:#?}") };
    assert_eq!((of.class, &of.root_ranks[..]), (FindingClass::SlowRank, &[2][..]));
    assert_eq!(of.confidence(), Confidence::Confirmed);
    let two = SlowPart::from(&Worker::new(2, "n2"));
    assert_eq!(found.last_arrivers.iter().filter(|last| last.last == Some(two)).count(), 64);
}

#[test]
fn a_healthy_job_has_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    Job { late: (2, 3), ..verbose() }.write(dir.path());
    let found = judged(dir.path()).unwrap();
    assert_eq!((found.findings.len(), found.collectives), (0, 64), "{found:#?}");
}

#[test]
fn durations_alone_are_refused_with_the_variable_to_set() {
    let dir = tempfile::tempdir().unwrap();
    Job::new("v4.3").write(dir.path());
    let why = judged(dir.path()).unwrap_err();
    assert!(why.contains("not when ranks called") && why.contains("DUMP_VERBOSE=1"), "{why}");
}

/// What Inspector dropped looks like own work of a rank.
#[test]
fn missing_ranks_and_dropped_collectives_weaken_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    Job { dropped: 3, ..verbose() }.write(dir.path());
    let found = judged(dir.path()).unwrap();
    assert!(found.findings.is_empty() && !found.quiet.is_empty(), "{found:#?}");
    let dir = tempfile::tempdir().unwrap();
    verbose().write(dir.path());
    std::fs::remove_file(dir.path().join("n2-pid102.log")).unwrap();
    let found = judged(dir.path()).unwrap();
    assert!(found.findings.is_empty(), "{found:#?}");
    assert!(found.notes.iter().any(|note| note.contains("no file of 2")), "{:?}", found.notes);
}

/// Two tensor-parallel groups, whose files share no communicator: 0 to 3 and 4 to 7.
#[test]
fn ranks_of_a_group_are_not_those_of_the_job() {
    let dir = tempfile::tempdir().unwrap();
    Job { late: (0, 3), ..verbose() }.write(dir.path());
    let second = Job { late: (1, 3_000), ..verbose() };
    for rank in 0..second.ranks {
        let (host, pid) = (format!("n{}", 8 + rank), 200 + rank);
        let text = second.file(rank).replace("0x1f", "0x2e");
        let text = text.replace(&format!("\"n{rank}\""), &format!("\"{host}\""));
        let text = text.replace(&format!("\"pid\":{}", 100 + rank), &format!("\"pid\":{pid}"));
        std::fs::write(dir.path().join(format!("{host}-pid{pid}.log")), text).unwrap();
    }
    let found = judged(dir.path()).unwrap();
    let roots: Vec<u32> = found.findings.iter().flat_map(|of| of.root_ranks.clone()).collect();
    assert_eq!((found.workers, &roots[..]), (8, &[5][..]), "{found:#?}");
    let note = "no communicator has all processes, so that ranks are positions: 0 is process 100 \
                on n0, 1 is process 101 on n1, ";
    let is_list = |one: &String| one.starts_with(note) && one.contains("5 is process 201 on n9");
    assert!(found.notes.iter().any(is_list), "{:?}", found.notes);
    // The rank that lacks a file may be the cause.
    std::fs::remove_file(dir.path().join("n8-pid200.log")).unwrap();
    let found = judged(dir.path()).unwrap();
    assert!(found.findings.iter().all(|of| of.confidence() == Confidence::Suspect), "{found:#?}");
}
