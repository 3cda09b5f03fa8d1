// SPDX-License-Identifier: Apache-2.0
//! From a `Metrics` to points: what all encoders share.

use super::attributes::{self, Attribute, Attributes, Builder, CAUSE, EVENT, LANE, Labels};
use super::names::{Kind, METRICS, Metric, Source};
use ncclscope_operations::Histogram;
use ncclscope_operations::metrics::{Link, LinkKey, Metrics};
use ncclscope_operations::stats::to_f64;
use std::collections::BTreeMap;

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

/// A figure and what tells it apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its figure.
    pub value: Value,
}

/// All points of a metric. No two have the same attributes.
#[derive(Clone, Debug)]
pub struct Family {
    /// The metric.
    pub metric: &'static Metric,
    /// Its points, by attributes.
    pub points: Vec<Point>,
}

/// The points of all metrics. Metrics without a point are left out.
#[must_use]
pub fn families(metrics: &Metrics, labels: Labels) -> Vec<Family> {
    let links = links(metrics, labels);
    let family = |metric: &'static Metric| {
        let mut points = Points { metric, labels, points: BTreeMap::new() };
        points.fill(metrics, &links);
        let points = points.points.into_iter();
        let points = points.map(|(attributes, value)| Point { attributes, value }).collect();
        Family { metric, points }
    };
    METRICS.iter().map(family).filter(|family| !family.points.is_empty()).collect()
}

/// Links without the ranks that nobody asked for. A regression has to be merged before the line is
/// drawn: lines of several links do not merge.
fn links(metrics: &Metrics, labels: Labels) -> BTreeMap<LinkKey, Link> {
    let mut merged: BTreeMap<LinkKey, Link> = BTreeMap::new();
    for (key, link) in &metrics.links {
        let mut key = key.clone();
        if !labels.rank {
            key.rank = -1;
        }
        if !labels.peer {
            key.peer = -1;
        }
        merged.entry(key).or_default().merge(link);
    }
    merged
}

struct Points {
    metric: &'static Metric,
    labels: Labels,
    points: BTreeMap<Attributes, Value>,
}

impl Points {
    fn add(&mut self, mut attributes: Attributes, value: Option<Value>) {
        let Some(value) = value else { return };
        let (metric, labels) = (self.metric, self.labels);
        attributes.retain(|(name, _)| metric.attributes.contains(name) && labels.has(name));
        match self.points.get_mut(&attributes) {
            Some(mine) => mine.merge(metric.kind, value),
            None => {
                self.points.insert(attributes, value);
            }
        }
    }

    fn fill(&mut self, metrics: &Metrics, links: &BTreeMap<LinkKey, Link>) {
        let count = |count: &u64| Some(Value::Count(*count));
        match self.metric.source {
            Source::Operation(take) => metrics
                .operations
                .iter()
                .for_each(|(key, of)| self.add(attributes::operation(key), take(of))),
            Source::Link(take) => {
                links.iter().for_each(|(key, of)| self.add(attributes::link(key), take(of)));
            }
            Source::LinkBy(name, parts) => {
                for (key, of) in links {
                    for (part, take) in parts {
                        let mut attributes = attributes::link(key);
                        attributes.push((name, Attribute::from(*part)));
                        self.add(attributes, take(of));
                    }
                }
            }
            Source::Channel(take) => metrics
                .channels
                .iter()
                .for_each(|(key, of)| self.add(attributes::channel(key), take(of))),
            Source::Rank(take) => {
                metrics.ranks.iter().for_each(|(key, of)| self.add(attributes::rank(key), take(of)))
            }
            Source::Proxy(take) => metrics.proxies.iter().for_each(|(&lane, of)| {
                self.add(Builder::default().int(LANE, lane).0, take(of));
            }),
            Source::Events => metrics.events.iter().for_each(|(event, n)| {
                self.add(Builder::default().str(EVENT, event).0, count(n));
            }),
            Source::Lost => metrics.lost.iter().for_each(|((cause, event), n)| {
                self.add(Builder::default().str(CAUSE, cause).str(EVENT, event).0, count(n));
            }),
            Source::ExportsLost => metrics.exports_lost.iter().for_each(|(cause, n)| {
                self.add(Builder::default().str(CAUSE, cause).0, count(n));
            }),
            Source::Limiter => {}
        }
    }
}
