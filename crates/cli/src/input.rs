// SPDX-License-Identifier: Apache-2.0
/*!
Finds and opens the recordings of a run.

If some recordings of a directory cannot be read, each of them gets a warning, and the verb prints
the result of the others and exits with the code for bad input. A report that silently lacks a rank
would be worse than one that fails a script.
*/

use crate::failure::{BAD_INPUT, Failure, warn};
use ncclscope_control::directories::is_recording;
use ncclscope_report::parallel::in_order;
use ncclscope_trace::Recording;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The recordings of a run.
#[derive(Debug)]
pub(crate) struct Input {
    /// The readable recordings, by file name.
    pub(crate) recordings: Vec<Recording>,
    /// The content of `run.json`, if `ncclscope run` created the directory.
    pub(crate) run: Option<serde_json::Value>,
    /// How many could not be read.
    bad: usize,
}

impl Input {
    /// Opens a run directory or a single recording.
    pub(crate) fn open(path: &Path) -> Result<Input, Failure> {
        let metadata = std::fs::metadata(path)
            .map_err(|e| Failure::input(format!("cannot read {}: {e}", path.display())))?;
        if !metadata.is_dir() {
            let recording = Recording::open(path)
                .map_err(|e| Failure::input(format!("cannot read {}: {e}", path.display())))?;
            return Ok(Input { recordings: vec![recording], run: None, bad: 0 });
        }
        let files = recordings_in(path)
            .map_err(|e| Failure::input(format!("cannot read {}: {e}", path.display())))?;
        if files.is_empty() {
            return Err(Failure::input(format!(
                "no recordings (*.nscope) in {}: NCCL did not load the plugin, or no process used \
                 NCCL; `ncclscope doctor` checks the former",
                path.display()
            )));
        }
        let input = Input::open_all(path, &files);
        if input.recordings.is_empty() {
            let text = format!("none of the {} recordings can be read", files.len());
            return Err(Failure::input(format!("{text} in {}", path.display())));
        }
        Ok(input)
    }

    fn open_all(directory: &Path, files: &[PathBuf]) -> Input {
        allow_open_files();
        let run = std::fs::read(directory.join("run.json")).ok();
        let mut input = Input {
            recordings: Vec::with_capacity(files.len()),
            run: run.and_then(|bytes| serde_json::from_slice(&bytes).ok()),
            bad: 0,
        };
        let open = |file: &PathBuf| Recording::open(file);
        in_order(files, open, |index, recording| {
            progress(index, files.len());
            match recording {
                Ok(recording) => input.recordings.push(recording),
                Err(error) => {
                    warn(format_args!("cannot read {}: {error}", files[index].display()));
                    input.bad += 1;
                }
            }
        });
        input
    }

    /// The exit code after the readable recordings were processed.
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(BAD_INPUT) }
    }
}

/// Raises the soft limit of open files, usually 1024: recordings stay open while they are read.
pub(crate) fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The recordings in a directory, sorted by name.
pub(crate) fn recordings_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_recording(&name) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Shows a progress line on a terminal, except for quick work.
pub(crate) fn progress(done: usize, all: usize) {
    if all >= 16 && io::stderr().is_terminal() {
        let _ = write!(
            io::stderr(),
            "\r\x1b[K{}",
            if done + 1 < all { format!("reading {} of {all}", done + 1) } else { String::new() }
        );
    }
}
