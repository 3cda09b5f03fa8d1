// SPDX-License-Identifier: Apache-2.0
//! The bounds, each with its measurement: the only place with these numbers. They have the names of
//! SPECIFICATION.md.

use serde_json::Value;

use super::loads::{
    BULK1, BULK2, CLOCK, CLOSED, COARSE, COLD, HOT, IDLE, KERNEL, Load, METERED, METRICS,
    MONOTONIC, NULL, OFF, ONE, OURS, POLL, RATE, REFUSING, RING, SATURATED, SHUT, SIXTEEN, STARTS,
    STOPPED, SUMMARY, Subject, TOUCHED_4M, TOUCHED_512K, TRACE, TSC, UNASKED,
};
use super::runs::{Runs, Series, Thread};

/// A numeric promise.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) what: &'static str,
    /// Maximum of the measured number.
    pub(super) limit: f64,
    /// The unit of the limit and of the numbers; `x` for a ratio.
    pub(super) unit: &'static str,
    /// How one number is taken from the rounds.
    pub(super) take: Take,
    pub(super) measure: fn(&Runs) -> Figure,
}

/// How one number, to be compared with the limit, is taken from the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    Median,
    /// The largest: for promises that must hold in each round.
    Worst,
}

/// A number for each round, with details for people.
#[derive(Debug)]
pub(super) struct Figure {
    /// The numbers that the limit applies to.
    pub(super) series: Series,
    /// The parts of a ratio, and further details.
    pub(super) parts: Parts,
}

