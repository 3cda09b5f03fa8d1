// SPDX-License-Identifier: Apache-2.0
//! The columns of the table: what is true of a job, and sums over what the tool said about jobs.

use std::collections::{BTreeMap, BTreeSet};

use ncclscope_findings::FindingClass;

use super::answered::{Answered, NONE, Said};
use super::score::Cause;
use super::tool::Spent;

/// The share of a step from which a loss must be named: m of the design.
pub(super) const LEAST_COST: f64 = 0.02;
/// Smallest true cost whose relative error says something, as a share of a step.
const LEAST_TRUE: f64 = 0.01;
/// A cost is near if it is off by no more than this share of the truth.
const NEAR: f64 = 0.25;

/// What is true of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Truth {
    /// What must be named.
    pub(super) causes: Vec<Expected>,
    /// False if nothing is wrong: any finding is a false alarm.
    pub(super) has_fault: bool,
    /// Ranks that may be named in addition: their faults cost too little.
    pub(super) allowed: BTreeSet<u64>,
    /// Parts of the job that may lead CAUSES OF THE WAITING, as the ranks at fault may.
    pub(super) parts: Vec<String>,
    /// The share of a step that the job would save; `None` if it is not known.
    pub(super) cost: Option<f64>,
    /// True if it loses at least [`LEAST_COST`], so that FINE is wrong.
    pub(super) is_slow: bool,
}

/// A cause that must be named.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Expected {
    /// Any of these classes is right.
    pub(super) classes: Vec<FindingClass>,
    /// Any of these sets of ranks is right; empty if no rank is at fault.
    pub(super) ranks: Vec<BTreeSet<u64>>,
}

impl From<&Cause> for Expected {
    fn from(cause: &Cause) -> Expected {
        let ranks = if cause.ranks.is_empty() { vec![] } else { vec![cause.ranks.clone()] };
        Expected { classes: vec![cause.class], ranks }
    }
}

impl Expected {
    fn has_class(&self, said: &Said) -> bool {
        self.classes.contains(&said.cause.class)
    }

    /// True if the finding names the ranks, or the class where no rank is at fault.
    fn has_root(&self, said: &Said) -> bool {
        match self.ranks.as_slice() {
            [] => self.has_class(said),
            sets => sets.iter().any(|set| set.is_subset(&said.cause.ranks)),
        }
    }
}

impl Truth {
    /// A job whose planted faults are known.
    pub(super) fn of(causes: &[Cause]) -> Truth {
        let expected = causes.iter().map(Expected::from).collect();
        Truth { causes: expected, has_fault: !causes.is_empty(), ..Truth::default() }
    }

    /// The same job if it would save this share of a step: what costs too little need not be named.
    pub(super) fn costing(mut self, cost: f64) -> Truth {
        (self.cost, self.is_slow) = (Some(cost), cost >= LEAST_COST);
        if cost < LEAST_COST {
            self.allowed.extend(self.ranks());
            self.causes.clear();
        }
        self
    }

    /// False if a cause has all of so many ranks: a last stage that is the only one.
    pub(super) fn can_be_found(&self, ranks: u64) -> bool {
        let is_all = |set: &BTreeSet<u64>| set.len() as u64 == ranks;
        !self.causes.iter().any(|cause| cause.ranks.iter().any(is_all))
    }

    fn ranks(&self) -> BTreeSet<u64> {
        self.causes.iter().flat_map(|cause| cause.ranks.iter().flatten().copied()).collect()
    }

    /// The costs of the findings that name a cause, added up, with their intervals.
    fn cost_of(&self, findings: &[Said]) -> (f64, Option<[f64; 2]>) {
        let is_right = |said: &&Said| self.causes.iter().any(|cause| cause.has_root(said));
        let right: Vec<&Said> = findings.iter().filter(is_right).collect();
        let cost = right.iter().filter_map(|said| said.cost).sum();
        let ends: Option<Vec<[f64; 2]>> = right.iter().map(|said| said.interval).collect();
        let ends = ends.filter(|ends| !ends.is_empty());
        let sum = |[low, high]: [f64; 2], [a, b]: [f64; 2]| [low + a, high + b];
        (cost, ends.map(|ends| ends.into_iter().fold([0.0; 2], sum)))
    }
}

/// How many of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) of: u64,
    pub(super) is: u64,
}

impl Part {
    fn add(&mut self, is: bool) {
        self.of += 1;
        self.is += u64::from(is);
    }

