// SPDX-License-Identifier: Apache-2.0
/*!
`ncclscope run`: runs a command with the plugin, and prints the report at its end.

The command inherits standard input, output and error. SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are
passed on to it, and so are SIGINT and SIGQUIT if a process sent them. The terminal sends its own to
the whole process group; `run` ignores those and waits for the command. The report comes last on
standard output, unless this is one of several that a launcher started (`task`).
*/

mod task;
mod watch;
mod why;

use crate::args::RunArgs;
use crate::cmd::report;
use crate::io::formats::ABOUT_RUN;
use crate::plugin::loading::Loading;
use crate::run_input::input::{Input, about_run, host_name, recordings_in};
use ncclscope_answer::Moment;
use ncclscope_console::failure::{ENVIRONMENT, Failure, tell, warn};
use ncclscope_control::directories::above_placeholders;
use ncclscope_control::table::{DIR, MODE};
use ncclscope_control::variable::environment;
use ncclscope_trace::Recording;
use ncclscope_trace::lanes_file::{self, Adopted};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};
use task::Task;
use watch::{NcclProcess, Watch};
use why::{NoRecording, nccl_says};

/// The content of `run.json`.
#[derive(Serialize)]
struct RunFile {
    schema: &'static str,
    command: Vec<String>,
    started: String,
    ended: Option<String>,
    exit_code: Option<u8>,
    /// The signal that ended the command itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<u8>,
    /// The latest signal that asked the job to end: by the user, or by a scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<u8>,
    /// Rank of the command, if each rank has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    versions: Versions,
}

#[derive(Serialize)]
struct Versions {
    ncclscope: &'static str,
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let loading = Loading::find()?;
    let task = Task::find();
    let (directory, is_new) = prepare(args, task)?;
    let writes = task.is_none_or(Task::is_first);
    let mut file = RunFile {
        schema: "ncclscope.run/1",
        command: args.command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        started: Moment::now().rfc3339(),
        ended: None,
        exit_code: None,
        signal: None,
        asked: None,
        rank: task.map(|task| task.rank),
        versions: Versions { ncclscope: env!("CARGO_PKG_VERSION") },
    };
    if writes {
        save(&directory, &file).map_err(|e| Failure::write(&directory, &e))?;
    }
    // File times may lag by one tick of the kernel's clock.
    let begun = SystemTime::now() - Duration::from_millis(100);
    let says = task.is_none_or(Task::is_first_of_node);
    let (End { code, signal }, seen) = execute(args, &loading, &directory, says)?;
    // If the command did not start, that was reported.
    if seen.is_none() && is_new && writes {
        let _ = std::fs::remove_file(directory.join(ABOUT_RUN));
        let _ = std::fs::remove_dir(&directory);
        return Ok(ExitCode::from(code));
    }
    file.ended = Some(Moment::now().rfc3339());
    file.exit_code = Some(code);
    (file.signal, file.asked) = (signal, asked());
    if let Some(Err(error)) = writes.then(|| save(&directory, &file)) {
        warn(format_args!("cannot write {}/run.json: {error}", directory.display()));
    }
    let Some(seen) = seen else { return Ok(ExitCode::from(code)) };
    if recordings_in(&directory).is_ok_and(|files| files.is_empty()) {
        let mode = args.mode.clone().or_else(|| environment(MODE.name));
        let said = nccl_says(begun);
        let (seen, directory) = (&seen, &*directory);
        warn(NoRecording { seen, loading: &loading, directory, mode, said, code }.text());
        return Ok(ExitCode::from(code));
    }
    adopt_lanes(&directory, task.is_some());
    let place = directory.display();
    let next = match task {
        _ if args.no_report => String::new(),
        None => {
            finish(&directory)?;
            String::new()
        }
        Some(_) => format!("; when the job has ended: ncclscope report {place}"),
    };
    if writes {
        tell(format_args!("the recordings are in {place}{next}"));
    }
    Ok(ExitCode::from(code))
}

/// Creates the run directory. Returns its absolute path, because the command may change its working
/// directory, and whether it is new.
fn prepare(args: &RunArgs, task: Option<Task>) -> Result<(PathBuf, bool), Failure> {
    if let (None, Some(task)) = (&args.output, task) {
        return Err(Failure::usage(format!(
            "this is rank {} of {}: name the directory that the ranks share with -o",
            task.rank, task.of
        )));
    }
    let directory = args.output.clone().unwrap_or_else(|| {
        let place = std::env::var_os(DIR.name).unwrap_or_default();
        above_placeholders(Path::new(&place))
            .join(format!("ncclscope-run-{}", Moment::now().compact()))
    });
    let failed = |e: std::io::Error| Failure::write(&directory, &e);
    let is_new = std::fs::symlink_metadata(&directory).is_err();
    std::fs::create_dir_all(&directory).map_err(failed)?;
    // Other ranks of this job may be recording already; at the end of a run, rank 0 writes `ended`.
    let is_over = || about_run(&directory).is_some_and(|run| run["ended"].is_string());
    let is_used = !recordings_in(&directory).map_err(failed)?.is_empty();
    if is_used && (task.is_none() || is_over()) {
        return Err(Failure::environment(format!(
            "{} already holds recordings: choose another directory with -o, or remove it",
            directory.display()
        )));
    }
    Ok((std::path::absolute(&directory).map_err(failed)?, is_new))
}

