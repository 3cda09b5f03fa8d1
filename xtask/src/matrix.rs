// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask matrix`: runs real NCCL releases by topology under ncclscope, and checks each
//! recording against the invariants.
//!
//! A cell is one job of `testing/rig` under `ncclscope run`, with the plugin as it ships, and then
//! `check` of `testing/invariants` on its recordings; this crate only starts both programs. A
//! scenario file has its own topology, and its own releases unless `--release` names others. With
//! `--docs` the cells are those of `docs/nccl-events.md`, and the page is written from them.

mod cell;
mod docs;
mod plan;
mod pool;
mod scenario;
mod topology;
mod verdict;
mod wheel;
mod workload;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::Args;

use cell::{Cell, Outcome as CellOutcome, Tools};
use scenario::Scenario;

use crate::outcome::Outcome;
use crate::{build, nccl};

/// What `cargo xtask matrix` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// NCCL releases, such as 2.30.7 or 2.28.9+cu13 [default: all of the table]
    #[arg(long = "release", value_name = "R")]
    releases: Vec<String>,
    /// Topologies [default: all of the table]
    #[arg(long = "topology", value_name = "T")]
    topologies: Vec<String>,
    /// A scenario of the rig, in place of the usual steps
    #[arg(long, value_name = "FILE")]
    scenario: Option<String>,
    /// Cells at once
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Measure docs/nccl-events.md anew
    #[arg(long, conflicts_with_all = ["scenario", "topologies"])]
    docs: bool,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let scenario = options.scenario.as_deref().map(Scenario::read).transpose()?;
    let wheels = wheel::releases(names(options, scenario.as_ref()))?;
    let cells = if options.docs {
        plan::docs_cells(&wheels)
    } else {
        plan::cells(&wheels, &options.topologies, scenario.as_ref())?
    };
    let tools =
        Tools { folder: build::products(build::Profile::Tests)?, plugin: build::shipped_plugin()? };
    nccl::fetch_all(&wheels.iter().map(|wheel| wheel.release.clone()).collect::<Vec<_>>())?;
    let outcomes = pool::run(&cells, options.jobs.map(NonZeroUsize::get), |cell| cell.run(&tools));
    print!("{}", table(&cells, &outcomes));
    if outcomes.iter().any(CellOutcome::has_failed) {
        return Ok(ExitCode::FAILURE);
    }
    if options.docs {
        docs::write(&cells, &outcomes)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The requested releases: those of the command line, else those of the scenario.
fn names<'a>(options: &'a Options, scenario: Option<&'a Scenario>) -> &'a [String] {
    match scenario {
        Some(scenario) if options.releases.is_empty() => &scenario.releases,
        _ => &options.releases,
    }
}

/// The cells and their results: release, topology, result, events by kind, seconds.
fn table(cells: &[Cell], outcomes: &[CellOutcome]) -> String {
    let mut text = format!("{:<12} {:<22} {:<7} {:>7}  events\n", "release", "cell", "result", "s");
    for (cell, outcome) in cells.iter().zip(outcomes) {
        text += &format!(
            "{:<12} {:<22} {:<7} {:>7.1}  {}\n",
            cell.wheel.label,
            cell.name(),
            outcome.word(),
            outcome.seconds,
            outcome.events(),
        );
        for line in outcome.reasons() {
            text += &format!("    {line}\n");
        }
    }
    let failed = outcomes.iter().filter(|outcome| outcome.has_failed()).count();
    text += &format!("{} cells, {failed} failed\n", cells.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::TOPOLOGIES;
    use wheel::RELEASES;

    fn parsed(words: &str) -> Result<Options, clap::Error> {
        crate::options(words)
    }

    #[test]
    fn options_are_read() {
        let options = parsed("--release 2.30.7 --release 2.32.3 --topology p2p --jobs 1");
        let options = options.expect("all are known");
        assert_eq!(options.releases, ["2.30.7", "2.32.3"]);
        assert_eq!((options.topologies, options.jobs), (vec!["p2p".into()], NonZeroUsize::new(1)));
        for wrong in ["--nonesuch", "--release", "--jobs 0", "--docs --topology shm", "2.30.7"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_comes_before_the_scenario() {
        let scenario = Scenario {
            file: "x.toml".into(),
            topology: TOPOLOGIES[0],
            releases: vec!["2.28.9".into()],
            hangs: false,
            spoils_ptimer: false,
        };
        let of = |words| parsed(words).expect("all are known");
        assert_eq!(names(&of("--scenario x.toml"), Some(&scenario)), ["2.28.9"]);
        assert_eq!(names(&of("--release 2.32.3"), Some(&scenario)), ["2.32.3"]);
        assert!(names(&of(""), None).is_empty());
    }

    #[test]
    fn the_defaults_are_all_of_both() {
        let releases = wheel::releases(&[]).expect("the table is well formed");
        assert_eq!(releases.len(), RELEASES.len());
        let cells = plan::cells(&releases, &[], None).expect("the table is well formed");
        assert_eq!(cells.len(), RELEASES.len() * TOPOLOGIES.len());
    }
}
