// SPDX-License-Identifier: Apache-2.0
//! `ncclscope report`: what it prints, and its messages about inputs that it cannot read.

use crate::common::{Outcome, Run, ncclscope, tool};
use ncclscope_control::table::EVENTS;
use ncclscope_operations::progress::{LaunchFate, LiveState, Tracker};
use ncclscope_trace::kind::DEFAULT_EVENTS;
use ncclscope_trace::{EventKind, Recording};
use scripts::{API, Call, Fault, Process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn one_all_reduce(process: &mut Process) {
    process.collective(Call::ALL_REDUCE);
}

#[test]
fn text_says_what_happened() {
    let run = Run::new(|p| {
        p.collective(Call::ALL_REDUCE);
        p.send_recv(1 - p.comm.rank, 1 << 10);
        p.identity.job = Some("4711.0".into());
        p.identity.set("NCCL_ALGO", ["Ring", "Tree"][p.comm.rank.cast_unsigned() as usize]);
        p.identity.set("NCCL_TOPO_FILE", &format!("/{}", "x".repeat(50)));
        if p.comm.rank == 1 {
            p.identity.set("NCCL_PROTO", "LL");
        }
    });
    let text = ncclscope(&["report", "--full", run.text()]).ends_with(0).stdout;
    let expected = [
        "job         4711.0",
        "processes   2 on node-0, node-1",
        "NCCL        2.28.9, profiler API v5",
        "  0x1f2e3d4c \"world\": 2 of 2 ranks recorded",
        "variables   NCCL_ALGO=Ring (node-0) or Tree (node-1), NCCL_PROTO=LL (node-1),",
        &format!("NCCL_TOPO_FILE=/{}", "x".repeat(50)),
        "lost        nothing",
        "AllReduce  4 MiB  Float32   RING  SIMPLE   2      1     0  kernel",
        "Send       4 KiB  Float32   -     -        1      1     0  proxy",
        "ProxyStep         18      18   36       36     0        0      0       0",
        "ProxyStepSendPeerWait 54",
        "states count each report; NCCL reports a wait such as SendPeerWait at each poll",
        "node-1 1001  0x1f2e3d4c  api, proxy  tsc    40 ns",
        "timing kernel:",
        "WHAT THIS RUN CANNOT TELL",
    ];
    for line in expected {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    assert!(!text.contains("PROBLEMS") && !text.contains("OPEN:"), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    assert!(!text.contains('\x1b'), "colours on a pipe");
}

/// One screen shows the first eight variables, and says how to see the others.
#[test]
fn a_screen_names_eight_variables_and_full_has_all() {
    let run = Run::new(|p| {
        p.collective(Call::ALL_REDUCE);
        (1..=11).for_each(|at| p.identity.set(&format!("NCCL_A{at:02}"), "1"));
        p.identity.set("NCCL_A01", &"x".repeat(50));
    });
    let line = |args: &[&str]| {
        let text = ncclscope(&[&["report", run.text()], args].concat()).ends_with(0).stdout;
        let lines = text.lines().skip_while(|line| !line.starts_with("  variables "));
        let lines: Vec<&str> = lines.take_while(|line| !line.starts_with("  recorded ")).collect();
        lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    };
    let screen = line(&[]);
    let first = format!("variables   NCCL_A01={} ..., NCCL_A02=1,", "x".repeat(40));
    assert!(screen.starts_with(&first), "{screen}");
    assert!(screen.ends_with("NCCL_A08=1 and 3 more (--full)"), "{screen}");
    let full = line(&["--full"]);
    assert!(full.starts_with(&format!("variables   NCCL_A01={}, ", "x".repeat(50))), "{full}");
    assert!(full.ends_with("NCCL_A10=1, NCCL_A11=1"), "{full}");
}

/// A foreign program, written from the page about the format only, writes a recording of a later
/// version.
#[test]
fn a_recording_made_by_the_page_of_the_format_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("handmade-4711.nscope");
    let here = env!("CARGO_MANIFEST_DIR");
    let mut writer = std::process::Command::new("python3");
    writer.arg(format!("{here}/tests/handmade_recording.py"));
    writer.arg(format!("{here}/../../docs/trace-format.md")).arg(&file);
    Outcome::of(&mut writer).ends_with(0);
    let args = ["report", dir.path().to_str().unwrap(), "--format", "json"];
    let report: Value = serde_json::from_str(&ncclscope(&args).ends_with(0).stdout).unwrap();
    let operation = &report["operations"][0];
    assert_eq!(operation["func"], "AllReduce", "{report:#}");
    assert_eq!((&operation["bytes"], &operation["algorithm"]), (&(4 << 20).into(), &"RING".into()));
    assert_eq!(operation["duration_ns"]["max"], 585_000);
    let peer = &report["peers"][0];
    assert_eq!((&peer["bytes"], &peer["transfers"]), (&(2 << 20).into(), &4.into()));
    let waits = ["send_gpu", "send_peer", "send_network"].map(|of| peer["waits_ns"][of].as_u64());
    assert_eq!(waits, [Some(12_256), Some(6_784), Some(300_416)]);
    let problems = report["problems"].to_string();
    for added in ["1 `Teleport` record is", "1 `weather` record is", "6 events", "42 comets"] {
        assert!(problems.contains(added), "{added}: {problems}");
    }
    assert_eq!(report["problems"].as_array().unwrap().len(), 4, "{problems}");
}

#[test]
fn a_hang_and_losses_come_first() {
    let run = Run::new(|p| {
        p.header.lanes_shared = false;
        p.header.closed = false;
        p.lose(API, EventKind::CollApi, 7);
        let fault = if p.comm.rank == 1 { Fault::Hang } else { Fault::None };
        p.collective(Call { fault, ..Call::ALL_REDUCE });
    });
    let text = ncclscope(&["report", "--full", run.text()]).ends_with(0).stdout;
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?} in:\n{text}"));
    let order = [
        at("PROBLEMS"),
        at("node-0-1000.nscope: not closed"),
        at("NOT RECORDED"),
        at("events dropped because their threads' lanes were full: CollApi 14"),
        at("OPEN: 1 operation or call did not complete"),
        at("rank 1 (node-1 1001)  AllReduce, 4 MiB, comm 0x1f2e3d4c \"world\": started 1.00 s"),
        at("channel 0, send to communicator rank 0: 0 of 4 steps done, step 0 in SendPeerWait"),
        at("OPERATIONS"),
    ];
    assert!(order.is_sorted(), "{text}");
}

/// The mask that the plugin reads from the value of `NCCLSCOPE_EVENTS` that the report advises.
fn advised_mask(text: &str) -> u32 {
    let (_, advice) = text.split_once("NCCLSCOPE_EVENTS=").unwrap_or_else(|| panic!("{text}"));
    let value = advice.split_whitespace().next().unwrap().trim_end_matches(';').to_owned();
    EVENTS.parse(&value).unwrap()
}

#[test]
fn what_was_lost_comes_with_what_to_set() {
    let ctrl = EventKind::ProxyCtrl.bit();
    let run = Run::new(|p| {
        p.header.mask = (DEFAULT_EVENTS | ctrl) & !EventKind::NetPlugin.bit();
        p.lose(API, EventKind::ProxyStep, 700);
        p.lose(API, EventKind::KernelCh, 300);
        p.lose(API, EventKind::Coll, 20);
        p.header.without_lane[EventKind::Coll.index()] = 2;
        p.header.unwritten[EventKind::P2p.index()] = 5;
        p.header.strings_lost = 1;
        p.header.panics = 1;
        p.collective(Call::ALL_REDUCE);
    });
    let text = ncclscope(&["report", "--full", run.text()]).ends_with(0).stdout;
    let expected = "\
NOT RECORDED
  - events dropped because their threads' lanes were full: Coll 40, KernelCh 600, ProxyStep 1400
    -> callbacks came faster than they could be written, and the newest were dropped:
       NCCLSCOPE_EVENTS=default,-ProxyStep,ProxyCtrl,-NetPlugin NCCLSCOPE_KERNEL=off records less; a
       processor core for the plugin's own thread (ncclscope/drain), and NCCLSCOPE_DIR on a local
       disk or in memory, let it write faster
  - events dropped because their threads had no lane: Coll 4
    -> a process has 256 lanes, and new ones some milliseconds after its first events: let the
       threads that call NCCL live on rather than start new ones
  - records not written because the disk was full or failed: P2p 10
    -> make room for 65 MiB a process, or choose another directory with NCCLSCOPE_DIR (`ncclscope
       run -o`), or less room with NCCLSCOPE_RING_MB=16
  - 2 strings found no room in the plugin
  - 2 callbacks failed inside the plugin
    -> please report it: this is a defect of ncclscope
";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("  lost        2056 records: see below\n"), "{text}");
    let steps = EventKind::ProxyStep.bit() | EventKind::NetPlugin.bit();
    assert_eq!(advised_mask(&text), (DEFAULT_EVENTS | ctrl) & !steps);
}

#[test]
fn json_follows_the_schema() {
    let run = Run::new(one_all_reduce);
    std::fs::write(run.file("run.json"), r#"{"command":["x"],"exit_code":0}"#).unwrap();
    let text = ncclscope(&["report", "--format", "json", run.text()]).ends_with(0).stdout;
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], "ncclscope.report/3");
    assert_eq!(json["run"]["command"][0], "x");
    assert_eq!(json["ranks"][1]["events"]["KernelCh"]["started"], 2);
    assert_eq!(json["operations"][0]["timing"], "kernel");
    assert_eq!(json["lost"]["total"], 0);
    assert_eq!(json["lost"]["losses"], Value::Array(Vec::new()));
    // A single recording is an input too.
    let file = run.file("node-0-1000.nscope");
    let args = ["report", "--format", "json", file.to_str().unwrap()];
    let json: Value = serde_json::from_str(&ncclscope(&args).ends_with(0).stdout).unwrap();
    assert_eq!(json["ranks"].as_array().unwrap().len(), 1);
}

