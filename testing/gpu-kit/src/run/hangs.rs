// SPDX-License-Identifier: Apache-2.0
//! Jobs that hang, or only seem to hang: the results of the watchdog and of `diagnose`.

use invariants::Expect;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::launch::{Launch, Layout, Ranks};
use super::part::Part;
use super::row::Found;
use super::setup::Setup;
use crate::facts;

/// Check 4.
pub(super) const LATE_PEER: Part = Part {
    id: "4",
    title: "send and receive in a group, the peer 5 s late, watchdog at 2 s",
    expected: "the watchdog of the waiting rank reports",
    seconds: 10,
    run: late_peer,
};
/// Check 5.
pub(super) const RUN_AHEAD: Part = Part {
    id: "5",
    title: "an AllReduce queued behind 40 s of other work, `diagnose` at 35 s",
    expected: "no confirmed verdict: the job runs",
    seconds: 50,
    run: run_ahead,
};
/// Check 9.
pub(super) const STUCK: Part = Part {
    id: "9",
    title: "a stuck kernel in front of an AllReduce, then exit, SIGTERM, reset, illegal access",
    expected: "the watchdog reports; every process ends within 10 s, none by SIGSEGV or SIGABRT; \
               the reset takes as long as without a plugin",
    seconds: 45,
    run: stuck,
};
/// Check 12.
pub(super) const ONE_PROCESS: Part = Part {
    id: "12",
    title: "two ranks in one process, one does not call",
    expected: "`diagnose` names rank 1 and no circle of one process; `stragglers` can read it",
    seconds: 15,
    run: one_process,
};

/// In this part, ranks are killed.
const KILLED: Expect = Expect {
    lost_ok: true,
    killed_ok: true,
    aborted_ok: true,
    ptimer_ok: true,
    ranks: Some(2),
    nodes: None,
};

/// Results of `diagnose`: the classes with their confidence, and the whole report.
fn diagnose(setup: &Setup, job: &Launch<'_>, after: &str) -> Result<(Vec<String>, Value), String> {
    let args = ["diagnose", "--format", "json", "--hang-sec", after];
    let text = setup.tool(&args, &job.folder)?;
    let report: Value = serde_json::from_str(&text).map_err(|e| format!("diagnose: {e}"))?;
    let file = job.folder.join("diagnose.json");
    std::fs::write(&file, &text).map_err(|e| e.to_string())?;
    let mut classes = vec![];
    collect(&report, &mut classes);
    Ok((classes, report))
}

/// Every object with a class and a confidence, as `CLASS/CONFIDENCE`.
fn collect(value: &Value, classes: &mut Vec<String>) {
    if let (Some(class), Some(confidence)) = (value["class"].as_str(), value["confidence"].as_str())
    {
        classes.push(format!("{class}/{confidence}"));
    }
    match value {
        Value::Array(all) => all.iter().for_each(|value| collect(value, classes)),
        Value::Object(all) => all.values().for_each(|value| collect(value, classes)),
        _ => {}
    }
}

/// The text of each report of the watchdog, with its rank.
fn reports(job: &Launch<'_>) -> Result<Vec<(i32, String)>, String> {
    let facts = facts::read(&job.folder, &KILLED)?;
    let first = |text: &String| text.split(" on communicator").next().unwrap_or(text).to_owned();
    let of = |f: &facts::Facts| {
        let hangs = f.hangs.iter().filter(|text| text.starts_with("HANG"));
        hangs.map(|text| (f.rank, first(text))).collect::<Vec<_>>()
    };
    Ok(facts.iter().flat_map(of).collect())
}

fn end(ranks: &mut Ranks, limit: Duration) -> Result<(), String> {
    match ranks.wait(limit) {
        Some(all) if all.iter().all(ExitStatus::success) => Ok(()),
        Some(all) => Err(format!("the ranks ended with {all:?}")),
        None => Err("the ranks did not end".into()),
    }
}

fn late_peer(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let (late, hang) = setup.scale((5000, "2"), (2500, "1"));
    let sleep = format!("0/sleep:{late}");
    let job = Launch::new(setup, "4-late-peer").env("NCCLSCOPE_HANG_SEC", hang);
    let job = job.env("NCCLSCOPE_KERNEL", "on");
    let job = job.steps(["sendrecv:65536:3", "barrier", &sleep, "sendrecv:65536"]);
    job.run(limit)?;
    let reports = reports(&job)?;
    let facts = facts::read(&job.folder, &KILLED)?;
    let recv =
        facts.iter().find(|f| f.rank == 1).and_then(|f| f.of("Recv").last().copied().cloned());
    let ms = recv.and_then(|op| op.kernel).map(|(start, stop)| (stop - start) / 1_000_000);
    let text = format!("reports {reports:?}; the Recv's kernel ended after {ms:?} ms of {late}");
    let waits = reports.iter().any(|(rank, _)| *rank == 1);
    Ok(Found::judged(waits, text)
        .figure("reports", reports.len() as f64)
        .figures(ms.map(|ms| ("recv_kernel_ms".to_owned(), ms as f64))))
}

