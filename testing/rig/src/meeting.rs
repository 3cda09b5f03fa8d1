// SPDX-License-Identifier: Apache-2.0
//! A meeting place for the ranks of a job, without NCCL: files in the directory of a file whose
//! path all ranks know.

use crate::nccl::{Nccl, UniqueId};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long ranks wait for rank 0's unique id.
const ID_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank's view of the meeting place. All ranks must use the same barriers and exchanges in the
/// same order.
#[derive(Debug)]
pub struct Meeting {
    file: PathBuf,
    rank: usize,
    nranks: usize,
    barriers: usize,
    ids: usize,
}

impl Meeting {
    /// The meeting place at `file`, in a directory that no other job uses.
    #[must_use]
    pub fn new(file: PathBuf, rank: usize, nranks: usize) -> Self {
        Self { file, rank, nranks, barriers: 0, ids: 0 }
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    /// Creates this rank's file and waits for those of all ranks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn barrier(&mut self) -> Result<(), String> {
        self.barriers += 1;
        let file = |rank| self.beside(&format!(".barrier{}.{rank}", self.barriers));
        let own = file(self.rank);
        std::fs::write(&own, []).map_err(|e| format!("{}: {e}", own.display()))?;
        for rank in 0..self.nranks {
            while !file(rank).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// A new unique id: rank 0 creates it and writes it to a file, atomically; the others read it.
    ///
    /// # Errors
    /// NCCL's text; the file cannot be written, or rank 0 does not write it in 60 s.
    pub fn unique_id(&mut self, nccl: &Nccl) -> Result<UniqueId, String> {
        self.ids += 1;
        let file = self.beside(&format!(".{}", self.ids));
        if self.rank == 0 {
            let id = nccl.unique_id()?;
            let whole = self.beside(".tmp");
            let done = std::fs::write(&whole, id.0);
            done.and_then(|()| std::fs::rename(&whole, &file))
                .map_err(|e| format!("{}: {e}", file.display()))?;
            return Ok(id);
        }
        let start = Instant::now();
        loop {
            if let Some(id) = read_id(&file) {
                return Ok(id);
            }
            if start.elapsed() > ID_TIMEOUT {
                return Err(format!("{}: no unique id", file.display()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn read_id(path: &Path) -> Option<UniqueId> {
    Some(UniqueId(std::fs::read(path).ok()?.try_into().ok()?))
}
