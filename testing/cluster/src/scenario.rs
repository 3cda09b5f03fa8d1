// SPDX-License-Identifier: Apache-2.0
/*!
Scenario files: a job, its faults, and the truth about it.

```toml
title = "one rank passes another count"    # one line
reports = "sglang 27221"                    # optional: the public reports that it replays
kind = "hang"                               # hang, crash, wrong, slow or healthy
hosts = 3                                   # of one rank each, unless `devices` says more
devices = 1                                 # optional: 1
nccl = "2.28.9"                             # optional
program = "join:world:0,1,2 9*{ allreduce:20001 }"    # of every rank: `cluster::program`
limit_s = 4                                 # optional: 4; limit of the watchdog and of the tools
look_s = 9                                  # optional: 9; after all ranks' first operations
has_first = false                           # optional: true; false: count from the start
look_from = 1                               # optional: ask on this host, about its own ranks, live

[env]                                       # optional: environment of every rank
NCCL_DEBUG = "INFO"

[[rank]]                                    # optional: what one rank does otherwise
rank = 1
program = "join:world:0,1,2 allreduce:5000"
env = { NCCL_PROTO = "LL" }
nccl = "2.27.7"

[[fault]]                                   # optional: `cluster::fault`
kind = "link-down"
at_s = 2.0
host = 1

[truth]                                     # what the first five lines must say
states = ["HUNG"]                           # optional: HUNG
classes = ["H2"]                            # optional: that of the first cause is one of these
ranks = [[1]]                               # optional: the ranks at fault are one of these sets
says = ["5000"]                             # optional: each of these texts is in the lines
never = ["NVLink"]                          # optional: none of these is
half = ["H1a"]                              # optional: classes that are half right
cost = 0.3                                  # optional: for `cargo xtask evaluate`; the part of a
                                            # step that the job would save without the fault
```
*/

use crate::fault::Fault;
use crate::program::{self, Word};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of its file, without the extension.
    #[serde(skip)]
    pub name: String,
    /// What happens, in one line.
    pub title: String,
    /// The public reports that it replays.
    #[serde(default)]
    pub reports: String,
    /// What kind of job it is.
    pub kind: Kind,
    /// Number of hosts.
    pub hosts: usize,
    /// Devices, and so ranks, of each host.
    #[serde(default = "one")]
    pub devices: usize,
    /// The NCCL release.
    #[serde(default = "release")]
    pub nccl: String,
    /// The program of each rank.
    pub program: String,
    /// The limit of the watchdog and of the tools, seconds.
    #[serde(default = "four")]
    pub limit_s: u64,
    /// When the tools look, seconds.
    #[serde(default = "nine")]
    pub look_s: f64,
    /// Whether time counts from the moment when all ranks have done their first operation.
    #[serde(default = "yes")]
    pub has_first: bool,
    /// The host on which the report is asked for, about its own recordings; else about all.
    pub look_from: Option<usize>,
    /// Environment of every rank.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What ranks do otherwise.
    #[serde(default, rename = "rank")]
    pub ranks: Vec<Own>,
    /// What goes wrong.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Fault>,
    /// What the first lines of a report must say.
    pub truth: Truth,
}

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It stands.
    Hang,
    /// It ended before its end.
    Crash,
    /// It went on with wrong results.
    Wrong,
    /// It is slow.
    Slow,
    /// Nothing is wrong.
    Healthy,
}

/// What one rank does otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Own {
    /// The rank.
    pub rank: usize,
    /// Its program.
    pub program: Option<String>,
    /// Its environment, over that of all.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its NCCL release.
    pub nccl: Option<String>,
}

/// What the first five lines of a report must say.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// The state is one of these.
    #[serde(default = "hung")]
    pub states: Vec<String>,
    /// The class of the first cause is one of these; empty: any, or none.
    #[serde(default)]
    pub classes: Vec<String>,
    /// The ranks at fault are one of these sets; empty: any.
    #[serde(default)]
    pub ranks: Vec<Vec<u32>>,
    /// Each of these texts is in the lines.
    #[serde(default)]
    pub says: Vec<String>,
    /// None of these texts is in the lines: they would mislead.
    #[serde(default)]
    pub never: Vec<String>,
    /// Classes of the first cause that lead half way.
    #[serde(default)]
    pub half: Vec<String>,
    /// The part of a step that the job would save without the fault.
    pub cost: Option<f64>,
}

fn one() -> usize {
    1
}

fn four() -> u64 {
    4
}

fn nine() -> f64 {
    9.0
}

fn yes() -> bool {
    true
}

fn release() -> String {
    "2.28.9".into()
}

fn hung() -> Vec<String> {
    vec!["HUNG".into()]
}

impl Scenario {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn read(path: &Path) -> Result<Scenario, String> {
        let fail = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        let parsed = toml::from_str::<Scenario>(&text);
        let mut scenario = parsed.map_err(|error| fail(error.to_string()))?;
        scenario.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for rank in 0..scenario.nranks() {
            scenario.words(rank).map_err(|error| fail(format!("rank {rank}: {error}")))?;
        }
        if let Some(own) = scenario.ranks.iter().find(|own| own.rank >= scenario.nranks()) {
            return Err(fail(format!("there is no rank {}", own.rank)));
        }
        Ok(scenario)
    }

    /// Number of ranks.
    #[must_use]
    pub fn nranks(&self) -> usize {
        self.hosts * self.devices
    }

    /// What this rank does otherwise.
    #[must_use]
    pub fn own(&self, rank: usize) -> Option<&Own> {
        self.ranks.iter().find(|own| own.rank == rank)
    }

    /// The program of a rank, as text.
    #[must_use]
    pub fn program(&self, rank: usize) -> &str {
        let own = self.own(rank).and_then(|own| own.program.as_deref());
        own.unwrap_or(&self.program)
    }

    fn words(&self, rank: usize) -> Result<Vec<Word>, String> {
        program::parse(self.program(rank))
    }
}
