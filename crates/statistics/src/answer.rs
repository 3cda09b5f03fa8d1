// SPDX-License-Identifier: Apache-2.0
//! The one test: a unit against its peers or its past, with three answers.

use crate::blocks::{Against, Blocks, Series, known, moments};
use crate::body::Body;
use crate::change::Split;
use crate::limits::Limits;
use crate::rank::ranks;
use crate::robust::{DEVIATION, median_mad};
use crate::series::{likeness, winsorised, without_stalls};
use crate::stalls::Stalls;
use ncclscope_limits::test;
use ncclscope_operations::stats::{count, median, to_u64};

/// What the blocks show of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// The observed cost, as a share of a step.
    pub mean: f64,
    /// Its 95 % interval.
    pub interval: [f64; 2],
    /// The chance of such values if the unit is healthy, for all units of the question together.
    pub p: f64,
    /// Number of blocks in which the unit is known.
    pub blocks: usize,
    /// Number of units that it is compared with; 0 against its past.
    pub peers: usize,
    /// Number of its stalls.
    pub stalls: u32,
    /// The block from which on it costs more; 0 against peers.
    pub since: usize,
}

/// What would settle the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// At least so many more blocks.
    Blocks(usize),
    /// At least so many more units to compare with.
    Peers(usize),
    /// At least so many more stalls.
    Stalls(u32),
    /// Another comparison (with the past, with another run): healthy units may differ by as much.
    Another,
}

/// Whether a unit is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// It costs more than what matters, and chance does not explain it.
    Slow(Effect),
    /// It costs less than what matters.
    NotSlow(Effect),
    /// Neither is shown.
    CannotTell(Effect, Needs),
}

impl Answer {
    /// What the blocks show.
    #[must_use]
    pub fn effect(&self) -> &Effect {
        match self {
            Answer::Slow(effect) | Answer::NotSlow(effect) | Answer::CannotTell(effect, _) => {
                effect
            }
        }
    }

    /// True if the unit is slow.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        matches!(self, Answer::Slow(_))
    }
}

/// Compares a unit. All units are one question: p values are multiplied by their number. For
/// several questions adjust the p values ([`crate::adjusted`]).
#[must_use]
pub fn compare_unit(blocks: &Blocks, unit: usize, against: Against, limits: &Limits) -> Answer {
    Question::of(blocks, against, limits).answer(unit)
}

/// Compares each unit.
#[must_use]
pub fn compare_units(blocks: &Blocks, against: Against, limits: &Limits) -> Vec<Answer> {
    let question = Question::of(blocks, against, limits);
    (0..blocks.units()).map(|unit| question.answer(unit)).collect()
}

/// What the answers for all units have in common.
struct Question<'l> {
    limits: &'l Limits,
    series: Series,
    /// Number of units with values.
    units: usize,
    /// The natural spread is estimated from the units.
    is_many: bool,
    /// Number of estimates of the deviation: with many units the usual one is a second. (All of
    /// them are not as many: units that vary more than usual gave 3 to 40 % false alarms.)
    estimates: f64,
    /// Number of blocks that say as much as one independent block.
    alike: f64,
    /// Standard deviation of a usual unit's values.
    deviation: f64,
    /// Natural spread of the means of healthy units.
    spread: f64,
    of: Comparison,
}

enum Comparison {
    Peers {
        stalls: Stalls,
        /// Standard deviation of a usual unit's values without its stalls.
        tame_deviation: f64,
    },
    Past {
        /// The best split of each unit.
        splits: Vec<Option<Split>>,
        /// Number of blocks on each side of a split.
        least: usize,
    },
}

