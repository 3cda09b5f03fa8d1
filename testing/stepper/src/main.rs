// SPDX-License-Identifier: Apache-2.0
//! `stepper [PLUGIN] [--version N]... [--hot]`: steps through callbacks; see the library.
//!
//! Without PLUGIN it takes the one of this repository as it ships, in `TARGET/dist`; with `--hot`
//! the plugin is only stepped in its normal state. Prints the columns of
//! [`stepper::contract::table`]; exit status 1 if the contract is broken.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use stepper::{PhaseSet, child, contract, product, trace};

const USAGE: &str = "usage: stepper [PLUGIN] [--version N]... [--hot]";

#[derive(Default)]
struct Options {
    plugin: Option<PathBuf>,
    versions: Vec<usize>,
    hot: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        [child::VERB, plugin, version, phases] => {
            let (version, phases) = (version.parse().unwrap_or(0), PhaseSet::of(phases));
            let played = phases.map(|phases| child::run(Path::new(plugin), version, phases));
            played.unwrap_or_else(|| Err(USAGE.into())).map(|()| ExitCode::SUCCESS)
        }
        _ => options(&words).and_then(step),
    };
    outcome.unwrap_or_else(|why| {
        eprintln!("stepper: {why}");
        ExitCode::FAILURE
    })
}

fn options(words: &[&str]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        match word {
            "--hot" => options.hot = true,
            "--version" => {
                let number = words.next().and_then(|number| number.parse().ok());
                let version = number
                    .filter(|n| fake_nccl::VERSIONS.contains(n))
                    .ok_or("--version: not one of the API's")?;
                options.versions.push(version);
            }
            _ if options.plugin.is_none() && !word.starts_with('-') => {
                options.plugin = Some(PathBuf::from(word));
            }
            _ => return Err(USAGE.into()),
        }
    }
    if options.versions.is_empty() {
        options.versions = fake_nccl::VERSIONS.collect();
    }
    Ok(options)
}

fn step(Options { plugin, versions, hot }: Options) -> Result<ExitCode, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let plugin = plugin.map_or_else(|| product::plugin(&own), Ok)?;
    let phase_sets: &[PhaseSet] =
        if hot { &[PhaseSet::Hot] } else { &[PhaseSet::On, PhaseSet::Off] };
    let (mut known, mut broken) = (0, 0);
    println!("api\tphase\tcallback\tcalls\tmedian\tmax\tlocked\tclocks\tstack");
    for version in versions {
        let mut stepped = Vec::new();
        for &phases in phase_sets {
            match trace(&own, &plugin, version, phases) {
                Ok(more) => stepped.extend(more),
                Err(trace::Error::Forbidden) => return skip(),
                Err(error) => return Err(error.to_string()),
            }
        }
        print!("{}", contract::table(version, &stepped));
        for violation in contract::violations(&stepped) {
            if contract::is_known(&violation) {
                known += 1;
            } else {
                broken += 1;
                eprintln!("stepper: v{version} {violation}");
            }
        }
    }
    if known > 0 {
        eprintln!("stepper: {known} times the linker allocates a thread's memory, as is known");
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Without ptrace nothing can be checked, which is an error only if the check was requested
/// explicitly.
fn skip() -> Result<ExitCode, String> {
    let why = trace::Error::Forbidden;
    if std::env::var_os("NCCLSCOPE_REQUIRE_PTRACE").is_some() {
        return Err(why.to_string());
    }
    println!("skipped: {why}");
    Ok(ExitCode::SUCCESS)
}
