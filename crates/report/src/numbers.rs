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

/// The starts of the latest operations, in ticks.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    starts: Map<Key, Vec<u64>>,
}

impl Numbers {
    /// Adds an operation; `None` if its communicator is unknown.
    pub(crate) fn note(
        &mut self,
        timeline: &Timeline<'_>,
        operation: &Operation,
    ) -> Option<OperationPosition> {
        let key = (operation.comm?, operation.peer.is_some());
        let start = timeline.event(operation.event).start.ticks;
        let starts = self.starts.entry(key).or_default();
        starts.push(start);
        if starts.len() >= 2 * LATEST {
            starts.sort_unstable();
            starts.drain(..LATEST);
        }
        Some(OperationPosition(key, start))
    }

    /// The number of an operation, after all were added; `None` if it is unknown.
    pub(crate) fn of(&self, timeline: &Timeline<'_>, place: OperationPosition) -> Option<u64> {
        let OperationPosition(key @ (comm, is_pair), start) = place;
        let progress = latest(timeline, timeline.comm(comm).index)?;
        if timeline.has_gaps() || progress.flags & progress_flags::PARTIAL != 0 {
            return None;
        }
        let starts = self.starts.get(&key)?;
        let is_kept = starts.len() < LATEST || starts.iter().min() <= Some(&start);
        let after = |ticks: u64| starts.iter().filter(|&&start| start > ticks).count() as u64;
        let counted = if is_pair { progress.p2p_enqueued } else { progress.enqueued };
        let number = (counted + after(progress.ticks)).checked_sub(after(start))?;
        (is_kept && number > 0).then_some(number)
    }
}

/// The latest heartbeat of a communicator in the recording.
fn latest(timeline: &Timeline<'_>, comm: u16) -> Option<Progress> {
    timeline.recording().heartbeats().iter().rev().find_map(|heartbeat| match heartbeat {
        Heartbeat::Progress(progress) if progress.comm == comm => Some(*progress),
        _ => None,
    })
}
