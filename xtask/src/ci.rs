// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask ci`: the checks that every change must pass, in the order of what fails fastest.
//!
//! A job is a row of [`JOBS`]. It runs as a command that a person can repeat, under a time limit,
//! and the first one that fails ends the run. The last line is the tests' count, `N passed, N
//! failed`, whatever runner made it.

use std::ops::AddAssign;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::{Outcome, Usage, process};

/// One check.
struct Job {
    name: &'static str,
    /// Limit on 2 cores with nothing built yet. All together stay within an hour: a test adds up.
    minutes: u64,
    /// The command, its words separated by spaces.
    command: &'static str,
    env: &'static [(&'static str, &'static str)],
}

/// The jobs, in order. A new checker (loom, a sanitizer) is a new row.
const JOBS: &[Job] = &[
    Job { name: "fmt", minutes: 1, command: "cargo fmt --all -- --check --color never", env: &[] },
    Job {
        name: "clippy",
        minutes: 5,
        command: "cargo clippy --workspace --all-targets -- -D warnings",
        env: &[],
    },
    Job { name: "tidy", minutes: 2, command: "cargo xtask tidy", env: &[] },
    Job { name: "test", minutes: 23, command: "cargo xtask test", env: &[] },
    // The plugin under abuse. The driver leaks NCCL's mask on purpose: it outlives every plugin.
    // The test of memory is left to `test`: here the sanitizer keeps what was freed.
    Job {
        name: "asan",
        minutes: 5,
        command: "cargo test --package fake-nccl --package ncclscope-recorder --target-dir \
                  target/asan -- --skip cost_no_memory",
        env: &[
            ("RUSTC_BOOTSTRAP", "1"),
            ("RUSTFLAGS", "-Zsanitizer=address -Clink-arg=-rdynamic"),
            ("ASAN_OPTIONS", "detect_leaks=0"),
        ],
    },
    Job { name: "tsan", minutes: 3, command: "cargo xtask sanitize thread", env: &[] },
    Job { name: "rtsan", minutes: 2, command: "cargo xtask sanitize realtime", env: &[] },
    // Every order of the accesses to atomics that matters, and mutants that must fail.
    Job {
        name: "model",
        minutes: 3,
        command: "cargo test --release --package ncclscope-recorder --test loom --target-dir \
                  target/loom",
        env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_PROFILE_RELEASE_LTO", "off")],
    },
    // What a callback takes, against the commit before; and that it asks the system for nothing.
    Job {
        name: "cost",
        minutes: 5,
        command: "cargo xtask bench --instructions",
        env: &[("NCCLSCOPE_REQUIRE_PTRACE", "1")],
    },
    // The oldest, the newest, and one release of each profiler API version.
    Job {
        name: "matrix",
        minutes: 3,
        command: "cargo xtask matrix --release 2.23.4 --release 2.25.1 --release 2.26.5 \
                  --release 2.27.7 --release 2.28.9 --release 2.30.7 --release 2.32.3 \
                  --topology socket --topology p2p",
        env: &[],
    },
    // What diagnose and stragglers say of planted faults, and of controls.
    Job { name: "evaluate", minutes: 4, command: "cargo xtask evaluate --small", env: &[] },
    Job {
        name: "doc",
        minutes: 3,
        command: "cargo doc --workspace --no-deps",
        env: &[("RUSTDOCFLAGS", "-D warnings")],
    },
];

/// The job whose output holds the tests' summaries.
const TEST_JOB: &str = "test";

