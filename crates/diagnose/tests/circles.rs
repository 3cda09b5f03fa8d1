// SPDX-License-Identifier: Apache-2.0
//! Ranks that wait for each other in a circle, because they use communicators in two orders.

mod common;

use common::{comm, job};
use ncclscope_diagnose::job::Job;
use ncclscope_diagnose::{Options, diagnose};
use ncclscope_findings::{Finding, FindingClass};

#[track_caller]
fn expect(job: &Job, roots: &[u32]) -> Finding {
    let found = diagnose(job, &Options::default());
    assert_eq!(found.findings.len(), 1, "{found:#?}");
    let verdict = found.findings[0].clone();
    let class = FindingClass::Deadlock;
    assert_eq!((verdict.class, &verdict.root_ranks[..]), (class, roots), "{verdict:#?}");
    assert!(!verdict.evidence.is_empty());
    verdict
}

#[test]
fn deadlock_of_two_orders() {
    // Each rank runs the kernel of one communicator, and has the other communicator's kernel queued
    // behind it.
    let mut job = job(2);
    job.comms.push(comm("a", &[(0, 5, Some(5), 4), (1, 5, Some(4), 4)]));
    job.comms.push(comm("b", &[(0, 9, Some(8), 8), (1, 9, Some(9), 8)]));
    let verdict = expect(&job, &[0, 1]);
    assert!(verdict.evidence.len() >= 2);
    // Each rank was blocked before it issued the operation of the other communicator.
    job.comms[0] = comm("a", &[(0, 5, None, 4), (1, 4, None, 4)]);
    job.comms[1] = comm("b", &[(0, 8, None, 8), (1, 9, None, 8)]);
    expect(&job, &[0, 1]);
}

/// The smaller part of the ranks used the communicators in another order; of two orders with as
/// many ranks each none is that of most.
#[test]
fn those_that_used_another_order_than_most_are_named() {
    let of = |ranks: u32, odd: &[u32], has_kernels: bool| {
        let mut job = job(ranks);
        // What a rank waits in, and what it did not come to or has queued behind that.
        let member = |rank: u32, is_in: bool, at: u64| {
            let queued = if has_kernels { at } else { at - 1 };
            let started = has_kernels.then_some(if is_in { at } else { at - 1 });
            (rank, if is_in { at } else { queued }, started, at - 1)
        };
        let members = |waits: bool, at: u64| -> Vec<_> {
            (0..ranks).map(|rank| member(rank, odd.contains(&rank) == waits, at)).collect()
        };
        job.comms.push(comm("a", &members(false, 5)));
        job.comms.push(comm("b", &members(true, 9)));
        job
    };
    for has_kernels in [false, true] {
        let verdict = expect(&of(3, &[1], has_kernels), &[1]);
        let title = "rank 1 uses two communicators in another order than ranks 0, 2";
        assert_eq!((&*verdict.title(), verdict.victims), (title, 2));
        let lines: Vec<&str> = verdict.evidence.iter().map(|line| &*line.text).collect();
        let both = [lines[0].starts_with("rank 1 waits"), lines[1].starts_with("ranks 0, 2 wait ")];
        assert!(has_kernels || lines.len() == 2 && both == [true, true], "{lines:#?}");
        expect(&of(5, &[0, 3], has_kernels), &[0, 3]);
        expect(&of(4, &[0, 3], has_kernels), &[0, 1, 2, 3]);
    }
    // Rank 2 is no member of the other communicator: of the other two, none is in the right.
    let mut circle = job(3);
    circle.comms.push(comm("a", &[(0, 5, None, 4), (2, 5, None, 4), (1, 4, None, 4)]));
    circle.comms.push(comm("b", &[(1, 9, None, 8), (0, 8, None, 8)]));
    expect(&circle, &[0, 1]);
}
