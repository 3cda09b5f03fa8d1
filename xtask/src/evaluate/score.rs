// SPDX-License-Identifier: Apache-2.0
//! Compares findings with the planted faults.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use ncclscope_findings::FindingClass;
use serde_json::Value;

use crate::outcome::Outcome;

/// A planted or found cause with its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) class: FindingClass,
    pub(super) ranks: BTreeSet<u64>,
}

impl Cause {
    /// The causes of a list of verdicts, findings or truths.
    pub(super) fn list(array: &Value) -> Outcome<Vec<Cause>> {
        let cause = |row: &Value| {
            let ranks = row["root_ranks"].as_array().into_iter().flatten();
            Ok(Cause {
                class: row["class"].as_str().unwrap_or_default().parse()?,
                ranks: ranks.filter_map(Value::as_u64).collect(),
            })
        };
        array.as_array().into_iter().flatten().map(cause).collect()
    }
}

/// Numbers of correct, unfounded and missed results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) right: u64,
    pub(super) wrong: u64,
    pub(super) missed: u64,
}

impl Tally {
    /// Share of the results that are correct; `None` without results.
    pub(super) fn precision(self) -> Option<f64> {
        share(self.right, self.wrong)
    }

    /// Share of the existing causes that were found; `None` if there were none.
    pub(super) fn recall(self) -> Option<f64> {
        share(self.right, self.missed)
    }

    /// True if neither is below `least`. `None` is no failure.
    pub(super) fn reaches(self, least: f64) -> bool {
        [self.precision(), self.recall()].into_iter().flatten().all(|share| share >= least)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.missed += other.missed;
    }
}

fn share(part: u64, rest: u64) -> Option<f64> {
    (part + rest > 0).then(|| float(part) / float(part + rest))
}

/// A count as a number with a fraction.
#[expect(clippy::cast_precision_loss, reason = "counts of jobs and verdicts")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

/// The comparison of a run's verdicts with its truth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Score {
    /// By class: the reported class of wrong verdicts, else the planted class.
    pub(super) classes: BTreeMap<FindingClass, Tally>,
    /// Ranks named, over all causes.
    pub(super) ranks: Tally,
    /// Number of runs; `exact` is the number of those in which everything is right.
    pub(super) runs: u64,
    pub(super) exact: u64,
}

impl Score {
    /// Compares. A verdict matches a planted cause of its class, preferably one with the same
    /// ranks.
    pub(super) fn of(planted: &[Cause], found: &[Cause]) -> Score {
        let mut score = Score { runs: 1, ..Score::default() };
        let mut left: Vec<&Cause> = found.iter().collect();
        for truth in planted {
            let fits = |cause: &&Cause| cause.class == truth.class;
            let same = left.iter().position(|cause| fits(cause) && cause.ranks == truth.ranks);
            let tally = score.classes.entry(truth.class).or_default();
            match same.or_else(|| left.iter().position(fits)) {
                Some(at) => {
                    left.remove(at);
                    tally.right += 1;
                }
                None => tally.missed += 1,
            }
        }
        for cause in left {
            score.classes.entry(cause.class).or_default().wrong += 1;
        }
        let all = |causes: &[Cause]| -> BTreeSet<u64> {
            causes.iter().flat_map(|cause| cause.ranks.iter().copied()).collect()
        };
        let (truth, said) = (all(planted), all(found));
        let count = |set: usize| set as u64;
        score.ranks = Tally {
            right: count(truth.intersection(&said).count()),
            wrong: count(said.difference(&truth).count()),
            missed: count(truth.difference(&said).count()),
        };
        score.exact = u64::from(score.is_exact());
        score
    }

    /// True if there is no unfounded and no missed result.
    pub(super) fn is_exact(&self) -> bool {
        let clean = |tally: &Tally| tally.wrong == 0 && tally.missed == 0;
        clean(&self.ranks) && self.classes.values().all(clean)
    }

    pub(super) fn all_classes(&self) -> Tally {
        let mut all = Tally::default();
        self.classes.values().for_each(|&tally| all += tally);
        all
    }
}

