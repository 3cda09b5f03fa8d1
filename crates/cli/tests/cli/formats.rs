// SPDX-License-Identifier: Apache-2.0
//! Files of other tools: NCCL Inspector's and nccl-tests' are read, the others refused with what
//! reads them.

use crate::common::{ncclscope, simulate};
use crate::job::Job;
use crate::others;
use serde_json::Value;
use std::path::PathBuf;

/// A folder of files, and of jobs as NCCL Inspector writes them.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn job(&self, name: &str, job: &Job) -> String {
        job.write(&self.path(name));
        self.text(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), content).unwrap();
        self.text(name)
    }
}

/// What each verb that takes files says of one; those that read it are left out.
fn refusals(file: &str, except: &[&str]) -> Vec<String> {
    let out = "/nonexistent/out.pftrace";
    let verbs: [(&str, Vec<&str>); 7] = [
        ("report", vec![file]),
        ("diagnose", vec![file]),
        ("stragglers", vec![file]),
        ("compare", vec![file, file]),
        ("export", vec![file, "-o", out]),
        ("view", vec!["--no-open", file]),
        ("merge", vec!["--kineto", file, file, "-o", out]),
    ];
    let verbs = verbs.into_iter().filter(|(verb, _)| !except.contains(verb));
    let refusal = |(verb, args): (&str, Vec<&str>)| {
        let outcome = ncclscope(&[&[verb][..], &args].concat()).ends_with(3);
        assert_eq!(outcome.stdout, "", "{verb}");
        outcome.stderr
    };
    verbs.map(refusal).collect()
}

#[test]
fn files_of_other_tools_are_refused_with_what_reads_them() {
    let folder = Folder::new();
    let files: [(&str, &[u8], &str); 14] = [
        (
            "a.txt",
            b"[\n{\"name\": \"Group\", \"cat\": \"GROUP_API\", \"ph\": \"b\"},\n",
            "example profiler",
        ),
        ("a.nsys-rep", b"\x00\x01", "`nsys stats` read it"),
        ("a.sqlite", b"SQLite format 3\0\x10\x00", "`nsys export` writes"),
        ("a.ncu-rep", b"NVR\0", "Nsight Compute"),
        ("nccl.log", b"n1:7:7 [0] NCCL INFO Bootstrap : Using eth0\n", "NCCL_DEBUG"),
        ("topo.xml", b"<system version=\"1\">\n  <cpu numaid=\"0\">", "NCCL_TOPO_FILE"),
        ("graph.xml", b"<graphs version=\"1\">\n", "NCCL_GRAPH_FILE"),
        ("m.prom", b"# HELP up x\n# TYPE up gauge\nup 1\n", "Prometheus reads it"),
        ("i.prom", b"nccl_bus_bandwidth_gbs{version=\"v5.1\"} 1\n", "NCCL_INSPECTOR_PROM_DUMP"),
        ("chrome.json", b"[{\"ph\": \"X\", \"ts\": 1}]", "ui.perfetto.dev"),
        ("rank0.et", b"\x01", "ASTRA-sim"),
        ("et.json", b"{\"schema\": \"1.1.1-chakra\", \"nodes\": []}", "ASTRA-sim"),
        ("t.vectors", b"NCCLVECT\x03", "`ncclscope diagnose` reads it"),
        ("t", b"PAR1\x15", "`ncclscope stragglers` reads it"),
    ];
    for (name, content, says) in files {
        let file = folder.file(name, content);
        let except: &[&str] = match name {
            "t.vectors" => &["diagnose"],
            "t" | "a.sqlite" => &["stragglers"],
            "chrome.json" => &["view"],
            _ => &[],
        };
        for refusal in refusals(&file, except) {
            assert!(refusal.contains(says), "{name}: {refusal}");
            assert_eq!(refusal.lines().count(), 1, "{refusal}");
        }
    }
}

