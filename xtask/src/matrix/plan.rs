// SPDX-License-Identifier: Apache-2.0
//! Which cells there are.

use super::cell::Cell;
use super::scenario::Scenario;
use crate::nccl::Release;

/// The releases: at least one of each profiler API version, 2.27.3, which loads plugins in a way of
/// its own (`docs/loading.md`), and both wheels of 2.28.9.
pub(super) const RELEASES: &[&str] = &[
    "2.23.4",
    "2.24.3",
    "2.25.1",
    "2.26.5",
    "2.27.3",
    "2.27.7",
    "2.28.9",
    "2.28.9+cu13",
    "2.29.7",
    "2.30.7",
    "2.31.2",
    "2.32.3",
];

/// A release as one wheel has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wheel {
    /// As the command line names it.
    pub(super) label: String,
    pub(super) release: Release,
}

/// A way to place ranks, by the name that the rig's `job --topology` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) name: &'static str,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    /// For people.
    pub(super) about: &'static str,
}

/// The topologies that a release is run on.
pub(super) const TOPOLOGIES: &[Topology] = &[
    Topology { name: "socket", ranks: 2, nodes: 2, about: "two hosts of one device" },
    Topology { name: "socket-shm", ranks: 4, nodes: 2, about: "two hosts of two devices" },
    Topology { name: "shm", ranks: 2, nodes: 1, about: "one host, shared host memory" },
    Topology { name: "p2p-ipc", ranks: 2, nodes: 1, about: "one host, peer access by CUDA IPC" },
    Topology { name: "p2p-cumem", ranks: 2, nodes: 1, about: "one host, peer access by cuMem" },
    Topology { name: "threads", ranks: 4, nodes: 1, about: "four devices in one process" },
    Topology { name: "tree", ranks: 3, nodes: 3, about: "three hosts, AllReduce over a tree" },
];

/// Those that only scenarios use.
const OF_SCENARIOS: &[Topology] = &[
    Topology { name: "ring3", ranks: 3, nodes: 3, about: "three hosts, rings only" },
    Topology { name: "ring4", ranks: 4, nodes: 4, about: "four hosts, rings only" },
];

/// The topology of a scenario.
pub(super) fn of_scenario(name: &str) -> Option<Topology> {
    TOPOLOGIES.iter().chain(OF_SCENARIOS).find(|topology| topology.name == name).copied()
}

/// What a cell does unless a scenario says it: each collective in several sizes, send and receive,
/// groups, and replays of a captured graph.
const MIXED: &[&str] = &[
    "allreduce:1048576",
    "allreduce:256",
    "allgather:300001",
    "reducescatter:4096",
    "broadcast:65536",
    "reduce:65536",
    "sendrecv:300001",
    "group:4x65536",
    "repeat:3:allreduce:1000",
    "graph:3x4096",
];

/// What a cell does instead where only AllReduce has an algorithm: NCCL refuses the others when
/// `NCCL_ALGO` names one that they lack.
const ALL_REDUCES: &[&str] = &[
    "allreduce:1048576",
    "allreduce:256",
    "sendrecv:300001",
    "group:4x65536",
    "repeat:3:allreduce:1000",
    "graph:3x4096",
];

impl Topology {
    /// The steps of a cell, unless a scenario or a workload says them.
    pub(super) fn steps(&self) -> &'static [&'static str] {
        if self.name == "tree" { ALL_REDUCES } else { MIXED }
    }
}

/// A part of the page's table: what is called, and the steps that do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) steps: &'static [&'static str],
    /// For people.
    pub(super) about: &'static str,
}

/// The workloads of the page.
pub(super) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "allreduce",
        steps: &["allreduce:1048576"],
        about: "one `ncclAllReduce` of 4 MiB",
    },
    Workload {
        name: "broadcast",
        steps: &["broadcast:65536"],
        about: "one `ncclBroadcast` of 256 KiB",
    },
    Workload {
        name: "sendrecv",
        steps: &["sendrecv:65536"],
        about: "one `ncclSend` and one `ncclRecv` of 256 KiB in a group",
    },
    Workload {
        name: "group",
        steps: &["group:3x65536"],
        about: "three `ncclAllReduce` of 256 KiB in a group",
    },
    Workload {
        name: "graph",
        steps: &["graph:3x65536"],
        about: "one `ncclAllReduce` of 256 KiB captured in a CUDA graph that is launched 3 times",
    },
    Workload {
        name: "split",
        steps: &["split:65536"],
        about: "`ncclCommSplit` with shared resources, then an AllGather on the child, an \
                AllReduce on the parent and one on the child",
    },
];

