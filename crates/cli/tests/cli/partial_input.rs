// SPDX-License-Identifier: Apache-2.0
//! Directories in which part of a run is missing, cut off or elsewhere.

use crate::common::{ncclscope, simulate};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A job of 16 ranks on four hosts whose rank 4 was killed.
struct Killed(tempfile::TempDir);

impl Killed {
    fn new() -> Killed {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("run");
        let fault = ["--fault", "killed", "--seed", "3", "--ranks", "16", "--steps", "12"];
        ncclscope(&[&["simulate", "-o", out.to_str().unwrap()], &fault[..]].concat()).ends_with(0);
        Killed(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("run")
    }

    /// Cuts off the recording of rank 9.
    fn cut(&self, bytes: u64) {
        cut(&self.path().join("node-0002-10576.nscope"), bytes);
    }
}

/// Leaves the first `bytes` of a file.
fn cut(file: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

#[test]
fn many_unreadable_files_are_a_few_lines() {
    let killed = Killed::new();
    for number in 0..500 {
        std::fs::write(killed.path().join(format!("empty-{number}.nscope")), "").unwrap();
    }
    for verb in ["report", "stragglers"] {
        let outcome = ncclscope(&[verb, killed.path().to_str().unwrap()]);
        let lines = outcome.stderr.matches("cannot read ").count();
        assert_eq!(lines, 8, "{verb}: {}", outcome.stderr);
        let rest = "492 more recordings are unreadable";
        assert!(outcome.stderr.contains(rest), "{verb}: {}", outcome.stderr);
    }
    let told = ncclscope(&["diagnose", killed.path().to_str().unwrap()]).stderr;
    assert_eq!(told.matches("cannot read ").count(), 8, "{told}");
    assert!(told.contains("the same is true of 492 more files"), "{told}");
}

fn run(verb: &[&str], path: &Path, code: i32) -> String {
    let outcome = ncclscope(&[verb, &[path.to_str().unwrap()]].concat()).ends_with(code);
    outcome.stdout + &outcome.stderr
}

#[test]
fn recordings_of_one_host_name_no_rank_that_does_not_exist() {
    let job = Killed::new();
    for entry in std::fs::read_dir(job.path()).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_str().unwrap().starts_with("node-0000") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let diagnosis = run(&["diagnose"], &job.path(), 1);
    assert!(diagnosis.contains("there is no input from an unknown rank; all"), "{diagnosis}");
    assert!(
        !["rank 16", "rank 19", "rank 20"].iter().any(|it| diagnosis.contains(it)),
        "{diagnosis}"
    );
    let report = run(&["report"], &job.path(), 0);
    let cost = "all of the job: 384 GPU-hours a day\n";
    assert!(diagnosis.contains(cost) && report.contains(cost), "{diagnosis}{report}");
}

#[test]
fn a_recording_without_a_clock_moves_no_run_to_1970() {
    let job = Killed::new();
    job.cut(1_400_000);
    let report = run(&["report"], &job.path(), 3);
    assert!(report.contains("  recorded    from 20"), "{report}");
    let full = run(&["report", "--full"], &job.path(), 3);
    assert!(full.contains("no comparison of its clock is left"), "{full}");
    let late = run(&["report", "--until", "+1s"], &job.path(), 3);
    assert!(late.contains("; 15 of 16 recordings"), "{late}");
    let out = job.0.path().join("x.json");
    let export = run(&["export", "-o", out.to_str().unwrap()], &job.path(), 3);
    assert!(export.contains("node-0002-10576.nscope is cut off"), "{export}");
    assert!(export.contains(" slices of 15 processes "), "{export}");
}

#[test]
fn a_recording_that_is_cut_off_weakens_no_verdict_about_another() {
    let job = Killed::new();
    job.cut(1_390_000);
    let diagnosis = run(&["diagnose"], &job.path(), 3);
    assert!(diagnosis.contains("\nH1b process-gone  rank 4 (node-0001,"), "{diagnosis}");
    assert!(!diagnosis.contains("(suspect)"), "{diagnosis}");
    assert!(diagnosis.contains("node-0002-10576.nscope is damaged: "), "{diagnosis}");
}

/// Rank 7 seems not to have entered the operation that rank 5 did not finish.
#[test]
fn what_a_cut_recording_lacks_is_no_evidence() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let fault = ["--fault", "gpu-dead", "--ranks", "16", "--steps", "8", "--rank", "5"];
    ncclscope(&[&["simulate", "-o", out.to_str().unwrap()], &fault[..]].concat()).ends_with(0);
    cut(&out.join("node-0001-10448.nscope"), 1_300_000);
    let diagnosis = run(&["diagnose"], &out, 3);
    assert!(diagnosis.contains("\nH3c gpu-dead (suspect)  rank 5 (node-0001,"), "{diagnosis}");
    assert!(diagnosis.contains("\nH0 not-recorded (suspect)  rank 7 (node-0001,"), "{diagnosis}");
    let why = "the recording of rank 7 ends early, and its end may be lost\n";
    assert!(diagnosis.contains(why), "{diagnosis}");
}

#[test]
fn an_answer_from_damaged_recordings_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let words = ["simulate", "-o", out.to_str().unwrap(), "--ranks", "2", "--steps", "12"];
    ncclscope(&words).ends_with(0);
    assert!(!run(&["report"], &out, 0).contains("damaged"));
    let entries = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "nscope")).collect();
    files.sort();
    // Within the last blocks: most of the recording is left.
    let length = files[1].metadata().unwrap().len();
    cut(&files[1], length - 4096);
    let report = run(&["report"], &out, 3);
    assert!(report.contains("; 1 of 2 recordings is damaged: see PROBLEMS\n"), "{report}");
    for file in &files {
        cut(file, length / 2);
    }
    let report = run(&["report"], &out, 3);
    let why = "why   no operation was recorded; the recordings are damaged: see PROBLEMS\n";
    assert!(report.contains(why), "{report}");
}

