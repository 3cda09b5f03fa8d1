// SPDX-License-Identifier: Apache-2.0
//! Jobs in which some ranks were not recorded, or not for the whole time.

use ncclscope_findings::Confidence;
use ncclscope_stragglers::model::{
    Collective, CollectiveClass, EndSync, Job, P2pBatch, Part, Worker,
};
use ncclscope_stragglers::{Limits, SlowReport, analyze};

const MS: f64 = 1e6;
const STEPS: u32 = 40;

/// 40 steps of 100 ms of four ranks on four hosts. In each step, `slow` works 30 ms longer than the
/// others. Of rank 3 only the first steps are recorded.
fn job(slow: usize, steps_of_3: u32) -> Job {
    let work = |worker| if worker == slow { 70.0 } else { 40.0 };
    job_of([0, 1, 2, 3].map(work), steps_of_3)
}

/// The same with ranks that work for so many ms in each step; then ranks 0 and 1, and ranks 2 and
/// 3, have a collective, and finally all four.
fn job_of(work: [f64; 4], steps_of_3: u32) -> Job {
    let class =
        |comm: &str, members| CollectiveClass { comm: comm.into(), members, ..Default::default() };
    let mut job = Job { is_kernel_timed: true, shapes: vec![String::new()], ..Job::default() };
    job.workers = (0..4).map(|rank| Worker::new(rank, format!("node{rank}"))).collect();
    job.classes = vec![class("low", 2), class("high", 2), class("all", 4)];
    for step in 0..STEPS {
        let begin = f64::from(step) * 100.0 * MS;
        let mut add = |class, members: &[(usize, f64)], end: f64| {
            let is_recorded = |worker| worker != 3 || step < steps_of_3;
            let parts = members.iter().filter(|of| is_recorded(of.0));
            let part = |&(worker, start)| Part { worker, start: begin + start, end: begin + end };
            let parts: Vec<Part> = parts.map(part).collect();
            let (ends, step) = (EndSync::Together, Some(i64::from(step)));
            job.collectives.push(Collective { class, shape: 0, step, ends, has_ends: true, parts });
        };
        let at = |worker: usize| work[worker] * MS;
        let low = at(0).max(at(1)) + MS;
        let high = at(2).max(at(3)) + MS;
        add(0, &[(0, at(0)), (1, at(1))], low);
        add(1, &[(2, at(2)), (3, at(3))], high);
        add(2, &[(0, low), (1, low), (2, high), (3, high)], low.max(high) + MS);
    }
    job
}

fn found(report: &SlowReport) -> Vec<(Vec<u32>, Confidence)> {
    report.findings.iter().map(|f| (f.root_ranks.clone(), f.confidence())).collect()
}

#[test]
fn a_rank_that_waits_for_one_without_a_recording_is_not_slow() {
    // Rank 2 waits for rank 3, and ranks 0 and 1 wait for both.
    for steps_of_3 in [0, 5, 20] {
        let mut job = job(3, steps_of_3);
        job.unrecorded = if steps_of_3 == 0 { vec![(3, 3)] } else { vec![] };
        let report = analyze(&job, &Limits::default());
        // A few recorded steps show that rank 3 is slow.
        let expected =
            if steps_of_3 == 0 { vec![] } else { vec![(vec![3], Confidence::Confirmed)] };
        assert_eq!(found(&report), expected, "{steps_of_3}: {:#?}", report.findings);
        let why = if steps_of_3 == 0 {
            "no readable recording of rank 3"
        } else {
            "recordings of rank 3 end"
        };
        assert!(report.notes.iter().any(|note| note.contains(why)), "{:?}", report.notes);
    }
}

#[test]
fn a_slow_rank_is_a_suspicion_where_members_were_not_recorded() {
    let whole = analyze(&job(1, STEPS), &Limits::default());
    assert_eq!(found(&whole), [(vec![1], Confidence::Confirmed)]);
    assert_eq!(whole.notes, [""; 0]);
    let report = analyze(&job(1, 0), &Limits::default());
    assert_eq!(found(&report), [(vec![1], Confidence::Suspect)]);
    let doubts = report.findings[0].alternatives();
    assert!(doubts.iter().any(|text| text.contains("were not recorded")), "{doubts:?}");
}

/// Rank 2 waits for sends that were not recorded, which looks like work, and others wait for it,
/// but less than for rank 1.
#[test]
fn a_rank_that_others_hardly_wait_for_is_no_suspect() {
    let mut job = job_of([40.0, 70.0, 60.0, 40.0], STEPS);
    let batch = |step: u32, worker: usize| {
        let start = f64::from(step) * 100.0 * MS;
        P2pBatch {
            class: None,
            part: Part { worker, start, end: start + MS },
            released: (start + MS, start + MS),
            step: Some(i64::from(step)),
            partners: vec![],
            is_lacking: false,
            has_end: true,
        }
    };
    job.batches = (0..STEPS).flat_map(|step| (0..4).map(move |of| batch(step, of))).collect();
    assert_eq!(found(&analyze(&job, &Limits::default())), [(vec![1], Confidence::Suspect)]);
}
