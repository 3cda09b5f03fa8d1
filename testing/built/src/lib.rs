// SPDX-License-Identifier: Apache-2.0
/*!
Files that tests run or load as they are: the plugin, the tool, the stand-in for CUDA.

Cargo builds for a test what it links, and no more. `cargo xtask test` builds the rest once, before
the first test, and says so in [`VARIABLE`]; then this only finds the files. Under a plain `cargo
test` each test builds what it needs, where it was built itself. A program never builds: it takes
the files beside it, which may be all that the machine has.
*/

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The environment variable with the target directory in which all files are built.
pub const VARIABLE: &str = "XTASK_BUILT";

/// A file that Cargo builds from a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Artefact {
    package: &'static str,
    example: Option<&'static str>,
    /// Path in `TARGET/PROFILE`.
    file: &'static str,
}

/// The plugin.
pub const PLUGIN: Artefact = Artefact::new("ncclscope-plugin", "libnccl_profiler_ncclscope.so");
/// The command-line tool.
pub const TOOL: Artefact = Artefact::new("ncclscope-cli", "ncclscope");
/// The agent, which the tool starts.
pub const AGENT: Artefact = Artefact::new("ncclscope-agent", "ncclscope-agent");
/// The stand-in for CUDA.
pub const STAND_IN: Artefact = Artefact::new("cpu-cuda", "libcpu_cuda.so");
/// The program of one rank.
pub const RANK: Artefact = Artefact::new("rig", "rank");
/// The program that starts the ranks of a job.
pub const JOB: Artefact = Artefact::new("rig", "job");
/// The program of one rank in a cluster in a box.
pub const CLIENT: Artefact = Artefact::new("cluster", "client");
/// The program that checks recordings against the invariants.
pub const CHECK: Artefact = Artefact::new("invariants", "check");
/// The program that plays callbacks.
pub const FAKE_NCCL: Artefact = Artefact::new("fake-nccl", "fake-nccl");
/// The library for `LD_PRELOAD` from `fake-nccl/examples/allocator.rs`.
pub const ALLOCATOR: Artefact =
    Artefact { package: "fake-nccl", example: Some("allocator"), file: "examples/liballocator.so" };
/// The stand-in for AMD's library from `fake-nccl/examples/rccl.rs`.
pub const RCCL: Artefact =
    Artefact { package: "fake-nccl", example: Some("rccl"), file: "examples/librccl.so" };
/// The plugin that breaks the contract on purpose, `stepper/examples/planted.rs`.
pub const PLANTED: Artefact =
    Artefact { package: "stepper", example: Some("planted"), file: "examples/libplanted.so" };

impl Artefact {
    const fn new(package: &'static str, file: &'static str) -> Artefact {
        Artefact { package, example: None, file }
    }

    /// Path in the running executable's profile directory; see [`Artefact::path_in`].
    ///
    /// # Errors
    /// A text: the file is not there and cannot be built.
    pub fn path(&self) -> Result<PathBuf, String> {
        self.path_in(&directory()?)
    }

    /// Path in `directory` (`TARGET/PROFILE`). Builds the file first if the caller is a test and
    /// nothing was built for it.
    ///
    /// # Errors
    /// A text: the build failed, with the compiler's messages, or the file is not there.
    pub fn path_in(&self, directory: &Path) -> Result<PathBuf, String> {
        let words = self.words(directory)?;
        if is_test()? && !is_built(directory) {
            build(directory, &words)?;
        }
        let file = directory.join(self.file);
        let hint = || {
            let words = words.join(" ");
            format!("no {}: run `cargo xtask test`, or `cargo build {words}`", file.display())
        };
        if file.is_file() { Ok(file) } else { Err(hint()) }
    }

    /// The arguments of `cargo build` for the file.
    fn words<'a>(&self, directory: &'a Path) -> Result<Vec<&'a str>, String> {
        let profile = directory.file_name().and_then(|name| name.to_str());
        let profile = match profile.ok_or_else(|| no_directory(directory))? {
            "debug" => "dev",
            other => other,
        };
        let example = self.example.map(|example| ["--example", example]);
        let words = ["--package", self.package, "--profile", profile].into_iter();
        Ok(words.chain(example.into_iter().flatten()).collect())
    }
}

/// The directory `TARGET/PROFILE` of the libraries and programs of the running executable's
/// profile: the directory above `deps` for a test, the executable's own for a program.
///
/// # Errors
/// A text: the path of the executable is unknown.
pub fn directory() -> Result<PathBuf, String> {
    let own = own_directory()?;
    let above = own.parent().filter(|_| own.ends_with("deps"));
    Ok(above.map_or_else(|| own.clone(), Path::to_owned))
}

/// True for a test: of all executables, Cargo puts only tests into `deps`.
fn is_test() -> Result<bool, String> {
    Ok(own_directory()?.ends_with("deps"))
}

fn own_directory() -> Result<PathBuf, String> {
    let executable = env::current_exe().map_err(|e| format!("the running executable: {e}"))?;
    Ok(executable.parent().unwrap_or_else(|| Path::new("/")).to_owned())
}

/// True if [`VARIABLE`] says that everything below `directory` is built.
fn is_built(directory: &Path) -> bool {
    env::var_os(VARIABLE).is_some_and(|target| directory.starts_with(target))
}

fn no_directory(directory: &Path) -> String {
    format!("{} is no build directory", directory.display())
}

/// Runs `cargo build` with `words` into `directory`.
fn build(directory: &Path, words: &[&str]) -> Result<(), String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !fs::exists(workspace.join("Cargo.toml")).unwrap_or(false) {
        return Ok(());
    }
    let target = directory.parent().ok_or_else(|| no_directory(directory))?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet"]).args(words).current_dir(workspace);
    cargo.arg("--target-dir").arg(target);
    // Cargo set these variables for the running test; a build script that reads them would run
    // again.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    let done = cargo.output().map_err(|error| format!("cargo build: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("cargo build {}: {}", words.join(" "), said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_knows_its_directory() {
        let directory = directory().unwrap();
        assert!(directory.join("deps").is_dir(), "{}", directory.display());
        assert_eq!(is_test(), Ok(true));
    }

    #[test]
    fn what_does_not_build_is_named_with_cargos_words() {
        let error = build(&directory().unwrap(), &["--package", "nonesuch"]).unwrap_err();
        assert!(error.starts_with("cargo build --package nonesuch: error"), "{error}");
        assert!(PLUGIN.path_in(Path::new("/")).is_err());
    }

    #[test]
    fn what_cargo_makes_is_asked_of_it_by_name() {
        let words = PLANTED.words(Path::new("/target/debug")).unwrap().join(" ");
        assert_eq!(words, "--package stepper --profile dev --example planted");
        let words = PLUGIN.words(Path::new("/target/dist")).unwrap().join(" ");
        assert_eq!(words, "--package ncclscope-plugin --profile dist");
    }

    #[test]
    fn a_file_that_is_not_there_is_named_with_a_command() {
        let nothing = Artefact::new("built", "nonesuch");
        let error = nothing.path().unwrap_err();
        let expected =
            "nonesuch: run `cargo xtask test`, or `cargo build --package built --profile";
        assert!(error.contains(expected), "{error}");
    }
}
