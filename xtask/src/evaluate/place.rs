// SPDX-License-Identifier: Apache-2.0
//! Directories in which more lies than the recordings of one job, or in which they do not fit
//! together: verdicts are the same there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::outcome::Outcome;

/// What is the matter with a job's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing.
    Clean,
    /// A recording of an earlier run, of another size, is left in it.
    Stale,
    /// The recordings of the first host were copied 10 s before the others, while the job ran.
    Copied,
    /// The clocks of hosts are up to 10 s apart.
    Clocks,
    /// Another job, with a fault of its own, ran at the same time on the same hosts.
    TwoJobs,
    /// All processes have one host name and one process id, as in containers.
    Containers,
}

impl Place {
    /// All that are not clean.
    pub(super) const ODD: [Place; 5] =
        [Place::Stale, Place::Copied, Place::Clocks, Place::TwoJobs, Place::Containers];

    pub(super) fn name(self) -> &'static str {
        match self {
            Place::Clean => "clean",
            Place::Stale => "stale",
            Place::Copied => "copied",
            Place::Clocks => "clocks",
            Place::TwoJobs => "two-jobs",
            Place::Containers => "containers",
        }
    }

    /// The scenario file of the job. One that is only slow ends after a few seconds.
    pub(super) fn scenario(self, hangs: bool) -> &'static str {
        match self {
            Place::Clean | Place::TwoJobs => "",
            Place::Stale => "[job]\nstart_s = 3600\n",
            Place::Copied if hangs => "[job]\nhold_s = 70\nearly_s = 10\n",
            Place::Copied => "[job]\nearly_s = 1\n",
            Place::Clocks => "[machine]\nclock_offset_ms = 10000.0\n",
            Place::Containers => "[job]\nin_containers = true\n",
        }
    }

    /// The other job whose recordings are there, beside one of so many ranks.
    pub(super) fn other(self, ranks: u64) -> Option<Other> {
        match self {
            Place::Stale => Some(Other { ranks: 4, left: 1, options: &["--steps", "4"] }),
            Place::TwoJobs => {
                let options = &["--steps", "4", "--fault", "killed"];
                Some(Other { ranks, left: usize::MAX, options })
            }
            Place::Clean | Place::Copied | Place::Clocks | Place::Containers => None,
        }
    }

    /// Both runs are of one time, so that one has to be chosen.
    pub(super) fn has_two_runs(self) -> bool {
        self == Place::TwoJobs
    }
}

/// Another job in a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Other {
    pub(super) ranks: u64,
    /// How many of its recordings are left.
    pub(super) left: usize,
    /// How it is simulated.
    pub(super) options: &'static [&'static str],
}

/// The recordings of a folder. The simulator names processes so that the order of names is that of
/// ranks.
pub(super) fn recordings(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
    files.retain(|path| path.extension().is_some_and(|end| end == "nscope"));
    files.sort();
    Ok(files)
}
