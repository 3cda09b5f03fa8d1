// SPDX-License-Identifier: Apache-2.0
//! Comparisons of jobs that are made by hand.

use ncclscope_compare::input::recorded::of_job;
use ncclscope_compare::run::{Frequency, Measure, Operation, Series, Shape};
use ncclscope_compare::schema::{Kind, Row, State, Verdict};
use ncclscope_compare::{Comparison, Limits, Run, compare};
use ncclscope_stragglers::model::{Collective, CollectiveClass, EndSync, Job, Part, Worker};

const MS: f64 = 1e6;

/// A job of two ranks with an AllReduce in each of `steps` steps of 10 ms, for which rank 1 is 1 ms
/// late.
fn job(steps: u32, is_marked: bool) -> Job {
    let class = CollectiveClass { comm: "dp".into(), func: "AllReduce".into(), ..class(2) };
    let mut job = Job {
        is_kernel_timed: true,
        workers: (0..2).map(|rank| Worker::new(rank, "node")).collect(),
        classes: vec![class],
        shapes: vec!["RING SIMPLE, 2 channels".into()],
        ..Job::default()
    };
    for step in 0..steps {
        // A step varies by up to 1 %.
        let noise = f64::from((step + 1).wrapping_mul(0x9e37_79b1) >> 24) / 256.0;
        let start = 10.0 * MS * f64::from(step) + 0.1 * MS * noise;
        let part = |(worker, late)| Part { worker, start: start + late, end: start + 4.0 * MS };
        job.collectives.push(Collective {
            class: 0,
            shape: 0,
            step: is_marked.then(|| step.into()),
            ends: EndSync::Together,
            has_ends: true,
            parts: [(0, 0.0), (1, MS)].map(part).into(),
        });
    }
    job
}

fn class(members: u32) -> CollectiveClass {
    CollectiveClass { bytes: Some(64), members, ..CollectiveClass::default() }
}

fn run(job: &Job) -> Run {
    of_job("run".into(), job)
}

fn compared(a: Run, b: Run) -> Comparison {
    compare(&[a], &[b], &Limits::default())
}

fn row(comparison: &Comparison, kind: Kind) -> &Row {
    comparison.rows.iter().find(|row| row.key.kind == kind).unwrap()
}

/// Of more than 200 steps that are not marked, several are combined.
#[test]
fn a_longer_run_without_marks_does_not_have_longer_steps() {
    let runs = [180, 390, 900].map(|steps| run(&job(steps, false)));
    let marked = run(&job(180, true));
    let found = compared(marked.clone(), marked);
    let waiting = row(&found, Kind::Waiting).a.unwrap();
    for one in &runs {
        let step = one.step_ns.unwrap();
        assert!((step / MS - 10.0).abs() < 0.1, "{step}");
        let found = compared(runs[0].clone(), one.clone());
        assert_eq!(found.answer.state, State::Same, "{found:#?}");
        for kind in [Kind::Step, Kind::Waiting, Kind::Transfer] {
            assert_eq!(row(&found, kind).verdict, Verdict::Same, "{found:#?}");
        }
        assert!((row(&found, Kind::Waiting).b.unwrap() / waiting - 1.0).abs() < 0.1, "{found:#?}");
    }
    assert_eq!(runs.map(|run| run.steps), [179, 388, 895]);
}

/// A run with steps of 10 ms, each with the same waiting, and with `per_step` operations of 1 ms
/// that vary by `spread`.
fn varying(spread: f64, per_step: f64) -> Run {
    let of = |around: f64, spread: f64| {
        let off = |block: u32| f64::from(block * 7 % 10) / 4.5 - 1.0;
        (0..10).map(|block| (block, around * (1.0 + spread * off(block)))).collect::<Vec<_>>()
    };
    let series = |values, per_step| {
        let frequency = Some(Frequency::of_each(per_step));
        Series { values, frequency, ..Series::default() }
    };
    let (role, func) = (String::from("dp"), String::from("Broadcast"));
    let waiting = Measure::Waiting { role: role.clone(), func: func.clone(), ranks: vec![0, 1] };
    let shape = Shape::default();
    let transfer =
        Measure::Transfer(Operation { role, func, bytes: Some(64), shape, ranks: vec![] });
    let mut run = Run { step_ns: Some(10.0 * MS), steps: 10, ..Run::default() };
    run.series.insert(waiting, series(of(0.1 * MS, 0.0), 1.0));
    run.series.insert(transfer, series(of(MS, spread), per_step));
    run
}

