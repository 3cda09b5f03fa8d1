// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask check`: what a developer runs after each edit; should take at most two minutes.
//!
//! It runs the first jobs of `cargo xtask ci` and the unit tests. It fetches nothing, builds
//! nothing in the release profile, and runs no test that starts NCCL, PyTorch or a rank; `cargo
//! xtask test` does.

use crate::ci;
use crate::ci::job::Job;
use crate::outcome::Outcome;
use crate::test;

/// The jobs of `cargo xtask ci` that take seconds on a warm tree.
const JOBS: [&str; 3] = ["fmt", "tidy", "clippy"];

/// The unit tests: those beside the code, in libraries and programs.
const NEXTEST: &str = "cargo nextest run --workspace --lib --bins --no-fail-fast";
const CARGO_TEST: &str = "cargo test --quiet --workspace --lib --bins --no-fail-fast";

/// Runs [`JOBS`], then the unit tests.
pub(crate) fn run() -> Outcome {
    let command = if test::has_nextest() { NEXTEST } else { CARGO_TEST };
    let unit = Job::new("unit", command);
    let jobs: Vec<Job> = JOBS.iter().filter_map(|name| ci::find(name).ok()).chain([unit]).collect();
    ci::run_jobs(&jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_jobs_are_jobs_of_ci() {
        assert!(JOBS.iter().all(|name| ci::find(name).is_ok()));
    }
}
