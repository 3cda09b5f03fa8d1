// SPDX-License-Identifier: Apache-2.0
//! Simulates a job and writes the files of a scenario.

use crate::error::Error;
use crate::fault::{Fault, FaultGroup};
use crate::inject::{FaultSite, PlantedFault, RUNS, compute_factors};
use crate::layout::Layout;
use crate::model::collective::Outcome;
use crate::model::conditions::Conditions;
use crate::model::program::{Op, programs};
use crate::model::solve::{OpTimes, Solution, solve};
use crate::record::{EPOCH_NS, Job, tell_rank, write_rank};
use crate::scenario::Scenario;
use crate::time::{NEVER, SECOND, Time};
use crate::truth::{JobSizes, SCHEMA, Truth};
use crate::vectors;
use ncclscope_trace::vectors::Table;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// The most ranks of which a table of vectors is made from each event, with network transfers.
const MOST_SOLVED: u32 = 1_024;

/// The file with the true causes.
const TRUTH: &str = "truth.json";

/// A summary of the simulation.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The true causes.
    pub truth: Truth,
    /// Simulated seconds.
    pub seconds: f64,
    /// Operations of all ranks.
    pub operations: u64,
}

/// Simulates a job and writes its recordings and `truth.json` into `dir`, which is created if it is
/// missing.
///
/// # Errors
/// [`Error::Scenario`] if the scenario is impossible, [`Error::Write`] if a file cannot be written
/// or already exists.
pub fn run(scenario: &Scenario, dir: &Path) -> Result<Summary, Error> {
    if scenario.fault.len() > 3 {
        return Err(Error::scenario("at most three faults can be planted at once"));
    }
    let scenario = adjusted(scenario);
    let layout = Layout::new(&scenario)?;
    if scenario.counters {
        return count(&scenario, &layout, dir);
    }
    let prepared = Prepared::new(&scenario, &layout)?;
    fs::create_dir_all(dir).map_err(|error| Error::write(dir, error))?;
    keep_truth(dir)?;
    write_recordings(&prepared.job(&scenario, &layout), dir)?;
    let truth = prepared.truth(&scenario, &layout);
    write_truth(&truth, dir)?;
    Ok(Summary {
        truth,
        seconds: seconds(prepared.end),
        operations: prepared.solution.ranks.iter().map(|ops| ops.len() as u64).sum(),
    })
}

/// Writes a table of vectors instead of recordings. Only of a job that is not too large is each
/// event computed.
fn count(scenario: &Scenario, layout: &Layout, dir: &Path) -> Result<Summary, Error> {
    let (table, truth) = if layout.ranks <= MOST_SOLVED {
        let prepared = Prepared::new(scenario, layout)?;
        let truth = prepared.truth(scenario, layout);
        let mut table = Table { made_ns: truth.ended_ns, ..Table::default() };
        let job = prepared.job(scenario, layout);
        (0..layout.ranks).for_each(|rank| tell_rank(&job, rank, &mut table));
        (table, truth)
    } else {
        vectors::table(scenario, layout)?
    };
    fs::create_dir_all(dir).map_err(|error| Error::write(dir, error))?;
    keep_truth(dir)?;
    let path = dir.join("job.vectors");
    let file = fs::File::create_new(&path).map_err(|error| Error::write(&path, error))?;
    (&file).write_all(&table.bytes()).map_err(|error| Error::write(&path, error))?;
    write_truth(&truth, dir)?;
    let operations = table.vectors.iter().map(|vector| u64::from(vector.api)).sum();
    let seconds = truth.seconds;
    Ok(Summary { truth, seconds, operations })
}

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn seconds(time: Time) -> f64 {
    time as f64 / 1e9
}

/// The scenario with default values filled in, and with the controls that are properties of the
/// hardware.
fn adjusted(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone();
    if scenario.job.steps == 0 {
        scenario.job.steps = if scenario.job.ranks < 512 { 20 } else { 12 };
    }
    let machine = &mut scenario.machine;
    for planted in &scenario.fault {
        match planted.name {
            Fault::Jitter => machine.jitter = 0.15,
            Fault::Clocks => {
                (machine.clock_offset_ms, machine.clock_drift_ppm) = (1_000.0, 100.0);
            }
            Fault::DroppedHeartbeats => machine.dropped = 0.33,
            Fault::RingOverflow => {
                scenario.job.ring_mib = 1;
                // With more ranks, rings are longer and each step has more records.
                scenario.job.steps *= match scenario.job.ranks {
                    0..64 => 20,
                    64..512 => 8,
                    _ => 3,
                };
            }
            _ => {}
        }
    }
    scenario
}

