// SPDX-License-Identifier: Apache-2.0
//! The verbs about the command line itself.

use clap_complete::Shell;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages, one for each verb; created if missing
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
