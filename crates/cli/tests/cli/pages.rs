// SPDX-License-Identifier: Apache-2.0
//! Tests the console blocks of README.md and docs/: each block is run, in page order and in one
//! directory per page, or its comment says why not.
//!
//! Comments in front of a block say what to do with it: `<!-- run -->`, or `<!-- not run: REASON
//! -->`, and above that `<!-- first: COMMAND -->` for a preparation that a reader already made. In
//! a block that runs, a command is a line `$ COMMAND`, and the lines below are its output: `[..]`
//! stands for any text, a line `...` for any lines, and `? 1` is the exit code. A command without
//! lines below must succeed, and its output is not compared.

use crate::common::{Outcome, ncclscope, tool};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the page's comment requests for a block.
#[derive(Debug, PartialEq)]
enum Mark {
    Run,
    NotRun,
    Missing,
}

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    /// The line of its fence, from 1.
    line: usize,
    language: String,
    mark: Mark,
    /// Commands to run before the block.
    first: Vec<String>,
    lines: Vec<String>,
}

/// A command of a block, and its expected output.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    output: Vec<String>,
    code: i32,
}

impl Block {
    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for line in &self.lines {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.into(), output: Vec::new(), code: 0 });
            } else if let Some(step) = steps.last_mut() {
                match line.strip_prefix("? ").map(str::parse) {
                    Some(Ok(code)) => step.code = code,
                    _ => step.output.push(line.clone()),
                }
            }
        }
        for step in &mut steps {
            while step.output.last().is_some_and(String::is_empty) {
                step.output.pop();
            }
        }
        steps
    }

    /// What is wrong with the block itself, checked before anything runs.
    fn fault(&self) -> Option<&'static str> {
        let has = |start: &str| self.lines.iter().any(|line| line.starts_with(start));
        match (self.language.as_str(), &self.mark) {
            ("console", Mark::Missing) => Some("say `<!-- run -->` or `<!-- not run: REASON -->`"),
            ("console", _) if !has("$ ") => Some("has no command: a line that begins with `$ `"),
            ("console", _) => None,
            (_, Mark::Run | Mark::NotRun) => Some("is marked, and is no console block"),
            ("" | "sh" | "text", _) if has("$ ") || has("ncclscope ") => {
                Some("has commands: make it a console block")
            }
            _ => None,
        }
    }
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    let mut comments: Vec<&str> = Vec::new();
    for (index, line) in page.lines().enumerate() {
        let text = line.trim_start();
        if let Some((mut block, indent)) = open.take() {
            if text.starts_with("```") {
                blocks.push(block);
            } else {
                block.lines.push(line.get(indent..).unwrap_or(text).into());
                open = Some((block, indent));
            }
        } else if let Some(language) = text.strip_prefix("```") {
            let comments = std::mem::take(&mut comments);
            let first = comments.iter().filter_map(|comment| comment.strip_prefix("first: "));
            let mark = match comments.last() {
                Some(&"run") => Mark::Run,
                Some(comment) if comment.starts_with("not run: ") => Mark::NotRun,
                _ => Mark::Missing,
            };
            let block = Block {
                line: index + 1,
                language: language.trim().into(),
                mark,
                first: first.map(String::from).collect(),
                lines: Vec::new(),
            };
            open = Some((block, line.len() - text.len()));
        } else if let Some(comment) = text.strip_prefix("<!-- ") {
            comments.push(comment.trim_end().trim_end_matches("-->").trim_end());
        } else if !text.is_empty() {
            comments.clear();
        }
    }
    blocks
}

/// True if `actual` matches `expected`.
fn is_match(expected: &[String], actual: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return actual.is_empty() };
    if first.trim() == "..." {
        return (0..=actual.len()).any(|skipped| is_match(rest, &actual[skipped..]));
    }
    let Some((line, others)) = actual.split_first() else { return false };
    is_line_match(first, line) && is_match(rest, others)
}

fn is_line_match(expected: &str, actual: &str) -> bool {
    let (expected, actual) = (expected.trim_end(), actual.trim_end());
    let Some((head, last)) = expected.rsplit_once("[..]") else { return expected == actual };
    let mut parts = head.split("[..]");
    let Some(mut rest) = actual.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// The pages with the blocks of each, by path from the repository root.
fn pages() -> BTreeMap<PathBuf, Vec<Block>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                paths.push(path);
            }
        }
    }
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_owned();
        (name, blocks(&fs::read_to_string(path).unwrap()))
    };
    paths.iter().map(read).collect()
}

/// Runs a command line in a shell as a reader does: `ncclscope` is on the PATH, and both streams go
/// to one terminal.
fn shell(command: &str, directory: &Path) -> Outcome {
    let ours = tool();
    let program = Path::new(ours.get_program());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(program.parent().unwrap().to_owned());
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{{ {command}\n}} 2>&1")]).current_dir(directory).env("PATH", path);
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    Outcome::of(shell.env_remove("COLUMNS"))
}

