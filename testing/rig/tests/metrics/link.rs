// SPDX-License-Identifier: Apache-2.0
//! Links whose latency and rate are known: the regression finds them, also when they change.

use super::totals::{expect_totals, sum};
use super::{Followed, product, tool};
use rig::job::Job;
use rig::scenario_file::ScenarioFile;
use rig::wheel;
use serde_json::Value;
use std::path::Path;

/// What `scenarios/delayed-link.toml` sets.
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

/// What `scenarios/degraded-link.toml` sets.
const HEALTHY: f64 = 20e6;
const DEGRADED: f64 = 4e6;

#[test]
fn a_link_that_degrades_in_mid_run_shows_while_it_runs_and_no_other_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/degraded-link.toml");
    let scenario = ScenarioFile::read(&path).expect("the file is right");
    for release in &scenario.releases {
        let Some(nccl) = wheel::find_or_skip(release) else { continue };
        let followed = Followed::start();
        let job = scenario.apply(Job::new(&nccl).expect("the stand-in builds"));
        let job = job.env("NCCL_PROFILER_PLUGIN", &followed.plugin);
        let job = job.env("NCCLSCOPE_DIR", &followed.run).start().expect("ranks start");
        let rates = |text: &str| {
            [(0, 1), (1, 2), (2, 0)].map(|(rank, peer)| {
                let (rank, peer) =
                    (format!("nccl_rank=\"{rank}\""), format!("nccl_peer_rank=\"{peer}\""));
                let send = ["nccl_direction=\"send\"", "nccl_fit_mode=\"min\"", &rank, &peer];
                sum(text, "nccl_link_rate_bytes_per_second", &send)
            })
        };
        // A busy machine delays all sends of one window and another: it does not do so for long.
        let is_healthy = |rate: f64| rate > HEALTHY / 2.0;
        let before = followed.wait(|text| rates(text).into_iter().all(is_healthy));
        let after = followed.wait(|text| {
            let [first, degraded, third] = rates(text);
            let is_degraded = (degraded / DEGRADED - 1.0).abs() < 0.3;
            is_healthy(first) && is_degraded && is_healthy(third)
        });
        let transfers = |text: &str| sum(text, "nccl_link_transfers_total", &[]);
        assert!(transfers(&after) > transfers(&before), "{release}: counters go on");
        drop(job);
    }
}

/// The link between two ranks is as configured in the scenario. A transfer that other work on the
/// machine delayed is not the fastest of its size.
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
