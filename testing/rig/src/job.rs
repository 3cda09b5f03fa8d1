// SPDX-License-Identifier: Apache-2.0
//! Jobs: several rank processes on simulated hosts, watched until they end.
//!
//! A simulated host is a value of `NCCL_HOSTID`: ranks with different values talk through the
//! network (sockets on `lo`), ranks with the same value through shared memory or peer access.
//!
//! ```no_run
//! # fn main() -> Result<(), String> {
//! let nccl = rig::wheel::find("2.30.7")?;
//! let outcome = rig::job::Job::new(&nccl)?
//!     .hosts(2)
//!     .env("NCCL_PROFILER_PLUGIN", "/path/to/libnccl-profiler-x.so")
//!     .steps(["allreduce:1000", "repeat:3:sendrecv:300001"])
//!     .run()?;
//! outcome.expect_success();
//! # Ok(()) }
//! ```

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::build;

/// NCCL settings of every rank: sockets only, few channels, nothing that needs a device.
const ENVIRONMENT: [(&str, &str); 11] = [
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_NET", "Socket"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_RAS_ENABLE", "0"),
    ("NCCL_MAX_NCHANNELS", "4"),
    ("NCCL_CUMEM_ENABLE", "0"),
    ("NCCL_CUMEM_HOST_ENABLE", "0"),
    ("NCCL_P2P_LEVEL", "SYS"),
    ("NCCL_DEBUG", "WARN"),
];

/// Lines kept of each rank's output; NCCL can print millions when a peer goes away.
const LINES_MAX: usize = 20_000;

/// What to run: a builder.
#[derive(Debug, Clone)]
pub struct Job {
    nccl: PathBuf,
    artifacts: build::Artifacts,
    hosts: usize,
    devices: usize,
    environment: Vec<(OsString, OsString)>,
    rank_environment: Vec<(usize, OsString, OsString)>,
    arguments: Vec<OsString>,
    steps: Vec<OsString>,
    rank_steps: Vec<(usize, Vec<OsString>)>,
    timeout: Duration,
    keep_going: bool,
}

impl Job {
    /// A job of two ranks on two hosts that uses the library at `nccl` on the CPU stand-in.
    ///
    /// # Errors
    /// The stand-in or the rank program cannot be built, see [`build::artifacts`].
    pub fn new(nccl: &Path) -> Result<Self, String> {
        Ok(Self {
            nccl: nccl.to_owned(),
            artifacts: build::artifacts()?.clone(),
            hosts: 2,
            devices: 1,
            environment: ENVIRONMENT.map(|(name, value)| (name.into(), value.into())).to_vec(),
            rank_environment: vec![],
            arguments: vec![],
            steps: vec![],
            rank_steps: vec![],
            timeout: Duration::from_secs(90),
            keep_going: false,
        })
    }

    /// Uses another CUDA runtime than the stand-in, such as a real libcudart.
    #[must_use]
    pub fn cuda(mut self, path: impl Into<PathBuf>) -> Self {
        self.artifacts.cuda = path.into();
        self
    }

    /// Number of simulated hosts.
    #[must_use]
    pub fn hosts(mut self, hosts: usize) -> Self {
        self.hosts = hosts;
        self
    }

    /// Number of devices, and so of ranks, on each host.
    #[must_use]
    pub fn devices(mut self, devices: usize) -> Self {
        self.devices = devices;
        self
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.hosts * self.devices
    }

