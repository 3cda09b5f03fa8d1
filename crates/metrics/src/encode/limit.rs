// SPDX-License-Identifier: Apache-2.0
//! A hard cap on series, so that a large job cannot fill a metrics store.

use super::attributes::{Attribute, Attributes, OVERFLOW};
use super::names::{DROPPED, METRICS, Metric};
use super::point::{Family, Point};
use super::prom;
use super::value::{Kind, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The greatest number of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// The most series, overflow series included. Less than those need is what they need.
    pub max_series: usize,
    /// Series that a histogram counts for.
    pub per_histogram: usize,
}

impl Cap {
    /// A cap on points of OTLP, where a histogram is one.
    #[must_use]
    pub const fn points(max_series: usize) -> Cap {
        Cap { max_series, per_histogram: 1 }
    }

    /// A cap on lines of the Prometheus text format, where a histogram is many.
    #[must_use]
    pub const fn lines(max_series: usize) -> Cap {
        Cap { max_series, per_histogram: prom::LINES_PER_HISTOGRAM }
    }

    fn weight(self, metric: &Metric) -> usize {
        if metric.kind == Kind::Histogram { self.per_histogram } else { 1 }
    }
}

/// Holds each export to a [`Cap`].
///
/// First come, first served, since a series that came and went would look like a counter that was
/// set back: what was exported the last time stays. New series of the smallest families come
/// first, so that losses are not crowded out. The rest of a family becomes one series, with the
/// attribute `otel.metric.overflow`. Of totals, what went there once stays there, also when its
/// communicator is gone: that counter must not fall either.
#[derive(Debug)]
pub struct Limiter {
    cap: Cap,
    admitted: BTreeSet<Id>,
    /// The series over the cap at the last export; of totals only.
    folded: BTreeMap<Id, Value>,
    /// The sum of the series over the cap that have ended.
    sunk: BTreeMap<&'static str, Value>,
    dropped: u64,
}

/// A metric's name and the attributes of a series.
type Id = (&'static str, Attributes);

impl Limiter {
    /// A limiter that has seen nothing.
    #[must_use]
    pub fn new(cap: Cap) -> Limiter {
        Limiter {
            cap,
            admitted: BTreeSet::new(),
            folded: BTreeMap::new(),
            sunk: BTreeMap::new(),
            dropped: 0,
        }
    }

    /// Folds what is too much, and adds the count of it: of all exports, or with `delta` of this
    /// one.
    #[must_use]
    pub fn apply(&mut self, mut families: Vec<Family>, delta: bool) -> Vec<Family> {
        let reserved: usize = METRICS.iter().map(|metric| self.cap.weight(metric)).sum();
        let mut room = self.cap.max_series.saturating_sub(reserved);
        let before = std::mem::take(&mut self.admitted);
        for family in &families {
            for point in &family.points {
                let id = (family.metric.name, point.attributes.clone());
                if before.contains(&id) {
                    room = room.saturating_sub(self.cap.weight(family.metric));
                    self.admitted.insert(id);
                }
            }
        }
        let mut dropped = 0;
        let before = std::mem::take(&mut self.folded);
        let mut order: Vec<&mut Family> = families.iter_mut().collect();
        order.sort_by_key(|family| family.points.len());
        for family in order {
            dropped += self.fold(family, &mut room, &before, delta);
        }
        self.sink(before);
        self.add_overflow(&mut families, delta);
        self.dropped += dropped;
        if let Some(metric) = METRICS.iter().find(|metric| metric.name == DROPPED) {
            let value = Value::Count(if delta { dropped } else { self.dropped });
            families.push(Family {
                metric,
                points: vec![Point { attributes: Attributes::new(), value }],
            });
        }
        families
    }

    /// Takes a family's points out for which there is no room, and returns how many. Of totals,
    /// those that were out `before` have none.
    fn fold(
        &mut self,
        family: &mut Family,
        room: &mut usize,
        before: &BTreeMap<Id, Value>,
        delta: bool,
    ) -> u64 {
        let (metric, weight) = (family.metric, self.cap.weight(family.metric));
        let mut dropped = 0;
        for point in std::mem::take(&mut family.points) {
            let id = (metric.name, point.attributes.clone());
            let was_out = !delta && before.contains_key(&id);
            if self.admitted.contains(&id) {
                family.points.push(point);
            } else if *room >= weight && !was_out {
                *room -= weight;
                self.admitted.insert(id);
                family.points.push(point);
            } else {
                dropped += 1;
                self.folded.insert(id, point.value);
            }
        }
        dropped
    }

    /// Keeps what was over the cap `before` and is not there any more. States are not kept.
    fn sink(&mut self, before: BTreeMap<Id, Value>) {
        for (id, value) in before {
            let metric = METRICS.iter().find(|metric| metric.name == id.0);
            let Some(metric) = metric.filter(|metric| metric.kind.adds_up()) else { continue };
            if !self.folded.contains_key(&id) {
                add(&mut self.sunk, metric, value);
            }
        }
    }

    /// One series for all that is over the cap of each metric.
    fn add_overflow(&mut self, families: &mut Vec<Family>, delta: bool) {
        let mut over = if delta { BTreeMap::new() } else { self.sunk.clone() };
        for ((name, _), value) in &self.folded {
            if let Some(metric) = METRICS.iter().find(|metric| metric.name == *name) {
                add(&mut over, metric, value.clone());
            }
        }
        for (name, value) in over {
            let point = Point { attributes: vec![(OVERFLOW, Attribute::Bool(true))], value };
            let known = families.iter_mut().find(|family| family.metric.name == name);
            let metric = METRICS.iter().find(|metric| metric.name == name);
            match (known, metric) {
                (Some(family), _) => family.points.push(point),
                (None, Some(metric)) => families.push(Family { metric, points: vec![point] }),
                (None, None) => {}
            }
        }
        if delta {
            self.folded.clear();
        }
    }
}

fn add(sums: &mut BTreeMap<&'static str, Value>, metric: &Metric, value: Value) {
    match sums.get_mut(metric.name) {
        Some(sum) => sum.merge(metric.kind, value),
        None => {
            sums.insert(metric.name, value);
        }
    }
}
