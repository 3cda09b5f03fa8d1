// SPDX-License-Identifier: Apache-2.0
//! The paths of the stand-in, the rank program and the product, in the running test's profile.

use built::Artefact;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Paths of the files that a rank needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifacts {
    /// `libcpu_cuda.so`, the CPU stand-in for CUDA.
    pub cuda: PathBuf,
    /// `rank`, the program of one rank.
    pub rank: PathBuf,
}

/// The stand-in and the rank program, in the profile of the running executable, beside it.
///
/// # Errors
/// A text: see [`built::Artefact::path`].
pub fn artifacts() -> Result<&'static Artifacts, String> {
    static ARTIFACTS: OnceLock<Result<Artifacts, String>> = OnceLock::new();
    let find = || Ok(Artifacts { cuda: built::STAND_IN.path()?, rank: built::RANK.path()? });
    ARTIFACTS.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// The plugin.
///
/// # Panics
/// If it is missing and does not build. The other functions that return a path panic likewise.
#[must_use]
pub fn plugin() -> PathBuf {
    path(built::PLUGIN)
}

/// The command-line tool. The agent, which it starts, is next to it.
#[must_use]
pub fn tool() -> PathBuf {
    let _agent = agent();
    path(built::TOOL)
}

/// The agent.
#[must_use]
pub fn agent() -> PathBuf {
    path(built::AGENT)
}

/// The program that checks recordings against the invariants.
#[must_use]
pub fn check() -> PathBuf {
    path(built::CHECK)
}

/// The program that starts ranks, see [`crate::job`].
#[must_use]
pub fn job() -> PathBuf {
    path(built::JOB)
}

fn path(artefact: Artefact) -> PathBuf {
    artefact.path().expect("it is built")
}
