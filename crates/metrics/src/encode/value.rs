// SPDX-License-Identifier: Apache-2.0
//! The value of a point, and how two values are combined.

use ncclscope_operations::Histogram;
use ncclscope_operations::stats::to_f64;

/// The kind of a metric, and how values of several series are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; figures add up.
    Counter,
    /// A state, of which all series together have the sum.
    Sum,
    /// A state, of which all series together have the greatest.
    Max,
    /// A base-2 exponential histogram; they merge.
    Histogram,
}

impl Kind {
    /// Whether it counts from the beginning on, and is no state.
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

/// The figure of a point.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// Any number.
    Sum(f64),
    /// A distribution.
    Histogram(Box<Histogram>),
}

impl Value {
    /// A distribution; `None` where nothing was measured.
    pub(crate) fn histogram(histogram: &Histogram) -> Option<Value> {
        (histogram.count > 0).then(|| Value::Histogram(Box::new(histogram.clone())))
    }

    /// The number; of a distribution its sum.
    #[must_use]
    pub fn number(&self) -> f64 {
        match self {
            Value::Count(count) => to_f64(*count),
            Value::Sum(sum) => *sum,
            Value::Histogram(histogram) => histogram.sum,
        }
    }

    /// Makes one figure of two, as `kind` says.
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
