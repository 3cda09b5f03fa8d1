// SPDX-License-Identifier: Apache-2.0
//! `ncclscope snapshot --kineto`: PyTorch's profiles of the same window.

use super::dynolog::{Daemon, LEAD, Profile};
use crate::args::{When, Window};
use crate::control::Process;
use ncclscope_console::failure::{Failure, tell};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Interval between two checks of an awaited process or file.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long Kineto may take to write its files after the window.
const PATIENCE: Duration = Duration::from_secs(120);

/// The profiles that processes are asked for.
#[derive(Debug)]
pub(super) struct Capture {
    daemon: Daemon,
    profile: Profile,
    pids: Vec<u32>,
    /// Directory for Kineto's output, private to this user.
    dir: PathBuf,
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Fails if a late file was written to it, which is kept.
        let _ = fs::remove_dir(&self.dir);
    }
}

impl Capture {
    /// Acts as the daemon, and sets the start of the window so that all processes can meet it.
    pub(super) fn begin(
        processes: &[Process],
        window: &Window,
    ) -> Result<(Capture, Window), Failure> {
        let Some(length) = window.length else {
            return Err(Failure::usage("--kineto needs the window's length: --for 5s"));
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin = window.at.map_or(now + LEAD, When::since_1970);
        if begin < now + LEAD {
            return Err(Failure::usage(format!(
                "with --kineto a window begins {} s from now at the earliest: processes ask every \
                 5 s, and then warm up",
                LEAD.as_secs()
            )));
        }
        // Kineto uses whole milliseconds.
        let begin = Duration::from_millis(u64::try_from(begin.as_millis()).unwrap_or(u64::MAX));
        let dir = directory(now)?;
        let profile = Profile { begin, length, file: dir.join("kineto.json") };
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        let sockets = std::env::var_os("KINETO_IPC_SOCKET_DIR").map(PathBuf::from);
        let daemon = Daemon::open(sockets.as_deref(), pids.iter().copied(), &profile);
        let daemon = daemon.map_err(|error| {
            let _ = fs::remove_dir(&dir);
            taken(&error)
        })?;
        let window =
            Window { length: Some(length), steps: None, at: Some(When::new(begin)), ..*window };
        Ok((Capture { daemon, profile, pids, dir }, window))
    }

    /// Answers processes for the duration `time`.
    pub(super) fn serve(&mut self, time: Duration) {
        self.daemon.serve(time);
    }

    /// Waits for the files of the processes that were asked, moves them to `output`, and prints
    /// their paths. Returns the problems.
    pub(super) fn finish(&self, output: &Path) -> io::Result<Vec<String>> {
        let unasked: Vec<u32> = self.daemon.waiting().collect();
        let mut problems: Vec<String> = unasked.iter().map(|pid| never_asked(*pid)).collect();
        let until = Instant::now() + PATIENCE;
        let (mut out, mut count) = (io::stdout().lock(), 0);
        for pid in self.pids.iter().filter(|pid| !unasked.contains(pid)) {
            let file = self.profile.file_of(*pid);
            while !file.is_file() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            let to = output.join(format!("kineto-{pid}.json"));
            match place(&file, &to) {
                Ok(()) => {
                    writeln!(out, "{}", to.display())?;
                    count += 1;
                }
                Err(error) => problems.push(format!(
                    "process {pid} was asked to profile but did not write {}: {error}",
                    file.display()
                )),
            }
        }
        out.flush()?;
        if count != 0 {
            let dir = output.display();
            tell(format_args!(
                "both on one page: ncclscope merge --kineto {dir}/kineto-*.json {dir} -o merged"
            ));
        }
        Ok(problems)
    }
}

/// Most likely another process acts as the daemon.
fn taken(error: &io::Error) -> Failure {
    Failure::environment(match error.kind() {
        ErrorKind::AddrInUse => {
            "a dynolog daemon runs on this host, and processes ask it: trigger \
                                 PyTorch with `dyno gputrace`, and ncclscope without --kineto"
                .to_owned()
        }
        _ => format!("cannot answer in dynolog's place: {error}"),
    })
}

fn never_asked(pid: u32) -> String {
    format!(
        "process {pid} did not ask for a profile: it needs KINETO_USE_DAEMON=1 before torch is \
         imported"
    )
}

/// A new directory to which Kineto may write: it refuses directories outside of /tmp unless its own
/// variable names one.
fn directory(now: Duration) -> Result<PathBuf, Failure> {
    let base = std::env::var_os("KINETO_ONDEMAND_TRACE_DIR").filter(|dir| !dir.is_empty());
    let base = base.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let name = format!("ncclscope-kineto-{}-{:x}", std::process::id(), now.as_nanos());
    let dir = base.join(name);
    DirBuilder::new().mode(0o700).create(&dir).map_err(|error| Failure::write(&dir, &error))?;
    Ok(dir)
}

/// Moves a file, if necessary to another file system.
fn place(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::CrossesDevices => {
            fs::copy(from, to)?;
            fs::remove_file(from)
        }
        done => done,
    }
}
