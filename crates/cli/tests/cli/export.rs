// SPDX-License-Identifier: Apache-2.0
//! `ncclscope export`: both formats, read by foreign programs.

use crate::common::{Outcome, Run, ncclscope};
use ncclscope_trace::layout::{LANE_STRIDE, LANE_TABLE};
use ncclscope_trace::{Comm, Definition, Record, Recording, StrId, Writer};
use scripts::{API, Call, Fault, PROXY, Process};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

/// The traces as the official schema reads them; `None` without a Python that has the schema.
fn check(paths: &[&Path]) -> Option<Value> {
    let Some(python) = std::env::var_os("NCCLSCOPE_TEST_PYTHON") else {
        assert!(
            std::env::var("NCCLSCOPE_REQUIRE_NCCL").as_deref() != Ok("1"),
            "NCCLSCOPE_TEST_PYTHON is not set: name a Python that has the package perfetto"
        );
        let mut out = std::io::stdout();
        writeln!(out, "skipped: NCCLSCOPE_TEST_PYTHON is not set").unwrap();
        return None;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/check_pftrace.py");
    let outcome = Outcome::of(Command::new(python).arg(script).args(paths)).ends_with(0);
    Some(serde_json::from_str(&outcome.stdout).unwrap())
}

fn export(run: &Run, format: &str) -> std::path::PathBuf {
    let path = run.file("trace");
    let args = ["export", run.text(), "--to", format, "-o", path.to_str().unwrap()];
    let outcome = ncclscope(&args).ends_with(0);
    assert!(outcome.stderr.contains("slices of 2 processes"), "{outcome:#?}");
    path
}

#[test]
fn a_trace_is_compressed_where_its_name_says_so() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let text = |name: &str| {
        let path = run.file(name);
        let args = ["export", run.text(), "-o", path.to_str().unwrap()];
        let outcome = ncclscope(&args).ends_with(0);
        assert!(outcome.stderr.contains("slices of 2 processes to "), "{outcome:#?}");
        let mut text = String::new();
        ncclscope_kineto::file::open(&path).unwrap().read_to_string(&mut text).unwrap();
        (std::fs::read(&path).unwrap(), text)
    };
    let ((packed, same), (plain, text)) = (text("trace.json.gz"), text("trace.json"));
    assert!(packed.starts_with(&[0x1f, 0x8b]) && packed.len() < plain.len() / 2);
    assert_eq!(same, text);
    let unknown = run.file("trace.gz");
    let refused = ncclscope(&["export", run.text(), "-o", unknown.to_str().unwrap()]).ends_with(2);
    assert!(refused.stderr.contains("does not end in .pftrace, .json or .tar"), "{refused:#?}");
}

/// An output that cannot be written is refused before anything is read.
#[test]
fn a_directory_is_no_place_for_a_file() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let missing = run.file("absent/file");
    let missing = missing.to_str().unwrap();
    for option in [&["export", "--to", "chrome", "-o"][..], &["report", "--html"]] {
        let to = |place| ncclscope(&[&option[..1], &[run.text()], &option[1..], &[place]].concat());
        let refused = to(run.text()).ends_with(4);
        assert!(refused.stderr.contains("is a directory: name a file in it"), "{refused:#?}");
        let refused = to(missing).ends_with(4);
        assert!(refused.stderr.contains("there is no directory "), "{refused:#?}");
        assert_eq!(refused.stdout, "");
    }
}

