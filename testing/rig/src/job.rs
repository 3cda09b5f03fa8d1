// SPDX-License-Identifier: Apache-2.0
//! Jobs: several rank processes on simulated hosts, supervised until they exit.
//!
//! A simulated host is a value of `NCCL_HOSTID`: ranks with different values talk through the
//! network (sockets on `lo`), ranks with the same value through shared memory or peer access.
//! `tests/behaviour.rs` has jobs in the usual form.

mod outcome;
mod running;

pub use outcome::{Outcome, RankOutcome};
pub use running::Running;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::build;
use crate::ras::Ras;
use crate::topology::Topology;

/// NCCL settings of every rank: sockets only, few channels, nothing that needs a device. NCCL
/// clears all buffers of each connection, 9.6 MB with its own sizes, which takes two fifths of a
/// short job's processor time: here they are a quarter as large. RAS is on, as it is for users.
pub const ENVIRONMENT: [(&str, &str); 12] = [
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_NET", "Socket"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_MAX_NCHANNELS", "4"),
    ("NCCL_CUMEM_ENABLE", "0"),
    ("NCCL_CUMEM_HOST_ENABLE", "0"),
    ("NCCL_P2P_LEVEL", "SYS"),
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_BUFFSIZE", "1048576"),
    ("NCCL_LL128_BUFFSIZE", "1228800"),
];

/// Releases for which the plugin does not request kernel events on its own, because NCCL may wait
/// for some of them forever (`crates/control/src/releases.rs`). Tests request them.
const KERNELS_ON: [&str; 2] = ["2.29.7", "2.30.7"];

