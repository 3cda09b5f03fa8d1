// SPDX-License-Identifier: Apache-2.0
//! Runs the job of a scenario: starts its ranks, lets faults strike, and ends it.

use crate::FIRST_DONE;
use crate::fault::{Damage, Fault};
use crate::files::Files;
use crate::host::{Cluster, RECORDINGS, STORE};
use crate::look::{self, Looks};
use crate::scenario::Scenario;
use rig::wheel;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long ranks may take to their first operation.
const FIRST: Duration = Duration::from_secs(30);

/// What differs from the rig's settings of NCCL: sockets over the bridge, and fewer channels.
const ENVIRONMENT: [(&str, &str); 2] =
    [("NCCL_SOCKET_IFNAME", "eth0"), ("NCCL_MAX_NCHANNELS", "2")];

/// Runs a scenario; `output` receives logs, copies of recordings and, `with_tools`, what
/// `diagnose`, `top` and `dump --why` print.
///
/// # Errors
/// It could not be run.
pub fn run(
    scenario: &Scenario,
    files: &Files,
    output: &Path,
    with_tools: bool,
) -> Result<Looks, String> {
    let store = tempfile::tempdir().map_err(|error| error.to_string())?;
    let cluster = Cluster::start(scenario.hosts, store.path())?;
    let mut damage = Damage::default();
    let (before, mut later): (Vec<&Fault>, Vec<&Fault>) =
        scenario.faults.iter().partition(|fault| fault.at_s.is_none());
    scenario.faults.iter().try_for_each(|fault| fault.prepare(&cluster))?;
    before.into_iter().try_for_each(|fault| damage.strike(fault, &cluster, &[]))?;
    let mut ranks = Ranks::start(scenario, files, &cluster, output)?;
    if scenario.has_first {
        ranks.wait_for_first(output)?;
    }
    let (start, pids) = (Instant::now(), ranks.pids()?);
    later.sort_by(|a, b| a.at_s.partial_cmp(&b.at_s).unwrap_or(std::cmp::Ordering::Equal));
    for fault in later {
        sleep_until(start, fault.at_s.unwrap_or(0.0));
        damage.strike(fault, &cluster, &pids)?;
    }
    sleep_until(start, scenario.look_s);
    let (live, named) = look::live(scenario, files, &cluster, output, with_tools)?;
    ranks.kill();
    let after = look::after(scenario, files, &cluster, output)?;
    drop(damage);
    Ok(Looks { live, after, named })
}

fn sleep_until(start: Instant, seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds).saturating_sub(start.elapsed()));
}

/// The ranks' processes. They are killed on drop.
struct Ranks(Vec<Rank>);

struct Rank {
    host: usize,
    /// `nsenter`, whose child is the rank.
    child: Child,
}

impl Ranks {
    fn start(
        scenario: &Scenario,
        files: &Files,
        cluster: &Cluster,
        output: &Path,
    ) -> Result<Ranks, String> {
        let mut ranks = Ranks(Vec::new());
        for rank in 0..scenario.nranks() {
            let host = rank / scenario.devices;
            let log = |kind| {
                let path = output.join(format!("rank{rank}.{kind}"));
                File::create(&path).map_err(|error| format!("{}: {error}", path.display()))
            };
            let mut command = cluster.host(host)?.command(&files.client);
            configure(&mut command, scenario, files, rank)?;
            command.stdout(log("out")?).stderr(log("err")?).stdin(Stdio::null());
            let child = command.spawn().map_err(|error| format!("nsenter: {error}"))?;
            ranks.0.push(Rank { host, child });
        }
        Ok(ranks)
    }

    /// Waits until each rank has done its first operation.
    fn wait_for_first(&mut self, output: &Path) -> Result<(), String> {
        let start = Instant::now();
        for rank in 0..self.0.len() {
            let log = output.join(format!("rank{rank}.out"));
            while !std::fs::read_to_string(&log).unwrap_or_default().contains(FIRST_DONE) {
                if start.elapsed() > FIRST {
                    let error = std::fs::read_to_string(log.with_extension("err"));
                    let error = error.unwrap_or_default();
                    return Err(format!("rank {rank} did no operation in {FIRST:?}: {error}"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// The host and the process of each rank, as this process sees them.
    fn pids(&self) -> Result<Vec<(usize, u32)>, String> {
        let pid = |rank: &Rank| {
            let parent = rank.child.id();
            let path = format!("/proc/{parent}/task/{parent}/children");
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let first = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
            // One that has exited has no process; `nsenter` stands for it.
            Ok((rank.host, first.unwrap_or(parent)))
        };
        self.0.iter().map(pid).collect()
    }

    /// Kills the ranks, as a launcher does.
    fn kill(&mut self) {
        for (_, pid) in self.pids().unwrap_or_default() {
            drop(crate::command::run(&format!("kill -KILL {pid}")));
        }
        for rank in &mut self.0 {
            drop(rank.child.kill());
            drop(rank.child.wait());
        }
        self.0.clear();
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
    }
}

fn configure(
    command: &mut Command,
    scenario: &Scenario,
    files: &Files,
    rank: usize,
) -> Result<(), String> {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NCCL") {
            command.env_remove(&name);
        }
    }
    let own = scenario.own(rank);
    command.envs(rig::job::ENVIRONMENT).envs(ENVIRONMENT);
    command.env("NCCL_PROFILER_PLUGIN", &files.plugin);
    command.env("NCCLSCOPE_DIR", RECORDINGS);
    command.env("NCCLSCOPE_HANG_SEC", scenario.limit_s.to_string());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", scenario.nranks().to_string());
    command.env("LOCAL_RANK", (rank % scenario.devices).to_string());
    command.envs(&scenario.env).envs(own.iter().flat_map(|own| &own.env));
    let version = own.and_then(|own| own.nccl.as_ref()).unwrap_or(&scenario.nccl);
    command.arg("--cuda").arg(&files.cuda).arg("--nccl").arg(wheel::find(version)?);
    command.arg("--rank").arg(rank.to_string());
    command.arg("--nranks").arg(scenario.nranks().to_string());
    command.arg("--device").arg((rank % scenario.devices).to_string());
    command.arg("--store").arg(STORE).arg("--").arg(scenario.program(rank));
    Ok(())
}
