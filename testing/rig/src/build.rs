// SPDX-License-Identifier: Apache-2.0
//! Builds the stand-in and the rank program where the running test was built.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The files that a rank needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifacts {
    /// `libcpu_cuda.so`, the CPU stand-in for CUDA.
    pub cuda: PathBuf,
    /// `rank`, the program of one rank.
    pub rank: PathBuf,
}

/// Makes sure that the stand-in and the rank program exist and are up to date, once per process.
///
/// They are built with Cargo into the directory and in the profile of the running executable.
/// Without a Cargo, as on a machine that only got the files, those beside the executable are used
/// as they are.
///
/// # Errors
/// A text: the build failed, with the compiler's words, or the files are not there.
pub fn artifacts() -> Result<&'static Artifacts, String> {
    static ARTIFACTS: OnceLock<Result<Artifacts, String>> = OnceLock::new();
    ARTIFACTS.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// Builds `package` (its libraries and programs) as [`artifacts`] does and returns the directory
/// that holds them.
///
/// # Errors
/// As [`artifacts`].
pub fn package(package: &str) -> Result<PathBuf, String> {
    let directory = built::directory()?;
    built::build(&directory, &["--package", package])?;
    Ok(directory)
}

fn make() -> Result<Artifacts, String> {
    let directory = built::directory()?;
    built::build(&directory, &["--package", "cpu-cuda", "--package", "rig"])?;
    let artifacts =
        Artifacts { cuda: directory.join("libcpu_cuda.so"), rank: directory.join("rank") };
    for file in [&artifacts.cuda, &artifacts.rank] {
        if !file.is_file() {
            return Err(format!("{} is missing and there is no cargo", file.display()));
        }
    }
    Ok(artifacts)
}