#[test]
fn pftrace_holds_against_the_official_schema() {
    let run = Run::new(|p| {
        p.collective(Call::ALL_REDUCE);
        p.collective(Call { func: "AllGather", ..Call::ALL_REDUCE });
        p.send_recv(1 - p.comm.rank, 4096);
    });
    let Some(seen) = check(&[&export(&run, "pftrace")]) else { return };
    let processes = ["rank 0 (node-0 1000)", "rank 1 (node-1 1001)"];
    assert_eq!(seen["processes"], Value::from(processes.to_vec()));
    let tracks = [
        "API calls",
        "Bus bandwidth",
        "Bytes in flight",
        "Groups",
        "Kernel channel 0",
        "Kernel channel 1",
        "Operations",
        "Proxy receive from rank 1, channel 0",
        "Proxy receive from rank 1, channel 1",
        "Proxy send to rank 1, channel 0",
        "Proxy send to rank 1, channel 1",
    ];
    assert_eq!(seen["tracks"][processes[0]], Value::from(tracks.to_vec()));
    assert_eq!(seen["slices"]["ProxyStep"], 2 * 34);
    assert_eq!(seen["slices"]["KernelCh AllGather"], 4);
    for state in ["SendGPUWait", "SendPeerWait", "SendWait", "RecvWait", "RecvGPUWait"] {
        assert_eq!(seen["slices"][state], 34, "{state}");
    }
    let arrows = json!({
        "api to operation": 8,
        "operation to kernel": 8,
        // A kernel begins after its proxy operation; a send, timed by the host's clock, does not.
        "api to proxy": 16,
        "operation to proxy": 4,
        "step to step": 34,
        // The simulated ranks do not wait for each other.
        "back in time": 32,
    });
    assert_eq!(seen["arrows"], arrows);
    let groups = ["world 0x1f2e3d4c: rank 0 of 2", "world 0x1f2e3d4c: rank 1 of 2"];
    assert_eq!(seen["groups"], json!(groups));
    // The simulation's spacing: four steps of 512 KiB and the one of the Send are in flight at
    // once.
    assert_eq!(seen["counters"]["Bytes in flight"][0], (4 * 512 + 16) << 10);
    assert_eq!(seen["ranks_by_collective"], Value::from(vec![2, 2]));
    assert_eq!(seen["first_operation"]["algorithm"], "RING");
    assert_eq!(seen["open"], 0);
}

#[test]
fn a_slice_takes_at_most_80_bytes() {
    let run = Run::new(|p| (0..50).for_each(|_| p.collective(Call::ALL_REDUCE)));
    let Some(seen) = check(&[&export(&run, "pftrace")]) else { return };
    assert!(seen["bytes_per_slice"].as_f64().unwrap() <= 80.0, "{seen}");
}

#[test]
fn pftraces_may_be_put_behind_one_another() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let alone = ["node-0-1000", "node-1-1001"].map(|name| {
        let (input, output) = (run.file(&format!("{name}.nscope")), run.file(name));
        let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
        ncclscope(&["export", input, "--to", "pftrace", "-o", output]).ends_with(0);
        run.file(name)
    });
    let Some(seen) = check(&[&alone[0], &alone[1]]) else { return };
    assert_eq!(seen["processes"].as_array().unwrap().len(), 2);
    assert_eq!(seen["ranks_by_collective"], Value::from(vec![2]));
    // One recording lacks the steps of the other.
    assert_eq!(seen["arrows"]["step to step"], Value::Null);
}

#[test]
fn files_by_rank_are_the_merged_one_in_parts() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let merged = std::fs::read(export(&run, "pftrace")).unwrap();
    let directory = run.file("parts");
    ncclscope(&["export", run.text(), "--per-rank", "-o", directory.to_str().unwrap()])
        .ends_with(0);
    let parts = ["00000-node-0-1000.pftrace", "00001-node-1-1001.pftrace"];
    let parts = parts.map(|name| directory.join(name));
    let together: Vec<u8> = parts.iter().flat_map(|path| std::fs::read(path).unwrap()).collect();
    assert!(together == merged);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
    let Some(seen) = check(&[&parts[0], &parts[1]]) else { return };
    assert_eq!(seen["arrows"]["step to step"], 16 * 2 / 2);
}

#[test]
fn an_archive_has_a_machine_for_each_host() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let path = run.file("trace.tar");
    let outcome = ncclscope(&["export", run.text(), "-o", path.to_str().unwrap()]).ends_with(0);
    // No arrows are expected here, so no line warns of missing ones.
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    let bytes = std::fs::read(&path).unwrap();
    ncclscope(&["export", run.text(), "--to", "perfetto-tar", "-o", path.to_str().unwrap()])
        .ends_with(0);
    assert!(bytes == std::fs::read(&path).unwrap());
    let Some(seen) = check(&[&path]) else { return };
    for (at, machine) in ["node-0", "node-1"].iter().enumerate() {
        let file = &seen[&format!("0000{at}-{machine}-{}.pftrace", 1000 + at)];
        assert_eq!(file["machine"], *machine, "{seen}");
        assert_eq!(file["slices"]["ProxyStep"], 16);
        assert_eq!(file["arrows"]["step to step"], Value::Null);
        assert_eq!(file["arrows"]["operation to kernel"], 2);
    }
}

