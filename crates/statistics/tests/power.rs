// SPDX-License-Identifier: Apache-2.0
//! How often the one test is right, on series with known faults: at least as often as in the table
//! of the design, less what few runs leave to chance. The example `power` prints the whole table.

mod series;

use ncclscope_statistics::{Against, Answer, Blocks, Limits, Needs, compare_unit, compare_units};
use series::{DESIGN, Dice, Fault, Rates, Row, blocks, rates};

/// How much less than in the table an answer may be right, in percent: with so few runs, chance
/// makes three standard deviations of 25 for a half; units that are compared one by one are less
/// often all known to be healthy than their worst one is.
const LESS: f64 = 35.0;

fn runs(units: usize) -> u32 {
    if units > 1_000 { 2 } else { 40 }
}

fn of((units, blocks, _): &Row, fault: Fault, against: Against) -> Rates {
    rates((*units, *blocks), fault, against, runs(*units))
}

/// The sum of runs, and of those with a unit that is called slow, over all rows.
fn alarms(fault: Fault, against: Against) -> (f64, f64) {
    DESIGN.iter().fold((0.0, 0.0), |(all, alarms), row| {
        let (found, runs) = (of(row, fault, against), f64::from(runs(row.0)));
        (all + runs, alarms + (found.slow + found.wrong) / 100.0 * runs)
    })
}

#[test]
fn healthy_units_are_not_slow() {
    for (row, against) in
        DESIGN.iter().flat_map(|row| [(row, Against::Peers), (row, Against::Past)])
    {
        let found = of(row, Fault::Healthy, against);
        assert!(found.slow + found.wrong < 0.1, "{row:?} {against:?} {found:?}");
        // Of thousands of units, a few have rare long values: two runs show nothing. A unit is not
        // known to be as before in fewer blocks than it is known to be like its peers.
        let is_known = found.not_slow >= f64::from(row.2[0]) - LESS;
        let is_asked = against == Against::Peers && row.0 <= 64;
        assert!(is_known || !is_asked, "{row:?} {found:?}");
    }
}

#[test]
fn slow_units_are_found_and_no_other() {
    for row in &DESIGN {
        let faults = [Fault::Slower(0.05), Fault::Slower(0.2), Fault::Slower(2.0)];
        for (fault, power) in faults.into_iter().zip(&row.2[1..]) {
            let found = of(row, fault, Against::Peers);
            // The design takes these three neighbouring blocks for three stalls.
            let is_asked = (row.0, row.1) != (4_096, 3) || fault == Fault::Slower(2.0);
            let is_found = found.slow >= f64::from(*power) - LESS;
            assert!(is_found || !is_asked, "{row:?} {fault:?} {found:?}");
            assert!(found.wrong < 0.1 && found.not_slow <= 10.0, "{row:?} {fault:?} {found:?}");
        }
    }
}

#[test]
fn stalls_are_attributed_if_they_strike_one_unit() {
    for row in &DESIGN {
        let found = of(row, Fault::Stalls(0.5), Against::Peers);
        assert!(found.slow >= f64::from(row.2[4]) - LESS, "{row:?} {found:?}");
        // There are fewer than three stalls.
        assert!(row.1 == 100 || found.slow == 0.0, "{row:?} {found:?}");
        assert!(found.wrong + found.not_slow < 0.1, "{row:?} {found:?}");
    }
    let (all, alarms) = alarms(Fault::StallsOfAny(0.5), Against::Peers);
    assert!(alarms <= 0.005 * all, "{alarms} of {all}");
}

#[test]
fn a_change_is_found_and_a_stall_is_none() {
    for units in [2, 4, 64] {
        let drift = rates((units, 100), Fault::Drift(0.2), Against::Past, 20);
        assert!(drift.slow >= 60.0 && drift.wrong == 0.0, "{units} {drift:?}");
        let since = rates((units, 20), Fault::Since(0.2), Against::Past, 20);
        assert!(since.slow >= 85.0 && since.wrong == 0.0, "{units} {since:?}");
    }
    let (_, alarms) = alarms(Fault::Stalls(0.5), Against::Past);
    assert_eq!(alarms, 0.0);
    let series = blocks(3, 60, Fault::Since(0.1), &mut Dice(3));
    let answer = compare_unit(&series, 0, Against::Past, &Limits::default());
    let effect = answer.effect();
    assert!(answer.is_slow() && (28..=32).contains(&effect.since), "{answer:?}");
    let [low, high] = effect.interval;
    assert!(low < 0.1 && 0.1 < high && effect.peers == 0, "{answer:?}");
}

/// The recording gpu1-later of the cluster in a box: from its middle on a unit costs 62 % of a step
/// more. What is usual of the whole is then what is usual of one half.
#[test]
fn a_change_that_is_far_larger_than_the_noise_is_found() {
    for units in [3, 64] {
        let changed: Vec<f64> = vec![0.62; 55];
        let found =
            compare_units(&with(units, 104, 49, &changed), Against::Past, &Limits::default());
        assert!(
            found[0].is_slow() && (48..=50).contains(&found[0].effect().since),
            "{:?}",
            found[0]
        );
        assert!(!found[1..].iter().any(Answer::is_slow));
    }
}

