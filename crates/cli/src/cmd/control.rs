// SPDX-License-Identifier: Apache-2.0
//! `ncclscope ls`, `start`, `stop`, `snapshot` and `dump`: control what processes record, at run
//! time.

use crate::args::{
    DumpArgs, LsArgs, SnapshotArgs, StartArgs, StopArgs, TableFormat, Target, Window,
};
use crate::control::{self, Process};
use crate::failure::{ENVIRONMENT, Failure, tell, warn};
use crate::output;
use crate::table::{Align, Table};
use ncclscope_answer::Moment;
use ncclscope_control::message::Recorded;
use ncclscope_control::window::{RecordingWindow, WindowEnd};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

mod kineto;
mod why;

use kineto::{Capture, LOOK};

/// `ls --format json`.
#[derive(Serialize)]
struct Listing<'a> {
    schema: &'static str,
    processes: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    /// `yes`, `no` or `waiting`.
    recorded: &'a str,
    job: Option<&'a str>,
    nccl_version: Option<u32>,
    step: Option<u64>,
    comms: Vec<Comm>,
    /// Communicators beyond those listed.
    more_comms: u64,
    recording: Cow<'a, str>,
}

#[derive(Serialize)]
struct Comm {
    comm: String,
    rank: i32,
    nranks: u32,
}

pub(crate) fn list(args: &LsArgs) -> Result<ExitCode, Failure> {
    let (found, problems) = asked(&[])?;
    problems.iter().for_each(|(pid, why)| warn(format_args!("process {pid}: {why}")));
    let rows: Vec<Row<'_>> = found.iter().map(Row::of).collect();
    if args.format == TableFormat::Json {
        output::json(&Listing { schema: "ncclscope.processes/1", processes: rows })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("RECORDED", Align::Left),
        ("JOB", Align::Left),
        ("STEP", Align::Right),
        ("COMMUNICATORS", Align::Left),
        ("RECORDING", Align::Left),
    ]);
    for row in &rows {
        table.row(vec![
            row.pid.to_string(),
            row.recorded.to_owned(),
            row.job.unwrap_or("-").to_owned(),
            row.step.map_or_else(|| "-".into(), |step| step.to_string()),
            row.comms_text(),
            row.recording.clone().into_owned(),
        ]);
    }
    match args.format {
        TableFormat::Csv => {
            table.sheet().print_csv()?;
            return Ok(ExitCode::SUCCESS);
        }
        TableFormat::Md if !table.is_empty() => {
            output::text(&table.sheet().markdown())?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let mut out = output::screen();
    if table.is_empty() && !problems.is_empty() {
        tell("no process of this user answers");
    } else if table.is_empty() {
        let dir = control::directory();
        tell(format_args!(
            "no process of this user is recorded (there is no socket in {})",
            dir.display()
        ));
    } else {
        table.lines("").iter().try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Row<'_> {
    fn of(process: &Process) -> Row<'_> {
        let status = &process.status;
        let comms = status.comms.iter().map(|member| Comm {
            comm: format!("{:#x}", member.hash),
            rank: member.rank,
            nranks: member.ranks,
        });
        Row {
            pid: process.pid,
            recorded: status.recorded.word(),
            job: Some(status.job.as_str()).filter(|job| !job.is_empty()),
            nccl_version: Some(status.nccl_version).filter(|&version| version != 0),
            step: status.step,
            comms: comms.collect(),
            more_comms: status.more_comms,
            recording: status.recording.to_string_lossy(),
        }
    }

    fn comms_text(&self) -> String {
        let Some(first) = self.comms.first() else { return "-".into() };
        let more = self.comms.len() as u64 - 1 + self.more_comms;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        // NCCL 2.23 to 2.26 do not report the number of ranks.
        let of = Some(first.nranks).filter(|&ranks| ranks > 0);
        let of = of.map(|ranks| format!(" of {ranks}")).unwrap_or_default();
        format!("{} rank {}{of}{more}", first.comm, first.rank)
    }
}

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
        return why::tell(&chosen, args.format);
    }
    write_dumps(&chosen, args.output.as_deref())
}

