// SPDX-License-Identifier: Apache-2.0
//! Filters: what they leave out, what the output says about it, and what they do not read.

use crate::common::{Outcome, ncclscope};
use crate::schema::follows;
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A simulated job of 16 ranks on 4 hosts, with tp, pp and dp, and a slow GPU at rank 11.
struct Job(tempfile::TempDir);

impl Job {
    fn new() -> Job {
        let dir = tempfile::tempdir().unwrap();
        let job = ["--ranks", "16", "--tp", "4", "--pp", "2", "--dp", "2", "--steps", "12"];
        let fault = ["--fault", "slow-gpu", "--rank", "11", "--seed", "1"];
        let output = ["simulate", "-o", dir.path().to_str().unwrap()];
        ncclscope(&[&output[..], &job, &fault].concat()).ends_with(0);
        Job(dir)
    }

    fn run(&self, verb: &str, options: &[&str]) -> Outcome {
        ncclscope(&[&[verb, self.0.path().to_str().unwrap()], options].concat())
    }

    fn report(&self, options: &[&str]) -> Value {
        let json = [options, &["--format", "json"]].concat();
        let report = serde_json::from_str(&self.run("report", &json).ends_with(0).stdout).unwrap();
        follows(&report, "report");
        report
    }

    /// Slices of the Chrome trace.
    fn slices(&self, options: &[&str]) -> Vec<Value> {
        let to = ["--to", "chrome", "-o", "-"];
        let trace = self.run("export", &[options, &to].concat()).ends_with(0).stdout;
        let mut trace: Value = serde_json::from_str(&trace).unwrap();
        let Value::Array(events) = trace["traceEvents"].take() else { panic!("{trace}") };
        events.into_iter().filter(|event| event["ph"] == "X").collect()
    }

    fn recordings(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "nscope"));
        files.sort();
        files
    }
}

fn rows(report: &Value, has: impl Fn(&Value) -> bool) -> Vec<&Value> {
    report["operations"].as_array().unwrap().iter().filter(|row| has(row)).collect()
}

