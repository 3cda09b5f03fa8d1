// SPDX-License-Identifier: Apache-2.0
//! `ncclscope simulate`.

use crate::common::ncclscope;
use serde_json::Value;

#[test]
fn the_list_names_every_fault_with_its_class() {
    let list = ncclscope(&["simulate", "--list"]).ends_with(0).stdout;
    for line in ["host-stuck", "H1a", "order-swap", "DEADLOCK", "slow-nic", "S4", "checkpoint"] {
        assert!(list.contains(line), "{list}");
    }
}

#[test]
fn a_job_is_written_and_can_be_reported() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("job");
    let (out, tiny) = (out.to_str().unwrap(), ["--ranks", "4", "--steps", "2"]);
    let args = ["simulate", "-o", out, "--fault", "host-stuck", "--rank", "1", "--seed", "3"];
    let told = ncclscope(&[&args[..], &tiny[..]].concat()).ends_with(0).stdout;
    assert!(
        told.contains("the job hangs") && told.contains("planted H1a host-stuck: ranks [1]"),
        "{told}"
    );
    let report = ncclscope(&["report", "--full", out]).ends_with(0).stdout;
    assert!(report.contains("4 of 4 ranks recorded"), "{report}");
    let truth = std::fs::read_to_string(format!("{out}/truth.json")).unwrap();
    assert!(truth.contains("\"class\": \"H1a\""), "{truth}");
    // Existing files are not overwritten.
    let again = ncclscope(&[&args[..], &tiny[..]].concat()).ends_with(4).stderr;
    assert!(again.contains("there is a file of this name: choose another"), "{again}");
    // Nor is the truth about a job in other files.
    let table = dir.path().join("table");
    let table = table.to_str().unwrap();
    ncclscope(&["simulate", "--counters", "-o", table, "--ranks", "8"]).ends_with(0);
    let before = std::fs::read(format!("{table}/truth.json")).unwrap();
    let told = ncclscope(&[&["simulate", "-o", table][..], &tiny[..]].concat()).ends_with(4);
    assert!(told.stderr.contains("truth.json: there is a file of this name"), "{told:#?}");
    assert!(std::fs::read(format!("{table}/truth.json")).unwrap() == before);
    assert_eq!(std::fs::read_dir(table).unwrap().count(), 2, "no recording is written");
}

#[test]
fn a_scenario_file_is_read_and_the_command_line_wins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.toml");
    std::fs::write(&file, "seed = 9\n[job]\nranks = 4\nsteps = 1\n[[fault]]\nname = \"clocks\"\n")
        .unwrap();
    let (file, out) = (file.to_str().unwrap(), dir.path().join("job"));
    let args = ["simulate", file, "-o", out.to_str().unwrap(), "--ranks", "2"];
    let told = ncclscope(&args).ends_with(0).stdout;
    assert!(told.starts_with("2 ranks") && told.contains("the job completed"), "{told}");
}

#[test]
fn mistakes_get_one_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("job");
    let out = out.to_str().unwrap();
    let no_file = ncclscope(&["simulate", "/nowhere.toml", "-o", out]).ends_with(3).stderr;
    assert!(no_file.contains("/nowhere.toml"), "{no_file}");
    ncclscope(&["simulate"]).ends_with(2);
    let fault = ncclscope(&["simulate", "-o", out, "--fault", "rust"]).ends_with(2).stderr;
    assert!(fault.contains("--list"), "{fault}");
    let sizes = ncclscope(&["simulate", "-o", out, "--tp", "5"]).ends_with(2).stderr;
    assert!(sizes.contains("tp 5"), "{sizes}");
    let file = dir.path().join("job.toml");
    std::fs::write(&file, "[job]\nranks = 4\nsteps = -1\n").unwrap();
    for (file, what) in [
        (file.to_str().unwrap(), "line 3: invalid value: integer `-1`"),
        ("/dev/zero", "larger than 1 MiB"),
    ] {
        let outcome = ncclscope(&["simulate", file, "-o", out]).ends_with(3);
        assert!(outcome.stderr.contains(what), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
    assert!(!std::path::Path::new(out).exists());
}

/// A GPU that computes slowly arrives late: its communicators wait longer, and no bandwidth is
/// lost.
#[test]
fn a_slow_gpu_leaves_the_bandwidth_of_the_transfer_as_it_is_and_the_waiting_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let out = out.to_str().unwrap();
    let job = ["--ranks", "64", "--steps", "6", "--seed", "1", "--rank", "42"];
    ncclscope(&[&["simulate", "-o", out, "--fault", "slow-gpu"], &job[..]].concat()).ends_with(0);
    let report = ncclscope(&["report", out, "--format", "json"]).ends_with(0).stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    // The tensor parallel groups, each of the GPUs of one host.
    let rows = report["operations"].as_array().unwrap().iter();
    let rows: Vec<&Value> =
        rows.filter(|row| row["func"] == "AllReduce" && row["bytes"] == 16 << 20).collect();
    assert_eq!(rows.len(), 8, "{rows:?}");
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
    let of = |key: &'static str| {
        let mut of: Vec<f64> = rows.iter().map(|row| number(row, key)).collect();
        of.sort_unstable_by(f64::total_cmp);
        of
    };
    let transfer = of("busbw_gbs");
    assert!(transfer.iter().all(|rate| (rate / transfer[4] - 1.0).abs() < 0.05), "{transfer:?}");
    let with_waiting = of("busbw_with_waiting_gbs");
    assert!(with_waiting[0] < 0.5 * transfer[0], "{with_waiting:?}");
    let waited = |row: &&&Value| number(&row["waiting_ns"], "p50");
    let most = rows.iter().max_by(|a, b| waited(a).total_cmp(&waited(b))).unwrap();
    assert_eq!(most["last_rank"]["rank"], 42, "{most}");
    assert_eq!(most["last_rank"]["times"], most["transfers"], "{most}");
    let text = ncclscope(&["report", "--full", out]).ends_with(0).stdout;
    assert!(text.contains("rank 42 (100 %)"), "{text}");
    assert!(text.contains("busbw >=: with the wait for later ranks"), "{text}");
}
