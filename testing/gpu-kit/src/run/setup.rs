// SPDX-License-Identifier: Apache-2.0
//! The settings that all parts share: files, NCCL's release, and the amount of work.

use ncclscope_control::releases::{self, Release};
use ncclscope_trace::Vendor;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::row::Found;

/// The settings that all parts share.
#[derive(Debug)]
pub(super) struct Setup {
    /// Directory of the kit's programs.
    pub(super) bin: PathBuf,
    /// Directory for recordings and results.
    pub(super) out: PathBuf,
    pub(super) nccl: PathBuf,
    pub(super) cuda: PathBuf,
    /// NCCL's version code, such as 23007.
    pub(super) version: u32,
    /// Whether this is a dry run on the CPU stand-in, whose times say nothing about a GPU.
    pub(super) stand_in: bool,
    /// Whether to do only enough to show that a part works.
    pub(super) small: bool,
}

impl Setup {
    /// Chooses between the number for a whole run and that for a small run.
    pub(super) fn scale<T>(&self, full: T, small: T) -> T {
        if self.small { small } else { full }
    }

    /// Whether one process can have both ranks.
    pub(super) fn has_threads(&self) -> bool {
        self.stand_in || self.version >= 23003
    }

    /// The behaviour of this release with kernel channel events.
    pub(super) fn kernel_events(&self) -> &'static Release {
        releases::of_release(Vendor::Nvidia, self.version)
    }

    pub(super) fn without_threads(&self) -> Found {
        let text = "one GPU for two ranks of a process needs NCCL 2.30.3 or later";
        Found::skipped(format!("{text}, this is {}", self.version))
    }

    /// The folder with the files that the loader must find by name.
    pub(super) fn library_path(&self) -> String {
        let own = self.out.join("lib").display().to_string();
        match std::env::var("LD_LIBRARY_PATH") {
            Ok(path) if !path.is_empty() => format!("{own}:{path}"),
            _ => own,
        }
    }

    /// The folder of control sockets, whose paths must be short.
    pub(super) fn control(&self) -> PathBuf {
        std::env::temp_dir().join(format!("gpu-kit-{}", std::process::id()))
    }

    /// Runs the tool and returns its output, whatever its exit status.
    ///
    /// # Errors
    /// The tool cannot be started.
    pub(super) fn tool(&self, args: &[&str], path: &Path) -> Result<String, String> {
        let mut command = Command::new(self.bin.join("ncclscope"));
        command.args(args).arg(path).stdin(Stdio::null());
        command.env("NCCLSCOPE_CONTROL", self.control());
        let output = command.output().map_err(|e| format!("ncclscope: {e}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