    /// Sets an environment variable of every rank; a later value replaces an earlier one.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Sets an environment variable of one rank, over [`Job::env`].
    #[must_use]
    pub fn rank_env(
        mut self,
        rank: usize,
        name: impl AsRef<OsStr>,
        value: impl AsRef<OsStr>,
    ) -> Self {
        self.rank_environment.push((rank, name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Adds an option of the rank program, such as `--no-destroy`.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds steps that every rank does (see [`crate::scenario::Step`]).
    #[must_use]
    pub fn steps<S: Into<OsString>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        self.steps.extend(steps.into_iter().map(Into::into));
        self
    }

    /// Gives one rank steps of its own instead of the common ones, to make it slow or absent.
    #[must_use]
    pub fn rank_steps<S: Into<OsString>>(
        mut self,
        rank: usize,
        steps: impl IntoIterator<Item = S>,
    ) -> Self {
        self.rank_steps.push((rank, steps.into_iter().map(Into::into).collect()));
        self
    }

    /// Time after which ranks that still run are killed; 90 s unless set.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Lets ranks go on when one has failed; otherwise they are killed.
    #[must_use]
    pub fn keep_going(mut self) -> Self {
        self.keep_going = true;
        self
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    /// A rank could not be started. That a rank failed is no error, see [`Outcome`].
    pub fn run(&self) -> Result<Outcome, String> {
        Ok(self.start()?.wait())
    }

    /// Starts the job's ranks.
    ///
    /// # Errors
    /// A rank could not be started; those before it are killed.
    pub fn start(&self) -> Result<Running, String> {
        let directory = tempfile::tempdir().map_err(|e| format!("a directory for the job: {e}"))?;
        let (sender, lines) = mpsc::channel();
        let mut running = Running {
            ranks: vec![],
            lines,
            deadline: Instant::now() + self.timeout,
            started: Instant::now(),
            keep_going: self.keep_going,
            _directory: directory,
        };
        for rank in 0..self.ranks() {
            let mut command = self.command(rank, &running._directory.path().join("id"));
            let child = command.spawn();
            let mut child = child.map_err(|e| format!("{}: {e}", self.artifacts.rank.display()))?;
            follow(child.stdout.take(), rank, Stream::Stdout, &sender);
            follow(child.stderr.take(), rank, Stream::Stderr, &sender);
            running.ranks.push(Process {
                child,
                end: None,
                killed: false,
                outcome: RankOutcome::new(rank),
            });
        }
        Ok(running)
    }

    /// The command line of one rank.
    fn command(&self, rank: usize, id_file: &Path) -> Command {
        let mut command = Command::new(&self.artifacts.rank);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Settings of the caller's own must not reach the job.
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if ["NCCL_", "NCCLSCOPE_"].iter().any(|prefix| name_text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("NCCL_HOSTID", format!("host{}", rank / self.devices));
        let own = self.rank_environment.iter().filter(|(of, ..)| *of == rank);
        command.envs(own.map(|(_, name, value)| (name, value)));
        command.arg("--cuda").arg(&self.artifacts.cuda).arg("--nccl").arg(&self.nccl);
        command.arg("--rank").arg(rank.to_string());
        command.arg("--nranks").arg(self.ranks().to_string());
        command.arg("--device").arg((rank % self.devices).to_string());
        command.arg("--id-file").arg(id_file);
        // The rank's own watchdog says what it was doing; the job's is for one that cannot.
        command.arg("--timeout-s").arg(self.timeout.as_secs().saturating_sub(2).max(1).to_string());
        let steps = self.rank_steps.iter().rev().find(|(of, _)| *of == rank);
        command.args(&self.arguments).args(steps.map_or(&self.steps, |(_, steps)| steps));
        command
    }
}

/// Which of a rank's outputs a line came from.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

/// Reads a rank's output on a thread of its own, line by line, until its end.
fn follow(
    output: Option<impl Read + Send + 'static>,
    rank: usize,
    stream: Stream,
    sender: &Sender<(usize, Stream, String)>,
) {
    let sender = sender.clone();
    let Some(output) = output else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            // Nobody listens any more when the job was dropped.
            let _gone = sender.send((rank, stream, line));
        }
    });
}

/// A rank process.
#[derive(Debug)]
struct Process {
    child: Child,
    end: Option<ExitStatus>,
    killed: bool,
    outcome: RankOutcome,
}

/// A job whose ranks run. Dropping it kills them.
#[derive(Debug)]
pub struct Running {
    ranks: Vec<Process>,
    lines: Receiver<(usize, Stream, String)>,
    started: Instant,
    deadline: Instant,
    keep_going: bool,
    /// Holds NCCL's unique id and the barriers' files.
    _directory: tempfile::TempDir,
}

impl Running {
    /// The process id of a rank.
    ///
    /// # Panics
    /// There is no such rank.
    #[must_use]
    pub fn pid(&self, rank: usize) -> u32 {
        self.ranks[rank].child.id()
    }

    /// Kills a rank with SIGKILL, as a test of what the others do.
    ///
    /// # Panics
    /// There is no such rank.
    pub fn kill(&mut self, rank: usize) {
        self.ranks[rank].kill();
    }

    /// Waits until a line of the rank's standard output begins with `prefix`; true if it came
    /// before the rank's end and the job's timeout.
    ///
    /// # Panics
    /// There is no such rank.
    pub fn wait_for_line(&mut self, rank: usize, prefix: &str) -> bool {
        loop {
            self.collect(Duration::from_millis(10));
            if self.ranks[rank].outcome.stdout.iter().any(|line| line.starts_with(prefix)) {
                return true;
            }
            if self.ranks[rank].ended() || Instant::now() > self.deadline {
                return false;
            }
        }
    }

