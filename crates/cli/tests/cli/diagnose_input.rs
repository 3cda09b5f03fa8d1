// SPDX-License-Identifier: Apache-2.0
//! `diagnose`: input that is damaged, too large, or of several kinds.

use super::common::{Outcome, Run, ncclscope, tool};
use scripts::{Call, Fault};
use std::time::{Duration, Instant};

/// Two ranks of which rank 1 has not called what rank 0 waits for.
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
    // Neither would be a dump that can be read.
    std::fs::write(run.file("dump_1"), b"\x80\x02cut off").unwrap();
    let outcome = diagnosed(&run, 3);
    assert!(outcome.stdout.contains("H1a host-stuck  rank 1 "), "{outcome:?}");
    for name in ["t.json", "dump_1"] {
        let line = format!("{name} is not read: it looks like a Flight Recorder dump");
        assert!(outcome.stderr.contains(&line), "{outcome:?}");
    }
    // By itself, it is too large.
    let outcome = ncclscope(&["diagnose", run.file("t.json").to_str().unwrap()]).ends_with(3);
    assert!(outcome.stderr.contains("t.json: it has too many values at line 1 "), "{outcome:?}");
}

/// With the rights to read it, the kernel's log is a file that waits for the next line.
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

/// A recording whose definitions are cut off is left out, and is no run of its own.
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
