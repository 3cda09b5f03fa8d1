// SPDX-License-Identifier: Apache-2.0
//! Scenario files: the description of a job with its faults.
//!
//! ```toml
//! topology = "socket"                      # a name of `rig::topology`
//! steps = ["allreduce:1000", "split:100"]  # of every rank, as in `rig::step`
//! releases = ["2.28.9", "2.32.3"]          # optional: all that the tests cover
//! seed = 7                                 # optional: 0; decides every jitter
//! timeout_s = 30                           # optional: 60
//! ends = "hang"                            # optional: "well", with every step done; a hang is
//!                                          # one of the last step, and cut off after 5 s
//!
//! [env]                                    # optional: environment of every rank
//! NCCL_PROTO = "LL"
//!
//! [[rank]]                                 # optional: what one rank does otherwise
//! rank = 1
//! steps = ["allreduce:1000", "sleep:500", "split:100"]
//! env = { NCCL_DEBUG = "INFO" }
//!
//! [[fault]]                                # a rank that never launches its second step
//! kind = "skip"
//! rank = 1
//! step = 2
//!
//! [[fault]]                                # a rank that is late by 20 to 30 ms before each step
//! kind = "slow"
//! rank = 1
//! ms = 20
//! jitter_ms = 10
//!
//! [[fault]]                                # the stand-in's kernels: `cpu-cuda`, `faults.rs`
//! kind = "kernel"
//! rank = 1                                 # optional: every rank
//! what = "delay:us=50,jitter=20"
//!
//! [[fault]]                                # NCCL's proxy threads stand still from step 2 on
//! kind = "stopped-proxy"
//! rank = 1
//! step = 2
//! ms = 1500                                # optional: forever
//!
//! [[fault]]                                # from step 2 on the rank sends so slowly
//! kind = "slow-link"
//! rank = 1
//! step = 2
//! mbps = 4                                 # megabytes a second
//! delay_ms = 20                            # optional: 0; what each message takes beyond that
//!
//! [[fault]]                                # from step 2 on the rank sends so much, no more
//! kind = "stalled-link"
//! rank = 1
//! step = 2
//! bytes = 300000
//! ```
//! Equal files give equal faults. A fault's step is an index into the file's list, from 1. The
//! proxy threads exist once an operation has used them: from step 2 on.

use crate::job::{Job, Outcome, RankOutcome};
use crate::step::Step;
use crate::topology::Topology;
use crate::wheel;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;

/// How long the last step of a job that hangs may take, in seconds: long enough to detect the hang.
const HANG_S: &str = "5";

/// The exit code of a rank that timed out.
const TIMED_OUT: i32 = 3;

/// A scenario, read and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioFile {
    /// Its topology.
    pub topology: Topology,
    /// The NCCL releases it is for.
    pub releases: Vec<String>,
    /// The seed of all jitter.
    pub seed: u64,
    /// The time after which ranks that still run are killed.
    pub timeout: Duration,
    /// The expected end of the job.
    pub ends: ExpectedEnd,
    steps: Vec<Step>,
    env: BTreeMap<String, String>,
    ranks: BTreeMap<usize, Own>,
}

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpectedEnd {
    /// Every rank does all its steps, with right results.
    #[default]
    Well,
    /// A rank still works when the time is over.
    Hang,
}

/// The settings of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Own {
    steps: Vec<Step>,
    env: BTreeMap<String, String>,
    pause_ms: u64,
    jitter_ms: u64,
    /// Options of the rank program.
    options: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    topology: Spanned<String>,
    steps: Vec<Spanned<String>>,
    releases: Option<Vec<String>>,
    #[serde(default)]
    seed: u64,
    #[serde(default = "sixty")]
    timeout_s: u64,
    #[serde(default)]
    ends: ExpectedEnd,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    rank: Vec<RankText>,
    #[serde(default)]
    fault: Vec<Fault>,
}

