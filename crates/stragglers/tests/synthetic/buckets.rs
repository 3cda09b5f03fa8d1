// SPDX-License-Identifier: Apache-2.0
//! Data parallel training whose gradients are in buckets of one size: all collectives of a step are
//! of one class.

use ncclscope_findings::FindingClass;
use ncclscope_stragglers::model::{Collective, CollectiveClass, EndSync, Job, Part, Worker};
use ncclscope_stragglers::{Limits, analyze};

const MS: f64 = 1e6;
const STEPS: u32 = 40;
const BUCKETS: u32 = 4;

/// Steps of three ranks of a host, of which rank 1 works 60 ms longer before the first bucket.
fn job(steps: u32) -> Job {
    let class = CollectiveClass { comm: "dp".into(), members: 3, ..Default::default() };
    let mut job = Job { is_kernel_timed: true, shapes: vec![String::new()], ..Job::default() };
    job.workers = (0..3).map(|rank| Worker::new(rank, "node")).collect();
    job.classes = vec![class];
    let mut now = 0.0;
    for _ in 0..steps {
        for bucket in 0..BUCKETS {
            let work = |worker| match (bucket, worker) {
                (0, 1) => 90.0 * MS,
                (0, _) => 30.0 * MS,
                _ => MS,
            };
            let starts: Vec<f64> = (0..3).map(|worker| now + work(worker)).collect();
            let end = starts.iter().copied().fold(0.0, f64::max) + 4.0 * MS;
            // It ends some microseconds apart.
            let apart = |worker: usize| MS / 1e3 * [0.0, 5.0, 2.0][worker];
            let part = |(worker, &start)| Part { worker, start, end: end + apart(worker) };
            let parts = starts.iter().enumerate().map(part).collect();
            let ends = EndSync::Together;
            job.collectives.push(Collective {
                class: 0,
                shape: 0,
                step: None,
                ends,
                has_ends: true,
                parts,
            });
            now = end;
        }
    }
    job
}

/// Regression test of a case with two ranks that trained on a GPU: one was late in every fourth
/// collective, and a fourth of a step was taken for a step.
#[test]
fn a_rank_that_is_late_for_the_first_bucket_is_slow_in_each_step() {
    let report = analyze(&job(STEPS), &Limits::default());
    let found: Vec<_> = report.findings.iter().map(|f| (f.class, f.root_ranks.clone())).collect();
    assert_eq!(found, [(FindingClass::SlowRank, vec![1])], "{report:#?}");
    assert_eq!(report.steps.len(), STEPS as usize);
}

/// A step of the job takes 109 ms, however many steps are combined.
#[test]
fn a_step_of_a_long_run_takes_as_long_as_one_of_a_short_run() {
    for (steps, rows) in [(STEPS, 40), (250, 125), (610, 153)] {
        let report = analyze(&job(steps), &Limits::default());
        assert_eq!((report.steps.len(), report.step_count()), (rows, steps as usize));
        let mean = report.mean_step_ns().unwrap() / MS;
        assert!((mean - 109.0).abs() < 1.0, "{steps}: {mean}");
        let [first, second] = &report.steps[..2] else { panic!("{report:#?}") };
        assert_eq!(second.step, i64::try_from(first.step_count).unwrap());
    }
}
