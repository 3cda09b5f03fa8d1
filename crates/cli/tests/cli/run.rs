// SPDX-License-Identifier: Apache-2.0
//! `ncclscope run`, `env` and `plugin-path` with a file in place of the plugin.

use crate::common::{Outcome, Run, SYMBOLS, plugin_file, tool};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "libnccl-profiler-ncclscope.so";
const PLUGIN: &str = "lib/libnccl-profiler-ncclscope.so";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        std::fs::write(dir.path().join(PLUGIN), plugin_file(&SYMBOLS)).unwrap();
        Place { dir }
    }

    fn tool(&self, args: &[&str]) -> Command {
        let mut command = tool();
        command.args(args).current_dir(self.dir.path()).env("NCCLSCOPE_PLUGIN", PLUGIN);
        command.env("XDG_CACHE_HOME", self.file("cache")).env_remove("LD_LIBRARY_PATH");
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
    let script = "echo $NCCL_PROFILER_PLUGIN; echo $LD_LIBRARY_PATH; echo $NCCLSCOPE_DIR
        echo $NCCLSCOPE_MODE; exit 7";
    let args = ["run", "-o", "out", "--mode", "trace", "--", "sh", "-c", script];
    let outcome = place.run(&args).ends_with(7);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let absolute = |name| place.file(name).to_str().unwrap().to_owned();
    assert_eq!(lines, [NAME, &absolute("lib"), &absolute("out"), "trace"]);
    let [line] = outcome.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{outcome:#?}") };
    let says = "ncclscope: warning: no rank wrote a recording: no process of the command on this";
    assert!(line.starts_with(says), "{outcome:#?}");
    assert!(line.ends_with("(the command ended with exit code 7)"), "{outcome:#?}");
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
    let made = Run::new(|p| p.collective(scripts::Call::ALL_REDUCE));
    let script = format!("echo mine; cp {}/*.nscope $NCCLSCOPE_DIR", made.text());
    let outcome = place.run(&["run", "--", "sh", "-c", &script]).ends_with(0);
    assert!(outcome.stdout.starts_with("mine\n\nCANNOT TELL  "), "{outcome:#?}");
    assert!(outcome.stdout.contains("ended       with exit status 0"), "{outcome:#?}");
    let directory = outcome.stderr.trim_end().rsplit(' ').next().unwrap();
    let name = directory.rsplit('/').next().unwrap();
    assert!(name.starts_with("ncclscope-run-2") && name.len() == 29, "{name}");
    let script = format!("cp {}/*.nscope $NCCLSCOPE_DIR", made.text());
    let quiet = place.run(&["run", "--no-report", "-o", "q", "--", "sh", "-c", &script]);
    let quiet = quiet.ends_with(0);
    let says = format!("ncclscope: the recordings are in {}\n", place.file("q").display());
    assert_eq!((&*quiet.stdout, quiet.stderr), ("", says));
    // The recordings of a second run must not mix with those of the first.
    let again = place.run(&["run", "-o", directory, "--", "true"]).ends_with(4);
    assert!(again.stderr.contains("already holds recordings"), "{again:#?}");
}

/// `mpirun ncclscope run`: each rank starts its own `ncclscope run`, and all share one directory.
#[test]
fn the_ranks_of_a_launcher_share_a_directory_and_print_no_report() {
    let place = Place::new();
    let made = Run::new(|p| p.collective(scripts::Call::ALL_REDUCE));
    let rank = |rank: &str, script: &str| {
        let mut command = place.tool(&["run", "-o", "out", "--", "sh", "-c", script]);
        command.env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", "3");
        Outcome::of(&mut command)
    };
    let copy = |name: &str, code: u8| {
        let copy = format!("cp $file $NCCLSCOPE_DIR/{name}-${{file##*/}}");
        format!("for file in {}/*.nscope; do {copy}; done; exit {code}", made.text())
    };
    // Rank 2 records and ends before the others begin.
    let last = rank("2", &copy("c", 5)).ends_with(5);
    assert_eq!((&*last.stdout, &*last.stderr), ("", ""));
    assert!(!place.file("out/run.json").exists(), "rank 0 alone writes it");
    rank("1", &copy("b", 0)).ends_with(0);
    let first = rank("0", &copy("a", 3)).ends_with(3);
    let out = place.file("out");
    let says = format!(
        "ncclscope: the recordings are in {0}; when the job has ended: ncclscope report {0}\n",
        out.display()
    );
    assert_eq!((&*first.stdout, first.stderr), ("", says));
    let report = place.run(&["report", "out"]);
    assert!(report.stdout.contains("ended       rank 0 with exit status 3"), "{report:#?}");
    // The run is over: the recordings of another job must not mix with it.
    let again = rank("1", "true").ends_with(4);
    assert!(again.stderr.contains("already holds recordings"), "{again:#?}");
}

#[test]
fn ranks_that_would_each_have_a_directory_are_refused() {
    let place = Place::new();
    let mut command = place.tool(&["run", "--", "true"]);
    command.envs([("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4")]);
    let outcome = Outcome::of(&mut command).ends_with(2);
    let says = "this is rank 1 of 4: name the directory that the ranks share with -o";
    assert!(outcome.stderr.contains(says), "{outcome:#?}");
    // A batch script is not a rank.
    Outcome::of(command.env("SLURM_JOB_ID", "7")).ends_with(0);
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
    assert!(missing.ends_with(4).stderr.contains("NCCLSCOPE_PLUGIN is no, which is not a file"));
    let refused = place.run(&["run", "-o", "/proc/x", "--", "true"]).ends_with(4);
    assert!(refused.stderr.contains("cannot write /proc/x"), "{refused:#?}");
}

#[test]
fn a_command_that_did_not_start_leaves_one_line_and_no_folder() {
    let place = Place::new();
    let outcome = place.run(&["run", "--", "trainn"]).ends_with(127);
    let says = "ncclscope: error: cannot run trainn: No such file or directory (os error 2)";
    assert_eq!(outcome.stderr, format!("{says}: looked for in PATH\n"));
    std::fs::write(place.file("x.py"), "").unwrap();
    let outcome = place.run(&["run", "--", "x.py"]).ends_with(127);
    let says = "(os error 2): looked for in PATH; did you mean ./x.py?\n";
    assert!(outcome.stderr.ends_with(says), "{outcome:#?}");
    let names = std::fs::read_dir(place.dir.path()).unwrap();
    assert_eq!(names.count(), 2, "lib and x.py");
    std::fs::create_dir(place.file("mine")).unwrap();
    place.run(&["run", "-o", "mine", "--", "trainn"]).ends_with(127);
    assert!(place.file("mine/run.json").exists());
}

#[test]
fn the_users_directory_holds_the_runs() {
    let place = Place::new();
    let script = "echo $NCCLSCOPE_DIR; : > $NCCLSCOPE_DIR/h-1.nscope";
    for (told, holds) in [("mine", "mine"), ("mine/%j/%h", "mine"), ("%h", ""), ("", "")] {
        let mut command = place.tool(&["run", "--no-report", "--", "sh", "-c", script]);
        let outcome = Outcome::of(command.env("NCCLSCOPE_DIR", told)).ends_with(0);
        let start = place.file(holds).join("ncclscope-run-2");
        assert!(outcome.stdout.starts_with(start.to_str().unwrap()), "{told}: {outcome:#?}");
        let says = format!("ncclscope: the recordings are in {}", outcome.stdout);
        assert_eq!(outcome.stderr, says);
        std::fs::remove_dir_all(outcome.stdout.trim_end()).unwrap();
    }
}

/// With a truncated plugin, the loader would map pages beyond the end of the file, which would kill
/// each rank.
#[test]
fn what_is_no_whole_plugin_of_this_machine_is_refused() {
    let place = Place::new();
    let whole = plugin_file(&SYMBOLS);
    let mut other = whole.clone();
    other[18] = 0xf3;
    let cases = [
        (whole[..whole.len() - 1].to_vec(), "is truncated to"),
        (whole[..70].to_vec(), "is truncated to 70 of 120 bytes: copy it again"),
        (other, "is for ELF machine 243, and this machine is "),
        (plugin_file(&["snd_pcm_open"]), "is not an NCCL profiler plugin"),
        (b"#!/bin/sh\necho\n".to_vec(), "is not a shared library"),
    ];
    for (bytes, says) in cases {
        std::fs::write(place.file(PLUGIN), bytes).unwrap();
        for args in [&["run", "-o", "d", "--", "true"][..], &["env"], &["plugin-path"]] {
            let outcome = place.run(args).ends_with(4);
            let [line] = outcome.stderr.lines().collect::<Vec<_>>()[..] else {
                panic!("{outcome:#?}")
            };
            assert!(line.contains(says) && outcome.stdout.is_empty(), "{outcome:#?}");
            assert!(!place.file("d").exists());
        }
        let doctor = place.run(&["doctor", "--nccl", "/absent"]).ends_with(4).stdout;
        let line = doctor.lines().find(|line| line.contains(says));
        assert!(line.is_some_and(|line| line.starts_with("FAIL")), "{doctor}");
    }
}

/// Starts a command that prints `ready` and reports the signal that it received, and sends `signal`
/// to the tool; to the command as well if `also_command`.
fn signalled(signal: &str, also_command: bool) -> Option<i32> {
    let place = Place::new();
    let script = "trap 'exit 5' TERM INT QUIT; echo $$; while :; do sleep 0.05; done";
    let mut child = place
        .tool(&["run", "--no-report", "-o", "d", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut command = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut command).unwrap();
    let mut kill = Command::new("kill");
    kill.arg(format!("-{signal}"));
    if also_command {
        // The command comes first, in the same call: it ends as soon as the tool forwards the
        // signal.
        kill.arg(command.trim());
    }
    assert!(kill.arg(child.id().to_string()).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn signals_reach_the_command_and_it_decides() {
    assert_eq!(signalled("TERM", false), Some(5));
    // A shell without job control, or `timeout -s INT`, signals only the tool.
    assert_eq!(signalled("INT", false), Some(5));
    assert_eq!(signalled("QUIT", false), Some(5));
    // A terminal signals the whole process group.
    assert_eq!(signalled("INT", true), Some(5));
}

#[test]
fn env_and_plugin_path_can_be_used_by_a_shell() {
    let place = Place::new();
    let (plugin, folder) = (place.file(PLUGIN), place.file("lib"));
    let path = place.run(&["plugin-path"]).ends_with(0);
    assert_eq!(path.stdout.trim_end(), plugin.to_str().unwrap());
    let env = place.run(&["env", "-o", "it's here"]).ends_with(0).stdout;
    let said = |before: &str| {
        let say = "echo $NCCL_PROFILER_PLUGIN; echo \"$LD_LIBRARY_PATH\"; echo $NCCLSCOPE_DIR";
        let script = format!("{before}\n{env}\n{say}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env_remove("LD_LIBRARY_PATH");
        Outcome::of(&mut shell).ends_with(0).stdout
    };
    let (folder, directory) = (folder.to_str().unwrap(), place.file("it's here"));
    assert!(directory.is_dir());
    let directory = directory.to_str().unwrap();
    assert_eq!(said(""), format!("{NAME}\n{folder}\n{directory}\n"));
    let before = "export LD_LIBRARY_PATH='/a b:/c'";
    assert_eq!(said(before), format!("{NAME}\n{folder}:/a b:/c\n{directory}\n"));
    let json =
        Outcome::of(place.tool(&["env", "--shell", "json"]).env("LD_LIBRARY_PATH", "/a b:/c"));
    let json: Value = serde_json::from_str(&json.ends_with(0).stdout).unwrap();
    assert_eq!(json["variables"]["NCCL_PROFILER_PLUGIN"], NAME);
    assert_eq!(json["variables"]["LD_LIBRARY_PATH"], format!("{folder}:/a b:/c"));
    assert!(json["variables"].get("NCCLSCOPE_DIR").is_none());
}

/// The layout of the Python package: the tool is in `bin`, the plugin in the directory above.
#[test]
fn the_tool_of_a_wheel_finds_the_plugin_above_it() {
    let place = Place::new();
    let (tool, plugin) = (place.file("bin/ncclscope"), place.file(NAME));
    std::fs::remove_dir_all(place.file("lib")).unwrap();
    std::fs::create_dir(place.file("bin")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_ncclscope"), &tool).unwrap();
    std::fs::write(&plugin, plugin_file(&SYMBOLS)).unwrap();
    let outcome = Outcome::of(Command::new(tool).arg("plugin-path").env_remove("NCCLSCOPE_PLUGIN"));
    let path = outcome.ends_with(0).stdout;
    assert_eq!(std::fs::canonicalize(path.trim_end()).unwrap(), plugin);
}

/// The variables that the command gets, and what the tool prints about them.
fn loading(place: &Place, plugin: &Path) -> (String, String, String) {
    let script = "echo \"$NCCL_PROFILER_PLUGIN|$LD_LIBRARY_PATH|$NCCLSCOPE_CHAIN\"";
    let mut command = place.tool(&["env"]);
    let env = Outcome::of(command.env("NCCLSCOPE_PLUGIN", plugin)).ends_with(0);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{}\n{script}", env.stdout)]).env_remove("LD_LIBRARY_PATH");
    let said = Outcome::of(&mut shell).ends_with(0).stdout;
    let (value, rest) = said.trim_end().split_once('|').unwrap();
    (value.into(), rest.trim_end_matches('|').into(), env.stderr)
}

#[test]
fn where_the_folder_cannot_be_listed_the_plugin_gets_one_of_its_own() {
    let place = Place::new();
    for (folder, name, other) in [
        ("colon:here", NAME, None),
        ("semi;here", NAME, None),
        ("$ORIGIN", NAME, None),
        ("mixed", NAME, Some("libcrypto.so.3")),
        ("named", "plugin.so", None),
        (&*format!("{}/{}", "d".repeat(150), "e".repeat(150)), "x.so", None),
    ] {
        let folder = place.file(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let plugin = folder.join(name);
        std::fs::write(&plugin, plugin_file(&SYMBOLS)).unwrap();
        if let Some(other) = other {
            std::fs::write(folder.join(other), "").unwrap();
        }
        let (value, own, said) = loading(&place, &plugin);
        assert_eq!((&*value, &*said), (NAME, ""));
        assert!(own.starts_with(place.file("cache").to_str().unwrap()), "{own}");
        assert_eq!(std::fs::canonicalize(Path::new(&own).join(NAME)).unwrap(), plugin);
        // A second call, while a job may have the link open.
        assert_eq!(loading(&place, &plugin).1, own);
    }
    let plain = place.file("with a space");
    std::fs::create_dir(&plain).unwrap();
    let plugin = plain.join("libnccl_profiler_ncclscope.so");
    std::fs::write(&plugin, plugin_file(&SYMBOLS)).unwrap();
    let (value, folder, said) = loading(&place, &plugin);
    assert_eq!((&*value, &*folder), ("libnccl_profiler_ncclscope.so", plain.to_str().unwrap()));
    assert_eq!(said, "");
}

#[test]
fn without_a_place_for_that_the_path_is_given_and_said() {
    let place = Place::new();
    std::fs::write(place.file("cache"), "in the way").unwrap();
    let plugin = place.file("plugin.so");
    std::fs::write(&plugin, plugin_file(&SYMBOLS)).unwrap();
    let (value, folder, said) = loading(&place, &plugin);
    assert_eq!((&*value, &*folder), (plugin.to_str().unwrap(), ""));
    assert!(said.contains("a path, which 2.27.3 does not load"), "{said}");
    let deep = place.file(&format!("{}/{}", "d".repeat(150), "e".repeat(150)));
    std::fs::create_dir_all(&deep).unwrap();
    let plugin = deep.join("plugin.so");
    std::fs::write(&plugin, plugin_file(&SYMBOLS)).unwrap();
    let outcome = Outcome::of(place.tool(&["env"]).env("NCCLSCOPE_PLUGIN", &plugin));
    assert!(outcome.ends_with(4).stderr.contains("NCCL cuts it at 254"));
}

#[test]
fn a_plugin_that_was_named_before_is_chained() {
    let place = Place::new();
    let script = "echo $NCCL_PROFILER_PLUGIN; echo $NCCLSCOPE_CHAIN";
    let args = ["run", "-o", "out", "--", "sh", "-c", script];
    let of = |values: &[(&str, &str)]| {
        let mut command = place.tool(&args);
        Outcome::of(command.envs(values.iter().copied())).ends_with(0)
    };
    let other = "/opt/libnccl-profiler-inspector.so";
    let outcome = of(&[("NCCL_PROFILER_PLUGIN", other)]);
    assert_eq!(outcome.stdout, format!("{NAME}\n{other}\n"));
    let says = format!("NCCL_PROFILER_PLUGIN names {other}: it gets every callback too");
    assert!(outcome.stderr.contains(&says), "{outcome:#?}");
    let outcome = of(&[("NCCL_PROFILER_PLUGIN", other), ("NCCLSCOPE_CHAIN", "x")]);
    assert_eq!(outcome.stdout, format!("{NAME}\nx\n"));
    let outcome = of(&[("NCCL_PROFILER_PLUGIN", NAME)]);
    assert_eq!(outcome.stdout, format!("{NAME}\n\n"));
}

#[test]
fn a_link_has_the_name_that_nccl_looks_for_without_a_variable() {
    let place = Place::new();
    let link = place.file("links/libnccl-profiler.so");
    for _ in 0..2 {
        let outcome = place.run(&["plugin-path", "--link", "links"]).ends_with(0);
        assert_eq!(outcome.stdout.trim_end(), link.to_str().unwrap());
        assert_eq!(std::fs::read_link(&link).unwrap(), place.file(PLUGIN));
        let of_rccl = place.file("links/librccl-profiler.so");
        assert_eq!(std::fs::read_link(of_rccl).unwrap(), place.file(PLUGIN));
    }
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/opt/libnccl-profiler-x.so", &link).unwrap();
    let outcome = place.run(&["plugin-path", "--link", "links"]).ends_with(4);
    assert!(outcome.stderr.contains("exists and is not a link to ncclscope"), "{outcome:#?}");
}

/// A library that contains these words: a copy of libgcc, which this test has loaded, with the
/// words appended. The loader does not look beyond the library's end.
fn library(words: &str) -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let any = maps.lines().find_map(|line| {
        line.find("/").map(|at| &line[at..]).filter(|path| path.contains("libgcc_s.so"))
    });
    let mut bytes = std::fs::read(any.expect("a Rust program has libgcc")).unwrap();
    bytes.extend(format!("\0{words}\0").bytes());
    bytes
}

/// Runs a command that has a libnccl of `release` in memory. Returns what the tool prints at its
/// end.
fn why(place: &Place, release: &str, script: &str, more: &[(&str, &str)]) -> String {
    let nccl = place.file("libnccl.so.2");
    std::fs::write(&nccl, library(&format!("NCCL version {release}+cuda12.9"))).unwrap();
    let directory =
        place.file(&format!("run{}", std::fs::read_dir(place.dir.path()).unwrap().count()));
    let script = format!("export LD_PRELOAD={}; {script}", nccl.display());
    let args = ["run", "-o", directory.to_str().unwrap(), "--", "sh", "-c", &script];
    let outcome = Outcome::of(place.tool(&args).envs(more.iter().copied())).ends_with(0);
    let [line] = outcome.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{outcome:#?}") };
    let said = line.strip_prefix("ncclscope: warning: no rank wrote a recording: ");
    said.unwrap_or_else(|| panic!("{line}")).to_owned()
}

#[test]
fn why_there_is_no_recording_is_said_in_one_line() {
    let place = Place::new();
    let said = why(&place, "2.30.7", "sleep 1.2", &[]);
    assert!(said.starts_with("sleep (pid ") && said.contains("made no communicator"), "{said}");
    let said = why(&place, "2.21.5", "sleep 1.2", &[]);
    assert!(said.contains("NCCL 2.21.5+cuda12.9 has no profiler interface"), "{said}");
    let said = why(&place, "2.30.7", "env -u NCCL_PROFILER_PLUGIN sleep 1.2", &[]);
    assert!(said.contains("NCCL_PROFILER_PLUGIN is not set: what started it dropped it"), "{said}");
    let said = why(&place, "2.27.3", "NCCL_PROFILER_PLUGIN=/x.so sleep 1.2", &[]);
    assert!(said.contains("NCCL_PROFILER_PLUGIN was changed to /x.so"), "{said}");
    let said = why(&place, "2.30.7", "LD_LIBRARY_PATH=/usr/lib sleep 1.2", &[]);
    assert!(said.contains("LD_LIBRARY_PATH lost ") && said.contains("/lib: set it last"), "{said}");
    let said = why(&place, "2.30.7", "sleep 1.2", &[("NCCLSCOPE_MODE", "off")]);
    assert_eq!(said, "NCCLSCOPE_MODE is off");
    // Another tool's plugin, which the user passed in place of ncclscope's.
    std::fs::write(place.file(PLUGIN), library("ncclProfiler_v3")).unwrap();
    let script = format!("LD_PRELOAD=\"$LD_PRELOAD {}\" sleep 1.2", place.file(PLUGIN).display());
    let said = why(&place, "2.30.7", &script, &[]);
    assert!(said.ends_with(&format!("{PLUGIN}, which is not ncclscope's plugin")), "{said}");
}

#[test]
fn a_line_of_nccls_own_log_is_repeated() {
    let place = Place::new();
    let log = place.file("logs/nccl.%h.%p");
    std::fs::create_dir(place.file("logs")).unwrap();
    let line = "h:1:2 [0] NCCL INFO PROFILER/Plugin: Could not find: libx.so. ";
    let script = format!("sh -c 'echo \"{line}\" > logs/nccl.h.77; sleep 1.2'");
    let said = why(&place, "2.30.7", &script, &[("NCCL_DEBUG_FILE", log.to_str().unwrap())]);
    let end = "(NCCL says: PROFILER/Plugin: Could not find: libx.so.)";
    assert!(said.ends_with(end), "{said}");
}

/// `run.json` tells a command that a signal ended from one that was asked to end.
#[test]
fn the_signal_that_ended_the_command_is_kept() {
    let about = |place: &Place| -> Value {
        serde_json::from_slice(&std::fs::read(place.file("out/run.json")).unwrap()).unwrap()
    };
    let place = Place::new();
    place.run(&["run", "-o", "out", "--", "sh", "-c", "kill -SEGV $$"]).ends_with(139);
    let run = about(&place);
    assert_eq!(
        (&run["exit_code"], &run["signal"], &run["asked"]),
        (&139.into(), &11.into(), &Value::Null)
    );
    let place = Place::new();
    let script = "kill -TERM $PPID; sleep 60 >/dev/null 2>&1 & wait";
    place.run(&["run", "-o", "out", "--", "sh", "-c", script]).ends_with(143);
    let run = about(&place);
    assert_eq!(
        (&run["exit_code"], &run["signal"], &run["asked"]),
        (&143.into(), &15.into(), &15.into())
    );
    // A command that ends as if it was well.
    let place = Place::new();
    place.run(&["run", "-o", "out", "--", "sh", "-c", "exit 137"]).ends_with(137);
    assert_eq!(
        (&about(&place)["exit_code"], &about(&place)["signal"]),
        (&137.into(), &Value::Null)
    );
}
