// SPDX-License-Identifier: Apache-2.0
//! A link whose latency and rate are known: the regression finds them.

use super::totals::{expect_totals, sum};
use super::{product, tool};
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