/// Runs all jobs, or with `--only JOB` one; `--list` prints them.
pub(crate) fn run(args: &[String]) -> Outcome {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        [] => run_jobs(JOBS),
        ["--only", name] => {
            let job = JOBS.iter().find(|job| job.name == name);
            let job = job.ok_or_else(|| Usage(format!("ci has no job `{name}`")))?;
            run_jobs(std::slice::from_ref(job))
        }
        ["--list"] => {
            for Job { name, minutes, command, .. } in JOBS {
                println!("{name:<8} {minutes:>3} min  {command}");
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(Usage("ci takes `--only JOB` or `--list`".into()).into()),
    }
}

fn run_jobs(jobs: &[Job]) -> Outcome {
    let mut rows = Vec::new();
    let mut tally = None;
    let mut failed = None;
    for job in jobs {
        eprintln!("\n== {}", job.name);
        let begin = Instant::now();
        let (result, output) = run_job(job)?;
        if job.name == TEST_JOB {
            tally = Tally::read(&output);
        }
        rows.push((job.name, begin.elapsed(), result));
        if result != JobResult::Passed {
            failed = Some(job.name);
            break;
        }
    }
    println!("\n{:<8} {:>8}  result", "job", "seconds");
    for (name, elapsed, result) in rows {
        println!("{name:<8} {:>8.1}  {}", elapsed.as_secs_f64(), result.text());
    }
    if let Some(name) = failed {
        println!("\n`{name}` failed; alone: cargo xtask ci --only {name}");
    }
    if let Some(tally) = &tally {
        println!("\n{}", tally.line());
    }
    Ok(if failed.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum JobResult {
    Passed,
    Failed,
    TimedOut,
}

impl JobResult {
    fn text(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED OUT",
        }
    }
}

fn run_job(job: &Job) -> Outcome<(JobResult, String)> {
    let limit = Duration::from_secs(60 * job.minutes);
    // `timeout` leads a process group of its own and ends all of it, which needs no code here.
    let seconds = limit.as_secs().to_string();
    let mut command = process::command(&["timeout", "--kill-after=30", &seconds]);
    command.args(job.command.split(' ')).envs(job.env.iter().copied());
    // The output is read again for its summary: no colour codes in it.
    command.env("CARGO_TERM_COLOR", "never");
    let begin = Instant::now();
    let (status, output) = process::tee(&mut command)?;
    let result = match status.code() {
        Some(0) => JobResult::Passed,
        _ if begin.elapsed() >= limit => JobResult::TimedOut,
        _ => JobResult::Failed,
    };
    Ok((result, output))
}

/// How many tests ended how.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Tally {
    /// Adds up the closing lines of cargo test and nextest in `output`; `None` without any.
    fn read(output: &str) -> Option<Self> {
        let mut sum: Option<Self> = None;
        let mut in_nextest = false;
        for line in output.lines().map(str::trim) {
            in_nextest |= line.starts_with("Nextest run ID");
            // Inside a nextest run a libtest summary is a failing test's own output.
            let counts = match line.strip_prefix("test result: ") {
                Some(rest) if !in_nextest => rest.split_once(". ").map(|(_, counts)| counts),
                Some(_) => None,
                None if line.starts_with("Summary [") => line.split_once(" run: ").map(|x| x.1),
                None => None,
            };
            if let Some(counts) = counts {
                *sum.get_or_insert_default() += Self::counts(counts);
            }
        }
        sum
    }

    /// Reads `3 passed; 1 failed; 0 ignored` and `3 passed (1 slow), 1 timed out, 2 skipped`.
    fn counts(text: &str) -> Self {
        let mut tally = Self::default();
        for part in text.split([',', ';']) {
            let Some((number, what)) = part.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what.split(" (").next().unwrap_or(what) {
                "passed" => tally.passed += number,
                "failed" | "timed out" | "exec failed" => tally.failed += number,
                "skipped" | "ignored" => tally.skipped += number,
                _ => {}
            }
        }
        tally
    }

    fn line(&self) -> String {
        let Self { passed, failed, skipped } = self;
        let skipped = if *skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        format!("{passed} passed, {failed} failed{skipped}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole must leave room below the 90 minutes that a submission's CI may take.
    const MINUTES_MAX: u64 = 60;

    #[test]
    fn the_jobs_fit_in_an_hour() {
        assert!(JOBS.iter().map(|job| job.minutes).sum::<u64>() <= MINUTES_MAX);
        assert!(JOBS.iter().any(|job| job.name == TEST_JOB));
    }

    #[test]
    fn summaries_of_cargo_test_add_up() {
        let output = "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; \
                      finished in 0.00s\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 \
                      measured; 0 filtered out; finished in 0.01s\n";
        let tally = Tally::read(output).expect("a summary");
        assert_eq!(tally, Tally { passed: 5, failed: 2, skipped: 1 });
        assert_eq!(tally.line(), "5 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn summaries_of_nextest_with_doctests() {
        let output = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n\
                      \x20Nextest run ID 1 with nextest profile: default\n\
                      \x20   test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n\
                      Summary [   1.5s] 9 tests run: 6 passed (1 slow, 1 flaky), 1 failed, \
                      1 timed out, 1 exec failed, 3 skipped\n";
        let tally = Tally::read(output).expect("a summary");
        assert_eq!(tally, Tally { passed: 8, failed: 3, skipped: 3 });
        let one = Tally::read("  Summary [ 0.1s] 1 test run: 1 passed, 0 skipped");
        assert_eq!(one.expect("a summary").line(), "1 passed, 0 failed");
    }

    #[test]
    fn no_summary_is_no_count() {
        assert_eq!(Tally::read("error: could not compile\nSummary: none"), None);
    }

    #[test]
    fn jobs_report_their_end() {
        let job = |command| Job { name: "x", minutes: 1, command, env: &[("LC_ALL", "C")] };
        let (result, output) = run_job(&job("printenv LC_ALL")).expect("printenv runs");
        assert_eq!((result, output.as_str()), (JobResult::Passed, "C\n"));
        assert_eq!(run_job(&job("false")).expect("false runs").0, JobResult::Failed);
        let endless = Job { minutes: 0, ..job("false") };
        assert_eq!(run_job(&endless).expect("false runs").0, JobResult::TimedOut);
    }
}
