// SPDX-License-Identifier: Apache-2.0
/*!
What each rule saw, and what stopped it: the answer to "why is this not reported?".

Rules note what they see in a [`Log`], which keeps it only if it is asked. A rule notes a unit once
for each question about it; a stage that takes a finding away notes that, too.
*/

use crate::rules::Rule;
use ncclscope_findings::{Looked, Outcome};
use ncclscope_operations::human::{self, percent};
use ncclscope_statistics::{Answer, Effect, Limits as Test, Needs};
use std::ops::RangeInclusive;

/// What the rules saw, as far as it is asked.
pub(crate) struct Log {
    /// The ranks; none are all of them.
    asked: Option<Vec<RangeInclusive<u32>>>,
    seen: Vec<Looked>,
}

/// Which limit, lack or other finding decided.
pub(crate) enum Because {
    Found,
    CannotTell(String),
    Not(String),
}

impl Log {
    pub(crate) fn new(asked: Option<Vec<RangeInclusive<u32>>>) -> Log {
        Log { asked, seen: Vec::new() }
    }

    /// What was seen; `None` if it was not asked.
    pub(crate) fn into_seen(self) -> Option<Vec<Looked>> {
        self.asked.map(|_| self.seen)
    }

    /// Whether anything is asked.
    pub(crate) fn is_on(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether something about these ranks is asked; none are all of them.
    pub(crate) fn is_asked(&self, ranks: &[u32]) -> bool {
        let has_all = |asked: &Vec<_>| asked.is_empty() || ranks.is_empty();
        self.asked.as_ref().is_some_and(|asked| has_all(asked) || self.is_about(ranks))
    }

    /// Whether it is asked about one of these ranks in particular.
    pub(crate) fn is_about(&self, ranks: &[u32]) -> bool {
        let asked = || self.asked.iter().flatten();
        ranks.iter().any(|rank| asked().any(|range| range.contains(rank)))
    }

    /// Notes what a rule saw, if that is asked; else nothing is made.
    pub(crate) fn saw(&mut self, rule: Rule, make: impl FnOnce() -> Seen) {
        self.add(rule.about().name, make);
    }

    /// Notes that another finding explains something.
    pub(crate) fn explained(&mut self, make: impl FnOnce() -> Seen) {
        self.add("explains", make);
    }

    fn add(&mut self, rule: &'static str, make: impl FnOnce() -> Seen) {
        let Some(Seen { subject, ranks, saw, because, nearness }) =
            self.is_on().then(make).filter(|seen| self.is_asked(&seen.ranks))
        else {
            return;
        };
        let (outcome, because) = match because {
            Because::Found => (Outcome::Found, String::new()),
            Because::CannotTell(why) => (Outcome::CannotTell, why),
            Because::Not(why) => (Outcome::Not, why),
        };
        self.seen.push(Looked { rule, subject, ranks, saw, outcome, because, nearness });
    }
}

/// What a rule saw, without the rule.
pub(crate) struct Seen {
    pub(crate) subject: String,
    /// The ranks of that; empty if it is about all.
    pub(crate) ranks: Vec<u32>,
    pub(crate) saw: String,
    pub(crate) because: Because,
    pub(crate) nearness: f64,
}

impl Seen {
    /// What the one test saw of these ranks in blocks of this name, and why it decided so.
    pub(crate) fn of(
        (subject, ranks): (String, Vec<u32>),
        (answer, block): (&Answer, &str),
        test: &Test,
    ) -> Seen {
        let effect = answer.effect();
        let because = match answer {
            Answer::Slow(_) => Because::Found,
            Answer::NotSlow(_) => Because::Not(below(test)),
            Answer::CannotTell(effect, _) if is_known(effect) && effect.mean < test.least_cost => {
                Because::Not(below(test))
            }
            Answer::CannotTell(effect, needs) => {
                Because::CannotTell(why_open(effect, *needs, (test, block)))
            }
        };
        let nearness = (effect.mean / test.least_cost).max(0.0);
        Seen { subject, ranks, saw: saw(effect, block), because, nearness }
    }
}

/// That something costs less than what matters.
pub(crate) fn below(test: &Test) -> String {
    format!("costs less than {} of a step", percent(test.least_cost))
}

/// Whether there were blocks and units enough for an effect.
fn is_known(effect: &Effect) -> bool {
    effect.interval[0].is_finite()
}

/// Why the one test does not decide.
fn why_open(effect: &Effect, needs: Needs, (test, block): (&Test, &str)) -> String {
    let chance = format!("p is above {}, so that it may be chance", test.slow_p);
    match needs {
        Needs::Blocks(more) if is_known(effect) => {
            format!("{chance}: {} would show it", human::count(more, &format!("more {block}")))
        }
        Needs::Blocks(more) => format!("{} needed", human::are(more, &format!("more {block}"))),
        Needs::Peers(_) => format!("{chance}: it has too few peers to know what is usual"),
        Needs::Stalls(more) => format!("{chance}: {} would show it", stalls(more)),
        Needs::Another if effect.peers > 0 => {
            "its peers differ by as much, so that healthy ones may, too".into()
        }
        Needs::Another => format!("{chance}: healthy ones may change by as much"),
    }
}

/// What the one test saw in blocks of this name.
fn saw(effect: &Effect, block: &str) -> String {
    let Effect { mean, interval: [low, high], p, blocks, peers, stalls, since } = *effect;
    if !is_known(effect) {
        return format!("known in {}", human::count(blocks, block));
    }
    let against = match peers {
        0 => format!("the {} before", human::count(since, block)),
        peers => human::count(peers, "peer"),
    };
    let stalls = match stalls {
        0 => String::new(),
        stalls => format!(", {}", self::stalls(stalls)),
    };
    format!(
        "{:+.1} % of a step against {against} ({:+.1} to {:+.1} %) in {}{stalls}, p {p:.2}",
        100.0 * mean,
        100.0 * low,
        100.0 * high,
        human::count(blocks, block)
    )
}

/// What the one test lacks to decide.
pub(crate) fn lacks(effect: &Effect, needs: Needs) -> String {
    match needs {
        Needs::Stalls(_) => format!("in {}, which may be chance", stalls(effect.stalls)),
        Needs::Blocks(more) => format!(
            "which may be chance in {}: {more} more would show it",
            human::count(effect.blocks, "step")
        ),
        Needs::Peers(_) => "and it has too few peers to know what is usual".into(),
        Needs::Another => "and healthy ranks may differ by as much".into(),
    }
}

fn stalls(number: u32) -> String {
    human::count(usize::try_from(number).unwrap_or(usize::MAX), "stall")
}
