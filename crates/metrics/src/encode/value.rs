// SPDX-License-Identifier: Apache-2.0
//! The value of a point, and the combination of values.

use ncclscope_operations::Histogram;
use ncclscope_operations::stats::to_f64;

/// The kind of a metric, and how values of several series are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A counter that only grows; values are added.
    Counter,
    /// A state; values of several series are added.
    Sum,
    /// A state; of several series the greatest value is used.
    Max,
    /// A base-2 exponential histogram; histograms are merged.
    Histogram,
}

impl Kind {
    /// Whether values accumulate over time, which states do not.
    #[must_use]
    pub const fn adds_up(self) -> bool {
        matches!(self, Kind::Counter | Kind::Histogram)
    }

    /// The name in the documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Sum | Kind::Max => "gauge",
            Kind::Histogram => "exponential histogram",
        }
    }
}

/// The value of a point.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// A number that need not be whole.
    Sum(f64),
    /// A distribution.
    Histogram(Box<Histogram>),
}

impl Value {
    /// The distribution as a value; `None` if it is empty.
    pub(crate) fn histogram(histogram: &Histogram) -> Option<Value> {
        (histogram.count > 0).then(|| Value::Histogram(Box::new(histogram.clone())))
    }

    /// The number; for a distribution its sum.
    #[must_use]
    pub fn number(&self) -> f64 {
        match self {
            Value::Count(count) => to_f64(*count),
            Value::Sum(sum) => *sum,
            Value::Histogram(histogram) => histogram.sum,
        }
    }

    /// Combines two values by the rule of `kind`.
    pub(crate) fn merge(&mut self, kind: Kind, other: Value) {
        match (self, other) {
            (Value::Histogram(mine), Value::Histogram(other)) => mine.merge(&other),
            (Value::Count(mine), Value::Count(other)) if kind == Kind::Max => {
                *mine = (*mine).max(other);
            }
            (Value::Count(mine), Value::Count(other)) => *mine = mine.saturating_add(other),
            (mine, other) if kind == Kind::Max => {
                *mine = Value::Sum(mine.number().max(other.number()));
            }
            (mine, other) => *mine = Value::Sum(mine.number() + other.number()),
        }
    }
}
