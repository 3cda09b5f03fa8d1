// SPDX-License-Identifier: Apache-2.0
//! `ncclscope run`, `env` and `plugin-path`, with a file that stands for the plugin.

use crate::common::{Outcome, Run, tool};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plugin.so"), "not loaded by these tests").unwrap();
        Place { dir }
    }

    fn tool(&self, args: &[&str]) -> Command {
        let mut command = tool();
        command.args(args).current_dir(self.dir.path()).env("NCCLSCOPE_PLUGIN", "plugin.so");
        command
    }

    fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(&mut self.tool(args))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn the_command_gets_its_variables_and_keeps_its_exit_code() {
    let place = Place::new();
    let script = "echo $NCCL_PROFILER_PLUGIN; echo $NCCLSCOPE_DIR; echo $NCCLSCOPE_MODE; exit 7";
    let args = ["run", "-o", "out", "--mode", "trace", "--", "sh", "-c", script];
    let outcome = place.run(&args).ends_with(7);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let absolute = |name| place.file(name).to_str().unwrap().to_owned();
    assert_eq!(lines, [&absolute("plugin.so"), &absolute("out"), "trace"]);
    // `sh` did not load NCCL.
    assert!(outcome.stderr.contains("no recordings (*.nscope)"), "{outcome:#?}");
    let run: Value =
        serde_json::from_slice(&std::fs::read(place.file("out/run.json")).unwrap()).unwrap();
    assert_eq!(run["schema"], "ncclscope.run/1");
    assert_eq!(run["command"][2], script);
    assert_eq!(run["exit_code"], 7);
    assert!(run["started"].as_str() <= run["ended"].as_str() && run["ended"].is_string());
}

#[test]
fn the_report_comes_after_the_commands_own_output() {
    let place = Place::new();
    let made = Run::new(|p| p.collective(ncclscope_analyze::simulate::Call::ALL_REDUCE));
    let script = format!("echo mine; cp {}/*.nscope $NCCLSCOPE_DIR", made.text());
    let outcome = place.run(&["run", "--", "sh", "-c", &script]).ends_with(0);
    assert!(outcome.stdout.starts_with("mine\n\nNCCLSCOPE REPORT\n"), "{outcome:#?}");
    assert!(outcome.stdout.contains("ended       with exit status 0"), "{outcome:#?}");
    let directory = outcome.stderr.trim_end().rsplit(' ').next().unwrap();
    let name = directory.rsplit('/').next().unwrap();
    assert!(name.starts_with("ncclscope-run-2") && name.len() == 29, "{name}");
    let quiet = place.run(&["run", "--no-report", "-o", "q", "--", "true"]).ends_with(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    // A second run must not mix with the first.
    let again = place.run(&["run", "-o", directory, "--", "true"]).ends_with(4);
    assert!(again.stderr.contains("already holds recordings"), "{again:#?}");
}

#[test]
fn endings_are_those_of_a_shell() {
    let place = Place::new();
    let code = |args: &[&str]| {
        let all: Vec<&str> =
            ["run", "--no-report", "-o", "d", "--"].iter().chain(args).copied().collect();
        place.run(&all).code
    };
    assert_eq!(code(&["sh", "-c", "kill -KILL $$"]), Some(137));
    assert_eq!(code(&["/absent/program"]), Some(127));
    assert_eq!(code(&["/etc"]), Some(126));
    let missing = Outcome::of(place.tool(&["run", "--", "true"]).env("NCCLSCOPE_PLUGIN", "no"));
    assert!(missing.ends_with(4).stderr.contains("NCCLSCOPE_PLUGIN names no, which is no file"));
    let refused = place.run(&["run", "-o", "/proc/x", "--", "true"]).ends_with(4);
    assert!(refused.stderr.contains("cannot write /proc/x"), "{refused:#?}");
}

/// Starts a command that says `ready` and reports the signal it got; sends `signal` to the tool.
fn signalled(signal: &str, also_command: bool) -> Option<i32> {
    let place = Place::new();
    let script = "trap 'exit 5' TERM INT; echo $$; while :; do sleep 0.05; done";
    let mut child = place
        .tool(&["run", "--no-report", "-o", "d", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut command = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut command).unwrap();
    let mut kill = Command::new("kill");
    kill.arg(format!("-{signal}")).arg(child.id().to_string());
    assert!(kill.status().unwrap().success());
    if also_command {
        let mut kill = Command::new("kill");
        assert!(kill.args([&format!("-{signal}"), command.trim()]).status().unwrap().success());
    }
    child.wait().unwrap().code()
}

#[test]
fn signals_reach_the_command_and_it_decides() {
    assert_eq!(signalled("TERM", false), Some(5));
    // As from a terminal, which tells the whole process group.
    assert_eq!(signalled("INT", true), Some(5));
}

#[test]
fn env_and_plugin_path_can_be_used_by_a_shell() {
    let place = Place::new();
    let plugin = place.file("plugin.so");
    let path = place.run(&["plugin-path"]).ends_with(0);
    assert_eq!(path.stdout.trim_end(), plugin.to_str().unwrap());
    let env = place.run(&["env", "-o", "it's here"]).ends_with(0).stdout;
    let script = format!("{env}\necho $NCCL_PROFILER_PLUGIN; echo $NCCLSCOPE_DIR");
    let shell = Outcome::of(Command::new("sh").args(["-c", &script])).ends_with(0);
    let directory = place.file("it's here");
    let lines: Vec<&str> = shell.stdout.lines().collect();
    assert_eq!(lines, [plugin.to_str().unwrap(), directory.to_str().unwrap()]);
    assert!(directory.is_dir());
    let json = place.run(&["env", "--shell", "json"]).ends_with(0).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["variables"]["NCCL_PROFILER_PLUGIN"], plugin.to_str().unwrap());
    assert!(json["variables"].get("NCCLSCOPE_DIR").is_none());
}

#[test]
fn a_path_that_nccl_would_cut_is_refused() {
    let place = Place::new();
    let deep = place.file(&format!("{}/{}", "d".repeat(150), "e".repeat(150)));
    std::fs::create_dir_all(&deep).unwrap();
    let plugin = deep.join("plugin.so");
    std::fs::write(&plugin, "").unwrap();
    let outcome = Outcome::of(place.tool(&["plugin-path"]).env("NCCLSCOPE_PLUGIN", &plugin));
    assert!(outcome.ends_with(4).stderr.contains("NCCL cuts it at 254"));
}
