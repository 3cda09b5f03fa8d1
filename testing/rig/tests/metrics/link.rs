// SPDX-License-Identifier: Apache-2.0
//! Links whose latency and rate are known: the regression recovers them, also when they change.

use super::totals::{expect_totals, sum};
use super::{Followed, PATIENCE, Prometheus, Query, has_prometheus, product, queries, rules, tool};
use rig::job::Job;
use rig::scenario_file::ScenarioFile;
use rig::wheel;
use serde_json::Value;
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// The latency that `scenarios/delayed-link.toml` sets.
const LATENCY_S: f64 = 0.010;
const RATE: f64 = 4e6;

#[test]
fn a_links_latency_and_rate_are_recovered() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/delayed-link.toml");
    let scenario = ScenarioFile::read(&path).expect("the file is right");
    for release in &scenario.releases {
        let Some(nccl) = wheel::find_or_skip(release) else { continue };
        let (plugin, cli) = product();
        let folder = tempfile::tempdir().expect("a directory");
        let job = scenario.apply(Job::new(&nccl).expect("the stand-in builds"));
        let job = job.env("NCCL_PROFILER_PLUGIN", plugin).env("NCCLSCOPE_DIR", folder.path());
        scenario.check(&job.run().expect("ranks start")).expect("it ends well");
        let once = ["agent", "--once", "--dir", ".", "--labels", "rank,peer,channel"];
        let text = String::from_utf8(tool(&cli, folder.path(), &once)).expect("text");
        let report = tool(&cli, folder.path(), &["report", ".", "--format", "json"]);
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        expect_totals(&text, &report, &["AllReduce"]);
        assert_eq!(sum(&text, "nccl_operations_total", &[]), 400.0, "{release}: 200 of each rank");
        expect_link(&text, ["nccl_rank=\"0\"", "nccl_peer_rank=\"1\""], release);
        expect_link(&text, ["nccl_rank=\"1\"", "nccl_peer_rank=\"0\""], release);
    }
}

/// The rate that `scenarios/degraded-link.toml` sets, B/s.
const HEALTHY: f64 = 20e6;
const DEGRADED: f64 = 4e6;

/// Number of operations of each rank before the link changes.
const OPERATIONS_BEFORE: f64 = 576.0;
/// A window gives a figure from this many sends on: `ncclscope_metrics::window::ENOUGH_SENDS`.
const ENOUGH: f64 = 16.0;

#[test]
fn a_link_that_degrades_in_mid_run_shows_while_it_runs_and_no_other_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/degraded-link.toml");
    let scenario = ScenarioFile::read(&path).expect("the file is right");
    for release in &scenario.releases {
        let Some(nccl) = wheel::find_or_skip(release) else { continue };
        let followed = Followed::start();
        let folder = tempfile::tempdir().expect("a directory");
        let start = || Prometheus::start(folder.path(), &[("ncclscope", &followed.address)]);
        let prometheus = has_prometheus().then(start);
        let job = scenario.apply(Job::new(&nccl).expect("the stand-in builds"));
        let job = job.env("NCCL_PROFILER_PLUGIN", &followed.plugin);
        let job = job.env("NCCLSCOPE_DIR", &followed.run).start().expect("ranks start");
        // A busy machine may delay all sends of one window or another, but not of many in a row.
        let before = followed.wait(|text| rates(text).into_iter().all(is_healthy));
        prometheus.iter().for_each(|prometheus| expect_slow(prometheus, &[]));
        assert!(operations(&before) < 3.0 * OPERATIONS_BEFORE, "{release}: it is not over yet");
        let (windows, seen) = (Cell::new(0), Cell::new((0.0, 0.0)));
        let after = followed.wait(|text| {
            let (now, (before, sent)) = (operations(text), seen.get());
            let sends = sum(text, "nccl_link_transfers_total", &SLOW);
            if now > before && now > 3.0 * OPERATIONS_BEFORE && sends - sent >= ENOUGH {
                windows.set(windows.get() + 1);
            }
            seen.set((now.max(before), if now > before { sends } else { sent }));
            is_degraded(rates(text))
        });
        // The first of these windows also has operations from before the change.
        assert!(windows.get() <= 3, "{release}: after {} windows", windows.get());
        prometheus.iter().for_each(|prometheus| expect_slow(prometheus, &[["1", "2"]]));
        let transfers = |text: &str| sum(text, "nccl_link_transfers_total", &[]);
        assert!(transfers(&after) > transfers(&before), "{release}: counters go on");
        drop(job);
    }
}

