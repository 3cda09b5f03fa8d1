// SPDX-License-Identifier: Apache-2.0
//! Tables of vectors that are truncated or damaged: a warning names each, and nothing is confirmed.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Input, Options, diagnose, text};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_trace::vectors::{Vector, table};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Eight ranks in two communicators of four; in each, one has not called what the others wait for.
fn job() -> Vec<u8> {
    let vector = |rank: u32| {
        let is_late = rank % 4 == 1;
        let enqueued = if is_late { 4 } else { 5 };
        Vector {
            comm: 100 + u64::from(rank / 4),
            process: rank,
            rank: rank % 4,
            nranks: 4,
            api: enqueued,
            enqueued,
            started: enqueued,
            done: 4,
            age_ms: if is_late { 0 } else { 60_000 },
            job: 7,
            origin: u64::from(rank) + 1,
            ..Vector::default()
        }
    };
    let all: Vec<Vector> = (0..8).map(vector).collect();
    table(&all, &BTreeMap::from([(7, "4711.0".to_owned())]))
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn open(path: &Path) -> Result<Input, String> {
    ncclscope_diagnose::open(&[path.to_owned()], &InputOptions::default())
}

/// Classes, confidences and ranks of the findings. Asserts that `warning` is the only warning.
fn found(input: &Input, warning: Option<&str>) -> Vec<(FindingClass, Confidence, Vec<u32>)> {
    let warnings: Vec<&str> = warning.into_iter().collect();
    assert_eq!(input.warnings.len(), warnings.len(), "{:?}", input.warnings);
    for (line, expected) in input.warnings.iter().zip(warnings) {
        assert!(line.ends_with(expected), "{line}");
        assert!(input.job.notes.contains(line), "{:?}", input.job.notes);
    }
    let verdicts = diagnose(&input.job, &Options::default()).findings;
    verdicts.into_iter().map(|it| (it.class, it.confidence(), it.root_ranks)).collect()
}

#[test]
fn what_a_table_lacks_is_named_and_leaves_suspects() {
    let folder = tempfile::tempdir().unwrap();
    let whole = job();
    let suspects = |ranks: &[u32]| {
        let suspect = |rank: &u32| (FindingClass::HostStuck, Confidence::Suspect, vec![*rank]);
        ranks.iter().map(suspect).collect::<Vec<_>>()
    };
    let input = open(&write(folder.path(), "whole.vectors", &whole)).unwrap();
    let all = found(&input, None);
    assert!(all.iter().all(|it| it.1 == Confidence::Confirmed) && !all.is_empty(), "{all:?}");
    let half = &whole[..64 + 88 * 4];
    let input = open(&write(folder.path(), "half.vectors", half)).unwrap();
    let what = "half.vectors is damaged: of 8 vectors it has 4; of 1 names of jobs it has 0";
    assert_eq!(found(&input, Some(what)), suspects(&[1]));
    let mut header = whole.clone();
    header[23] = 0x10;
    let input = open(&write(folder.path(), "header.vectors", &header)).unwrap();
    let what = "its header has an impossible number of vectors; of 1 names of jobs it has 0";
    let all = found(&input, Some(what));
    assert!(all.iter().all(|it| it.1 == Confidence::Suspect) && !all.is_empty(), "{all:?}");
}

/// Impossible counts are not shown, and nothing that depends on them is confirmed.
#[test]
fn what_contradicts_itself_is_left_out_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut forged = job();
    // Rank 1 has completed more than it has enqueued.
    let done = 64 + 88 + 32;
    forged[done..done + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let input = open(&write(folder.path(), "forged.vectors", &forged)).unwrap();
    let all = found(&input, Some("forged.vectors is damaged: a vector contradicts itself"));
    assert!(all.iter().all(|it| it.1 == Confidence::Suspect) && !all.is_empty(), "{all:?}");
    let text = text::render(&diagnose(&input.job, &Options::default()), None, None);
    assert!(!text.contains("4294967295") && text.contains("No input from rank 1\n"), "{text}");
}

/// The agent of a node was queried twice.
#[test]
fn a_process_that_is_there_twice_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a.vectors", "b.vectors"].map(|name| write(folder.path(), name, &job()));
    let once = diagnose(&open(&paths[0]).unwrap().job, &Options::default());
    let twice = ncclscope_diagnose::open(&paths, &InputOptions::default()).unwrap();
    assert!(twice.job.notes[0].starts_with("8 vectors are left out: "), "{:?}", twice.job.notes);
    let twice = diagnose(&twice.job, &Options::default());
    assert_eq!(once.findings, twice.findings);
}

#[test]
fn a_table_of_which_nothing_is_left_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let whole = job();
    for (cut, what) in [(100, "is damaged: of 8 vectors it has 0"), (40, "cannot read ")] {
        let error = open(&write(folder.path(), "cut.vectors", &whole[..cut])).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_damaged_table_of_a_directory_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut damaged = job();
    write(folder.path(), "a.vectors", &damaged);
    damaged[2] ^= 1;
    write(folder.path(), "b.vectors", &damaged);
    let input = open(folder.path()).unwrap();
    let all = found(&input, Some("b.vectors: it is no table of vectors, or damaged"));
    assert!(all.iter().all(|it| it.1 == Confidence::Suspect) && !all.is_empty(), "{all:?}");
    std::fs::remove_file(folder.path().join("a.vectors")).unwrap();
    assert!(open(folder.path()).unwrap_err().contains("b.vectors: it is no table"));
}
