// SPDX-License-Identifier: Apache-2.0
//! Project tasks, run as `cargo xtask COMMAND`.
//!
//! Each command is one row of [`COMMANDS`] and one module; the parser and the help text come from
//! the row. Commands run from the repository root, and their exit status is that of the first
//! thing in them that failed. This crate links nothing of the product: it only runs it.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

mod bench;
mod build;
mod check;
mod ci;
mod demo;
mod evaluate;
mod gpu_kit;
mod matrix;
mod nccl;
mod process;
mod python;
mod sanitize;
mod test;
mod tidy;

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// What every task returns: the exit status, or an error that ends as one line on stderr.
pub(crate) type Outcome<T = ExitCode> = Result<T, Box<dyn Error>>;

/// One `cargo xtask` command.
struct Command {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Outcome,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "check",
        usage: "",
        about: "Check the format, the lints and the unit tests, in two minutes",
        run: check::run,
    },
    Command {
        name: "demo",
        usage: "[-o DIR] [--nccl VERSION] [--gpu]",
        about: "Run two ranks on a real NCCL under ncclscope, without a GPU or on one",
        run: demo::run,
    },
    Command {
        name: "tidy",
        usage: "",
        about: "Check the tree against the rules of CONTRIBUTING.md",
        run: tidy::run,
    },
    Command {
        name: "nccl",
        usage: "fetch|path VERSION [--cuda 12|13]",
        about: "Fetch libnccl.so.2 of a release from its wheel, or print where it is",
        run: nccl::run,
    },
    Command {
        name: "matrix",
        usage: "[--release R] [--topology T] [--scenario F] [--docs]",
        about: "Run NCCL releases on topologies and check every recording",
        run: matrix::run,
    },
    Command {
        name: "evaluate",
        usage: "[--small | --ranks N,N --seeds N] [--fault F] [--standin] [--json FILE]",
        about: "Plant faults and controls, and count what the verdicts get right",
        run: evaluate::run,
    },
    Command {
        name: "gpu-kit",
        usage: "[--dry-run [--small] [--nccl VERSION]]",
        about: "Pack what a bare machine with a GPU needs, or try it on the stand-in",
        run: gpu_kit::run,
    },
    Command {
        name: "event-costs",
        usage: "[VERSION…]",
        about: "Count what events make NCCL do more, for docs/env.md",
        run: gpu_kit::event_costs,
    },
    Command {
        name: "bench",
        usage: "[--rounds N] [--json FILE] [--gate] | --instructions [--against REV]",
        about: "Measure callbacks against their bounds, or count their instructions",
        run: bench::run,
    },
    Command {
        name: "test",
        usage: "[RUNNER ARGS]",
        about: "Fetch and build what the tests need, then run them",
        run: test::run,
    },
    Command {
        name: "torch",
        usage: "",
        about: "Fetch the PyTorch releases that some tests use where they are there (8 GB)",
        run: python::torch,
    },
    Command {
        name: "sanitize",
        usage: "thread|realtime",
        about: "Play to the plugin under a sanitizer",
        run: sanitize::run,
    },
    Command {
        name: "ci",
        usage: "[--only JOB | --list]",
        about: "Run every check that a change must pass",
        run: ci::run,
    },
];

/// A mistake in the command line: exit status 2 and a hint at the help.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (see `cargo xtask help`)", self.0)
    }
}

impl Error for Usage {}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

fn dispatch(args: &[String]) -> Outcome {
    let Some((name, rest)) = args.split_first() else {
        return Err(Usage("no command given".into()).into());
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        print!("{}", help());
        return Ok(ExitCode::SUCCESS);
    }
    let command = COMMANDS
        .iter()
        .find(|command| command.name == name)
        .ok_or_else(|| Usage(format!("no command `{name}`")))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    std::env::set_current_dir(root)?;
    (command.run)(rest)
}

fn help() -> String {
    let mut text = String::from("Project tasks of ncclscope.\n\nUsage: cargo xtask COMMAND\n\n");
    for Command { name, usage, about, .. } in COMMANDS {
        text += &format!("  {:<40} {about}\n", format!("{name} {usage}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch_words(words: &str) -> Outcome {
        dispatch(&words.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn unknown_commands_are_usage_errors() {
        for words in [
            "",
            "nonesuch",
            "ci --only nonesuch",
            "ci --nonesuch",
            "check all",
            "nccl",
            "nccl fetch",
        ] {
            let error = dispatch_words(words).expect_err(words);
            assert!(error.is::<Usage>(), "`{words}`: {error}");
        }
    }

    #[test]
    fn help_names_every_command() {
        let help = help();
        assert!(COMMANDS.iter().all(|c| help.contains(c.name) && help.contains(c.about)));
    }
}