impl Question<'_> {
    fn of<'l>(blocks: &Blocks, against: Against, limits: &'l Limits) -> Question<'l> {
        match against {
            Against::Peers => Question::among_peers(blocks.beyond_peers(), limits),
            Against::Usual => Question::among_peers(blocks.own(), limits),
            Against::Past => Question::with_past(blocks.own(), limits),
        }
    }

    fn among_peers(series: Series, limits: &Limits) -> Question<'_> {
        let alike = alike(likeness(series.units()));
        let moments: Vec<_> = series.units().map(moments).filter(|it| it.0 > 0).collect();
        let mut deviations: Vec<f64> = moments.iter().map(|it| it.2).collect();
        let deviation = median(&mut deviations).unwrap_or(0.0);
        let tame = series.units().map(|values| self::moments(&without_stalls(values)));
        let mut tame: Vec<f64> = tame.filter(|it| it.0 > 0).map(|it| it.2).collect();
        let tame_deviation = median(&mut tame).unwrap_or(0.0);
        let units = moments.len();
        // One unit among so many does not move a median deviation.
        let is_many = units >= test::MANY_UNITS;
        let spread = if !is_many {
            test::SPREAD_OF_FEW
        } else {
            let spread = median_mad(&mut moments.iter().map(|it| it.1).collect::<Vec<f64>>());
            let own = spread.map_or(0.0, |(_, mad)| DEVIATION * mad);
            let error = deviation / (count(series.blocks) / alike).max(1.0).sqrt();
            test::SPREAD.max((own * own - error * error).max(0.0).sqrt())
        };
        let estimates = if is_many { 2.0 } else { 1.0 };
        let stalls = Stalls::of(&series, alike);
        let of = Comparison::Peers { stalls, tame_deviation };
        Question { limits, series, units, is_many, estimates, alike, deviation, spread, of }
    }

    fn with_past(series: Series, limits: &Limits) -> Question<'_> {
        // A stall is no change.
        let tame: Vec<Vec<f64>> = series.units().map(tamed).collect();
        let splits = splits(&tame, test::BLOCKS);
        let alike = alike(likeness(splits.iter().flatten().map(|split| split.rest.as_slice())));
        // As many independent blocks are on each side.
        let least = to_u64((count(test::BLOCKS) * alike).ceil());
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        let splits = self::splits(&tame, least);
        let mut deviations: Vec<f64> =
            splits.iter().flatten().map(|split| split.deviation).collect();
        let units = deviations.len();
        let deviation = median(&mut deviations).unwrap_or(0.0);
        let of = Comparison::Past { splits, least };
        // How units differ does not matter: each is compared with itself.
        let (is_many, estimates, spread) = (false, 1.0, test::SPREAD);
        Question { limits, series, units, is_many, estimates, alike, deviation, spread, of }
    }

    fn answer(&self, unit: usize) -> Answer {
        match &self.of {
            Comparison::Peers { stalls, tame_deviation } => {
                self.against_peers(unit, stalls, *tame_deviation)
            }
            Comparison::Past { splits, least } => match splits.get(unit) {
                Some(Some(split)) => self.against_past(self.series.unit(unit), split),
                _ => {
                    let blocks = known(self.series.unit(unit)).count();
                    unknown(blocks, Needs::Blocks(least.saturating_mul(2).saturating_sub(blocks)))
                }
            },
        }
    }

    /// The values without stalls are tested, and the stalls: a long one raises the deviation as
    /// much as the mean, and would hide what all other blocks show.
    fn against_peers(&self, unit: usize, stalls: &Stalls, tame_deviation: f64) -> Answer {
        let values = self.series.unit(unit);
        let (blocks, mean, deviation) = moments(values);
        if self.units < 2 {
            return unknown(blocks, Needs::Peers(1));
        }
        if blocks < test::BLOCKS {
            return unknown(blocks, Needs::Blocks(test::BLOCKS - blocks));
        }
        let effective = (count(blocks) / self.alike).max(1.0);
        let body = Body {
            mean,
            deviation: deviation.max(self.deviation),
            effective,
            freedom: (effective - 1.0) * self.estimates,
            spread: self.spread,
        };
        let (_, mean, deviation) = moments(&without_stalls(values));
        let tame = Body { mean, deviation: deviation.max(tame_deviation), ..body };
        let tests = count(self.units);
        let evidence = Evidence {
            body,
            tested: tame,
            blocks,
            tests,
            stalls: stalls.number(unit),
            stalls_p: Some(stalls.p(unit, tests)),
            stalls_cost: stalls.cost(values),
            peers: self.units - 1,
            since: 0,
        };
        self.decide(&evidence)
    }

    fn against_past(&self, values: &[f64], split: &Split) -> Answer {
        let [before, after] = split.sides.map(|side| (count(side) / self.alike).max(1.0));
        let tested = Body {
            mean: split.shift,
            deviation: split.deviation.max(self.deviation),
            effective: before * after / (before + after),
            freedom: before + after - 2.0,
            spread: self.spread,
        };
        let (first, last) = values.split_at(split.at);
        let [(_, first, first_deviation), (_, last, last_deviation)] = [first, last].map(moments);
        let deviation = first_deviation.max(last_deviation).max(self.deviation);
        let evidence = Evidence {
            body: Body { mean: last - first, deviation, ..tested },
            tested,
            blocks: split.sides.iter().sum(),
            tests: count(self.units) * count(split.tried),
            stalls: 0,
            stalls_p: None,
            stalls_cost: 0.0,
            peers: 0,
            since: split.at,
        };
        self.decide(&evidence)
    }

    fn decide(&self, evidence: &Evidence) -> Answer {
        let body = evidence.decisive();
        let effect = Effect {
            mean: body.mean,
            interval: body.interval(),
            p: evidence.p(),
            blocks: evidence.blocks,
            peers: evidence.peers,
            stalls: evidence.stalls,
            since: evidence.since,
        };
        match self.is_slow(evidence) {
            Some(true) => Answer::Slow(effect),
            Some(false) => Answer::NotSlow(effect),
            None => Answer::CannotTell(effect, self.needs(evidence)),
        }
    }

    /// Whether the unit is slow; `None` if neither is shown.
    fn is_slow(&self, evidence: &Evidence) -> Option<bool> {
        let (p, body, limits) = (evidence.p(), &evidence.body, self.limits);
        if p <= limits.slow_p && evidence.decisive().mean > limits.least_cost {
            return Some(true);
        }
        let is_less = p > test::HEALTHY_P
            && body.most() < limits.least_cost
            && evidence.stalls_cost < limits.least_cost
            && (self.is_many || body.mean < limits.least_cost);
        is_less.then_some(false)
    }

    fn needs(&self, evidence: &Evidence) -> Needs {
        if evidence.stalls_cost >= self.limits.least_cost && evidence.stalls < test::STALLS {
            return Needs::Stalls(test::STALLS - evidence.stalls);
        }
        let times = (1..=MOST_DOUBLED).map(|power| 1_usize << power);
        let mut enough =
            times.filter(|times| self.is_slow(&evidence.repeated(count(*times))).is_some());
        match enough.next() {
            Some(times) => Needs::Blocks((times - 1) * evidence.blocks),
            None if evidence.peers > 0 && self.units < test::MANY_UNITS => {
                Needs::Peers(test::MANY_UNITS - self.units)
            }
            None => Needs::Another,
        }
    }
}

