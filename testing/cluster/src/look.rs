// SPDX-License-Identifier: Apache-2.0
//! What a user sees: the report of the copies that were collected from all hosts while the job
//! stands, and that of the recordings after it was killed.

use crate::command::output;
use crate::files::Files;
use crate::host::{COPIES, Cluster, Host, RECORDINGS};
use crate::scenario::Scenario;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// What a report answers.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Its first lines, at most five; without recordings the tool's error.
    pub lines: Vec<String>,
    /// The member `answer` of its JSON; null if there is none.
    pub answer: Value,
}

/// Both looks at a job.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// While it stands.
    pub live: Look,
    /// After it was killed.
    pub after: Look,
    /// What the other tools named while it stood; empty if they were not asked.
    pub named: Vec<Named>,
}

/// The flags with which `top` marks a rank that is at fault, as far as it knows.
const FLAGS: [&str; 6] = ["hung", "stalled", "killed", "stopped", "silent", "slow"];

/// What a tool names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The tool.
    pub tool: &'static str,
    /// The name of the class that it names first; of `dump --why` that of each rank that names one.
    pub classes: BTreeSet<String>,
    /// The ranks at fault; `None` of `dump --why`, which knows only its own rank.
    pub ranks: Option<BTreeSet<u64>>,
}

impl Named {
    /// What the JSON of `diagnose` names.
    fn by_diagnose(said: &Value) -> Named {
        let findings = || said["findings"].as_array().into_iter().flatten();
        let class = findings().next().and_then(|first| first["name"].as_str());
        let ranks = findings().filter_map(|finding| finding["root_ranks"].as_array()).flatten();
        Named {
            tool: "diagnose",
            classes: class.into_iter().map(str::to_owned).collect(),
            ranks: Some(ranks.filter_map(Value::as_u64).collect()),
        }
    }

    /// What the JSON of `top` names: `who: what (class, age)`, and the ranks that it marks.
    fn by_top(said: &Value) -> Named {
        let first = said["findings"][0].as_str();
        let class = first.and_then(|text| text.rsplit_once(" (")?.1.split([',', ')']).next());
        let is_marked = |row: &&Value| {
            let mut flags = row["flags"].as_array().into_iter().flatten();
            flags.any(|flag| FLAGS.iter().any(|one| flag == one))
        };
        let marked = said["ranks"].as_array().into_iter().flatten().filter(is_marked);
        Named {
            tool: "top",
            classes: class.into_iter().map(str::to_owned).collect(),
            ranks: Some(marked.filter_map(|row| row["rank"].as_u64()).collect()),
        }
    }
}

/// Looks at the job while it stands, `with_tools` also with `diagnose`, `top` and `dump --why`,
/// and returns what these name; what they say is written into `folder`.
///
/// # Errors
/// A tool cannot be started, or a file cannot be written.
pub fn live(
    scenario: &Scenario,
    files: &Files,
    cluster: &Cluster,
    folder: &Path,
    with_tools: bool,
) -> Result<(Look, Vec<Named>), String> {
    let limit = scenario.limit_s.to_string();
    let mut others = String::new();
    for host in cluster.hosts() {
        let mut dump = host.command(&files.tool);
        others += &said(dump.args(["dump", "--all", "--yes", "-o", COPIES]), host)?;
        // Of a process that does not answer, the recording itself; a copy is newer.
        collect(&host.outside(RECORDINGS), &folder.join("live"))?;
        collect(&host.outside(COPIES), &folder.join("live"))?;
    }
    let command = || match scenario.look_from {
        Some(number) => Ok((cluster.host(number)?.command(&files.tool), RECORDINGS.into())),
        None => Ok::<_, String>((Command::new(&files.tool), folder.join("live"))),
    };
    let look = report(&command, &limit)?;
    let mut named = Vec::new();
    if with_tools {
        let (mut diagnose, run) = command()?;
        let said = ask(diagnose.arg("diagnose"), &run, &limit, &mut others)?;
        named.push(Named::by_diagnose(&said));
        // As from a file system that all hosts share.
        let shared = tempfile::tempdir().map_err(|error| error.to_string())?;
        for host in cluster.hosts() {
            link(&host.outside(RECORDINGS), shared.path())?;
        }
        let mut top = Command::new(&files.tool);
        let said = ask(top.args(["top", "--once"]), shared.path(), &limit, &mut others)?;
        named.push(Named::by_top(&said));
        named.push(why(files, cluster, &mut others)?);
    }
    let path = folder.join("tools.txt");
    fs::write(&path, others).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((look, named))
}