/// (Unit, numbers) of each part.
type Parts = Vec<(&'static str, Series)>;

impl From<Series> for Figure {
    fn from(series: Series) -> Figure {
        Figure { series, parts: Vec::new() }
    }
}

const fn median(
    what: &'static str,
    limit: f64,
    unit: &'static str,
    measure: fn(&Runs) -> Figure,
) -> Bound {
    Bound { what, limit, unit, take: Take::Median, measure }
}

const fn worst(
    what: &'static str,
    limit: f64,
    unit: &'static str,
    measure: fn(&Runs) -> Figure,
) -> Bound {
    Bound { what, limit, unit, take: Take::Worst, measure }
}

use Thread::{Enqueue, Proxy};

pub(super) const BOUNDS: &[Bound] = &[
    median("proxy callback, to floor-ring", 1.0, "x", |r| added(r, BULK2, Proxy, OURS, RING)),
    median("proxy callback, to floor-tsc", 1.25, "x", |r| added(r, BULK2, Proxy, OURS, TSC)),
    median("proxy callback with its call, to floor-clock", 0.7, "x", |r| {
        whole(r, BULK2, OURS, CLOCK)
    }),
    median("proxy callback, one thread, to floor-ring", 1.0, "x", |r| {
        added(r, BULK1, Proxy, OURS, RING)
    }),
    median("proxy callback, two threads to one", 1.05, "x", two_threads),
    median("slow process starts", 10.0, "%", slow_starts),
    median("proxy callback, summary, to floor-ring", 0.95, "x", |r| {
        added(r, SUMMARY, Proxy, COARSE, RING)
    }),
    median("proxy callback with its call, summary, to floor-tsc", 1.2, "x", |r| {
        whole(r, SUMMARY, COARSE, TSC)
    }),
    median("operation, summary, to floor-ring's with steps", 0.95, "x", summary),
    median("proxy callback with its call, system clock, to floor-clock", 1.25, "x", |r| {
        whole(r, BULK2, MONOTONIC, CLOCK)
    }),
    median("kernel channel callback with its call, to floor-tsc", 1.4, "x", |r| {
        whole(r, KERNEL, OURS, TSC)
    }),
    median("repeated SendPeerWait with its call, to floor-tsc", 1.05, "x", |r| {
        whole(r, POLL, OURS, TSC)
    }),
    median("step callback with its call, 512 KiB touched, to floor-tsc", 1.3, "x", |r| {
        whole(r, TOUCHED_512K, OURS, TSC)
    }),
    median("step callback with its call, 4 MiB touched, to floor-tsc", 2.0, "x", |r| {
        whole(r, TOUCHED_4M, OURS, TSC)
    }),
    median("enqueue callback, to floor-ring", 1.3, "x", |r| added(r, BULK2, Enqueue, OURS, RING)),
    median("enqueue callback, one thread, to floor-ring", 1.3, "x", |r| {
        added(r, BULK1, Enqueue, OURS, RING)
    }),
    median("proxy callback with its call, metrics and no collector, to without", 1.05, "x", |r| {
        metrics(r, Proxy)
    }),
    median(
        "enqueue callback with its call, metrics and no collector, to without",
        1.05,
        "x",
        |r| metrics(r, Enqueue),
    ),
    median("p99, hot, proxy", 20.0, "ns", |r| above(r, Proxy, "p99")),
    median("p99.9, hot, proxy", 60.0, "ns", |r| above(r, Proxy, "p999")),
    median("p99, hot, enqueue", 20.0, "ns", |r| above(r, Enqueue, "p99")),
    median("p99.9, hot, enqueue", 60.0, "ns", |r| above(r, Enqueue, "p999")),
    median("p99.9, cold, proxy, to floor-ring", 1.5, "x", |r| cold(r, Proxy)),
    median("p99.9, cold, enqueue, to floor-ring", 1.5, "x", |r| cold(r, Enqueue)),
    worst("worst operation", 10.0, "ms", worst_operation),
    worst("callbacks with NCCLSCOPE_MODE=off", 0.0, "calls", |r| {
        r.at(UNASKED, OFF, "/calls").into()
    }),
    median("callback, gate shut", 2.0, "ns", gate_shut),
    median("callback, recording stopped", 6.0, "ns", stopped),
    worst("unaccounted, saturated", 0.0, "events", |r| {
        r.each(SATURATED, TRACE, |result| Some(unaccounted(result))).into()
    }),
    median("operation, saturated, to floor-tsc", 1.25, "x", saturated),
    worst("refused at 763,000 steps a second", 0.0, "events", |r| r.refused(RATE, OURS).into()),
    median("drain thread, each step", 30.0, "ns", |r| {
        r.each(RATE, OURS, |result| Some(result["bg_cpu_ms"].as_f64()? * 1e6 / steps(result)?))
            .into()
    }),
    median("recording, each step", 13.0, "bytes", |r| {
        r.each(RATE, OURS, |result| Some(result["bytes"].as_f64()? / steps(result)?)).into()
    }),
    median("idle processor time in 5 s", 5.0, "ms", |r| {
        r.at(IDLE, OURS, "/idle_ns").by(1e6).into()
    }),
    median("RSS added, one communicator", 16.0, "MiB", |r| memory(r, ONE)),
    median("RSS added, 16 communicators", 32.0, "MiB", |r| memory(r, SIXTEEN)),
    median("init, one communicator", 2.0, "ms", |r| r.at(ONE, OURS, "/init_ms").into()),
    median("init, 16 communicators", 2.0, "ms", |r| r.at(SIXTEEN, OURS, "/init_ms").into()),
    median("finalize, one communicator", 50.0, "ms", |r| r.at(ONE, OURS, "/finalize_ms").into()),
    median("finalize, 16 communicators", 50.0, "ms", |r| {
        r.at(SIXTEEN, OURS, "/finalize_ms").into()
    }),
];

/// What `subject` adds to a callback, divided by what `floor` adds in the same round.
fn added(runs: &Runs, load: &Load, thread: Thread, subject: &Subject, floor: &Subject) -> Figure {
    let (ours, floors) = (runs.added(load, thread, subject), runs.added(load, thread, floor));
    Figure { series: ours.over(&floors), parts: vec![("ns", ours), ("ns of the floor", floors)] }
}

/// Time of a callback on the proxy thread, including the call and the driver's work, divided by the
/// same for `floor` in the same round.
fn whole(runs: &Runs, load: &Load, subject: &Subject, floor: &Subject) -> Figure {
    let [ours, floors] = [subject, floor].map(|one| runs.cost(load, Proxy, one));
    Figure { series: ours.over(&floors), parts: vec![("ns", ours), ("ns of the floor", floors)] }
}

/// Time of a callback while the drain thread measures and the sender finds no collector, divided by
/// that without metrics.
fn metrics(runs: &Runs, thread: Thread) -> Figure {
    let [with, without] = [METRICS, OURS].map(|one| runs.cost(METERED, thread, one));
    Figure { series: with.over(&without), parts: vec![("ns", with), ("ns without", without)] }
}

/// Time of an operation without its steps, divided by the floor's with them: what the proxy thread
/// saves.
fn summary(runs: &Runs) -> Figure {
    let ours = runs.added_to_operation(SUMMARY, Proxy, COARSE);
    let ring = runs.added_to_operation(BULK2, Proxy, RING);
    Figure { series: ours.over(&ring), parts: vec![("ns", ours), ("ns of floor-ring", ring)] }
}

/// The share of the processes whose callbacks take over 1.2 times as long as in the fastest
/// process, in percent.
fn slow_starts(runs: &Runs) -> Figure {
    let [ours, ring] = [OURS, RING].map(|one| runs.cost(STARTS, Proxy, one));
    let share = |series: &Series| series.share_above(1.2).by(0.01);
    let parts = vec![
        ("% of floor-ring", share(&ring)),
        ("ns", ours.clone()),
        ("ns, the slowest tenth", ours.slowest_tenth()),
    ];
    Figure { series: share(&ours), parts }
}

/// How much a second thread increases the cost, without what it increases for the floor.
fn two_threads(runs: &Runs) -> Figure {
    let ratio = |load| added(runs, load, Proxy, OURS, RING).series;
    ratio(BULK2).over(&ratio(BULK1)).into()
}

fn above(runs: &Runs, thread: Thread, percentile: &str) -> Figure {
    let [ours, null] = [OURS, NULL].map(|one| runs.percentile(HOT, thread, one, percentile));
    let series = ours.minus(&null);
    let parts = vec![("ns", ours), ("ns of floor-null", null)];
    Figure { series, parts: with_extremes(parts, runs, HOT, thread) }
}

fn cold(runs: &Runs, thread: Thread) -> Figure {
    let [ours, ring] = [OURS, RING].map(|one| runs.percentile(COLD, thread, one, "p999"));
    let series = ours.over(&ring);
    let parts = vec![("ns", ours), ("ns of floor-ring", ring)];
    Figure { series, parts: with_extremes(parts, runs, COLD, thread) }
}

/// Adds the median callback and the worst one.
fn with_extremes(mut parts: Parts, runs: &Runs, load: &Load, thread: Thread) -> Parts {
    parts.push(("ns p50", runs.percentile(load, thread, OURS, "p50")));
    parts.push(("us max", runs.percentile(load, thread, OURS, "max").by(1e3)));
    parts
}

/// The longest operations of the two longest-lasting loads, minus the longest one with the plugin
/// that does nothing.
fn worst_operation(runs: &Runs) -> Figure {
    let longest = |load, subject| {
        let thread = |name: &str| runs.at(load, subject, &format!("/{name}/busy_max_us"));
        thread("enqueue").zip(&thread("proxy"), |one, other| Some(one.max(other))).by(1e3)
    };
    let ours = longest(RATE, OURS).and(longest(SATURATED, TRACE));
    let null = longest(RATE, NULL).and(longest(SATURATED, NULL));
    let most = null.max().unwrap_or(f64::NAN);
    let series = ours.zip(&ours, |one, _| Some(one - most));
    Figure { series, parts: vec![("ms", ours), ("ms of floor-null", null)] }
}

/// What a start adds, on the thread where that is more.
fn gate_shut(runs: &Runs) -> Figure {
    let added = |thread| {
        let [shut, refusing] = [SHUT, REFUSING].map(|one| runs.cost(CLOSED, thread, one));
        shut.minus(&refusing)
    };
    let (enqueue, proxy) = (added(Enqueue), added(Proxy));
    let series = enqueue.zip(&proxy, |one, other| Some(one.max(other)));
    Figure { series, parts: vec![("ns, enqueue", enqueue), ("ns, proxy", proxy)] }
}

/// What a callback adds while recording is stopped; NCCL makes few of them then.
fn stopped(runs: &Runs) -> Figure {
    let added = |thread| {
        let [stopped, null] = [STOPPED, NULL].map(|one| runs.cost(CLOSED, thread, one));
        stopped.minus(&null)
    };
    let (enqueue, proxy) = (added(Enqueue), added(Proxy));
    let series = enqueue.zip(&proxy, |one, other| Some(one.max(other)));
    Figure { series, parts: vec![("ns, enqueue", enqueue), ("ns, proxy", proxy)] }
}

fn saturated(runs: &Runs) -> Figure {
    let [ours, floor] = [TRACE, TSC].map(|one| runs.added_to_operation(SATURATED, Proxy, one));
    Figure { series: ours.over(&floor), parts: vec![("ns", ours), ("ns of floor-tsc", floor)] }
}

fn memory(runs: &Runs, load: &Load) -> Figure {
    let grown = |subject| {
        let at = |name| runs.at(load, subject, name);
        at("/rss_end_kb").minus(&at("/rss_start_kb")).by(1024.0)
    };
    grown(OURS).minus(&grown(NULL)).into()
}

/// Number of network steps of a run.
fn steps(result: &Value) -> Option<f64> {
    result["starts"]["ProxyStep"].as_f64()
}

/// Number of events that are neither recorded nor counted, or counted but never played.
fn unaccounted(result: &Value) -> f64 {
    let kinds = result["starts"].as_object().into_iter().flatten();
    let differences = kinds.map(|(kind, played)| {
        let accounted = &result["report"][kind];
        let count = |what: &str| accounted[what].as_f64().unwrap_or(0.0);
        (played.as_f64().unwrap_or(0.0) - count("recorded") - count("lost")).abs()
    });
    differences.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn each_bound_has_a_name_of_its_own() {
        let names: BTreeSet<_> = BOUNDS.iter().map(|bound| bound.what).collect();
        assert_eq!(names.len(), BOUNDS.len());
    }

    #[test]
    fn what_is_nowhere_is_unaccounted_for() {
        let mut result = json!({
            "starts": {"Coll": 10, "Group": 4},
            "report": {"Coll": {"recorded": 7, "lost": 3}, "Group": {"recorded": 4}}
        });
        assert_eq!(unaccounted(&result), 0.0);
        result["report"]["Coll"]["lost"] = 1.into();
        result["report"]["Group"]["recorded"] = 5.into();
        assert_eq!(unaccounted(&result), 3.0);
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        for bound in BOUNDS {
            let Figure { series, .. } = (bound.measure)(&Runs::default());
            assert_eq!(series.median(), None, "{}", bound.what);
        }
    }
}