#[track_caller]
fn fails_with(outcome: Outcome, code: i32, word: &str) {
    let outcome = outcome.ends_with(code);
    let line = outcome.stderr.trim_end();
    assert!(line.contains(word) && line.lines().count() == 1, "{word:?}: {outcome:#?}");
    assert_eq!(outcome.stdout, "");
}

#[test]
fn bad_inputs_are_one_clear_line_and_code_3() {
    let run = Run::new(one_all_reduce);
    let report = |path: &std::path::Path| ncclscope(&["report", path.to_str().unwrap()]);
    fails_with(report(&run.file("absent")), 3, "No such file");
    let empty = run.file("sub");
    std::fs::create_dir(&empty).unwrap();
    fails_with(report(&empty), 3, "no recordings (*.nscope)");
    let file = run.file("node-0-1000.nscope");
    let good = std::fs::read(&file).unwrap();
    for (bytes, word) in [
        (vec![], "empty"),
        (good[..100].to_vec(), "truncated"),
        (b"hello".to_vec(), "not an ncclscope recording"),
        ([&good[..8], &[9], &good[9..]].concat(), "newer than this ncclscope"),
        ([&good[..8], &[1, 0, 4, 0], &good[12..]].concat(), "version 1.4 is older than this"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        fails_with(report(&file), 3, word);
    }
    std::fs::write(run.file("node-1-1001.nscope"), "").unwrap();
    let all = report(run.path()).ends_with(3);
    assert!(all.stderr.contains("none of the 2 recordings can be read"), "{all:#?}");
}

#[test]
fn one_bad_recording_does_not_hide_the_others() {
    let run = Run::new(one_all_reduce);
    std::fs::write(run.file("node-1-1001.nscope"), "").unwrap();
    let outcome = ncclscope(&["report", run.text()]).ends_with(3);
    assert!(outcome.stderr.contains("warning: cannot read"), "{outcome:#?}");
    assert!(outcome.stdout.contains("1 of 2 ranks has no readable recording"), "{outcome:#?}");
}

#[test]
fn a_truncated_recording_is_read_and_named() {
    let run = Run::new(one_all_reduce);
    let file = OpenOptions::new().write(true).open(run.file("node-0-1000.nscope")).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 10).unwrap();
    let text = ncclscope(&["report", "--full", run.text()]).ends_with(3).stdout;
    assert!(text.contains("PROBLEMS\n  - node-0-1000.nscope: "), "{text}");
    file.write_all_at(&[0xff; 64], 1 << 20).unwrap();
    ncclscope(&["report", run.text()]).ends_with(3);
}

