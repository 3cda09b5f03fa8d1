// SPDX-License-Identifier: Apache-2.0
//! The results of all runs, and figures from them: one number per round, paired within the round.

use std::collections::BTreeMap;

use serde_json::Value;

use super::loads::{Load, NULL, Subject};

/// A thread of the driver.
#[derive(Debug, Clone, Copy)]
pub(super) enum Thread {
    /// Calls the API.
    Enqueue,
    /// Makes the network and kernel channel callbacks.
    Proxy,
}

impl Thread {
    /// Its key in the driver's results.
    const fn key(self) -> &'static str {
        match self {
            Thread::Enqueue => "enqueue",
            Thread::Proxy => "proxy",
        }
    }
}

/// The driver's results by (load, plugin), one for each round.
#[derive(Debug, Default)]
pub(super) struct Runs(BTreeMap<(&'static str, &'static str), Vec<Run>>);

#[derive(Debug)]
struct Run {
    result: Value,
    /// True if the run is complete: a plugin that refuses events gets fewer callbacks.
    is_valid: bool,
}

impl Runs {
    /// Adds the result of a round.
    pub(super) fn add(&mut self, load: &Load, subject: &Subject, result: Value) {
        let refused = result["null_handles"].as_object().is_none_or(|kinds| !kinds.is_empty());
        let is_valid = load.may_lose || !refused;
        self.0.entry((load.name, subject.name)).or_default().push(Run { result, is_valid });
    }

    /// All results: load, plugin, whether the run is valid, what the driver printed.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str, bool, &Value)> {
        let runs = self.0.iter().flat_map(|(names, runs)| runs.iter().map(move |run| (names, run)));
        runs.map(|(&(load, subject), run)| (load, subject, run.is_valid, &run.result))
    }

    /// A number of each valid run.
    pub(super) fn each(
        &self,
        load: &Load,
        subject: &Subject,
        number: impl Fn(&Value) -> Option<f64>,
    ) -> Series {
        let runs = self.0.get(&(load.name, subject.name)).into_iter().flatten();
        Series(runs.map(|run| if run.is_valid { number(&run.result) } else { None }).collect())
    }

    /// The number at a JSON pointer.
    pub(super) fn at(&self, load: &Load, subject: &Subject, pointer: &str) -> Series {
        self.each(load, subject, |result| result.pointer(pointer)?.as_f64())
    }

    /// Number of events that got a null handle, also in runs that are therefore not valid.
    pub(super) fn refused(&self, load: &Load, subject: &Subject) -> Series {
        let runs = self.0.get(&(load.name, subject.name)).into_iter().flatten();
        let refused = |run: &Run| {
            let kinds = run.result["null_handles"].as_object()?;
            Some(kinds.values().filter_map(Value::as_f64).fold(0.0, |sum, count| sum + count))
        };
        Series(runs.map(refused).collect())
    }

    /// Time of a callback at a percentile (`p50`, `p99`, `p999`), ns, without the timer's own; only
    /// for loads that time each callback.
    pub(super) fn percentile(
        &self,
        load: &Load,
        thread: Thread,
        subject: &Subject,
        percentile: &str,
    ) -> Series {
        self.at(load, subject, &format!("/{}/all/{percentile}", thread.key()))
    }

    /// Time of a callback in the median operation, ns, including the driver's work.
    pub(super) fn cost(&self, load: &Load, thread: Thread, subject: &Subject) -> Series {
        self.each(load, subject, |result| cost(result, thread).map(|(nanoseconds, _)| nanoseconds))
    }

    /// Time that a plugin adds to a callback, ns: the cost minus that of the plugin that does
    /// nothing.
    pub(super) fn added(&self, load: &Load, thread: Thread, subject: &Subject) -> Series {
        self.cost(load, thread, subject).minus(&self.cost(load, thread, NULL))
    }

    /// Time that a plugin adds to an operation, ns. Used because operations that find a full lane
    /// make fewer callbacks.
    pub(super) fn added_to_operation(
        &self,
        load: &Load,
        thread: Thread,
        subject: &Subject,
    ) -> Series {
        let calls = self.each(load, subject, |result| cost(result, thread).map(|(_, calls)| calls));
        self.added(load, thread, subject).zip(&calls, |added, calls| Some(added * calls))
    }
}

/// Time of a callback in the median operation (ns, including the driver's work), and number of
/// callbacks of an operation.
fn cost(result: &Value, thread: Thread) -> Option<(f64, f64)> {
    let of = &result[thread.key()];
    let calls = of["calls"].as_f64()? / result["ops"].as_f64()?;
    (calls > 0.0).then_some((of["busy_p50"].as_f64()? / calls, calls))
}

/// One number for each round; `None` if the run is not valid.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series(Vec<Option<f64>>);

impl Series {
    /// Combines two series round by round.
    pub(super) fn zip(&self, other: &Series, with: impl Fn(f64, f64) -> Option<f64>) -> Series {
        let pairs = self.0.iter().zip(&other.0);
        Series(pairs.map(|(one, other)| with((*one)?, (*other)?)).collect())
    }