#[test]
fn what_one_verb_reads_the_others_name_it_for() {
    let folder = Folder::new();
    let inspector = folder.file("n0-pid1.log", Job::new("v4.2").file(0));
    for refusal in refusals(&inspector, &["report", "compare", "stragglers"]) {
        assert!(refusal.contains("is NCCL Inspector's JSON: `ncclscope report`, `compare` and"));
    }
    let table =
        "#  size count type redop root time algbw busbw #wrong\n 8 2 float sum -1 1.5 0 0 0\n";
    let tests = folder.file("job.log", format!("n1:7:7 [0] NCCL INFO x\n{table}"));
    for refusal in refusals(&tests, &["compare"]) {
        assert!(refusal.contains("job.log is output of nccl-tests: `ncclscope compare` reads it"));
    }
    // Also in a directory.
    let place = folder.text("");
    let diagnosed = ncclscope(&["diagnose", &place]).ends_with(3).stderr;
    assert!(diagnosed.contains("; job.log is output of nccl-tests"), "{diagnosed}");
}

/// PyTorch's traces have the configuration of process groups, as its dumps have.
#[test]
fn a_trace_is_no_dump() {
    let folder = Folder::new();
    let head = r#""schemaVersion": 1, "distributedInfo": {"pg_config": [{"pg_name": "0"}]}"#;
    let trace = folder.file("rank0.json", format!(r#"{{{head}, "traceEvents": []}}"#));
    for refusal in refusals(&trace, &["stragglers", "merge", "view"]) {
        assert!(refusal.contains("a trace of PyTorch's profiler: `ncclscope stragglers`"));
    }
    let read = ncclscope(&["stragglers", &trace]).ends_with(3).stderr;
    assert!(read.contains("it shows no NCCL kernel"), "{read}");
}

/// An export of Nsight Systems, of four processes that wait for the last one but one.
fn nsys_export(path: &std::path::Path) {
    let database = rusqlite::Connection::open(path).unwrap();
    let tables = "BEGIN;
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        INSERT INTO StringIds VALUES (1, 'ncclDevKernel_AllReduce_Sum_bf16_RING_LL');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
            deviceId INTEGER NOT NULL, globalPid INTEGER, shortName INTEGER NOT NULL);";
    database.execute_batch(tables).unwrap();
    for (pid, step) in (100..104).flat_map(|pid| (1..15).map(move |step| (pid, step))) {
        let (end, wait) = (step * 40_000_000, if pid == 102 { 1_000_000 } else { 9_000_000 });
        let row = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?1, ?2, 0, ?3, 1)";
        database.execute(row, [end - wait, end, pid << 24]).unwrap();
    }
    database.execute_batch("COMMIT").unwrap();
}

