// SPDX-License-Identifier: Apache-2.0
//! What a user sees: the report of the copies that were collected from all hosts while the job
//! stands, and that of the recordings after it was killed.

use crate::command::output;
use crate::files::Files;
use crate::host::{COPIES, Cluster, Host, RECORDINGS};
use crate::scenario::Scenario;
use serde_json::Value;
use std::fs;
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
}

/// Looks at the job while it stands, `with_tools` also with `diagnose`, `top` and `dump --why`;
/// what they say is written into `folder`.
///
/// # Errors
/// A tool cannot be started, or a file cannot be written.
pub fn live(
    scenario: &Scenario,
    files: &Files,
    cluster: &Cluster,
    folder: &Path,
    with_tools: bool,
) -> Result<Look, String> {
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
    if with_tools {
        let (mut diagnose, run) = command()?;
        let told = output(diagnose.args(["diagnose", "--hang-sec", &limit]).arg(run))?;
        others += &format!("--- diagnose\n{}", String::from_utf8_lossy(&told.stdout));
        for host in cluster.hosts() {
            let mut why = host.command(&files.tool);
            others += &said(why.args(["dump", "--all", "--yes", "--why"]), host)?;
            let mut top = host.command(&files.tool);
            others += &said(top.args(["top", "--once", "--hang-sec", &limit, RECORDINGS]), host)?;
        }
    }
    let path = folder.join("tools.txt");
    fs::write(&path, others).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(look)
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
