// SPDX-License-Identifier: Apache-2.0
//! `ncclscope top` on a terminal, and as JSON. What it shows about a job is tested with real NCCL
//! in `testing/rig`.

use crate::common::{Outcome, Run, ncclscope, tool};
use crate::pty::{ALL, Terminal};
use crate::schema::follows;
use rustix::process::Signal;
use rustix::termios::LocalModes;
use scripts::Call;
use std::time::Duration;

const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";
const SHOWS_CURSOR: &str = "\x1b[?25h";

fn run() -> Run {
    Run::new(|process| process.collective(Call::ALL_REDUCE))
}

/// Ends the view, and checks that the terminal's settings are restored.
fn is_left_as_it_was(what: &str, end: impl FnOnce(&mut Terminal)) {
    let run = run();
    let mut terminal = Terminal::start(tool().args(["top", run.text()]), 100, ALL);
    terminal.waits_for("details");
    let raw = terminal.settings();
    assert!(!raw.local_modes.contains(LocalModes::ICANON), "{what}: keys are read one by one");
    end(&mut terminal);
    let (text, code) = terminal.ends();
    assert_eq!(code, Some(0), "{what}: {text:?}");
    let left = text.split_once(LEAVES).unwrap_or_else(|| panic!("{what}: {text:?}")).1;
    assert!(text.contains(ENTERS) && !left.contains(ENTERS), "{what}: {text:?}");
    assert!(left.contains(SHOWS_CURSOR), "{what}: {text:?}");
    let modes = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
    assert!(terminal.settings().local_modes.contains(modes), "{what}");
}

#[test]
fn keys_that_quit_leave_the_terminal_as_it_was() {
    is_left_as_it_was("q", |terminal| terminal.types("q"));
    is_left_as_it_was("Ctrl-C", |terminal| terminal.types("\x03"));
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    for signal in [Signal::INT, Signal::HUP, Signal::TERM] {
        is_left_as_it_was(&format!("{signal:?}"), |terminal| terminal.sends(signal));
    }
}

/// A terminal that nothing reads any more, such as that of a window that hangs.
#[test]
fn a_signal_ends_a_view_whose_terminal_takes_no_output() {
    let run = run();
    let args = ["top", run.text(), "--interval", "0.1"];
    let mut terminal = Terminal::start(tool().args(args), 100, ALL);
    terminal.waits_for("details");
    terminal.fills();
    // `top` now writes its help, which the terminal does not accept.
    terminal.types("?");
    std::thread::sleep(Duration::from_millis(300));
    terminal.sends(Signal::TERM);
    let (code, took) = terminal.ends_unread();
    assert_eq!(code, Some(0));
    // Takes 0.7 s on an idle machine.
    assert!(took < Duration::from_secs(5), "{took:?}");
    let modes = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
    assert!(terminal.settings().local_modes.contains(modes));
}

#[test]
fn a_directory_that_does_not_exist_is_an_error_however_it_is_named() {
    let ways = [(&["top", "/missing", "--once"][..], ""), (&["top", "--once"], "/missing")];
    for (args, variable) in ways {
        let outcome = Outcome::of(tool().args(args).env("NCCLSCOPE_DIR", variable)).ends_with(3);
        assert!(outcome.stderr.contains("/missing: no such directory"), "{outcome:#?}");
    }
}

#[test]
fn one_picture_as_json_follows_its_schema() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("job");
    let out = out.to_str().unwrap();
    let job = ["--ranks", "4", "--steps", "2", "--fault", "host-stuck"];
    ncclscope(&[&["simulate", "-o", out], &job[..]].concat()).ends_with(0);
    let args = ["top", out, "--once", "--interval", "0.2", "--format", "json"];
    let json = ncclscope(&args).ends_with(1).stdout;
    let picture: serde_json::Value = serde_json::from_str(&json).unwrap();
    follows(&picture, "top");
    assert_eq!(picture["ranks"].as_array().unwrap().len(), 4, "{json}");
}
