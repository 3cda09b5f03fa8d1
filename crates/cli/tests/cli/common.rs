// SPDX-License-Identifier: Apache-2.0
//! Runs the tool on simulated runs.

use ncclscope_analyze::simulate::Process;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The tool, without the variables of whoever runs the tests.
pub(crate) fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ncclscope"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NCCLSCOPE_") || text.starts_with("NCCL_") {
            command.env_remove(&name);
        }
    }
    // Links to plugins that these tests make are no user's.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs the tool to its end.
pub(crate) fn ncclscope(args: &[&str]) -> Outcome {
    Outcome::of(tool().args(args))
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn of(command: &mut Command) -> Outcome {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Asserts the exit code and hands the outcome back.
    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> Outcome {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }
}

/// A run directory with two ranks.
#[derive(Debug)]
pub(crate) struct Run {
    dir: tempfile::TempDir,
}

impl Run {
    pub(crate) fn new(play: impl Fn(&mut Process)) -> Run {
        let dir = tempfile::tempdir().unwrap();
        for rank in [0, 1] {
            let mut process = Process::new(rank, 2);
            play(&mut process);
            process.write(dir.path()).unwrap();
        }
        Run { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn text(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}
