// SPDX-License-Identifier: Apache-2.0
/*!
Series of units with known faults, as in `../shared/design/judgement.md`, section 3: the values of a
unit have a standard deviation of 2 % of a step, an autocorrelation of 0.5 and heavy tails
(Student's distribution with four degrees of freedom); the means of healthy units have a natural
spread of 0.4 %. Unit 0 has the fault.
*/

use ncclscope_operations::stats::{self, count};
use ncclscope_statistics::{Against, Answer, Blocks, Limits, compare_units};

/// A row of the table in the design: units, blocks, and in percent how often a healthy job is NOT
/// SLOW, and unit 0 SLOW if it costs 5, 20 or 200 % of a step more, stalls for half of the run, or
/// drifts to 20 %.
pub(crate) type Row = (usize, usize, [u32; 6]);

/// The table in the design. Healthy units are SLOW in none of its rows.
pub(crate) const DESIGN: [Row; 12] = [
    (2, 3, [42, 4, 63, 100, 0, 0]),
    (2, 20, [71, 20, 97, 100, 0, 0]),
    (4, 3, [46, 0, 48, 100, 0, 0]),
    (4, 9, [65, 4, 91, 100, 0, 0]),
    (4, 20, [84, 5, 100, 100, 0, 0]),
    (4, 100, [100, 55, 100, 100, 77, 31]),
    (64, 3, [1, 0, 98, 100, 0, 0]),
    (64, 9, [34, 0, 100, 100, 0, 11]),
    (64, 20, [83, 5, 100, 100, 0, 73]),
    (64, 100, [100, 100, 100, 100, 100, 100]),
    (4096, 3, [0, 0, 60, 100, 0, 0]),
    (4096, 20, [40, 0, 100, 100, 0, 48]),
];

/// What is wrong with unit 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Healthy,
    /// It costs more by this share of a step.
    Slower(f64),
    /// One in 20 blocks, or one of fewer, is longer: by this share of the run together.
    Stalls(f64),
    /// As many blocks are longer, each at a unit by chance.
    StallsOfAny(f64),
    /// It costs more and more, up to this share of a step.
    Drift(f64),
    /// It costs more by this share of a step since the middle of the run.
    Since(f64),
}

/// Pseudorandom numbers.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Uniform in 0 to 1, without 0.
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 33).unwrap() + 1) / f64::from(1u32 << 31)
    }

    /// Normally distributed with deviation 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let angle = 2.0 * std::f64::consts::PI * self.roll();
        (-2.0 * self.roll().ln()).sqrt() * angle.cos()
    }

    /// Student's distribution with four degrees of freedom, scaled to deviation 1.
    fn heavy(&mut self) -> f64 {
        let squares = -2.0 * (self.roll() * self.roll()).ln();
        self.normal() / (squares / 2.0).sqrt()
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        let at = stats::to_u64((self.roll() * stats::count(end)).floor());
        usize::try_from(at).unwrap().min(end - 1)
    }
}

const DEVIATION: f64 = 0.02;
const ALIKE: f64 = 0.5;
const SPREAD: f64 = 0.004;

/// The blocks of so many units.
pub(crate) fn blocks(units: usize, blocks: usize, fault: Fault, dice: &mut Dice) -> Blocks {
    let means: Vec<f64> = (0..units).map(|_| SPREAD * dice.normal()).collect();
    let mut noise: Vec<f64> = (0..units).map(|_| dice.heavy()).collect();
    let stalled = stalled(units, blocks, fault, dice);
    let mut made = Blocks::new(units);
    for block in 0..blocks {
        let values = means.iter().zip(&noise).map(|(mean, noise)| mean + DEVIATION * noise);
        let mut values: Vec<f64> = values.collect();
        let share = count(block) / count(blocks.max(2) - 1);
        values[0] += match fault {
            Fault::Slower(by) => by,
            Fault::Drift(to) => to * share,
            Fault::Since(by) if 2 * block >= blocks => by,
            _ => 0.0,
        };
        for &(_, unit, by) in stalled.iter().filter(|(at, ..)| *at == block) {
            values[unit] += by;
        }
        made.push(values);
        for noise in &mut noise {
            *noise = ALIKE * *noise + (1.0 - ALIKE * ALIKE).sqrt() * dice.heavy();
        }
    }
    made
}

/// How often the answers were which, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// Unit 0 is SLOW.
    pub(crate) slow: f64,
    /// Another unit is.
    pub(crate) wrong: f64,
    /// All units are NOT SLOW.
    pub(crate) not_slow: f64,
}

/// The answers of so many runs.
pub(crate) fn rates(
    (units, number): (usize, usize),
    fault: Fault,
    against: Against,
    runs: u32,
) -> Rates {
    let (mut dice, limits, mut rates) = (Dice(7), Limits::default(), Rates::default());
    let one = 100.0 / f64::from(runs);
    for _ in 0..runs {
        let answers = compare_units(&blocks(units, number, fault, &mut dice), against, &limits);
        rates.slow += if answers[0].is_slow() { one } else { 0.0 };
        rates.wrong += if answers[1..].iter().any(Answer::is_slow) { one } else { 0.0 };
        let is_fine = answers.iter().all(|answer| matches!(answer, Answer::NotSlow(_)));
        rates.not_slow += if is_fine { one } else { 0.0 };
    }
    rates
}

/// Block, unit and length of each stall.
fn stalled(units: usize, blocks: usize, fault: Fault, dice: &mut Dice) -> Vec<(usize, usize, f64)> {
    let (Fault::Stalls(cost) | Fault::StallsOfAny(cost)) = fault else { return Vec::new() };
    let number = (blocks / 20).max(1);
    let by = cost * count(blocks) / count(number);
    let is_of_any = matches!(fault, Fault::StallsOfAny(_));
    // Each in another block.
    let mut left: Vec<usize> = (0..blocks).collect();
    let mut stall = |_| {
        let block = left.swap_remove(dice.below(left.len()));
        (block, if is_of_any { dice.below(units) } else { 0 }, by)
    };
    (0..number).map(&mut stall).collect()
}
