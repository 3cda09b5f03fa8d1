// SPDX-License-Identifier: Apache-2.0
//! Runs the tool on simulated runs.

pub(crate) use crate::program::{Outcome, Run};

use crate::program::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tool, without the environment variables of the user who runs the tests.
pub(crate) fn tool() -> Command {
    program(env!("CARGO_BIN_EXE_ncclscope"))
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
