// SPDX-License-Identifier: Apache-2.0
//! Starts the ranks of a job and collects their output.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::setup::Setup;

/// NCCL settings of every rank: sockets on loopback, few channels.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_NET", "Socket"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_MAX_NCHANNELS", "4"),
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_SET_THREAD_NAME", "1"),
];
/// Settings that disable what the stand-in cannot play.
const OF_STAND_IN: [(&str, &str); 5] = [
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_CUMEM_ENABLE", "0"),
    ("NCCL_CUMEM_HOST_ENABLE", "0"),
    ("NCCL_P2P_LEVEL", "SYS"),
];
/// The plugin as a name: NCCL 2.27.3 accepts no path.
const PLUGIN: &str = "libnccl-profiler-ncclscope.so";

/// The placement of the two ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Two processes of two hosts, over sockets on loopback.
    Processes,
    /// Threads of one process (on a GPU from NCCL 2.30 on).
    Threads,
    /// Two processes on one host with two devices; only on the stand-in.
    Node,
}

impl Layout {
    /// The layout in which both ranks' kernels run at the same time, if there is one: processes
    /// that share a GPU take turns of some milliseconds each.
    pub(super) fn at_once(setup: &Setup) -> Layout {
        if setup.has_threads() { Layout::Threads } else { Layout::Processes }
    }
}

/// A job to start: a builder.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    setup: &'a Setup,
    /// The directory of the job's recordings.
    pub(super) folder: PathBuf,
    layout: Layout,
    plugin: bool,
    environment: Vec<(String, String)>,
    steps: Vec<String>,
}

impl<'a> Launch<'a> {
    /// A job of two processes with the plugin, whose recordings go into the directory `name`.
    pub(super) fn new(setup: &'a Setup, name: &str) -> Self {
        let folder = setup.out.join(name);
        let (layout, plugin, environment) = (Layout::Processes, true, vec![]);
        Self { setup, folder, layout, plugin, environment, steps: vec![] }
    }

    pub(super) fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Lets NCCL load no profiler.
    pub(super) fn without_plugin(mut self) -> Self {
        self.plugin = false;
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.into(), value.to_string()));
        self
    }

    pub(super) fn step(mut self, step: impl ToString) -> Self {
        self.steps.push(step.to_string());
        self
    }

    pub(super) fn steps<'s>(mut self, steps: impl IntoIterator<Item = &'s str>) -> Self {
        self.steps.extend(steps.into_iter().map(String::from));
        self
    }

    /// Starts the job's processes.
    ///
    /// # Errors
    /// A process cannot be started.
    pub(super) fn start(&self) -> Result<Ranks, String> {
        let make = |error: std::io::Error| format!("{}: {error}", self.folder.display());
        std::fs::create_dir_all(&self.folder).map_err(make)?;
        let meeting = self.folder.join("meeting");
        let mut ranks = Ranks { children: vec![], readers: vec![], heard: Arc::default() };
        let processes: &[(usize, &str)] = match self.layout {
            Layout::Processes => &[(0, "0"), (1, "0")],
            Layout::Node => &[(0, "0"), (1, "1")],
            // The stand-in has a device for each rank.
            Layout::Threads if self.setup.stand_in => &[(0, "0,1")],
            Layout::Threads => &[(0, "0,0")],
        };
        for (first, devices) in processes {
            let mut command = self.command(*first, devices, &meeting);
            let child = command.spawn().map_err(|e| format!("a rank: {e}"))?;
            ranks.add(child);
        }
        Ok(ranks)
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    /// The job cannot be started, does not end in time, or fails.
    pub(super) fn run(&self, limit: Duration) -> Result<Said, String> {
        let mut ranks = self.start()?;
        let ended = ranks.wait(limit);
        let said = ranks.said();
        match ended {
            Some(all) if all.iter().all(ExitStatus::success) => Ok(said),
            Some(_) => Err(format!("a rank failed: {}", said.last_words())),
            None => Err(format!("no end after {} s: {}", limit.as_secs(), said.last_words())),
        }
    }

    fn command(&self, first: usize, devices: &str, meeting: &Path) -> Command {
        let setup = self.setup;
        let mut command = Command::new(setup.bin.join("gpu-kit"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The caller's own NCCL settings must not reach the job.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NCCL") {
                command.env_remove(&name);
            }
        }
        command.envs(ENVIRONMENT);
        if setup.stand_in {
            command.envs(OF_STAND_IN);
        } else if self.layout == Layout::Threads {
            command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1").env("NCCL_MAX_CTAS", "4");
        }
        let host = if self.layout == Layout::Processes { first } else { 0 };
        command.env("NCCL_HOSTID", format!("host{host}"));
        command.env("NCCL_PROFILER_PLUGIN", if self.plugin { PLUGIN } else { "none" });
        command.env("LD_LIBRARY_PATH", setup.library_path());
        command.env("NCCLSCOPE_DIR", &self.folder).env("NCCLSCOPE_CONTROL", setup.control());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.arg("worker").arg("--cuda").arg(&setup.cuda).arg("--nccl").arg(&setup.nccl);
        command.arg("--meeting").arg(meeting).args(["--ranks", "2"]);
        command.args(["--first", &first.to_string(), "--devices", devices]);
        command.args(&self.steps);
        command
    }
}

