// SPDX-License-Identifier: Apache-2.0
//! From metrics to points, and the cap on them.

use crate::sample::{self, MIB, metrics};
use ncclscope_metrics::Metrics;
use ncclscope_metrics::encode::attributes::OVERFLOW;
use ncclscope_metrics::encode::{
    Attribute, Attributes, Cap, Family, Kind, Labels, Limiter, METRICS, Point, Value, families,
};

fn family<'f>(families: &'f [Family], name: &str) -> &'f Family {
    families.iter().find(|family| family.metric.name == name).expect(name)
}

fn points<'f>(families: &'f [Family], name: &str) -> &'f [Point] {
    &family(families, name).points
}

fn attribute(point: &Point, name: &str) -> Option<String> {
    let found = point.attributes.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value.text())
}

/// The values of a metric, by one attribute.
fn by(families: &[Family], name: &str, key: &str) -> Vec<(String, f64)> {
    let of = |point: &Point| (attribute(point, key).unwrap_or_default(), point.value.number());
    let mut rows: Vec<_> = points(families, name).iter().map(of).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

fn rows(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

#[test]
fn every_metric_has_points_but_the_limiters() {
    let all = families(&metrics(), Labels::ALL);
    let missing = METRICS.iter().filter(|m| all.iter().all(|f| f.metric.name != m.name));
    let missing: Vec<_> = missing.map(|metric| metric.name).collect();
    assert_eq!(missing, ["ncclscope.series.dropped"]);
    assert!(families(&Metrics::default(), Labels::ALL).is_empty());
}

#[test]
fn points_are_distinct_and_keep_to_the_table() {
    for labels in [Labels::default(), Labels::ALL] {
        for family in families(&metrics(), labels) {
            let sets: Vec<&Attributes> = family.points.iter().map(|p| &p.attributes).collect();
            assert!(sets.is_sorted_by(|a, b| a < b), "{}", family.metric.name);
            for (name, _) in sets.into_iter().flatten() {
                assert!(family.metric.attributes.contains(name) && labels.has(name), "{name}");
            }
        }
    }
}

#[test]
fn an_operation_says_all_that_is_known() {
    let all = families(&metrics(), Labels::ALL);
    let point = &points(&all, "nccl.operations")
        .iter()
        .find(|point| attribute(point, "nccl.operation.name").as_deref() == Some("AllReduce"))
        .expect("an AllReduce");
    let expected: Vec<(&str, Attribute)> = vec![
        ("nccl.operation.name", "AllReduce".into()),
        ("nccl.operation.type", "collective".into()),
        ("nccl.communicator.name", "tp \"0\"\\\n".into()),
        ("nccl.communicator.hash", "0000000000000abc".into()),
        ("nccl.communicator.size", Attribute::Int(4)),
        ("nccl.communicator.nodes", Attribute::Int(2)),
        ("nccl.algorithm", "RING".into()),
        ("nccl.protocol", "SIMPLE".into()),
        ("nccl.channels", Attribute::Int(2)),
        ("nccl.message_size.bucket", "4MiB-8MiB".into()),
        ("nccl.timing", "kernel".into()),
        ("nccl.scope", "inter".into()),
        ("nccl.network", Attribute::Bool(true)),
        ("nccl.rank", Attribute::Int(0)),
    ];
    assert_eq!(point.attributes, expected);
    assert_eq!(point.value, Value::Count(3));
}

#[test]
fn what_nobody_asked_for_is_merged() {
    let all = families(&metrics(), Labels::default());
    let name = "nccl.operation.name";
    assert_eq!(by(&all, "nccl.operations", name), rows(&[("AllReduce", 6.0), ("Send", 4.0)]));
    let io = 24.0 * f64::from(u32::try_from(MIB).unwrap());
    assert_eq!(by(&all, "nccl.operation.io", name), rows(&[("AllReduce", io), ("Send", 2048.0)]));
    let [duration, _] = points(&all, "nccl.operation.duration") else { panic!("two functions") };
    let expected = [0.001, 0.002, 0.004, 0.001, 0.002, 0.004];
    assert_eq!(duration.value, Value::Histogram(Box::new(sample::histogram(&expected))));
    let waits = by(&all, "nccl.link.wait.time", "nccl.wait");
    let of_four = [("flush", 8.0), ("gpu", 1.0), ("network", 4.0), ("peer", 2.0)];
    assert_eq!(waits, rows(&of_four));
    let io = by(&all, "nccl.channel.io", "nccl.direction");
    assert_eq!(io, rows(&[("receive", 20_000.0), ("send", 40_000.0)]));
    // Kernels have no direction: the points of both directions are one.
    assert_eq!(by(&all, "nccl.channel.kernels", ""), rows(&[("", 12.0)]));
    let lost = by(&all, "nccl.events.lost", "nccl.loss.cause");
    assert_eq!(lost, rows(&[("lane_full", 5.0), ("unknown", 1.0)]));
}

#[test]
fn states_add_up_or_the_greatest_holds() {
    let all = families(&metrics(), Labels::default());
    assert_eq!(by(&all, "nccl.operations.in_flight", ""), rows(&[("", 4.0)]));
    assert_eq!(by(&all, "nccl.operations.oldest_age", ""), rows(&[("", 1.5)]));
}

#[test]
fn regressions_merge_before_the_line_is_drawn() {
    let close = |rows: Vec<(String, f64)>, expected: [f64; 2]| {
        let modes: Vec<&str> = rows.iter().map(|(mode, _)| mode.as_str()).collect();
        assert_eq!(modes, ["avg", "min"]);
        for ((_, value), expected) in rows.iter().zip(expected) {
            assert!((value / expected - 1.0).abs() < 1e-9, "{rows:?}");
        }
    };
    let all = families(&metrics(), Labels::default());
    // Latencies of 10 and 30 us: the fit of all transfers gives 20 us, that of the fastest
    // transfers 10 us.
    close(by(&all, "nccl.link.latency", "nccl.fit.mode"), [20e-6, 10e-6]);
    close(by(&all, "nccl.link.rate", "nccl.fit.mode"), [1e9, 1e9]);
    let r2 = by(&all, "nccl.link.fit.r2", "nccl.fit.mode");
    assert!(r2[0].1 < 0.1 && r2[1].1 > 0.999, "{r2:?}");
    let each = families(&metrics(), Labels { peer: true, ..Labels::default() });
    let peers = by(&each, "nccl.link.latency", "nccl.peer.rank");
    let peers: Vec<_> = peers.iter().map(|(peer, us)| (&**peer, (us * 1e6).round())).collect();
    assert_eq!(peers, [("2", 10.0), ("2", 10.0), ("3", 30.0), ("3", 30.0)]);
}

/// Metrics of `ranks` ranks.
fn job(ranks: i32) -> Metrics {
    let mut metrics = metrics();
    metrics.operations = (0..ranks).map(sample::all_reduce).collect();
    metrics
}

fn weight(family: &Family, cap: Cap) -> usize {
    let each = if family.metric.kind == Kind::Histogram { cap.per_histogram } else { 1 };
    each * family.points.len()
}

#[test]
fn four_thousand_ranks_stay_under_the_cap() {
    let all = families(&job(4096), Labels::ALL);
    for cap in [Cap::points(5000), Cap::lines(5000), Cap::points(0)] {
        let limited = Limiter::new(cap).apply(all.clone(), false);
        let most = cap.max_series.max(METRICS.len());
        let series: usize = limited.iter().map(|family| weight(family, cap)).sum();
        assert!(series <= most, "{series} series, {cap:?}");
        let kept: usize = limited.iter().flat_map(|f| &f.points).filter(|p| !over(p)).count() - 1;
        let before: usize = all.iter().map(|family| family.points.len()).sum();
        let dropped = points(&limited, "ncclscope.series.dropped")[0].value.number();
        assert_eq!(dropped, f64::from(u32::try_from(before - kept).unwrap()));
        // The cap does not change the sums.
        for (limited, whole) in limited.iter().zip(&all) {
            let sum = |f: &Family| f.points.iter().map(|p| p.value.number()).sum::<f64>();
            if limited.metric.kind != Kind::Max {
                assert!((sum(limited) / sum(whole) - 1.0).abs() < 1e-9, "{}", limited.metric.name);
            }
        }
    }
}

fn over(point: &Point) -> bool {
    point.attributes == [(OVERFLOW, Attribute::Bool(true))]
}

#[test]
fn what_was_exported_stays_and_small_families_come_first() {
    let cap = Cap::points(METRICS.len() + 200);
    let mut limiter = Limiter::new(cap);
    let mut late = job(4);
    late.operations = (100..104).map(sample::all_reduce).collect();
    let before = limiter.apply(families(&late, Labels::ALL), false);
    assert_eq!(points(&before, "ncclscope.series.dropped")[0].value, Value::Count(0));
    let mut grown = job(1000);
    grown.operations.extend(late.operations);
    let after = limiter.apply(families(&grown, Labels::ALL), false);
    for (before, after) in
        before.iter().zip(&after).filter(|(b, _)| !b.metric.attributes.is_empty())
    {
        assert!(before.points.iter().all(|point| after.points.contains(point)));
    }
    assert!(!points(&after, "nccl.events.lost").iter().any(over));
    assert!(points(&after, "nccl.operations").iter().any(over));
    let dropped =
        |families: &[Family]| points(families, "ncclscope.series.dropped")[0].value.number();
    let first = dropped(&after);
    assert_eq!(dropped(&limiter.apply(families(&grown, Labels::ALL), false)), 2.0 * first);
    assert_eq!(dropped(&limiter.apply(families(&grown, Labels::ALL), true)), first);
}

/// Values of the overflow series of a counter and of a distribution.
fn overflow(families: &[Family]) -> [f64; 2] {
    ["nccl.operations", "nccl.operation.duration"].map(|name| {
        let mut over = points(families, name).iter().filter(|point| over(point));
        over.next().map_or(0.0, |point| match &point.value {
            Value::Histogram(of) => f64::from(u32::try_from(of.count).unwrap()),
            value => value.number(),
        })
    })
}

#[test]
fn the_overflow_series_never_falls_when_what_is_in_it_goes() {
    let mut limiter = Limiter::new(Cap::points(METRICS.len() + 200));
    let ranks = |ranks: std::ops::Range<i32>| {
        let mut metrics = job(0);
        metrics.operations = ranks.map(sample::all_reduce).collect();
        families(&metrics, Labels::ALL)
    };
    let first = limiter.apply(ranks(0..300), false);
    let [count, duration] = overflow(&first);
    // Three operations of each rank.
    let admitted = points(&first, "nccl.operations").len() - 1;
    assert_eq!(count, f64::from(u32::try_from(300 - admitted).unwrap()) * 3.0);
    assert_eq!(duration, 900.0);
    // Most series go away, which leaves room for all remaining and new ones.
    let second = limiter.apply(ranks(290..300), false);
    assert_eq!(overflow(&second), [count, duration]);
    let third = limiter.apply(ranks(290..310), false);
    assert_eq!(overflow(&third), [count, duration]);
    let own = points(&third, "nccl.operations").iter().filter(|point| !over(point)).count();
    assert_eq!(own, 10, "those that are new have series of their own");
    assert_eq!(overflow(&limiter.apply(ranks(0..0), false)), [count, duration]);
    // Delta values of a window contain nothing of earlier windows.
    let mut limiter = Limiter::new(Cap::points(METRICS.len() + 200));
    assert_eq!(overflow(&limiter.apply(ranks(0..300), true)), [count, duration]);
    assert_eq!(overflow(&limiter.apply(ranks(290..300), true)), [0.0, 0.0]);
}
