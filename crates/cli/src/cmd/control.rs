// SPDX-License-Identifier: Apache-2.0
//! `ncclscope ls`, `start`, `stop`, `snapshot` and `dump`: control what processes record, at run
//! time.

use super::export;
use crate::args::{
    DumpArgs, ExportArgs, FilterArgs, RunChoice, StartArgs, StopArgs, Target, Window,
};
use crate::control::{self, About, Process, at_once};
use crate::io::{output, terminal};
use ncclscope_console::failure::{ENVIRONMENT, Failure, tell, warn};
use ncclscope_control::window::{RecordingWindow, WindowEnd};
use ncclscope_operations::human::count;
use ncclscope_trace::Recording;
use ncclscope_trace::runs::{ProcessFacts, Run, Runs};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod dynolog;
mod kineto;
mod listing;
mod snapshot;
mod why;

pub(crate) use listing::list;
pub(crate) use snapshot::snapshot;

pub(crate) fn start(args: &StartArgs) -> Result<ExitCode, Failure> {
    let window = requested(&args.window)?;
    each(&args.target, |process| process.start(window))
}

pub(crate) fn stop(args: &StopArgs) -> Result<ExitCode, Failure> {
    each(&args.target, Process::stop)
}

pub(crate) fn dump(args: &DumpArgs) -> Result<ExitCode, Failure> {
    let chosen = chosen(&args.target)?;
    if args.why {
        return why::tell(&chosen, args.hang.hang_sec, args.format);
    }
    let trace = trace_of(args.trace.trace.as_deref())?;
    confirm(&args.target, &chosen)?;
    write_dumps(&chosen, args.output.as_deref(), trace)
}

/// How to write the trace of copies, which have no names yet. Refuses a name that tells no format,
/// before minutes of recording.
fn trace_of(file: Option<&Path>) -> Result<Option<ExportArgs>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let args = ExportArgs {
        inputs: Vec::new(),
        to: None,
        per_rank: false,
        output: file.to_owned(),
        run: RunChoice::default(),
        filter: FilterArgs::default(),
    };
    export::check(&args)?;
    Ok(Some(args))
}

/// The recording window as it is requested from processes.
fn requested(window: &Window) -> Result<RecordingWindow, Failure> {
    let end = match (window.length, window.steps) {
        (None, None) => WindowEnd::Open,
        (Some(length), None) => WindowEnd::After(length),
        (None, Some(steps)) => WindowEnd::Steps(steps),
        (Some(_), Some(_)) => {
            return Err(Failure::usage("--for and --steps both end the window: choose one"));
        }
    };
    let at = window.at.map(|at| u64::try_from(at.since_1970().as_nanos()).unwrap_or(u64::MAX));
    Ok(RecordingWindow { at, end, sample: window.sample.unwrap_or(1) })
}

/// The processes that answer, and problems with others. If `only` is not empty, only these process
/// ids.
fn asked(only: &[u32]) -> Result<(Vec<Process>, Vec<control::Problem>), Failure> {
    let dir = control::directory();
    let failed = |e: io::Error| Failure::environment(format!("cannot read {}: {e}", dir.display()));
    control::processes(&dir, only).map_err(failed)
}

/// True if a process's job is `meant` or a step of it (Slurm's `88.0` of `88`).
fn is_of_job(job: &str, meant: &str) -> bool {
    let is_step = |rest: &str| rest.strip_prefix('.').is_some_and(|step| !step.is_empty());
    job.strip_prefix(meant).is_some_and(|rest| rest.is_empty() || is_step(rest))
}

/// The selected processes; if there is only one, no selection is needed.
fn chosen(target: &Target) -> Result<Vec<Process>, Failure> {
    let only = if target.all || target.job.is_some() { &[][..] } else { &target.pid };
    let (found, problems) = asked(only)?;
    let count = found.len();
    let is_meant = |process: &Process| {
        target.all
            || target.pid.contains(&process.pid)
            || target.job.as_deref().is_some_and(|job| is_of_job(&process.status.job, job))
    };
    let is_told = target.all || target.job.is_some() || !target.pid.is_empty();
    let chosen: Vec<Process> = found.into_iter().filter(|p| !is_told || is_meant(p)).collect();
    for (pid, why) in &problems {
        if target.pid.contains(pid) {
            return Err(Failure::environment(format!("process {pid}: {why}")));
        }
        warn(format_args!("process {pid}: {why}"));
    }
    for pid in &target.pid {
        if !chosen.iter().any(|process| process.pid == *pid) {
            return Err(Failure::environment(format!(
                "process {pid} has no socket here: it has no NCCL communicator with the plugin, is \
                 another user's, or NCCLSCOPE_CONTROL differs (see ncclscope ls)"
            )));
        }
    }
    match chosen.len() {
        0 if !problems.is_empty() => Err(Failure::environment("no such process answers")),
        0 => Err(Failure::environment("no such process is recorded here (see ncclscope ls)")),
        n if n > 1 && !is_told => Err(Failure::usage(format!(
            "{count} processes are recorded here: choose with --pid, --job or --all (see \
             ncclscope ls)"
        ))),
        _ => Ok(chosen),
    }
}

