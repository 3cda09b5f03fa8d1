// SPDX-License-Identifier: Apache-2.0
/*!
The timelines of a run. They are needed twice: to find the steps that two recordings share, and then
to show each process. Timelines are kept for the second use up to a limit, so the records of an
ordinary run are decoded once. In a larger run the other timelines are read again.
*/

use ncclscope_operations::{Declared, Filter, Selection, Timeline};
use ncclscope_trace::Recording;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most records of kept timelines, in all recordings together: about 80 MB.
const ROOM: u64 = 1 << 20;

/// The recordings of a run to show, and the filter.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'r> {
    /// The recordings.
    pub recordings: &'r [Recording],
    /// The filter, and the facts of the recordings that it needs; `None` shows all.
    pub filter: Option<(&'r Filter, &'r Declared)>,
}

impl<'r, T: AsRef<[Recording]> + ?Sized> From<&'r T> for Shown<'r> {
    fn from(recordings: &'r T) -> Shown<'r> {
        Shown { recordings: recordings.as_ref(), filter: None }
    }
}

impl Shown<'_> {
    /// The selection for the recording at an index.
    pub(crate) fn selection(&self, at: usize) -> Selection {
        let of =
            |(filter, declared): (&Filter, &Declared)| filter.of(&self.recordings[at], declared);
        self.filter.map(of).unwrap_or_default()
    }
}

/// The timelines of recordings, with their steps.
#[derive(Debug)]
pub(crate) struct Timelines<'r> {
    shown: Shown<'r>,
    kept: Vec<Mutex<Option<Timeline<'r>>>>,
    /// Number of records that may still be kept.
    room: AtomicU64,
}

impl<'r> Timelines<'r> {
    pub(crate) fn new(shown: Shown<'r>) -> Timelines<'r> {
        Timelines::with_room(shown, ROOM)
    }

    fn with_room(shown: Shown<'r>, room: u64) -> Timelines<'r> {
        let kept = shown.recordings.iter().map(|_| Mutex::default()).collect();
        Timelines { shown, kept, room: AtomicU64::new(room) }
    }

    /// The selection for the timeline at an index.
    pub(crate) fn selection(&self, at: usize) -> Selection {
        self.shown.selection(at)
    }

    pub(crate) fn len(&self) -> usize {
        self.shown.recordings.len()
    }

    /// Passes the timeline at an index to `to`, and keeps it for [`Timelines::take`] if there is
    /// room.
    pub(crate) fn show(&self, at: usize, to: impl FnOnce(&Timeline<'r>)) {
        let timeline = self.take(at);
        to(&timeline);
        let records = timeline.records();
        let take = |room: u64| room.checked_sub(records);
        if self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            *self.kept(at) = Some(timeline);
        }
    }

    /// The timeline at an index: the kept one, or read again.
    pub(crate) fn take(&self, at: usize) -> Timeline<'r> {
        let kept = self.kept(at).take();
        kept.unwrap_or_else(|| Timeline::read(&self.shown.recordings[at], true))
    }

    fn kept(&self, at: usize) -> MutexGuard<'_, Option<Timeline<'r>>> {
        self.kept[at].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scripts::{Call, Process};

    #[test]
    fn what_finds_no_room_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let open = |rank| {
            let mut process = Process::new(rank, 2);
            process.collective(Call::ALL_REDUCE);
            Recording::open(&process.write(dir.path()).unwrap()).unwrap()
        };
        let recordings = [0, 1].map(open);
        let records = Timeline::read(&recordings[0], true).records();
        let timelines = Timelines::with_room((&recordings).into(), records + 1);
        let mut events = Vec::new();
        (0..2).for_each(|at| timelines.show(at, |timeline| events.push(timeline.events().count())));
        let is_kept = |at| timelines.kept(at).is_some();
        assert_eq!([is_kept(0), is_kept(1)], [true, false]);
        assert_eq!([0, 1].map(|at| timelines.take(at).events().count()), *events);
        assert!(!is_kept(0));
    }
}