/// The JSON that a tool prints of a run. It goes into `told`, with what the tool complains of.
fn ask(command: &mut Command, run: &Path, limit: &str, told: &mut String) -> Result<Value, String> {
    let done = output(command.args(["--format", "json", "--hang-sec", limit]).arg(run))?;
    let [out, error] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    *told += &format!("--- {}\n{out}{error}", words.join(" "));
    Ok(serde_json::from_slice(&done.stdout).unwrap_or_default())
}

/// What the watchdogs of all ranks name.
fn why(files: &Files, cluster: &Cluster, told: &mut String) -> Result<Named, String> {
    let mut named = Named { tool: "why", ..Named::default() };
    for host in cluster.hosts() {
        let mut command = host.command(&files.tool);
        command.args(["dump", "--all", "--yes", "--why", "--format", "json"]);
        let done = output(&mut command)?;
        *told += &format!("--- {}: why\n{}", host.name, String::from_utf8_lossy(&done.stdout));
        let said: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        let processes = said["processes"].as_array().into_iter().flatten();
        let hangs = processes.filter_map(|process| process["in_flight"].as_array()).flatten();
        let classes = hangs.filter_map(|hang| hang["name"].as_str());
        named.classes.extend(classes.map(str::to_owned));
    }
    Ok(named)
}

/// Links to the files of a folder of a host.
fn link(from: &Path, to: &Path) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", from.display());
    for entry in fs::read_dir(from).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        symlink(entry.path(), to.join(entry.file_name())).map_err(fail)?;
    }
    Ok(())
}

/// Looks at what a killed job left.
///
/// # Errors
/// As [`live`].
pub fn after(
    scenario: &Scenario,
    files: &Files,
    cluster: &Cluster,
    folder: &Path,
) -> Result<Look, String> {
    let folder = folder.join("after");
    for host in cluster.hosts() {
        collect(&host.outside(RECORDINGS), &folder)?;
    }
    let command = || Ok((Command::new(&files.tool), folder.clone()));
    report(&command, &scenario.limit_s.to_string())
}

/// The report that the tool makes of a run.
fn report(
    command: &dyn Fn() -> Result<(Command, std::path::PathBuf), String>,
    limit: &str,
) -> Result<Look, String> {
    let ask = |format: &str| {
        let (mut tool, run) = command()?;
        let words = ["report", "--hang-sec", limit, "--format", format];
        output(tool.args(words).arg(run))
    };
    let (text, json) = (ask("text")?, ask("json")?);
    let said = if text.status.success() { text.stdout } else { text.stderr };
    // The name of a scenario may be a word that the truth asks for.
    let run = command()?.1.display().to_string();
    let said = String::from_utf8_lossy(&said).replace(&run, "RUN");
    let first = said.lines().take_while(|line| !line.is_empty()).take(5);
    let parsed: Value = serde_json::from_slice(&json.stdout).unwrap_or_default();
    Ok(Look { lines: first.map(str::to_owned).collect(), answer: parsed["answer"].clone() })
}

/// What a command prints, under the name of the host.
fn said(command: &mut Command, host: &Host) -> Result<String, String> {
    let output = output(command)?;
    let words: Vec<_> = command.get_args().skip(8).map(|word| word.to_string_lossy()).collect();
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    Ok(format!("--- {}: {}\n{out}{err}", host.name, words.join(" ")))
}

/// Copies the files of a folder of a host, which need not exist.
fn collect(from: &Path, to: &Path) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(fail)?;
    for entry in fs::read_dir(from).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.file_type().map_err(fail)?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).map_err(fail)?;
        }
    }
    Ok(())
}