/// A solved job and its planted faults.
struct Prepared {
    programs: Vec<Vec<Op>>,
    conditions: Conditions,
    thread_states: Vec<[crate::record::ThreadState; 2]>,
    solution: Solution,
    injected: Vec<PlantedFault>,
    end: Time,
}

impl Prepared {
    fn new(scenario: &Scenario, layout: &Layout) -> Result<Prepared, Error> {
        let mut programs = programs(layout, scenario, &compute_factors(scenario, layout));
        let mut conditions = Conditions::new(layout.ranks);
        let mut thread_states = vec![[RUNS; 2]; layout.ranks as usize];
        let mut site = FaultSite {
            scenario,
            layout,
            programs: &mut programs,
            conditions: &mut conditions,
            thread_states: &mut thread_states,
        };
        let machine = &scenario.machine;
        let mut injected: Vec<PlantedFault> = Vec::new();
        let has = |group| scenario.fault.iter().any(|planted| planted.name.group() == group);
        let plain = |site: &FaultSite<'_>| solve(layout, machine, site.conditions, site.programs);
        let middle = if scenario.has(Fault::Drift) || scenario.has(Fault::AlgoChange) {
            middle(&plain(&site), site.programs, scenario.job.steps / 2)
        } else {
            0
        };
        let of = |hangs: bool| {
            let all = scenario.fault.iter().zip(0u64..);
            all.filter(move |(planted, _)| (planted.name.group() == FaultGroup::Hang) == hangs)
        };
        for (planted, number) in of(false) {
            injected.push(site.slow(planted, number, middle)?);
        }
        if has(FaultGroup::Hang) {
            let healthy = plain(&site);
            let mut taken = Vec::new();
            for (planted, number) in of(true) {
                let one = site.hang(planted, number, &taken, &healthy)?;
                taken.push(one.rank);
                injected.push(one);
            }
        }
        let solution = plain(&site);
        let latest = solution.latest();
        let rest =
            if solution.is_stuck() { u64::from(scenario.job.hold_s) * SECOND } else { SECOND };
        let end = latest + rest;
        Ok(Prepared { programs, conditions, thread_states, solution, injected, end })
    }

