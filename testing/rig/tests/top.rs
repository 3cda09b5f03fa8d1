// SPDX-License-Identifier: Apache-2.0
//! `ncclscope top` under a real terminal (tmux), on a job of real NCCL: what it shows, when a rank
//! that stalls turns red, and that it leaves the terminal as it was.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use rig::job::{Job, Running};
use rig::{build, wheel};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Within this time a stalled rank must be red.
const RED_WITHIN: Duration = Duration::from_secs(3);
const TRIES: usize = 3;
/// The escape sequences with which tmux begins red text.
const RED: [&str; 2] = ["\x1b[31m", "\x1b[38;5;1m"];

/// A terminal of 120 columns with a shell in it.
struct Screen {
    dir: tempfile::TempDir,
}

impl Screen {
    /// `None` if there is no tmux; then it prints that the test is skipped.
    fn open() -> Option<Screen> {
        if Command::new("tmux").arg("-V").output().is_err() {
            let is_required = std::env::var("NCCLSCOPE_REQUIRE_TMUX").as_deref() == Ok("1");
            assert!(!is_required, "tmux is missing: apt-get install tmux");
            println!("skipped: tmux is missing (apt-get install tmux)");
            return None;
        }
        let screen = Screen { dir: tempfile::tempdir().expect("a folder") };
        // An interactive shell, so that it has job control.
        let shell = "env -u NO_COLOR PS1='$ ' bash --norc --noprofile -i";
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "30", shell]);
        screen.wait("a shell", |text| text.contains('$'));
        Some(screen)
    }

    fn tmux(&self, args: &[&str]) -> String {
        let socket = self.dir.path().join("tmux");
        let mut command = Command::new("tmux");
        let output = command.arg("-S").arg(socket).args(args).output().expect("tmux starts");
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Types a line.
    fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.key("Enter");
    }

    fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// The screen, with its colours.
    fn shown(&self) -> String {
        self.tmux(&["capture-pane", "-e", "-p"])
    }

    fn is_alternate(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{alternate_on}"]).trim() == "1"
    }

    /// Waits until the screen satisfies a condition.
    #[track_caller]
    fn wait(&self, what: &str, is_like: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.shown();
            if is_like(&text) {
                return text;
            }
            assert!(Instant::now() < until, "waited for {what}, there is:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the program in the shell has ended, and asserts that its exit code is 0.
    #[track_caller]
    fn expect_success(&self, name: &str) {
        let until = Instant::now() + PATIENCE;
        while self.is_alternate() {
            assert!(Instant::now() < until, "it does not end:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.line(&format!("echo {name} with $?."));
        self.wait("the exit code", |text| text.contains(&format!("{name} with 0.")));
    }

    /// The terminal's settings as the shell prints them into a file.
    #[track_caller]
    fn settings(&self, name: &str) -> String {
        let file = self.dir.path().join(name);
        self.line(&format!("stty -a > {0}.part; mv {0}.part {0}", file.display()));
        let until = Instant::now() + PATIENCE;
        while !file.exists() {
            assert!(Instant::now() < until, "the shell does not answer:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = std::fs::read_to_string(file).expect("a file");
        let cursor = self.tmux(&["display-message", "-p", "#{cursor_flag}"]);
        assert_eq!((cursor.trim(), self.is_alternate()), ("1", false));
        text
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let socket = self.dir.path().join("tmux");
        let _ended = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

/// Starts four ranks on two hosts, which record into `run`.
fn start(nccl: &Path, run: &Path, job: impl FnOnce(Job) -> Job) -> Running {
    let new = Job::new(nccl).expect("the stand-in builds").hosts(2).devices(2);
    let new = new
        .env("NCCL_PROFILER_PLUGIN", build::plugin())
        .env("NCCLSCOPE_KERNEL", "on")
        .env("NCCLSCOPE_DIR", run)
        .env("NCCLSCOPE_CONTROL", run.join("control"))
        .timeout(4 * PATIENCE);
    job(new).start().expect("the job starts")
}

fn steady(job: Job) -> Job {
    job.steps((0..20_000).flat_map(|_| ["allreduce:4096", "sleep:20"]))
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(status.expect("kill starts").success());
}

/// The line of a process.
fn line_of(text: &str, pid: u32) -> Option<&str> {
    let pid = pid.to_string();
    text.lines()
        .find(|line| line.split([' ', 'm']).any(|word| word.trim_end_matches('\x1b') == pid))
}

fn is_red(text: &str, pid: u32, state: &str) -> bool {
    line_of(text, pid)
        .is_some_and(|line| line.contains(state) && RED.iter().any(|red| line.contains(red)))
}

fn all_run(text: &str, job: &Running) -> bool {
    (0..4).all(|rank| line_of(text, job.pid(rank)).is_some_and(|line| line.contains(" ok ")))
}

/// The time until a stopped rank is red. The rank continues after that.
fn red_after(screen: &Screen, job: &Running, pid: u32) -> Duration {
    let stopped = Instant::now();
    signal(pid, "STOP");
    screen.wait("a red rank", |text| is_red(text, pid, "STOPPED"));
    let took = stopped.elapsed();
    signal(pid, "CONT");
    screen.wait("four ranks again", |text| all_run(text, job));
    took
}

#[test]
fn a_stalled_rank_turns_red_and_the_terminal_is_left_as_it_was() {
    let (Some(screen), Some(nccl)) = (Screen::open(), wheel::find_or_skip("2.28.9")) else {
        return;
    };
    let tool = build::tool();
    let run = screen.dir.path().join("run");
    let job = start(&nccl, &run, steady);
    while !run.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = screen.settings("before");
    let command = format!("{} top {}", tool.display(), run.display());
    screen.line(&command);
    let text = screen.wait("four ranks", |text| all_run(text, &job) && text.contains("AllReduce"));
    assert!(screen.is_alternate() && text.contains("4 ranks on 1 host"), "{text}");

    let pid = job.pid(2);
    // On a busy machine, one try may be late.
    let mut took: Vec<Duration> = (0..TRIES).map(|_| red_after(&screen, &job, pid)).collect();
    took.sort();
    println!("red after {took:?}");
    assert!(took[TRIES - 2] <= RED_WITHIN, "red after {took:?}");
    signal(pid, "STOP");
    // The other ranks wait for it, but are no more red than before.
    let waits = |text: &str, rank| {
        line_of(text, job.pid(rank))
            .is_some_and(|line| line.contains("waits") && !RED.iter().any(|red| line.contains(red)))
    };
    screen.wait("ranks that wait", |text| [0, 1, 3].iter().all(|rank| waits(text, *rank)));
    signal(pid, "CONT");
    screen.wait("four ranks again", |text| all_run(text, &job));

    screen.key("Enter");
    screen.wait("the details", |text| text.contains("In flight, the oldest"));
    screen.key("Escape");
    // A key right after Escape would be that key with Alt.
    screen.wait("the view", |text| text.contains("order: STATE"));
    screen.key("C-z");
    screen.wait("the shell", |text| text.contains("Stopped"));
    assert_eq!(screen.settings("suspended"), before, "while it is suspended");
    screen.line("fg");
    screen.wait("the view again", |text| text.contains("order: STATE"));
    assert!(screen.is_alternate());
    screen.tmux(&["resize-window", "-x", "60", "-y", "12"]);
    screen.wait("a smaller view", |text| {
        text.contains("order: STATE") && text.lines().count() <= 12 && !text.contains("WHY")
    });
    screen.tmux(&["resize-window", "-x", "120", "-y", "30"]);
    screen.wait("a larger view", |text| text.contains("space freeze") && text.contains("WHY"));
    screen.key("q");
    screen.expect_success("quit");
    assert_eq!(screen.settings("after"), before);

    // After a signal, `top` also restores the terminal.
    screen.line("clear");
    screen.line(&command);
    screen.wait("four ranks", |text| all_run(text, &job));
    let views = || {
        let found = Command::new("pgrep").arg("-f").arg(format!("top {}$", run.display())).output();
        String::from_utf8(found.expect("pgrep starts").stdout).expect("UTF-8")
    };
    views().lines().for_each(|pid| signal(pid.parse().expect("a number"), "TERM"));
    screen.expect_success("terminated");
    assert_eq!(screen.settings("terminated"), before);

    screen.line("trap '' HUP; clear");
    screen.line(&command);
    screen.wait("four ranks", |text| all_run(text, &job));
    assert_ends_without_a_terminal(&screen, &views);
}

/// Asserts that `top` ends if its terminal goes away, even without a signal.
fn assert_ends_without_a_terminal(screen: &Screen, views: &dyn Fn() -> String) {
    assert_eq!(views().lines().count(), 1);
    screen.tmux(&["kill-server"]);
    let until = Instant::now() + Duration::from_secs(10);
    while !views().is_empty() {
        assert!(Instant::now() < until, "it goes on without a terminal");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The JSON output of `top --once`, and its exit code.
fn once(tool: &Path, args: &[&str]) -> (Value, Option<i32>) {
    let Output { status, stdout, stderr } = Command::new(tool)
        .args(["top", "--once", "--format", "json"])
        .args(args)
        .output()
        .expect("the tool starts");
    let picture = serde_json::from_slice(&stdout);
    let errors = String::from_utf8_lossy(&stderr);
    (picture.unwrap_or_else(|error| panic!("{error}: {errors}")), status.code())
}

fn row(picture: &Value, pid: u32) -> &Value {
    let mut rows = picture["ranks"].as_array().expect("the schema").iter();
    rows.find(|row| row["pid"] == pid).unwrap_or_else(|| panic!("{pid}: {picture}"))
}

/// A stopped rank is not stuck outside NCCL, although its counters look like that.
fn expect_stopped(tool: &Path, run: &str, pid: u32) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (picture, _) = once(tool, &[run, "--interval", "0.5"]);
        let flags = &row(&picture, pid)["flags"];
        let finding = picture["findings"][0].as_str().unwrap_or_default();
        if flags[0] == "stopped" && finding.contains("stopped, by a signal") {
            return;
        }
        assert!(Instant::now() < until, "{picture}");
    }
}

#[test]
fn once_shows_rates_then_the_rank_that_has_not_called_then_that_all_ended() {
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let tool: PathBuf = build::tool();
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().to_str().expect("UTF-8");
    let (nothing, code) = once(&tool, &[run]);
    assert_eq!((&nothing["ranks"], code), (&Value::Array(vec![]), Some(4)));
    assert!(nothing["notes"][0].as_str().expect("a note").contains("ncclscope run"), "{nothing}");
    // Rank 1 makes the others wait.
    let calls = |times: usize| (0..times).flat_map(|_| ["allreduce:4096", "sleep:4"]);
    let late = calls(1_500).chain(["sleep:40000", "allreduce:4096"]);
    let all = calls(1_500).chain(["skip", "allreduce:4096"]);
    let mut job = start(&nccl, dir.path(), |job| job.steps(all).rank_steps(1, late));
    for rank in 0..4 {
        assert!(job.wait_for_line(rank, &format!("rank {rank} allreduce")), "rank {rank}");
    }
    let (picture, code) = once(&tool, &[run]);
    assert_eq!((&picture["schema"], code), (&"ncclscope.top/2".into(), Some(0)), "{picture}");
    for rank in 0..4 {
        let row = row(&picture, job.pid(rank));
        assert_eq!((&row["rank"], &row["flags"]), (&rank.into(), &Value::Array(vec![])));
        assert!(row["operations_per_s"].as_f64() > Some(1.0), "{row}");
        let function = &row["functions"][0];
        assert_eq!(function["func"], "AllReduce");
        assert!(function["busbw_gbs"].as_f64() > Some(0.0), "{row}");
        assert!(row["waiting_share"].as_f64().is_some_and(|share| share <= 1.0), "{row}");
    }
    assert!(
        (0..4).any(|rank| row(&picture, job.pid(rank))["links"][0]["gbs"].as_f64() > Some(0.0)),
        "{picture}"
    );
    let until = Instant::now() + 2 * PATIENCE;
    let picture = loop {
        let (picture, code) = once(&tool, &[run, "--interval", "0.5"]);
        if row(&picture, job.pid(1))["flags"] == Value::Array(vec!["stalled".into()]) {
            assert_eq!(code, Some(1));
            break picture;
        }
        assert!(Instant::now() < until, "{picture}");
    };
    for rank in [0, 2, 3] {
        let row = row(&picture, job.pid(rank));
        assert_eq!(
            (&row["flags"][0], &row["waiting_share"]),
            (&"waits".into(), &1.0.into()),
            "{row}"
        );
        assert_eq!(row["operation"]["func"], "AllReduce");
        assert!(row["why"].as_str().expect("text").ends_with("for rank 1"), "{row}");
    }
    signal(job.pid(1), "STOP");
    expect_stopped(&tool, run, job.pid(1));
    job.kill(1);
    let until = Instant::now() + PATIENCE;
    while once(&tool, &[run]).0["ranks"]
        .as_array()
        .is_some_and(|rows| !rows.iter().any(|row| row["flags"][0] == "killed"))
    {
        assert!(Instant::now() < until, "a killed rank is named");
    }
}

#[test]
fn once_marks_the_rank_that_the_others_wait_for() {
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let tool: PathBuf = build::tool();
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().to_str().expect("UTF-8");
    let calls = |pause: &'static str| (0..20_000).flat_map(move |_| ["allreduce:4096", pause]);
    let steps = |job: Job| job.steps(calls("sleep:10")).rank_steps(1, calls("sleep:30"));
    let mut job = start(&nccl, dir.path(), steps);
    for rank in 0..4 {
        assert!(job.wait_for_line(rank, &format!("rank {rank} allreduce")), "rank {rank}");
    }
    // On a busy machine, a look may see too few operations.
    let until = Instant::now() + PATIENCE;
    loop {
        let (picture, code) = once(&tool, &[run]);
        let is_slow = |rank: usize| row(&picture, job.pid(rank))["flags"][0] == "slow";
        assert!(code == Some(0) && ![0, 2, 3].into_iter().any(is_slow), "{picture}");
        if is_slow(1) {
            let why = row(&picture, job.pid(1))["why"].as_str().expect("text");
            assert!(why.starts_with("other ranks wait for it "), "{why}");
            return;
        }
        assert!(Instant::now() < until, "{picture}");
    }
}