#[test]
fn wrong_usage_is_code_2() {
    for args in [&["report"][..], &["report", "x", "--format", "xml"], &["nonsense"], &["run"]] {
        let outcome = ncclscope(args).ends_with(2);
        assert!(outcome.stderr.contains("error:"), "{outcome:#?}");
    }
    assert!(ncclscope(&["--help"]).ends_with(0).stdout.contains("Exit codes"));
    assert!(ncclscope(&["--version"]).ends_with(0).stdout.starts_with("ncclscope "));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let run = Run::new(one_all_reduce);
    let mut child = tool()
        .args(["report", "--format", "json", run.text()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let outcome = child.wait_with_output().unwrap();
    assert_eq!(outcome.status.code(), Some(0));
    assert_eq!(String::from_utf8(outcome.stderr).unwrap(), "");
}

/// `report` shows the job's ranks, and the operation numbers that `diagnose` and the watchdog
/// print.
#[test]
fn ranks_are_the_jobs_and_operations_have_the_numbers_of_diagnose() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let run = run.to_str().unwrap();
    ncclscope(&["simulate", "--ranks", "8", "--fault", "host-stuck", "-o", run]).ends_with(0);
    let found = ncclscope(&["diagnose", run, "--format", "json"]).ends_with(1).stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    let report = ncclscope(&["report", run, "--format", "json"]).ends_with(0).stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    let array = |name: &str| report[name].as_array().unwrap().clone();
    let told = array("processes").into_iter().map(|process| {
        let identity = &process["identity"];
        (identity["pid"].clone(), identity["rank"].clone())
    });
    let told: Vec<(Value, Value)> = told.collect();
    for row in array("ranks").iter().chain(&array("open_operations")) {
        assert!(told.contains(&(row["pid"].clone(), row["rank"].clone())), "{row}");
    }
    let differ = |row: &Value| row["src"] != row["comm_src"] || row["dst"] != row["comm_dst"];
    assert!(array("peers").iter().any(differ), "{report}");
    let verdict = &found["findings"][0];
    let (comm, operation) = (&verdict["comm"], &verdict["op"]);
    let is_it = |row: &&Value| row["comm"] == *comm && row["number"] == operation["number"];
    let open = array("open_operations");
    let open: Vec<&Value> = open.iter().filter(is_it).collect();
    assert!(!open.is_empty(), "{verdict}\n{report}");
    assert!(open.iter().all(|row| row["func"] == operation["func"]), "{open:?}\n{verdict}");
}

/// A send or receive that waits: rank, function, and number on its communicator.
type Waiting = (u64, String, u64);

/// The waiting sends and receives that each rank's watchdog would report at the end of its
/// recording.
fn seen_by_watchdogs(run: &Path) -> BTreeSet<Waiting> {
    let paths = std::fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path());
    let recordings = paths.filter(|path| path.extension().is_some_and(|end| end == "nscope"));
    recordings.flat_map(|path| in_flight(&Recording::open(&path).unwrap())).collect()
}

