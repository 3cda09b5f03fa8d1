// SPDX-License-Identifier: Apache-2.0
//! Colours, terminal width, pager, progress, and `-v`.

use crate::common::{Outcome, Run, tool};
use crate::pty::{self, Streams, Terminal};
use scripts::Call;
use std::process::{Command, Stdio};

fn run() -> Run {
    Run::new(|process| process.collective(Call::ALL_REDUCE))
}

fn with(args: &[&str]) -> Command {
    let mut command = tool();
    // Not the user's pager.
    command.args(args).env("PAGER", "cat");
    command
}

/// The tool as the user's shell starts it: in the foreground of a terminal (util-linux's setsid).
fn at_a_terminal() -> Command {
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_ncclscope")]);
    for (name, value) in tool().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

const ESCAPE: char = '\x1b';

#[test]
fn colours_are_for_terminals_unless_the_user_says_otherwise() {
    let run = run();
    let piped = |args: &[&str]| Outcome::of(&mut with(args)).ends_with(0).stdout;
    assert!(!piped(&["report", run.text()]).contains(ESCAPE));
    assert!(piped(&["report", "--color", "always", run.text()]).contains("\x1b[1mRUN\x1b[0m"));
    let shown = |command: &mut Command| pty::run(command, 100).0;
    assert!(shown(&mut with(&["report", run.text()])).contains(ESCAPE));
    assert!(!shown(&mut with(&["--color", "never", "report", run.text()])).contains(ESCAPE));
    assert!(!shown(with(&["report", run.text()]).env("NO_COLOR", "1")).contains(ESCAPE));
    let stragglers = shown(&mut with(&["stragglers", run.text()]));
    assert!(stragglers.contains("\x1b[1mSLOW\x1b[0m"), "{stragglers}");
    Outcome::of(&mut with(&["report", "--color", "sometimes"])).ends_with(2);
}

#[test]
fn a_report_fits_the_terminal() {
    let run = run();
    let text = pty::run(&mut with(&["report", "--color", "never", run.text()]), 80).0;
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
}

/// Long lines of evidence are wrapped between words on a terminal, but not in a pipe.
#[test]
fn findings_fit_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    for (fault, verb, label) in
        [("nic-down", "diagnose", "\n               "), ("slow-link", "stragglers", "\n        ")]
    {
        let out = dir.path().join(fault);
        let out = out.to_str().unwrap();
        let job = ["--ranks", "16", "--steps", "12", "--fault", fault];
        Outcome::of(with(&["simulate", "-o", out]).args(job)).ends_with(0);
        for words in [&["report"][..], &["report", "--full"], &[verb]] {
            let args = [words, &["--no-pager", "--color", "never", out]].concat();
            let text = pty::run(&mut with(&args), 80).0;
            let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{words:?}: {long:#?}");
        }
        let text = pty::run(&mut with(&[verb, "--color", "never", out]), 80).0;
        assert!(text.contains(label), "{text}");
        let piped = Outcome::of(&mut with(&[verb, out])).ends_with(1).stdout;
        assert!(piped.lines().any(|line| line.chars().count() > 80), "{piped}");
    }
}

/// Wide tables leave out columns and say which; `--wide` and a pipe have all of them.
#[test]
fn wide_tables_fit_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let job = ["--ranks", "16", "--steps", "12", "--fault", "slow-link", "--seed", "1"];
    Outcome::of(with(&["simulate", "-o", out]).args(job)).ends_with(0);
    let quiet = Streams { stdout: true, stderr: false };
    let shown =
        |args: &[&str], columns| Terminal::start(&mut with(args), columns, quiet).read_to_end().0;
    let full = ["report", "--color", "never", "--full", out];
    let by = ["report", "--color", "never", "--by", "role,comm,rank,func,size", out];
    let compare = ["compare", "--color", "never", "--full", out, out];
    let short = ["report", "--color", "never", out];
    let all: [(&[&str], u16); _] =
        [(&full, 80), (&full, 100), (&full, 130), (&by, 80), (&compare, 80), (&short, 64)];
    for (args, width) in all {
        let text = shown(args, width);
        let is_long = |line: &&str| line.chars().count() > usize::from(width);
        let long: Vec<&str> = text.lines().filter(is_long).collect();
        assert!(long.is_empty(), "{args:?} at {width}: {long:#?}");
        let says_so = text.contains("columns left out to fit the terminal (--wide): ");
        assert!(says_so, "{args:?} at {width}: {text}");
    }
    let piped = Outcome::of(&mut with(&full)).ends_with(0).stdout;
    let wide = shown(&[&full[..], &["--wide"]].concat(), 80);
    assert!(piped.contains("  algbw GB/s  busbw GB/s  last") && !piped.contains("left out"));
    let operations = |text: &str| {
        let lines = text.lines().skip_while(|line| *line != "OPERATIONS").map(str::to_owned);
        lines.take_while(|line| *line != "THREADS AND CLOCKS").collect::<Vec<_>>()
    };
    let rows = |text: &str| -> Vec<String> {
        let tables = operations(text).into_iter();
        tables.filter(|line| line.contains("RING") || line.contains(" Send ")).collect()
    };
    assert!(rows(&piped).len() > 10);
    assert_eq!(rows(&wide), rows(&piped));
}

