// SPDX-License-Identifier: Apache-2.0
//! Jobs of PyTorch: a script of the kit, with the plugin or without it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use super::find;
use super::row::Found;
use super::setup::Setup;

/// Code that the scripts share.
const TWO_RANKS: &str = include_str!("two_ranks.py");

/// A script that starts its own two ranks on the GPU.
#[derive(Debug)]
pub(super) struct Script<'a> {
    setup: &'a Setup,
    /// The directory of the job's recordings.
    pub(super) folder: PathBuf,
    command: Command,
}

/// PyTorch's version, or why jobs of PyTorch are skipped.
pub(super) fn version(setup: &Setup) -> Result<String, Found> {
    if setup.stand_in {
        return Err(Found::skipped("PyTorch needs a GPU"));
    }
    find::torch().ok_or_else(|| Found::skipped("python3 has no torch that sees a GPU"))
}

impl<'a> Script<'a> {
    /// A run of the script for at most `limit`, with its folder `name` and then these arguments.
    ///
    /// # Errors
    /// The script cannot be written.
    pub(super) fn new(
        setup: &'a Setup,
        name: &str,
        text: &str,
        (args, limit, has_plugin): (&[&str], Duration, bool),
    ) -> Result<Self, String> {
        let folder = setup.out.join(name);
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let script = folder.join("job.py");
        for (file, text) in [(&script, text), (&folder.join("two_ranks.py"), TWO_RANKS)] {
            std::fs::write(file, text).map_err(|e| e.to_string())?;
        }
        let mut command = Command::new("timeout");
        command.arg(limit.as_secs().to_string());
        if has_plugin {
            command.arg(setup.bin.join("ncclscope")).args(["run", "--no-report", "-o"]);
            command.arg(&folder).arg("--");
        }
        command.arg("python3").arg(&script).arg(&folder).args(args);
        command.env("NCCL_SOCKET_IFNAME", "lo").env("NCCL_NET", "Socket");
        command.env("NCCL_IB_DISABLE", "1").stdin(Stdio::null());
        Ok(Self { setup, folder, command })
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs the script; its exit status may be any.
    ///
    /// # Errors
    /// The script cannot be started.
    pub(super) fn run_anyhow(&mut self) -> Result<Output, String> {
        self.command.output().map_err(|e| format!("the job: {e}"))
    }

    /// Runs the script to its end. Returns its output.
    ///
    /// # Errors
    /// The script cannot be started, or fails.
    pub(super) fn run(&mut self) -> Result<String, String> {
        let output = self.run_anyhow()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        Err(format!("{}: {}", output.status, last.join(" | ")))
    }

    /// The report of the job's recordings, as JSON.
    ///
    /// # Errors
    /// There is no report.
    pub(super) fn report(&self) -> Result<serde_json::Value, String> {
        let text = self.setup.tool(&["report", "--format", "json"], &self.folder)?;
        std::fs::write(self.folder.join("report.json"), &text).map_err(|e| e.to_string())?;
        serde_json::from_str(&text).map_err(|e| format!("report: {e}"))
    }
}