/// Waits until the window is over everywhere, then dumps.
pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<ExitCode, Failure> {
    if args.window.length.is_none() && args.window.steps.is_none() {
        return Err(Failure::usage("give the length of the window: --for 5s or --steps 10"));
    }
    let mut chosen = chosen(&args.target)?;
    let default = || format!("ncclscope-snapshot-{}", Moment::now().compact()).into();
    let output = args.output.clone().unwrap_or_else(default);
    let (mut capture, window) = match args.kineto {
        true => Capture::begin(&chosen, &args.window).map(|(it, window)| (Some(it), window))?,
        false => (None, args.window),
    };
    let requested = requested(&window)?;
    let ours: Vec<bool> = chosen.iter().map(|process| !process.is_recorded()).collect();
    for (process, _) in chosen.iter().zip(&ours).filter(|(_, ours)| **ours) {
        process.start(requested).map_err(Failure::environment)?;
    }
    let first = chosen.iter().map(|process| process.status.step).collect::<Vec<_>>();
    let end = Instant::now() + args.timeout.unwrap_or(Duration::from_secs(3600));
    let over = end_of(&window);
    while !is_over(&mut chosen, &ours, &first, over, window.steps)? {
        if Instant::now() > end {
            warn("the window is not over yet: what there is is written");
            break;
        }
        match &mut capture {
            Some(capture) => capture.serve(LOOK),
            None => sleep(LOOK),
        }
    }
    let code = write_dumps(&chosen, Some(&output))?;
    let Some(capture) = capture else { return Ok(code) };
    let problems = capture.finish(&output)?;
    Ok(if problems.is_empty() { code } else { code_of(problems.into_iter()) })
}

/// When a window by time is over, for processes that are recorded anyway.
fn end_of(window: &Window) -> Option<SystemTime> {
    let begin = match window.at {
        Some(at) => UNIX_EPOCH + at.since_1970(),
        None => SystemTime::now(),
    };
    window.length.map(|length| begin + length)
}

/// A process that was already recording continues to: there the time, or its steps, decide.
fn is_over(
    chosen: &mut [Process],
    ours: &[bool],
    first: &[Option<u64>],
    over: Option<SystemTime>,
    steps: Option<u64>,
) -> Result<bool, Failure> {
    for (index, process) in chosen.iter_mut().enumerate() {
        process.refresh().map_err(Failure::environment)?;
        let is_over = if ours.get(index).copied().unwrap_or(false) {
            process.status.recorded == Recorded::No
        } else if let Some(over) = over {
            SystemTime::now() >= over
        } else {
            // The step under way at first was not seen whole.
            let before = first.get(index).copied().flatten();
            match (process.status.step, steps) {
                (Some(now), Some(steps)) => before.is_none_or(|b| now > b.saturating_add(steps)),
                _ => false,
            }
        };
        if !is_over {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The window of the requests to processes.
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

/// The processes that answer, of `only` these unless that is empty, and what is wrong with others.
fn asked(only: &[u32]) -> Result<(Vec<Process>, Vec<control::Problem>), Failure> {
    let dir = control::directory();
    let failed = |e: io::Error| Failure::environment(format!("cannot read {}: {e}", dir.display()));
    control::processes(&dir, only).map_err(failed)
}

/// The processes that are meant; the only one there is needs no word.
fn chosen(target: &Target) -> Result<Vec<Process>, Failure> {
    let only = if target.all || target.job.is_some() { &[][..] } else { &target.pid };
    let (found, problems) = asked(only)?;
    let count = found.len();
    let is_meant = |process: &Process| {
        target.all
            || target.pid.contains(&process.pid)
            || target.job.as_deref().is_some_and(|job| process.status.job == job)
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

/// Asks each selected process; one that refuses is named, and the others do it.
fn each(
    target: &Target,
    ask: impl Fn(&Process) -> Result<(), String>,
) -> Result<ExitCode, Failure> {
    let results = chosen(target)?.iter().map(ask).collect::<Vec<_>>();
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

/// Dumps all at once, and prints where they are.
fn write_dumps(chosen: &[Process], output: Option<&Path>) -> Result<ExitCode, Failure> {
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
    Ok(code_of(results.into_iter().filter_map(Result::err)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_number_of_ranks_is_left_out() {
        let text = |nranks| {
            let comms = vec![Comm { comm: "0x1f".into(), rank: 3, nranks }];
            let (recorded, recording) = ("yes", "".into());
            let (job, nccl_version, step, more_comms) = (None, None, None, 1);
            Row { pid: 1, recorded, job, nccl_version, step, comms, more_comms, recording }
                .comms_text()
        };
        assert_eq!(text(0), "0x1f rank 3 and 1 more");
        assert_eq!(text(8), "0x1f rank 3 of 8 and 1 more");
    }
}
