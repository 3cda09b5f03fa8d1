// SPDX-License-Identifier: Apache-2.0
/*!
The actions on a hang: the application's own function, a command, a copy, a signal.

The function and the command run for each hang. There is one copy per look, because it contains all
hangs of that look, and one signal per look, because a second one adds nothing.

Each kind of action has a thread of its own, so that none waits for another: an application may wait
for its interpreter's lock, a report for a file system that hangs, and a copy may take long. Actions
of one kind run in order, so that a hang is reported before its end.

A signal that the process handles is sent at once. One that ends the process is sent last, when the
other actions are done and the command has ended, or after [`PATIENCE`] in any case.
*/

use super::{Hang, Happened};
use crate::config::HangActions;
use crate::reply::Reply;
use crate::runtime::{Refusal, Runtime};
use crate::sys::lock::Lock;
use crate::sys::{self, exec, signal};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ncclscope_control::table::HANG_COMMAND;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of waiting works of one kind; more means that no action of that kind works.
const MOST: usize = 16;
/// Maximum number of commands that run at the same time.
const COMMANDS: usize = 4;
/// How long a signal that ends the process waits for the other actions, and how long a command
/// waits for earlier ones.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a command waits for its report to be written.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);
/// How often the signal's thread checks whether the other actions are done.
const LOOK: Duration = Duration::from_millis(20);
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// A report is being written.
static IS_WRITING: AtomicBool = AtomicBool::new(false);

/// Called with each hang, as JSON in one line.
pub type OnHang = Box<dyn Fn(&str) + Send + Sync>;

static LISTENER: Lock<Option<Arc<OnHang>>> = Lock::new(None);

/// Sets the listener for hangs and their ends; `None` removes it. A call in progress continues.
pub fn listen(listener: Option<OnHang>) {
    *LISTENER.lock() = listener.map(Arc::new);
}

/// A hang or its end, and the actions to take.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) hang: Hang,
    pub(crate) actions: HangActions,
    pub(crate) recording: PathBuf,
    /// Random number of this process, which no other process has.
    pub(crate) nonce: u32,
    /// Number of works that the process had before.
    pub(crate) number: u32,
    /// True if the actions include a copy of the recording.
    pub(crate) copies: bool,
}

/// The kinds of actions, the cheap ones first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Listener,
    Command,
    Dump,
}

const KINDS: [Kind; 3] = [Kind::Listener, Kind::Command, Kind::Dump];
static QUEUES: [Lock<Queue>; KINDS.len()] = [const { Lock::new(Queue::new()) }; KINDS.len()];

/// The waiting works of one kind, in order.
#[derive(Debug)]
struct Queue {
    works: VecDeque<Job>,
    /// A thread is working on this queue.
    is_running: bool,
    /// A work was left out since the queue was last empty.
    is_full: bool,
}

/// A work, and the count of what remains to be done of its look.
#[derive(Clone, Debug)]
struct Job {
    work: Arc<Work>,
    left: Left,
}

/// Number of actions of one look that are not done yet.
#[derive(Clone, Debug)]
struct Left(Arc<AtomicUsize>);

impl Queue {
    const fn new() -> Queue {
        Queue { works: VecDeque::new(), is_running: false, is_full: false }
    }
}