/// Writes a process's recording with one more communicator: the simulation defines its last one.
fn write_with(process: &Process, comm: &Comm, dir: &Path) {
    let path = &process.write(dir).unwrap();
    let old = Recording::open(path).unwrap();
    let words = |record| match record {
        Record::Start(start) => start.pack().words().to_vec(),
        Record::Stop { ticks, handle } => Record::stop(ticks, handle).words().to_vec(),
        Record::State { ticks, handle, state, small, arg } => {
            Record::state(ticks, handle, state, small, arg).words().to_vec()
        }
        Record::Step(step) => step.pack().words().to_vec(),
        _ => Vec::new(),
    };
    let lanes = [API, PROXY].map(|lane| old.records(lane).flat_map(words).collect::<Vec<u64>>());
    let whole = std::fs::read(path).unwrap();
    std::fs::remove_file(path).unwrap();
    let mut writer = Writer::create(path, process.header.clone(), 1 << 20).unwrap();
    for comm in [comm, &old.comms()[0]] {
        writer.define(&Definition::Comm(comm.clone())).unwrap();
    }
    for id in (1..).map(StrId) {
        let Some(text) = old.string(id) else { break };
        writer.define(&Definition::String { id, text: text.into() }).unwrap();
    }
    for (lane, words) in (0..).zip(lanes) {
        writer.append(lane, 0, &words).unwrap();
        let at = usize::try_from(LANE_TABLE).unwrap() + usize::from(lane) * LANE_STRIDE;
        let header = whole[at..][..LANE_STRIDE].try_into().unwrap();
        writer.write_lane(lane.into(), header).unwrap();
    }
    writer.sync_header().unwrap();
}

#[test]
fn communicators_of_a_rank_are_groups_of_one_process() {
    let dir = tempfile::tempdir().unwrap();
    for rank in [0, 1] {
        let mut process = Process::new(rank, 2);
        process.collective(Call::ALL_REDUCE);
        let world = process.comm.clone();
        let (hash, name) = (0xabcd, Some("tp".into()));
        process.comm = Comm { index: 1, hash, name, ranks: 4, rank: rank + 2, ..world.clone() };
        process.collective(Call { func: "AllGather", fault: Fault::Local, ..Call::ALL_REDUCE });
        write_with(&process, &world, dir.path());
    }
    let trace = dir.path().join("trace.pftrace");
    let args = ["export", dir.path().to_str().unwrap(), "-o", trace.to_str().unwrap()];
    ncclscope(&args).ends_with(0);
    let Some(seen) = check(&[&trace]) else { return };
    // The process is named by its rank in the larger communicator.
    assert_eq!(seen["processes"], json!(["rank 2 (node-0 1000)", "rank 3 (node-1 1001)"]));
    let groups = [
        "tp 0xabcd: rank 2 of 4",
        "tp 0xabcd: rank 3 of 4",
        "world 0x1f2e3d4c: rank 0 of 2",
        "world 0x1f2e3d4c: rank 1 of 2",
    ];
    assert_eq!(seen["groups"], json!(groups));
    assert_eq!(seen["ranks_by_collective"], json!([2, 2]));
    assert_eq!(seen["arrows"]["step to step"], 16);
}

