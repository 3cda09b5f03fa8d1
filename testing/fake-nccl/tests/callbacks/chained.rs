// SPDX-License-Identifier: Apache-2.0
//! Further profilers chained behind this plugin: the callbacks that each gets, and the plugin's
//! recording.

#[path = "../../plugins/logging.rs"]
mod plugins;

use crate::common::{Found, at_once, command, only, play_with, plugin, survive};
use fake_nccl::script;
use ncclscope_trace::{Handle, Recording};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Scripts whose threads take turns, so that the order of callbacks is fixed. Scripts that an
/// ordinary plugin does not survive alone, or that a real NCCL never plays, are left out.
const ORDERLY: [&str; 15] = [
    "sendrecv",
    "intra",
    "grouped",
    "nested",
    "graph",
    "ce",
    "phases",
    "net",
    "ctrl",
    "nonblocking",
    "restarts",
    "peer-wait",
    "unstopped",
    "toggle",
    "ptimers",
];

/// `plugins/logging.c` in each API version.
fn logging(version: usize) -> &'static Path {
    static BUILT: OnceLock<(TempDir, Vec<PathBuf>)> = OnceLock::new();
    let (_, paths) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let paths =
            fake_nccl::VERSIONS.map(|version| plugins::build(version, folder.path())).collect();
        (folder, paths)
    });
    &paths[version - 1]
}

/// The folder and the path of the plugins' logs.
struct Logs(TempDir);

impl Logs {
    fn new() -> Logs {
        Logs(tempfile::tempdir().unwrap())
    }

    fn variable(&self) -> (&'static str, PathBuf) {
        ("CHAINED_LOG", self.0.path().join("log"))
    }

    /// The log of the plugin of this version.
    fn of(&self, version: usize) -> String {
        plugins::read(&self.0.path().join("log"), version)
    }
}

/// The callbacks that the plugin gets when NCCL loads it alone.
fn alone(version: usize, script: &str, env: &[(&str, &str)]) -> String {
    let logs = Logs::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fake-nccl"));
    command.arg(logging(version)).args([&version.to_string(), script, "--ops", "3"]);
    command.envs([logs.variable()]).envs(env.iter().copied());
    survive(&mut command, &format!("v{version} {script} alone"));
    logs.of(version)
}

/// The callbacks that plugins of `versions` get behind ncclscope's plugin, which NCCL calls in
/// version `native`.
fn chained(native: usize, versions: &[usize], script: &str, env: &[(&str, &str)]) -> Logs {
    let (logs, run) = (Logs::new(), tempfile::tempdir().unwrap());
    let mut command = command(native, script, &run.path().join("run"), &["--ops", "3"]);
    let paths: Vec<_> = versions.iter().map(|&v| logging(v).to_str().unwrap()).collect();
    command.env("NCCLSCOPE_CHAIN", paths.join(",")).env("NCCLSCOPE_EVENTS", "all");
    command.envs([logs.variable()]).envs(env.iter().copied());
    survive(&mut command, &format!("v{native} {script} chained"));
    logs
}

fn exists(script: &str, version: usize) -> bool {
    script::find(script).expect("it is there").since <= version
}

#[test]
fn a_plugin_behind_ours_gets_what_it_gets_alone() {
    at_once(|version| {
        for script in ORDERLY.into_iter().filter(|script| exists(script, version)) {
            let expected = alone(version, script, &[]);
            assert!(expected.lines().count() > 10, "v{version} {script}: {expected}");
            let logs = chained(version, &[version], script, &[]);
            assert_eq!(logs.of(version), expected, "v{version} {script}");
        }
        let expected = plugins::events(&alone(version, "allreduce", &[]));
        let logs = chained(version, &[version], "allreduce", &[]);
        assert_eq!(plugins::events(&logs.of(version)), expected, "v{version}");
    });
}

/// A plugin that returns no handle for steps and kernels gets no further callbacks for them, and
/// its other events do not change.
#[test]
fn a_plugin_that_refuses_events_gets_what_it_gets_alone() {
    at_once(|version| {
        let env = [("CHAINED_NULL", "80")];
        for script in ["sendrecv", "grouped", "unstopped"] {
            let logs = chained(version, &[version], script, &env);
            assert_eq!(logs.of(version), alone(version, script, &env), "v{version} {script}");
        }
    });
}

