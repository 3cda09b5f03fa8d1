// SPDX-License-Identifier: Apache-2.0
/*!
Files that tests run or load as they are: the plugin, the tool, the stand-in for CUDA.

Cargo builds for a test what it links, and no more. This builds the rest, where the test itself was
built. What it does **not** do: build anything on a machine that only got the files.
*/

#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Where Cargo puts libraries and programs of the running executable's profile, `TARGET/PROFILE`:
/// the directory above `deps` or `examples` for a test, the executable's own for a program.
///
/// # Errors
/// A text: the system does not say where the executable is.
pub fn directory() -> Result<PathBuf, String> {
    let executable = env::current_exe().map_err(|e| format!("the running executable: {e}"))?;
    let own = executable.parent().unwrap_or_else(|| Path::new("/"));
    let nested = own.ends_with("deps") || own.ends_with("examples");
    Ok(if nested { own.parent().unwrap_or(own) } else { own }.to_owned())
}

/// Runs `cargo build` with `words`, such as `--package NAME`, into `directory`, `TARGET/PROFILE`.
/// Does nothing where there is no Cargo or no source.
///
/// # Errors
/// A text: the build failed, with the compiler's words.
pub fn build(directory: &Path, words: &[&str]) -> Result<(), String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !fs::exists(workspace.join("Cargo.toml")).unwrap_or(false) {
        return Ok(());
    }
    let (Some(target), Some(profile)) = (directory.parent(), directory.file_name()) else {
        return Err(format!("{} is no build directory", directory.display()));
    };
    let profile = if profile == "debug" { "dev".as_ref() } else { profile };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet"]).args(words).current_dir(workspace);
    cargo.arg("--target-dir").arg(target).arg("--profile").arg(profile);
    // Cargo set these for the running test; a build script that reads them would run again.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    match cargo.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(format!("cargo build {}: {}", words.join(" "), said.trim()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("cargo build: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_knows_its_directory() {
        let directory = directory().unwrap();
        assert!(directory.join("deps").is_dir(), "{}", directory.display());
    }

    #[test]
    fn what_does_not_build_is_named_with_cargos_words() {
        let error = build(&directory().unwrap(), &["--package", "nonesuch"]).unwrap_err();
        assert!(error.starts_with("cargo build --package nonesuch: error"), "{error}");
        assert!(build(Path::new("/"), &[]).is_err());
    }
}
