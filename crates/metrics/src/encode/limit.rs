// SPDX-License-Identifier: Apache-2.0
//! A hard cap on series, so that a large job cannot fill a metrics store.

use super::attributes::{Attribute, Attributes, OVERFLOW};
use super::names::{DROPPED, METRICS, Metric};
use super::point::{Family, Point};
use super::prom;
use super::value::{Kind, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A limit of the number of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Most series, including the overflow series; at least the number of overflow series.
    pub max_series: usize,
    /// Number of series that a histogram counts as.
    pub per_histogram: usize,
}

impl Cap {
    /// A cap on points of OTLP, in which a histogram is one point.
    #[must_use]
    pub const fn points(max_series: usize) -> Cap {
        Cap { max_series, per_histogram: 1 }
    }

    /// A cap on lines of the Prometheus text format, in which a histogram is many lines.
    #[must_use]
    pub const fn lines(max_series: usize) -> Cap {
        Cap { max_series, per_histogram: prom::LINES_PER_HISTOGRAM }
    }

    fn weight(self, metric: &Metric) -> usize {
        if metric.kind == Kind::Histogram { self.per_histogram } else { 1 }
    }
}

/// Limits each export to a [`Cap`].
///
/// Series of the last export are kept, because a series that disappears and returns would look like
/// a counter reset. New series are admitted from the smallest families first, so that counts of
/// losses are not crowded out. The rest of a family is merged into one series with the attribute
/// `otel.metric.overflow`. With cumulative totals, a series that was merged stays merged, even
/// after its communicator is gone, because the overflow counter must not decrease either.
#[derive(Debug)]
pub struct Limiter {
    cap: Cap,
    admitted: BTreeSet<Id>,
    /// The series over the cap at the last export; used with cumulative totals only.
    folded: BTreeMap<Id, Value>,
    /// The sum of the series over the cap that no longer exist, by metric.
    sunk: BTreeMap<&'static str, Value>,
    dropped: u64,
}

/// A metric's name and the attributes of a series.
type Id = (&'static str, Attributes);

impl Limiter {
    /// A limiter before the first export.
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

    /// Merges the series over the cap, and adds a metric with their number: in all exports, or with
    /// `delta` in this one.
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

    /// Removes the points of a family for which there is no room, and returns their number. With
    /// cumulative totals, points that were removed `before` are removed again.
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

    /// Adds series that were over the cap `before` and no longer exist to `sunk`. States are not
    /// added.
    fn sink(&mut self, before: BTreeMap<Id, Value>) {
        for (id, value) in before {
            let metric = METRICS.iter().find(|metric| metric.name == id.0);
            let Some(metric) = metric.filter(|metric| metric.kind.adds_up()) else { continue };
            if !self.folded.contains_key(&id) {
                add(&mut self.sunk, metric, value);
            }
        }
    }

    /// Adds one series for all series over the cap of each metric.
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
