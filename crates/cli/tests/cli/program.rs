// SPDX-License-Identifier: Apache-2.0
//! Runs a program of ours on recordings. The tests of the agent use this module, too.

use scripts::Process;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program, without the environment variables of the user who runs the tests.
pub(crate) fn program(file: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(file);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NCCLSCOPE_") || text.starts_with("NCCL_") {
            command.env_remove(&name);
        }
    }
    // The tests must not depend on the launcher under which they run.
    for name in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_RANK"] {
        command.env_remove(name);
    }
    // The tests must not depend on the user's terminal settings.
    for name in ["NO_COLOR", "PAGER", "LESS"] {
        command.env_remove(name);
    }
    // These tests must not put links into the user's cache.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// The output and exit code of a program.
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

    /// Asserts the exit code and returns the outcome.
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
