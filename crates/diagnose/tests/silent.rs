// SPDX-License-Identifier: Apache-2.0
//! Members of communicators without input: which rank of the job they are, if that is known.

use ncclscope_diagnose::input::vectors;
use ncclscope_diagnose::{Diagnosis, Options, diagnose};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_trace::vectors::{Table, Vector};

/// The vectors of a communicator with these job ranks; all its kernels run and do not end, or all
/// are over.
fn comm(comm: u64, ranks: &[u32], is_stuck: bool) -> impl Iterator<Item = Vector> {
    let nranks = u32::try_from(ranks.len()).unwrap();
    let vector = move |(&process, rank): (&u32, u32)| Vector {
        comm,
        process,
        rank,
        nranks,
        api: 5,
        enqueued: 5,
        started: 5,
        done: if is_stuck { 4 } else { 5 },
        age_ms: if is_stuck { 60_000 } else { 0 },
        job: 7,
        origin: u64::from(process),
        ..Vector::default()
    };
    ranks.iter().zip(0..).map(vector).collect::<Vec<_>>().into_iter()
}

/// The diagnosis of these vectors, without those of one rank.
fn without(rank: u32, all: impl Iterator<Item = Vector>) -> Diagnosis {
    let there: Vec<Vector> = all.filter(|vector| vector.process != rank).collect();
    let (table, options) = (Table { vectors: there, ..Table::default() }, Options::default());
    diagnose(&vectors::build(&table, options.hang), &options)
}

/// The first members of the communicator of ranks 0, 1 and 3 look like those of ranks 0 to 2, but
/// rank 2 has input and is not in it.
#[test]
fn a_missing_member_of_an_irregular_group_is_no_member_less() {
    let group = || comm(1, &[0, 1, 3], true);
    let found = without(3, group().chain(comm(2, &[0, 1, 2, 3], false)));
    let [verdict] = &found.findings[..] else { panic!("{found:#?}") };
    let suspect = (FindingClass::NotRecorded, Confidence::Suspect);
    assert_eq!((verdict.class, verdict.confidence()), suspect);
    assert_eq!((&verdict.root_ranks[..], &found.silent_ranks[..]), (&[3][..], &[3][..]));
    // Nothing shows how many ranks the job has.
    let found = without(3, group().chain(comm(2, &[2, 4], false)));
    let [verdict] = &found.findings[..] else { panic!("{found:#?}") };
    assert_eq!((verdict.class, verdict.confidence()), suspect);
    assert_eq!((&verdict.root_ranks[..], &found.silent_ranks[..]), (&[][..], &[][..]));
    assert!(verdict.evidence[0].text.starts_with("there is no input from an unknown rank;"));
    let said = ncclscope_diagnose::text::render(&found, None, None);
    assert!(!said.contains("rank 2") && !said.contains("rank 3"), "{said}");
}

/// Rank 2 has input in which one communicator is missing, and rank 3 has none.
#[test]
fn two_members_are_not_one_rank() {
    let is_lost = |vector: &Vector| (vector.comm, vector.process) == (1, 2);
    let group = comm(1, &[0, 1, 2, 3], true).filter(|vector| !is_lost(vector));
    let found = without(3, group.chain(comm(2, &[0, 1, 2, 3], false)));
    let [verdict] = &found.findings[..] else { panic!("{found:#?}") };
    assert_eq!((verdict.class, &verdict.root_ranks[..]), (FindingClass::NotRecorded, &[3][..]));
    assert!(
        verdict.title().starts_with("rank 3 and 1 unknown rank make other ranks wait"),
        "{}",
        verdict.title()
    );
}
