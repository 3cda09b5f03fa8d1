// SPDX-License-Identifier: Apache-2.0
//! Finds the machine's NCCL, CUDA runtime, GPU and Python.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directories in which CUDA and the distributions install their libraries.
const FOLDERS: [&str; 5] = [
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/opt/nccl/lib",
];

/// The output of a command, if it succeeds.
pub(super) fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text).filter(|text| !text.is_empty())
}

/// Directories with libraries of NVIDIA; those of Python's packages come first, since torch loads
/// them.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let path =
        output("python3", &["-c", "import sys; print('\\n'.join(p for p in sys.path if p))"]);
    for site in path.unwrap_or_default().lines() {
        let packages = Path::new(site).join("nvidia");
        let packages = std::fs::read_dir(packages).into_iter().flatten().flatten();
        folders.extend(packages.map(|package| package.path().join("lib")).collect::<BTreeSet<_>>());
    }
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    folders.extend(FOLDERS.map(PathBuf::from));
    folders
}

/// The first library whose file name begins with `name`.
pub(super) fn library(name: &str) -> Option<PathBuf> {
    let of = |folder: PathBuf| {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(name));
        files.map(|file| file.path()).min()
    };
    folders().into_iter().find_map(of)
}

/// The GPU and its driver, as `nvidia-smi` names them.
pub(super) fn gpu() -> Option<String> {
    output("nvidia-smi", &["--query-gpu=name,driver_version", "--format=csv,noheader"])
}

/// The version of torch, if Python has one that sees a GPU.
pub(super) fn torch() -> Option<String> {
    const LOOK: &str =
        "import torch; print(torch.__version__ if torch.cuda.is_available() else '')";
    output("python3", &["-c", LOOK])
}
