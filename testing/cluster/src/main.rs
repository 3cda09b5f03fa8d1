// SPDX-License-Identifier: Apache-2.0
//! Runs scenarios in a cluster in a box, and prints where the first five lines of each report lead.
//!
//! Exit codes: 0 all scenarios ran, and with `--strict` all led to the cause; 1 one did not; 2
//! usage; 4 a scenario could not be run.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

use clap::Parser;
use cluster::files::Files;
use cluster::job;
use cluster::judge::{Verdict, agreement, judge};
use cluster::scenario::{Kind, Scenario};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run scenarios on hosts made of namespaces, and judge what the reports say
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Options {
    /// Scenario files, or folders of them
    #[arg(value_name = "FILE|DIR", required = true)]
    scenarios: Vec<PathBuf>,
    /// Logs, copies of recordings, and what the tools print, a folder for each scenario; replaced
    #[arg(short, long, value_name = "DIR", default_value = "target/cluster")]
    output: PathBuf,
    /// Print the first lines of each report
    #[arg(long)]
    lines: bool,
    /// Fail unless the first lines of each report lead to the cause
    #[arg(long)]
    strict: bool,
    /// Also ask `diagnose`, `top` and `dump --why`, and say whether they name what the report does
    #[arg(long)]
    tools: bool,
    /// How often each scenario runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    times: usize,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cluster: {error}");
            ExitCode::from(4)
        }
    }
}

fn run(options: &Options) -> Result<ExitCode, String> {
    let scenarios = read(&options.scenarios)?;
    let files = Files::find()?;
    let (mut failed, mut verdicts) = (0, Vec::new());
    println!("| scenario | live | killed | class | agree | why not |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for scenario in &scenarios {
        for _ in 0..options.times {
            match one(scenario, &files, options) {
                Ok(verdict) => verdicts.push((scenario.kind, verdict)),
                Err(error) => {
                    failed += 1;
                    println!("| {} | did not run | | | | {error} |", scenario.name);
                }
            }
        }
    }
    println!();
    let kinds = [Kind::Hang, Kind::Crash, Kind::Wrong, Kind::Slow, Kind::Healthy];
    for kind in kinds {
        let count = |verdict: Verdict| {
            verdicts.iter().filter(|(of, it)| *of == kind && *it == verdict).count()
        };
        let [yes, half, wrong] = [Verdict::Yes, Verdict::Half, Verdict::Misleading].map(count);
        if yes + half + wrong != 0 {
            println!("{kind:?}: {yes} yes, {half} half, {wrong} misleading");
        }
    }
    let right = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Yes).count();
    println!("{right} passed, {} failed", verdicts.len() - right + failed);
    if failed != 0 {
        return Ok(ExitCode::from(4));
    }
    let is_well = !options.strict || right == verdicts.len();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a scenario, and prints its row. The job while it stands counts.
fn one(scenario: &Scenario, files: &Files, options: &Options) -> Result<Verdict, String> {
    let output = options.output.join(&scenario.name);
    // Of a run before this one.
    drop(fs::remove_dir_all(&output));
    fs::create_dir_all(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let looks = job::run(scenario, files, &output, options.tools)?;
    let (live, why) = judge(&scenario.truth, &looks.live);
    let (after, why_after) = judge(&scenario.truth, &looks.after);
    let class = looks.live.answer["classes"][0].as_str().unwrap_or("-").to_owned();
    let why = match (why.as_str(), why_after.as_str()) {
        (live, after) if live == after => live.to_owned(),
        (live, after) => format!("live: {live}; killed: {after}"),
    };
    let agree = agreement(&looks.live, &looks.named);
    println!("| {} | {live} | {after} | {class} | {agree} | {why} |", scenario.name);
    let mut text = String::new();
    for (name, look) in [("live", &looks.live), ("killed", &looks.after)] {
        for line in &look.lines {
            text += &format!("{name}: {line}\n");
        }
    }
    if options.lines {
        print!("{text}");
    }
    let path = output.join("lines.txt");
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(live)
}

fn read(paths: &[PathBuf]) -> Result<Vec<Scenario>, String> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let entries = fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            let is_scenario = |path: &PathBuf| path.extension().is_some_and(|it| it == "toml");
            let mut found: Vec<PathBuf> = paths.filter(is_scenario).collect();
            found.sort();
            files.extend(found);
        } else {
            files.push(Path::to_owned(path));
        }
    }
    files.iter().map(|file| Scenario::read(file)).collect()
}