#[test]
fn members_of_one_communicator_are_processes_of_their_own() {
    for (rank, names) in [
        (1, ["rank 0 (node-0 1000) world", "rank 1 (node-0 1000) world"]),
        // A communicator that was created again after its destruction.
        (0, ["rank 0 (node-0 1000) world", "rank 0 (node-0 1000) world #2"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::new(0, 2);
        process.collective(Call::ALL_REDUCE);
        let first = process.comm.clone();
        process.comm = Comm { index: 1, rank, ..first.clone() };
        process.collective(Call::ALL_REDUCE);
        write_with(&process, &first, dir.path());
        let trace = dir.path().join("trace.pftrace");
        let args = ["export", dir.path().to_str().unwrap(), "-o", trace.to_str().unwrap()];
        ncclscope(&args).ends_with(0);
        let Some(seen) = check(&[&trace]) else { return };
        assert_eq!(seen["processes"], json!(names));
    }
}

#[test]
fn containers_of_one_name_and_process_id_are_processes_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    for rank in [0, 1] {
        let mut process = Process::new(rank, 2);
        (process.header.host, process.header.pid) = ("localhost".into(), 1);
        process.collective(Call::ALL_REDUCE);
        let file = process.write(dir.path()).unwrap();
        std::fs::rename(&file, dir.path().join(format!("pod-{rank}.nscope"))).unwrap();
    }
    let run = dir.path().to_str().unwrap();
    let report = ncclscope(&["report", run]).ends_with(0).stdout;
    assert!(report.contains("processes   2 on localhost"), "{report}");
    let trace = dir.path().join("trace.pftrace");
    ncclscope(&["export", run, "-o", trace.to_str().unwrap()]).ends_with(0);
    let Some(seen) = check(&[&trace]) else { return };
    assert_eq!(seen["processes"], json!(["rank 0 (localhost 1)", "rank 1 (localhost 1)"]));
}

#[test]
fn open_events_are_shown_as_open() {
    let run = Run::new(|p| p.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE }));
    let Some(seen) = check(&[&export(&run, "pftrace")]) else { return };
    // Open on each rank: the operation, a KernelCh, a ProxyOp and a step.
    assert_eq!(seen["open"], 8);
}

#[test]
fn a_format_is_named_or_told_by_the_files_name() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let ends =
        |args: &[&str], code| ncclscope(&[&["export", run.text()], args].concat()).ends_with(code);
    for (name, first) in [("t.json", "{\"displayTimeUnit\""), ("t.tar", "perfetto_manifest.json\0")]
    {
        let path = run.file(name);
        ends(&["-o", path.to_str().unwrap()], 0);
        assert!(std::fs::read(path).unwrap().starts_with(first.as_bytes()), "{name}");
    }
    let outcome = ends(&["-o", "trace"], 2);
    assert!(outcome.stderr.contains("--to"), "{outcome:#?}");
    ends(&["-o", "-"], 2);
    ends(&["--per-rank", "-o", "-"], 2);
    ends(&["--per-rank", "--to", "chrome", "-o", "d"], 2);
}

#[test]
fn chrome_is_json_also_on_standard_output() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let bytes = std::fs::read(export(&run, "chrome")).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(json["traceEvents"].as_array().unwrap().len() > 100);
    let outcome = ncclscope(&["export", run.text(), "--to", "chrome", "-o", "-"]).ends_with(0);
    assert_eq!(outcome.stdout.as_bytes(), bytes);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn what_cannot_be_written_is_code_4_and_leaves_nothing() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let args = |path: &str| ncclscope(&["export", run.text(), "--to", "chrome", "-o", path]);
    let outcome = args("/absent/trace").ends_with(4);
    assert!(outcome.stderr.starts_with("ncclscope: error: cannot write /absent/trace"));
    let outcome = args("/proc/trace").ends_with(4);
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    let outcome = args("/dev/full").ends_with(4);
    assert!(outcome.stderr.contains("free some space"), "{outcome:#?}");
    let before = std::fs::read_dir(run.path()).unwrap().count();
    std::fs::create_dir(run.file("taken")).unwrap();
    args(run.file("taken").to_str().unwrap()).ends_with(4);
    assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), before + 1);
}

#[test]
fn the_description_of_a_run_is_not_replaced() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let about = run.file("run.json");
    std::fs::write(&about, "{}").unwrap();
    let (run, output) = (run.text(), about.to_str().unwrap());
    for words in [
        &["export", run, "-o"][..],
        &["report", run, "--html"],
        &["compare", run, run, "--html"],
        &["merge", run, "--kineto", "x.json", "-o"],
    ] {
        let outcome = ncclscope(&[words, &[output]].concat()).ends_with(2);
        let why = "run.json is one of the inputs: name another file\n";
        assert!(outcome.stderr.ends_with(why) && outcome.stdout.is_empty(), "{outcome:#?}");
        assert_eq!(std::fs::read_to_string(&about).unwrap(), "{}");
    }
}