/// The sends of the link that becomes slow.
const SLOW: [&str; 3] = ["nccl_direction=\"send\"", "nccl_rank=\"1\"", "nccl_peer_rank=\"2\""];

fn operations(text: &str) -> f64 {
    sum(text, "nccl_operations_total", &[])
}

/// The gauges of the three links of the ring.
fn rates(text: &str) -> [f64; 3] {
    [(0, 1), (1, 2), (2, 0)].map(|(rank, peer)| {
        let (rank, peer) = (format!("nccl_rank=\"{rank}\""), format!("nccl_peer_rank=\"{peer}\""));
        let send = ["nccl_direction=\"send\"", "nccl_fit_mode=\"min\"", &rank, &peer];
        sum(text, "nccl_link_rate_bytes_per_second", &send)
    })
}

fn is_healthy(rate: f64) -> bool {
    rate > HEALTHY / 2.0
}

fn is_degraded([first, degraded, third]: [f64; 3]) -> bool {
    is_healthy(first) && (degraded / DEGRADED - 1.0).abs() < 0.3 && is_healthy(third)
}

/// Waits until the alert is about exactly these links, and the dashboard shows exactly these links
/// with less than half the rate of a healthy one.
fn expect_slow(prometheus: &Prometheus, links: &[[&str; 2]]) {
    let rules = rules();
    let (_, alert) = rules.iter().find(|(name, _)| name == "NcclSlowLink").expect("the alert");
    let is_rate = |(name, query): &&Query| {
        name.starts_with("peers.json") && query.contains("(nccl_link_rate_bytes_per_second")
    };
    let queries = queries();
    let (_, panel) = queries.iter().find(is_rate).expect("the panel");
    let panel_below_half = format!("({panel}) < {}", HEALTHY / 2.0);
    let end = Instant::now() + PATIENCE;
    for query in [alert, &panel_below_half] {
        loop {
            // The panel shows all three links.
            let is_complete = prometheus.ask(panel).len() == 3;
            let found = prometheus.ask(query);
            let link = |row: &Value| {
                ["nccl_rank", "nccl_peer_rank"].map(|label| row["metric"][label].clone())
            };
            if is_complete && found.iter().map(link).eq(links.iter().copied()) {
                break;
            }
            assert!(Instant::now() < end, "{query}: {found:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Asserts that the link between two ranks is as the scenario configures it. A transfer that other
/// work on the machine delayed is not the fastest of its size.
fn expect_link(text: &str, [rank, peer]: [&str; 2], release: &str) {
    let send = ["nccl_direction=\"send\"", rank, peer];
    let of = |name: &str, label: &str| sum(text, name, &[&send[..], &[label]].concat());
    assert_eq!(of("nccl_link_transfers_total", ""), 400.0, "{release}: two for each operation");
    let total = of("nccl_link_transfer_duration_seconds_sum", "");
    assert!(total > 400.0 * LATENCY_S, "{release} {rank}: {total} s");
    let fit = |name: &str| of(name, "nccl_fit_mode=\"min\"");
    let (latency, rate) =
        (fit("nccl_link_latency_seconds"), fit("nccl_link_rate_bytes_per_second"));
    assert!((latency / LATENCY_S - 1.0).abs() < 0.05, "{release} {rank}: {latency} s");
    assert!((rate / RATE - 1.0).abs() < 0.05, "{release} {rank}: {rate} B/s");
    let r2 = fit("nccl_link_fit_r2_ratio");
    assert!(r2 > 0.98, "{release} {rank}: {r2}");
}