/// The median of times that vary much is the same, but a change would not have been found.
#[test]
fn runs_are_not_the_same_if_what_costs_much_could_not_be_judged() {
    let state = |spread: f64, per_step: f64| {
        let found = compared(varying(spread, per_step), varying(spread, per_step));
        let row = row(&found, Kind::Transfer);
        assert!(row.change.unwrap().abs() < 1e-9, "{row:?}");
        (found.answer.state, row.verdict, found.answer.what)
    };
    let (found, verdict, what) = state(0.4, 5.0);
    assert_eq!((found, verdict), (State::Unknown, Verdict::Unknown), "{what}");
    assert_eq!(what, "the times vary too much");
    // What takes a thousandth of a step cannot cost more.
    assert_eq!(state(0.4, 0.01).0, State::Same);
    assert_eq!(state(0.01, 5.0).0, State::Same);
}

#[test]
fn marked_steps_are_not_compared_with_derived_ones() {
    let [marked, derived] = [true, false].map(|is_marked| run(&job(60, is_marked)));
    let verdicts = |a: &[&Run], b: &[&Run]| {
        let [a, b] = [a, b].map(|side| side.iter().map(|&run| run.clone()).collect::<Vec<Run>>());
        let found = compare(&a, &b, &Limits::default());
        assert!(found.rows.iter().all(|row| row.cost.is_none()), "{found:#?}");
        let transfer = row(&found, Kind::Transfer);
        assert_eq!(transfer.verdict, Verdict::Same, "{found:#?}");
        assert_eq!(found.answer.state, State::Unknown, "{found:#?}");
        [Kind::Step, Kind::Waiting].map(|kind| {
            let row = row(&found, kind);
            assert!(row.a.is_some() && row.b.is_some() && row.change.is_none(), "{row:?}");
            let reason = row.reason.clone().unwrap();
            (row.verdict, reason)
        })
    };
    let one_side = (Verdict::Unknown, "steps are marked on one side only".into());
    assert_eq!(verdicts(&[&marked], &[&derived]), [one_side.clone(), one_side.clone()]);
    assert_eq!(verdicts(&[&derived], &[&marked, &marked]), [one_side.clone(), one_side]);
    let some = (Verdict::Unknown, "steps are marked in some runs only".into());
    assert_eq!(verdicts(&[&marked, &derived], &[&marked]), [some.clone(), some]);
    let found = compared(marked.clone(), marked);
    assert_eq!(found.answer.state, State::Same, "{found:#?}");
}

#[test]
fn hours_are_not_compared_with_those_of_other_ranks() {
    let of = |by: f64, gpus: usize| {
        let mut run = run(&job(60, true));
        let steps = run.series.get_mut(&Measure::Step).unwrap();
        steps.values.iter_mut().for_each(|(_, ns)| *ns *= by);
        Run { step_ns: run.step_ns.map(|ns| by * ns), gpus, ..run }
    };
    let cost = |before: usize| compared(of(1.0, before), of(1.5, 8)).answer.cost.unwrap();
    assert_eq!(cost(8), "a step takes 14.9 ms, 9.96 ms before: 64.0 GPU-hours a day lost");
    assert_eq!(cost(4), "a step takes 14.9 ms, 9.96 ms before");
}

/// Adds a second communicator of the same role, whose operations are of another shape.
fn with_another(mut job: Job, shape: &str) -> Job {
    job.workers.extend((2..4).map(|rank| Worker::new(rank, "node")));
    job.classes.push(CollectiveClass { comm: "other".into(), ..job.classes[0].clone() });
    job.shapes.push(shape.into());
    job.roles = ["dp", "other"].map(|comm| (comm.into(), "dp".into())).into();
    let more = job.collectives.clone();
    job.collectives.extend(more.into_iter().map(|mut one| {
        one.parts.iter_mut().for_each(|part| part.worker += 2);
        Collective { class: 1, shape: 1, ..one }
    }));
    job
}

