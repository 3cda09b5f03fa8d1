// SPDX-License-Identifier: Apache-2.0
//! Two real jobs of 16 ranks that hung, in PyTorch's Flight Recorder dumps: ranks 9 and 14 lost
//! their GPU, or their host was stuck. The dumps are in `../shared/data`, with the true causes.

#[path = "common/others.rs"]
mod others;

use ncclscope_diagnose::input::{self, InputOptions};
use ncclscope_diagnose::{Diagnosis, Job, Options, diagnose, open};
use ncclscope_findings::{Confidence, FindingClass};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const CASES: [(&str, FindingClass); 2] =
    [("gpu_error_2nd", FindingClass::GpuDead), ("lock_gil_1st", FindingClass::HostStuck)];
const FAULTY: [u32; 2] = [9, 14];

/// The dumps of a case; prints a line if they are not there.
fn dumps(case: &str, without: &[u32]) -> Option<Vec<PathBuf>> {
    let directory = others::find(&format!("flight-recorder/{case}"))?;
    let left = (0..16).filter(|rank| !without.contains(rank));
    Some(left.map(|rank| directory.join(format!("_dump_{rank}"))).collect())
}

fn job(case: &str, without: &[u32]) -> Option<Job> {
    let input = open(&dumps(case, without)?, &InputOptions::default()).unwrap();
    assert_eq!(input.warnings, [""; 0]);
    Some(input.job)
}

fn run(case: &str, without: &[u32]) -> Option<Diagnosis> {
    Some(diagnose(&job(case, without)?, &Options::default()))
}

fn roots(diagnosis: &Diagnosis, confidence: Option<Confidence>) -> Vec<u32> {
    let wanted =
        diagnosis.findings.iter().filter(|v| confidence.is_none_or(|c| v.confidence() == c));
    let ranks: BTreeSet<u32> = wanted.flat_map(|v| v.root_ranks.iter().copied()).collect();
    ranks.into_iter().collect()
}

#[test]
fn the_faulty_ranks_and_no_others_with_their_class() {
    for (case, class) in CASES {
        let Some(found) = run(case, &[]) else { return };
        assert_eq!(found.findings.len(), 1, "{case}: {found:#?}");
        let verdict = &found.findings[0];
        assert_eq!((verdict.class, &verdict.root_ranks[..]), (class, &FAULTY[..]), "{case}");
        assert_eq!(verdict.confidence(), Confidence::Confirmed);
        assert!(verdict.victims >= 6 && !verdict.evidence.is_empty(), "{verdict:#?}");
        assert!(found.silent_ranks.is_empty());
        // Each waiting rank is accounted for: as a root, as a victim, or in the note.
        let roots = if class == FindingClass::GpuDead { 2 } else { 0 };
        let more = found.waiting_ranks - verdict.victims - roots;
        let note = format!("{more} more ranks wait, and the input does not show");
        assert!(found.notes.iter().any(|line| line.starts_with(&note)), "{:#?}", found.notes);
    }
}

#[test]
fn also_if_they_left_no_dump() {
    for (case, class) in CASES {
        for silent in [&FAULTY[..], &FAULTY[..1], &FAULTY[1..]] {
            let Some(found) = run(case, silent) else { return };
            assert_eq!(roots(&found, None), FAULTY, "{case} without {silent:?}: {found:#?}");
            assert_eq!(roots(&found, Some(Confidence::Suspect)), silent);
            assert_eq!(found.silent_ranks, silent);
            for verdict in &found.findings {
                let is_silent = verdict.confidence() == Confidence::Suspect;
                assert_eq!(
                    verdict.class,
                    if is_silent { FindingClass::NotRecorded } else { class }
                );
            }
        }
    }
}

/// With any one rank missing, confirmed ranks are at fault, and few ranks are wrongly suspected.
#[test]
fn one_rank_without_a_dump_accuses_no_healthy_one_that_is_seen() {
    for (case, _) in CASES {
        for silent in 0..16 {
            let Some(found) = run(case, &[silent]) else { return };
            for rank in roots(&found, Some(Confidence::Confirmed)) {
                assert!(FAULTY.contains(&rank), "{case} without {silent}: {found:#?}");
            }
            let all = roots(&found, None);
            assert!(FAULTY.iter().all(|rank| all.contains(rank)), "{case} without {silent}");
            assert!(all.iter().all(|r| FAULTY.contains(r) || *r == silent));
        }
    }
}

#[test]
fn the_order_of_members_and_communicators_does_not_matter() {
    for (case, _) in CASES {
        let Some(mut job) = job(case, &[]) else { return };
        let expected = roots(&diagnose(&job, &Options::default()), None);
        job.comms.reverse();
        assert_eq!(roots(&diagnose(&job, &Options::default()), None), expected);
    }
}

#[test]
fn json_dumps_say_the_same() {
    for (case, class) in CASES {
        let Some(paths) = dumps(case, &[]) else { return };
        let directory = tempfile::tempdir().unwrap();
        for (rank, path) in paths.iter().enumerate() {
            let dump = input::pickle::read(&std::fs::read(path).unwrap()).unwrap();
            let to = directory.path().join(format!("nccl_trace_rank_{rank}"));
            std::fs::write(to, dump.to_string()).unwrap();
        }
        let input = open(&[directory.path().to_owned()], &InputOptions::default()).unwrap();
        let found = diagnose(&input.job, &Options::default());
        assert_eq!(found.findings[0].class, class);
        assert_eq!(roots(&found, None), FAULTY);
    }
}

#[test]
fn a_file_of_no_known_kind_gets_one_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path| open(&[path.to_owned()], &InputOptions::default()).unwrap_err();
    assert!(open(directory.path()).contains("nothing to diagnose"));
    let evil = directory.path().join("_dump_0");
    std::fs::write(&evil, b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.").unwrap();
    assert!(open(&evil).contains("run code"));
    std::fs::write(&evil, b"hello").unwrap();
    assert!(open(&evil).contains("is not a recording"));
    assert!(open(&directory.path().join("missing")).contains("cannot read"));
}

/// A profile beside a dump is not read: its first bytes look like those of a dump, but its keys do
/// not.
#[test]
fn of_json_files_only_dumps_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let open = |path: &Path| open(&[path.to_owned()], &InputOptions::default());
    let dump = r#"{"comm_lib_version": "2.28", "entries": [], "version": "2.9", "pg_config": {}}"#;
    std::fs::write(path("dump_0.json"), dump).unwrap();
    // Truncated: reading it would give a warning.
    std::fs::write(path("trace.json"), r#"{"schemaVersion": 1, "traceEvents": [{"a": 1"#).unwrap();
    std::fs::write(path("report.json"), r#"{"schema": "x", "inner": {"entries": []"#).unwrap();
    assert_eq!(open(directory.path()).unwrap().warnings, [""; 0]);
    assert!(open(&path("trace.json")).unwrap_err().contains("is not a recording"));
    std::fs::write(path("dump_1.json"), &dump[..60]).unwrap();
    let warnings = open(directory.path()).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("not valid JSON"), "{warnings:?}");
    // A hole of 300 MiB follows.
    std::fs::File::options()
        .write(true)
        .open(path("dump_1.json"))
        .unwrap()
        .set_len(300 << 20)
        .unwrap();
    let warnings = open(directory.path()).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("larger than 256 MiB"), "{warnings:?}");
}
