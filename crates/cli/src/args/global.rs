// SPDX-License-Identifier: Apache-2.0
//! Options of all verbs, and the verbs about the command line itself.

use clap::{ArgAction, ColorChoice};
use clap_complete::Shell;
use std::path::PathBuf;

/// Options of all verbs.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Options of all verbs")]
pub(crate) struct GlobalArgs {
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: ColorChoice,
    /// Do not show long text in a pager (PAGER, else less)
    #[arg(long, global = true)]
    pub(crate) no_pager: bool,
    /// Show tables and lines on a terminal as wide as they are: nothing is cut or left out
    #[arg(long, global = true)]
    pub(crate) wide: bool,
    /// Print on standard error what is read and chosen, and how long that takes; twice: each file
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

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