fn sixty() -> u64 {
    60
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RankText {
    rank: Spanned<usize>,
    steps: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Fault {
    Skip {
        rank: usize,
        step: usize,
    },
    Slow {
        rank: usize,
        ms: u64,
        #[serde(default)]
        jitter_ms: u64,
    },
    Kernel {
        rank: Option<usize>,
        what: String,
    },
    StoppedProxy {
        rank: usize,
        step: usize,
        ms: Option<u64>,
    },
    SlowLink {
        rank: usize,
        step: usize,
        mbps: u64,
        #[serde(default)]
        delay_ms: u64,
    },
    StalledLink {
        rank: usize,
        step: usize,
        bytes: u64,
    },
}

/// `FILE:LINE` of a byte offset.
struct FileText<'a> {
    name: &'a str,
    text: &'a str,
}

impl FileText<'_> {
    fn at(&self, offset: usize, what: impl std::fmt::Display) -> String {
        let line = self.text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1;
        format!("{}:{line}: {what}", self.name)
    }

    fn steps(&self, texts: &[Spanned<String>]) -> Result<Vec<Step>, String> {
        let step = |text: &Spanned<String>| {
            let parsed = text.get_ref().parse();
            parsed.map_err(|error: String| {
                let help = "write a step of rig::step, such as \"allreduce:1000\"";
                self.at(text.span().start, format_args!("{error}; {help}"))
            })
        };
        texts.iter().map(step).collect()
    }
}

