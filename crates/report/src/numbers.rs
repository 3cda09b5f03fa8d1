// SPDX-License-Identifier: Apache-2.0
//! The numbers of operations on their communicators, as the watchdog and `diagnose` count them.
//!
//! A recording need not hold a communicator's first operation. But once a second it holds how many
//! NCCL has enqueued by then, and an operation's number is that less those which started after it.

use ncclscope_operations::Timeline;
use ncclscope_operations::hash::Map;
use ncclscope_operations::operation::Operation;
use ncclscope_trace::progress::{Heartbeat, Progress, progress_flags};

/// Starts that are kept of a communicator: of an operation with more behind it the number is
/// unknown.
const LATEST: usize = 128;

/// The position of a communicator, and whether its sends and receives are meant.
type Key = (usize, bool);

/// Where an operation stands: its communicator and when it started, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(Key, u64);

/// The starts of the latest operations, in ticks.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    starts: Map<Key, Vec<u64>>,
}

impl Numbers {
    /// Notes an operation. One without a communicator has no place.
    pub(crate) fn note(&mut self, timeline: &Timeline<'_>, operation: &Operation) -> Option<Place> {
        let key = (operation.comm?, operation.peer.is_some());
        let start = timeline.event(operation.event).start.ticks;
        let starts = self.starts.entry(key).or_default();
        starts.push(start);
        if starts.len() >= 2 * LATEST {
            starts.sort_unstable();
            starts.drain(..LATEST);
        }
        Some(Place(key, start))
    }

    /// The number of the operation at a place, once all are noted.
    pub(crate) fn of(&self, timeline: &Timeline<'_>, place: Place) -> Option<u64> {
        let Place(key @ (comm, is_pair), start) = place;
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

/// What the recording says last of how far a communicator is.
fn latest(timeline: &Timeline<'_>, comm: u16) -> Option<Progress> {
    timeline.recording().heartbeats().iter().rev().find_map(|heartbeat| match heartbeat {
        Heartbeat::Progress(progress) if progress.comm == comm => Some(*progress),
        _ => None,
    })
}