fn in_flight(recording: &Recording) -> Vec<Waiting> {
    let mut tracker = Tracker::default();
    recording.comms().iter().for_each(|comm| tracker.comm(comm));
    for lane in 0..recording.lanes().len() {
        recording.records(lane).for_each(|record| tracker.record(lane, &record));
    }
    let outside = LiveState { is_live: &|_| true, fate: &|_| LaunchFate::Unknown };
    tracker.look(recording.last_ticks(), recording.header().hz, &outside);
    let rank = recording.identity().rank.unwrap();
    let name = |id| recording.string(id).unwrap_or_default().to_owned();
    let p2ps = tracker.in_flight().into_iter().filter(|op| op.facts.is_p2p());
    p2ps.map(|op| (rank.into(), name(op.facts.func), op.number)).collect()
}

#[test]
fn sends_and_receives_have_one_number_in_all_tools() {
    for fault in ["p2p-unmatched", "p2p-size", "host-stuck"] {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let folder = run.to_str().unwrap();
        let args = ["simulate", "--ranks", "8", "--seed", "1", "--fault", fault, "-o", folder];
        ncclscope(&args).ends_with(0);
        let found = ncclscope(&["diagnose", folder, "--format", "json"]).ends_with(1).stdout;
        let found: Value = serde_json::from_str(&found).unwrap();
        let report = ncclscope(&["report", folder, "--format", "json"]).ends_with(0).stdout;
        let report: Value = serde_json::from_str(&report).unwrap();
        let rows = report["open_operations"].as_array().unwrap().iter();
        let p2ps = rows.filter(|row| row["func"] == "Send" || row["func"] == "Recv");
        let of_row = |row: &Value| {
            let func = row["func"].as_str().unwrap().to_owned();
            (row["rank"].as_u64().unwrap(), func, row["number"].as_u64().unwrap())
        };
        let reported: BTreeSet<Waiting> = p2ps.map(of_row).collect();
        assert!(!reported.is_empty(), "{fault}: {report}");
        // Operations that have all their data, and wait for others in their kernel, can be in one
        // list only.
        let seen = seen_by_watchdogs(&run);
        let common = seen.intersection(&reported).count();
        assert!(3 * common > 2 * seen.len(), "{fault}: {seen:?} {reported:?}");
        let op = &found["findings"][0]["op"];
        let Some(func) = op["func"].as_str().filter(|func| ["Send", "Recv"].contains(func)) else {
            assert_eq!(fault, "host-stuck", "{found}");
            continue;
        };
        let number = op["number"].as_u64().unwrap();
        assert!(reported.iter().any(|(_, name, at)| name == func && *at == number), "{found}");
        let text = ncclscope(&["diagnose", folder]).ends_with(1).stdout;
        let says = [format!("operation {number} ({func}, "), format!("operation {number}, {func}")];
        assert!(says.iter().any(|says| text.contains(says)), "{fault}: {text}");
    }
}

