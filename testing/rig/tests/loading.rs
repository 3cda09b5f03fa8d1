// SPDX-License-Identifier: Apache-2.0
//! How each NCCL release finds a profiler plugin (`docs/loading.md`); with `ncclscope run`, each
//! release loads ncclscope's plugin.

use rig::job::Job;
use rig::{build, wheel};
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NAME: &str = "libnccl-profiler-ncclscope.so";

/// The tool, the program `job`, and folders with the plugin under several names.
struct Installation {
    tool: PathBuf,
    job: PathBuf,
    built: PathBuf,
    folder: tempfile::TempDir,
}

impl Installation {
    fn new() -> Installation {
        build::artifacts().expect("the stand-in builds");
        let installation = Installation {
            tool: build::tool(),
            job: build::job(),
            built: build::plugin(),
            folder: tempfile::tempdir().expect("a folder"),
        };
        for name in [NAME, "plugin.so"] {
            symlink(&installation.built, installation.folder.path().join(name)).expect("a link");
        }
        installation
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("text").to_owned()
    }

    /// Whether a single rank loads the plugin with these variables.
    fn loads(&self, nccl: &Path, variables: &[(&str, &str)]) -> bool {
        let record = tempfile::tempdir().expect("a folder");
        let mut job = Job::new(nccl).expect("the stand-in builds").hosts(1);
        // Cargo sets a library path for its tests, with the folder in which the plugin is built.
        job = job.env("LD_LIBRARY_PATH", "");
        for (name, value) in variables {
            job = job.env(name, value);
        }
        let job = job.env("NCCLSCOPE_DIR", record.path()).env("NCCLSCOPE_CONTROL", "off");
        job.steps(["allreduce:256"]).run().expect("it starts").expect_success();
        records(record.path()) > 0
    }

    /// `ncclscope run` of two ranks, as a user runs it.
    fn run(&self, nccl: &Path, record: &Path, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(&self.tool);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NCCL") {
                command.env_remove(name);
            }
        }
        command.env_remove("LD_LIBRARY_PATH");
        command.args(["run", "-o"]).arg(record).arg("--").args(["env"]);
        command
            .args(variables.iter().map(|(name, value)| OsString::from(format!("{name}={value}"))));
        command.arg(&self.job).arg("--nccl").arg(nccl).args(["allreduce:4096", "sleep:300"]);
        let output = command.env("NCCLSCOPE_PLUGIN", &self.built).output();
        let output = output.expect("the tool starts");
        assert!(output.status.success(), "{output:?}");
        output
    }
}

fn records(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    files.filter(|file| file.path().extension().is_some_and(|end| end == "nscope")).count()
}

/// A release as a list of numbers, to sort by.
fn number(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().expect("a number")).collect()
}

/// The table of `docs/loading.md`, checked on releases that changed it, their neighbours and the
/// newest.
#[test]
fn each_release_looks_for_a_plugin_in_its_own_way() {
    let installation = Installation::new();
    let (folder, path) =
        (installation.folder.path().to_str().expect("text"), installation.path(NAME));
    let (odd, links) = (installation.path("plugin.so"), installation.path("links"));
    let mut link = Command::new(&installation.tool);
    link.args(["plugin-path", "--link", &links]).env("NCCLSCOPE_PLUGIN", &installation.built);
    assert!(link.status().expect("the tool starts").success());
    let list = ("LD_LIBRARY_PATH", folder);
    let plugin = "NCCL_PROFILER_PLUGIN";
    for version in ["2.23.4", "2.25.1", "2.26.5", "2.27.3", "2.27.7", "2.28.9", "2.32.3"] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let has_paths = version != "2.27.3";
        // The variables, and whether the release loads the plugin.
        let cases: [(&[(&str, &str)], bool); 8] = [
            (&[(plugin, NAME), list], true),
            (&[(plugin, NAME)], false),
            (&[(plugin, &path), list], has_paths),
            (&[(plugin, "ncclscope"), list], number(version) >= number("2.26.0")),
            (&[(plugin, "plugin.so"), list], has_paths),
            // No variable names the plugin: the link that the tool makes has NCCL's default name.
            (&[("LD_LIBRARY_PATH", &links)], true),
            // The SONAME of a library that the process has already loaded, from any file.
            (&[(plugin, NAME), ("LD_PRELOAD", &odd)], true),
            (&[(plugin, "STATIC_PLUGIN"), ("LD_PRELOAD", &odd)], has_paths),
        ];
        for (variables, loads) in cases {
            assert_eq!(installation.loads(&nccl, variables), loads, "{version} {variables:?}");
        }
    }
}

#[test]
fn run_records_on_every_release() {
    let installation = Installation::new();
    for version in wheel::TESTED {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let output = installation.run(&nccl, record.path(), &[]);
        assert_eq!(records(record.path()), 2, "{version} {output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("\nTIME IN NCCL") && said.contains(version), "{version} {said}");
    }
}

/// A user of torch 2.8 used to get no recording, and no message.
#[test]
fn run_says_why_there_is_no_recording() {
    let installation = Installation::new();
    let Some(nccl) = wheel::find_or_skip("2.27.3") else { return };
    let path = installation.path(NAME);
    for (variables, says) in [
        (
            vec![("NCCL_PROFILER_PLUGIN", &*path)],
            format!("NCCL_PROFILER_PLUGIN was changed to {path}"),
        ),
        (vec![("LD_LIBRARY_PATH", "/usr/lib")], "LD_LIBRARY_PATH lost ".to_owned()),
        (vec![("NCCLSCOPE_MODE", "off")], "has NCCLSCOPE_MODE=off".to_owned()),
    ] {
        let record = tempfile::tempdir().expect("a folder");
        let output = installation.run(&nccl, record.path(), &variables);
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().filter(|line| line.starts_with("ncclscope: ")).collect();
        let [line] = lines[..] else { panic!("{variables:?} {said}") };
        assert!(line.contains("no rank wrote a recording: ") && line.contains(&says), "{line}");
    }
}
