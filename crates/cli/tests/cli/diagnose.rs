// SPDX-License-Identifier: Apache-2.0
//! `diagnose`: its output, its exit codes, and the files that it writes for other tools.

use super::common::{Run, ncclscope};
use super::schema::follows;
use scripts::{Call, Fault};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two ranks that were killed; rank 0 has entered one AllReduce more than rank 1.
fn killed(age_ns: u64) -> Run {
    Run::new(|process| {
        process.header.closed = false;
        process.collective(Call::ALL_REDUCE);
        if process.comm.rank == 0 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        }
        process.now += age_ns;
    })
}

#[test]
fn a_rank_that_others_wait_for() {
    let run = killed(60_000_000_000);
    let text = ncclscope(&["diagnose", run.text()]).ends_with(1).stdout;
    assert!(text.contains("H1a host-stuck  rank 1 (node-1, pid 1001)"), "{text}");
    assert!(text.contains("all processes were killed"), "{text}");
    let json = ncclscope(&["diagnose", run.text(), "--format", "json"]).ends_with(1).stdout;
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["schema"], "ncclscope.diagnosis/2");
    let verdict = &found["findings"][0];
    assert_eq!((&verdict["class"], &verdict["name"]), (&"H1a".into(), &"host-stuck".into()));
    assert_eq!(verdict["confidence"], "confirmed");
    assert_eq!(verdict["root_ranks"], serde_json::json!([1]));
    assert_eq!(verdict["comm"], "0x1f2e3d4c");
    assert_eq!(verdict["op"]["func"], "AllReduce");
    assert_eq!((&verdict["op"]["number"], &verdict["op"]["bytes"]), (&2.into(), &(4 << 20).into()));
    assert_eq!(found["silent_ranks"], serde_json::json!([]));
}

/// Each rank has what it does and what keeps it from being named; a rule can be switched off.
#[test]
fn ranks_have_reasons_not_to_be_named_and_rules_can_be_switched_off() {
    let run = killed(60_000_000_000);
    let json = ncclscope(&["diagnose", run.text(), "--why-not", "--format", "json"]).ends_with(1);
    let found: Value = serde_json::from_str(&json.stdout).unwrap();
    follows(&found, "diagnosis");
    let of = |rank: u64| {
        let seen = found["why_not"].as_array().unwrap().iter();
        let of: Vec<&Value> =
            seen.filter(|one| one["ranks"] == serde_json::json!([rank])).collect();
        let [one] = of[..] else { panic!("{of:?}") };
        ["outcome", "because", "saw"].map(|field| one[field].as_str().unwrap().to_owned())
    };
    assert_eq!(of(0)[..2], ["not", "it waits for rank 1, not there yet or without input"]);
    assert!(
        of(0)[2].starts_with("in operation 2 (AllReduce, 4 MiB) of communicator"),
        "{:?}",
        of(0)
    );
    assert!(of(1)[0] == "found" && of(1)[2].ends_with("; H1a names it"), "{:?}", of(1));
    let one = ncclscope(&["diagnose", run.text(), "--why-not", "--rank", "0"]).ends_with(0).stdout;
    assert!(one.contains("wait-graph  rank 0\n") && !one.contains("wait-graph  rank 1\n"), "{one}");
    let without =
        ncclscope(&["diagnose", run.text(), "--without", "wait-graph"]).ends_with(0).stdout;
    assert!(without.contains("note: wait-graph is switched off"), "{without}");
    let rules = ncclscope(&["diagnose", "--list-rules"]).ends_with(0).stdout;
    assert!(rules.contains("settings-mismatch (H2c)"), "{rules}");
}

#[test]
fn a_rank_that_left_nothing_is_not_called_dead() {
    let run = killed(60_000_000_000);
    std::fs::remove_file(recording(run.path(), "node-1")).unwrap();
    let json = ncclscope(&["diagnose", run.text(), "--format", "json"]).ends_with(1).stdout;
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["silent_ranks"], serde_json::json!([1]));
    let verdict = &found["findings"][0];
    assert_eq!((&verdict["class"], &verdict["confidence"]), (&"H0".into(), &"suspect".into()));
    assert_eq!(verdict["root_ranks"], serde_json::json!([1]));
}

