// SPDX-License-Identifier: Apache-2.0
/*!
`ncclscope run` that a launcher starts once for each rank: `mpirun ncclscope run …`, `srun ncclscope
run …`.

All of them have one directory. None waits for the others, so none prints a report, which would be
of a part of the job. The one of rank 0 writes `run.json` and says what comes next.
*/

use ncclscope_control::launcher::JobPosition;
use ncclscope_control::variable::environment;

/// This process as one of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) rank: u32,
    pub(super) of: u32,
    /// Local rank: its number on its node.
    local_rank: Option<u32>,
}

impl Task {
    /// What a launcher set for this process; `None` if it is the only one of its job.
    pub(super) fn find() -> Option<Task> {
        Task::of(JobPosition::of(environment))
    }

    fn of(place: JobPosition) -> Option<Task> {
        let of = place.world_size.filter(|&of| of > 1)?;
        Some(Task { rank: place.rank?, of, local_rank: place.local_rank })
    }

    /// True for the rank that prints messages for all ranks.
    pub(super) fn is_first(self) -> bool {
        self.rank == 0
    }

    /// True for the rank that prints messages for the ranks of its node.
    pub(super) fn is_first_of_node(self) -> bool {
        self.local_rank.unwrap_or(self.rank) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_one_is_no_task() {
        let of =
            |rank, world_size| Task::of(JobPosition { rank, world_size, ..JobPosition::default() });
        assert_eq!([of(None, Some(4)), of(Some(0), None), of(Some(0), Some(1))], [None; 3]);
        let task = of(Some(4), Some(8)).unwrap();
        assert_eq!((task.rank, task.of), (4, 8));
        assert!(!task.is_first() && !task.is_first_of_node());
        assert!(Task { local_rank: Some(0), ..task }.is_first_of_node());
    }
}