/// More than 2 to this power times the blocks are no advice.
const MOST_DOUBLED: u32 = 6;

/// What decides about a unit.
#[derive(Clone, Copy)]
struct Evidence {
    body: Body,
    /// The same without stalls.
    tested: Body,
    blocks: usize,
    /// Number of tests in the question, by which a p value is multiplied.
    tests: f64,
    stalls: u32,
    /// The chance of its stalls; `None` if they are not tested.
    stalls_p: Option<f64>,
    stalls_cost: f64,
    peers: usize,
    since: usize,
}

impl Evidence {
    /// The same if there were so many times the blocks.
    fn repeated(self, times: f64) -> Evidence {
        let [body, tested] = [self.body, self.tested].map(|body| body.repeated(times));
        Evidence { body, tested, ..self }
    }

    /// What decides: all values, or those without stalls if against peers these show more.
    fn decisive(&self) -> &Body {
        let is_tame = self.stalls_p.is_some_and(|stalls| self.tested.p() < stalls);
        if is_tame { &self.tested } else { &self.body }
    }

    fn p(&self) -> f64 {
        let p = match self.stalls_p {
            // Two tests are made.
            Some(stalls) => 2.0 * self.tested.p().min(stalls),
            // A long stall is no change: it must show with and without stalls.
            None => self.tested.p().max(self.body.p()),
        };
        (p * self.tests).min(1.0)
    }
}

/// The values without stalls, where what is usual may have changed once: their ranks show where,
/// however long a stall is, and each side has its own usual value.
fn tamed(values: &[f64]) -> Vec<f64> {
    let at = Split::of(&ranks(values), test::BLOCKS).map_or(0, |split| split.at);
    let (before, after) = values.split_at(at);
    [before, after].map(|side| winsorised(side).0).concat()
}

fn splits(series: &[Vec<f64>], least: usize) -> Vec<Option<Split>> {
    series.iter().map(|values| Split::of(values, least)).collect()
}

/// Number of blocks that say as much as one independent block.
fn alike(likeness: f64) -> f64 {
    (1.0 + likeness) / (1.0 - likeness)
}

fn unknown(blocks: usize, needs: Needs) -> Answer {
    let interval = [f64::NEG_INFINITY, f64::INFINITY];
    let effect = Effect { mean: 0.0, interval, p: 1.0, blocks, peers: 0, stalls: 0, since: 0 };
    Answer::CannotTell(effect, needs)
}