#[test]
fn an_export_of_nsight_systems_names_the_late_rank() {
    let folder = Folder::new();
    let file = folder.text("report.sqlite");
    nsys_export(&folder.path("report.sqlite"));
    for input in [file.clone(), folder.text("")] {
        let outcome = ncclscope(&["stragglers", &input]).ends_with(1);
        for says in ["rank 2 is slow", "4 workers, 14 collectives", "2 is process 102 on GPU 0"] {
            assert!(outcome.stdout.contains(says), "{says}: {}", outcome.stdout);
        }
    }
    // By its content, whatever its name.
    let other = folder.text("t");
    std::fs::copy(&file, &other).unwrap();
    ncclscope(&["stragglers", &other]).ends_with(1);
    for refusal in refusals(&other, &["stragglers"]) {
        assert!(refusal.contains("`nsys export` writes: `ncclscope stragglers` reads"));
    }
    // Part of one, and one that is no SQLite file.
    let bytes = std::fs::read(&file).unwrap();
    let cut = folder.file("cut.sqlite", &bytes[..bytes.len() - 100]);
    let outcome = ncclscope(&["stragglers", &file, &cut]).ends_with(3);
    assert!(outcome.stdout.contains("rank 2 is slow"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("cut.sqlite: it is cut off"), "{}", outcome.stderr);
    let text = folder.file("text.sqlite", "no such file");
    let refusal = ncclscope(&["stragglers", &text]).ends_with(3).stderr;
    assert!(refusal.ends_with("text.sqlite: it is not an SQLite file\n"), "{refusal}");
}

#[test]
fn a_file_of_ours_is_not_taken_for_one_of_others() {
    let folder = Folder::new();
    let run = simulate(&folder.path(""), "run", "", &["--ranks", "4", "--seed", "1"]);
    // Beside recordings, such a log is not read.
    std::fs::write(run.join("n0-pid1.log"), Job::new("v4.2").file(0)).unwrap();
    let report = ncclscope(&["report", run.to_str().unwrap(), "--format", "json"]).ends_with(0);
    assert!(!report.stdout.contains("\"inspector\""), "{}", report.stdout);
    let saved = folder.file("saved.json", report.stdout);
    ncclscope(&["compare", &saved, run.to_str().unwrap()]).ends_with(0);
}

#[test]
fn a_report_has_bandwidths_late_ranks_and_what_it_cannot_tell() {
    let folder = Folder::new();
    for version in ["v4.0", "v4.1", "v4.2", "v4.3"] {
        let job = folder.job(version, &Job::new(version));
        let report = ncclscope(&["report", &job]).ends_with(0).stdout;
        for says in
            ["CANNOT TELL  NCCL Inspector", "AllReduce", "9.9", "rank 2 (n2): ", "DUMP_VERBOSE"]
        {
            assert!(report.contains(says), "{version}: {says}: {report}");
        }
        let json = ncclscope(&["report", &job, "--format", "json"]).ends_with(0).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        crate::schema::follows(&json, "report");
        let row = &json["operations"][0];
        assert_eq!((&row["transfers"], &row["ranks"]), (&64.into(), &4.into()));
        assert_eq!(json["late_ranks"][0]["rank"], 2);
    }
    let full = ncclscope(&["report", "--full", &folder.text("v4.2")]).ends_with(0).stdout;
    assert!(full.contains("4 of 4 ranks recorded") && full.contains("RING"), "{full}");
    let by = ncclscope(&["report", "--by", "rank", &folder.text("v4.2")]).ends_with(2).stderr;
    assert!(by.contains("--by, --html, --run and filters are for recordings"), "{by}");
}

#[test]
fn damage_and_losses_are_told_and_exit_with_3() {
    let folder = Folder::new();
    let job = folder.job("job", &Job { dropped: 7, ..Job::new("v4.3") });
    let whole = ncclscope(&["report", &job]).ends_with(0).stdout;
    assert!(whole.contains("28 collectives") && whole.contains("COLL_RING_SIZE"), "{whole}");
    let text = Job::new("v4.3").file(1);
    std::fs::write(folder.path("job/n1-pid101.log"), &text[..text.len() - 30]).unwrap();
    std::fs::write(folder.path("job/n9-pid9.log"), "").unwrap();
    for verb in ["report", "compare"] {
        let args = if verb == "report" { vec![verb, &job] } else { vec![verb, &job, &job] };
        let cut = ncclscope(&args).ends_with(3);
        assert!(cut.stderr.contains("its last line is cut off"), "{cut:#?}");
        assert!(cut.stderr.contains("n9-pid9.log: it is empty"), "{cut:#?}");
    }
}

#[test]
fn runs_are_compared_with_each_other_and_with_recordings() {
    let folder = Folder::new();
    let of = |us| Job { transfer_us: us, ..Job::new("v4.2") };
    let (a, b) = (folder.job("all/a", &of(1_000)), folder.job("b", &of(1_300)));
    let slower = ncclscope(&["compare", &a, &b, "--fail-above", "5"]).ends_with(1).stdout;
    assert!(slower.starts_with("SLOWER  AllReduce of "), "{slower}");
    // A directory of runs; saved reports of both kinds.
    folder.job("all/a2", &of(1_010));
    let all = ncclscope(&["compare", &folder.text("all"), &b]).ends_with(0).stdout;
    assert!(all.contains("A  2 runs (a, a2)"), "{all}");
    let json = ncclscope(&["report", &a, "--format", "json"]).ends_with(0).stdout;
    let saved = folder.file("saved.json", json);
    let beside = ncclscope(&["compare", &saved, &b]).ends_with(0).stdout;
    assert!(beside.contains("AllReduce of ") && beside.contains("+30"), "{beside}");
    let run = simulate(&folder.path(""), "run", "", &["--ranks", "4", "--seed", "1"]);
    let mixed = ncclscope(&["compare", &a, run.to_str().unwrap(), "--full"]).ends_with(0).stdout;
    assert!(mixed.contains("one side is of NCCL Inspector"), "{mixed}");
}

#[test]
fn output_of_nccl_tests_is_compared_with_such_output_only() {
    let folder = Folder::new();
    let log = |us: f64| {
        let head = "/opt/all_reduce_perf -b 8\n# nThread 1 nGpus 2 minBytes 8\n\
                    #  Rank  0 Pid 1 on n1 device 0\n\
                    # size count type redop root time algbw busbw #wrong\n";
        let us = |nth: u32| us + f64::from(nth) / 10.0;
        let run = |nth: u32| format!("{head}8 2 float sum -1 {:.2} 0 0 0\n", us(nth));
        (0..8).map(run).collect::<String>()
    };
    let (a, b) = (folder.file("a.log", log(50.0)), folder.file("b.log", log(60.0)));
    let slower = ncclscope(&["compare", &a, &b]).ends_with(0).stdout;
    assert!(
        slower.starts_with("SLOWER  AllReduce of 8 B on 1 rank float sum out-of-place"),
        "{slower}"
    );
    assert!(slower.contains("A  8 runs (a.log 1, a.log 2"), "{slower}");
    let job = folder.job("job", &Job::new("v4.2"));
    let mixed = ncclscope(&["compare", &a, &job]).ends_with(2).stderr;
    assert!(mixed.contains("compare its output with other output of nccl-tests"), "{mixed}");
}

#[test]
fn stragglers_judges_files_with_times_and_refuses_others() {
    let folder = Folder::new();
    let late = Job { is_verbose: true, late: (2, 3_000), ..Job::new("v4.3") };
    let job = folder.job("verbose", &late);
    let found = ncclscope(&["stragglers", &job]).ends_with(1).stdout;
    assert!(found.contains("S1 slow-rank  rank 2 is slow"), "{found}");
    let next = ncclscope(&["report", &job]).ends_with(0).stdout;
    assert!(next.contains(&format!("next  ncclscope stragglers {job}")), "{next}");
    let plain = folder.job("plain", &Job::new("v4.3"));
    let refused = ncclscope(&["stragglers", &plain]).ends_with(3).stderr;
    assert!(refused.contains("set NCCL_INSPECTOR_DUMP_VERBOSE=1"), "{refused}");
    let both = ncclscope(&["stragglers", &job, &folder.file("a.txt", "x")]).ends_with(2).stderr;
    assert!(both.contains("a.txt is no file of NCCL Inspector"), "{both}");
}

/// Files that others published.
#[test]
fn unread_files_of_others_are_read_or_refused() {
    let Some(folder) = others::find("field/unread-formats") else { return };
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let line = ncclscope(&["report", &file("inspector-v4.jsonl")]).ends_with(0).stdout;
    // The file itself says 0.555850.
    assert!(line.contains(">=0.556") && line.contains("of 3 ranks: no file of 0, 2"), "{line}");
    for refusal in refusals(&file("ncclprof-0.txt"), &[]) {
        assert!(refusal.contains("a trace of NCCL's example profiler"), "{refusal}");
    }
    let log = file("nccl_allreduce.log");
    let compared = ncclscope(&["compare", &log, &log, "--format", "json"]).ends_with(0).stdout;
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared["rows"].as_array().unwrap().len(), 66);
    for refusal in refusals(&log, &["compare"]) {
        assert!(refusal.contains("is output of nccl-tests"), "{refusal}");
    }
}

