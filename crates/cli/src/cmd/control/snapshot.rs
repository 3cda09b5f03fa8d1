// SPDX-License-Identifier: Apache-2.0
//! `ncclscope snapshot`: records a window in processes, and copies it when it is over in all of
//! them. A process that ends meanwhile costs the others nothing.

use super::kineto::{Capture, LOOK};
use super::{code_of, confirmed, requested, trace_of, write_dumps};
use crate::args::{SnapshotArgs, Window};
use crate::control::{self, About, Process, at_once};
use ncclscope_answer::Moment;
use ncclscope_console::failure::{ENVIRONMENT, Failure, tell, warn};
use ncclscope_control::directories::is_recording_file;
use ncclscope_control::message::Recorded;
use ncclscope_control::window::RecordingWindow;
use ncclscope_trace::Recording;

use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A process whose window is awaited.
#[derive(Debug)]
struct Awaited {
    process: Process,
    /// It did not record before: its window ends by itself. Any other continues to record; there
    /// the time or the number of steps decides.
    is_ours: bool,
    /// Its training step when the window was requested.
    first: Option<u64>,
    /// It was reported that it does not record within its window.
    is_interrupted: bool,
}

/// Waits until the window has ended in all processes, then dumps.
pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<ExitCode, Failure> {
    if args.window.length.is_none() && args.window.steps.is_none() {
        return Err(Failure::usage("give the length of the window: --for 5s or --steps 10"));
    }
    let trace = trace_of(args.trace.trace.as_deref())?;
    let chosen = confirmed(&args.target)?;
    let default = || format!("ncclscope-snapshot-{}", Moment::now().compact()).into();
    let output = args.output.clone().unwrap_or_else(default);
    check(&chosen, &output)?;
    let (mut capture, window) = match args.kineto {
        true => Capture::begin(&chosen, &args.window).map(|(it, window)| (Some(it), window))?,
        false => (None, args.window),
    };
    let all = chosen.len();
    let mut awaited = begin(chosen, requested(&window)?)?;
    say_what_is_recorded(&awaited);
    let end = Instant::now() + args.timeout.unwrap_or(Duration::from_secs(3600));
    let over = end_of(&window);
    while !is_over(&mut awaited, over, window.steps) {
        if Instant::now() > end {
            warn("the window is not over yet: what there is is written");
            break;
        }
        match &mut capture {
            Some(capture) => capture.serve(LOOK),
            None => sleep(LOOK),
        }
    }
    let left: Vec<Process> = awaited.into_iter().map(|one| one.process).collect();
    if left.is_empty() {
        return Err(Failure::environment("no process is left that could be copied"));
    }
    let copied = write_dumps(&left, Some(&output), trace)?;
    let code = if left.len() == all { copied } else { ExitCode::from(ENVIRONMENT) };
    let Some(capture) = capture else { return Ok(code) };
    let problems = capture.finish(&output)?;
    Ok(if problems.is_empty() { code } else { code_of(problems.into_iter()) })
}

/// Fails, before the window, if a copy cannot be written after it because there is one already.
fn check(chosen: &[Process], output: &Path) -> Result<(), Failure> {
    let taken = |place: &Path, what: &str| {
        let place = place.display();
        Err(Failure::environment(format!("{place} {what}: choose another place with -o")))
    };
    if is_recording_file(output) && output.exists() {
        return taken(output, "is there already");
    }
    for process in chosen {
        let recording = &process.status.recording;
        let Some(copy) = recording.file_name().map(|name| output.join(name)) else { continue };
        let of = |path: &Path| Recording::open_end(path, 1).map(|it| it.identity().process());
        // Another process of that name gets a name of its own.
        if let (Ok(there), Ok(own)) = (of(&copy), of(recording))
            && there == own
        {
            return taken(&copy, &format!("is a copy of process {} already", process.pid));
        }
    }
    Ok(())
}

