// SPDX-License-Identifier: Apache-2.0
//! Hosts: namespaces of this machine on a common bridge.
//!
//! A host is a process that sleeps (the first of its PID namespace). Commands enter its namespaces
//! with `nsenter`. The names of all hosts and of the bridge begin with a prefix that names this
//! process, so that several clusters fit on a machine.

use crate::command::{output, run};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where a host's ranks record.
pub const RECORDINGS: &str = "/run/rec";
/// Where a host's tools write copies.
pub const COPIES: &str = "/run/copy";
/// Where the store is mounted in each host.
pub const STORE: &str = "/run/store";

/// The file of a host's disk, if it has one, and its size.
const DISK: &str = "/run/disk";
const DISK_BYTES: u64 = 256 << 20;

/// The largest packet of all interfaces; a fault may lower it.
const MTU: u32 = 9000;

/// How long a host may take to come up.
const START: Duration = Duration::from_secs(10);

/// Hosts on a bridge. They end, and their interfaces with them, when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    bridge: String,
    hosts: Vec<Host>,
}

/// One host.
#[derive(Debug)]
pub struct Host {
    /// Its name, `node0` and so on.
    pub name: String,
    /// Its address.
    pub address: String,
    /// The bridge's end of its cable.
    pub port: String,
    namespace: String,
    /// The first process of its PID namespace, by its number outside.
    pid: u32,
    child: Child,
}

impl Cluster {
    /// Brings up `count` hosts that see the store at `store`.
    ///
    /// # Errors
    /// What is missing: root, a program, or what the system refused.
    pub fn start(count: usize, store: &Path) -> Result<Cluster, String> {
        if run("id -u")?.trim() != "0" {
            return Err("the hosts are namespaces, which need root: run it as root".into());
        }
        let own = std::process::id() % 10_000;
        let mut cluster = Cluster { bridge: format!("cl{own}b"), hosts: Vec::new() };
        let bridge = &cluster.bridge;
        run(&format!("ip link add {bridge} type bridge"))?;
        run(&format!("ip link set {bridge} up mtu {MTU}"))?;
        for number in 0..count {
            let host = Host::start(number, own, &cluster.bridge, store)?;
            cluster.hosts.push(host);
        }
        Ok(cluster)
    }

    /// The host with this number.
    ///
    /// # Errors
    /// There is none.
    pub fn host(&self, number: usize) -> Result<&Host, String> {
        self.hosts.get(number).ok_or_else(|| format!("there is no host {number}"))
    }

    /// All hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.hosts.clear();
        // What is gone already is no failure.
        drop(run(&format!("ip link del {}", self.bridge)));
    }
}

impl Host {
    fn start(number: usize, own: u32, bridge: &str, store: &Path) -> Result<Host, String> {
        let (name, namespace) = (format!("node{number}"), format!("cl{own}n{number}"));
        let (port, address) = (format!("cl{own}p{number}"), format!("10.77.0.{}", number + 1));
        run(&format!("ip netns add {namespace}"))?;
        run(&format!("ip link add {port} type veth peer name eth0 netns {namespace}"))?;
        run(&format!("ip link set {port} master {bridge} up mtu {MTU}"))?;
        let inside = format!("ip netns exec {namespace} ip");
        run(&format!("{inside} addr add {address}/24 dev eth0"))?;
        run(&format!("{inside} link set eth0 up mtu {MTU}"))?;
        run(&format!("{inside} link set lo up"))?;
        let setup = format!(
            "hostname {name} && mount -t tmpfs none /dev/shm && mount -t tmpfs none /run \
             && mkdir {STORE} {RECORDINGS} {COPIES} && mount --bind {} {STORE} \
             && mount -t tmpfs none /tmp && touch /run/up && exec sleep infinity",
            store.display()
        );
        let child = Command::new("ip")
            .args(["netns", "exec", &namespace, "unshare", "--mount", "--uts", "--ipc", "--pid"])
            .args(["--fork", "--kill-child", "--mount-proc", "sh", "-c", &setup])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("ip netns exec: {error}"))?;
        let mut host = Host { name, address, port, namespace, pid: 0, child };
        host.pid = host.first_process()?;
        Ok(host)
    }

    /// Waits until the host is up, and returns its first process.
    fn first_process(&self) -> Result<u32, String> {
        let (start, unshare) = (Instant::now(), self.child.id());
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        while start.elapsed() < START {
            let text = std::fs::read_to_string(&children).unwrap_or_default();
            let pid = text.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
            let is_up = |pid: &u32| Path::new(&format!("/proc/{pid}/root/run/up")).exists();
            if let Some(pid) = pid.filter(is_up) {
                return Ok(pid);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("{} did not come up: the system may not allow namespaces", self.name))
    }

    /// A command that runs in the host.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--target"]);
        command.arg(self.pid.to_string()).arg("--").arg(program);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command line of words without spaces in the host.
    ///
    /// # Errors
    /// The command, and what it printed.
    pub fn run(&self, line: &str) -> Result<(), String> {
        self.run_words(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command in the host.
    ///
    /// # Errors
    /// The command, and what it printed.
    pub fn run_words(&self, words: &[&str]) -> Result<(), String> {
        let mut command = self.command(words.first().unwrap_or(&""));
        let output = output(command.args(words.iter().skip(1)))?;
        let failed = || {
            let text = String::from_utf8_lossy(&output.stderr);
            format!("{}: {}: {}", self.name, words.join(" "), text.trim())
        };
        if output.status.success() { Ok(()) } else { Err(failed()) }
    }

    /// Gives the recordings a disk of their own: a file system on a loop device.
    ///
    /// # Errors
    /// What the system refused, or a program that is missing.
    pub fn mount_disk(&self) -> Result<(), String> {
        let file = self.outside(DISK);
        let made = File::create(&file).and_then(|file| file.set_len(DISK_BYTES));
        made.map_err(|error| format!("{}: {error}", file.display()))?;
        self.run(&format!("mkfs.ext4 -q {DISK}"))?;
        self.run(&format!("mount -o loop {DISK} {RECORDINGS}"))
    }

    /// Freezes that disk. The process that is returned thaws it, and does not end with the host.
    ///
    /// # Errors
    /// What the system refused, or a program that is missing.
    pub fn freeze_disk(&self, for_s: f64) -> Result<Child, String> {
        self.run(&format!("fsfreeze --freeze {RECORDINGS}"))?;
        let mut thaw = Command::new("nsenter");
        thaw.args(["--mount", "--target", &self.pid.to_string(), "sh", "-c"]);
        thaw.arg(format!("sleep {for_s}; fsfreeze --unfreeze {RECORDINGS}"));
        thaw.stdin(Stdio::null()).spawn().map_err(|error| format!("nsenter: {error}"))
    }

    /// A path of the host, as this process sees it.
    #[must_use]
    pub fn outside(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.pid)).join(path.trim_start_matches('/'))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // All processes of a PID namespace end with its first one.
        drop(run(&format!("kill -KILL {}", self.pid)));
        drop(self.child.kill());
        drop(self.child.wait());
        drop(run(&format!("ip netns del {}", self.namespace)));
        drop(run(&format!("ip link del {}", self.port)));
    }
}
