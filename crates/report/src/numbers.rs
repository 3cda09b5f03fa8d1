// SPDX-License-Identifier: Apache-2.0
//! Finds the numbers of operations on their communicators, as the watchdog and `diagnose` count
//! them.
//!
//! A recording may lack a communicator's first operations. But once a second it has the number of
//! operations that NCCL had enqueued. An operation's number is that count minus the operations that
//! started after it.

use ncclscope_operations::Timeline;
use ncclscope_operations::hash::Map;
use ncclscope_operations::operation::Operation;
use ncclscope_trace::progress::{Heartbeat, Progress, progress_flags};

/// Number of starts that are kept per communicator. The number of an operation with more operations
/// after it is unknown.
const LATEST: usize = 128;

/// The position of a communicator, and whether the key is for its sends and receives.
type Key = (usize, bool);

/// An operation's key, and its start in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationPosition(Key, u64);

/// The operations of a key.
#[derive(Debug, Default)]
struct Starts {
    /// The communicator's latest heartbeat.
    progress: Option<Progress>,
    /// Number of operations that started after it.
    after: u64,
    /// The latest starts, in ticks.
    latest: Vec<u64>,
    /// The latest start that is not in `latest` any more; 0 if there is none.
    dropped: u64,
}

/// The starts of operations.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    starts: Map<Key, Starts>,
}

impl Numbers {
    /// Adds an operation; `None` if its communicator is unknown.
    pub(crate) fn note(
        &mut self,
        timeline: &Timeline<'_>,
        operation: &Operation,
    ) -> Option<OperationPosition> {
        let key @ (comm, _) = (operation.comm?, operation.peer.is_some());
        let start = timeline.event(operation.event).start.ticks;
        let starts = self.starts.entry(key).or_insert_with(|| Starts {
            progress: latest(timeline, timeline.comm(comm).index),
            ..Starts::default()
        });
        starts.add(start);
        Some(OperationPosition(key, start))
    }

    /// The number of an operation, after all were added; `None` if it is unknown.
    pub(crate) fn of(&self, timeline: &Timeline<'_>, place: OperationPosition) -> Option<u64> {
        let OperationPosition(key @ (_, is_pair), start) = place;
        let starts = self.starts.get(&key)?;
        let progress = starts.progress?;
        if timeline.has_gaps() || progress.flags & progress_flags::PARTIAL != 0 {
            return None;
        }
        let counted = if is_pair { progress.p2p_enqueued } else { progress.enqueued };
        let number = (counted + starts.after).checked_sub(starts.later_than(start)?)?;
        (number > 0).then_some(number)
    }
}

impl Starts {
    fn add(&mut self, start: u64) {
        self.after += u64::from(self.progress.is_some_and(|progress| start > progress.ticks));
        self.latest.push(start);
        if self.latest.len() >= 2 * LATEST {
            self.latest.sort_unstable();
            let dropped = self.latest.drain(..LATEST).next_back();
            self.dropped = self.dropped.max(dropped.unwrap_or(0));
        }
    }

    /// Number of operations that started after `start`; `None` if these are too many.
    fn later_than(&self, start: u64) -> Option<u64> {
        let later = self.latest.iter().filter(|&&other| other > start).count() as u64;
        (start > self.dropped).then_some(later)
    }
}

/// The latest heartbeat of a communicator in the recording.
fn latest(timeline: &Timeline<'_>, comm: u16) -> Option<Progress> {
    timeline.recording().heartbeats().iter().rev().find_map(|heartbeat| match heartbeat {
        Heartbeat::Progress(progress) if progress.comm == comm => Some(*progress),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(all: impl IntoIterator<Item = u64>) -> Starts {
        let progress = Some(Progress { ticks: 100, enqueued: 7, ..Progress::default() });
        let mut starts = Starts { progress, ..Starts::default() };
        all.into_iter().for_each(|start| starts.add(start));
        starts
    }

    #[test]
    fn all_operations_after_the_heartbeat_count_however_many_there_are() {
        let starts = starts(90..1_101);
        assert_eq!((starts.after, starts.later_than(1_000)), (1_000, Some(100)));
        assert!(starts.latest.len() < 2 * LATEST);
    }

    /// An operation that stays open is added after all those that started later.
    #[test]
    fn the_number_of_an_operation_with_very_many_after_it_is_unknown() {
        let few = starts((150..250).chain([120]));
        assert_eq!(few.later_than(120), Some(100));
        let many = starts((150..1_150).chain([120]));
        assert_eq!(many.later_than(120), None);
    }
}
