// SPDX-License-Identifier: Apache-2.0
//! Ranks, intervals and adjusted p values: known values, and the rate of false alarms.

use ncclscope_statistics::{adjusted, inflation, median, rank_sum, shift};

fn is_near(found: f64, expected: f64, off: f64) -> bool {
    (found - expected).abs() <= off
}

/// Pseudorandom numbers, uniform in 0 to 1.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 33).unwrap()) / f64::from(1u32 << 31)
    }

    /// Approximately normal, with deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.roll()).sum::<f64>() - 6.0
    }
}

#[test]
fn few_values_are_counted_exactly() {
    // Five against five, fully separated: 2 of 252 ways.
    let (low, high) = ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]);
    assert!(is_near(rank_sum(&low, &high, 1.0), 2.0 / 252.0, 1e-12));
    assert!(is_near(rank_sum(&high, &low, 1.0), 2.0 / 252.0, 1e-12));
    // Sums of ranks up to 7 of two of five: (1,2) to (3,4) and (2,5); 6 of 10 are at most 6.
    assert!(is_near(rank_sum(&[1.0, 5.0], &[2.0, 3.0, 4.0], 1.0), 1.0, 1e-12));
    // With ties: of four values 1, 2, 2, 3 two are chosen; the sum 2.5 + 2.5 is the middle.
    assert!(is_near(rank_sum(&[2.0, 2.0], &[1.0, 3.0], 1.0), 1.0, 1e-12));
    assert!(is_near(rank_sum(&[7.0; 5], &[7.0; 5], 1.0), 1.0, 1e-12));
    assert!(is_near(rank_sum(&[], &high, 1.0), 1.0, 0.0));
}

#[test]
fn the_normal_approximation_agrees_with_known_values() {
    // Ten against ten, fully separated: U = 0, z = (50 - 0.5) / sqrt(175) = 3.7418, two-sided:
    // 1.827e-4.
    let side = |from: u32| (from..from + 10).map(f64::from).collect::<Vec<f64>>();
    let p = rank_sum(&side(0), &side(10), 1.000_001);
    assert!(is_near(p, 1.827e-4, 2e-7), "{p}");
    // With twice the variance: z = 2.6459, two-sided: 8.15e-3.
    let p = rank_sum(&side(0), &side(10), 2.0);
    assert!(is_near(p, 8.148e-3, 5e-6), "{p}");
    // Thirty against thirty, fully separated: z = 6.645, far in the tail: 3.0e-11.
    let side = |from: u32| (from..from + 30).map(f64::from).collect::<Vec<f64>>();
    let p = rank_sum(&side(0), &side(30), 1.0);
    assert!(p > 2.9e-11 && p < 3.1e-11, "{p:e}");
}

#[test]
fn the_shift_is_the_median_of_all_differences() {
    let (estimate, [low, high]) = shift(&[1.0, 2.0, 4.0], &[11.0, 12.0, 13.0], 1.0).unwrap();
    assert!(is_near(estimate, 10.0, 0.0) && low <= estimate && estimate <= high);
    assert_eq!(shift(&[], &[1.0], 1.0), None);
    let mut dice = Dice(7);
    let a: Vec<f64> = (0..30).map(|_| dice.normal()).collect();
    let b: Vec<f64> = (0..30).map(|_| 2.0 + dice.normal()).collect();
    let (estimate, [low, high]) = shift(&a, &b, 1.0).unwrap();
    assert!(is_near(estimate, 2.0, 0.6) && low < 2.0 && high > 2.0, "{low} {estimate} {high}");
    let (_, [lower, higher]) = shift(&a, &b, 4.0).unwrap();
    assert!(lower < low && higher > high, "less is known of values that are alike");
}

#[test]
fn intervals_hold_what_they_promise() {
    let mut dice = Dice(11);
    let mut held = 0;
    for _ in 0..1_000 {
        let a: Vec<f64> = (0..15).map(|_| dice.normal()).collect();
        let b: Vec<f64> = (0..12).map(|_| 0.5 + dice.normal()).collect();
        let (_, [low, high]) = shift(&a, &b, 1.0).unwrap();
        held += u32::from(low <= 0.5 && 0.5 <= high);
    }
    assert!((935..=975).contains(&held), "{held}");
}

#[test]
fn p_values_grow_with_the_number_of_tests_and_keep_their_order() {
    // The example of Benjamini and Hochberg (1995), table 1: 15 tests, four are kept at 0.05.
    let p = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
        0.5719, 0.6528, 0.7590, 1.0000,
    ];
    let kept = adjusted(&p).into_iter().filter(|p| *p <= 0.05).count();
    assert_eq!(kept, 4);
    assert_eq!(adjusted(&[0.01, 0.02]), [0.02, 0.02]);
    assert_eq!(adjusted(&[0.5, 0.01]), [0.5, 0.02]);
    assert!(adjusted(&[]).is_empty());
}

#[test]
fn medians_are_in_the_middle() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    assert_eq!(median(&[]), None);
}

/// Alarms per thousand at p < 0.01, for two series of one distribution in which neighbours are
/// alike.
fn alarms(likeness: f64) -> (u32, u32) {
    let mut dice = Dice(3);
    let (mut naive, mut corrected) = (0, 0);
    for _ in 0..1_000 {
        let mut series = || {
            let mut last = dice.normal();
            let mut next = |_| {
                last = likeness * last + (1.0 - likeness * likeness).sqrt() * dice.normal();
                last
            };
            (0..32).map(&mut next).collect::<Vec<f64>>()
        };
        let (a, b) = (series(), series());
        let factor = inflation([a.as_slice(), b.as_slice()]);
        naive += u32::from(rank_sum(&a, &b, 1.0) < 0.01);
        corrected += u32::from(rank_sum(&a, &b, factor) < 0.01);
    }
    (naive, corrected)
}

#[test]
fn series_that_drift_do_not_alarm_more_often_than_promised() {
    let (naive, corrected) = alarms(0.0);
    assert!(naive <= 17 && corrected <= naive, "{naive} {corrected}");
    // Without the correction, more than 60 of 1,000 equal pairs would raise an alarm.
    let (naive, corrected) = alarms(0.5);
    assert!(naive > 60 && corrected <= 25, "{naive} {corrected}");
}