    fn add_times(&mut self, other: Part, times: u64) {
        self.of += other.of * times;
        self.is += other.is * times;
    }
}

/// Sums over jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) jobs: u64,
    /// Causes whose class a finding has, and those whose ranks one has.
    pub(super) class: Part,
    pub(super) root: Part,
    /// Ranks that findings name and that are not at fault.
    pub(super) extra: u64,
    /// Jobs in which the first row of CAUSES OF THE WAITING is a root.
    pub(super) first_row: Part,
    /// Relative errors of costs.
    pub(super) errors: Vec<f64>,
    /// Costs whose interval has the truth.
    pub(super) inside: Part,
    /// Healthy jobs, and those with a finding of a class.
    pub(super) healthy: u64,
    pub(super) alarms: BTreeMap<&'static str, u64>,
    pub(super) cannot_tell: Part,
    /// Jobs that lose [`LEAST_COST`], and those among them that the report calls FINE.
    pub(super) fine: Part,
    pub(super) spent: Spent,
}

impl Figures {
    /// Adds a job. Returns what is wrong; `None` if nothing is.
    pub(super) fn add(&mut self, truth: &Truth, said: &Answered) -> Option<String> {
        let mut wrong = Vec::new();
        self.jobs += 1;
        self.spent.add(said.spent);
        for cause in &truth.causes {
            let has_class = said.findings.iter().any(|it| cause.has_class(it));
            let has_root = said.findings.iter().any(|it| cause.has_root(it));
            self.class.add(has_class);
            self.root.add(has_root);
            if !has_class || !has_root {
                wrong.push(format!("not named: {}", cause.shown()));
            }
        }
        let mut may_be: BTreeSet<u64> = truth.allowed.clone();
        may_be.extend(truth.ranks());
        let named: BTreeSet<u64> =
            said.findings.iter().flat_map(|it| it.cause.ranks.iter().copied()).collect();
        let extra = named.difference(&may_be).count() as u64;
        self.extra += extra;
        if extra > 0 {
            wrong.push(format!("{extra} wrong ranks"));
        }
        wrong.extend(self.add_alarms(truth, said));
        wrong.extend(self.add_first_row(truth, said));
        wrong.extend(self.add_cost(truth, said));
        if let Some(state) = &said.state {
            self.cannot_tell.add(state == "UNKNOWN");
            let is_fine = state == "FINE" && truth.is_slow;
            if truth.is_slow {
                self.fine.add(is_fine);
            }
            wrong.extend(is_fine.then(|| "FINE".to_owned()));
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }

    fn add_alarms(&mut self, truth: &Truth, said: &Answered) -> Option<String> {
        if truth.has_fault {
            return None;
        }
        self.healthy += 1;
        let classes: BTreeSet<&'static str> =
            said.findings.iter().map(|it| it.cause.class.code()).collect();
        classes.iter().for_each(|class| *self.alarms.entry(class).or_default() += 1);
        let list: Vec<&str> = classes.into_iter().collect();
        (!list.is_empty()).then(|| format!("false alarm {}", list.join(" ")))
    }

    /// Only a table that exists, and of a job in which a part is at fault.
    fn add_first_row(&mut self, truth: &Truth, said: &Answered) -> Option<String> {
        let first = said.first_row.as_ref()?;
        let mut roots = truth.parts.clone();
        let is_right = |it: &&Said| truth.causes.iter().any(|cause| cause.has_root(it));
        let parts = said.findings.iter().filter(is_right).map(|it| it.root.clone());
        roots.extend(parts.filter(|part| part != NONE));
        roots.extend(truth.ranks().iter().map(|rank| format!("rank {rank}")));
        if roots.is_empty() {
            return None;
        }
        let is_root = roots.contains(&first.part)
            || (!first.ranks.is_empty() && first.ranks.is_subset(&truth.ranks()));
        self.first_row.add(is_root);
        (!is_root).then(|| format!("first row {} {:?}", first.part, first.ranks))
    }

    fn add_cost(&mut self, truth: &Truth, said: &Answered) -> Option<String> {
        let cost = truth.cost.filter(|cost| *cost >= LEAST_TRUE && !truth.causes.is_empty())?;
        let (found, interval) = truth.cost_of(&said.findings);
        let error = (found / cost - 1.0).abs();
        self.errors.push(error);
        self.inside.add(interval.is_some_and(|[low, high]| (low..=high).contains(&cost)));
        let percent = |share: f64| 100.0 * share;
        (error > NEAR).then(|| format!("cost {:.1} % for {:.1} %", percent(found), percent(cost)))
    }

    /// Adds the jobs of another row, each so many times.
    pub(super) fn add_times(&mut self, other: &Figures, times: u64) {
        self.jobs += other.jobs * times;
        self.class.add_times(other.class, times);
        self.root.add_times(other.root, times);
        self.extra += other.extra * times;
        self.first_row.add_times(other.first_row, times);
        (0..times).for_each(|_| self.errors.extend(&other.errors));
        self.inside.add_times(other.inside, times);
        self.healthy += other.healthy * times;
        for (class, count) in &other.alarms {
            *self.alarms.entry(class).or_default() += count * times;
        }
        self.cannot_tell.add_times(other.cannot_tell, times);
        self.fine.add_times(other.fine, times);
        self.spent.add(other.spent);
    }

    /// The error of a cost that this percentage of costs does not exceed.
    pub(super) fn error(&self, percent: usize) -> Option<f64> {
        let mut errors = self.errors.clone();
        errors.sort_unstable_by(f64::total_cmp);
        errors.get(errors.len().checked_sub(1)? * percent / 100).copied()
    }

    /// Costs that are near the truth.
    pub(super) fn near(&self) -> Part {
        let near = self.errors.iter().filter(|error| **error <= NEAR).count();
        Part { of: self.errors.len() as u64, is: near as u64 }
    }
}

impl Expected {
    fn shown(&self) -> String {
        let classes: Vec<&str> = self.classes.iter().map(|class| class.code()).collect();
        let sets: Vec<String> = self.ranks.iter().map(|set| format!("{set:?}")).collect();
        format!("{} {}", classes.join("/"), sets.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::answered::FirstRow;

    fn cause(class: &str, ranks: &[u64]) -> Cause {
        Cause { class: class.parse().expect("a class"), ranks: ranks.iter().copied().collect() }
    }

    fn answered(state: &str, findings: &[(&str, &[u64], f64)]) -> Answered {
        let said = |(class, ranks, cost): &(&str, &[u64], f64)| Said {
            cause: cause(class, ranks),
            root: format!("stage {}", ranks.first().unwrap_or(&0)),
            cost: Some(*cost),
            interval: Some([cost - 0.01, cost + 0.01]),
        };
        Answered {
            state: Some(state.into()),
            findings: findings.iter().map(said).collect(),
            ..Answered::default()
        }
    }

    fn row(part: &str) -> FirstRow {
        FirstRow { part: part.into(), ranks: BTreeSet::new() }
    }

    #[test]
    fn a_right_answer_is_right_in_each_column() {
        let truth = Truth::of(&[cause("S1", &[3])]).costing(0.2);
        let mut said = answered("SLOW", &[("S1", &[3], 0.205)]);
        said.first_row = Some(row("rank 3"));
        let mut sum = Figures::default();
        assert_eq!(sum.add(&truth, &said), None);
        for part in [sum.class, sum.root, sum.first_row, sum.inside, sum.near()] {
            assert_eq!(part, Part { of: 1, is: 1 });
        }
        // The finding's root may be a stage.
        said.first_row = Some(row("stage 3"));
        assert_eq!(sum.add(&truth, &said), None);
        said.first_row = Some(row("stage 4"));
        assert_eq!(sum.add(&truth, &said).as_deref(), Some("first row stage 4 {}"));
        assert_eq!((sum.extra, sum.healthy), (0, 0));
        assert_eq!((sum.cannot_tell.is, sum.fine), (0, Part { of: 3, is: 0 }));
        assert!(sum.error(50).is_some_and(|error| (error - 0.025).abs() < 1e-9));
    }

    #[test]
    fn class_root_and_extra_ranks_are_columns_of_their_own() {
        let truth = Truth::of(&[cause("S4", &[3])]).costing(0.2);
        let mut sum = Figures::default();
        let wrong = sum.add(&truth, &answered("SLOW", &[("S3", &[3, 7], 0.2)]));
        assert!(wrong.is_some_and(|it| it.contains("not named: S4") && it.contains("1 wrong")));
        assert_eq!((sum.class.is, sum.root.is, sum.extra), (0, 1, 1));
        // Any of several classes and sets of ranks.
        let ranks = vec![[1].into(), [1, 2].into()];
        let classes = cause("S3", &[]).class;
        let either = Expected { classes: vec![classes, cause("S4", &[]).class], ranks };
        let truth = Truth { causes: vec![either], has_fault: true, ..Truth::default() };
        assert_eq!(sum.add(&truth, &answered("SLOW", &[("S4", &[1], 0.2)])), None);
        assert_eq!((sum.class, sum.root), (Part { of: 2, is: 1 }, Part { of: 2, is: 2 }));
    }

    #[test]
    fn a_fault_of_no_rank_is_found_by_its_class() {
        let truth = Truth::of(&[cause("S2", &[])]).costing(0.1);
        let mut sum = Figures::default();
        assert_eq!(sum.add(&truth, &answered("SLOW", &[("S2", &[], 0.1)])), None);
        assert!(sum.add(&truth, &answered("SLOW", &[("S6", &[], 0.1)])).is_some());
        assert_eq!(sum.root, Part { of: 2, is: 1 });
    }

    #[test]
    fn a_cost_that_is_not_named_is_wrong_and_fine_is_counted() {
        let truth = Truth::of(&[cause("S1", &[3])]).costing(0.2);
        let mut sum = Figures::default();
        assert!(sum.add(&truth, &answered("FINE", &[])).is_some_and(|it| it.ends_with("FINE")));
        assert_eq!(
            (sum.error(90), sum.inside, sum.near().is),
            (Some(1.0), Part { of: 1, is: 0 }, 0)
        );
        assert_eq!(sum.fine, Part { of: 1, is: 1 });
    }

    #[test]
    fn a_fault_that_costs_little_may_be_named_and_need_not() {
        let truth = Truth::of(&[cause("S3", &[3, 4])]).costing(0.001);
        let mut sum = Figures::default();
        assert_eq!(sum.add(&truth, &answered("FINE", &[])), None);
        assert_eq!(sum.add(&truth, &answered("SLOW", &[("S3", &[3, 4], 0.0)])), None);
        assert_eq!(
            sum.add(&truth, &answered("SLOW", &[("S3", &[3, 5], 0.0)])).as_deref(),
            Some("1 wrong ranks")
        );
        let truth = Truth::of(&[cause("S2", &[])]).costing(0.001);
        assert_eq!(sum.add(&truth, &answered("SLOW", &[("S2", &[], 0.0)])), None);
        assert_eq!((sum.class.of, sum.healthy, sum.fine.of), (0, 0, 0));
    }

    #[test]
    fn a_fault_of_all_ranks_cannot_be_found() {
        let truth = Truth::of(&[cause("S1", &[0, 1])]);
        assert!(truth.can_be_found(4) && !truth.can_be_found(2));
    }

    #[test]
    fn false_alarms_count_once_for_each_class_and_job() {
        let mut sum = Figures::default();
        let twice = answered("SLOW", &[("S1", &[3], 0.1), ("S1", &[4], 0.1), ("S3", &[1, 2], 0.1)]);
        assert!(sum.add(&Truth::default(), &twice).is_some());
        assert_eq!(sum.add(&Truth::default(), &answered("UNKNOWN", &[])), None);
        assert_eq!((sum.healthy, sum.alarms["S1"], sum.alarms["S3"]), (2, 1, 1));
        assert_eq!((sum.cannot_tell, sum.extra), (Part { of: 2, is: 1 }, 4));
    }

    #[test]
    fn costs_of_two_faults_add_up() {
        let truth = Truth::of(&[cause("S1", &[3]), cause("S4", &[9])]).costing(0.3);
        let mut sum = Figures::default();
        let both = [("S1", &[3][..], 0.2), ("S4", &[9], 0.1), ("S3", &[1, 2], 0.5)];
        sum.add(&truth, &answered("SLOW", &both));
        assert!(sum.error(50).is_some_and(|error| error < 1e-9), "{sum:?}");
        assert_eq!((sum.inside.is, sum.extra), (1, 2));
    }

    #[test]
    fn a_row_can_count_twice() {
        let truth = Truth::of(&[cause("S1", &[3])]).costing(0.2);
        let (mut row, mut all) = (Figures::default(), Figures::default());
        row.add(&truth, &answered("SLOW", &[("S1", &[3], 0.2)]));
        all.add_times(&row, 2);
        all.add_times(&row, 1);
        assert_eq!((all.jobs, all.class, all.errors.len()), (3, Part { of: 3, is: 3 }, 3));
    }

    #[test]
    fn percentiles_are_of_sorted_errors() {
        let errors = (1..=11).rev().map(f64::from).collect();
        let sum = Figures { errors, ..Figures::default() };
        assert_eq!((sum.error(50), sum.error(90)), (Some(6.0), Some(10.0)));
        assert_eq!(Figures::default().error(50), None);
    }
}
