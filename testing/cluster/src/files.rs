// SPDX-License-Identifier: Apache-2.0
//! The built files that a job and its looks need.

use built::Artefact;
use std::path::PathBuf;

/// The files that a job needs.
#[derive(Debug)]
pub struct Files {
    /// The stand-in for CUDA.
    pub cuda: PathBuf,
    /// The program of a rank.
    pub client: PathBuf,
    /// The plugin.
    pub plugin: PathBuf,
    /// The command-line tool.
    pub tool: PathBuf,
}

impl Files {
    /// The files in the running program's profile.
    ///
    /// # Errors
    /// What is not built.
    pub fn find() -> Result<Files, String> {
        let directory = built::directory()?;
        let find = |artefact: Artefact| artefact.path_in(&directory);
        Ok(Files {
            cuda: find(built::STAND_IN)?,
            client: find(built::CLIENT)?,
            plugin: find(built::PLUGIN)?,
            tool: find(built::TOOL)?,
        })
    }
}