impl Left {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn done(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Starts the actions for the hangs of one look. Returns a line for each action that cannot be
/// done.
pub(crate) fn begin(runtime: &'static Runtime, works: Vec<Work>) -> Vec<String> {
    let left = Left(Arc::new(AtomicUsize::new(0)));
    let hung = works.iter().find(|work| work.hang.happened == Happened::Hung);
    let signal = hung.and_then(|work| work.actions.signal);
    if let Some(signal) = signal.filter(|&signal| !signal::is_fatal(signal)) {
        signal::send_to_self(signal);
    }
    let mut lines = Vec::new();
    for work in works {
        let kinds: Vec<Kind> = KINDS.into_iter().filter(|&kind| work.wants(kind)).collect();
        let job = Job { work: Arc::new(work), left: left.clone() };
        for kind in kinds {
            left.add();
            lines.extend(enqueue(runtime, kind, job.clone()));
        }
    }
    if let Some(signal) = signal.filter(|&signal| signal::is_fatal(signal)) {
        let end = move || end_process(signal, &left);
        if sys::spawn_quiet("ncclscope/signal", end).is_err() {
            signal::send_to_self(signal);
        }
    }
    lines
}

/// Sends the signal that ends the process, once the other actions are done or take too long.
fn end_process(signal: u8, left: &Left) {
    let until = Instant::now() + PATIENCE;
    while left.0.load(Ordering::Acquire) > 0 && Instant::now() < until {
        crate::sys::wake::pause(LOOK);
    }
    signal::send_to_self(signal);
}

/// Adds a job to the queue of its kind. Returns a line if it cannot be done.
fn enqueue(runtime: &'static Runtime, kind: Kind, job: Job) -> Option<String> {
    let mut queue = QUEUES[kind as usize].lock();
    if queue.works.len() >= MOST {
        job.left.done();
        let is_first = !std::mem::replace(&mut queue.is_full, true);
        return is_first.then(|| {
            let kind = kind.name();
            format!(
                "earlier calls of the {kind} for hangs have not ended: further calls are dropped"
            )
        });
    }
    queue.works.push_back(job);
    if std::mem::replace(&mut queue.is_running, true) {
        return None;
    }
    drop(queue);
    let spawned = sys::spawn_quiet("ncclscope/hang", move || work_off(runtime, kind));
    let error = spawned.err()?;
    let mut queue = QUEUES[kind as usize].lock();
    queue.is_running = false;
    queue.works.drain(..).for_each(|job| job.left.done());
    Some(format!("no thread for the {} of a hang: {error}", kind.name()))
}

/// Body of the thread of one kind.
fn work_off(runtime: &'static Runtime, kind: Kind) {
    loop {
        let mut queue = QUEUES[kind as usize].lock();
        let Some(job) = queue.works.pop_front() else {
            (queue.is_running, queue.is_full) = (false, false);
            return;
        };
        drop(queue);
        let run = std::panic::AssertUnwindSafe(|| job.work.run(kind, runtime));
        let child = std::panic::catch_unwind(run).unwrap_or(None);
        match child {
            Some(child) => reap(child, job.left),
            None => job.left.done(),
        }
    }
}

/// Waits for the end of a command on a thread of its own.
fn reap(child: exec::Child, left: Left) {
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let wait = move || {
        child.wait();
        RUNNING.fetch_sub(1, Ordering::Relaxed);
        left.done();
    };
    // Without a thread the command becomes a zombie, and counts as running from then on.
    let _ = sys::spawn_quiet("ncclscope/command", wait);
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::Listener => "listener",
            Kind::Command => "command",
            Kind::Dump => "dump",
        }
    }
}

impl Work {
    fn wants(&self, kind: Kind) -> bool {
        match kind {
            Kind::Listener => LISTENER.lock().is_some(),
            Kind::Command => self.actions.exec.is_some(),
            Kind::Dump => self.copies,
        }
    }

    /// Does one action. Returns the command if one was started.
    fn run(&self, kind: Kind, runtime: &'static Runtime) -> Option<exec::Child> {
        match kind {
            Kind::Listener => {
                let listener = LISTENER.lock().clone();
                listener.iter().for_each(|listener| listener(&self.hang.json()));
                None
            }
            Kind::Command => {
                let command = self.actions.exec.as_deref()?;
                let started = self.exec(command).map_err(|error| {
                    let line = format!("cannot run the command for a hang: {error}");
                    runtime.tell_of(&Err(Refusal::System(line)));
                });
                started.ok()
            }
            Kind::Dump => {
                runtime.tell_of(&runtime.dump(None));
                None
            }
        }
    }