/// A line break in a recorded name must not start a line of the output: a forged recording could
/// otherwise claim that nothing was lost.
#[test]
fn a_line_break_in_a_name_begins_no_line() {
    let run = Run::new(|process| {
        process.header.host = "node\nFORGED".into();
        let fault = if process.comm.rank == 0 { Fault::Hang } else { Fault::None };
        process.collective(Call { fault, ..Call::ALL_REDUCE });
    });
    std::fs::write(format!("{}/x\nFORGED.nscope", run.text()), [1; 5000]).unwrap();
    for verb in ["report", "diagnose", "stragglers"] {
        let limit: &[&str] = if verb == "diagnose" { &["--hang-sec", "0.5"] } else { &[] };
        let args = [&[verb, run.text()], limit].concat();
        let Outcome { stdout, stderr, .. } = ncclscope(&args);
        assert!(stderr.contains("x\\nFORGED.nscope"), "{verb}: {stderr}");
        assert_eq!(stdout.contains("node\\nFORGED"), verb != "stragglers", "{verb}: {stdout}");
        for line in stdout.lines().chain(stderr.lines()) {
            assert!(!line.starts_with("FORGED"), "{verb}: {stdout}{stderr}");
        }
    }
}

/// Whatever is in place of `run.json`, the report is printed without it.
#[test]
fn what_is_no_small_file_is_nothing_about_a_run() {
    let run = Run::new(one_all_reduce);
    let about = format!("{}/run.json", run.text());
    assert!(Command::new("mkfifo").arg(&about).status().unwrap().success());
    assert!(!ncclscope(&["report", run.text()]).ends_with(0).stdout.contains("command"));
    std::fs::remove_file(&about).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &about).unwrap();
    assert!(!ncclscope(&["report", run.text()]).ends_with(0).stdout.contains("command"));
    std::fs::remove_file(&about).unwrap();
    std::fs::write(&about, "{\"command\": [\"train\"]}".to_owned() + &" ".repeat(17 << 20))
        .unwrap();
    assert!(ncclscope(&["report", run.text()]).ends_with(0).stdout.contains("processes"));
}

