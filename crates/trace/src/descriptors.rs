// SPDX-License-Identifier: Apache-2.0
/*!
The number of recordings that may be open at a time under the process's limit of file descriptors
(`ulimit -n`).

A run may have more recordings than a process may have descriptors. A tool must not skip recordings
beyond the limit, because its answer would then depend on the limit.
*/

use rustix::process::{Resource, getrlimit};
use std::sync::OnceLock;

/// Most recordings that keep their descriptor under the usual limit (`FEW_HELD`), and under any
/// limit (`MOST_HELD`). Opening a file again for each block takes as long as reading the block.
const FEW_HELD: usize = 64;
const MOST_HELD: usize = 8192;
const USUAL_LIMIT: usize = 1024;
/// Descriptors that are needed to read one recording: its file, a duplicate, and its lanes file.
const READER: usize = 3;
/// Descriptors reserved for other files: an output, a directory, a file of /proc.
const ELSE: usize = 4;
/// Assumed number of open descriptors if the system does not report it.
const USUAL: usize = 16;

/// Number of descriptors that this process could still open at the first call, which comes before
/// it opens a recording.
#[must_use]
pub fn room() -> usize {
    static ROOM: OnceLock<usize> = OnceLock::new();
    *ROOM.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        // The open directory counts itself, so one is subtracted.
        let used = std::fs::read_dir("/proc/self/fd").map_or(USUAL, |all| all.count().max(1) - 1);
        limit.saturating_sub(used)
    })
}

/// How many recordings may be read at the same time.
#[must_use]
pub fn readers_at_most() -> usize {
    readers_in(room())
}

/// How many recordings may keep their descriptor between reads.
pub(crate) fn held_at_most() -> usize {
    held_in(room())
}

fn held_in(room: usize) -> usize {
    let few = (room.saturating_sub(ELSE) / 2).min(FEW_HELD);
    few.max(room.saturating_sub(USUAL_LIMIT) / 2).min(MOST_HELD)
}

fn readers_in(room: usize) -> usize {
    (room.saturating_sub(ELSE + held_in(room)) / READER).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_and_what_stays_open_fit_into_the_limit() {
        for room in 8..4000 {
            let (held, readers) = (held_in(room), readers_in(room));
            assert!(held + readers * READER <= room, "{room}: {held} held, {readers} readers");
        }
        assert_eq!((held_in(usize::MAX), held_in(0), readers_in(0)), (MOST_HELD, 0, 1));
        assert!(readers_in(1020) > 256, "the usual limit takes nothing from a large machine");
        assert_eq!([held_in(1020), held_in(20_000)], [FEW_HELD, MOST_HELD]);
        assert!(room() > 8);
    }
}