    /// Waits for all ranks. When one fails the others are killed, unless the job keeps going;
    /// after the job's timeout all are.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        let mut timed_out = false;
        loop {
            self.collect(Duration::from_millis(10));
            let running = self.ranks.iter_mut().filter_map(|rank| (!rank.ended()).then_some(()));
            if running.count() == 0 {
                break;
            }
            let failed = |rank: &Process| rank.end.is_some_and(|end| !end.success());
            timed_out |= Instant::now() > self.deadline;
            if timed_out || (!self.keep_going && self.ranks.iter().any(failed)) {
                self.ranks.iter_mut().for_each(Process::kill);
            }
        }
        let elapsed = self.started.elapsed();
        // The readers end with the processes; one that a grandchild keeps open is not waited for.
        self.collect(Duration::from_millis(200));
        let ranks = self.ranks.iter_mut().map(Process::finish).collect();
        Outcome { ranks, timed_out, elapsed }
    }

    /// Takes up lines for as long as they come, but waits no longer than `patience` for one.
    fn collect(&mut self, patience: Duration) {
        let until = Instant::now() + 10 * patience;
        while let Ok((rank, stream, line)) = self.lines.recv_timeout(patience) {
            let outcome = &mut self.ranks[rank].outcome;
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
            // It may have ended by itself in between.
            let _ended = self.child.kill();
        }
    }

    fn finish(&mut self) -> RankOutcome {
        let none = RankOutcome::new(self.outcome.rank);
        let mut outcome = std::mem::replace(&mut self.outcome, none);
        (outcome.status, outcome.killed) = (self.end, self.killed);
        outcome
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // Nothing is left to do for a process that cannot be waited for.
        let _status = self.child.wait();
    }
}

/// What became of a job.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// One entry per rank, in order.
    pub ranks: Vec<RankOutcome>,
    /// Ranks were killed because the job's time was over.
    pub timed_out: bool,
    /// From the start of the first rank to the end of the last.
    pub elapsed: Duration,
}

/// What became of a rank.
#[derive(Debug, Clone)]
pub struct RankOutcome {
    /// Its number.
    pub rank: usize,
    /// How it ended; none if that is not known.
    pub status: Option<ExitStatus>,
    /// The rig killed it: on request, because another rank failed or because time was over.
    pub killed: bool,
    /// Lines of its standard output, NCCL's warnings among them.
    pub stdout: Vec<String>,
    /// Lines of its standard error.
    pub stderr: Vec<String>,
    /// Lines beyond the limit of 20,000 for each output.
    pub lines_dropped: usize,
}

impl RankOutcome {
    fn new(rank: usize) -> Self {
        let (stdout, stderr) = (vec![], vec![]);
        Self { rank, status: None, killed: false, stdout, stderr, lines_dropped: 0 }
    }

    /// Whether it ended with exit status 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Number of steps that it reported as done with right results: lines `rank R STEP ok …`, less
    /// those of init and destroy.
    #[must_use]
    pub fn steps_done(&self) -> usize {
        let prefix = format!("rank {} ", self.rank);
        let is_step = |line: &&String| {
            line.strip_prefix(&prefix).is_some_and(|rest| {
                rest.contains(" ok ") && !["init ", "destroy "].iter().any(|p| rest.starts_with(p))
            })
        };
        self.stdout.iter().filter(is_step).count()
    }
}

impl Outcome {
    /// Whether all ranks ended with exit status 0 in time.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        !self.timed_out && self.ranks.iter().all(RankOutcome::succeeded)
    }

    /// Ends a test with all output if a rank failed.
    ///
    /// # Panics
    /// A rank failed or time was over.
    #[track_caller]
    pub fn expect_success(&self) {
        assert!(self.succeeded(), "the job failed\n{self}");
    }
}

impl fmt::Display for Outcome {
    /// All ranks' ends and output, for a failed test.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        writeln!(f, "{} ranks, {seconds:.1} s, timed out: {}", self.ranks.len(), self.timed_out)?;
        for rank in &self.ranks {
            let mut end = rank.status.map_or_else(|| "unknown".into(), |status| status.to_string());
            if rank.killed {
                write!(end, ", killed by the rig")?;
            }
            writeln!(f, "--- rank {}: {end}, {} lines dropped", rank.rank, rank.lines_dropped)?;
            for line in rank.stdout.iter().chain(&rank.stderr) {
                writeln!(f, "{line}")?;
            }
        }
        Ok(())
    }
}
