// SPDX-License-Identifier: Apache-2.0
//! The rig's scenario files on real NCCL, judged by the tool.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ncclscope_findings::FindingClass as Class;

use super::score::{Cause, Score};
use super::tool::json;
use super::vectors::Agent;
use crate::nccl::Release;
use crate::outcome::Outcome;
use crate::process;

/// Time limit of a job, s.
const LIMIT_S: &str = "120";
/// Limit of the ranks' own watchdogs, s.
const HANG_SEC: &str = "3";

/// The class and ranks that each scenario plants; a control has neither.
const TRUTH: &[(&str, Option<Class>, &[u64])] = &[
    // The rank continues to its end without the operation, and is gone when the others are judged.
    ("missing-rank", Some(Class::ProcessGone), &[1]),
    ("stuck-kernel", Some(Class::GpuNotProducing), &[1]),
    ("kernel-never-starts", Some(Class::KernelNotStarted), &[1]),
    ("stalled-link", Some(Class::NetworkStalled), &[1, 2]),
    ("dead-proxy", Some(Class::ProxyStalled), &[1]),
    ("counters-behind", None, &[]),
    ("skewed-clock", None, &[]),
    ("wrapped-clock", None, &[]),
    ("stopped-proxy", None, &[]),
    ("slow-link", Some(Class::SlowLink), &[1, 2]),
    ("slow-rank", Some(Class::SlowRank), &[1]),
    ("slow-kernels", Some(Class::GpuNotConsuming), &[0]),
];

/// Scenarios with something slow, whose few steps are not enough to call a rank slow.
const SLOW: [&str; 3] = ["slow-link", "slow-rank", "slow-kernels"];

/// Hangs that are also judged by what a live agent serves.
const LIVE: [&str; 4] = ["stuck-kernel", "kernel-never-starts", "stalled-link", "dead-proxy"];
/// How often the agent is asked, and how long before the end of the job for the last time: later
/// tables may have ranks that have ended.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LAST_LOOK: Duration = Duration::from_millis(1_000);
/// The age from which an operation counts as stuck then; the jobs hang for 5 s.
const LOOK_SEC: &str = "2";

/// The steps that replace those of these scenarios.
const MANY: &str = r#"steps = ["allreduce:4096", "repeat:40:allreduce:262144"]"#;

/// The topology that replaces a node, inside which nothing shows whose kernel is slow.
const NETWORK: &str = r#"topology = "socket""#;

/// One scenario's verdicts.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) scenario: &'static str,
    pub(super) planted: Vec<Cause>,
    pub(super) found: Vec<Cause>,
    pub(super) score: Score,
    /// The verdicts on what a live agent served while the job hung, if that was judged.
    pub(super) from_vectors: Option<Vec<Cause>>,
}

/// Runs all scenarios on a release; `folder` holds the programs.
pub(super) fn run(folder: &Path, release: &Release, scratch: &Path) -> Outcome<Vec<Row>> {
    TRUTH.iter().map(|&truth| one(folder, release, scratch, truth)).collect()
}

fn one(
    folder: &Path,
    release: &Release,
    scratch: &Path,
    (scenario, class, ranks): (&'static str, Option<Class>, &[u64]),
) -> Outcome<Row> {
    let run = super::case::Folder::new(scratch.join(scenario))?;
    let is_slow = SLOW.contains(&scenario);
    let (record, file) = (run.0.join("run"), run.0.join("scenario.toml"));
    let text = fs::read_to_string(format!("testing/rig/scenarios/{scenario}.toml"))?;
    fs::write(&file, if is_slow { prolonged(&text) } else { text })?;
    let tool = folder.join("ncclscope");
    let diagnose = |input: &Path, hang_sec: &str| {
        let mut diagnose = Command::new(&tool);
        diagnose.args(["diagnose", "--format", "json", "--hang-sec", hang_sec]).arg(input);
        Cause::list(&json(&mut diagnose)?["findings"])
    };
    let job =
        || self::record(folder, release, (&file, &record), &[("NCCLSCOPE_HANG_SEC", HANG_SEC)]);
    let from_vectors = match LIVE.contains(&scenario) {
        true => Some(diagnose(&watched(&tool, &record, job)?, LOOK_SEC)?),
        false => job().map(|()| None)?,
    };
    let mut found = diagnose(&record, HANG_SEC)?;
    if is_slow {
        let mut stragglers = Command::new(&tool);
        stragglers.args(["stragglers", "--format", "json"]).arg(&record);
        found.extend(Cause::list(&json(&mut stragglers)?["findings"])?);
    }
    let ranks = ranks.iter().copied().collect();
    let planted: Vec<Cause> = class.map(|class| Cause { class, ranks }).into_iter().collect();
    Ok(Row { scenario, score: Score::of(&planted, &found), planted, found, from_vectors })
}

/// Runs a job while an agent follows its recordings, and returns a file with the last table that
/// the agent served before the job began to end.
fn watched(tool: &Path, record: &Path, job: impl Fn() -> Outcome<()> + Sync) -> Outcome<PathBuf> {
    fs::create_dir_all(record)?;
    let agent = Agent::start(tool, record)?;
    let mut tables: Vec<(Instant, Vec<u8>)> = Vec::new();
    std::thread::scope(|scope| -> Outcome<()> {
        let running = scope.spawn(|| job().map_err(|error| error.to_string()));
        while !running.is_finished() {
            std::thread::sleep(LOOK_EVERY);
            tables.extend(agent.table()?.map(|table| (Instant::now(), table)));
        }
        Ok(running.join().map_err(|_| "the thread of the job ended")??)
    })?;
    let (_, table) = tables.iter().rfind(|(at, _)| at.elapsed() > LAST_LOOK).ok_or("no table")?;
    let file = record.with_extension("vectors");
    fs::write(&file, table)?;
    Ok(file)
}

/// Runs the job of a scenario file with these variables and records it in a directory; a file
/// beside it gets the output. `folder` contains the programs.
pub(super) fn record(
    folder: &Path,
    release: &Release,
    (scenario, record): (&Path, &Path),
    env: &[(&str, &str)],
) -> Outcome<()> {
    let log = record.with_extension("log");
    let output = File::create(&log)?;
    let mut command = process::command(&["timeout", "--kill-after=10", LIMIT_S]);
    command.arg(folder.join("ncclscope")).arg("run").arg("-o").arg(record).arg("--");
    command.arg(folder.join("job")).arg("--nccl").arg(release.library()?);
    command.arg("--scenario").arg(scenario).envs(env.iter().copied()).stdin(Stdio::null());
    let status = command.stdout(output.try_clone()?).stderr(output).status()?;
    if !status.success() {
        let words = fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("{}: the job: {status}\n{words}", scenario.display()).into());
    }
    Ok(())
}

/// A scenario with steps [`MANY`] on [`NETWORK`]; each of these keys is on one line of the file.
fn prolonged(text: &str) -> String {
    let line = |line| match line {
        r#"topology = "p2p-ipc""# => NETWORK,
        line if str::starts_with(line, "steps") => MANY,
        line => line,
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_is_there_and_can_be_prolonged() {
        for (scenario, ..) in TRUTH {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/rig/scenarios");
            let text = fs::read_to_string(path.join(scenario).with_extension("toml"));
            let text = text.expect("the file is there");
            if SLOW.contains(scenario) {
                assert_eq!(prolonged(&text).matches(MANY).count(), 1, "{scenario}");
                assert!(!prolonged(&text).contains("p2p"), "{scenario}");
            }
        }
    }
}