/// A running job. Processes that still run when it is dropped are killed.
#[derive(Debug)]
pub(super) struct Ranks {
    children: Vec<Child>,
    readers: Vec<JoinHandle<()>>,
    heard: Arc<Mutex<Vec<String>>>,
}

fn lock(heard: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ranks {
    fn add(&mut self, mut child: Child) {
        let stdout = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let stderr = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        for pipe in stdout.into_iter().chain(stderr) {
            let heard = self.heard.clone();
            self.readers.push(std::thread::spawn(move || {
                let lines = BufReader::new(pipe).lines().map_while(Result::ok);
                lines.for_each(|line| lock(&heard).push(line));
            }));
        }
        self.children.push(child);
    }

    /// Sends a signal to every process of the job.
    pub(super) fn signal(&self, signal: i32) {
        for child in &self.children {
            if let Ok(pid) = i32::try_from(child.id()) {
                // SAFETY: no precondition; the process is a child that was not waited for.
                unsafe { libc::kill(pid, signal) };
            }
        }
    }

    /// Waits until a line begins with `start`; false if none comes in time or the job ends.
    pub(super) fn wait_for(&mut self, start: &str, limit: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if lock(&self.heard).iter().any(|line| line.starts_with(start)) {
                return true;
            }
            if self.has_ended() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn has_ended(&mut self) -> bool {
        self.children.iter_mut().all(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Waits for all processes. Returns their exit statuses, or `None` if one did not end in time.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<Vec<ExitStatus>> {
        let begin = Instant::now();
        while !self.has_ended() {
            if begin.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.children.iter_mut().map(|child| child.wait().ok()).collect()
    }

    /// The output so far; after the job's end, all of it.
    pub(super) fn said(&mut self) -> Said {
        if self.has_ended() {
            self.readers.drain(..).for_each(|reader| drop(reader.join()));
        }
        Said { lines: lock(&self.heard).clone() }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Killing a process that has already ended is no failure.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The output of a job's ranks.
#[derive(Debug)]
pub(super) struct Said {
    lines: Vec<String>,
}

impl Said {
    /// The values of a key in the output lines of a step, of one rank, in order.
    pub(super) fn values(&self, rank: usize, step: &str, key: &str) -> Vec<f64> {
        let prefix = format!("{rank} {step} ");
        let of = |line: &String| {
            let words = line.strip_prefix(&prefix)?.split(' ');
            words.filter_map(|word| word.split_once('=')).find(|(k, _)| *k == key)?.1.parse().ok()
        };
        self.lines.iter().filter_map(of).collect()
    }

    /// The first of these values.
    ///
    /// # Errors
    /// There is no such value.
    pub(super) fn value(&self, rank: usize, step: &str, key: &str) -> Result<f64, String> {
        let first = self.values(rank, step, key).first().copied();
        first.ok_or_else(|| format!("rank {rank} did not say {key} of {step}"))
    }

    /// The last lines that do not begin with a rank, which are messages.
    pub(super) fn last_words(&self) -> String {
        let is_word = |line: &&String| !line.starts_with(|c: char| c.is_ascii_digit());
        let words: Vec<&str> = self.lines.iter().filter(is_word).map(String::as_str).collect();
        words[words.len().saturating_sub(3)..].join(" | ")
    }
}
