// SPDX-License-Identifier: Apache-2.0
//! `diagnose` with input that is damaged, too large, or of several kinds.

use super::common::{Outcome, Run, ncclscope, recordings, simulate, tool};
use ncclscope_trace::layout::BLOCKS;
use scripts::{Call, Fault};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Two ranks; rank 1 has not called the operation in which rank 0 waits.
fn hung() -> Run {
    Run::new(|process| {
        process.header.closed = false;
        process.collective(Call::ALL_REDUCE);
        if process.comm.rank == 0 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        }
        process.now += 60_000_000_000;
    })
}

fn diagnosed(run: &Run, code: i32) -> Outcome {
    ncclscope(&["diagnose", run.text()]).ends_with(code)
}

#[test]
fn dumps_beside_recordings_are_named_and_not_read() {
    let run = hung();
    let values = vec!["[0]"; 4_000_000].join(",");
    std::fs::write(run.file("t.json"), format!("{{\"version\":1,\"entries\":[{values}]}}"))
        .unwrap();
    // Both files look like dumps, and neither can be read.
    std::fs::write(run.file("dump_1"), b"\x80\x02cut off").unwrap();
    let outcome = diagnosed(&run, 3);
    assert!(outcome.stdout.contains("H1a host-stuck  rank 1 "), "{outcome:?}");
    for name in ["t.json", "dump_1"] {
        let line = format!("{name} is not read: it looks like a Flight Recorder dump");
        assert!(outcome.stderr.contains(&line), "{outcome:?}");
    }
    // On its own, the file is an error: it has too many values.
    let outcome = ncclscope(&["diagnose", run.file("t.json").to_str().unwrap()]).ends_with(3);
    assert!(outcome.stderr.contains("t.json: it has too many values at line 1 "), "{outcome:?}");
}

/// `/proc/kmsg`, the kernel's log: with the rights to read it, a read blocks until the next line.
#[test]
fn a_file_that_waits_is_not_waited_for() {
    let run = hung();
    let link = run.file("x.nscope");
    std::os::unix::fs::symlink("/proc/kmsg", &link).unwrap();
    let file = std::fs::File::create(run.file("out")).unwrap();
    let mut child = tool().arg("diagnose").arg(&link).stderr(file).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(3));
    let said = std::fs::read_to_string(run.file("out")).unwrap();
    assert!(said.contains("cannot read") && said.contains("x.nscope"), "{said}");
}

/// A recording with truncated definitions is left out, and does not count as a run of its own.
#[test]
fn a_recording_without_its_identity_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("job");
    let out = out.to_str().unwrap();
    ncclscope(&["simulate", "-o", out, "--ranks", "4", "--steps", "2"]).ends_with(0);
    let all = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    let cut = all.filter(|path| path.extension().is_some_and(|end| end == "nscope")).min().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&cut).unwrap();
    file.set_len(70_000).unwrap();
    let name = cut.file_name().unwrap().to_str().unwrap();
    for verb in ["report", "diagnose", "stragglers"] {
        let outcome = ncclscope(&[verb, out]).ends_with(3);
        let named = outcome.stderr.lines().filter(|line| line.contains(name)).count();
        assert_eq!(named, 1, "{verb}: {outcome:#?}");
        assert!(!outcome.stderr.contains("runs are here"), "{verb}: {outcome:#?}");
    }
}

