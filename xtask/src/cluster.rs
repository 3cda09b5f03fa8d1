// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask cluster`: replays public bug reports, faults of networks and hosts, and healthy
//! controls with real NCCL among hosts made of namespaces, and says where the first lines of each
//! report lead (`testing/cluster`).
//!
//! It needs root, because it makes namespaces, and the programs `ip` (iproute2), `nsenter` and
//! `unshare` (util-linux); some scenarios need `tc`, or `mkfs.ext4` and `fsfreeze`.

use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::nccl::{self, Release};
use crate::outcome::Outcome;
use crate::{build, process};

/// Where the scenarios are.
const SCENARIOS: &str = "testing/cluster/scenarios";
/// The releases that they use.
const RELEASES: [&str; 2] = ["2.27.7", "2.28.9"];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Names of scenarios [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Fail unless the first lines of each report lead to the cause
    #[arg(long)]
    strict: bool,
    /// Print the first lines of each report
    #[arg(long)]
    lines: bool,
    /// Also ask `diagnose`, `top` and `dump --why`, and say whether they name what the report does
    #[arg(long)]
    tools: bool,
    /// How often each scenario runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    times: usize,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let releases = RELEASES.iter().map(|version| Release::new(version, 12));
    nccl::fetch_all(&releases.collect::<Result<Vec<_>, _>>()?)?;
    let folder = build::for_tests(false)?.join("debug");
    let mut command = Command::new(folder.join("cluster"));
    let switches =
        [("--strict", options.strict), ("--lines", options.lines), ("--tools", options.tools)];
    command.args(switches.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name));
    command.arg("--times").arg(options.times.to_string());
    let scenarios = Path::new(SCENARIOS);
    match options.names.as_slice() {
        [] => command.arg(scenarios),
        names => command.args(names.iter().map(|name| scenarios.join(name).with_extension("toml"))),
    };
    Ok(process::exit_code(process::status(&mut command)?))
}
