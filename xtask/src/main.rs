// SPDX-License-Identifier: Apache-2.0
//! Project tasks, run as `cargo xtask COMMAND`.
//!
//! Each command is a variant of [`Task`] and a module with the command's options. Commands run from
//! the repository root. Their exit status is that of the first step that failed; 2 is a mistake in
//! the command line. Of the product, this crate links only the list of findings; it runs everything
//! else.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

mod axe;
mod bench;
mod build;
mod check;
mod ci;
mod cluster;
mod demo;
mod deny;
mod docs;
mod evaluate;
mod fuzz;
mod gpu_kit;
mod matrix;
mod nccl;
mod outcome;
mod process;
mod python;
mod sanitize;
mod test;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use outcome::Outcome;

/// Project tasks of ncclscope
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check the format, the lints and the unit tests, in two minutes
    Check,
    /// Run two ranks on a real NCCL under ncclscope, without a GPU or on one
    Demo(demo::Options),
    /// Check licences and sources of the dependencies against deny.toml
    Deny,
    /// Build the site from docs/ into target/site; dead links are errors
    Docs,
    /// Check the tree against the rules of CONTRIBUTING.md
    Tidy,
    /// Fetch libnccl.so.2 of a release from its wheel, or print where it is
    #[command(subcommand)]
    Nccl(nccl::Verb),
    /// Run NCCL releases on topologies and check every recording
    Matrix(matrix::Options),
    /// Plant faults and controls, and count the correct verdicts
    Evaluate(evaluate::Options),
    /// Pack the programs for a machine with a GPU, or run them on the stand-in
    GpuKit(gpu_kit::Options),
    /// Count the additional work that events cause in NCCL, for docs/env.md
    EventCosts {
        /// NCCL's versions [default: those of the page]
        #[arg(value_parser = nccl::version)]
        versions: Vec<String>,
    },
    /// Measure callbacks against their bounds, or count their instructions
    Bench(bench::Options),
    /// Fetch and build what the tests need, then run them
    Test(test::Options),
    /// Fetch the PyTorch releases that some tests need (14 GB)
    Torch,
    /// Give damaged and forged input to all readers; `--help` after `--` lists the options
    Fuzz {
        /// Options and targets of testing/fuzz
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Play callbacks to the plugin under a sanitizer
    Sanitize {
        /// thread or realtime
        #[arg(value_parser = sanitize::find)]
        sanitizer: &'static sanitize::Sanitizer,
        /// Only build
        #[arg(long)]
        no_run: bool,
    },
    /// Run real NCCL among hosts made of namespaces, with faults, and judge the reports; needs root
    Cluster(cluster::Options),
    /// Run every check that a change must pass
    Ci(ci::Options),
}

impl Task {
    fn run(self) -> Outcome {
        match self {
            Self::Check => check::run(),
            Self::Demo(options) => demo::run(&options),
            Self::Deny => deny::run(),
            Self::Docs => docs::run(),
            Self::Tidy => tidy::run(),
            Self::Nccl(verb) => nccl::run(&verb),
            Self::Matrix(options) => matrix::run(&options),
            Self::Evaluate(options) => evaluate::run(options),
            Self::GpuKit(options) => gpu_kit::run(&options),
            Self::EventCosts { versions } => gpu_kit::event_costs(&versions),
            Self::Bench(options) => bench::run(&options),
            Self::Test(options) => test::run(&options),
            Self::Torch => python::torch(),
            Self::Fuzz { arguments } => fuzz::run(&arguments),
            Self::Sanitize { sanitizer, no_run } => sanitize::run(sanitizer, no_run),
            Self::Cluster(options) => cluster::run(&options),
            Self::Ci(options) => ci::run(&options),
        }
    }
}

fn main() -> ExitCode {
    let CommandLine { task } = CommandLine::parse();
    match go_to_root().and_then(|()| task.run()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn go_to_root() -> Outcome<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    Ok(std::env::set_current_dir(root)?)
}

/// Reads the options of one command from `words`, for its tests.
#[cfg(test)]
fn options<T: clap::Args>(words: &str) -> Result<T, clap::Error> {
    let command = T::augment_args(clap::Command::new("xtask").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(words.split_whitespace())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn wrong_words_are_usage_errors() {
        for words in ["", "nonesuch", "ci --only nonesuch", "check all", "nccl", "nccl fetch"] {
            let words = std::iter::once("xtask").chain(words.split_whitespace());
            let error = CommandLine::try_parse_from(words).expect_err("it is wrong");
            assert_eq!(error.exit_code(), 2, "{error}");
        }
    }
}