fn save(directory: &Path, file: &RunFile) -> std::io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(file)?;
    bytes.push(b'\n');
    std::fs::write(directory.join(ABOUT_RUN), bytes)
}

/// Runs the command. Returns its exit code as a shell would, and its processes that loaded NCCL, if
/// it was started. `says`: whether to report processes that record nothing for long.
fn execute(
    args: &RunArgs,
    loading: &Loading,
    directory: &Path,
    says: bool,
) -> Result<(End, Option<BTreeMap<u32, NcclProcess>>), Failure> {
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Failure::environment("no command"));
    };
    let mut command = Command::new(program);
    command.args(rest).envs(loading.variables()).env(DIR.name, directory);
    if let Some(mode) = &args.mode {
        command.env(MODE.name, mode);
    }
    // Before the command starts, so that no signal ends this process in between. The handlers are
    // reset in the command, as always at exec.
    let signals =
        SignalsInfo::<WithOrigin>::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])
            .and_then(|signals| note_asking().map(|()| signals))
            .map_err(|e| Failure::environment(format!("cannot handle signals: {e}")))?;
    match command.spawn() {
        Ok(mut child) => {
            pass_on(signals, &child);
            let watch = Watch::start(loading.path.clone(), directory.to_owned(), says);
            let status = child.wait();
            let seen = watch.end();
            let end = status.map(End::of);
            let end = end.map_err(|e| Failure::environment(format!("cannot wait: {e}")))?;
            Ok((end, Some(seen)))
        }
        Err(error) => {
            let hint = hint(program, &error);
            tell(format_args!("error: cannot run {}: {error}{hint}", program.to_string_lossy()));
            let code = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
            Ok((End { code, signal: None }, None))
        }
    }
}

/// Where a missing program was searched.
fn hint(program: &OsStr, error: &std::io::Error) -> String {
    if error.kind() != ErrorKind::NotFound || program.as_bytes().contains(&b'/') {
        return String::new();
    }
    let here = Path::new(".").join(program);
    let meant = here.is_file().then(|| format!("; did you mean {}?", here.display()));
    format!(": looked for in PATH{}", meant.unwrap_or_default())
}

fn pass_on(mut signals: SignalsInfo<WithOrigin>, child: &Child) {
    let pid = Pid::from_child(child);
    // The thread sleeps until a signal comes, and ends with the process.
    std::thread::spawn(move || {
        for Origin { signal, cause, .. } in signals.forever() {
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                SIGUSR1 => Signal::USR1,
                SIGUSR2 => Signal::USR2,
                SIGINT if matches!(cause, Cause::Sent(_)) => Signal::INT,
                SIGQUIT if matches!(cause, Cause::Sent(_)) => Signal::QUIT,
                // The terminal sent the signal to the command as well.
                _ => continue,
            };
            let _ = kill_process(pid, signal);
        }
    });
}

/// How the command ended.
struct End {
    /// Its exit code as a shell would give it.
    code: u8,
    /// The signal that ended it.
    signal: Option<u8>,
}

impl End {
    fn of(status: ExitStatus) -> End {
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        End {
            code: u8::try_from(code.unwrap_or_default()).unwrap_or(ENVIRONMENT),
            signal: status.signal().and_then(|signal| u8::try_from(signal).ok()),
        }
    }
}

/// The latest signal that asked the job to end; 0: none.
static ASKED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Notes the signals that ask the job to end, in the handler itself: a command that got the same
/// signal may be over before another thread runs.
fn note_asking() -> std::io::Result<()> {
    [SIGTERM, SIGHUP, SIGINT, SIGQUIT].into_iter().try_for_each(|signal| {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&ASKED), number).map(drop)
    })
}

fn asked() -> Option<u8> {
    u8::try_from(ASKED.load(Relaxed)).ok().filter(|&signal| signal != 0)
}

/// Adopts the lanes that killed ranks of this host left in memory, so that the directory can be
/// moved. `is_shared`: it has recordings of several hosts; only those with this host's name are
/// read.
fn adopt_lanes(directory: &Path, is_shared: bool) {
    let host = if is_shared { host_name() } else { String::new() };
    let is_of_host = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.as_bytes().starts_with(host.as_bytes()))
    };
    let recordings = recordings_in(directory).unwrap_or_default();
    let lanes = recordings.iter().filter(is_of_host).filter_map(|path| {
        Recording::open(path).ok().and_then(|recording| recording.header().lanes_file.clone())
    });
    for file in lanes {
        // A rank that outlived the command still uses its lanes; those of an exited rank were
        // adopted already.
        match lanes_file::adopt(&file, geteuid().as_raw()) {
            Ok(Adopted::Orphan) => tell(format_args!(
                "warning: the last records of a killed rank stay in {}: their recording is not \
                 where the rank made it",
                file.display()
            )),
            Err(error) if error.kind() != ErrorKind::NotFound => tell(format_args!(
                "warning: the last records of a killed rank stay in {}: {error}",
                file.display()
            )),
            _ => {}
        }
    }
}

/// Prints the report. Problems of recordings do not change the command's exit code.
fn finish(directory: &Path) -> Result<(), Failure> {
    match Input::open(&[directory.to_owned()], None) {
        Ok(input) => {
            let mut out = std::io::stdout().lock();
            writeln!(out)?;
            drop(out);
            report::print(&input, directory)?;
        }
        Err(failure) => {
            let _ = failure.report();
        }
    }
    Ok(())
}