#[test]
fn a_help_that_cannot_be_written_is_code_4() {
    for args in [&["--help"][..], &["--version"], &["report", "--help"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let outcome = Outcome::of(tool().args(args).stdout(full)).ends_with(4);
        assert!(outcome.stderr.contains("cannot write to standard output"), "{outcome:?}");
    }
    ncclscope(&["--help"]).ends_with(0);
    ncclscope(&["report"]).ends_with(2);
}

/// Communicator hashes are new in each run and mean nothing to people, so the report prints names.
#[test]
fn the_full_report_says_what_communicators_are_for() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("job");
    let out = out.to_str().unwrap();
    ncclscope(&["simulate", "-o", out, "--ranks", "8", "--steps", "2"]).ends_with(0);
    let text = ncclscope(&["report", "--full", out]).ends_with(0).stdout;
    let operations = text.split_once("\nOPERATIONS\n").unwrap().1;
    let (operations, network) = operations.split_once("\nNETWORK").unwrap();
    let comms: Vec<&str> = operations.lines().filter(|line| line.starts_with("  comm ")).collect();
    assert!(comms.len() > 8 && comms.iter().all(|line| line.ends_with('"')), "{comms:#?}");
    assert!(comms.iter().any(|line| line.ends_with(" \"tp\"")), "{comms:#?}");
    let row = network.lines().find(|line| line.contains(" MiB ")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some("dp"), "{network}");
}

#[test]
fn unaligned_buffers_and_the_rate_of_one_size_are_told() {
    let run = Run::new(|process| {
        for buffer in [0x7f00_0000_0000, 0x7f00_0000_0010, 0x7f00_0000_0008, 0x7f00_0000_0101] {
            process.buffer = buffer;
            process.collective(Call::ALL_REDUCE);
        }
    });
    let json = ncclscope(&["report", "--format", "json", run.text()]).ends_with(0).stdout;
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["operations"][0]["unaligned"], 4, "2 of 4 in each of two ranks");
    let text = ncclscope(&["report", "--full", run.text()]).ends_with(0).stdout;
    let told = "4 of 8 operations of all ranks have a buffer that is not aligned to 16 bytes";
    assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(told), "{text}");
    // All steps have one size, so that no line fits.
    let peer = &report["peers"][0];
    assert_eq!((&peer["rate_gbs"], &peer["r2"]), (&Value::Null, &Value::Null));
    let gbs = peer["transfer_gbs"].as_f64().unwrap();
    let (_, network) = text.split_once("\nNETWORK").unwrap();
    let row = network.lines().find(|line| line.trim_start().starts_with("0x")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().rev().take(3).collect();
    assert_eq!((cells[0], cells[2]), ("-", "-"), "{row}");
    assert!((cells[1].parse::<f64>().unwrap() / gbs - 1.0).abs() < 0.01, "{row} is not {gbs}");
}
