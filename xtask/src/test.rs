// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test`: fetches and builds everything that the tests need, then runs them.
//!
//! The tests load real NCCL releases, programs and libraries of this repository, and readers of
//! other projects. This module provides those once, before the tests: no test builds anything
//! (`testing/built`), and a test that finds something missing fails instead of passing. Fetched
//! files stay in `$HOME/.cache/ncclscope`; a second run fetches nothing. `--with` names what is
//! fetched only on demand; the last lines of output list what of that is missing.

mod leftovers;
mod needs;

use std::process::{Command, Stdio};

use clap::Args;

use crate::nccl::{self, Release};
use crate::outcome::Outcome;
use crate::{axe, build, process, python};

/// The NCCL releases that the tests load, from the CUDA 12 wheels: one for each profiler API
/// version, 1 to 7, and 2.27.3 (`TESTED` of the rig's `wheel.rs`).
pub(crate) const NCCL_VERSIONS: &[&str] =
    &["2.23.4", "2.25.1", "2.26.5", "2.27.3", "2.27.7", "2.28.9", "2.30.7", "2.32.3"];

/// What `cargo xtask test` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Install these where they are missing; without, their tests fail
    #[arg(long, value_name = "NEED,NEED", value_delimiter = ',')]
    with: Vec<needs::With>,
    /// Arguments of the runner: nextest, or else `cargo test`
    #[arg(value_name = "RUNNER ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs all tests, or those that the runner's arguments select.
pub(crate) fn run(Options { with, args }: &Options) -> Outcome {
    let required = with.iter().map(|need| need.install()).collect::<Outcome<Vec<_>>>()?;
    let releases = NCCL_VERSIONS.iter().map(|version| Release::new(version, 12));
    nccl::fetch_all(&releases.collect::<Result<Vec<_>, _>>()?)?;
    let mut environment = vec![("NCCLSCOPE_TEST_PYTHON", python::ordinary()?)];
    let (torches, missing) = python::with_torch()?;
    environment.extend(torches);
    if with.contains(&needs::With::Browser) {
        environment.push(("XTASK_AXE", axe::fetch()?));
    }
    let target = build::for_tests(picks(args, "stepper"))?;
    environment.push(("XTASK_BUILT", target));
    environment.extend(required.into_iter().map(|variable| (variable, "1".into())));
    let cores = std::thread::available_parallelism()?;
    let mut runner = Command::new("cargo");
    runner.args(words(has_nextest(), args)).env("NCCLSCOPE_REQUIRE_NCCL", "1");
    // Most tests wait: see .config/nextest.toml. An argument of the runner overrides this.
    runner.env("NEXTEST_TEST_THREADS", (3 * cores.get()).to_string());
    runner.envs(environment.iter().map(|(name, python)| (name, python)));
    let before = leftovers::Before::now();
    let status = process::status(&mut runner)?;
    before.clean();
    for line in needs::lines(&missing) {
        println!("{line}");
    }
    Ok(process::exit_code(status))
}

/// The arguments of cargo. There are no doctests, which nextest cannot run (`cargo xtask tidy`).
fn words(has_nextest: bool, args: &[String]) -> Vec<String> {
    let main = if has_nextest { "nextest run" } else { "test" };
    let mut words: Vec<String> = main.split_whitespace().map(String::from).collect();
    if !picks_packages(args) {
        words.push("--workspace".into());
    }
    if args.is_empty() {
        words.push("--no-fail-fast".into());
    }
    words.extend_from_slice(args);
    words
}

fn picks_packages(args: &[String]) -> bool {
    args.iter().any(|arg| arg.starts_with("-p") || arg == "--package")
}

/// True if `args` may select tests of `package`.
fn picks(args: &[String], package: &str) -> bool {
    !picks_packages(args) || args.iter().any(|arg| arg.contains(package))
}

/// Whether the runner nextest is installed.
pub(crate) fn has_nextest() -> bool {
    let mut version = process::command(&["cargo", "nextest", "--version"]);
    version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(has_nextest: bool, args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        words(has_nextest, &args).join(" ")
    }

    #[test]
    fn arguments_go_to_the_runner() {
        assert_eq!(line(true, &[]), "nextest run --workspace --no-fail-fast");
        assert_eq!(line(false, &[]), "test --workspace --no-fail-fast");
        assert_eq!(line(true, &["-E", "test(hang)"]), "nextest run --workspace -E test(hang)");
        assert_eq!(line(true, &["-p", "xtask"]), "nextest run -p xtask");
        assert_eq!(line(false, &["--", "lane"]), "test --workspace -- lane");
    }

    #[test]
    fn needs_come_before_the_runners_arguments() {
        let options = crate::options::<Options>("--with browser,prometheus -p rig hang");
        let Options { with, args } = options.expect("it is well formed");
        assert_eq!(with, [needs::With::Browser, needs::With::Prometheus]);
        assert_eq!(args, ["-p", "rig", "hang"]);
        let options = crate::options::<Options>("-E test(hang)").expect("it is well formed");
        assert_eq!((options.with.len(), options.args.join(" ")), (0, "-E test(hang)".into()));
    }

    #[test]
    fn packages_that_are_not_picked_need_nothing() {
        let picks = |words: &str| {
            picks(&words.split_whitespace().map(String::from).collect::<Vec<_>>(), "stepper")
        };
        assert!(picks("") && picks("-E test(v4)") && picks("-p stepper"));
        assert!(!picks("-p rig hang"));
    }

    #[test]
    fn releases_are_well_formed() {
        let rig = include_str!("../../testing/rig/src/wheel.rs");
        let (_, tested) = rig.split_once("TESTED: [&str; 8]").expect("the rig's list");
        let list: Vec<_> = NCCL_VERSIONS.iter().map(|version| format!("{version:?}")).collect();
        assert!(tested.trim_start().starts_with(&format!("=\n    [{}];", list.join(", "))));
        for version in NCCL_VERSIONS {
            Release::new(version, 12).expect(version);
        }
    }
}