impl AddAssign<&Score> for Score {
    fn add_assign(&mut self, other: &Score) {
        for (&class, &tally) in &other.classes {
            *self.classes.entry(class).or_default() += tally;
        }
        self.ranks += other.ranks;
        self.runs += other.runs;
        self.exact += other.exact;
    }
}

/// Causes as a table shows them.
pub(super) fn words(causes: &[Cause]) -> String {
    let one = |cause: &Cause| {
        let ranks: Vec<String> = cause.ranks.iter().take(6).map(u64::to_string).collect();
        let more = if cause.ranks.len() > 6 { ",..." } else { "" };
        format!("{}[{}{more}]", cause.class.code(), ranks.join(","))
    };
    let all: Vec<String> = causes.iter().take(4).map(one).collect();
    if all.is_empty() { "nothing".into() } else { all.join(" ") }
}

/// A share as a table shows it.
pub(super) fn shown(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{share:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(class: &str) -> FindingClass {
        class.parse().expect("a class")
    }

    fn cause(class: &str, ranks: &[u64]) -> Cause {
        Cause { class: named(class), ranks: ranks.iter().copied().collect() }
    }

    #[test]
    fn all_right_is_exact() {
        let planted = [cause("H1a", &[3]), cause("H1a", &[5])];
        let score = Score::of(&planted, &[cause("H1a", &[5]), cause("H1a", &[3])]);
        assert!(score.is_exact() && score.exact == 1);
        assert_eq!(score.classes[&named("H1a")], Tally { right: 2, wrong: 0, missed: 0 });
        assert_eq!(score.ranks, Tally { right: 2, wrong: 0, missed: 0 });
        assert!(Score::of(&[], &[]).is_exact(), "a control of which nothing is said");
    }

    #[test]
    fn each_kind_of_error_counts_where_it_belongs() {
        let score = Score::of(&[cause("H3a", &[1])], &[cause("N1", &[1, 2])]);
        assert_eq!(score.classes[&named("H3a")], Tally { right: 0, wrong: 0, missed: 1 });
        assert_eq!(score.classes[&named("N1")], Tally { right: 0, wrong: 1, missed: 0 });
        assert_eq!(score.ranks, Tally { right: 1, wrong: 1, missed: 0 });
        assert!(!score.is_exact());
        assert_eq!(score.all_classes(), Tally { right: 0, wrong: 1, missed: 1 });
        assert!(!score.all_classes().reaches(0.5) && Tally::default().reaches(1.0));
    }

    #[test]
    fn the_right_class_on_the_wrong_rank_is_not_exact() {
        let score = Score::of(&[cause("H1a", &[1])], &[cause("H1a", &[2])]);
        assert_eq!(score.classes[&named("H1a")].right, 1);
        assert_eq!(score.ranks, Tally { right: 0, wrong: 1, missed: 1 });
        assert!(!score.is_exact());
    }

    #[test]
    fn scores_add_up() {
        let mut sum = Score::default();
        sum += &Score::of(&[cause("S1", &[1])], &[cause("S1", &[1])]);
        sum += &Score::of(&[cause("S1", &[1])], &[]);
        assert_eq!((sum.runs, sum.exact), (2, 1));
        assert_eq!(sum.ranks.recall(), Some(0.5));
        assert_eq!(sum.classes[&named("S1")].precision(), Some(1.0));
    }

    #[test]
    fn lists_are_read_from_any_of_the_three() {
        let value = serde_json::json!([{"class": "H2", "root_ranks": [4, 2]}, {"class": "S2"}]);
        let all = Cause::list(&value).expect("known classes");
        assert_eq!(all, [cause("H2", &[2, 4]), cause("S2", &[])]);
        assert!(Cause::list(&Value::Null).expect("none").is_empty());
        let unknown = serde_json::json!([{"class": "H9", "root_ranks": []}]);
        assert!(Cause::list(&unknown).is_err(), "a verdict that the evaluation cannot judge");
    }
}
