// SPDX-License-Identifier: Apache-2.0
//! A job with the plugin, and the outputs that its user gets: report, trace and the check of
//! recordings.

use crate::trace::Trace;
use rig::job::{Job, Outcome};
use rig::{build, wheel};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

/// The built parts of the product and the tests' programs.
pub(crate) struct Tools {
    pub(crate) plugin: PathBuf,
    tool: PathBuf,
    check: PathBuf,
}

/// Finds them, once per process.
pub(crate) fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| Tools {
        plugin: build::plugin(),
        tool: build::tool(),
        check: build::check(),
    })
}

/// Runs a program of the project, which must succeed. Returns its output.
fn run(program: &Path, args: &[&OsStr]) -> Output {
    let output = Command::new(program).args(args).output().expect("the program starts");
    assert!(output.status.success(), "{}: {output:?}", program.display());
    output
}

/// The library of a release. A release that `cargo xtask test` does not fetch may be missing; then
/// the test prints that it is skipped, and the matrix covers the release.
#[expect(clippy::print_stdout, reason = "a skipped test must say so")]
pub(crate) fn library(version: &str) -> Option<PathBuf> {
    if wheel::TESTED.contains(&version) {
        return wheel::find_or_skip(version);
    }
    wheel::find(version).map_err(|missing| println!("skipped: {missing}")).ok()
}

/// A job of two ranks that record into `folder`.
pub(crate) fn job(nccl: &Path, folder: &Path) -> Job {
    let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(60));
    job.env("NCCL_PROFILER_PLUGIN", &tools().plugin).env("NCCLSCOPE_DIR", folder)
}

/// Runs a job to its end: every rank must have completed its steps with correct results.
pub(crate) fn finish(job: &Job, steps: usize) -> Outcome {
    let outcome = job.run().expect("ranks start");
    outcome.expect_success();
    for rank in &outcome.ranks {
        assert_eq!(rank.steps_done(), steps, "rank {}\n{outcome}", rank.rank);
    }
    outcome
}

/// A finished job and its outputs.
pub(crate) struct Run {
    pub(crate) report: Value,
    /// The report as text, with one blank between words.
    pub(crate) text: String,
    pub(crate) trace: Trace,
    /// Result of `check` of testing/invariants on the recordings, which must satisfy all its rules.
    pub(crate) checked: Value,
}

/// Runs steps on a release; `None` if it is missing.
pub(crate) fn record(version: &str, configure: impl Fn(Job) -> Job, steps: &[&str]) -> Option<Run> {
    let nccl = library(version)?;
    let folder = tempfile::tempdir().expect("a folder");
    let job = configure(job(&nccl, folder.path())).steps(steps.iter().copied());
    // `repeat:K:STEP` reports its step K times.
    let done = |step: &&str| match step.strip_prefix("repeat:").and_then(|s| s.split_once(':')) {
        Some((times, _)) => times.parse().expect("a number"),
        None => 1,
    };
    finish(&job, steps.iter().map(done).sum());
    Some(Run::read(folder.path()))
}

impl Run {
    fn read(folder: &Path) -> Run {
        let Tools { tool, check, .. } = tools();
        let text = |program: &Path, args: &[&str], more: &[&Path]| {
            let args = args.iter().map(OsStr::new).chain(more.iter().map(|path| path.as_os_str()));
            let output = run(program, &args.collect::<Vec<_>>()).stdout;
            String::from_utf8(output).expect("it prints text")
        };
        let json = |text: &str| serde_json::from_str(text).expect("it prints JSON");
        let page = text(tool, &["report", "--full"], &[folder]);
        let report = text(tool, &["report", "--format", "json"], &[folder]);
        // Losses are counted, and each test checks the counts.
        let checks = ["--json", "--lost-ok", "--ranks", "2", "--nodes", "2"];
        let file = folder.join("trace.json");
        text(tool, &["export", "--to", "chrome", "-o"], &[&file, folder]);
        let trace = std::fs::read_to_string(&file).expect("the trace is there");
        Run {
            report: json(&report),
            text: page.split_whitespace().collect::<Vec<_>>().join(" "),
            trace: Trace::parse(&trace),
            checked: json(&text(check, &checks, &[folder])),
        }
    }

    pub(crate) fn ranks(&self) -> &[Value] {
        array(&self.report, "ranks")
    }

    /// The rows of a function.
    pub(crate) fn operations(&self, func: &str) -> Vec<&Value> {
        let rows = array(&self.report, "operations").iter();
        rows.filter(|row| row["func"] == func).collect()
    }

    /// Whether a sentence of the report about missing information begins with this text.
    pub(crate) fn says(&self, text: &str) -> bool {
        let mut sentences = array(&self.report, "unknowable").iter().filter_map(Value::as_str);
        sentences.any(|sentence| sentence.starts_with(text))
    }

    /// Asserts that every start has a stop and a parent, and that nothing is lost.
    #[track_caller]
    pub(crate) fn expect_complete(&self) {
        for rank in self.ranks() {
            for (kind, event) in rank["events"].as_object().expect("events by kind") {
                assert_eq!(event["started"], event["stopped"], "{kind} {rank}");
                for none in ["open", "dropped", "stale", "unknown_parent"] {
                    assert_eq!(event[none], 0, "{kind} {none} {rank}");
                }
            }
        }
        assert_eq!(self.report["lost"]["total"], 0, "{}", self.report);
        assert_eq!(array(&self.report, "open_operations").len(), 0, "{}", self.report);
    }
}

/// The list of this name in an object.
#[track_caller]
pub(crate) fn array<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Number of events of a kind that a rank of the report started.
pub(crate) fn started(rank: &Value, kind: &str) -> u64 {
    rank["events"][kind]["started"].as_u64().unwrap_or(0)
}

/// The kinds of event that a rank of the report has.
pub(crate) fn kinds(rank: &Value) -> Vec<&str> {
    rank["events"].as_object().expect("events by kind").keys().map(String::as_str).collect()
}
