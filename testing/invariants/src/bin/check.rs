// SPDX-License-Identifier: Apache-2.0
//! Checks recordings against the invariants.
//!
//! `check [--json] [--lost-ok] [--killed-ok] [--aborted-ok] [--ptimer-ok] [--ranks N]
//! [--nodes N] DIR|FILE…`
//! prints one line for each violation, `FILE: RULE: WHAT`. Exit codes: 0 all hold, 1 some do not,
//! 2 usage, 3 a recording cannot be read or a directory holds none.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

use invariants::{Expect, Verdict, check};
use ncclscope_trace::Recording;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Default)]
struct Options {
    expect: Expect,
    json: bool,
    paths: Vec<PathBuf>,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    let expect = &mut options.expect;
    while let Some(arg) = args.next() {
        let number = |value: Option<String>| {
            let value = value.ok_or_else(|| format!("{arg} needs a value"))?;
            value.parse().map(Some).map_err(|_| format!("{arg} {value}: expected a number"))
        };
        match arg.as_str() {
            "--json" => options.json = true,
            "--lost-ok" => expect.lost_ok = true,
            "--killed-ok" => expect.killed_ok = true,
            "--aborted-ok" => expect.aborted_ok = true,
            "--ptimer-ok" => expect.ptimer_ok = true,
            "--ranks" => expect.ranks = number(args.next())?,
            "--nodes" => expect.nodes = number(args.next())?,
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}")),
            _ => options.paths.push(arg.into()),
        }
    }
    if options.paths.is_empty() {
        return Err("no recording is given".into());
    }
    Ok(options)
}

/// The recordings that a path names: itself, or what a directory holds.
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
            verdicts.push(check(&recording, &options.expect));
        }
    }
    Ok(verdicts)
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("check: {error}");
            return ExitCode::from(2);
        }
    };
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