/// Number of operations of all ranks.
fn count(report: &Value) -> u64 {
    let timings = rows(report, |_| true).into_iter().map(|row| row["timings"].as_object().unwrap());
    timings.flat_map(|of| of.values()).map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn a_report_has_the_rows_of_what_is_chosen_and_the_answer_of_all() {
    let job = Job::new();
    let all = job.report(&[]);
    assert_eq!((&all["filter"], &all["answer"]["state"]), (&Value::Null, &"SLOW".into()));

    let of_func = job.report(&["--func", "allreduce,Recv"]);
    let expected = rows(&all, |row| row["func"] == "AllReduce" || row["func"] == "Recv");
    assert!(!expected.is_empty());
    assert_eq!(rows(&of_func, |_| true), expected);
    assert_eq!(of_func["answer"], all["answer"]);
    assert_eq!(of_func["peers"].as_array().unwrap().len(), 0);
    assert!(of_func["unknowable"][0].as_str().unwrap().starts_with("Links between ranks"));

    let is_tp = |row: &&Value| row["role"] == "tp";
    let tp: Vec<&Value> =
        all["ranks"].as_array().unwrap().iter().filter(is_tp).map(|row| &row["comm"]).collect();
    let of_role = job.report(&["--role", "TP"]);
    assert_eq!(rows(&of_role, |_| true), rows(&all, |row| tp.contains(&&row["comm"])));
    let comm = tp[0].as_str().unwrap();
    let of_comm = job.report(&["--comm", &comm[..10]]);
    assert_eq!(rows(&of_comm, |_| true), rows(&all, |row| row["comm"] == comm));
    assert_eq!(of_comm["filter"]["recordings"], 4);

    let text = job.run("report", &["--role", "tp"]).ends_with(0).stdout;
    let line = "filter  the figures below are of: role tp; 16 of 16 recordings";
    assert!(text.starts_with("SLOW") && text.contains(line), "{text}");
}

#[test]
fn a_part_of_the_ranks_is_not_judged() {
    let job = Job::new();
    let part = job.report(&["--rank", "3,8-11"]);
    assert_eq!(part["answer"]["state"], "UNKNOWN");
    assert_eq!(part["processes"].as_array().unwrap().len(), 5);
    let text = part["filter"]["text"].as_str().unwrap();
    assert_eq!(text, "ranks 3, 8-11; 5 of 16 recordings");
    let one = job.report(&["--host", "node-*2", "--rank", "11"]);
    let ranks = one["ranks"].as_array().unwrap();
    assert!(ranks.iter().all(|row| row["rank"] == 11 && row["host"] == "node-0002"));
    let next = format!("ncclscope report {}", job.0.path().display());
    assert_eq!(one["answer"]["next"][0], next);
}

#[test]
fn times_and_steps_divide_a_run() {
    let job = Job::new();
    let of_steps = |steps: &str| count(&job.report(&["--steps", steps]));
    let all = of_steps("0-11");
    assert!(all > 0);
    assert_eq!(of_steps("0-2") + of_steps("3-11"), all);
    let early = count(&job.report(&["--until", "+500ms"]));
    let rest = count(&job.report(&["--from", "+0.500000001s"]));
    assert_eq!(early + rest, count(&job.report(&[])));
}

/// A part of a healthy run has the same shares as the whole run: `total_recorded_ns` covers only
/// the part.
#[test]
fn shares_are_of_the_chosen_time() {
    let dir = tempfile::tempdir().unwrap();
    let job = ["simulate", "-o", dir.path().to_str().unwrap(), "--ranks", "8", "--steps", "12"];
    ncclscope(&[&job[..], &["--fault", "healthy"]].concat()).ends_with(0);
    let job = Job(dir);
    let shares = |options: &[&str]| {
        let report = job.report(options);
        let rows = report["roles"].as_array().unwrap().iter();
        let shares: Vec<(String, f64)> = rows
            .filter(|row| !row["share"].is_null())
            .map(|row| (format!("{} {}", row["role"], row["func"]), row["share"].as_f64().unwrap()))
            .collect();
        (report["total_recorded_ns"].as_u64().unwrap(), shares)
    };
    let (some_ns, some) = shares(&["--steps", "4-6"]);
    let (more_ns, more) = shares(&["--steps", "4-9"]);
    assert!(some_ns * 19 / 10 < more_ns && more_ns < some_ns * 21 / 10, "{some_ns} {more_ns}");
    assert!(some.len() > 3, "{some:?}");
    for (name, share) in some {
        let (_, of_more) = more.iter().find(|(other, _)| *other == name).unwrap();
        assert!((share - of_more).abs() < 0.02, "{name} {share} {of_more}");
    }
    // A range hardly longer than an operation.
    let (short_ns, short) = shares(&["--from", "+1s", "--until", "+1.050s"]);
    assert!((395..=405).contains(&(short_ns / 1_000_000)), "{short_ns}");
    assert!(!short.is_empty() && short.iter().all(|(_, share)| *share <= 1.0), "{short:?}");
    let text = job.run("report", &["--from", "+1s", "--until", "+1.050s"]).ends_with(0).stdout;
    let head = "as a share of the recorded time of all ranks within the filter: 400 ms";
    assert!(text.contains(head), "{text}");
}

#[test]
fn a_trace_shows_what_is_chosen() {
    let job = Job::new();
    let slices = job.slices(&["--rank", "3", "--func", "AllReduce"]);
    let pids: std::collections::BTreeSet<u64> =
        slices.iter().map(|slice| slice["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 1);
    let is_shown = |name: &str| name.ends_with("AllReduce");
    let step_states = ["GPUWait", "PeerWait", "Wait", "SendGPUWait", "ProxyStep"];
    for slice in &slices {
        let name = slice["name"].as_str().unwrap();
        let is_step =
            slice["cat"] == "step" || slice["cat"] == "mark" || step_states.contains(&name);
        assert!(is_shown(name) || is_step, "{slice}");
    }
    let kinds = job.slices(&["--rank", "3", "--events", "coll,KernelCh"]);
    assert!(kinds.iter().any(|slice| slice["cat"] == "kernel"));
    let shown = ["kernel", "group", "operation", "mark"];
    assert!(kinds.iter().all(|slice| shown.contains(&slice["cat"].as_str().unwrap())));

    let all = job.slices(&["--rank", "3"]);
    let steps = job.slices(&["--rank", "3", "--steps", "2-3"]);
    let time = |slice: &Value| {
        let ts = slice["ts"].as_f64().unwrap();
        (ts, ts + slice["dur"].as_f64().unwrap())
    };
    let marks: Vec<(f64, f64)> =
        all.iter().filter(|slice| slice["name"] == "training step").map(time).collect();
    let (from, to) = (marks[2].0, marks[3].1);
    let expected = all.iter().filter(|slice| {
        let (start, end) = time(slice);
        slice["cat"] == "operation" && start < to && end >= from
    });
    assert_eq!(steps.iter().filter(|slice| slice["cat"] == "operation").count(), expected.count());
}

#[test]
fn a_filter_that_matches_nothing_names_what_there_is() {
    let job = Job::new();
    for (filter, expected) in [
        (["--rank", "99"], "the run has ranks 0-15"),
        (["--host", "gpu*"], "the hosts are node-0000, node-0001, node-0002, node-0003"),
        (["--role", "ep"], "the roles are dp, pp, tp, world"),
        (["--func", "allred"], "the run has AllGather, AllReduce, "),
        (["--comm", "zz"], "no communicator is `zz`: the run has 0x"),
        (["--steps", "900-901"], "the run has steps 0-11"),
        (["--from", "+1h"], "nothing was recorded in that time: the run was recorded from "),
        (["--events", "col"], "tip: a similar value exists: 'Coll'"),
        (["--events", "NetPlugin"], "the filter leaves no operation: events NetPlugin; 16 of 16"),
    ] {
        let outcome = job.run("report", &filter).ends_with(2);
        assert!(outcome.stderr.contains(expected), "{filter:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "", "{filter:?}");
        if ["--host", "--role", "--comm"].contains(&filter[0]) {
            let alike = job.run("diagnose", &filter).ends_with(2);
            assert_eq!(alike.stderr, outcome.stderr, "each verb says the same");
        }
    }
    let kind = job.run("report", &["--events", "KernelCh,ProxyStep"]).ends_with(2).stderr;
    let advice = "a report is of Coll, P2p and CeColl; `ncclscope export` shows events of other";
    assert!(kind.contains(advice), "{kind}");
    let other = ["--events", "P2p", "--func", "AllReduce"];
    let none = job.run("report", &other).ends_with(2).stderr;
    assert!(none.contains("the filter leaves no operation") && !none.contains(advice), "{none}");
    let func = job.run("diagnose", &["--func", "allred"]).ends_with(2).stderr;
    assert!(func.contains("no operation is called `allred`: the run has AllGather, "), "{func}");
    let none = job.run("export", &["-o", "-", "--to", "chrome", "--rank", "0", "--host", "*3"]);
    assert!(none.ends_with(2).stderr.contains("no recording matches all filters at once"));
}

#[test]
fn recordings_that_are_left_out_are_not_read() {
    let job = Job::new();
    // The contents of a block of rank 5.
    let damaged = &job.recordings()[5];
    let file = OpenOptions::new().read(true).write(true).open(damaged).unwrap();
    let length = file.metadata().unwrap().len();
    let data: Vec<u8> = std::fs::read(damaged).unwrap();
    let last = data.iter().rposition(|&byte| byte != 0).unwrap() as u64;
    assert!(last < length);
    file.write_all_at(&[0x5a; 64], last - 100).unwrap();
    let whole = job.run("report", &[]).ends_with(3);
    assert!(whole.stderr.contains("is damaged"), "{whole:?}");
    for (verb, options) in [("report", vec![]), ("export", vec!["--to", "chrome", "-o", "-"])] {
        let part = job.run(verb, &[&["--rank", "3"], &options[..]].concat()).ends_with(0);
        assert!(!part.stderr.contains("damaged"), "{part:?}");
    }
}

#[test]
fn a_trace_is_of_several_directories() {
    let job = Job::new();
    let other = tempfile::tempdir().unwrap();
    let files = job.recordings();
    for file in &files[8..] {
        std::fs::rename(file, other.path().join(file.file_name().unwrap())).unwrap();
    }
    let trace = other.path().join("t.pftrace");
    let (other, trace) = (other.path().to_str().unwrap(), trace.to_str().unwrap());
    let outcome = job.run("export", &[other, "-o", trace]).ends_with(0);
    assert!(outcome.stderr.contains("slices of 16 processes"), "{}", outcome.stderr);
}

#[test]
fn findings_are_chosen_and_all_ranks_are_judged() {
    let job = Job::new();
    let of = |options: &[&str], code: i32| {
        let json = [options, &["--format", "json"]].concat();
        let text = job.run("stragglers", &json).ends_with(code).stdout;
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let all = of(&[], 1);
    assert_eq!(all["filter"], Value::Null);
    let (own, other) = (of(&["--rank", "11"], 1), of(&["--rank", "0-10"], 0));
    assert_eq!(own["findings"], all["findings"]);
    assert_eq!((&other["findings"], &other["steps"]), (&serde_json::json!([]), &all["steps"]));
    assert_eq!(other["filter"]["text"], "ranks 0-10; 0 of 1 finding shown, all ranks judged");
    let text = job.run("stragglers", &["--host", "node-0002"]).ends_with(1).stdout;
    assert!(text.starts_with("filter      host node-0002; 1 of 1 finding shown"), "{text}");

    let late = of(&["--steps", "2-11"], 1);
    let steps: Vec<i64> =
        late["steps"].as_array().unwrap().iter().map(|row| row["step"].as_i64().unwrap()).collect();
    assert_eq!(steps, (2..12).collect::<Vec<_>>());
    assert_eq!(late["findings"][0]["root_ranks"], serde_json::json!([11]));
    // With three steps no rank can be called slow, and none may be called within the limits.
    let few = job.run("stragglers", &["--steps", "2-4"]).ends_with(0).stdout;
    assert!(few.contains("3 steps are too few to call a rank slow"), "{few}");
    let hidden = job.run("stragglers", &["--rank", "3"]).ends_with(0).stdout;
    assert!(hidden.contains("SLOW\n  1 finding is left out by the filter\n"), "{hidden}");
    let none = job.run("stragglers", &["--from", "+1h"]).ends_with(2);
    assert!(none.stderr.contains("nothing was recorded in that time"), "{}", none.stderr);
    let events = job.run("stragglers", &["--events", "Coll"]).ends_with(2);
    assert!(events.stderr.contains("--events does not apply"), "{}", events.stderr);
}

#[test]
fn verdicts_are_chosen_and_all_ranks_are_judged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let fault = ["--ranks", "8", "--steps", "4", "--fault", "host-stuck", "--rank", "5"];
    ncclscope(&[&["simulate", "-o", path], &fault[..]].concat()).ends_with(0);
    let diagnose = |options: &[&str]| ncclscope(&[&["diagnose", path], options].concat());
    let all = diagnose(&[]).ends_with(1).stdout;
    let own = diagnose(&["--rank", "5"]).ends_with(1).stdout;
    let line = "filter: rank 5; 1 of 1 finding shown, all ranks judged\n";
    assert_eq!(own, format!("{line}{all}"));
    let other = diagnose(&["--rank", "0-4,6", "--format", "json"]).ends_with(0).stdout;
    let other: Value = serde_json::from_str(&other).unwrap();
    assert_eq!(other["findings"], serde_json::json!([]));
    assert_eq!((&other["filter"]["shown"], &other["filter"]["of"]), (&0.into(), &1.into()));
    let hidden = diagnose(&["--rank", "0-4,6"]).ends_with(0).stdout;
    assert!(hidden.contains("\n1 finding is left out by the filter.\n"), "{hidden}");
    assert!(!hidden.contains("Nothing found"), "{hidden}");
    let table = diagnose(&["--rank", "0-4,6", "--format", "csv"]).ends_with(0);
    assert!(table.stderr.contains("filter: ranks 0-4, 6; 0 of 1 finding shown"), "{table:?}");
    for (option, text) in [
        ("--host", "nope"),
        ("--comm", "zz"),
        ("--role", "zz"),
        ("--func", "allreduc"),
        ("--rank", "0 --host node-0001"),
    ] {
        let args: Vec<&str> = std::iter::once(option).chain(text.split(' ')).collect();
        diagnose(&args).ends_with(2);
    }
    let times = diagnose(&["--steps", "1"]).ends_with(2).stderr;
    assert!(times.contains("diagnose judges the end of a run"), "{times}");
    let ranks = diagnose(&["--rank", "99"]).ends_with(2).stderr;
    assert!(ranks.contains("the run has ranks 0-7"), "{ranks}");
}
