// SPDX-License-Identifier: Apache-2.0
//! Converts a `Metrics` to points, for all encoders.

use super::attributes::{
    self, AT_FAULT, Attribute, Attributes, Builder, CAUSE, CLASS, CONFIDENCE, EVENT, LANE, LIBRARY,
    Labels, RANK,
};
use super::names::{METRICS, Metric, Source};
use super::value::Value;
use crate::window::{Channel, CommKey, Device, Link, LinkKey, Metrics, RankKey};
use std::collections::BTreeMap;

/// A value and its attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its value.
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

/// Merges links that differ only in ranks that were not requested. This is done before the
/// regression, because the lines of several links cannot be merged.
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

/// The device of a rank if its process has several ranks; else `None`.
fn device<'m>(metrics: &'m Metrics, comm: &CommKey, rank: i32) -> Option<&'m Device> {
    if metrics.devices.is_empty() {
        return None;
    }
    metrics.devices.get(&RankKey { comm: comm.clone(), rank })
}

struct Points {
    metric: &'static Metric,
    labels: Labels,
    points: BTreeMap<Attributes, Value>,
}

impl Points {
    fn add(&mut self, attributes: Attributes, value: Option<Value>) {
        self.add_on(None, attributes, value);
    }

    /// Adds a value of a rank, with its device if the process has several ranks.
    fn add_on(
        &mut self,
        device: Option<&Device>,
        mut attributes: Attributes,
        value: Option<Value>,
    ) {
        let Some(value) = value else { return };
        let (metric, labels) = (self.metric, self.labels);
        attributes.retain(|(name, _)| metric.attributes.contains(name) && labels.has(name));
        if let Some(device) = device.filter(|_| labels.has(RANK)) {
            let builder = Builder(attributes).int(attributes::DEVICE, device.index);
            attributes = builder.text(attributes::DEVICE_UUID, &device.uuid).0;
        }
        match self.points.get_mut(&attributes) {
            Some(mine) => mine.merge(metric.kind, value),
            None => {
                self.points.insert(attributes, value);
            }
        }
    }

    /// Adds a value of each channel with a peer (network), or without one (kernels).
    fn channels(&mut self, metrics: &Metrics, has_peer: bool, take: fn(&Channel) -> Option<Value>) {
        for (key, of) in metrics.channels.iter().filter(|(key, _)| key.peer.is_some() == has_peer) {
            let device = device(metrics, &key.comm, key.rank);
            self.add_on(device, attributes::channel(key), take(of));
        }
    }

    fn fill(&mut self, metrics: &Metrics, links: &BTreeMap<LinkKey, Link>) {
        let count = |count: &u64| Some(Value::Count(*count));
        match self.metric.source {
            Source::Operation(take) => metrics.operations.iter().for_each(|(key, of)| {
                let device = device(metrics, &key.comm, key.rank);
                self.add_on(device, attributes::operation(key), take(of));
            }),
            Source::Link(take) => links.iter().for_each(|(key, of)| {
                let device = device(metrics, &key.comm, key.rank);
                self.add_on(device, attributes::link(key), take(of));
            }),
            Source::LinkBy(name, parts) => {
                for (key, of) in links {
                    for (part, take) in parts {
                        let mut attributes = attributes::link(key);
                        attributes.push((name, Attribute::from(*part)));
                        let device = device(metrics, &key.comm, key.rank);
                        self.add_on(device, attributes, take(of));
                    }
                }
            }
            Source::Transfers(take) => self.channels(metrics, true, take),
            Source::Kernels(take) => self.channels(metrics, false, take),
            Source::Rank(take) => metrics.ranks.iter().for_each(|(key, of)| {
                self.add_on(metrics.devices.get(key), attributes::rank(key), take(of));
            }),
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
            Source::Beside => metrics.beside.iter().for_each(|(library, n)| {
                self.add(Builder::default().str(LIBRARY, library).0, count(n));
            }),
            Source::MasksChanged if metrics.masks_changed > 0 => {
                self.add(Builder::default().0, count(&metrics.masks_changed));
            }
            Source::MasksChanged => {}
            Source::Findings => metrics.findings.iter().for_each(|(key, n)| {
                let of = Builder::default().str(CLASS, key.class).str(CONFIDENCE, key.confidence);
                let of = match key.rank {
                    Some(rank) => of.int(AT_FAULT, rank),
                    None => of,
                };
                self.add(of.0, count(n));
            }),
            Source::Limiter => {}
        }
    }
}
