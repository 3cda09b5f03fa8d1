// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask ci`: the checks that every change must pass, in the order of what fails fastest.
//!
//! Each job is a row of [`JOBS`] and runs as a command that a person can repeat. The run ends with
//! the first job that fails, or when the time for all of them, [`LIMIT`], is over. It also fails if
//! many tests or jobs needed another try ([`Again`]), which a line at the end names. The last line
//! is the count of tests, `N passed, N failed`, for every test runner.
//!
//! The tests, including those of `asan`, wait more than they compute. Jobs that need only processor
//! time and their own target folders run beside them at the lowest priority ([`beside`]).

mod again;
mod beside;
pub(crate) mod job;

use std::ops::AddAssign;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use crate::outcome::Outcome;
use again::Again;
use beside::Beside;
use job::{Job, JobResult, TESTS, run_job};

/// The jobs, in order. A new checker (loom, a sanitizer) is a new row.
const JOBS: &[Job] = &[
    Job { name: "fmt", command: "cargo fmt --all -- --check --color never", ..Job::NONE },
    Job {
        name: "clippy",
        command: "cargo clippy --workspace --all-targets -- -D warnings",
        ..Job::NONE
    },
    Job { name: "tidy", command: "cargo xtask tidy", ..Job::NONE },
    Job { name: "deny", command: "cargo xtask deny", ..Job::NONE },
    Job {
        name: TESTS,
        command: "cargo xtask test --with browser,prometheus,tmux,torch",
        env: &[("NCCLSCOPE_REQUIRE_NAMESPACES", "1")],
        ..Job::NONE
    },
    // Hosts that misuse the plugin; those in C are built with the sanitizer, too. Left to `test`
    // are
    // - memory that does not grow: the sanitizer keeps freed memory,
    // - a counter that must not be read: the sanitizer's allocator reads the time,
    // - no address space left: the sanitizer needs some for each thread,
    // - a flood that loses events: instrumented callbacks are too slow for one,
    // - children created by clone beside other threads: their copy of the sanitizer's allocator may
    // be locked.
    // The driver leaks NCCL's mask on purpose, because the mask outlives every plugin.
    Job {
        name: "asan",
        command: "cargo test --package fake-nccl --package ncclscope-recorder --target-dir \
                  target/asan -- --test-threads 6 --skip cost_no_memory \
                  --skip must_not_read_the_counter --skip no_address_space_left \
                  --skip end_may_be_lost --skip while_we_begin",
        env: &[
            ("RUSTC_BOOTSTRAP", "1"),
            ("RUSTFLAGS", "-Zsanitizer=address -Clink-arg=-rdynamic"),
            ("ASAN_OPTIONS", "detect_leaks=0"),
        ],
        again: true,
        prepare: Some(
            "cargo test --no-run --package fake-nccl --package ncclscope-recorder --target-dir \
             target/asan",
        ),
        ..Job::NONE
    },
    Job {
        name: "tsan",
        command: "cargo xtask sanitize thread",
        again: true,
        prepare: Some("cargo xtask sanitize thread --no-run"),
        with: Some("asan"),
        ..Job::NONE
    },
    Job {
        name: "rtsan",
        command: "cargo xtask sanitize realtime",
        again: true,
        prepare: Some("cargo xtask sanitize realtime --no-run"),
        with: Some("asan"),
        ..Job::NONE
    },
    // Every order of the accesses to atomics that matters, and mutants that must fail. Loom maps a
    // stack for each thread of each order: with several tests at once in one process, the system
    // spends more time on that than the tests take.
    Job {
        name: "model",
        command: "cargo test --profile model --package ncclscope-recorder --test loom \
                  --target-dir target/loom -- --test-threads 1",
        env: &[("RUSTFLAGS", "--cfg loom")],
        with: Some(TESTS),
        ..Job::NONE
    },
    // Instructions of a callback compared with the previous commit, and that callbacks make no
    // system calls.
    Job {
        name: "cost",
        command: "cargo xtask bench --instructions",
        env: &[("NCCLSCOPE_REQUIRE_PTRACE", "1")],
        again: true,
        with: Some("asan"),
        ..Job::NONE
    },
    // The oldest and the newest release, one for each profiler API version, and 2.27.3, which loads
    // no plugin by its path.
    Job {
        name: "matrix",
        command: "cargo xtask matrix --release 2.23.4 --release 2.25.1 --release 2.26.5 \
                  --release 2.27.3 --release 2.27.7 --release 2.28.9 --release 2.30.7 \
                  --release 2.32.3 --topology socket --topology p2p",
        again: true,
        ..Job::NONE
    },
    // Real NCCL among hosts of their own: a network that fails, a communicator that is not created,
    // settings that differ, a crash, two communicators in two orders, and a healthy job.
    Job {
        name: "cluster",
        command: "cargo xtask cluster --strict link-down black-hole mtu missing-split protocol \
                  rank-exits-1 two-orders healthy",
        again: true,
        ..Job::NONE
    },
    // How good verdicts are: no column of the table may be worse than the kept one.
    Job {
        name: "evaluate",
        command: "cargo xtask evaluate --small",
        with: Some("asan"),
        ..Job::NONE
    },
    Job {
        name: "doc",
        command: "cargo doc --workspace --no-deps",
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        // Not beside the tests: their build would wait for it.
        with: Some("asan"),
        ..Job::NONE
    },
    // Every page is in the navigation, every link leads somewhere, and it can be read offline.
    Job { name: "docs", command: "cargo xtask docs", again: true, ..Job::NONE },
];

