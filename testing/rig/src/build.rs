// SPDX-License-Identifier: Apache-2.0
//! Builds the stand-in and the rank program where the running test was built.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

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
    let directory = directory()?;
    cargo_build(&directory, &[package])?;
    Ok(directory)
}

fn make() -> Result<Artifacts, String> {
    let directory = directory()?;
    cargo_build(&directory, &["cpu-cuda", "rig"])?;
    let artifacts =
        Artifacts { cuda: directory.join("libcpu_cuda.so"), rank: directory.join("rank") };
    for file in [&artifacts.cuda, &artifacts.rank] {
        if !file.is_file() {
            return Err(format!("{} is missing and there is no cargo", file.display()));
        }
    }
    Ok(artifacts)
}

/// Where Cargo puts libraries and programs of the running executable's profile: the directory
/// above `deps` or `examples` for a test, the executable's own for a program.
fn directory() -> Result<PathBuf, String> {
    let executable = env::current_exe().map_err(|e| format!("the running executable: {e}"))?;
    let own = executable.parent().unwrap_or_else(|| Path::new("/"));
    let nested = own.ends_with("deps") || own.ends_with("examples");
    Ok(if nested { own.parent().unwrap_or(own) } else { own }.to_owned())
}

/// Builds packages into `directory`, `TARGET/PROFILE`; does nothing where there is no Cargo.
fn cargo_build(directory: &Path, packages: &[&str]) -> Result<(), String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !fs::exists(workspace.join("Cargo.toml")).unwrap_or(false) {
        return Ok(());
    }
    let (Some(target), Some(profile)) = (directory.parent(), directory.file_name()) else {
        return Err(format!("{} is no build directory", directory.display()));
    };
    let profile = if profile == "debug" { "dev".as_ref() } else { profile };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--offline"]).current_dir(workspace);
    cargo.arg("--target-dir").arg(target).arg("--profile").arg(profile);
    for package in packages {
        cargo.args(["--package", package]);
    }
    // Cargo set these for the running test; a build script that reads them would run again.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    match cargo.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!("cargo build: {}", String::from_utf8_lossy(&done.stderr).trim())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("cargo build: {error}")),
    }
}
