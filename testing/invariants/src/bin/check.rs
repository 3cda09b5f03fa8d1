// SPDX-License-Identifier: Apache-2.0
//! Checks recordings against the invariants: one line for each violation, `FILE: RULE: WHAT`.
//! Exit codes: 0 all hold, 1 some do not, 2 usage, 3 a recording cannot be read or a directory has
//! none.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

use clap::Parser;
use invariants::{Expect, Verdict, check};
use ncclscope_trace::Recording;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check recordings against the invariants
#[derive(Debug, Parser)]
struct Options {
    /// Print verdicts as JSON
    #[arg(long)]
    json: bool,
    /// Lost records are no violation
    #[arg(long)]
    lost_ok: bool,
    /// The process was killed, or still runs
    #[arg(long)]
    killed_ok: bool,
    /// Operations were aborted
    #[arg(long)]
    aborted_ok: bool,
    /// A GPU's clock that goes back is no violation
    #[arg(long)]
    ptimer_ok: bool,
    /// Ranks of each communicator
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// Nodes of each communicator
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Recordings, or directories of them
    #[arg(value_name = "DIR|FILE", required = true)]
    paths: Vec<PathBuf>,
}

impl Options {
    fn expect(&self) -> Expect {
        let &Self { lost_ok, killed_ok, aborted_ok, ptimer_ok, ranks, nodes, .. } = self;
        Expect { lost_ok, killed_ok, aborted_ok, ptimer_ok, ranks, nodes }
    }
}

/// The recordings at a path: the file itself, or those in a directory.
fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(|e| format!("{}: {e}", path.display()))?.path();
        if file.file_name().is_some_and(|name| name.to_string_lossy().contains(".nscope")) {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no recordings", path.display()));
    }
    Ok(files)
}

fn verdicts(options: &Options) -> Result<Vec<Verdict>, String> {
    let mut verdicts = Vec::new();
    for path in &options.paths {
        for file in files(path)? {
            let recording =
                Recording::open(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            verdicts.push(check(&recording, &options.expect()));
        }
    }
    Ok(verdicts)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let verdicts = match verdicts(&options) {
        Ok(verdicts) => verdicts,
        Err(error) => {
            eprintln!("check: {error}");
            return ExitCode::from(3);
        }
    };
    if options.json {
        println!("{}", serde_json::json!({"schema": "ncclscope.check/1", "files": verdicts}));
    } else {
        for verdict in &verdicts {
            for violation in &verdict.violations {
                println!("{}: {violation}", verdict.file);
            }
        }
    }
    let holds = verdicts.iter().all(|verdict| verdict.violations.is_empty());
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
