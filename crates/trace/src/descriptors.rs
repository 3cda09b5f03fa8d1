// SPDX-License-Identifier: Apache-2.0
/*!
How many recordings may be open at a time, by the process's limit of descriptors (`ulimit -n`).

A run may have more recordings than a process may have descriptors, and a tool that skips those
beyond the limit gives another answer than one with a higher limit.
*/

use rustix::process::{Resource, getrlimit};
use std::sync::OnceLock;

/// The most recordings that keep their descriptor under the usual limit, and whatever the limit. To
/// open one again for each block takes as long as to read it.
const FEW_HELD: usize = 64;
const MOST_HELD: usize = 8192;
const USUAL_LIMIT: usize = 1024;
/// Descriptors that reading one recording takes: its file, the same again, and its lanes.
const READER: usize = 3;
/// Descriptors that stay for all else: an output, a directory, a file of /proc.
const ELSE: usize = 4;
/// Descriptors that a process has where the system does not say how many.
const USUAL: usize = 16;

/// How many descriptors this process could still open when it was first asked: before it opened a
/// recording.
#[must_use]
pub fn room() -> usize {
    static ROOM: OnceLock<usize> = OnceLock::new();
    *ROOM.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        // The directory that is read here is one of them.
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
