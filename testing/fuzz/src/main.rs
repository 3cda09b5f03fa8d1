// SPDX-License-Identifier: Apache-2.0
/*!
Feeds damaged and forged input to everything that reads files and replies, and looks for panics,
overflows (in a build that checks for them) and input that takes long. `cargo xtask fuzz` makes such
a build and runs it within limited memory.

Each target makes well-formed input, changes fields of its structure, and repairs checksums, so that
the change reaches the code behind them. An input is determined by one seed, whose number reproduces
a finding.
*/

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

mod archives;
mod mutate;
mod random;
mod target;
mod targets;

use clap::Parser;
use random::Random;
use rustix::time::{ClockId, clock_gettime};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use target::Target;
use targets::TARGETS;

/// Maximum processor time for one input.
const LONGEST: Duration = Duration::from_secs(20);
/// Maximum elapsed time for one input, on a busy machine too.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Interval at which a run prints its progress, because it may be stopped at any time.
const NEWS: Duration = Duration::from_secs(30);

/// Damaged and forged input for all readers
#[derive(Debug, Parser)]
struct Options {
    /// The targets [default: all]
    #[arg(value_parser = find)]
    targets: Vec<&'static Target>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first seed; one input has one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Inputs of each target at most: with 1 and a seed, the finding of that seed again
    #[arg(long, default_value_t = u64::MAX)]
    inputs: u64,
    /// As few inputs as in the test, and those that found something once
    #[arg(long)]
    short: bool,
}

fn find(name: &str) -> Result<&'static Target, String> {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    TARGETS.iter().find(|target| target.name == name).ok_or_else(|| format!("one of {}", names()))
}

fn main() -> ExitCode {
    let options = Options::parse();
    let chosen = match options.targets.as_slice() {
        [] => TARGETS.iter().collect(),
        chosen => chosen.to_vec(),
    };
    let mut code = ExitCode::SUCCESS;
    for target in chosen {
        let until = Instant::now() + Duration::from_secs(options.seconds);
        let long = options.seed..options.seed.saturating_add(options.inputs);
        let seeds: Box<dyn Iterator<Item = u64>> =
            if options.short { Box::new(target.short()) } else { Box::new(long) };
        let (mut inputs, mut findings) = (0_u64, 0_u64);
        let samples = (target.samples)();
        let mut told = Instant::now();
        for seed in seeds {
            if Instant::now() > until {
                break;
            }
            if told.elapsed() > NEWS {
                println!("{}: {inputs} inputs so far, {findings} findings", target.name);
                told = Instant::now();
            }
            inputs += 1;
            if let Err(what) = one(target, &samples, seed) {
                eprintln!("{}: {what}; again with --seed {seed} --inputs 1", target.name);
                findings += 1;
                code = ExitCode::FAILURE;
            }
        }
        println!("{}: {inputs} inputs, {findings} findings", target.name);
    }
    code
}

/// Runs the input of a seed.
fn one(target: &Target, samples: &[Vec<u8>], seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut data = random.of(samples).clone();
    (target.mutate)(&mut random, &mut data);
    let (begun, worked) = (Instant::now(), processor_time());
    catch_unwind(AssertUnwindSafe(|| (target.read)(&data))).map_err(|_| "it panics".to_owned())?;
    let (waited, took) = (begun.elapsed(), processor_time().saturating_sub(worked));
    if took > LONGEST || waited > LONGEST_WAIT {
        return Err(format!("it takes {took:.1?} of processor time in {waited:.1?}"));
    }
    Ok(())
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of each target, including the seeds that once found an error.
    #[test]
    fn readers_take_any_input() {
        for target in &TARGETS {
            let samples = (target.samples)();
            // The readers accept the unchanged samples.
            for sample in &samples {
                assert!((target.read)(sample), "{}", target.name);
            }
            for seed in target.short() {
                assert_eq!(one(target, &samples, seed), Ok(()), "{} {seed}", target.name);
            }
        }
    }
}