#[test]
fn no_recording_is_replaced_by_a_trace() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let files = std::fs::read_dir(run.path()).unwrap().map(|entry| entry.unwrap().path());
    for file in files {
        let before = std::fs::read(&file).unwrap();
        let output = file.to_str().unwrap();
        let outcome = ncclscope(&["export", run.text(), "--to", "chrome", "-o", output]);
        assert!(outcome.ends_with(2).stderr.contains("is a recording: name another file"));
        assert!(std::fs::read(&file).unwrap() == before, "{output}");
    }
    let new = run.file("x.nscope");
    let outcome = ncclscope(&["report", run.text(), "--html", new.to_str().unwrap()]);
    assert!(outcome.ends_with(2).stderr.contains("is named like a recording: use another name"));
    assert!(!new.exists());
}

/// They are kept whether or not the verb reads them, and also beside a run of the user's.
#[test]
fn what_else_is_kept_of_a_run_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let file = |name: &str| dir.path().join(name);
    let report = ncclscope(&["report", run.text(), "--format", "json"]).stdout;
    std::fs::write(file("saved.json"), report).unwrap();
    std::fs::write(file("run.json"), "{\n  \"schema\": \"ncclscope.run/1\"}").unwrap();
    let counters = dir.path().join("counters");
    let counters = counters.to_str().unwrap();
    ncclscope(&["simulate", "-o", counters, "--ranks", "8", "--counters"]).ends_with(0);
    let trace = file("trace.json");
    ncclscope(&["export", run.text(), "-o", trace.to_str().unwrap()]).ends_with(0);
    for (path, what) in [
        (file("saved.json"), "saved.json is a saved report (ncclscope.report/3)"),
        (file("run.json"), "run.json is the description of a run (ncclscope.run/1)"),
        (file("counters/truth.json"), "truth.json is the truth about a simulated job"),
        (file("counters/job.vectors"), "job.vectors is a table of vectors"),
    ] {
        let (before, output) = (std::fs::read(&path).unwrap(), path.to_str().unwrap());
        for words in [
            &["export", run.text(), "--to", "chrome", "-o"][..],
            &["report", run.text(), "--html"],
            &["compare", run.text(), run.text(), "--html"],
        ] {
            let outcome = ncclscope(&[words, &[output]].concat()).ends_with(2);
            assert!(outcome.stderr.contains(what), "{outcome:#?}");
            assert!(outcome.stderr.contains(": name another file"), "{outcome:#?}");
            assert!(std::fs::read(&path).unwrap() == before, "{output}");
        }
    }
    // A verb's own result of an earlier time is.
    ncclscope(&["export", run.text(), "-o", trace.to_str().unwrap()]).ends_with(0);
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_leaves_nothing() {
    let run = Run::new(|process| {
        for _ in 0..200 {
            process.collective(Call::ALL_REDUCE);
        }
    });
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("trace.json");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ncclscope")]);
    limited.args(["export", run.text(), "-o"]).arg(&path);
    let outcome = Outcome::of(&mut limited).ends_with(4);
    assert!(outcome.stderr.contains("cannot write "), "{outcome:?}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn several_files_appear_together_or_not_at_all() {
    let out = tempfile::tempdir().unwrap();
    let place = |name: &str| out.path().join(name).to_str().unwrap().to_owned();
    let limited = |blocks: u32, args: &[&str]| {
        let script = format!("ulimit -f {blocks}; exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_ncclscope")]);
        Outcome::of(command.args(args))
    };
    // A recording is larger than the limit.
    let job = place("job");
    let simulate = ["simulate", "-o", &job, "--ranks", "8", "--steps", "4"];
    limited(40, &simulate).ends_with(4);
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
    ncclscope(&simulate).ends_with(0);
    let (traces, pages) = (place("traces"), place("pages"));
    std::fs::create_dir(&pages).unwrap();
    limited(1, &["export", "--per-rank", &job, "-o", &traces]).ends_with(4);
    limited(1, &["man", &pages]).ends_with(4);
    assert!(!Path::new(&traces).exists());
    assert_eq!(std::fs::read_dir(&pages).unwrap().count(), 0);
    ncclscope(&["export", "--per-rank", &job, "-o", &traces]).ends_with(0);
    assert_eq!(std::fs::read_dir(&traces).unwrap().count(), 8);
}
