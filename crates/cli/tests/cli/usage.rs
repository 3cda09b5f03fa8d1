// SPDX-License-Identifier: Apache-2.0
//! Options that are checked before anything else happens, and verbs that refer to one another.

use crate::common::{Outcome, Run, SYMBOLS, ncclscope, plugin_file, tool};
use crate::view::Viewer;
use scripts::Call;
use std::net::TcpListener;

#[test]
fn an_unknown_mode_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("libnccl-profiler-ncclscope.so");
    std::fs::write(&plugin, plugin_file(&SYMBOLS)).unwrap();
    let run = |mode: &str| {
        let mut command = tool();
        command.args(["run", "--mode", mode, "-o", "out", "--", "touch", "begun"]);
        Outcome::of(command.current_dir(dir.path()).env("NCCLSCOPE_PLUGIN", &plugin))
    };
    let refused = run("foo").ends_with(2).stderr;
    assert!(refused.contains("expected off, or flight, trace, metrics, hang"), "{refused}");
    assert!(!dir.path().join("begun").exists() && !dir.path().join("out").exists());
    let off = run("off").ends_with(0).stderr;
    assert!(off.contains("no rank wrote a recording: NCCLSCOPE_MODE is off"), "{off}");
    assert!(dir.path().join("begun").exists());
    let help = ncclscope(&["run", "--help"]).ends_with(0).stdout;
    assert!(["flight", "trace", "metrics", "hang"].iter().all(|mode| help.contains(mode)));
}

/// Not in the words of the parser of numbers, which have no example.
#[test]
fn a_wrong_value_is_told_what_is_expected() {
    for (words, expected) in [
        ("start --pid abc", "a process id such as 4711; `ncclscope ls` lists them"),
        ("stop --pid -1", "a process id such as 4711; `ncclscope ls` lists them"),
        ("start --steps 0", "a number of training steps such as 10"),
        ("snapshot --sample -2", "a number such as 10, for every tenth"),
        ("view x --port 99999", "a port such as 9001"),
        ("agent --prom-listen 9417", "an address and a port such as 0.0.0.0:9417"),
        ("agent --interval -1", "seconds from 0.1 to 86400"),
        ("agent --max-series many", "a number of series such as 20000"),
        ("agent --max-series 0", "a number of series such as 20000"),
        ("simulate --ranks -4", "a number of ranks such as 16"),
        ("simulate --pp 1.5", "a number of stages such as 4"),
        ("simulate --fault killed --rank -1", "a rank such as 3"),
        ("simulate --fault slow-gpu --factor x", "a factor such as 1.5"),
        ("simulate --seed x", "a seed such as 7"),
        ("report x --rank -1", "ranks such as 0,3,8-15"),
        ("export x -o y.json --steps -1", "training steps such as 100-120"),
        ("stragglers x --threshold 0", "a percentage from 0.1 to 100"),
    ] {
        let refused = ncclscope(&words.split(' ').collect::<Vec<_>>()).ends_with(2).stderr;
        let line = refused.lines().next().unwrap_or_default();
        assert!(line.ends_with(&format!(": expected {expected}")), "{words}: {refused}");
    }
}

#[test]
fn a_viewer_serves_at_the_port_that_the_user_names() {
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let temporary = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = free.to_string();
    let viewer = Viewer::start(&[run.text(), "--no-open", "--port", &port], temporary.path());
    assert!(viewer.url.starts_with(&format!("http://127.0.0.1:{port}/")), "{}", viewer.url);
    let taken = ncclscope(&["view", run.text(), "--no-open", "--port", &port]).ends_with(4);
    assert!(taken.stderr.contains(&format!("cannot serve at port {port}")), "{taken:#?}");
}

#[test]
fn a_directory_of_other_files_names_the_verb_that_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let report = || ncclscope(&["report", place]).ends_with(3).stderr;
    assert!(report().contains("NCCL did not load the plugin"));
    std::fs::write(dir.path().join("rank0.pt.trace.json"), "{}").unwrap();
    let trace = format!("`ncclscope stragglers {place}/rank0.pt.trace.json` reads");
    assert!(report().contains(&trace), "{}", report());
    std::fs::write(dir.path().join("nccl_trace_rank_0"), b"\x80\x02}.").unwrap();
    let dump = format!(
        "nccl_trace_rank_0 looks like a dump of PyTorch's Flight Recorder, which `ncclscope \
         diagnose {place}` reads"
    );
    assert!(report().contains(&dump), "{}", report());
    let file = dir.path().join("nccl_trace_rank_0");
    let one = ncclscope(&["report", file.to_str().unwrap()]).ends_with(3).stderr;
    assert!(one.contains(&dump), "{one}");
}

