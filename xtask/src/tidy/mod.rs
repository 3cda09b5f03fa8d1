// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask tidy`: the rules of CONTRIBUTING.md that neither rustc nor clippy checks.
//!
//! Each group of rules is a module with a pure check on text, so that its unit tests can plant
//! violations. This module collects the files that git tracks or would track, and prints the
//! violations as `path:line: message`.

mod circles;
mod deps;
mod large;
mod links;
mod literals;
mod mask;
mod prose;
mod rules;
mod size;
mod source;
mod tokens;
mod violation;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use crate::outcome::Outcome;
use crate::process;
use violation::Violation;

/// Prints every violation in the tree; exit status 1 if there is one.
pub(crate) fn run() -> Outcome {
    let paths = tree()?;
    let mut found = BTreeSet::new();
    for path in &paths {
        found.extend(check_file(path, &paths)?);
    }
    found.extend(circles::check(&paths)?);
    found.extend(deps::check()?);
    found.extend(large::gone(&paths));
    found.extend(prose::check(&paths)?);
    for violation in &found {
        println!("{violation}");
    }
    println!("tidy: {} files, {} violations", paths.len(), found.len());
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The repository's files, tracked or not ignored, as paths from its root.
fn tree() -> Outcome<BTreeSet<String>> {
    let list = process::stdout(&mut process::command(&[
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let paths = list.split_terminator('\0').filter(|path| Path::new(path).is_file());
    Ok(paths.map(String::from).collect())
}

fn check_file(path: &str, paths: &BTreeSet<String>) -> Outcome<Vec<Violation>> {
    let read = || std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut found = Vec::new();
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "rs" => {
            let source = source::Source::new(path, read()?);
            found.extend(rules::licence(path, &source.text));
            found.extend(rules::check(&source));
            found.extend(size::check(&source));
            found.extend(large::check(&source));
            found.extend(literals::check(&source));
        }
        "md" => found.extend(links::check(path, &read()?, paths)),
        "sh" | "py" => found.extend(rules::licence(path, &read()?)),
        _ if name == "Cargo.toml" || path == ".ci/run" => {
            found.extend(rules::licence(path, &read()?));
        }
        _ => {}
    }
    Ok(found)
}