/// Time limit for all jobs together: more than twice what they take on 2 cores from scratch,
/// because a machine may be slow.
const LIMIT: Duration = Duration::from_secs(50 * 60);

/// The jobs whose output contains summaries of tests: all tests, and those of [`crate::check`].
const TEST_JOBS: [&str; 2] = [TESTS, "unit"];

/// What `cargo xtask ci` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Run one job
    #[arg(long, value_name = "JOB", value_parser = find, conflicts_with = "list")]
    only: Option<Job>,
    /// Print the jobs
    #[arg(long)]
    list: bool,
}

/// Runs all jobs or one, or prints them.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.list {
        for Job { name, command, .. } in JOBS {
            println!("{name:<8}  {command}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    match options.only {
        Some(job) => run_jobs(&[job]),
        None => run_jobs(JOBS),
    }
}

pub(crate) fn find(name: &str) -> Result<Job, String> {
    let found = JOBS.iter().find(|job| job.name == name).copied();
    found.ok_or_else(|| "no such job: see --list".into())
}

/// The command with which a person runs a job alone.
fn alone(job: &Job) -> String {
    match find(job.name) {
        Ok(_) => format!("cargo xtask ci --only {}", job.name),
        Err(_) => job.command.to_owned(),
    }
}

/// Runs `jobs` until one fails, and prints what each took.
pub(crate) fn run_jobs(jobs: &[Job]) -> Outcome {
    let mut rows = Vec::new();
    let mut tally = None;
    let mut failed = None;
    let mut again = Again::default();
    let deadline = Instant::now() + LIMIT;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut beside = Beside::default();
    for job in jobs {
        eprintln!("\n== {}", job.name);
        let begin = Instant::now();
        beside.start(job.name, jobs, left());
        let (mut result, output) = match beside.take(job.name) {
            Some(done) => done?,
            None => run_job(job, left())?,
        };
        if result == JobResult::Failed && job.again {
            eprintln!("\n== {}, once more", job.name);
            again.add_job(job.name);
            result = run_job(job, left())?.0.flaky();
        }
        if TEST_JOBS.contains(&job.name) {
            tally = Tally::read(&output);
            again.add_tests(&output);
        }
        // The jobs that follow measure, or depend on clocks.
        beside.finish(matches!(result, JobResult::Passed | JobResult::Flaky));
        rows.push((job.name, begin.elapsed(), result));
        if !matches!(result, JobResult::Passed | JobResult::Flaky) {
            failed = Some(job);
            break;
        }
    }
    println!("\n{:<8} {:>8}  result", "job", "seconds");
    for (name, elapsed, result) in rows {
        println!("{name:<8} {:>8.1}  {}", elapsed.as_secs_f64(), result.text());
    }
    if let Some(job) = failed {
        println!("\n`{}` failed; alone: {}", job.name, alone(job));
    }
    println!("\n{}", again.line());
    if let Some(tally) = &tally {
        println!("\n{}", tally.line());
    }
    let is_fine = failed.is_none() && !again.are_too_many();
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    /// Adds up the closing lines of cargo test and nextest in `output`; `None` if there are none.
    fn read(output: &str) -> Option<Self> {
        let mut sum: Option<Self> = None;
        let mut in_nextest = false;
        for line in output.lines().map(str::trim) {
            in_nextest |= line.starts_with("Nextest run ID");
            // Inside a nextest run, a libtest summary is the output of a failing test.
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

    #[test]
    fn the_tests_are_a_job() {
        assert!(find(TEST_JOBS[0]).is_ok());
    }

    #[test]
    fn a_job_runs_beside_an_earlier_one() {
        let place = |name| JOBS.iter().position(|job| job.name == name).expect("it is a job");
        for job in JOBS {
            let first = job.prepare.map(|_| TESTS);
            assert!(
                [first, job.with].into_iter().flatten().all(|with| place(with) < place(job.name))
            );
        }
    }

    #[test]
    fn the_matrix_runs_the_releases_that_the_tests_load() {
        let words: Vec<&str> = find("matrix").expect("it is a job").command.split(' ').collect();
        let pairs = words.windows(2).filter(|pair| pair[0] == "--release");
        assert_eq!(pairs.map(|pair| pair[1]).collect::<Vec<_>>(), crate::test::NCCL_VERSIONS);
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
}
