// SPDX-License-Identifier: Apache-2.0
//! `ncclscope completions` and `man`: shell completions and manual pages, generated from the
//! definition of the command line.

use crate::args::{CommandLine, CompletionsArgs, ManArgs};
use crate::io::whole_folder::{self, Existing};
use clap::CommandFactory;
use ncclscope_console::failure::{Failure, tell};
use std::io::{self, Write};
use std::process::ExitCode;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut command = CommandLine::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ncclscope", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let directory = args.directory.as_path();
    let failed = |error: io::Error| Failure::write(directory, &error);
    let mut command = CommandLine::command().disable_help_subcommand(true);
    command.build();
    whole_folder::fill(directory, Existing::Replaced, |folder| {
        clap_mangen::generate_to(command, folder).map_err(failed)
    })?;
    tell(format_args!("read them with `man -l {}/ncclscope.1`", directory.display()));
    Ok(ExitCode::SUCCESS)
}
