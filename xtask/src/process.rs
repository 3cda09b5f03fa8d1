// SPDX-License-Identifier: Apache-2.0
//! Runs other programs: prints the command, passes its status on, and keeps its output.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::outcome::Outcome;

/// How long the output is still read after a command has ended.
const PIPE_GRACE: Duration = Duration::from_secs(2);

/// A command from its words, such as `["cargo", "build"]`.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// Removes the variables that `cargo run` set for this package. Otherwise build scripts that read
/// them (such as that of ring), and everything that depends on them, would run again after each
/// plain `cargo build`.
pub(crate) fn without_our_package(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Prints `command` on stderr and runs it with our own output streams and no input.
pub(crate) fn status(command: &mut Command) -> Outcome<ExitStatus> {
    eprintln!("$ {}", shown(command));
    without_our_package(command)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| cannot_run(command, &error))
}

/// Like [`status`], but returns an error if the command fails.
pub(crate) fn check(command: &mut Command) -> Outcome<()> {
    let status = status(command)?;
    if status.success() { Ok(()) } else { Err(failed(command, status)) }
}

/// Runs `command` and returns its stdout; if it fails, an error with its stderr.
pub(crate) fn stdout(command: &mut Command) -> Outcome<String> {
    let output = without_our_package(command).stdin(Stdio::null()).output();
    let output = output.map_err(|error| cannot_run(command, &error))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}\n{}", failed(command, output.status), stderr.trim_end()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Like [`status`], and also returns a copy of all lines that the command wrote to either stream.
pub(crate) fn tee(command: &mut Command) -> Outcome<(ExitStatus, String)> {
    eprintln!("$ {}", shown(command));
    let mut child = without_our_package(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_run(command, &error))?;
    let copy = Arc::new(Mutex::new(String::new()));
    // Nothing is sent: the channel closes when the last reader drops its end.
    let (open, closed) = mpsc::channel::<()>();
    if let Some(pipe) = child.stdout.take() {
        let (copy, open) = (Arc::clone(&copy), open.clone());
        thread::spawn(move || forward(pipe, &mut std::io::stdout(), &copy, open));
    }
    if let Some(pipe) = child.stderr.take() {
        let copy = Arc::clone(&copy);
        thread::spawn(move || forward(pipe, &mut std::io::stderr(), &copy, open));
    }
    let status = child.wait()?;
    // A process that the command left behind may hold the pipes open forever: do not wait for it.
    let _ = closed.recv_timeout(PIPE_GRACE);
    let copy = copy.lock().map_err(|_| "a thread that reads the command's output panicked")?;
    Ok((status, copy.clone()))
}

/// The exit status for a child's `status`: its code, or 1 if a signal ended it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Copies `pipe` line by line to `terminal` and to `copy`, so that two streams never share a line.
/// Drops `_open` at the end.
fn forward(
    pipe: impl Read,
    terminal: &mut impl Write,
    copy: &Mutex<String>,
    _open: mpsc::Sender<()>,
) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while pipe.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        // If our own stdout is closed, the job continues: the copy is what counts.
        let _ = terminal.write_all(&line);
        if let Ok(mut copy) = copy.lock() {
            copy.push_str(&String::from_utf8_lossy(&line));
        }
        line.clear();
    }
}

fn shown(command: &Command) -> String {
    let environment = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={:?}", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| {
        let word = word.to_string_lossy();
        if word.contains(char::is_whitespace) { format!("'{word}'") } else { word.into_owned() }
    });
    environment.chain(words).collect::<Vec<_>>().join(" ")
}

fn cannot_run(command: &Command, error: &std::io::Error) -> Box<dyn std::error::Error> {
    format!("cannot run `{}`: {error}", command.get_program().to_string_lossy()).into()
}

fn failed(command: &Command, status: ExitStatus) -> Box<dyn std::error::Error> {
    format!("`{}` failed: {status}", shown(command)).into()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn tee_keeps_both_streams_and_the_status() {
        let (status, text) =
            tee(&mut command(&["sh", "-c", "echo out; echo err >&2; exit 7"])).expect("sh runs");
        assert_eq!(status.code(), Some(7));
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["err", "out"]);
    }

    #[test]
    fn commands_do_not_know_of_this_package() {
        let shown = stdout(&mut command(&["sh", "-c", "echo ${CARGO_PKG_NAME-none}"]));
        assert_eq!(shown.expect("sh runs"), "none\n");
    }

    #[test]
    fn tee_does_not_wait_for_what_the_command_left_behind() {
        let begin = Instant::now();
        let (status, text) =
            tee(&mut command(&["sh", "-c", "sleep 60 & echo $!"])).expect("sh runs");
        assert!(status.success() && begin.elapsed() < 2 * PIPE_GRACE);
        check(&mut command(&["kill", text.trim()])).expect("the sleep still runs");
    }

    #[test]
    fn failures_name_the_command_and_its_stderr() {
        let error = stdout(&mut command(&["sh", "-c", "echo because >&2; exit 3"]))
            .expect_err("exit 3")
            .to_string();
        assert!(error.contains("'echo because >&2; exit 3'"), "{error}");
        assert!(error.contains("exit status: 3") && error.ends_with("because"), "{error}");
        let error = check(&mut command(&["/nonexistent/tool"])).expect_err("no tool").to_string();
        assert!(error.starts_with("cannot run `/nonexistent/tool`"), "{error}");
    }
}