#[test]
fn long_text_goes_to_the_pager_of_the_user() {
    let run = run();
    let report = |args: &[&str], pager: &str| {
        let mut command = at_a_terminal();
        command.args(["report", run.text()]).args(args).env("PAGER", pager);
        pty::run(&mut command, 100)
    };
    let (text, code) = report(&[], "echo less=$LESS; sed 's/^/> /'");
    assert_eq!(code, Some(0));
    assert!(text.starts_with("less=FRX\n> "), "{text}");
    assert!(text.contains("> ") && text.contains("RUN"), "{text}");
    let (plain, _) = report(&["--no-pager"], "sed 's/^/> /'");
    assert!(!plain.contains("> ") && plain.contains("RUN"), "{plain}");
    assert!(report(&[], "/absent/pager").0.contains("RUN"), "it is shown without a pager");
    // The user reads the beginning and quits the pager.
    assert_eq!(report(&[], "head -n 1 >/dev/null"), (String::new(), Some(0)));
}

/// A launcher may start ranks on a terminal without a keyboard.
#[test]
fn a_terminal_of_another_session_gets_no_pager() {
    let run = run();
    let mut command = tool();
    command.args(["report", run.text()]).env("PAGER", "echo paged; sed 's/^/> /'");
    let (text, code) = pty::run(&mut command, 100);
    assert!(!text.contains("paged") && text.contains("RUN"), "{text}");
    assert_eq!(code, Some(0));
}

#[test]
fn a_reader_that_exits_is_no_error() {
    let run = run();
    let script = format!(
        "{} report --full {} | head -n 1; echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_ncclscope"),
        run.text()
    );
    let outcome = Outcome::of(Command::new("bash").args(["-c", &script])).ends_with(0);
    assert!(outcome.stdout.ends_with("\n0\n") && outcome.stderr.is_empty(), "{outcome:#?}");
}

#[test]
fn verbose_says_what_is_read() {
    let run = run();
    let said = |args: &[&str]| Outcome::of(&mut with(args)).ends_with(0).stderr;
    assert_eq!(said(&["report", run.text()]), "");
    let brief = said(&["report", "-v", run.text()]);
    assert!(brief.contains("s] read 2 recordings of 2") && !brief.contains("opened"), "{brief}");
    assert!(brief.contains("judged stragglers"), "{brief}");
    let each = said(&["-vv", "report", run.text()]);
    assert_eq!(each.matches("opened ").count(), 2, "{each}");
}

#[test]
fn long_work_shows_progress_on_a_terminal_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| dir.path().join(name);
    let simulate = |name: &str| {
        let mut command = with(&["simulate", "--ranks", "64", "--steps", "60", "-o"]);
        command.arg(out(name));
        command
    };
    let stderr = Streams { stdout: false, stderr: true };
    let (text, code) = Terminal::start(&mut simulate("a"), 100, stderr).read_to_end();
    assert_eq!(code, Some(0), "{text}");
    let has_time = text.contains("simulating [") && text.contains("left");
    assert!(has_time, "{text:?}");
    let quiet = Outcome::of(simulate("b").stdin(Stdio::null())).ends_with(0);
    assert_eq!(quiet.stderr, "");
}
