// SPDX-License-Identifier: Apache-2.0
//! Directories that contain more than the recordings of one job, or recordings that do not fit
//! together. The verdicts must be the same there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::outcome::Outcome;

/// The circumstance of a job's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Circumstance {
    /// Only the job's recordings.
    Clean,
    /// A recording of an earlier run of another size was left behind.
    Stale,
    /// The recordings of the first host were copied 10 s before the others, while the job ran.
    Copied,
    /// The clocks of hosts are up to 10 s apart.
    Clocks,
    /// Another job with its own fault ran at the same time on the same hosts.
    TwoJobs,
    /// All processes have the same host name and process id, as in containers.
    Containers,
}

impl Circumstance {
    /// All circumstances but [`Circumstance::Clean`].
    pub(super) const ODD: [Circumstance; 5] = [
        Circumstance::Stale,
        Circumstance::Copied,
        Circumstance::Clocks,
        Circumstance::TwoJobs,
        Circumstance::Containers,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Circumstance::Clean => "clean",
            Circumstance::Stale => "stale",
            Circumstance::Copied => "copied",
            Circumstance::Clocks => "clocks",
            Circumstance::TwoJobs => "two-jobs",
            Circumstance::Containers => "containers",
        }
    }

    /// The scenario file of the job. A job that is only slow ends after a few seconds.
    pub(super) fn scenario(self, hangs: bool) -> &'static str {
        match self {
            Circumstance::Clean | Circumstance::TwoJobs => "",
            Circumstance::Stale => "[job]\nstart_s = 3600\n",
            Circumstance::Copied if hangs => "[job]\nhold_s = 70\nearly_s = 10\n",
            Circumstance::Copied => "[job]\nearly_s = 1\n",
            Circumstance::Clocks => "[machine]\nclock_offset_ms = 10000.0\n",
            Circumstance::Containers => "[job]\nin_containers = true\n",
        }
    }

    /// The other job whose recordings are in the directory of a job with this many ranks, if any.
    pub(super) fn other(self, ranks: u64) -> Option<Other> {
        match self {
            Circumstance::Stale => Some(Other { ranks: 4, left: 1, options: &["--steps", "4"] }),
            Circumstance::TwoJobs => {
                let options = &["--steps", "4", "--fault", "killed"];
                Some(Other { ranks, left: usize::MAX, options })
            }
            Circumstance::Clean
            | Circumstance::Copied
            | Circumstance::Clocks
            | Circumstance::Containers => None,
        }
    }

    /// True if both runs are from the same time, so that one has to be chosen.
    pub(super) fn has_two_runs(self) -> bool {
        self == Circumstance::TwoJobs
    }
}

/// Another job in the directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Other {
    pub(super) ranks: u64,
    /// Number of its recordings that are left.
    pub(super) left: usize,
    /// Options with which it is simulated.
    pub(super) options: &'static [&'static str],
}

/// The recordings of a folder. The simulator chooses process names so that they sort by rank.
pub(super) fn recordings(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
    files.retain(|path| path.extension().is_some_and(|end| end == "nscope"));
    files.sort();
    Ok(files)
}
