// SPDX-License-Identifier: Apache-2.0
/*!
`ncclscope run` that a launcher starts once for each rank: `mpirun ncclscope run …`, `srun ncclscope
run …`.

All of them have one directory. None waits for the others, so none prints a report, which would be
of a part of the job. The one of rank 0 writes `run.json` and says what comes next.
*/

use ncclscope_control::launcher::Place;
use ncclscope_control::variable::environment;

/// One of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) rank: u32,
    pub(super) of: u32,
    /// Its number on its node.
    local_rank: Option<u32>,
}

impl Task {
    /// What a launcher tells this process; `None` if it is the only one of its job.
    pub(super) fn find() -> Option<Task> {
        Task::of(Place::of(environment))
    }

    fn of(place: Place) -> Option<Task> {
        let of = place.world_size.filter(|&of| of > 1)?;
        Some(Task { rank: place.rank?, of, local_rank: place.local_rank })
    }

    /// It speaks for all.
    pub(super) fn is_first(self) -> bool {
        self.rank == 0
    }

    /// It speaks for those of its node.
    pub(super) fn is_first_of_node(self) -> bool {
        self.local_rank.unwrap_or(self.rank) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_one_is_no_task() {
        let of = |rank, world_size| Task::of(Place { rank, world_size, ..Place::default() });
        assert_eq!([of(None, Some(4)), of(Some(0), None), of(Some(0), Some(1))], [None; 3]);
        let task = of(Some(4), Some(8)).unwrap();
        assert_eq!((task.rank, task.of), (4, 8));
        assert!(!task.is_first() && !task.is_first_of_node());
        assert!(Task { local_rank: Some(0), ..task }.is_first_of_node());
    }
}
