// SPDX-License-Identifier: Apache-2.0
//! The variables in which launchers tell a process its place in the job.

/// Names of a launcher's variables for a process's rank, local rank, node rank and world size.
type Launcher = [&'static str; 4];

/// Slurm's variables, set for the tasks of a step.
const SLURM: Launcher = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS"];

/// The launchers; one that another launcher may start comes before that launcher. Open MPI's "node
/// rank" is not the number of a node, so it is not used.
const LAUNCHERS: [Launcher; 7] = [
    ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "", "OMPI_COMM_WORLD_SIZE"],
    ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "", "MV2_COMM_WORLD_SIZE"],
    ["PMI_RANK", "MPI_LOCALRANKID", "", "PMI_SIZE"],
    SLURM,
    ["PMIX_RANK", "", "", ""],
    ["JAX_PROCESS_ID", "", "", "JAX_NUM_PROCESSES"],
];

/// The lowest step id that Slurm reserves: batch scripts and interactive shells have ids from here
/// on (`SLURM_MAX_NORMAL_STEP_ID`).
const SLURM_SPECIAL_STEP: u32 = 0xffff_fff0;

/// Prefix of the PMIx namespaces that Slurm's own PMIx server assigns to its steps.
const SLURM_PMIX: &str = "slurm.";

/// The place of a process in its job; what its launcher does not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobPosition {
    /// Its rank.
    pub rank: Option<u32>,
    /// Its index among the job's processes on its node.
    pub local_rank: Option<u32>,
    /// The node's number in the job.
    pub node_rank: Option<u32>,
    /// Processes of the job.
    pub world_size: Option<u32>,
}

impl JobPosition {
    /// The place in an environment, by the first launcher that sets a rank.
    ///
    /// Slurm's variables are used only inside a step, because a batch script also gets rank 0. With
    /// `srun --mpi` Slurm sets the MPI's variables for the same tasks, and its own variables supply
    /// the numbers that the MPI's lack.
    pub fn of(get: impl Fn(&str) -> Option<String>) -> JobPosition {
        let number = |name: &str| get(name)?.parse::<u32>().ok();
        let is_batch = number("SLURM_JOB_ID").is_some() && slurm_step(&get).is_none();
        let tells = |one: &Launcher| number(one[0]).is_some() && !(is_batch && *one == SLURM);
        let place = |[rank, local_rank, node_rank, world_size]: Launcher| JobPosition {
            rank: number(rank),
            local_rank: number(local_rank),
            node_rank: number(node_rank),
            world_size: number(world_size),
        };
        let Some(mut found) = LAUNCHERS.into_iter().find(tells).map(place) else {
            return JobPosition::default();
        };
        let task = JobPosition { world_size: number("SLURM_STEP_NUM_TASKS"), ..place(SLURM) };
        let is_task = found.rank == task.rank && found.world_size == task.world_size;
        if is_task && found.world_size.is_some() {
            found.local_rank = found.local_rank.or(task.local_rank);
            found.node_rank = found.node_rank.or(task.node_rank);
        }
        found
    }
}

/// Index of the process among the job's processes on its node: from [`JobPosition::of`], else from
/// the first launcher that sets one.
pub fn local_rank(get: impl Fn(&str) -> Option<String>) -> Option<u32> {
    let said = || LAUNCHERS.iter().find_map(|[_, local_rank, ..]| get(local_rank)?.parse().ok());
    JobPosition::of(&get).local_rank.or_else(said)
}

/// The id of the process's Slurm step, as the text that Slurm sets; `None` outside a step and in
/// batch scripts and interactive shells.
pub fn slurm_step(get: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_users = |id: &String| id.parse().is_ok_and(|id: u32| id < SLURM_SPECIAL_STEP);
    get("SLURM_STEP_ID").filter(is_users)
}

/// The PMIx namespace that an MPI launcher gave its ranks; `None` without one, or if Slurm's own
/// PMIx server set it.
///
/// Open MPI's mpirun starts its daemons on other nodes through a Slurm step, but ranks on its own
/// node without one. So that step does not identify the launch of the ranks.
pub fn mpi_launch(get: impl Fn(&str) -> Option<String>) -> Option<String> {
    get("PMIX_NAMESPACE").filter(|name| !name.starts_with(SLURM_PMIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> JobPosition {
        let value = |name: &str| set.iter().find(|(known, _)| *known == name).map(|one| one.1);
        JobPosition::of(|name| value(name).map(str::to_owned))
    }

    fn numbers(place: JobPosition) -> [Option<u32>; 4] {
        [place.rank, place.local_rank, place.node_rank, place.world_size]
    }

    #[test]
    fn one_launcher_tells_the_whole_place() {
        // srun starts torchrun, which starts the rank.
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_LOCALID", "0"), ("SLURM_NTASKS", "2")];
        let torch = [("RANK", "11"), ("WORLD_SIZE", "16")];
        let found = of(&[&slurm[..], &torch].concat());
        assert_eq!((found.rank, found.local_rank, found.world_size), (Some(11), None, Some(16)));
        assert_eq!(of(&slurm).world_size, Some(2));
        assert_eq!(of(&[("RANK", "x")]), JobPosition::default());
    }

    /// What Slurm 22.05 sets in a batch script of four tasks, and in the third task of a step of
    /// that job.
    #[test]
    fn a_batch_script_is_no_rank() {
        let batch = [
            ("SLURM_JOB_ID", "3"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_NTASKS", "4"),
        ];
        assert_eq!(of(&batch), JobPosition::default());
        let interactive = ("SLURM_STEP_ID", "4294967290");
        assert_eq!(of(&[&batch[..], &[interactive]].concat()), JobPosition::default());
        let task = [
            ("SLURM_JOB_ID", "3"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_PROCID", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "1"),
            ("SLURM_NTASKS", "4"),
        ];
        assert_eq!(numbers(of(&task)), [Some(2), Some(0), Some(1), Some(4)]);
    }

    /// What `srun --mpi=pmi2` sets, what MPICH's mpirun sets in the same job, and what Open MPI's
    /// does.
    #[test]
    fn slurm_has_what_its_mpi_does_not_tell() {
        let pmi2 = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "1"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_PROCID", "3"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "1"),
            ("PMI_JOBID", "7.1"),
            ("PMI_RANK", "3"),
            ("PMI_SIZE", "4"),
        ];
        assert_eq!(numbers(of(&pmi2)), [Some(3), Some(1), Some(1), Some(4)]);
        let mpich = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "0"),
            ("MPI_LOCALRANKID", "0"),
            ("PMI_RANK", "0"),
            ("PMI_SIZE", "4"),
        ];
        assert_eq!(numbers(of(&mpich)), [Some(0), Some(0), None, Some(4)]);
        let open_mpi = [
            ("SLURM_JOB_ID", "6"),
            ("SLURM_STEP_ID", "5"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_NTASKS", "1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "0"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        assert_eq!(numbers(of(&open_mpi)), [Some(3), Some(1), None, Some(4)]);
    }
}
