// SPDX-License-Identifier: Apache-2.0
//! `diagnose`, `dump --why` and `top` name one class and the same ranks while real NCCL hangs.

use super::{LIMIT, RELEASE, Watched, build, scenario, wheel};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The class and the ranks at fault of each verdict.
fn verdicts(found: &Value) -> Vec<(String, Value)> {
    let all = found["findings"].as_array().into_iter().flatten();
    let class = |one: &Value| one["name"].as_str().unwrap_or_default().to_owned();
    all.map(|one| (class(one), one["root_ranks"].clone())).collect()
}

fn json(tool: &Path, words: &[&str], job: &Watched) -> Value {
    let record = job.record.path();
    let mut command = Command::new(tool);
    command.args(words).args(["--format", "json", "--hang-sec", LIMIT]);
    let command = command.env("NCCLSCOPE_CONTROL", record.join("control"));
    let is_asked = words[0] == "dump";
    let output = if is_asked { command.output() } else { command.arg(record).output() };
    let output = output.expect("the tool starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Rank `rank` is at fault by `class`.
fn all_say(name: &str, class: &str, ranks: &[u64]) {
    if wheel::find_or_skip(RELEASE).is_none() {
        return;
    }
    let tool = build::tool();
    let Some(job) = Watched::start(&scenario(name), LIMIT) else { return };
    let first = ranks.first().and_then(|rank| usize::try_from(*rank).ok()).expect("a rank");
    job.wait_for(&[(first, "HANG: ")]);
    let expected = vec![(class.to_owned(), Value::from(ranks.to_vec()))];
    assert_eq!(verdicts(&json(&tool, &["diagnose"], &job)), expected, "diagnose");
    let why = json(&tool, &["dump", "--all", "--why"], &job);
    assert_eq!(verdicts(&why["jobs"][0]), expected, "dump --why: {why}");
    let top = json(&tool, &["top", "--once"], &job);
    let said = top["findings"].as_array().expect("the schema");
    let [line] = &said[..] else { panic!("top: {top}") };
    assert!(line.as_str().is_some_and(|line| line.contains(&format!("({class}"))), "{line}");
    let is_hung = |row: &&Value| row["flags"].as_array().is_some_and(|all| all[0] == "hung");
    let hung = top["ranks"].as_array().into_iter().flatten().filter(is_hung);
    let hung: Vec<u64> = hung.filter_map(|row| row["rank"].as_u64()).collect();
    assert_eq!(hung, ranks, "top: {top}");
    let mut agent = Command::new(&tool);
    agent.args(["agent", "--once", "--hang-sec", LIMIT, "--dir"]).arg(job.record.path());
    let metrics = agent.output().expect("the tool starts").stdout;
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    let is_it = |line: &&str| line.starts_with("nccl_finding{") && line.ends_with(" 1");
    let lines: Vec<&str> = metrics.lines().filter(is_it).collect();
    let at_fault = |rank: &u64| format!("nccl_finding_rank=\"{rank}\"");
    let has = |rank: &u64| lines.iter().any(|line| line.contains(&at_fault(rank)));
    assert!(lines.len() == ranks.len() && ranks.iter().all(has), "agent: {lines:?}");
    assert!(lines.iter().all(|line| line.contains(&format!("class=\"{class}\""))), "{lines:?}");
}

#[test]
fn of_a_stuck_kernel() {
    all_say("stuck-kernel.toml", "gpu-not-producing", &[1]);
}

#[test]
fn of_a_kernel_that_never_starts() {
    all_say("kernel-never-starts.toml", "kernel-not-started", &[1]);
}

#[test]
fn of_a_dead_proxy_thread() {
    all_say("dead-proxy.toml", "proxy-stalled", &[1]);
}

#[test]
fn of_a_stalled_link() {
    all_say("stalled-link.toml", "network-stalled", &[1, 2]);
}