fn recording(directory: &Path, host: &str) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(host);
    files.into_iter().find(is_it).unwrap()
}

#[test]
fn a_completed_job_and_one_killed_at_work_are_not_hangs() {
    let healthy = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let text = ncclscope(&["diagnose", healthy.text()]).ends_with(0).stdout;
    assert!(text.contains("Nothing found"), "{text}");
    let at_work = killed(1_000_000);
    ncclscope(&["diagnose", at_work.text()]).ends_with(0);
}

/// What each rank does when the launcher kills it, a second after it killed one of them, differs
/// from job to job.
#[test]
fn a_job_killed_within_a_second_gets_no_confirmed_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("killed.toml");
    let job = "[job]\nranks = 16\nhold_s = 1\n[[fault]]\nname = \"killed\"\n";
    std::fs::write(&scenario, job).unwrap();
    for seed in ["1", "2", "3", "4", "5"] {
        let out = dir.path().join(seed);
        let out = out.to_str().unwrap();
        let args = ["simulate", scenario.to_str().unwrap(), "--seed", seed, "-o", out];
        ncclscope(&args).ends_with(0);
        let found = ncclscope(&["diagnose", out]).ends_with(0);
        let says = "a rank that was killed within the last second before the other ranks";
        assert!(found.stdout.contains(says), "{found:?}");
        assert!(!found.stdout.contains("--hang-sec"), "{found:?}");
        assert!(!found.stderr.contains("if the job is slow"), "{found:?}");
        let args = ["diagnose", out, "--hang-sec", "0.5", "--format", "json"];
        let found: Value = serde_json::from_str(&ncclscope(&args).ends_with(1).stdout).unwrap();
        for verdict in found["findings"].as_array().unwrap() {
            assert_eq!(verdict["confidence"], "suspect", "seed {seed}: {verdict}");
            assert!(verdict["alternatives"].to_string().contains("another rank died"), "{verdict}");
        }
    }
}

#[test]
fn tables_and_text_say_where_and_since_when() {
    let run = killed(60_000_000_000);
    let csv = ncclscope(&["diagnose", run.text(), "--format", "csv"]).ends_with(1).stdout;
    let mut rows = csv::Reader::from_reader(csv.as_bytes());
    let row: BTreeMap<String, String> = rows.deserialize().next().unwrap().unwrap();
    assert_eq!((&*row["host"], &*row["pid"]), ("node-1", "1001"));
    let text = ncclscope(&["diagnose", run.text()]).ends_with(1).stdout;
    assert!(text.contains(&format!("  since        {}\n", row["since"])), "{text}");
    assert!(text.contains(&format!("  more         ncclscope view {}\n", run.text())), "{text}");
}

/// Times of an earlier run would seem an hour old.
#[test]
fn a_clock_that_is_set_makes_no_hang() {
    let run = Run::new(|process| {
        process.header.closed = false;
        process.clock_set = 3_600_000_000_000;
        process.collective(Call::ALL_REDUCE);
        if process.comm.rank == 0 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        }
    });
    let text = ncclscope(&["diagnose", run.text()]).ends_with(0).stdout;
    assert!(text.contains("Nothing found"), "{text}");
}

#[test]
fn wrong_input_and_usage() {
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().to_str().unwrap();
    let outcome = ncclscope(&["diagnose", path]).ends_with(3);
    assert!(outcome.stderr.contains("nothing to diagnose"), "{outcome:?}");
    ncclscope(&["diagnose"]).ends_with(2);
    ncclscope(&["diagnose", path, "--hang-sec", "0"]).ends_with(2);
}