/// Runs the blocks of a page. Returns the commands whose output differs.
fn run(path: &Path, blocks: &[Block]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    for block in blocks.iter().filter(|block| block.mark == Mark::Run) {
        for command in &block.first {
            shell(command, directory.path()).ends_with(0);
        }
        for Step { command, output, code } in block.steps() {
            let outcome = shell(&command, directory.path());
            let actual: Vec<&str> = outcome.stdout.trim_end().lines().collect();
            let is_same = output.is_empty() || is_match(&output, &actual);
            if !is_same || outcome.code != Some(code) {
                let (place, line) = (path.display(), block.line);
                let [expected, actual] = [output.join("\n"), actual.join("\n")];
                let ended = outcome.code;
                faults.push(format!(
                    "{place}:{line}: $ {command}\n-- the page, exit code {code}:\n{expected}\n-- \
                     the tool, exit code {ended:?}:\n{actual}\n"
                ));
            }
        }
    }
    faults
}

#[test]
fn every_console_block_runs_or_says_why_not() {
    let pages = pages();
    let mut faults = Vec::new();
    for (path, blocks) in &pages {
        for block in blocks {
            if let Some(fault) = block.fault() {
                faults.push(format!("{}:{}: {fault}", path.display(), block.line));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let count = |mark| pages.values().flatten().filter(|block| block.mark == mark).count();
    let (run, not) = (count(Mark::Run), count(Mark::NotRun));
    assert!(run >= 15, "{run} blocks run, {not} do not");
}

#[test]
fn blocks_print_what_the_pages_show() {
    crate::agent::build();
    let pages = pages();
    let faults: Vec<String> = std::thread::scope(|scope| {
        let running = pages.iter().map(|(path, blocks)| scope.spawn(move || run(path, blocks)));
        let running: Vec<_> = running.collect();
        running.into_iter().flat_map(|page| page.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The verb of each `ncclscope` in a command line, with its long options.
fn used(command: &str) -> Vec<(String, Vec<String>)> {
    let words = command.replace(['"', '(', ')', ';'], " ");
    let words: Vec<&str> = words.split_whitespace().take_while(|w| !w.starts_with('#')).collect();
    let mut found = Vec::new();
    let is_tool = |word: &str| matches!(word, "ncclscope" | "target/release/ncclscope");
    for (index, _) in words.iter().enumerate().filter(|(_, word)| is_tool(word)) {
        let Some(verb) = words.get(index + 1) else { continue };
        let own = words[index + 2..].iter().take_while(|word| !matches!(**word, "--" | "|" | "&&"));
        let options = own.filter(|word| word.starts_with("--"));
        let options = options.map(|word| word.split('=').next().unwrap_or(word).into());
        found.push(((*verb).into(), options.collect()));
    }
    found
}

#[test]
fn blocks_that_do_not_run_use_verbs_and_options_that_exist() {
    let pages = pages();
    let blocks = pages.iter().flat_map(|(path, blocks)| blocks.iter().map(move |b| (path, b)));
    let mut count = 0;
    for (path, block) in blocks.filter(|(_, block)| block.mark == Mark::NotRun) {
        for (verb, options) in block.steps().iter().flat_map(|step| used(&step.command)) {
            let help = ncclscope(&[&verb, "--help"]);
            let place = format!("{}:{}: ncclscope {verb}", path.display(), block.line);
            assert_eq!(help.code, Some(0), "{place}: {help:#?}");
            for option in options {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let is_known = help.stdout.split(|c| !is_name(c)).any(|word| word == option);
                assert!(is_known, "{place} has no {option}");
                count += 1;
            }
        }
    }
    assert!(count > 0);
}

#[test]
fn patterns_stand_for_what_varies() {
    let is = |expected: &str, actual: &str| {
        let expected: Vec<String> = expected.lines().map(String::from).collect();
        is_match(&expected, &actual.lines().collect::<Vec<_>>())
    };
    for (expected, actual) in [
        ("a\nb", "a\nb"),
        ("a [..] c", "a b c"),
        ("[..]b[..]d", "abcd"),
        ("...", ""),
        ("a\n...\nd", "a\nb\nc\nd"),
        ("a\n...", "a"),
    ] {
        assert!(is(expected, actual), "{expected} {actual}");
    }
    for (expected, actual) in
        [("a", "a\nb"), ("a\nb", "a"), ("a [..] c", "a b d"), ("a\n...\nd", "a\nb"), ("a", "ab")]
    {
        assert!(!is(expected, actual), "{expected} {actual}");
    }
}

#[test]
fn blocks_are_found_with_their_marks() {
    let page = "<!-- first: a -->\n<!-- run -->\n```console\n$ b\nc\n? 1\n```\n\
                <!-- not run: d -->\ntext\n  ```console\n  $ e\n  ```\n```sh\nncclscope x\n```\n";
    let found = blocks(page);
    let [run, unmarked, other] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((&run.mark, run.line, run.first.as_slice()), (&Mark::Run, 3, &["a".into()][..]));
    let step = Step { command: "b".into(), output: vec!["c".into()], code: 1 };
    assert_eq!(run.steps(), [step]);
    assert_eq!((&unmarked.mark, unmarked.lines.as_slice()), (&Mark::Missing, &["$ e".into()][..]));
    assert!(run.fault().is_none() && unmarked.fault().is_some() && other.fault().is_some());
    let verbs = used("srun ncclscope run -o d -- x --y && eval \"$(ncclscope env --shell=bash)\"");
    assert_eq!(verbs, [("run".into(), vec![]), ("env".into(), vec!["--shell".into()])]);
}
