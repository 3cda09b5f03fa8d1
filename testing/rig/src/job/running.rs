// SPDX-License-Identifier: Apache-2.0
//! Supervises the processes of a job.

use super::outcome::{Outcome, RankOutcome};
use crate::ras::Ras;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// The most lines kept of each rank's output; NCCL can print millions when a peer exits.
const LINES_MAX: usize = 20_000;

/// Which of a rank's outputs a line came from.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

/// Reads a process's output line by line until its end, on a thread of its own.
fn follow(
    output: Option<impl Read + Send + 'static>,
    process: usize,
    stream: Stream,
    sender: &Sender<(usize, Stream, String)>,
) {
    let sender = sender.clone();
    let Some(output) = output else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            // The receiver is gone if the job was dropped.
            let _gone = sender.send((process, stream, line));
        }
    });
}

/// A process of one rank, or of several.
#[derive(Debug)]
struct Process {
    child: Child,
    end: Option<ExitStatus>,
    killed: bool,
    ranks: Range<usize>,
}

/// A job whose ranks run. Dropping it kills them.
#[derive(Debug)]
pub struct Running {
    processes: Vec<Process>,
    outcomes: Vec<RankOutcome>,
    sender: Sender<(usize, Stream, String)>,
    lines: Receiver<(usize, Stream, String)>,
    started: Instant,
    deadline: Instant,
    keep_going: bool,
    /// Contains NCCL's unique id and the barriers' files.
    directory: tempfile::TempDir,
    ras: Ras,
}

impl Running {
    /// A job without processes yet, which meets in `directory` and whose RAS listens at `ras`.
    pub(super) fn new(
        directory: tempfile::TempDir,
        ras: Ras,
        timeout: Duration,
        keep_going: bool,
    ) -> Self {
        let (sender, lines) = mpsc::channel();
        let started = Instant::now();
        Self {
            processes: vec![],
            outcomes: vec![],
            sender,
            lines,
            started,
            deadline: started + timeout,
            keep_going,
            directory,
            ras,
        }
    }

    /// The job's RAS; it listens once a communicator exists.
    #[must_use]
    pub fn ras(&self) -> Ras {
        self.ras
    }

    /// The file beside which the ranks meet.
    pub(super) fn meeting(&self) -> PathBuf {
        self.directory.path().join("id")
    }

    /// Adds the process of the next `count` ranks.
    pub(super) fn add(&mut self, mut child: Child, count: usize) {
        let index = self.processes.len();
        follow(child.stdout.take(), index, Stream::Stdout, &self.sender);
        follow(child.stderr.take(), index, Stream::Stderr, &self.sender);
        let ranks = self.outcomes.len()..self.outcomes.len() + count;
        self.outcomes.extend(ranks.clone().map(RankOutcome::new));
        self.processes.push(Process { child, end: None, killed: false, ranks });
    }

    /// The index of a rank's process.
    fn process_of(&self, rank: usize) -> usize {
        let process = self.processes.iter().position(|process| process.ranks.contains(&rank));
        process.unwrap_or_else(|| panic!("there is no rank {rank}"))
    }

    /// The process id of a rank.
    ///
    /// # Panics
    /// There is no such rank.
    #[must_use]
    pub fn pid(&self, rank: usize) -> u32 {
        self.processes[self.process_of(rank)].child.id()
    }

    /// Kills a rank's process with SIGKILL, to test how the others react.
    ///
    /// # Panics
    /// There is no such rank.
    pub fn kill(&mut self, rank: usize) {
        let process = self.process_of(rank);
        self.processes[process].kill();
    }

    /// Waits until a line of the rank's standard output begins with `prefix`; true if it came
    /// before the rank's exit and the job's timeout.
    ///
    /// # Panics
    /// There is no such rank.
    pub fn wait_for_line(&mut self, rank: usize, prefix: &str) -> bool {
        let process = self.process_of(rank);
        loop {
            self.collect(Duration::from_millis(10));
            if self.outcomes[rank].stdout.iter().any(|line| line.starts_with(prefix)) {
                return true;
            }
            if self.processes[process].ended() || Instant::now() > self.deadline {
                return false;
            }
        }
    }

    /// Waits for all ranks. If one fails the others are killed, unless the job keeps going; after
    /// the job's timeout all are killed.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        let mut timed_out = false;
        loop {
            self.collect(Duration::from_millis(10));
            let running = self.processes.iter_mut().filter_map(|p| (!p.ended()).then_some(()));
            if running.count() == 0 {
                break;
            }
            let failed = |process: &Process| process.end.is_some_and(|end| !end.success());
            timed_out |= Instant::now() > self.deadline;
            if timed_out || (!self.keep_going && self.processes.iter().any(failed)) {
                self.processes.iter_mut().for_each(Process::kill);
            }
        }
        let elapsed = self.started.elapsed();
        // The readers end with the processes. A pipe that a grandchild keeps open is not waited
        // for.
        self.collect(Duration::from_millis(200));
        for process in &self.processes {
            for outcome in &mut self.outcomes[process.ranks.clone()] {
                (outcome.status, outcome.killed) = (process.end, process.killed);
            }
        }
        Outcome { ranks: std::mem::take(&mut self.outcomes), timed_out, elapsed }
    }

    /// The rank to which an output line belongs: the one that it names, or otherwise the process's
    /// first rank.
    fn rank_of(&self, process: usize, line: &str) -> usize {
        let ranks = &self.processes[process].ranks;
        let named = line.strip_prefix("rank ").and_then(|rest| rest.split([' ', ':']).next());
        let named = named.and_then(|number| number.parse().ok());
        named.filter(|rank| ranks.contains(rank)).unwrap_or(ranks.start)
    }

    /// Collects lines as long as they come; waits at most `patience` for each.
    fn collect(&mut self, patience: Duration) {
        let until = Instant::now() + 10 * patience;
        while let Ok((process, stream, line)) = self.lines.recv_timeout(patience) {
            let rank = self.rank_of(process, &line);
            let outcome = &mut self.outcomes[rank];
            let lines = match stream {
                Stream::Stdout => &mut outcome.stdout,
                Stream::Stderr => &mut outcome.stderr,
            };
            if lines.len() < LINES_MAX {
                lines.push(line);
            } else {
                outcome.lines_dropped += 1;
            }
            if Instant::now() > until {
                return;
            }
        }
    }
}

impl Process {
    fn ended(&mut self) -> bool {
        if self.end.is_none() {
            self.end = self.child.try_wait().ok().flatten();
        }
        self.end.is_some()
    }

    fn kill(&mut self) {
        if !self.ended() {
            self.killed = true;
            // The process may have exited on its own.
            let _ended = self.child.kill();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // Nothing can be done about a process that cannot be waited for.
        let _status = self.child.wait();
    }
}