/// Removes the recordings of a job from this rank on.
fn without(mut job: Job, rank: usize) -> Job {
    job.collectives.iter_mut().for_each(|one| one.parts.retain(|part| part.worker < rank));
    job.collectives.retain(|one| !one.parts.is_empty());
    let last = u32::try_from(job.workers.len()).unwrap() - 1;
    job.unrecorded = vec![(u32::try_from(rank).unwrap(), last)];
    job
}

#[test]
fn times_are_those_of_the_same_ranks() {
    // The ranks of the other communicator wait three times as long, and its transfers are shorter.
    let mut whole = with_another(job(60, true), "RING SIMPLE, 2 channels");
    let others = whole.collectives.iter_mut().filter(|one| one.class == 1);
    others.for_each(|one| one.parts[1].start += 2.0 * MS);
    let lacking = run(&without(whole.clone(), 3));
    let whole = run(&whole);
    assert_eq!((whole.unrecorded, lacking.unrecorded), (0, 1));
    let waits = |a: &Run, b: &Run| {
        let found = compared(a.clone(), b.clone());
        let row = row(&found, Kind::Waiting);
        (
            [row.a, row.b].map(|ns| (10.0 * ns.unwrap() / MS).round()),
            row.verdict,
            row.reason.clone(),
        )
    };
    assert_eq!(waits(&whole, &whole), ([10.0; 2], Verdict::Same, None));
    for (a, b) in [(&whole, &lacking), (&lacking, &whole), (&lacking, &lacking)] {
        let found = compared(a.clone(), b.clone());
        assert_eq!(row(&found, Kind::Transfer).change, Some(0.0), "{found:#?}");
        assert_eq!(waits(a, b), ([5.0; 2], Verdict::Same, None));
    }
    // Each run lacks another communicator.
    let mut other = whole.clone();
    other.series.retain(|of, _| !matches!(of, Measure::Waiting { ranks, .. } if ranks[0] == 0));
    other.unrecorded = 2;
    let reason = Some("recordings of some ranks are missing".into());
    assert_eq!(waits(&lacking, &other), ([5.0, 15.0], Verdict::Unknown, reason.clone()));
    // None is whole.
    let none = run(&without(job(60, true), 1));
    let found = compared(run(&job(60, true)), none);
    assert_eq!(row(&found, Kind::Waiting).reason, reason);
    // Other communicators are not missing ones.
    let moved = Run { unrecorded: 0, ..other };
    assert_eq!(waits(&whole, &moved).1, Verdict::Slower);
}

/// Makes the transfers of a job longer.
fn slowed(mut job: Job, by: f64) -> Job {
    job.collectives.iter_mut().flat_map(|one| &mut one.parts).for_each(|part| part.end += by);
    job
}

#[test]
fn a_row_costs_what_one_communicator_loses() {
    let cost = |before: Job| {
        let found = compared(run(&before), run(&slowed(before, MS)));
        let row = row(&found, Kind::Transfer);
        assert_eq!(row.verdict, Verdict::Slower, "{found:#?}");
        row.cost.unwrap().ns_per_step / MS
    };
    let alone = cost(job(60, true));
    assert!((alone - 1.0).abs() < 0.02, "{alone}");
    // Each of two communicators has one operation in a step, whether their shapes are the same or
    // not.
    for shape in ["RING SIMPLE, 2 channels", "RING SIMPLE, 4 channels"] {
        let of_two = cost(with_another(job(60, true), shape));
        assert!((of_two - 1.0).abs() < 0.02, "{shape}: {of_two}");
    }
}

/// More runs are never less: with five or six, the runs alone could not prove any change.
#[test]
fn any_number_of_runs_shows_a_change() {
    let side = |runs: u32, by: f64| -> Vec<Run> {
        let of = |at| run(&slowed(job(60, true), by + 0.01 * MS * f64::from(at)));
        (0..runs).map(of).collect()
    };
    for runs in 1..=8 {
        let found = compare(&side(runs, 0.0), &side(runs, MS), &Limits::default());
        let row = row(&found, Kind::Transfer);
        assert_eq!((found.answer.state, row.verdict), (State::Slower, Verdict::Slower), "{runs}");
        assert_eq!(row.units.of, if runs < 6 { "block" } else { "run" }, "{runs}");
        let found = compare(&side(runs, 0.0), &side(runs, 0.002 * MS), &Limits::default());
        assert_eq!(found.answer.state, State::Same, "{runs} {found:#?}");
    }
}