/// A rank with an unreadable recording still has one: each verb names the file, and none says that
/// the rank has no recording.
#[test]
fn a_rank_whose_recording_is_cut_has_no_readable_one() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--ranks", "16", "--steps", "3", "--fault", "host-stuck", "--rank", "11"];
    let run = simulate(dir.path(), "run", "", &[&args[..], &["--seed", "1"]].concat());
    let file = &recordings(&run)[11];
    let name = file.file_name().unwrap().to_str().unwrap();
    for (length, why) in [
        (4096, "truncated or damaged: of process 10704 on node-0002 only the header is left"),
        (100, "truncated: shorter than a header (100 B)"),
        (0, "empty"),
    ] {
        std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length).unwrap();
        let told = |verb: &str, what: &[&str]| {
            let args = [verb, "--format", "json", run.to_str().unwrap()];
            let Outcome { stdout, stderr, .. } = ncclscope(&args).ends_with(3);
            for text in [&stdout, &stderr] {
                let is_it = |line: &str| line.contains(name) && line.contains(why);
                assert!(text.lines().any(is_it), "{verb} {length}: {text}");
            }
            for what in what {
                assert!(stdout.contains(what), "{verb} {length}: no {what} in {stdout}");
            }
        };
        told("diagnose", &["rank 11 is missing: what cannot be read may be of it"]);
        told("stragglers", &["no readable recording of rank 11"]);
        told("report", &[]);
        let text = ncclscope(&["report", run.to_str().unwrap()]).ends_with(3).stdout;
        let who = "who   CANNOT TELL who: no recording of rank 11 (1 of 16)\n";
        assert!(text.contains(who), "{text}");
    }
}

/// Of a long recording only the end is read. Segments missing or damaged before it are reported all
/// the same; if there are none, a note says that not all was read.
#[test]
fn what_is_not_read_of_long_recordings_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--ranks", "4", "--steps", "800", "--fault", "host-stuck", "--seed", "1"];
    let run = simulate(dir.path(), "run", "", &args);
    let run = run.to_str().unwrap();
    let intact = ncclscope(&["diagnose", run]).ends_with(1);
    let note = "note: the last 512 KiB of ";
    let of_note = |outcome: &Outcome| {
        let lines = outcome.stdout.lines().filter(|line| line.starts_with(note));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let [line] = &of_note(&intact)[..] else { panic!("{intact:#?}") };
    let end = "of each recording were read: damage before that may go unnoticed";
    assert!(line.ends_with(end), "{line}");
    let json = ncclscope(&["diagnose", run, "--format", "json"]).ends_with(1).stdout;
    assert_eq!(json.matches(end).count(), 1, "{json}");
    // The beginning of the first segment, which is not read.
    let damaged = &recordings(run.as_ref())[2];
    let file = std::fs::OpenOptions::new().write(true).open(damaged).unwrap();
    file.write_all_at(&[0; 4096], BLOCKS).unwrap();
    let outcome = ncclscope(&["diagnose", run]).ends_with(3);
    let what =
        format!("{} is damaged: 1 segment before the end is missing or damaged", damaged.display());
    for said in [&outcome.stdout, &outcome.stderr] {
        assert!(said.contains(&what), "{outcome:#?}");
    }
    assert_eq!(of_note(&outcome).len(), 1);
    let short = ncclscope(&["diagnose", hung().text()]);
    assert_eq!(of_note(&short), [""; 0], "all was read");
}

#[test]
fn two_outputs_of_ras_between_which_nothing_is_launched_end_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let output = |time: &str| {
        let rank = |rank: u32| {
            serde_json::json!({"rank": rank, "host": "a", "pid": 7 + rank, "cuda_dev": rank,
                "status": {}, "collective_counts": {"AllReduce": 5}})
        };
        let comm = serde_json::json!({"hash": "0xa", "size": 2, "ranks": [rank(0), rank(1)]});
        let all = serde_json::json!({"nccl_version": "2.32.3", "timestamp": time,
            "communicators": [comm]});
        let path = dir.path().join(format!("{}.json", time.replace([' ', ':'], "-")));
        std::fs::write(&path, all.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let [one, two] = ["2026-11-29 10:00:00", "2026-11-29 10:10:00"].map(output);
    let text = ncclscope(&["diagnose", &one, &two]).ends_with(3).stdout;
    assert!(text.starts_with("2 ranks (NCCL RAS); whether they wait is not visible"), "{text}");
    ncclscope(&["diagnose", &one]).ends_with(0);
    ncclscope(&["diagnose", &one, &two, "--hang-sec", "601"]).ends_with(0);
}
