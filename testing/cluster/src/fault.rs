// SPDX-License-Identifier: Apache-2.0
//! Faults of networks, hosts and processes.

use crate::command;
use crate::host::{Cluster, Host};
use serde::Deserialize;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// An Ethernet address that no interface has.
const NO_HOST: &str = "02:00:00:00:00:ee";

/// A fault, and when it strikes.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// Seconds after all ranks have done their first operation; without it, before they start.
    pub at_s: Option<f64>,
    /// The number of the host that it strikes.
    #[serde(default)]
    pub host: usize,
    /// For faults of a process: its rank.
    pub rank: Option<usize>,
    /// What happens.
    #[serde(flatten)]
    pub kind: Kind,
}

/// What happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// The host's cable is pulled, at the switch.
    LinkDown,
    /// The host's packets to host `to` vanish; packets of the other direction do not.
    BlackHole {
        /// The number of the other host.
        to: usize,
    },
    /// The switch's port to the host carries packets of at most this size. It tells neither end.
    Mtu {
        /// Bytes.
        bytes: u32,
    },
    /// This part of the packets to the host is lost.
    Loss {
        /// From 0 to 1.
        part: f64,
    },
    /// What the host sends passes at this rate.
    Rate {
        /// Megabits a second.
        mbit: u32,
    },
    /// The host gets one more interface, with this name and address, that leads nowhere.
    Interface {
        /// Name.
        name: String,
        /// Address.
        address: String,
    },
    /// The processes of the host's ranks may use this part of one core.
    Cpu {
        /// Percent.
        percent: u32,
    },
    /// Processes that compute without end run on the host.
    Busy {
        /// Their number.
        processes: usize,
    },
    /// The disk of the host's recordings takes no write for this long: a file system of its own on
    /// a loop device, which is frozen. Needs `mkfs.ext4` and `fsfreeze`.
    SlowDisk {
        /// Seconds.
        for_s: f64,
    },
    /// The rank's process is sent this signal.
    Signal {
        /// Such as `STOP` or `KILL`.
        signal: String,
    },
}

/// What a fault leaves to be cleaned up.
#[derive(Debug, Default)]
pub struct Damage {
    groups: Vec<PathBuf>,
    processes: Vec<Child>,
    /// Processes that thaw disks, and end then.
    thaws: Vec<Child>,
}

impl Fault {
    /// Prepares a host for a fault that strikes later.
    ///
    /// # Errors
    /// What the system refused, or a program that is missing.
    pub fn prepare(&self, cluster: &Cluster) -> Result<(), String> {
        match self.kind {
            Kind::SlowDisk { .. } => cluster.host(self.host)?.mount_disk(),
            // A bridge lets through what a sender leaves to its card to cut, whatever its size.
            Kind::Mtu { .. } => {
                let mut hosts = cluster.hosts().iter();
                hosts.try_for_each(|host| host.run("ip link set eth0 gso_max_segs 1"))
            }
            _ => Ok(()),
        }
    }
}

impl Damage {
    /// Makes a fault strike. `pids` are the processes of the ranks, as this process sees them, with
    /// their hosts.
    ///
    /// # Errors
    /// What the system refused, or a program that is missing.
    pub fn strike(
        &mut self,
        fault: &Fault,
        cluster: &Cluster,
        pids: &[(usize, u32)],
    ) -> Result<(), String> {
        let host = cluster.host(fault.host)?;
        let port = &host.port;
        match &fault.kind {
            Kind::LinkDown => command::run(&format!("ip link set {port} down")).map(drop),
            Kind::BlackHole { to } => {
                // To an Ethernet address that no port has: what a stale entry does.
                let to = &cluster.host(*to)?.address;
                host.run(&format!("ip neigh replace {to} lladdr {NO_HOST} dev eth0 nud permanent"))
            }
            Kind::Mtu { bytes } => {
                command::run(&format!("ip link set {port} mtu {bytes}")).map(drop)
            }
            Kind::Loss { part } => lose(host, *part),
            Kind::Rate { mbit } => host.run(&format!(
                "tc qdisc replace dev eth0 root tbf rate {mbit}mbit burst 16k latency 400ms"
            )),
            Kind::Interface { name, address } => {
                host.run(&format!("ip link add {name} type veth peer name {name}x"))?;
                host.run(&format!("ip link set {name}x up"))?;
                host.run(&format!("ip addr add {address}/16 dev {name}"))?;
                host.run(&format!("ip link set {name} up"))
            }
            Kind::Cpu { percent } => self.limit(fault, *percent, pids),
            Kind::Busy { processes } => self.load(host, *processes),
            Kind::SlowDisk { for_s } => {
                self.thaws.push(host.freeze_disk(*for_s)?);
                Ok(())
            }
            Kind::Signal { signal } => {
                let rank = fault.rank.ok_or("a signal needs a rank")?;
                let (_, pid) = pids.get(rank).ok_or_else(|| format!("there is no rank {rank}"))?;
                command::run(&format!("kill -{signal} {pid}")).map(drop)
            }
        }
    }

    fn limit(&mut self, fault: &Fault, percent: u32, pids: &[(usize, u32)]) -> Result<(), String> {
        let name = format!("cluster-{}-{}", std::process::id(), fault.host);
        let group = PathBuf::from("/sys/fs/cgroup/cpu").join(name);
        let put = |file: &str, value: String| {
            let path = group.join(file);
            fs::write(&path, value).map_err(|error| format!("{}: {error}", path.display()))
        };
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        self.groups.push(group.clone());
        put("cpu.cfs_quota_us", (1000 * percent).to_string())?;
        let mut own = pids.iter().filter(|(host, _)| *host == fault.host);
        own.try_for_each(|(_, pid)| put("cgroup.procs", pid.to_string()))
    }

    fn load(&mut self, host: &Host, processes: usize) -> Result<(), String> {
        for _ in 0..processes {
            let mut command = host.command("sh");
            command.args(["-c", "while :; do :; done"]).stdout(Stdio::null());
            self.processes.push(command.spawn().map_err(|error| error.to_string())?);
        }
        Ok(())
    }
}

/// Loses a part of what comes in, with a classic BPF program for each packet: draw 32 random bits
/// (`SKF_AD_RANDOM`), and return `TC_ACT_SHOT` if they are below the limit, else `TC_ACT_OK`.
fn lose(host: &Host, part: f64) -> Result<(), String> {
    host.run("tc qdisc add dev eth0 clsact")?;
    // From 0 to 2³² - 1, which the cast keeps.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let limit = (part.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
    let program = format!("4,32 0 0 4294963256,53 0 1 {limit},6 0 0 0,6 0 0 2,");
    let words = ["tc", "filter", "add", "dev", "eth0", "ingress", "bpf", "da", "bytecode"];
    host.run_words(&words.into_iter().chain([&*program]).collect::<Vec<_>>())
}

impl Drop for Damage {
    fn drop(&mut self) {
        for child in &mut self.processes {
            drop(child.kill());
            drop(child.wait());
        }
        // A frozen disk would stay so, and what waits for it cannot be killed.
        self.thaws.iter_mut().for_each(|child| drop(child.wait()));
        for group in &self.groups {
            drop(fs::remove_dir(group));
        }
    }
}
