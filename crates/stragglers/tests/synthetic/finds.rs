// SPDX-License-Identifier: Apache-2.0
//! A planted slow worker, stage or replica is found, whatever the clocks; a healthy job has no
//! findings.

use crate::pipeline::{Shape, play};
use ncclscope_findings::SlowPart;
use ncclscope_findings::{Confidence, Doubt, FindingClass};
use ncclscope_stragglers::input::table::{Operation, job};
use ncclscope_stragglers::model::LayoutPosition;
use ncclscope_stragglers::model::LinkTraffic;
use ncclscope_stragglers::time_blocks::TimeBlocks;
use ncclscope_stragglers::{Limits, Pace, SlowReport, analyze};
use proptest::prelude::*;

/// Reproducible noise from -1 to 1 for an operation's number.
fn noise(seed: u64, cell: LayoutPosition, step: u64, number: u64) -> f64 {
    let mut x = seed ^ (u64::from(cell.dp_rank) << 48) ^ (u64::from(cell.stage) << 40);
    x ^= (step << 20) ^ number;
    for _ in 0..3 {
        x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
    }
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

const STEPS: i64 = 16;

/// A job's rows: each pass takes 100 or 200 ms, give or take 3 %, times `factor`.
fn rows(shape: Shape, seed: u64, factor: &dyn Fn(LayoutPosition) -> f64) -> Vec<Operation> {
    let mut all = Vec::new();
    for step in 0..STEPS {
        let time = |cell: LayoutPosition, i: u32, is_forward: bool| {
            let number = u64::from(i) * 2 + u64::from(is_forward);
            let jitter = 1.0 + 0.03 * noise(seed, cell, step.unsigned_abs(), number);
            factor(cell) * jitter * if is_forward { 0.1 } else { 0.2 }
        };
        all.extend(play(shape, step, &time).0);
    }
    all
}

fn with_offsets(mut rows: Vec<Operation>, seed: u64) -> Vec<Operation> {
    for row in &mut rows {
        row.start += 3.0 * noise(seed, row.cell, 77, 77);
    }
    rows
}

fn found(rows: &[Operation]) -> SlowReport {
    analyze(&job(rows), &Limits::default())
}

fn names(report: &SlowReport) -> Vec<(FindingClass, SlowPart)> {
    report.findings.iter().map(|f| (f.class, f.root.unwrap_or_default())).collect()
}

fn of(cell: LayoutPosition) -> SlowPart {
    SlowPart { rank: None, dp_rank: Some(cell.dp_rank), stage: Some(cell.stage) }
}

const SHAPES: [Shape; 5] = [
    Shape { dp: 4, pp: 4, microbatches: 8 },
    Shape { dp: 2, pp: 8, microbatches: 16 },
    Shape { dp: 8, pp: 1, microbatches: 4 },
    Shape { dp: 1, pp: 4, microbatches: 4 },
    Shape { dp: 2, pp: 2, microbatches: 2 },
];

#[test]
fn healthy_jobs_are_left_alone() {
    for shape in SHAPES {
        for seed in 0..2 {
            let report = found(&with_offsets(rows(shape, seed, &|_| 1.0), seed));
            assert_eq!(report.findings, [], "{shape:?}");
            assert!(report.clock.max_residual_ns < 10_000, "{:?}", report.clock);
        }
    }
}

#[test]
fn a_slow_worker_of_any_pipeline_is_named() {
    let (mut right, mut all) = (0, 0);
    for shape in SHAPES {
        for slow in shape.cells() {
            let report = found(&rows(shape, 1, &|cell| if cell == slow { 1.6 } else { 1.0 }));
            assert_eq!(
                names(&report),
                [(FindingClass::SlowRank, of(slow))],
                "{shape:?} {slow:?}: {report:#?}"
            );
            right +=
                report.steps.iter().filter(|step| report.root_of(step) == Some(of(slow))).count();
            all += report.steps.len();
        }
    }
    // Not all steps: in a pipeline that mostly fills and drains, the neighbours cost about as much.
    assert!(right * 100 >= all * 95, "{right} of {all} steps");
}

/// Of 16 ranks half are slow: what healthy ranks may differ by cannot be estimated from them.
#[test]
fn where_half_of_all_ranks_are_slow_that_is_said() {
    let shape = Shape { dp: 16, pp: 1, microbatches: 4 };
    let of = |factor: f64| {
        found(&rows(shape, 1, &|cell| if cell.dp_rank % 2 == 0 { factor } else { 1.0 }))
    };
    let report = of(1.3);
    let told = report.quiet.iter().any(|told| told.starts_with("whether ranks 0, 2, 4"));
    assert!(!report.findings.is_empty() || told, "{:?}", report.quiet);
    assert_eq!(of(1.0).quiet, Vec::<String>::new());
}

/// A connection is slower after a pause, so a late rank has slow links.
#[test]
fn a_link_out_of_a_late_worker_is_a_note_not_a_finding() {
    let shape = Shape { dp: 8, pp: 1, microbatches: 4 };
    for factor in [1.0, 1.8] {
        let mut job = job(&rows(shape, 5, &|cell| if cell.dp_rank == 3 { factor } else { 1.0 }));
        job.edges = (0..8).map(|src| ring_edge(src, if src == 3 { 3.0 } else { 1.0 })).collect();
        let report = analyze(&job, &Limits::default());
        let classes: Vec<FindingClass> = report.findings.iter().map(|f| f.class).collect();
        let is_noted = report.notes.iter().any(|note| note.contains("sends after pauses"));
        let expected = if factor > 1.0 {
            (vec![FindingClass::SlowRank], true)
        } else {
            (vec![FindingClass::SlowLink], false)
        };
        assert_eq!((classes, is_noted), expected, "{report:#?}");
    }
}

/// A link that costs more than the rank that sends over it is no effect of it; it may be the cause.
#[test]
fn a_link_that_costs_more_than_a_late_worker_is_told_first() {
    let shape = Shape { dp: 8, pp: 1, microbatches: 4 };
    let mut job = job(&rows(shape, 5, &|cell| if cell.dp_rank == 3 { 1.2 } else { 1.0 }));
    job.edges = (0..8).map(|src| ring_edge(src, if src == 3 { 36.0 } else { 1.0 })).collect();
    let report = analyze(&job, &Limits::default());
    let found: Vec<_> = report.findings.iter().map(|of| (of.class, of.confidence())).collect();
    let link = (FindingClass::SlowLink, Confidence::Confirmed);
    assert_eq!(found, [link, (FindingClass::SlowRank, Confidence::Suspect)], "{report:#?}");
    assert_eq!(report.findings[1].doubts, [Doubt::SlowLinkThere([3, 4])]);
    let why = "the slow link from rank 3 to rank 4 may be why";
    assert_eq!(report.findings[1].alternatives(), [why]);
}

/// The traffic of a worker to the next of eight, at `factor` times the usual cost.
fn ring_edge(src: usize, factor: f64) -> LinkTraffic {
    LinkTraffic {
        comm: "dp".into(),
        src,
        dst: (src + 1) % 8,
        channel: 0,
        transfers: 1_000,
        bytes: 1 << 30,
        wire_ns: 1e9 * factor,
        pace: Pace::default(),
        blocks: TimeBlocks::default(),
        sample: Vec::new(),
        is_first: false,
    }
}

#[test]
fn a_slow_stage_is_named_as_one() {
    let shape = Shape { dp: 4, pp: 4, microbatches: 8 };
    for stage in 0..4 {
        let report = found(&rows(shape, 3, &|cell| if cell.stage == stage { 1.5 } else { 1.0 }));
        let all = names(&report);
        let root = SlowPart { stage: Some(stage), ..SlowPart::default() };
        assert_eq!(all, [(FindingClass::SlowRank, root)], "{report:#?}");
        assert_eq!(report.findings[0].root_ranks.len(), 4);
    }
}

#[test]
fn two_slow_workers_are_both_named() {
    let shape = Shape { dp: 8, pp: 1, microbatches: 4 };
    let report = found(&rows(shape, 5, &|cell| if cell.dp_rank >= 6 { 1.8 } else { 1.0 }));
    let mut ranks: Vec<u32> =
        report.findings.iter().flat_map(|f| f.root_ranks.iter().copied()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [6, 7], "{report:#?}");
}

/// Sequences of different lengths: the replica with the most work changes from step to step. The
/// truth is the time that a step loses if only one replica, or one stage, is as slow as it was.
#[test]
fn an_imbalance_of_data_is_traced_to_its_replica_in_each_step() {
    let shape = Shape { dp: 4, pp: 4, microbatches: 8 };
    let (mut right_replica, mut right_stage, mut all) = (0, 0, 0);
    for step in 0..60 {
        // All stages of a replica have the same sequences; the last stage also computes the loss.
        let scale = |cell: LayoutPosition, i: u32| {
            let data = LayoutPosition { stage: 0, ..cell };
            let length = 1.0 + 0.6 * noise(9, data, step, u64::from(i));
            length * if cell.stage == 3 { 2.0 } else { 1.0 }
        };
        let base = |is_forward| if is_forward { 0.1 } else { 0.2 };
        let real = |cell: LayoutPosition, i: u32, f: bool| base(f) * scale(cell, i);
        let only = |is_in: &dyn Fn(LayoutPosition) -> bool| {
            let time =
                |c: LayoutPosition, i: u32, f: bool| if is_in(c) { real(c, i, f) } else { base(f) };
            play(shape, 0, &time).1
        };
        let most = |cost: &dyn Fn(u32) -> f64| {
            (0..4).max_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap()
        };
        let replica = most(&|dp| only(&|cell| cell.dp_rank == dp));
        let stage = most(&|stage| only(&|cell| cell.stage == stage));
        let rows = play(shape, 0, &real).0;
        let report = found(&rows);
        let root = report.root_of(&report.steps[0]).unwrap();
        all += 1;
        right_replica += i32::from(root.dp_rank == Some(replica));
        right_stage += i32::from(root.stage == Some(stage));
    }
    assert!(right_stage * 100 >= all * 95, "stage: {right_stage} of {all}");
    assert!(right_replica * 100 >= all * 90, "replica: {right_replica} of {all}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn neither_clocks_nor_the_order_of_rows_matter(seed in 0u64..1000, at in 0usize..16) {
        let shape = SHAPES[0];
        let slow = shape.cells().nth(at).unwrap();
        let rows = rows(shape, seed, &|cell| if cell == slow { 1.4 } else { 1.0 });
        let plain = found(&rows);
        prop_assert_eq!(names(&plain), [(FindingClass::SlowRank, of(slow))]);
        let mut mixed = with_offsets(rows, seed);
        // A random order: by a hash of each row.
        mixed.sort_by_key(|row| {
            (noise(seed, row.cell, row.step.unsigned_abs(), row.number.unsigned_abs()).to_bits(),
             row.name.len())
        });
        let report = found(&mixed);
        prop_assert_eq!(names(&report), names(&plain));
        prop_assert!(report.clock.max_residual_ns < 10_000);
        for (a, b) in report.steps.iter().zip(&plain.steps) {
            prop_assert_eq!(report.root_of(a), plain.root_of(b));
            prop_assert!((a.share - b.share).abs() < 0.01, "{} {}", a.share, b.share);
        }
    }
}