#[test]
fn a_trace_without_a_damaged_process_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let args = ["simulate", "--ranks", "4", "--seed", "3", "-o", path.to_str().unwrap()];
    ncclscope(&args).ends_with(0);
    let file = path.join("node-0000-10000.nscope");
    let all = std::fs::metadata(&file).unwrap().len();
    cut(&file, all / 2);
    let trace = dir.path().join("x.pftrace");
    let said = run(&["export", "-o", trace.to_str().unwrap()], &path, 3);
    assert!(said.contains("; it is left out, as nothing of it has a time"), "{said}");
    assert!(said.contains("3 processes"), "{said}");
}

#[test]
fn a_recording_that_is_left_out_is_a_problem_of_the_report() {
    let job = Killed::new();
    let file = job.path().join("node-0002-10576.nscope");
    let mut bytes = std::fs::read(&file).unwrap();
    let name = b"simulated-3";
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let says = "node-0002-10576.nscope is left out: it is damaged, and nothing is left that says";
    for verb in [&["report"][..], &["stragglers"], &["diagnose"]] {
        let said = run(verb, &job.path(), 3);
        assert!(said.contains("warning: ") && said.contains(says), "{verb:?}: {said}");
    }
    let report = ncclscope(&["report", job.path().to_str().unwrap()]).ends_with(3).stdout;
    assert!(report.contains("nothing that was counted, but see PROBLEMS"), "{report}");
    let json = ncclscope(&["report", "--format", "json", job.path().to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&json.ends_with(3).stdout).unwrap();
    assert!(json["problems"][0].as_str().unwrap().contains(says), "{}", json["problems"]);
}

#[test]
fn runs_below_a_directory_are_named() {
    let job = Killed::new();
    for verb in ["diagnose", "stragglers"] {
        let error = run(&[verb], job.0.path(), 3);
        let says =
            format!("recordings are in {}: name the directory of a run", job.path().display());
        assert!(error.contains(&says), "{verb}: {error}");
    }
}

/// A job that ended: what seems to be in flight in damaged recordings may have ended, too.
#[test]
fn damaged_recordings_of_a_job_that_ended_do_not_hang() {
    let scenario = "seed = 1\n[job]\nranks = 6\nper_host = 5\ntp = 1\npp = 3\ndp = 2\nep = 2\n\
                    steps = 16\nmicrobatches = 16\n[machine]\nnetwork_gb_s = 3.0\n\
                    forward_us = 300\n[[fault]]\nname = 'slow-nic'\nfactor = 8.0\nrank = 5\n";
    let dir = tempfile::tempdir().unwrap();
    let job = simulate(dir.path(), "run", scenario, &[]);
    let [five, three] = ["node-0001-10320.nscope", "node-0000-10192.nscope"];
    let whole = [five, three].map(|name| std::fs::read(job.join(name)).unwrap());
    for (holed, cut_off, length) in [(five, three, 1_615_530), (three, five, 1_769_547)] {
        let file = std::fs::OpenOptions::new().write(true).open(job.join(holed)).unwrap();
        file.write_all_at(&[0; 4096], 1_409_024).unwrap();
        cut(&job.join(cut_off), length);
        let report = run(&["report"], &job, 3);
        assert!(report.starts_with("CANNOT TELL  nothing hangs in what was recorded"), "{report}");
        for (name, bytes) in [five, three].iter().zip(&whole) {
            std::fs::write(job.join(name), bytes).unwrap();
        }
    }
}