/// A job of these steps whose transfers have a skewed distribution.
fn skewed(steps: u32, seed: u32) -> Run {
    let mut job = job(steps, true);
    for (at, one) in (0..).zip(&mut job.collectives) {
        let mut dice: u32 = at + seed;
        for _ in 0..3 {
            dice = (dice ^ (dice >> 16)).wrapping_mul(0x85eb_ca6b);
        }
        let exponential = -(1.0 - f64::from(dice >> 8) / f64::from(1 << 24)).ln();
        let longer = 0.1 * MS * exponential.powi(3);
        one.parts.iter_mut().for_each(|part| part.end += longer);
    }
    run(&job)
}

#[test]
fn a_block_has_as_many_steps_on_both_sides() {
    for (a, b, units) in [(33, 65, [32, 64]), (65, 33, [64, 32]), (65, 129, [32, 64])] {
        let mut longer = 0;
        for seed in 0..40 {
            let found = compared(skewed(a, 5000 * seed), skewed(b, 5000 * seed + 2500));
            let row = row(&found, Kind::Transfer);
            assert_eq!([row.units.a, row.units.b], units, "{row:#?}");
            assert!(!matches!(row.verdict, Verdict::Slower | Verdict::Faster), "{row:#?}");
            longer += i32::from(row.change.unwrap() > 0.0);
        }
        assert!((10..=30).contains(&longer), "{a} {b}: {longer} of 40 longer");
    }
    // Not all pairs of many steps are formed.
    let row = row(&compared(skewed(24, 0), skewed(3000, 99)), Kind::Transfer).clone();
    assert_eq!([row.units.a, row.units.b], [23, 125]);
}

#[test]
fn runs_of_which_only_links_are_known_can_be_the_same() {
    let of = |ns: f64| {
        let values = (0..20).map(|block| (block, ns * (1.0 + f64::from(block % 3) / 100.0)));
        let series = Series { values: values.collect(), ..Series::default() };
        let mut run = Run::default();
        for to in 1..4 {
            let link = Measure::Link { role: "dp".into(), from: 0, to };
            run.series.insert(link, series.clone());
        }
        run
    };
    let found = compared(of(0.1), of(0.1));
    assert_eq!((found.rows.len(), found.same_links), (0, 3), "{found:#?}");
    assert_eq!(found.answer.state, State::Same, "{found:#?}");
    assert_eq!(found.answer.what, "no difference of 10.0 % or more in 3 network links; 0 unknown");
    assert_eq!(found.answer.config.as_deref(), Some("no recorded setting differs"));
    let found = compared(of(0.1), of(0.2));
    assert_eq!(found.answer.state, State::Slower, "{found:#?}");
    let found = compared(of(0.1), Run::default());
    assert_eq!((found.answer.state, found.same_links), (State::Unknown, 0), "{found:#?}");
    assert!(
        found.rows.iter().all(|row| row.reason.as_deref() == Some("one side has none")),
        "{found:#?}"
    );
    // A link with traffic of which no time is known.
    let link = Measure::Link { role: "dp".into(), from: 0, to: 9 };
    let mut silent = of(0.1);
    silent.series.insert(link, Series::default());
    let found = compared(silent, of(0.1));
    assert_eq!(
        row(&found, Kind::Link).reason.as_deref(),
        Some("neither side has one"),
        "{found:#?}"
    );
    // Too few blocks for all that is not a link.
    let mut short = run(&job(4, true));
    short.series.extend(of(0.1).series);
    let found = compared(short.clone(), short);
    assert_eq!((found.answer.state, found.same_links), (State::Unknown, 3), "{found:#?}");
    assert!(found.answer.what.starts_with("too few blocks"), "{found:#?}");
}
