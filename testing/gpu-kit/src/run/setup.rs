// SPDX-License-Identifier: Apache-2.0
//! What all parts share: the files, NCCL's release, and how much is done.

use ncclscope_control::releases::{self, Release};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::row::Found;

/// What all parts share.
#[derive(Debug)]
pub(super) struct Setup {
    /// The kit's programs.
    pub(super) bin: PathBuf,
    /// Where recordings and results go.
    pub(super) out: PathBuf,
    pub(super) nccl: PathBuf,
    pub(super) cuda: PathBuf,
    /// Such as 23007.
    pub(super) version: u32,
    /// On the CPU stand-in: a dry run, whose times say nothing of a GPU.
    pub(super) stand_in: bool,
    /// As little as shows that a part works.
    pub(super) small: bool,
}

impl Setup {
    /// A number for a GPU, and one for a small run.
    pub(super) fn scale<T>(&self, full: T, small: T) -> T {
        if self.small { small } else { full }
    }

    /// Whether one process may have both ranks here.
    pub(super) fn has_threads(&self) -> bool {
        self.stand_in || self.version >= 23003
    }

    /// What this release does with kernel channel events.
    pub(super) fn kernel_events(&self) -> &'static Release {
        releases::of_release(self.version)
    }

    pub(super) fn without_threads(&self) -> Found {
        let text = "one GPU for two ranks of a process needs NCCL 2.30.3 or later";
        Found::skipped(format!("{text}, this is {}", self.version))
    }

    /// A folder with what the loader must find by name.
    pub(super) fn library_path(&self) -> String {
        let own = self.out.join("lib").display().to_string();
        match std::env::var("LD_LIBRARY_PATH") {
            Ok(path) if !path.is_empty() => format!("{own}:{path}"),
            _ => own,
        }
    }

    /// Control sockets: their names must be short.
    pub(super) fn control(&self) -> PathBuf {
        std::env::temp_dir().join(format!("gpu-kit-{}", std::process::id()))
    }

    /// Runs the tool and returns what it prints, whatever its exit status.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn tool(&self, args: &[&str], path: &Path) -> Result<String, String> {
        let mut command = Command::new(self.bin.join("ncclscope"));
        command.args(args).arg(path).stdin(Stdio::null());
        command.env("NCCLSCOPE_CONTROL", self.control());
        let output = command.output().map_err(|e| format!("ncclscope: {e}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
