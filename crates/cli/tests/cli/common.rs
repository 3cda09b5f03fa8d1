// SPDX-License-Identifier: Apache-2.0
//! Runs the tool on simulated runs.

use scripts::Process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The tool, without the environment variables of the user who runs the tests.
pub(crate) fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ncclscope"));
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

/// A file that the tool takes for a plugin as long as it is not loaded: the headers of a library
/// with one segment, and the names of symbols.
pub(crate) fn plugin_file(symbols: &[&str]) -> Vec<u8> {
    let names: String = symbols.iter().map(|name| format!("\0{name}")).collect();
    let length = 64 + 56 + names.len() as u64 + 1;
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([3, machine].iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend(1_u32.to_le_bytes());
    // No entry point, program headers after this header, no sections.
    bytes.extend([0_u64, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend([64_u16, 56, 1, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend([1_u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    let segment = [0, 0, 0, length, length, 0x1000];
    bytes.extend(segment.iter().flat_map(|word: &u64| word.to_le_bytes()));
    bytes.extend(names.bytes().chain([0]));
    bytes
}

/// The symbols that the tool expects in a plugin of this release.
pub(crate) const SYMBOLS: [&str; 8] = [
    "ncclProfiler_v1",
    "ncclProfiler_v2",
    "ncclProfiler_v3",
    "ncclProfiler_v4",
    "ncclProfiler_v5",
    "ncclProfiler_v6",
    "ncclProfiler_v7",
    "ncclscope_version",
];

/// Runs the tool until it ends.
pub(crate) fn ncclscope(args: &[&str]) -> Outcome {
    Outcome::of(tool().args(args))
}

/// Simulates a job into `dir/name`.
pub(crate) fn simulate(dir: &Path, name: &str, scenario: &str, args: &[&str]) -> PathBuf {
    let (file, out) = (dir.join("scenario.toml"), dir.join(name));
    fs::write(&file, scenario).unwrap();
    let fixed = ["simulate", file.to_str().unwrap(), "-o", out.to_str().unwrap()];
    ncclscope(&[&fixed[..], args].concat()).ends_with(0);
    fs::remove_file(out.join("truth.json")).unwrap();
    out
}

/// The recordings of a directory, by name.
pub(crate) fn recordings(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.to_string_lossy().contains(".nscope")).collect();
    files.sort();
    files
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