impl ScenarioFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// `FILE:LINE: what is wrong; what to write instead`.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads `text`, the content of the file `name`.
    ///
    /// # Errors
    /// As [`ScenarioFile::read`].
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let place = FileText { name, text };
        let parsed: Text = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let help = "the page of rig::scenario_file shows every key";
            place.at(offset, format_args!("{}; {help}", error.message().trim()))
        })?;
        let topology = parsed.topology.get_ref().parse::<Topology>();
        let topology = topology.map_err(|error| place.at(parsed.topology.span().start, error))?;
        let default = || wheel::RELEASES.map(String::from).to_vec();
        let mut scenario = Self {
            topology,
            releases: parsed.releases.unwrap_or_else(default),
            seed: parsed.seed,
            timeout: Duration::from_secs(parsed.timeout_s),
            ends: parsed.ends,
            steps: place.steps(&parsed.steps)?,
            env: parsed.env,
            ranks: BTreeMap::new(),
        };
        for text in &parsed.rank {
            let fail = |error| place.at(text.rank.span().start, error);
            let own = scenario.own(*text.rank.get_ref()).map_err(fail)?;
            own.env.clone_from(&text.env);
            if let Some(steps) = &text.steps {
                own.steps = place.steps(steps)?;
            }
        }
        for (index, fault) in parsed.fault.into_iter().enumerate() {
            // Errors refer to the line of the table: its fields have no positions once the kind is
            // known.
            let offset = text.match_indices("[[fault]]").nth(index).map_or(0, |(at, _)| at);
            scenario.add(fault).map_err(|error| place.at(offset, error))?;
        }
        Ok(scenario)
    }

    /// The settings of `rank`, mutable.
    fn own(&mut self, rank: usize) -> Result<&mut Own, String> {
        let ranks = self.topology.ranks();
        if rank >= ranks {
            return Err(format!("there is no rank {rank}; write one from 0 to {}", ranks - 1));
        }
        if self.topology.threads() {
            return Err("ranks in one process cannot differ; write another topology".into());
        }
        let steps = &self.steps;
        Ok(self.ranks.entry(rank).or_insert_with(|| Own {
            steps: steps.clone(),
            env: BTreeMap::new(),
            pause_ms: 0,
            jitter_ms: 0,
            options: vec![],
        }))
    }

    fn add(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Skip { rank, step } => {
                let index = self.step(rank, step)? - 1;
                self.own(rank)?.steps[index] = Step::Skip;
            }
            Fault::Slow { rank, ms, jitter_ms } => {
                let own = self.own(rank)?;
                (own.pause_ms, own.jitter_ms) = (ms, jitter_ms);
            }
            Fault::Kernel { rank, what } => {
                let seed = format!("seed:value={}", self.seed);
                let env = match rank {
                    Some(rank) => &mut self.own(rank)?.env,
                    None => &mut self.env,
                };
                let faults = env.entry("CPU_CUDA_FAULTS".into()).or_insert(seed);
                faults.push(';');
                faults.push_str(&what);
            }
            Fault::StoppedProxy { rank, step, ms } => {
                let ms = ms.map_or_else(String::new, |ms| format!(":{ms}"));
                self.option(rank, step, "--stop-proxy", &ms)?;
                // The proxy threads are found by their names.
                self.own(rank)?.env.insert("NCCL_SET_THREAD_NAME".into(), "1".into());
            }
            Fault::SlowLink { rank, step, mbps, delay_ms } => {
                self.option(rank, step, "--slow-link", &format!(":{mbps}:{delay_ms}"))?;
            }
            Fault::StalledLink { rank, step, bytes } => {
                self.option(rank, step, "--stall-link", &format!(":{bytes}"))?;
            }
        }
        Ok(())
    }

    /// `step` if the rank has one of that number.
    fn step(&mut self, rank: usize, step: usize) -> Result<usize, String> {
        let count = self.own(rank)?.steps.len();
        if (1..=count).contains(&step) {
            return Ok(step);
        }
        Err(format!("rank {rank} has no step {step}; write one from 1 to {count}"))
    }

    /// Adds an option with the value `STEP` and further values to the rank's program.
    fn option(&mut self, rank: usize, step: usize, name: &str, rest: &str) -> Result<(), String> {
        let value = format!("{}{rest}", self.step(rank, step)?);
        self.own(rank)?.options.extend([name.to_owned(), value]);
        Ok(())
    }

    /// Configures `job` by the scenario.
    #[must_use]
    pub fn apply(&self, job: Job) -> Job {
        let mut job = job.topology(self.topology).timeout(self.timeout);
        job = job.steps(self.steps.iter().map(Step::text));
        for (name, value) in &self.env {
            job = job.env(name, value);
        }
        for (&rank, own) in &self.ranks {
            job = job.rank_steps(rank, own.steps.iter().map(Step::text));
            for (name, value) in &own.env {
                job = job.rank_env(rank, name, value);
            }
            for option in &own.options {
                job = job.rank_arg(rank, option);
            }
            let pause = [("--pause-ms", own.pause_ms), ("--jitter-ms", own.jitter_ms)];
            for (name, value) in pause.into_iter().chain([("--seed", self.seed)]) {
                job = job.rank_arg(rank, name).rank_arg(rank, value.to_string());
            }
        }
        match self.ends {
            ExpectedEnd::Well => job,
            ExpectedEnd::Hang => job.keep_going().arg("--hang-s").arg(HANG_S),
        }
    }

    /// Whether the job ended as the scenario expects.
    ///
    /// # Errors
    /// The actual end.
    pub fn check(&self, outcome: &Outcome) -> Result<(), String> {
        match self.ends {
            ExpectedEnd::Hang if outcome.ranks.iter().any(|rank| self.hangs(rank)) => Ok(()),
            ExpectedEnd::Hang => Err(format!("it does not hang in its last step\n{outcome}")),
            ExpectedEnd::Well if outcome.succeeded() => Ok(()),
            ExpectedEnd::Well => Err(format!("it failed\n{outcome}")),
        }
    }

    /// Whether a rank reached its last step and did not finish it.
    fn hangs(&self, rank: &RankOutcome) -> bool {
        let steps = self.ranks.get(&rank.rank).map_or(&self.steps, |own| &own.steps);
        let before = &steps[..steps.len().saturating_sub(1)];
        let done: usize = before.iter().map(Step::repetitions).sum();
        let code = rank.status.and_then(|status| status.code());
        code == Some(TIMED_OUT) && rank.steps_done() == done
    }
}

#[cfg(test)]
mod tests;