/// A builder for jobs.
#[derive(Debug, Clone)]
pub struct Job {
    nccl: PathBuf,
    artifacts: build::Artifacts,
    hosts: usize,
    devices: usize,
    /// Processes of each host, whose ranks are threads; `None`: one process for each rank.
    tasks: Option<usize>,
    /// GPUs of each host, which its ranks share in turn; `None`: one for each rank.
    gpus: Option<usize>,
    environment: Vec<(OsString, OsString)>,
    rank_environment: Vec<(usize, OsString, OsString)>,
    arguments: Vec<OsString>,
    rank_arguments: Vec<(usize, OsString)>,
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
        let path = nccl.to_string_lossy();
        let kernels = KERNELS_ON.iter().any(|release| path.contains(release));
        let kernels = kernels.then_some(("NCCLSCOPE_KERNEL", "on"));
        let environment = ENVIRONMENT.into_iter().chain(kernels);
        Ok(Self {
            nccl: nccl.to_owned(),
            artifacts: build::artifacts()?.clone(),
            hosts: 2,
            devices: 1,
            tasks: None,
            gpus: None,
            environment: environment.map(|(name, value)| (name.into(), value.into())).collect(),
            rank_environment: vec![],
            arguments: vec![],
            rank_arguments: vec![],
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

    /// Uses the hosts, devices and environment of `topology`.
    #[must_use]
    pub fn topology(mut self, topology: Topology) -> Self {
        (self.hosts, self.devices) = (topology.hosts(), topology.devices());
        self.tasks = topology.threads().then_some(1);
        let environment = topology.environment().iter();
        self.environment.extend(environment.map(|&(name, value)| (name.into(), value.into())));
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

    /// Runs the ranks of a host as threads of one process. They share all settings: [`Job::start`]
    /// refuses settings for one rank alone.
    #[must_use]
    pub fn threads(mut self) -> Self {
        self.tasks = Some(1);
        self
    }

    /// Runs so many processes on each host; the ranks of each are its threads.
    #[must_use]
    pub fn tasks(mut self, tasks: usize) -> Self {
        self.tasks = Some(tasks.max(1));
        self
    }

    /// Gives each host fewer GPUs than ranks: these share them in turn. NCCL refuses that.
    #[must_use]
    pub fn gpus(mut self, gpus: usize) -> Self {
        self.gpus = Some(gpus.max(1));
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

    /// Adds an argument of the rank program for one rank, such as `--pause-ms` and then `20`.
    #[must_use]
    pub fn rank_arg(mut self, rank: usize, argument: impl Into<OsString>) -> Self {
        self.rank_arguments.push((rank, argument.into()));
        self
    }

    /// Adds steps that every rank runs (see [`crate::step::Step`]).
    #[must_use]
    pub fn steps<S: Into<OsString>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        self.steps.extend(steps.into_iter().map(Into::into));
        self
    }

    /// Sets the steps of one rank, instead of the common ones, to make it slow or absent.
    #[must_use]
    pub fn rank_steps<S: Into<OsString>>(
        mut self,
        rank: usize,
        steps: impl IntoIterator<Item = S>,
    ) -> Self {
        self.rank_steps.push((rank, steps.into_iter().map(Into::into).collect()));
        self
    }

    /// The time after which ranks that still run are killed; 90 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Lets ranks continue if one has failed; otherwise they are killed.
    #[must_use]
    pub fn keep_going(mut self) -> Self {
        self.keep_going = true;
        self
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    /// A rank could not be started. A failed rank is not an error here, see [`Outcome`].
    pub fn run(&self) -> Result<Outcome, String> {
        Ok(self.start()?.wait())
    }

    /// Starts the job's ranks.
    ///
    /// # Errors
    /// A rank could not be started (those before it are killed), or a setting is for one of several
    /// ranks in a process.
    pub fn start(&self) -> Result<Running, String> {
        let own = [self.rank_environment.len(), self.rank_arguments.len(), self.rank_steps.len()];
        if self.tasks.is_some() && own != [0; 3] {
            return Err("ranks that are threads of one process cannot differ".into());
        }
        let directory = tempfile::tempdir().map_err(|e| format!("a directory for the job: {e}"))?;
        let ras = Ras::reserve().map_err(|e| format!("an address for RAS: {e}"))?;
        let mut running = Running::new(directory, ras, self.timeout, self.keep_going);
        let ranks = self.ranks_of_process()?;
        for rank in (0..self.ranks()).step_by(ranks) {
            let child = self.command(rank, ranks, &running).spawn();
            let child = child.map_err(|e| format!("{}: {e}", self.artifacts.rank.display()))?;
            running.add(child, ranks);
        }
        Ok(running)
    }

    /// Number of ranks of each process.
    fn ranks_of_process(&self) -> Result<usize, String> {
        let Some(tasks) = self.tasks else { return Ok(1) };
        if !self.devices.is_multiple_of(tasks) {
            return Err(format!("{} ranks of a host in {tasks} equal processes", self.devices));
        }
        Ok(self.devices / tasks)
    }

    /// The command line of one process, whose first rank is `rank`, with so many ranks.
    fn command(&self, rank: usize, ranks: usize, running: &Running) -> Command {
        let mut command = Command::new(&self.artifacts.rank);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The caller's own settings must not reach the job.
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if ["NCCL_", "NCCLSCOPE_"].iter().any(|prefix| name_text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command.env("NCCL_RAS_ADDR", running.ras().address());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("NCCL_HOSTID", format!("host{}", rank / self.devices));
        let own = self.rank_environment.iter().filter(|(of, ..)| *of == rank);
        command.envs(own.map(|(_, name, value)| (name, value)));
        command.arg("--cuda").arg(&self.artifacts.cuda).arg("--nccl").arg(&self.nccl);
        command.arg("--rank").arg(rank.to_string());
        command.arg("--nranks").arg(self.ranks().to_string());
        let gpus = self.gpus.unwrap_or(self.devices);
        command.arg("--device").arg((rank % self.devices % gpus).to_string());
        command.arg("--id-file").arg(running.meeting());
        if self.tasks.is_some() {
            command.arg("--threads").arg(ranks.to_string());
        }
        // The rank's own timeout comes first and prints what the rank was doing; the job's timeout
        // is for a rank that cannot do that.
        command.arg("--timeout-s").arg(self.timeout.as_secs().saturating_sub(2).max(1).to_string());
        let own = self.rank_arguments.iter().filter(|(of, _)| *of == rank);
        command.args(own.map(|(_, argument)| argument));
        let steps = self.rank_steps.iter().rev().find(|(of, _)| *of == rank);
        command.args(&self.arguments).args(steps.map_or(&self.steps, |(_, steps)| steps));
        command
    }
}