/// A job of so many units, with values of unit 0 from a block on.
fn with(units: usize, number: usize, from: usize, values: &[f64]) -> Blocks {
    let mut dice = Dice(5);
    let mut made = Blocks::new(units);
    for block in 0..number {
        let mut row: Vec<f64> = (0..units).map(|_| 0.02 * dice.normal()).collect();
        row[0] += block.checked_sub(from).and_then(|at| values.get(at)).copied().unwrap_or(0.0);
        made.push(row);
    }
    made
}

/// A checkpoint takes as long as 50 steps, and all but one unit wait for one of them for as long.
#[test]
fn a_long_stall_hides_no_slow_unit() {
    let series = |slow: f64| {
        let mut dice = Dice(7);
        let mut made = Blocks::new(8);
        for block in 0..40 {
            let mut row: Vec<f64> = (0..8).map(|_| 0.02 * dice.normal()).collect();
            row[3] += slow;
            row[0] += if block == 20 { 50.0 } else { 0.0 };
            row[3] -= if block == 20 { 4.0 } else { 0.0 };
            made.push(row);
        }
        compare_units(&made, Against::Peers, &Limits::default())
    };
    let slow: Vec<bool> = series(0.3).iter().map(Answer::is_slow).collect();
    assert_eq!(slow, [false, false, false, true, false, false, false, false]);
    assert!(!series(0.0).iter().any(Answer::is_slow));
}

/// The design's first false start permuted labels within blocks, and found this in 24 %.
#[test]
fn few_blocks_show_a_large_effect() {
    let found = rates((2, 9), Fault::Slower(2.0), Against::Peers, 100);
    assert!(found.slow >= 95.0, "{found:?}");
}

/// The design's second false start counted the neighbours of a stall as further stalls, and had 3
/// to 10 % false alarms at 4,096 units.
#[test]
fn one_stall_is_never_attributed_however_long() {
    for (units, number) in [(2, 20), (8, 20), (64, 100), (4_096, 20)] {
        for against in [Against::Peers, Against::Past] {
            let series = with(units, number, number - 4, &[4.0, 2.0, 1.0]);
            let mut found = compare_units(&series, against, &Limits::default()).into_iter();
            let first = found.next().unwrap();
            assert!(!first.is_slow() && !found.any(|it| it.is_slow()), "{units} {first:?}");
        }
    }
    let likely = blocks(4_096, 100, Fault::Healthy, &mut Dice(9));
    let found = compare_units(&likely, Against::Peers, &Limits::default());
    assert!(!found.iter().any(Answer::is_slow));
}

#[test]
fn what_cannot_be_told_says_what_would_settle_it() {
    let limits = Limits::default();
    let needs = |series: &Blocks, unit, against| match compare_unit(series, unit, against, &limits)
    {
        Answer::CannotTell(_, needs) => Some(needs),
        _ => None,
    };
    use Against::{Past, Peers};
    assert_eq!(needs(&with(1, 20, 0, &[]), 0, Peers), Some(Needs::Peers(1)));
    assert_eq!(needs(&with(4, 2, 0, &[]), 3, Peers), Some(Needs::Blocks(1)));
    assert_eq!(needs(&with(4, 2, 0, &[]), 4, Peers), Some(Needs::Blocks(3)));
    assert_eq!(needs(&Blocks::new(4), 0, Peers), Some(Needs::Peers(1)));
    assert_eq!(needs(&with(4, 4, 0, &[]), 0, Past), Some(Needs::Blocks(2)));
    assert_eq!(needs(&with(64, 20, 9, &[3.0]), 0, Peers), Some(Needs::Stalls(2)));
    assert_eq!(needs(&with(4, 40, 0, &[0.02; 40]), 0, Peers), Some(Needs::Peers(12)));
    let few = needs(&with(4, 9, 0, &[0.035; 9]), 0, Peers);
    assert!(matches!(few, Some(Needs::Blocks(9..))), "{few:?}");
    assert_eq!(needs(&with(64, 20, 0, &[0.05; 20]), 0, Peers), None);
}

#[test]
fn unknown_values_are_no_evidence() {
    let limits = Limits::default();
    let whole = with(9, 60, 0, &[0.2; 60]);
    let mut dice = Dice(5);
    let mut half = Blocks::new(9);
    for block in 0..60 {
        let row = (0..9).map(|unit| {
            let noise = 0.02 * dice.normal();
            match unit {
                0 if block % 2 == 1 => f64::NAN,
                0 => noise + 0.2,
                8 => f64::NAN,
                _ => noise,
            }
        });
        half.push(row.collect::<Vec<f64>>());
    }
    let answers = compare_units(&half, Against::Peers, &limits);
    let (slow, never) = (answers[0].effect(), answers[8].effect());
    assert!(answers[0].is_slow() && (slow.blocks, slow.peers) == (30, 7), "{slow:?}");
    assert_eq!((never.blocks, never.p), (0, 1.0));
    assert!(answers[1..8].iter().all(|it| matches!(it, Answer::NotSlow(_))), "{answers:?}");
    let known = compare_unit(&whole, 0, Against::Peers, &limits);
    let [low, high] = known.effect().interval;
    assert!(low < 0.2 && 0.2 < high && known.effect().blocks == 60, "{known:?}");
}
