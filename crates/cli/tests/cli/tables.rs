// SPDX-License-Identifier: Apache-2.0
//! `report --by`, and tables as CSV and Markdown.

use crate::common::{Run, ncclscope};
use crate::schema::follows;
use scripts::Call;
use serde_json::Value;
use std::collections::BTreeMap;

/// A simulated job of 16 ranks with a slow GPU at rank 11.
fn job() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let job = ["--ranks", "16", "--tp", "4", "--pp", "2", "--dp", "2", "--steps", "12"];
    let fault = ["--fault", "slow-gpu", "--rank", "11", "--seed", "1"];
    let output = ["simulate", "-o", dir.path().to_str().unwrap()];
    ncclscope(&[&output[..], &job, &fault].concat()).ends_with(0);
    dir
}

fn report(dir: &tempfile::TempDir, options: &[&str]) -> String {
    ncclscope(&[&["report", dir.path().to_str().unwrap()], options].concat()).ends_with(0).stdout
}

/// The report, and its rows of groups.
fn groups(dir: &tempfile::TempDir, by: &str) -> (Value, Vec<Value>) {
    let text = report(dir, &["--by", by, "--format", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    follows(&report, "report");
    let rows = report["groups"]["rows"].as_array().unwrap().clone();
    (report, rows)
}

fn sum(rows: &[Value], field: &str) -> u64 {
    rows.iter().map(|row| row[field].as_u64().unwrap_or(0)).sum()
}

/// The rows of a table as CSV, each a map by column name.
fn csv_rows(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().map(|row| row.unwrap()).collect()
}

#[test]
fn groups_add_up_to_the_rows_of_every_report() {
    let dir = job();
    let (all, roles) = groups(&dir, "role,func");
    let close = |a: &Value, b: &Value| {
        let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
        (a - b).abs() <= 1e-6 * b + 100.0
    };
    assert_eq!(all["groups"]["by"], serde_json::json!(["role", "func"]));
    for row in all["roles"].as_array().unwrap() {
        let is_it = |of: &&Value| of["role"] == row["role"] && of["func"] == row["func"];
        let group = roles.iter().find(is_it).unwrap();
        assert!(close(&group["total_ns"], &row["total_ns"]), "{group} {row}");
        if !row["judged_ns"].is_null() {
            assert!(close(&group["judged_ns"], &row["judged_ns"]), "{group} {row}");
            assert!(close(&group["total_waiting_ns"], &row["total_waiting_ns"]), "{group} {row}");
        }
    }
    let (count, bytes, time) =
        (sum(&roles, "count"), sum(&roles, "total_bytes"), sum(&roles, "total_ns"));
    assert!(count > 0 && bytes > 0 && time > 0);
    for by in ["comm", "rank", "host", "size", "step", "role", "func", "rank,func"] {
        let (_, rows) = groups(&dir, by);
        assert_eq!((sum(&rows, "count"), sum(&rows, "total_bytes")), (count, bytes), "{by}");
        assert!(sum(&rows, "total_ns").abs_diff(time) < 1000, "{by}");
    }
}

/// The world's small AllReduce ends in different ways on its ranks, so its times have two sources;
/// a row shows the times of one source.
#[test]
fn rows_say_how_many_operations_their_times_are_of() {
    let dir = job();
    let (all, funcs) = groups(&dir, "role,func");
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let mut parts = 0;
    for row in all["operations"].as_array().unwrap() {
        let timings = row["timings"].as_object().unwrap();
        assert_eq!(row["timed"], timings[row["timing"].as_str().unwrap()], "{row}");
        let (mean, most) = (number(row, "total_ns") / number(row, "timed"), &row["duration_ns"]);
        assert!((number(most, "min")..=number(most, "max")).contains(&mean), "{row}");
        parts += usize::from(timings.len() > 1);
    }
    assert!(parts > 0, "a row with two sources");
    let of = |rows: &[Value], role: &str, func: &str| {
        rows.iter().find(|row| row["role"] == role && row["func"] == func).unwrap().clone()
    };
    let world = of(&funcs, "world", "AllReduce");
    assert!(0 < number(&world, "timed") && number(&world, "timed") < number(&world, "count"));
    let tp = of(&funcs, "tp", "AllReduce");
    assert_eq!((number(&tp, "timed"), number(&tp, "from_enqueue_ns")), (number(&tp, "count"), 0));
    let text = report(&dir, &["--by", "role,func"]);
    assert!(text.contains("count  timed") && text.contains("timed: the operations"), "{text}");
    let full = report(&dir, &["--full"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(full.contains("have the row's timing (AllReduce of 4 B on 0x"), "{full}");
    let (_, sizes) = groups(&dir, "size");
    let by_tp = report(&dir, &["--role", "tp", "--by", "func"]);
    assert!(!sizes.is_empty() && !by_tp.contains("timed"), "{by_tp}");
}

/// A receive is enqueued long before the GPU starts it.
#[test]
fn time_before_the_gpu_comes_to_an_operation_is_no_time_in_nccl() {
    let dir = job();
    let (all, funcs) = groups(&dir, "role,func");
    let is_receive = |row: &&Value| row["role"] == "pp" && row["func"] == "Recv";
    let role = all["roles"].as_array().unwrap().iter().find(is_receive).unwrap();
    let (time, sum) = (role["in_nccl_ns"].as_u64().unwrap(), role["total_ns"].as_u64().unwrap());
    assert!(0 < time && time * 2 < sum, "{role}");
    let share = time as f64 / all["total_recorded_ns"].as_f64().unwrap();
    assert!((role["share"].as_f64().unwrap() - share).abs() < 1e-9, "{role}");
    let group = funcs.iter().find(is_receive).unwrap();
    assert_eq!(group["from_enqueue_ns"], group["total_ns"]);
    let text = report(&dir, &["--by", "role,func"]);
    assert!(text.contains("of the time is that of operations with a network part"), "{text}");
    // The end of some operations is unknown: a share that contains them is a lower bound.
    let world = |row: &&Value| row["role"] == "world" && row["func"] == "AllReduce";
    let world = all["roles"].as_array().unwrap().iter().find(world).unwrap();
    assert_eq!((&world["bound"], &role["bound"]), (&"least".into(), &Value::Null));
    let text = report(&dir, &[]);
    let line = text.lines().find(|line| line.contains("world  AllReduce")).unwrap();
    assert!(line.contains("  >=") && text.contains("\n  time >=: "), "{text}");
}

/// JSON has the size as `bytes` and the sum as `total_bytes`; the text calls the size `size` and
/// the sum `bytes`.
#[test]
fn the_size_of_a_group_is_apart_from_its_sum() {
    let dir = job();
    let (all, rows) = groups(&dir, "size");
    assert_eq!(all["groups"]["by"], serde_json::json!(["bytes"]));
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let is_sum =
        |row: &Value| number(row, "total_bytes") == number(row, "bytes") * number(row, "count");
    assert!(!rows.is_empty() && rows.iter().all(is_sum), "{rows:?}");
    let text = report(&dir, &["--by", "size"]);
    assert!(text.contains("BY SIZE\n") && !text.contains("BY BYTES"), "{text}");
}

#[test]
fn ranks_steps_and_channels_have_rows() {
    let dir = job();
    let (_, ranks) = groups(&dir, "rank");
    let numbers: Vec<u64> = ranks.iter().map(|row| row["rank"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..16).collect::<Vec<_>>());
    // The rank for which the others of its group wait has the least waiting time.
    let waits = |rank: usize| ranks[rank]["total_waiting_ns"].as_u64().unwrap();
    assert!([8, 9, 10].into_iter().all(|rank| waits(rank) > 5 * waits(11)), "{ranks:#?}");
    let (_, steps) = groups(&dir, "step");
    let numbers: Vec<u64> = steps.iter().filter_map(|row| row["step"].as_u64()).collect();
    assert_eq!(numbers, (0..12).collect::<Vec<_>>());
    let (_, hosts) = groups(&dir, "host");
    assert_eq!(hosts.len(), 4);
    let (_, channels) = groups(&dir, "channel");
    assert!(channels.iter().all(|row| row["count"].as_u64().unwrap() > 0), "{channels:?}");
    assert!(sum(&channels, "total_bytes") > 0 && sum(&channels, "total_ns") > 0);
    let both = ["report", dir.path().to_str().unwrap(), "--by", "channel,func"];
    assert!(ncclscope(&both).ends_with(2).stderr.contains("--by channel stands alone"));
    let twice = ["report", dir.path().to_str().unwrap(), "--by", "rank,func,rank"];
    assert!(ncclscope(&twice).ends_with(2).stderr.contains("--by names a key twice"));
    let wrong = ["report", dir.path().to_str().unwrap(), "--by", "ranks"];
    assert!(ncclscope(&wrong).ends_with(2).stderr.contains("expected some of comm, rank"));
}

#[test]
fn csv_has_the_figures_of_json() {
    let dir = job();
    let json: Value = serde_json::from_str(&report(&dir, &["--format", "json"])).unwrap();
    let rows = csv_rows(&report(&dir, &["--format", "csv"]));
    let operations = json["operations"].as_array().unwrap();
    assert_eq!(rows.len(), operations.len());
    for (row, operation) in rows.iter().zip(operations) {
        assert_eq!(operation["func"], *row["func"]);
        assert_eq!(row["count"], operation["count"].to_string());
        assert_eq!(row["duration_ns_p50"], operation["duration_ns"]["p50"].to_string());
        let known = |value: &Value| if value.is_null() { String::new() } else { value.to_string() };
        assert_eq!(row["busbw_gbs"], known(&operation["busbw_gbs"]));
    }
    let (_, groups) = groups(&dir, "size,func");
    let rows = csv_rows(&report(&dir, &["--by", "size,func", "--format", "csv"]));
    let times = |of: &Value| of["total_ns"].to_string();
    assert_eq!(
        rows.iter().map(|row| row["total_ns"].clone()).collect::<Vec<_>>(),
        groups.iter().map(times).collect::<Vec<_>>()
    );
}

#[test]
fn names_are_harmless_in_csv_and_markdown() {
    let run = Run::new(|p| {
        p.comm.name = Some("=1+1|<b>\"x\"\n\x1b[2J".into());
        p.collective(Call::ALL_REDUCE);
    });
    let table = |format: &str| {
        let args = ["report", run.text(), "--by", "role", "--format", format];
        ncclscope(&args).ends_with(0).stdout
    };
    let csv = table("csv");
    assert_eq!(csv_rows(&csv)[0]["role"], "'=1+1|<b>\"x\"\n\\u001b[2J");
    let md = table("md");
    let cell = "| =1+1\\|\\<b\\>\"x\"";
    assert!(md.lines().any(|line| line.starts_with(cell)), "{md}");
    assert!(!csv.contains('\x1b') && !md.contains('\x1b'));
}

#[test]
fn verbs_with_tables_have_all_formats() {
    let dir = job();
    let path = dir.path().to_str().unwrap();
    let md = report(&dir, &["--format", "md"]);
    let lines = ["- **SLOW** since 20", "### TIME IN NCCL", "| role | function | comms |"];
    assert!(lines.iter().all(|line| md.contains(line)), "{md}");
    for (args, code, first) in [
        (vec!["stragglers", path], 1, "class,name,confidence,root_ranks,"),
        (vec!["diagnose", path], 0, "class,name,confidence,root_ranks,"),
        (vec!["compare", path, path], 0, "key_kind,key_role,key_func,"),
        (vec!["ls"], 0, "JOB,RANK,HOST,PID,"),
    ] {
        let formatted = |format| ncclscope(&[&args[..], &["--format", format]].concat());
        let csv = formatted("csv").ends_with(code).stdout;
        assert!(csv.starts_with(first), "{args:?}: {csv}");
        let md = formatted("md").ends_with(code).stdout;
        assert!(md.contains("| --- | --- |"), "{args:?}: {md}");
    }
    let args = ["stragglers", path, "--format", "csv"];
    let findings = csv_rows(&ncclscope(&args).ends_with(1).stdout);
    assert_eq!((&*findings[0]["class"], &*findings[0]["root_ranks"]), ("S1", "11"));
}