#[test]
fn flight_recorder_dumps_come_out_and_go_in_again() {
    let run = killed(60_000_000_000);
    let out = tempfile::tempdir().unwrap();
    let dumps = out.path().join("dumps");
    let to = dumps.to_str().unwrap();
    ncclscope(&["diagnose", run.text(), "--fr-out", to]).ends_with(1);
    assert!(dumps.join("_dump_0").exists() && dumps.join("flight-recorder.json").exists());
    let json = ncclscope(&["diagnose", to, "--format", "json"]).ends_with(1).stdout;
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["findings"][0]["class"], "H1a");
    assert_eq!(found["findings"][0]["root_ranks"], serde_json::json!([1]));
    assert_eq!(found["source"], "PyTorch Flight Recorder");
    // Dumps that are input are not overwritten by new ones.
    let before = std::fs::read(dumps.join("_dump_0")).unwrap();
    let same = dumps.join("..").join("dumps");
    for args in [[to, same.to_str().unwrap()], [dumps.join("_dump_0").to_str().unwrap(), to]] {
        let outcome = ncclscope(&["diagnose", args[0], "--fr-out", args[1]]).ends_with(2);
        assert!(outcome.stderr.contains("is the directory of the input"), "{outcome:?}");
    }
    assert_eq!(std::fs::read(dumps.join("_dump_0")).unwrap(), before);
    assert_eq!(std::fs::read_dir(&dumps).unwrap().count(), 3);
    // Own ones are, and those of PyTorch not.
    ncclscope(&["diagnose", run.text(), "--fr-out", to]).ends_with(1);
    std::fs::remove_file(dumps.join("flight-recorder.json")).unwrap();
    let outcome = ncclscope(&["diagnose", run.text(), "--fr-out", to]).ends_with(2);
    assert!(outcome.stderr.contains("has Flight Recorder dumps: name another"), "{outcome:?}");
    assert_eq!(std::fs::read_dir(&dumps).unwrap().count(), 2);
}

/// PyTorch's own reader of such dumps gets the same result, if torch is installed.
#[test]
fn pytorch_reads_the_dumps() {
    // The first in the list has the newest torch.
    let pythons = std::env::var_os("NCCLSCOPE_TEST_TORCH_PYTHON");
    let Some(python) = pythons.and_then(|list| std::env::split_paths(&list).next()) else {
        let required = std::env::var_os("NCCLSCOPE_REQUIRE_TORCH").is_some();
        assert!(!required, "NCCLSCOPE_TEST_TORCH_PYTHON is not set: name a Python that has torch");
        // The test harness captures what macros print, so this writes to stderr directly.
        writeln!(std::io::stderr(), "skipped: NCCLSCOPE_TEST_TORCH_PYTHON is not set").unwrap();
        return;
    };
    let run = killed(60_000_000_000);
    let out = tempfile::tempdir().unwrap();
    ncclscope(&["diagnose", run.text(), "--fr-out", out.path().to_str().unwrap()]).ends_with(1);
    let mut reader = Command::new(python);
    reader.args(["-m", "torch.distributed.flight_recorder.fr_trace", "-p", "_dump_"]);
    let output = reader.arg(out.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("missing ranks: {1}"), "{text}");
}

/// The text names the two ranks of a pair; JSON has the communicator's name as in `report`.
#[test]
fn the_communicator_of_a_send_is_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("job");
    let out = out.to_str().unwrap();
    ncclscope(&["simulate", "-o", out, "--fault", "link-down", "--seed", "1"]).ends_with(0);
    let json = ncclscope(&["diagnose", out, "--format", "json"]).ends_with(1).stdout;
    let found: Value = serde_json::from_str(&json).unwrap();
    follows(&found, "diagnosis");
    let verdict = &found["findings"][0];
    let comm = verdict["comm"].as_str().unwrap();
    assert!(comm.starts_with("0x") && !comm.contains(' '), "{verdict}");
    assert!(verdict["comm_name"].is_null() && verdict["edge"].is_array(), "{verdict}");
    let text = ncclscope(&["diagnose", out]).ends_with(1).stdout;
    let role = verdict["role"].as_str().unwrap();
    assert!(text.contains(&format!("of {comm} ({role}), operation ")), "{text}");
}

