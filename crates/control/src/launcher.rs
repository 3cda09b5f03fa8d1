// SPDX-License-Identifier: Apache-2.0
//! The variables in which launchers tell a process its place in the job.

/// A launcher's variables for a process's rank, local rank, node and number of processes.
type Launcher = [&'static str; 4];

/// The launchers. One that was started by another comes before it. Open MPI's node rank is no
/// number of a node.
const LAUNCHERS: [Launcher; 7] = [
    ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "", "OMPI_COMM_WORLD_SIZE"],
    ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "", "MV2_COMM_WORLD_SIZE"],
    ["PMI_RANK", "MPI_LOCALRANKID", "", "PMI_SIZE"],
    ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS"],
    ["PMIX_RANK", "", "", ""],
    ["JAX_PROCESS_ID", "", "", "JAX_NUM_PROCESSES"],
];

/// The place of a process in its job; what its launcher does not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its rank.
    pub rank: Option<u32>,
    /// Its number among the job's processes on its node.
    pub local_rank: Option<u32>,
    /// The node's number in the job.
    pub node_rank: Option<u32>,
    /// Processes of the job.
    pub world_size: Option<u32>,
}

impl Place {
    /// The place in an environment, by the first launcher that sets a rank.
    pub fn of(get: impl Fn(&str) -> Option<String>) -> Place {
        let number = |name: &str| get(name)?.parse::<u32>().ok();
        let launcher = LAUNCHERS.iter().find(|[rank, ..]| number(rank).is_some());
        let value = |at: usize| number(launcher?[at]);
        Place { rank: value(0), local_rank: value(1), node_rank: value(2), world_size: value(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_launcher_tells_the_whole_place() {
        let of = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name).map(|one| one.1);
            Place::of(|name| value(name).map(str::to_owned))
        };
        // srun starts torchrun, which starts the rank.
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_LOCALID", "0"), ("SLURM_NTASKS", "2")];
        let torch = [("RANK", "11"), ("WORLD_SIZE", "16")];
        let found = of(&[&slurm[..], &torch].concat());
        assert_eq!((found.rank, found.local_rank, found.world_size), (Some(11), None, Some(16)));
        assert_eq!(of(&slurm).world_size, Some(2));
        assert_eq!(of(&[("RANK", "x")]), Place::default());
    }
}
