// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask bench --instructions`: the callbacks' instructions, against the parent commit's.
//!
//! `testing/stepper` steps through the plugin of the working tree, as it ships, and through that of
//! another commit, built in its own worktree. It also checks the working tree's plugin against the
//! contract of the callbacks. See docs/rfcs/0002-instruction-gate.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::build::SHIPPED_PLUGIN;
use crate::outcome::Outcome;
use crate::process;

/// The shared object as it ships.
const PLUGIN: &str = "dist/libnccl_profiler_ncclscope.so";
/// A median may grow by this percentage or by this number of instructions, whichever is more.
const GROWTH: (u64, u64) = (2, 2);
/// What a clean tree is compared with.
const PARENT: &str = "HEAD^";
/// Names the callbacks that take more on purpose, and why. The page is part of the change, because
/// commits may be squashed.
const PAGE: &str = "testing/stepper/GROWTH.md";
/// The phase of the stepper that is compared.
const HOT: &str = "hot";

/// The hot medians: by API version and callback.
type Medians = BTreeMap<(String, String), u64>;

/// Compares the working tree with `against`: by default with the last commit if the tree differs
/// from it, else with its parent. Both are built in the folder `target`.
pub(super) fn run(target: &Path, against: Option<&str>) -> Outcome {
    build(Path::new("."), target, SHIPPED_PLUGIN)?;
    // With the features that the tests' build gives its dependencies, so that they are built once.
    build(Path::new("."), target, &["--workspace", "--bin", "stepper"])?;
    let stepper = target.join("debug/stepper");
    let (ours, holds) = match step(&stepper, &target.join(PLUGIN), &[])? {
        Stepped::Table { text, holds } => (medians(&text), holds),
        Stepped::Skipped(why) => {
            println!("{why}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let revision = against.map_or_else(parent, |revision| Ok(revision.to_owned()))?;
    if against.is_none() && is_same_plugin(&revision)? {
        print(&ours, &Medians::new(), &revision);
        println!("not compared: the plugin's sources are those of {revision}");
        return Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let other = other(target, &revision);
    let theirs = match other.and_then(|plugin| step(&stepper, &plugin, &["--hot"])) {
        Ok(Stepped::Table { text, .. }) => medians(&text),
        Ok(Stepped::Skipped(why)) => return Err(why.into()),
        Err(error) if against.is_none() => {
            let why = error.to_string();
            let why = why.lines().next().unwrap_or_default();
            println!("not compared with {revision}: {why}");
            Medians::new()
        }
        Err(error) => return Err(error),
    };
    let grown = print(&ours, &theirs, &revision);
    let may_grow = grown == 0 || is_announced(&revision)?;
    Ok(if holds && may_grow { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// True if the page of deliberate growth has lines that it did not have in that revision.
fn is_announced(revision: &str) -> Outcome<bool> {
    let show = ["git", "show", &format!("{revision}:{PAGE}")];
    // A revision without the page has no lines.
    let then = process::stdout(&mut process::command(&show)).unwrap_or_default();
    let now = std::fs::read_to_string(PAGE)?;
    let added = added(&then, &now);
    for line in &added {
        println!("{PAGE} says: {line}");
    }
    Ok(!added.is_empty())
}

/// The lines of `now` that are not in `then`, without empty ones.
fn added<'a>(then: &str, now: &'a str) -> Vec<&'a str> {
    let then: BTreeSet<&str> = then.lines().collect();
    now.lines().filter(|line| !line.is_empty() && !then.contains(line)).collect()
}

/// The result of the stepper.
enum Stepped {
    /// Its table, and whether the contract of the callbacks holds.
    Table { text: String, holds: bool },
    /// Why it could not run.
    Skipped(String),
}

fn step(stepper: &Path, plugin: &Path, options: &[&str]) -> Outcome<Stepped> {
    let mut command = Command::new(stepper);
    command.arg(plugin).args(options).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("{}: {error}", stepper.display()))?;
    let text = String::from_utf8(output.stdout)?;
    if text.starts_with("skipped: ") {
        return Ok(Stepped::Skipped(text.trim_end().to_owned()));
    }
    if medians(&text).is_empty() {
        return Err(format!("the stepper says nothing of {}", plugin.display()).into());
    }
    Ok(Stepped::Table { text, holds: output.status.success() })
}

/// Reads the table of the stepper: version, phase, callback, calls, median, and more.
fn medians(table: &str) -> Medians {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let &[version, HOT, callback, _, median, ..] = columns.as_slice() else { return None };
        Some(((version.to_owned(), callback.to_owned()), median.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

/// The revision to compare the working tree with.
fn parent() -> Outcome<String> {
    let status = ["git", "status", "--porcelain", "--untracked-files=no"];
    let is_clean = process::stdout(&mut process::command(&status))?.is_empty();
    Ok(if is_clean { PARENT } else { "HEAD" }.into())
}

/// True if that revision has the same sources of the plugin: its crate, the crates that it needs,
/// and the build settings. False if unknown.
fn is_same_plugin(revision: &str) -> Outcome<bool> {
    let tree = ["cargo", "tree", "--package", "ncclscope-plugin", "--edges", "normal,build"];
    let mut tree = process::command(&tree);
    let tree = process::stdout(tree.args(["--prefix", "none", "--format", "{p}"]))?;
    let mut diff = process::command(&["git", "diff", "--quiet", revision, "--"]);
    diff.args(["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo"]).args(folders(&tree));
    Ok(diff.stderr(Stdio::null()).status()?.success())
}

/// The folders of the packages of this repository in what `cargo tree` prints.
fn folders(tree: &str) -> BTreeSet<&str> {
    tree.lines().filter_map(folder).collect()
}

/// The folder of a package, from `NAME VERSION (FOLDER)`; `None` for one from a registry.
fn folder(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(" (")?;
    rest.split(')').next().filter(|folder| folder.starts_with('/'))
}

/// Builds the plugin of another commit, in a worktree and a target folder of its own.
fn other(target: &Path, revision: &str) -> Outcome<PathBuf> {
    let name = format!("{revision}^{{commit}}");
    let find = ["git", "rev-parse", "--quiet", "--verify", &name];
    let commit = process::stdout(&mut process::command(&find))
        .map_err(|_| "there is no such commit here (a shallow clone?)")?;
    let folder = target.join("bench/parent");
    let tree = folder.join("tree");
    remove(&tree)?;
    let mut add = process::command(&["git", "worktree", "add", "--quiet", "--detach"]);
    process::stdout(add.arg(&tree).arg(commit.trim()))?;
    let built = build(&tree, &folder, SHIPPED_PLUGIN);
    remove(&tree)?;
    built.map(|()| folder.join(PLUGIN)).map_err(|_| "it does not build".into())
}

/// Removes the worktree, also one that an earlier run left behind.
fn remove(tree: &Path) -> Outcome<()> {
    if tree.exists() {
        std::fs::remove_dir_all(tree)?;
    }
    process::stdout(&mut process::command(&["git", "worktree", "prune"]))?;
    Ok(())
}

fn build(tree: &Path, target: &Path, words: &[&str]) -> Outcome<()> {
    let mut cargo = process::command(&["cargo", "build"]);
    process::check(cargo.args(words).arg("--target-dir").arg(target).current_dir(tree))
}

/// Prints both medians of each callback. Returns how many have grown too much.
fn print(ours: &Medians, theirs: &Medians, revision: &str) -> usize {
    println!("{:<4} {:<22} {:>10} {:>6}", "api", "callback", revision, "now");
    let mut grown = 0;
    for ((version, callback), &now) in ours {
        let before = theirs.get(&(version.clone(), callback.clone())).copied();
        let mark = match before {
            Some(before) if has_grown(before, now) => "  GROWN",
            _ => "",
        };
        grown += usize::from(!mark.is_empty());
        let before = before.map_or_else(|| "-".into(), |before| before.to_string());
        println!("{version:<4} {callback:<22} {before:>10} {now:>6}{mark}");
    }
    grown
}

/// True if the median has grown by more than allowed.
fn has_grown(before: u64, now: u64) -> bool {
    let (percent, instructions) = GROWTH;
    now > before + instructions && 100 * now > (100 + percent) * before
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "api\tphase\tcallback\tcalls\tmedian\tmax\tlocked\tclocks\tstack\n\
                         v6\thot\tColl start\t6\t260\t270\t0\t1\t288\n\
                         v6\tfirst\tColl start\t6\t999\t999\t0\t1\t288\n\
                         v7\thot\tProxyStep state 9\t15\t89\t89\t0\t1\t24\n";

    #[test]
    fn hot_medians_are_read() {
        let key = |version: &str, callback: &str| (version.to_owned(), callback.to_owned());
        let expected = [(key("v6", "Coll start"), 260), (key("v7", "ProxyStep state 9"), 89)];
        assert_eq!(medians(TABLE), Medians::from(expected));
        assert_eq!(medians("skipped: ptrace is not allowed here\n"), Medians::new());
    }

    #[test]
    fn growth_is_more_than_two_percent_and_two_instructions() {
        for (before, now) in [(20, 22), (100, 102), (200, 204), (260, 200), (1000, 1020)] {
            assert!(!has_grown(before, now), "{before} to {now}");
        }
        for (before, now) in [(20, 23), (100, 103), (200, 205), (1000, 1021)] {
            assert!(has_grown(before, now), "{before} to {now}");
        }
    }

    #[test]
    fn the_plugins_sources_are_found() {
        let tree = "ncclscope-plugin v0.1.0 (/w/crates/plugin)\nlibc v0.2.191\n\
                    ncclscope-abi v0.1.0 (/w/crates/abi)\n\
                    ncclscope-abi v0.1.0 (/w/crates/abi) (*)\n";
        assert_eq!(folders(tree), BTreeSet::from(["/w/crates/abi", "/w/crates/plugin"]));
    }

    #[test]
    fn what_the_page_says_anew() {
        assert_eq!(added("# Page\n- old\n", "# Page\n\n- new\n- old\n"), ["- new"]);
        assert_eq!(added("- old\n- older\n", "- old\n"), [""; 0]);
    }

    #[test]
    fn what_has_grown_is_counted() {
        let mut theirs = medians(TABLE);
        assert_eq!(print(&medians(TABLE), &theirs, "HEAD^"), 0);
        theirs.values_mut().for_each(|median| *median -= 20);
        theirs.remove(&("v7".to_owned(), "ProxyStep state 9".to_owned()));
        assert_eq!(print(&medians(TABLE), &theirs, "HEAD^"), 1);
    }
}