/// The topology on which the page measures every workload; on the others it measures the first.
pub(super) const DOCS_TOPOLOGY: &str = "socket";

/// The releases named, or all.
pub(super) fn releases(names: &[String]) -> Result<Vec<Wheel>, String> {
    if names.is_empty() {
        return RELEASES.iter().map(|name| wheel(name)).collect();
    }
    names.iter().map(|name| wheel(name)).collect()
}

/// A wheel from `VERSION` or `VERSION+cu13`.
fn wheel(name: &str) -> Result<Wheel, String> {
    let release = match name.split_once("+cu") {
        Some((version, "13")) => Release::new(version, 13),
        Some(_) => Err(format!("`{name}`: a wheel is VERSION or VERSION+cu13")),
        None => Release::new(name, 12),
    };
    Ok(Wheel { label: name.to_owned(), release: release? })
}

/// The topologies of a name: `p2p` means both of its forms.
fn topologies(name: &str) -> Result<Vec<Topology>, String> {
    let is_it = |topology: &&Topology| {
        topology.name == name || name == "p2p" && topology.name.starts_with("p2p-")
    };
    let found: Vec<_> = TOPOLOGIES.iter().filter(is_it).copied().collect();
    if found.is_empty() {
        let names: Vec<_> = TOPOLOGIES.iter().map(|topology| topology.name).collect();
        return Err(format!("no topology `{name}`; there are p2p, {}", names.join(", ")));
    }
    Ok(found)
}

/// The cells of a run.
pub(super) fn cells(
    wheels: &[Wheel],
    names: &[String],
    scenario: Option<&Scenario>,
) -> Result<Vec<Cell>, String> {
    let mut picked = Vec::new();
    for name in names {
        picked.extend(topologies(name)?);
    }
    match (scenario, names) {
        (Some(_), [_, ..]) => return Err("a scenario has its own topology".into()),
        (Some(scenario), []) => picked.push(scenario.topology),
        (None, []) => picked.extend(TOPOLOGIES),
        (None, _) => {}
    }
    let mut cells = Vec::new();
    for wheel in wheels {
        for &topology in &picked {
            let scenario = scenario.cloned();
            let wheel = wheel.clone();
            cells.push(Cell { wheel, topology, workload: None, scenario });
        }
    }
    Ok(cells)
}

/// The cells of the page.
pub(super) fn docs_cells(wheels: &[Wheel]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for wheel in wheels {
        for &topology in TOPOLOGIES {
            let is_main = topology.name == DOCS_TOPOLOGY;
            for workload in &WORKLOADS[..if is_main { WORKLOADS.len() } else { 1 }] {
                let (wheel, workload) = (wheel.clone(), Some(*workload));
                cells.push(Cell { wheel, topology, workload, scenario: None });
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(topologies("p2p").expect("a name").len(), 2);
        assert_eq!(topologies("tree").expect("a name")[0].ranks, 3);
        assert!(topologies("mesh").is_err());
        assert!(wheel("2.28.9+cu14").is_err() && wheel("x").is_err());
        assert_eq!(wheel("2.28.9+cu13").expect("a wheel").label, "2.28.9+cu13");
        assert_eq!(wheel("2.28.9").expect("a wheel").label, "2.28.9");
    }

    #[test]
    fn a_scenario_has_its_own_topology() {
        let wheels = releases(&["2.30.7".to_owned()]).expect("a version");
        let scenario = Scenario {
            file: "a/slow.toml".into(),
            topology: of_scenario("ring3").expect("a name"),
            releases: vec![],
            hangs: false,
            spoils_ptimer: false,
        };
        let picked = cells(&wheels, &[], Some(&scenario)).expect("it needs no more");
        assert_eq!((picked.len(), picked[0].name().as_str()), (1, "ring3/slow"));
        assert!(cells(&wheels, &["shm".to_owned()], Some(&scenario)).is_err());
    }

    #[test]
    fn the_page_measures_every_workload_and_every_topology() {
        let wheels = releases(&["2.30.7".to_owned()]).expect("a version");
        let cells = docs_cells(&wheels);
        assert_eq!(cells.len(), WORKLOADS.len() + TOPOLOGIES.len() - 1);
    }
}
