// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask nccl`: real NCCL releases for the tests, from NVIDIA's wheels.
//!
//! A release is stored at `DIR/cuNN-VERSION/libnccl.so.2`, where `DIR` is `$NCCLSCOPE_NCCL_DIR` or
//! `$HOME/.cache/ncclscope/nccl`. It appears there complete or not at all, and is never fetched
//! twice. No part of a wheel enters the repository or a package of ours.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, value_parser};

use crate::outcome::Outcome;
use crate::process;

const LIBRARY: &str = "libnccl.so.2";

/// Copies the library out of the wheel in its first argument, a folder, to its second, a file. A
/// wheel is a ZIP file, and Python is present anyway because of pip.
const UNPACK: &str = "
import glob, shutil, sys, zipfile
[wheel] = glob.glob(sys.argv[1] + '/*.whl')
with zipfile.ZipFile(wheel) as archive:
    [name] = [name for name in archive.namelist() if name.endswith('/libnccl.so.2')]
    with archive.open(name) as source, open(sys.argv[2], 'wb') as target:
        shutil.copyfileobj(source, target, 1 << 20)
";

/// A release of NCCL as a wheel has it.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct Release {
    /// NCCL's version, such as 2.30.7
    #[arg(value_parser = version)]
    version: String,
    /// The CUDA that the wheel is built for: 12 or 13
    #[arg(long, default_value_t = 12, value_parser = value_parser!(u8).range(12..=13))]
    cuda: u8,
}

/// What `cargo xtask nccl` does; both print where the library is.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Fetch a release unless it is there
    Fetch(Release),
    /// Print where a release is
    Path(Release),
}

/// Reads a version that a wheel can have.
pub(crate) fn version(text: &str) -> Result<String, String> {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
    let is_version = plain && text.starts_with(|c: char| c.is_ascii_digit());
    is_version
        .then(|| text.to_owned())
        .ok_or_else(|| format!("`{text}` is no NCCL version, such as 2.30.7"))
}

impl Release {
    /// The release built for CUDA 12 or 13; an error for a version that no wheel can have.
    pub(crate) fn new(text: &str, cuda: u8) -> Result<Self, String> {
        Ok(Self { version: version(text)?, cuda })
    }

    /// The path of the release's library, whether it exists or not.
    pub(crate) fn library(&self) -> Outcome<PathBuf> {
        let folder = match std::env::var_os("NCCLSCOPE_NCCL_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => cache()?.join("nccl"),
        };
        Ok(folder.join(format!("cu{}-{}", self.cuda, self.version)).join(LIBRARY))
    }

    /// Fetches the release unless it is there; returns its path.
    pub(crate) fn fetch(&self) -> Outcome<PathBuf> {
        let library = self.library()?;
        if library.is_file() {
            return Ok(library);
        }
        let folder = library.parent().ok_or("a library lies in a folder")?;
        let mut scratch = folder.as_os_str().to_owned();
        scratch.push(format!(".tmp{}", std::process::id()));
        let scratch = Scratch::new(scratch.into())?;
        self.download(&scratch.0)?;
        let unpacked = scratch.0.join(LIBRARY);
        let wheel = scratch.0.as_path();
        process::stdout(process::command(&["python3", "-c", UNPACK]).arg(wheel).arg(&unpacked))?;
        std::fs::create_dir_all(folder)?;
        std::fs::rename(&unpacked, &library)?;
        Ok(library)
    }

    fn download(&self, folder: &Path) -> Outcome<()> {
        let wheel = format!("nvidia-nccl-cu{}=={}", self.cuda, self.version);
        process::stdout(&mut process::command(&["python3", "-m", "pip", "--version"]))
            .map_err(|error| format!("fetching {wheel} needs python3 with pip: {error}"))?;
        let words = "python3 -m pip --disable-pip-version-check download --quiet --no-cache-dir \
                     --no-deps --only-binary=:all: -d";
        let mut pip = process::command(&words.split_whitespace().collect::<Vec<_>>());
        process::check(pip.arg(folder).arg(&wheel))
            .map_err(|error| format!("cannot fetch {wheel}: {error}").into())
    }
}

/// Fetches the missing releases, two at a time: each is about 300 MB, twice that while it is
/// unpacked.
pub(crate) fn fetch_all(releases: &[Release]) -> Outcome<()> {
    for pair in releases.chunks(2) {
        // Errors are text, because `Outcome`'s cannot leave its thread.
        let fetch = |release: &Release| release.fetch().map_err(|error| error.to_string());
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                pair.iter().map(|release| scope.spawn(move || fetch(release))).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        for result in results {
            result.map_err(|_| "a fetch panicked")??;
        }
    }
    Ok(())
}

/// A folder that is removed when this is dropped, also when a fetch fails half-way.
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: PathBuf) -> Outcome<Self> {
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Remaining files in a cache are no reason to fail a fetch.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The folder of everything that tasks fetch and keep: `$HOME/.cache/ncclscope`.
pub(crate) fn cache() -> Outcome<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    Ok(PathBuf::from(home.ok_or("HOME is not set")?).join(".cache/ncclscope"))
}

/// Fetches or finds a release, and prints where its library is.
pub(crate) fn run(verb: &Verb) -> Outcome {
    let library = match verb {
        Verb::Fetch(release) => release.fetch()?,
        Verb::Path(release) => release.library()?,
    };
    let (Verb::Fetch(Release { version, cuda }) | Verb::Path(Release { version, cuda })) = verb;
    if !library.is_file() {
        let hint = format!("cargo xtask nccl fetch {version} --cuda {cuda}");
        return Err(format!("{} is not there; `{hint}` gets it", library.display()).into());
    }
    println!("{}", library.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        let release = |version: &str, cuda| Release { version: version.into(), cuda };
        assert_eq!(crate::options::<Release>("2.28.9").expect("a release"), release("2.28.9", 12));
        for words in ["2.26.2.post1 --cuda 13", "--cuda 13 2.26.2.post1"] {
            let read = crate::options::<Release>(words).expect(words);
            assert_eq!(read, release("2.26.2.post1", 13));
        }
        for words in ["", "2.28.9 --cuda 11", "../x", "x"] {
            crate::options::<Release>(words).expect_err(words);
        }
    }

    #[test]
    fn scratch_folders_go_away() {
        let folder = std::env::temp_dir().join(format!("xtask-scratch-{}", std::process::id()));
        let scratch = Scratch::new(folder.clone()).expect("a folder");
        std::fs::write(folder.join("wheel"), "x").expect("a file");
        drop(scratch);
        assert!(!folder.exists());
    }
}