#[test]
fn ours_off_still_chains() {
    at_once(|version| {
        let run = tempfile::tempdir().unwrap();
        let run = run.path().join("run");
        let env = [("NCCLSCOPE_MODE", "off"), ("NCCLSCOPE_DIR", run.to_str().unwrap())];
        let logs = chained(version, &[version], "grouped", &env);
        assert_eq!(logs.of(version), alone(version, "grouped", &[]), "v{version}");
        assert!(!run.exists(), "nothing is recorded");
    });
}

/// The contents of a recording without handles and times.
fn recorded(recording: &Recording) -> Vec<String> {
    let found = Found::read(recording);
    let name = |handle: Handle| match found.events.get(&handle) {
        Some(start) => without_times(&format!("{:?}", start.detail)),
        None => "none".into(),
    };
    let mut lines: Vec<String> = found
        .events
        .values()
        .map(|start| {
            let mut states: Vec<String> = found
                .states
                .iter()
                .filter(|s| s.0 == start.handle)
                .map(|s| format!("{:?} {}", s.1, s.2))
                .collect();
            states.sort();
            let stops = found.stops.get(&start.handle);
            let (own, parent) = (name(start.handle), name(start.parent));
            format!("{} {own} of {parent} {states:?} {stops:?}", start.comm)
        })
        .chain(found.steps.iter().map(|(op, step)| {
            format!("{} {} {} {} of {}", step.step, step.flags, step.size, step.repeats, name(*op))
        }))
        .collect();
    lines.sort();
    lines
}

/// The text without handles, times and string numbers, which depend on the order of threads.
fn without_times(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = ["ptimer: ", "group: ", "pid: ", "StrId("]
        .iter()
        .filter_map(|key| rest.find(key).map(|at| at + key.len()))
        .min()
    {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = &rest[rest.find([',', ')', ' ']).unwrap_or(rest.len())..];
    }
    out + rest
}

#[test]
fn ours_records_what_it_records_alone() {
    at_once(|version| {
        let env = [("NCCLSCOPE_EVENTS", "all")];
        for script in ["sendrecv", "grouped", "graph", "ce", "phases", "net", "unstopped"] {
            if !exists(script, version) {
                continue;
            }
            let alone = play_with(version, script, false, &["--ops", "3"], &env);
            let (logs, path) = (Logs::new(), logging(version).to_str().unwrap());
            let log = logs.variable().1;
            let chain = [env[0], ("NCCLSCOPE_CHAIN", path), ("CHAINED_LOG", log.to_str().unwrap())];
            let chained = play_with(version, script, false, &["--ops", "3"], &chain);
            let expected = recorded(&alone.recording);
            assert!(expected.len() > 3, "v{version} {script}");
            assert_eq!(recorded(&chained.recording), expected, "v{version} {script}");
            assert_eq!(chained.recording.header().stale, alone.recording.header().stale);
        }
    });
}

/// NCCL uses the newest table that it knows; chained plugins of older versions get the same
/// callbacks as through NCCL's own conversion.
#[test]
fn several_are_chained_each_in_its_own_version() {
    let logs = chained(7, &[7, 5, 3, 1], "sendrecv", &[]);
    assert_eq!(logs.of(7), alone(7, "sendrecv", &[]));
    for version in [1, 3, 5] {
        let log = logs.of(version);
        assert!(!log.contains("BAD"), "v{version}: {log}");
        let starts = |bit: u64| {
            let (verb, bit) = (Some("start"), bit.to_string());
            let words = log.lines().map(|line| line.split(' '));
            words.filter(|w| w.clone().next() == verb && w.clone().nth(2) == Some(&bit)).count()
        };
        let (api, kernels) = (usize::from(version >= 5), usize::from(version >= 3));
        let expected = [(1, 3), (4, 6), (8, 12), (16, 48), (64, 12 * kernels)];
        for (bit, count) in expected.into_iter().chain([(256, 3 * api), (1024, 6 * api)]) {
            assert_eq!(starts(bit), count, "v{version} {bit}: {log}");
        }
    }
    // Without GroupApi, the parent of enqueued operations is their Group.
    let log = logs.of(3);
    let group = log.lines().find(|l| l.starts_with("start") && l.contains(" 1 ctx")).unwrap();
    let p2p = log.lines().find(|l| l.starts_with("start") && l.contains(" 4 ctx")).unwrap();
    let id = group.split(' ').nth(1).unwrap();
    assert!(p2p.contains(&format!("parent={id} ")), "{group}\n{p2p}");
    assert!(p2p.contains("func=Send") && p2p.contains("peer=1"), "{p2p}");
    assert!(logs.of(1).contains("func=6 "), "NCCL's code of Send in version 1");
    let in_progress = |log: &str| log.lines().any(|l| l.starts_with("state") && l.ends_with(" 19"));
    assert!(!in_progress(&log) && in_progress(&logs.of(5)), "it came with version 4");
}