/// Five runs a side, of which some sizes take 40 % longer: too few for so many rows.
#[test]
fn a_gate_does_not_pass_what_too_few_runs_show() {
    let folder = Folder::new();
    let runs = |count: usize, slower: f64| {
        let head = "# Collective test starting: all_reduce_perf\n\
                    # size count type redop root time algbw busbw #wrong\n";
        let row = |run: usize, log: usize| {
            let factor = if log >= 26 { slower } else { 1.0 };
            let us = factor * (100.0 + ((run * 7 + log) % 10) as f64 / 10.0);
            format!("{} 1 float sum -1 {us:.2} 0.1 0.1 0\n", 1_u64 << log)
        };
        let run = |run| {
            let rows: String = (3..34).map(|log| row(run, log)).collect();
            format!("{head}{rows}")
        };
        (0..count).map(run).collect::<String>()
    };
    let of = |count| {
        let [a, b] = [("a", 1.0), ("b", 1.4)];
        let [a, b] =
            [a, b].map(|(name, by)| folder.file(&format!("{name}{count}.log"), runs(count, by)));
        ncclscope(&["compare", &a, &b, "--fail-above", "5"])
    };
    let five = of(5).ends_with(3);
    assert!(five.stdout.starts_with("CANNOT TELL  5 runs on a side prove nothing"), "{five:?}");
    assert!(five.stderr.contains("8 rows are slower by more than --fail-above"), "{five:?}");
    of(6).ends_with(1);
}