/// The last operations of the rank were in flight for longer than the limit when it exited; the
/// other ranks wait for it for another minute.
#[test]
fn a_rank_that_exits_in_the_middle_of_its_work_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("job");
    let out = out.to_str().unwrap();
    let fault = ["--ranks", "16", "--fault", "exit", "--seed", "2"];
    ncclscope(&[&["simulate", "-o", out], &fault[..]].concat()).ends_with(0);
    let json = ncclscope(&["diagnose", out, "--format", "json"]).ends_with(1).stdout;
    let found: Value = serde_json::from_str(&json).unwrap();
    let verdicts = found["findings"].as_array().unwrap();
    let said: Vec<_> = verdicts.iter().map(|it| (&it["class"], &it["root_ranks"])).collect();
    assert_eq!(said, [(&"H1b".into(), &serde_json::json!([4]))]);
    // The advice for the class is in fields of the JSON, and also in the text.
    follows(&found, "diagnosis");
    let verdict = &verdicts[0];
    let place = serde_json::json!([
        {"rank": 4, "host": "node-0001", "pid": 10256, "local_rank": 0, "device": 0}
    ]);
    assert_eq!(verdict["where"], place);
    assert_eq!(verdict["cost"]["gpu_hours_per_day"], 24.0 * 16.0);
    let age = verdict["age_ns"].as_f64().unwrap();
    let figures = &verdict["evidence"][0]["figures"];
    assert_eq!((figures["waited_ns"].as_f64(), &figures["called"]), (Some(age), &11.0.into()));
    let text = ncclscope(&["diagnose", out]).ends_with(1).stdout;
    let since = format!("  since        {}\n", verdict["since"].as_str().unwrap());
    let advice = format!("  do           {}\n", verdict["advice"].as_str().unwrap());
    for line in
        [&since, &advice, "  place        rank 4 (node-0001, local rank 0, GPU 0, pid 10256)"]
    {
        assert!(text.contains(line), "{line} {text}");
    }
}

/// Ranks that made different calls do not always hang: results can be wrong without lost time.
#[test]
fn calls_that_differ_cost_nothing_where_no_rank_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let fault = ["--ranks", "16", "--seed", "1", "--fault", "wrong-type"];
    ncclscope(&[&["simulate", "-o", path], &fault[..]].concat()).ends_with(0);
    let json = ncclscope(&["diagnose", path, "--format", "json"]).ends_with(1).stdout;
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&found["waiting_ranks"], &found["findings"][0]["class"]),
        (&0.into(), &"H2".into())
    );
    assert_eq!(found["findings"][0]["cost"], Value::Null);
    // As docs/report.md says, the job need not hang.
    let text = ncclscope(&["report", path]).ends_with(0).stdout;
    assert!(text.starts_with("CANNOT TELL  no rank waits, and ranks made different"), "{text}");
    assert!(text.contains("\nwhy   H2 call-mismatch (confirmed): "), "{text}");
}

/// A finding about calls that differ has the time of the call that differs, or since when other
/// ranks wait in it.
#[test]
fn calls_that_differ_say_since_when() {
    for fault in ["extra-op", "wrong-count", "wrong-type", "p2p-size"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let args = ["--ranks", "16", "--steps", "4", "--seed", "1", "--fault", fault];
        ncclscope(&[&["simulate", "-o", path], &args[..]].concat()).ends_with(0);
        let truth = std::fs::read_to_string(dir.path().join("truth.json")).unwrap();
        let truth: Value = serde_json::from_str(&truth).unwrap();
        let json = ncclscope(&["diagnose", path, "--format", "json"]).ends_with(1).stdout;
        let found: Value = serde_json::from_str(&json).unwrap();
        let found = &found["findings"][0];
        assert!(["H2", "H2b"].contains(&found["class"].as_str().unwrap()), "{found}");
        let since = found["since"].as_str().unwrap_or_else(|| panic!("{fault}: {found}"));
        let time = since.split_once('T').unwrap().1.trim_end_matches('Z');
        let seconds = time.split(':').fold(0, |sum, part| 60 * sum + part.parse::<u64>().unwrap());
        let planted = truth["injected_ns"].as_u64().unwrap() / 1_000_000_000 % 86_400;
        assert!(seconds.abs_diff(planted) <= 1, "{fault}: {seconds}, not {planted}: {found}");
        // A call in which no rank waits is not in flight.
        let is_over = ["wrong-type", "extra-op"].contains(&fault);
        assert_eq!(found["age_ns"].is_null(), is_over, "{fault}: {found}");
    }
}