    /// Starts the command, with the report in a file if that can be written.
    fn exec(&self, command: &str) -> io::Result<exec::Child> {
        let until = Instant::now() + PATIENCE;
        while RUNNING.load(Ordering::Relaxed) >= COMMANDS {
            if Instant::now() > until {
                return Err(io::Error::other("earlier ones have not ended"));
            }
            crate::sys::wake::pause(LOOK);
        }
        let hang = &self.hang;
        let report = self.report().map(|file| file.display().to_string()).unwrap_or_default();
        let drill = if hang.drill { "1" } else { "0" };
        let more = [
            hang.happened.name().to_owned(),
            hang.code().to_string(),
            drill.to_owned(),
            format!("{:#x}", hang.comm),
            hang.rank.to_string(),
            sys::pid().to_string(),
            report,
        ];
        let more = HANG_COMMAND.iter().zip(more).map(|(name, value)| format!("{name}={value}"));
        exec::shell(command, &more.collect::<Vec<_>>())
    }

    /// The path of the report's file; `None` if it cannot be written or takes too long, or if there
    /// is no recording beside which it could be.
    fn report(&self) -> Option<PathBuf> {
        self.recording.file_name()?;
        let file = report_file(&self.recording, self.nonce, self.number);
        let mut text = self.hang.lines().join("\n");
        text.push('\n');
        if IS_WRITING.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (written, answer) = Reply::new();
        let path = file.clone();
        let write = move || {
            let is_written = write_new(&path, &text).is_ok();
            IS_WRITING.store(false, Ordering::Release);
            answer.give(is_written);
        };
        if sys::spawn_quiet("ncclscope/report", write).is_err() {
            IS_WRITING.store(false, Ordering::Release);
            return None;
        }
        let is_written = written.wait(REPORT_PATIENCE).unwrap_or(false);
        is_written.then_some(file)
    }
}

/// Writes a new file that only this user can read.
fn write_new(file: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(file)?.write_all(text.as_bytes())
}

/// Path of a report, beside the recording: `HOST-PID.nscope.hang-NONCE-NUMBER.txt`. The nonce
/// distinguishes recordings that differ only in what follows `.nscope`, and those of containers
/// with equal host names.
fn report_file(recording: &Path, nonce: u32, number: u32) -> PathBuf {
    let name = recording.file_name().unwrap_or_default().to_string_lossy();
    recording.with_file_name(format!("{name}.hang-{nonce:08x}-{number:03}.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn processes_with_equal_names_have_reports_of_their_own() {
        let file = |recording: &str, nonce| report_file(Path::new(recording), nonce, 3);
        let one = file("/run/h-1.nscope", 0xab);
        assert_eq!(one, Path::new("/run/h-1.nscope.hang-000000ab-003.txt"));
        for other in [file("/run/h-1.nscope.2", 0xab), file("/run/h-1.nscope", 0xac)] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_report_is_never_written_over_what_is_there_nor_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report");
        write_new(&file, "one").unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write_new(&file, "two").is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(write_new(&link, "x").is_err() && !target.exists());
    }

    #[test]
    fn the_command_runs_also_where_its_report_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let work = |recording: PathBuf| Work {
            hang: super::super::OwnProcess::new("h", 7, None)
                .blank(0, super::super::Clock { now: 9, hz: 1 }),
            actions: HangActions::default(),
            recording,
            nonce: 0xab,
            number: 0,
            copies: false,
        };
        let said = |recording: PathBuf| {
            let command =
                format!("cd {:?} && echo \"[$NCCLSCOPE_HANG_REPORT]\" > said", dir.path());
            work(recording).exec(&command).unwrap().wait();
            std::fs::read_to_string(dir.path().join("said")).unwrap()
        };
        assert_eq!(said("/nowhere/h-1.nscope".into()), "[]\n");
        let report = dir.path().join("h-1.nscope.hang-000000ab-000.txt");
        assert_eq!(said(dir.path().join("h-1.nscope")), format!("[{}]\n", report.display()));
        assert!(report.exists());
    }

    #[test]
    fn what_ends_the_process_is_known() {
        for (signal, fatal) in [(libc::SIGABRT, true), (libc::SIGKILL, true), (libc::SIGUSR2, true)]
        {
            assert_eq!(signal::is_fatal(u8::try_from(signal).unwrap()), fatal, "{signal}");
        }
    }
}
