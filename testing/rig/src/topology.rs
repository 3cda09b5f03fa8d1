// SPDX-License-Identifier: Apache-2.0
//! Topologies by name: the number of hosts and devices, and the environment with which NCCL chooses
//! the transport or the algorithm of that name.

use std::fmt;
use std::str::FromStr;

/// The placement of a job's ranks and their transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// `socket`: two hosts of one device; everything goes through the network.
    Socket,
    /// `socket-shm`: two hosts of two devices; the network, and shared host memory.
    SocketShm,
    /// `shm`: one host of two devices without peer access: shared host memory.
    Shm,
    /// `p2p-ipc`: one host of two devices; device memory is shared by legacy IPC handles.
    P2pIpc,
    /// `p2p-cumem`: as above; device memory is shared by file descriptors of the virtual memory
    /// management.
    P2pCumem,
    /// `threads`: four devices in one process, a thread each (`ncclCommInitAll`).
    Threads,
    /// `tree`: three hosts of one device; AllReduce goes over a tree.
    Tree,
    /// `ring3`: three hosts of one device, rings only.
    Ring3,
    /// `ring4`: four hosts of one device, rings only.
    Ring4,
}

impl Topology {
    /// Every topology.
    pub const ALL: [Self; 9] = [
        Self::Socket,
        Self::SocketShm,
        Self::Shm,
        Self::P2pIpc,
        Self::P2pCumem,
        Self::Threads,
        Self::Tree,
        Self::Ring3,
        Self::Ring4,
    ];

    /// Its name on command lines and in scenario files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::SocketShm => "socket-shm",
            Self::Shm => "shm",
            Self::P2pIpc => "p2p-ipc",
            Self::P2pCumem => "p2p-cumem",
            Self::Threads => "threads",
            Self::Tree => "tree",
            Self::Ring3 => "ring3",
            Self::Ring4 => "ring4",
        }
    }

    /// Number of simulated hosts.
    #[must_use]
    pub fn hosts(self) -> usize {
        match self {
            Self::Shm | Self::P2pIpc | Self::P2pCumem | Self::Threads => 1,
            Self::Socket | Self::SocketShm => 2,
            Self::Tree | Self::Ring3 => 3,
            Self::Ring4 => 4,
        }
    }

    /// Number of devices, and so of ranks, on each host.
    #[must_use]
    pub fn devices(self) -> usize {
        match self {
            Self::Socket | Self::Tree | Self::Ring3 | Self::Ring4 => 1,
            Self::SocketShm | Self::Shm | Self::P2pIpc | Self::P2pCumem => 2,
            Self::Threads => 4,
        }
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(self) -> usize {
        self.hosts() * self.devices()
    }

    /// Whether the ranks of a host are threads of one process.
    #[must_use]
    pub fn threads(self) -> bool {
        self == Self::Threads
    }

    /// Environment of every rank, beyond that of any job. The `CPU_CUDA_` variables are the
    /// stand-in's (`cpu-cuda`, `device.rs`).
    #[must_use]
    pub fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Socket | Self::Threads => &[],
            // NCCL would prefer peer access to shared memory.
            Self::SocketShm | Self::Shm => &[("CPU_CUDA_PEER", "0")],
            Self::P2pIpc => &[("CPU_CUDA_VMM", "0"), ("NCCL_CUMEM_ENABLE", "0")],
            Self::P2pCumem => &[("CPU_CUDA_VMM", "1"), ("NCCL_CUMEM_ENABLE", "1")],
            Self::Tree => &[("NCCL_ALGO", "Tree")],
            Self::Ring3 | Self::Ring4 => &[("NCCL_ALGO", "Ring")],
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Topology {
    type Err = String;

    /// # Errors
    /// A text with the known names.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|topology| topology.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no topology is called {text}; there are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for topology in Topology::ALL {
            assert_eq!(topology.to_string().parse(), Ok(topology));
            assert!((2..=4).contains(&topology.ranks()), "{topology}");
        }
        let error = "mesh".parse::<Topology>().expect_err("there is no such topology");
        assert!(error.contains("mesh") && error.contains("p2p-cumem"), "{error}");
    }
}