#[test]
fn what_ncclscope_printed_is_named_where_it_cannot_be_read() {
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let report = ncclscope(&["report", run.text(), "--format", "json"]).ends_with(0).stdout;
    let saved = run.file("saved.json");
    std::fs::write(&saved, report).unwrap();
    for verb in ["stragglers", "diagnose"] {
        let refused = ncclscope(&[verb, saved.to_str().unwrap()]).ends_with(3).stderr;
        let says = "saved.json is a saved report (ncclscope.report/3): name recordings";
        assert!(refused.contains(says), "{verb}: {refused}");
    }
}

#[test]
fn a_diagnosis_that_finds_nothing_points_at_stragglers() {
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let found = ncclscope(&["diagnose", run.text()]).ends_with(0);
    let tip = format!("if the job is slow: ncclscope stragglers {}", run.text());
    assert!(found.stderr.contains(&tip), "{found:#?}");
}

/// The report of a damaged recording must not say that nothing is missing.
#[test]
fn control_characters_of_arguments_reach_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("a\u{1b}[31mb\u{7}");
    let made = ncclscope(&["simulate", "--ranks", "2", "-o", name.to_str().unwrap()]).ends_with(0);
    let wrong = ncclscope(&["stop", "--pid", "a\u{1b}[31mb\u{7}\r"]).ends_with(2);
    for (text, name) in [(made.stdout, "a\\u001b[31mb\\u0007"), (wrong.stderr, "'ab\\u000d'")] {
        assert!(text.contains(name), "{text:?}");
        assert!(!text.contains(['\u{1b}', '\u{7}', '\r']), "{text:?}");
    }
}

#[test]
fn damage_is_no_loss_of_nothing() {
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let whole = ncclscope(&["report", run.text()]).ends_with(0).stdout;
    assert!(whole.contains("  lost        nothing\n"), "{whole}");
    let path = run.file("node-0-1000.nscope");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let damaged = ncclscope(&["report", run.text()]).ends_with(3).stdout;
    let says = "  lost        nothing that was counted, but see PROBLEMS\n";
    assert!(damaged.contains(says) && damaged.contains("\nPROBLEMS\n"), "{damaged}");
}

#[test]
fn stragglers_of_a_job_that_hangs_point_at_diagnose() {
    let dir = tempfile::tempdir().unwrap();
    let simulated = |name: &str, more: &[&str]| {
        let place = dir.path().join(name).to_str().unwrap().to_owned();
        let args = ["simulate", "--ranks", "8", "--steps", "4", "-o", &place];
        ncclscope(&[&args[..], more].concat()).ends_with(0);
        place
    };
    let hung = simulated("hung", &["--fault", "host-stuck", "--rank", "3"]);
    let tip = format!("the job hangs, see why: ncclscope diagnose {hung}");
    let found = ncclscope(&["stragglers", &hung]).ends_with(0);
    assert!(found.stdout.contains(&format!("\nNOTES\n  - {tip}\n")), "{found:#?}");
    assert!(
        found.stdout.contains("\nSLOW\n  nothing, but the job hangs: see NOTES\n"),
        "{found:#?}"
    );
    assert_eq!(found.stderr, "");
    let found = ncclscope(&["stragglers", &hung, "--format", "json"]).ends_with(0);
    let report: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!((&report["notes"][0], &*found.stderr), (&tip.clone().into(), ""));
    // A table has no notes.
    let found = ncclscope(&["stragglers", &hung, "--format", "csv"]).ends_with(0);
    assert!(found.stderr.ends_with(&format!("{tip}\n")), "{found:#?}");
    let healthy = simulated("healthy", &[]);
    assert_eq!(ncclscope(&["stragglers", &healthy]).ends_with(0).stderr, "");
}