    /// The difference, round by round.
    pub(super) fn minus(&self, other: &Series) -> Series {
        self.zip(other, |one, other| Some(one - other))
    }

    /// The ratio, round by round; `None` if noise made a difference negative.
    pub(super) fn over(&self, other: &Series) -> Series {
        self.zip(other, |one, other| (other > 0.0).then_some(one / other))
    }

    /// The series divided by `divisor`, to convert units.
    pub(super) fn by(&self, divisor: f64) -> Series {
        Series(self.0.iter().map(|number| number.map(|number| number / divisor)).collect())
    }

    /// Both series, one after the other.
    pub(super) fn and(mut self, other: Series) -> Series {
        self.0.extend(other.0);
        self
    }

    /// The existing numbers, ascending, and how many there should be.
    pub(super) fn sorted(&self) -> (Vec<f64>, usize) {
        let mut numbers: Vec<f64> = self.0.iter().flatten().copied().collect();
        numbers.sort_by(f64::total_cmp);
        (numbers, self.0.len())
    }

    /// The median (for an even number of rounds, the mean of the middle two).
    pub(super) fn median(&self) -> Option<f64> {
        let (numbers, _) = self.sorted();
        let last = numbers.len().checked_sub(1)?;
        Some(f64::midpoint(numbers[last / 2], numbers[last.div_ceil(2)]))
    }

    /// One number: the share of the numbers that are over `factor` times the smallest.
    pub(super) fn share_above(&self, factor: f64) -> Series {
        let (numbers, _) = self.sorted();
        let above = |least: &f64| numbers.iter().filter(|&&one| one > factor * least).count();
        let share = numbers.first().map(|least| above(least) as f64 / numbers.len() as f64);
        Series(vec![share])
    }

    /// One number: the first of the slowest tenth.
    pub(super) fn slowest_tenth(&self) -> Series {
        let (numbers, _) = self.sorted();
        let from_the_end = numbers.len().div_ceil(10);
        Series(vec![
            numbers.len().checked_sub(from_the_end).and_then(|at| numbers.get(at)).copied(),
        ])
    }

    pub(super) fn max(&self) -> Option<f64> {
        self.sorted().0.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::loads::{BULK2, CLOSED, OURS, RING};
    use super::*;
    use serde_json::json;

    /// What the driver prints of a run whose operations make 10 callbacks.
    fn result(busy: f64, refused: u64) -> Value {
        let nulls = if refused == 0 { json!({}) } else { json!({"Coll": refused}) };
        let thread = json!({"calls": 1000, "busy_p50": busy, "busy_max_us": busy});
        json!({"ops": 100, "null_handles": nulls, "proxy": thread, "enqueue": thread})
    }

    #[test]
    fn costs_are_paired_within_a_round() {
        let mut runs = Runs::default();
        // The second round is on a machine twice as slow; in the third, events were lost.
        for (scale, refused) in [(1.0, 0), (2.0, 0), (1.0, 9)] {
            runs.add(BULK2, NULL, result(100.0 * scale, 0));
            runs.add(BULK2, RING, result(200.0 * scale, 0));
            runs.add(BULK2, OURS, result(180.0 * scale, refused));
        }
        let added = runs.added(BULK2, Thread::Proxy, OURS);
        assert_eq!(added, Series(vec![Some(8.0), Some(16.0), None]));
        let ratio = added.over(&runs.added(BULK2, Thread::Proxy, RING));
        assert_eq!(ratio, Series(vec![Some(0.8), Some(0.8), None]));
        assert_eq!(ratio.median(), Some(0.8));
        assert_eq!(runs.refused(BULK2, OURS).max(), Some(9.0));
        let operation = runs.added_to_operation(BULK2, Thread::Proxy, OURS);
        assert_eq!(operation.max(), Some(160.0));
    }

    #[test]
    fn a_load_that_may_lose_is_valid_all_the_same() {
        let mut runs = Runs::default();
        runs.add(CLOSED, OURS, result(1.0, 9));
        assert_eq!(runs.at(CLOSED, OURS, "/proxy/busy_p50").median(), Some(1.0));
        assert!(runs.all().all(|(load, _, is_valid, _)| load == "gate shut" && is_valid));
    }

    #[test]
    fn a_few_slow_processes_are_a_share() {
        let series = Series((0..10).map(|at| Some(if at == 4 { 13.0 } else { 10.0 })).collect());
        assert_eq!(series.share_above(1.2), Series(vec![Some(0.1)]));
        assert_eq!(series.slowest_tenth(), Series(vec![Some(13.0)]));
        let nothing = Series(Vec::new());
        assert_eq!(nothing.share_above(1.2).median(), None);
        assert_eq!(nothing.slowest_tenth().median(), None);
    }

    #[test]
    fn there_is_no_ratio_to_nothing() {
        let (one, nothing) = (Series(vec![Some(1.0), Some(2.0)]), Series(vec![Some(-0.1), None]));
        assert_eq!(one.over(&nothing).median(), None);
        assert_eq!(one.median(), Some(1.5));
        assert_eq!(one.and(nothing).sorted(), (vec![-0.1, 1.0, 2.0], 4));
    }
}