    fn job<'a>(&'a self, scenario: &'a Scenario, layout: &'a Layout) -> Job<'a> {
        Job {
            scenario,
            layout,
            conditions: &self.conditions,
            programs: &self.programs,
            solution: &self.solution,
            thread_states: self.thread_states.clone(),
            end: self.end,
            closed: !self.solution.is_stuck(),
        }
    }

    /// Whether a fault took effect and was not prevented by another one.
    fn shows(&self, injected: &PlantedFault) -> bool {
        let ops = &self.solution.ranks[injected.rank as usize];
        let Some(done) = ops.get(injected.op) else { return false };
        let before = injected.op.checked_sub(1).and_then(|last| ops.get(last));
        let called = before.is_none_or(|last| last.enqueued != NEVER);
        match injected.fault {
            Fault::HostStuck | Fault::GilLock => called,
            Fault::Killed | Fault::Exit | Fault::Sigstop => true,
            Fault::InLaunch | Fault::ExtraOp | Fault::WrongType => done.issued != NEVER,
            Fault::WrongCount | Fault::WrongRoot | Fault::OrderSwap => done.issued != NEVER,
            Fault::P2pUnmatched | Fault::P2pSize => done.enqueued != NEVER,
            Fault::StreamBlocked => {
                done.enqueued != NEVER && before.is_none_or(|last| last.end != NEVER)
            }
            // It may also hit an earlier operation that posts later.
            Fault::ReceiverNotReady => ops.iter().any(|done| self.is_cut(injected.rank, done)),
            Fault::SenderGpuStuck => self.lacks_gpu(injected.rank, done),
            Fault::NvlinkHang => self.stops_within(injected),
            _ => done.start != NEVER && (done.end == NEVER || self.is_cut(injected.rank, done)),
        }
    }

    /// True if a rank's GPU does not produce all data that the rank should send in an operation, or
    /// does not accept the data that arrived.
    fn lacks_gpu(&self, rank: u32, done: &OpTimes) -> bool {
        self.outcomes(done).flat_map(|outcome| &outcome.flows).any(|flow| {
            flow.from.rank == rank && flow.steps.iter().any(|step| step.send[1] == NEVER)
                || flow.to.rank == rank
                    && flow.steps.iter().any(|step| step.recv[3] != NEVER && step.recv[4] == NEVER)
        })
    }

    /// True if all members of the group run an operation that does not end on all of them. It may
    /// end on the rank itself, and the first one that does not end may be a later one.
    fn stops_within(&self, injected: &PlantedFault) -> bool {
        let rank = injected.rank as usize;
        let ops = self.programs[rank].iter().zip(&self.solution.ranks[rank]).skip(injected.op);
        let group = self.programs[rank][injected.op].group;
        let mut outcomes =
            ops.filter(|(op, _)| op.group == group).flat_map(|(_, done)| self.outcomes(done));
        outcomes.any(|outcome| {
            let mut kernels = outcome.kernels.iter().flatten();
            kernels.clone().all(|kernel| kernel.0 != NEVER) && kernels.any(|k| k.1 == NEVER)
        })
    }

    fn outcomes<'a>(&'a self, done: &'a OpTimes) -> impl Iterator<Item = &'a Outcome> {
        done.parts.iter().filter_map(|part| self.solution.outcomes.get(part.0 as usize))
    }

    /// True if a send or receive of a rank in an operation does not complete, even if its kernels
    /// do.
    fn is_cut(&self, rank: u32, done: &OpTimes) -> bool {
        self.outcomes(done).flat_map(|outcome| &outcome.flows).any(|flow| {
            flow.from.rank == rank && flow.sent() == NEVER
                || flow.to.rank == rank && flow.received() == NEVER
        })
    }

    fn truth(&self, scenario: &Scenario, layout: &Layout) -> Truth {
        let names: Vec<&str> = scenario.fault.iter().map(|planted| planted.name.name()).collect();
        let (mut verdicts, mut slow, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for injected in &self.injected {
            slow.extend(injected.slow.clone());
            if injected.verdict.is_some() && !self.shows(injected) {
                hidden.push(injected.fault.name().to_owned());
            } else {
                verdicts.extend(injected.verdict.clone());
            }
        }
        let first = self.injected.iter().map(|injected| injected.time).min().unwrap_or(0);
        let began = EPOCH_NS + u64::from(scenario.job.start_s) * SECOND;
        let Layout { ranks, per_host, tp, pp, dp, ep, .. } = *layout;
        Truth {
            schema: SCHEMA.into(),
            fault: if names.is_empty() { "healthy".into() } else { names.join("+") },
            seed: scenario.seed,
            injected_ns: began + first,
            ended_ns: began + self.end,
            seconds: seconds(self.end),
            verdicts,
            slow,
            hidden,
            ended: !self.solution.is_stuck(),
            job: JobSizes { ranks, per_host, tp, pp, dp, ep },
        }
    }
}

/// When the first rank reaches a step.
fn middle(solution: &Solution, programs: &[Vec<Op>], step: u32) -> Time {
    let ops = solution.ranks.iter().zip(programs).flat_map(|(done, ops)| done.iter().zip(ops));
    ops.filter(|(_, op)| op.step == step).map(|(done, _)| done.start).min().unwrap_or(0)
}

/// Writes the recordings on all CPU cores.
fn write_recordings(job: &Job<'_>, dir: &Path) -> Result<(), Error> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = u32::try_from(threads).unwrap_or(1).clamp(1, 16);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn(move || {
                    let mut own = (first..job.layout.ranks).step_by(threads as usize);
                    own.try_for_each(|rank| write_rank(job, rank, dir).map(drop))
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            // Propagates a panic of a worker.
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Fails if the truth about another job is in `dir`, before anything is written.
///
/// # Errors
/// [`Error::Write`] if the file exists.
pub fn keep_truth(dir: &Path) -> Result<(), Error> {
    let path = dir.join(TRUTH);
    match path.exists() {
        true => {
            let error = io::Error::new(io::ErrorKind::AlreadyExists, "File exists");
            Err(Error::write(&path, error))
        }
        false => Ok(()),
    }
}

fn write_truth(truth: &Truth, dir: &Path) -> Result<(), Error> {
    let path = dir.join(TRUTH);
    let text = serde_json::to_string_pretty(truth)
        .map_err(|error| Error::write(&path, std::io::Error::other(error)))?;
    fs::write(&path, text + "\n").map_err(|error| Error::write(&path, error))
}