/// The selected processes. If `--all` selects several jobs, the user must confirm.
fn confirmed(target: &Target) -> Result<Vec<Process>, Failure> {
    let chosen = chosen(target)?;
    confirm(target, &chosen)?;
    Ok(chosen)
}

fn confirm(target: &Target, chosen: &[Process]) -> Result<(), Failure> {
    if !target.all || target.yes {
        return Ok(());
    }
    let jobs = jobs(chosen);
    if jobs.len() < 2 {
        return Ok(());
    }
    let named =
        |(job, processes): &(String, usize)| format!("{job}: {}", count(*processes, "rank"));
    let jobs: Vec<String> = jobs.iter().map(named).collect();
    let what = format!("--all reaches {} jobs ({})", jobs.len(), jobs.join(", "));
    match terminal::confirms(&format!("ncclscope: {what}. Continue?")) {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::usage("nothing was done")),
        None => Err(Failure::usage(format!("{what}: confirm with --yes, or choose one by --job"))),
    }
}

/// The jobs of processes, by name, and how many are of each. Those without a job id are of several
/// jobs if their recordings are of several runs.
fn jobs(chosen: &[Process]) -> Vec<(String, usize)> {
    let mut jobs: BTreeMap<&str, usize> = BTreeMap::new();
    for process in chosen {
        *jobs.entry(&process.status.job).or_default() += 1;
    }
    let unnamed = jobs.remove("").unwrap_or(0);
    let mut jobs: Vec<(String, usize)> =
        jobs.into_iter().map(|(job, processes)| (job.to_owned(), processes)).collect();
    if unnamed == 0 {
        return jobs;
    }
    let without = chosen.iter().filter(|process| process.status.job.is_empty());
    let open = |process: &Process| Recording::open_end(&process.status.recording, 1).ok();
    let facts: Vec<ProcessFacts> =
        without.filter_map(open).map(|recording| ProcessFacts::of(&recording)).collect();
    let runs = Runs::split(&facts).runs;
    if runs.len() < 2 {
        jobs.push(("without a job id".into(), unnamed));
    } else {
        let one = |run: Run| (format!("without a job id, {}", run.id), run.members.len());
        jobs.extend(runs.into_iter().map(one));
    }
    jobs
}

/// Sends the request to each selected process, and prints what it records now. Processes that
/// refuse are reported, and the others continue.
fn each(
    target: &Target,
    ask: impl Fn(&Process) -> Result<Process, String>,
) -> Result<ExitCode, Failure> {
    let chosen = confirmed(target)?;
    let results: Vec<_> = chosen.iter().map(ask).collect();
    let changed: Vec<&Process> = results.iter().flatten().collect();
    let about = at_once(&changed, |process| About::of(process));
    let mut out = output::screen();
    for (process, about) in changed.iter().zip(&about) {
        let line = format!("{}: {}", control::name(process, about), control::records(process));
        writeln!(out, "{}", output::in_a_line(&line))?;
    }
    out.flush()?;
    changed.iter().filter_map(|process| control::without_steps(process)).for_each(warn);
    Ok(code_of(results.into_iter().filter_map(Result::err)))
}

fn code_of(problems: impl Iterator<Item = String>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for problem in problems {
        warn(problem);
        code = ExitCode::from(ENVIRONMENT);
    }
    code
}

/// Dumps all processes at the same time, prints where the copies are, and writes a trace of them.
fn write_dumps(
    chosen: &[Process],
    output: Option<&Path>,
    trace: Option<ExportArgs>,
) -> Result<ExitCode, Failure> {
    let output = match output {
        Some(dir) => Some(std::path::absolute(dir).map_err(|e| Failure::write(dir, &e))?),
        None => None,
    };
    let output = output.as_deref();
    let results = control::at_once(chosen, |process| process.dump(output));
    let mut out = output::screen();
    for file in results.iter().flatten() {
        writeln!(out, "{}", file.display())?;
    }
    out.flush()?;
    let copied = chosen.iter().zip(&results).filter(|(_, file)| file.is_ok());
    let copied: Vec<&Process> = copied.map(|(process, _)| process).collect();
    let about = at_once(&copied, |process| About::of(process));
    for (process, about) in copied.iter().zip(&about) {
        tell(format_args!("{}: copied", control::name(process, about)));
    }
    let copies: Vec<PathBuf> = results.iter().flatten().cloned().collect();
    let code = code_of(results.into_iter().filter_map(Result::err));
    let Some(trace) = trace.filter(|_| !copies.is_empty()) else { return Ok(code) };
    let of_trace = export::run(&ExportArgs { inputs: copies, ..trace })?;
    // The problem of a copy comes first.
    Ok(if code == ExitCode::SUCCESS { of_trace } else { code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_means_its_steps_too() {
        assert!(is_of_job("88", "88") && is_of_job("88.0", "88") && is_of_job("88.0", "88.0"));
        assert!(!is_of_job("880.1", "88") && !is_of_job("88.1", "88.0") && !is_of_job("", "88"));
    }
}