/// Requests the window from the processes that do not record. Leaves out those that refuse, with a
/// warning; fails if none is left, or if a window does not begin.
fn begin(chosen: Vec<Process>, window: RecordingWindow) -> Result<Vec<Awaited>, Failure> {
    let mut awaited = Vec::new();
    for process in chosen {
        let is_ours = !process.is_recorded();
        let begun = if is_ours { process.start(window) } else { Ok(process) };
        match begun {
            Ok(process) if is_ended(&process) => {
                let pid = process.pid;
                let text = format!("process {pid}: the window did not begin: it does not record");
                return Err(Failure::environment(text));
            }
            Ok(process) => {
                let first = process.status.step;
                awaited.push(Awaited { process, is_ours, first, is_interrupted: false });
            }
            Err(why) => warn(format_args!("{why}; the snapshot goes on without it")),
        }
    }
    match awaited.is_empty() {
        true => Err(Failure::environment("no process is left that could be recorded")),
        false => Ok(awaited),
    }
}

/// True if a process neither records nor has a window to come or in progress.
fn is_ended(Process { status, .. }: &Process) -> bool {
    let window = &status.window;
    status.recorded == Recorded::No && window.begins.is_none() && window.ends.is_none()
}

/// Prints on standard error what a snapshot waits for: what each process records now.
fn say_what_is_recorded(awaited: &[Awaited]) {
    let about = at_once(awaited, |one| About::of(&one.process));
    for (Awaited { process, is_ours, .. }, about) in awaited.iter().zip(&about) {
        let name = control::name(process, about);
        let records = control::records(process);
        let goes_on = if *is_ours { "" } else { "; it was recorded before and goes on" };
        tell(format_args!("{name}: {records}{goes_on}"));
        if *is_ours && let Some(problem) = control::without_steps(process) {
            warn(problem);
        }
    }
}

/// When a window with a length ends, for processes that record anyway.
fn end_of(window: &Window) -> Option<SystemTime> {
    let begin = match window.at {
        Some(at) => UNIX_EPOCH + at.since_1970(),
        None => SystemTime::now(),
    };
    window.length.map(|length| begin + length)
}

/// True if the window is over in all processes. Leaves out those that have ended, or do not answer,
/// with a warning.
fn is_over(awaited: &mut Vec<Awaited>, over: Option<SystemTime>, steps: Option<u64>) -> bool {
    let ask = |one: &Awaited| {
        let mut process = one.process.clone();
        process.refresh().map(|()| process)
    };
    let mut answers = at_once(awaited, ask).into_iter();
    awaited.retain_mut(|one| match answers.next() {
        Some(Ok(process)) => {
            one.process = process;
            true
        }
        Some(Err(why)) => {
            warn(format_args!("{why}; the snapshot goes on without it"));
            false
        }
        None => true,
    });
    awaited.iter_mut().for_each(Awaited::look);
    awaited.iter().all(|one| one.is_over(over, steps))
}

impl Awaited {
    /// Warns once if it does not record within its window.
    fn look(&mut self) {
        let is_off = self.process.status.recorded == Recorded::No && !is_ended(&self.process);
        if is_off && !self.is_interrupted {
            self.is_interrupted = true;
            warn(format_args!(
                "process {} does not record within its window, because NCCL's activation mask was \
                 changed from outside (RAS: CONTROL PROFILER_MASK; its log has the times)",
                self.process.pid
            ));
        }
    }

    fn is_over(&self, over: Option<SystemTime>, steps: Option<u64>) -> bool {
        if self.is_ours {
            return is_ended(&self.process);
        }
        if let Some(over) = over {
            return SystemTime::now() >= over;
        }
        // The step in progress at the beginning was not recorded completely.
        match (self.process.status.step, steps) {
            (Some(now), Some(steps)) => self.first.is_none_or(|b| now > b.saturating_add(steps)),
            _ => false,
        }
    }
}