fn run_ahead(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let (spin, at, hang) = setup.scale((40_000, 35_000, "30"), (4000, 2500, "2"));
    let job = Launch::new(setup, "5-run-ahead").env("NCCLSCOPE_HANG_SEC", setup.scale("10", "1"));
    let spin = format!("spin:{spin}");
    let job = job.steps(["allreduce:65536:3", "barrier", "mark", &spin, "queue:65536:1", "sync"]);
    let mut ranks = job.start()?;
    if !ranks.wait_for("0 mark", limit) {
        return Err("the ranks did not begin".into());
    }
    std::thread::sleep(Duration::from_millis(at));
    let (classes, _) = diagnose(setup, &job, hang)?;
    end(&mut ranks, Duration::from_secs(15))?;
    let reports = reports(&job)?;
    let text = format!("diagnose says {classes:?}, the watchdog {reports:?}");
    let is_sure = classes.iter().any(|class| class.ends_with("/confirmed"));
    Ok(Found::judged(!is_sure, text).figure("reports", reports.len() as f64))
}

/// Ways in which a process with a stuck kernel is ended.
const ENDS: [&str; 4] = ["exit", "TERM", "reset", "stray"];

fn stuck(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let (mut words, mut is_expected) = (vec![], true);
    for how in ENDS {
        if setup.stand_in && matches!(how, "reset" | "stray") {
            words.push(format!("{how}: not on the stand-in"));
            continue;
        }
        let (text, seconds, fine) = stuck_once(setup, how, true, limit / 5)?;
        words.push(format!("{how}: {text}"));
        is_expected &= fine;
        if how == "reset" {
            let (text, without, _) = stuck_once(setup, how, false, limit / 5)?;
            words.push(format!("{how} without a plugin: {text}"));
            is_expected &= seconds < without + 1.0;
        }
    }
    Ok(Found::judged(is_expected, words.join("; ")))
}

/// Rank 0 has a kernel of 12 s in front of its AllReduce; rank 1 waits for it. Returns what was
/// observed, after how many seconds all processes had ended, and whether this is as expected.
fn stuck_once(
    setup: &Setup,
    how: &str,
    has_plugin: bool,
    limit: Duration,
) -> Result<(String, f64, bool), String> {
    let look = 4000;
    let name = if has_plugin { format!("9-{how}") } else { format!("9-{how}-without") };
    let job = Launch::new(setup, &name).env("NCCLSCOPE_HANG_SEC", "2");
    let job = if has_plugin { job } else { job.without_plugin() };
    let job = job.env("NCCLSCOPE_CUDA_EVENTS", "on").steps(["allreduce:65536:3", "barrier"]);
    let job = job.steps(["0/spin:12000", "queue:65536:1", "mark"]).step(format!("sleep:{look}"));
    let job = match how {
        "TERM" => job.step("sleep:30000"),
        "stray" => job.steps(["0/stray", "sleep:1500", "exit"]),
        step => job.step(step).step("exit"),
    };
    let mut ranks = job.start()?;
    if !ranks.wait_for("0 mark", limit) {
        return Err(format!("{how}: the ranks did not begin"));
    }
    std::thread::sleep(Duration::from_millis(look));
    let begin = Instant::now();
    if how == "TERM" {
        ranks.signal(libc::SIGTERM);
    }
    let ended = ranks.wait(Duration::from_secs(10));
    let took = begin.elapsed().as_secs_f64();
    drop(ranks);
    let reports = if has_plugin { reports(&job)? } else { vec![] };
    let crashed = |status: &ExitStatus| {
        matches!(status.signal(), Some(libc::SIGSEGV | libc::SIGABRT | libc::SIGBUS))
    };
    let fine = ended.as_ref().is_some_and(|all| !all.iter().any(crashed));
    let how = match &ended {
        Some(all) => format!("ended after {took:.1} s with {}", shown(all)),
        None => "no end in 10 s".to_owned(),
    };
    Ok((format!("{how}, reports {reports:?}"), took, fine && !reports.is_empty()))
}

fn shown(all: &[ExitStatus]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn one_process(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if !setup.has_threads() {
        return Ok(setup.without_threads());
    }
    let job = Launch::new(setup, "12-one-process").layout(Layout::Threads);
    let job = job.env("NCCLSCOPE_HANG_SEC", "1").env("NCCLSCOPE_CUDA_EVENTS", "on");
    let job = job.steps(["allreduce:65536:3", "barrier", "mark", "1/sleep:5000"]);
    let job = job.steps(["allreduce:65536", "allreduce:65536:3"]);
    let mut ranks = job.start()?;
    if !ranks.wait_for("0 mark", limit) {
        return Err("the ranks did not begin".into());
    }
    std::thread::sleep(Duration::from_millis(3500));
    let (classes, report) = diagnose(setup, &job, "1")?;
    end(&mut ranks, Duration::from_secs(15))?;
    let stragglers = setup.tool(&["stragglers", "--format", "json"], &job.folder)?;
    let can_read = serde_json::from_str::<Value>(&stragglers).is_ok();
    let is_circle = report.to_string().contains("DEADLOCK");
    let roots = &report["findings"][0]["root_ranks"];
    let reports = reports(&job)?;
    let text = format!(
        "diagnose says {classes:?} of ranks {roots}{}, the watchdog {reports:?}, stragglers {} it",
        if is_circle { " and a deadlock" } else { "" },
        if can_read { "reads" } else { "cannot read" }
    );
    let is_named = *roots == serde_json::json!([1]);
    Ok(Found::judged(is_named && !is_circle && can_read, text))
}