/// Plays chains on an NCCL of version 4, and checks the lines that are expected, in order.
fn left_out(chain: &[&Path], env: &[(&str, &str)], reasons: &[&str]) -> Logs {
    let (logs, run) = (Logs::new(), tempfile::tempdir().unwrap());
    let run = run.path().join("run");
    let paths: Vec<_> = chain.iter().map(|path| path.to_str().unwrap()).collect();
    let mut command = command(4, "sendrecv", &run, &["--ops", "3", "--logger", "real"]);
    command.env("NCCLSCOPE_CHAIN", paths.join(",")).env("NCCLSCOPE_EVENTS", "all");
    command.envs([logs.variable()]).envs(env.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{chain:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text.lines().filter(|l| l.contains("is left out")).collect();
    assert_eq!(lines.len(), reasons.len(), "{text}");
    for (line, reason) in lines.iter().zip(reasons) {
        assert!(line.contains(reason), "{line}: {reason}");
    }
    let kinds = Found::read(&only(&run, "left out")).kinds();
    assert_eq!(kinds.len(), 5, "ours goes on: {kinds:?}");
    logs
}

#[test]
fn what_cannot_be_chained_is_left_out_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library\n").unwrap();
    let copy = folder.path().join("copy.so");
    std::fs::copy(plugin(), &copy).unwrap();
    let good = logging(4);
    let missing = Path::new("/nowhere/libprofiler.so");
    let expected = alone(4, "sendrecv", &[]).lines().count();
    for (path, env, reason) in [
        (missing, [].as_slice(), "No such file"),
        (&text, &[], "text.so"),
        (&crate::common::allocator(), &[], "it has no ncclProfiler_v1 to ncclProfiler_v4"),
        (logging(5), &[], "it has no ncclProfiler_v1 to ncclProfiler_v4"),
        (&plugin(), &[], "it is ncclscope itself"),
        (&copy, &[], "it is ncclscope itself"),
        (logging(3), &[("CHAINED_FAIL", "8")], "its init returned 3"),
    ] {
        // The other plugins of the chain are not affected.
        let logs = left_out(&[path, good], env, &[reason]);
        assert_eq!(logs.of(4).lines().count(), expected, "{path:?}");
        assert_eq!(logs.of(3), "", "{path:?}");
    }
    left_out(&[good, good], &[], &["it is there twice"]);
    let many = [1, 2, 3, 4].map(logging);
    let many: Vec<&Path> = many.into_iter().chain([missing]).collect();
    left_out(&many, &[], &["4 are chained already"]);
}

#[test]
fn whatever_nccl_passes_no_plugin_gets_a_handle_that_it_did_not_give() {
    at_once(|version| {
        for script in ["nulls", "wild", "strangers", "chaos", "pxn", "late", "unknown", "verbose"] {
            let log = chained(version, &[version], script, &[]).of(version);
            assert!(!log.contains("BAD"), "v{version} {script}");
            assert!(log.starts_with("init 1 "), "v{version} {script}: {log:.100}");
        }
    });
}

#[test]
fn processes_and_libraries_come_and_go_with_a_chain() {
    let ends = ["reload", "comms", "exit", "fork", "dlclose", "term-flag"];
    for (end, version) in ends.into_iter().zip([7, 6, 5, 4, 3, 1]) {
        let (logs, run) = (Logs::new(), tempfile::tempdir().unwrap());
        let options = ["--end", end, "--threads", "2"];
        let mut command = command(version, "allreduce", &run.path().join("run"), &options);
        command.env("NCCLSCOPE_CHAIN", logging(version)).envs([logs.variable()]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{end}: {output:?}");
        let log = logs.of(version);
        assert!(!log.contains("BAD"), "{end}");
        let count = |verb| log.lines().filter(|line| line.starts_with(verb)).count();
        match end {
            "comms" => assert_eq!((count("init "), count("finalize ")), (16, 16)),
            "reload" => assert_eq!((count("init "), count("finalize ")), (3, 3)),
            "exit" => assert_eq!((count("init "), count("finalize ")), (1, 0)),
            _ => assert!(count("init ") > 0, "{end}"),
        }
    }
}
