// SPDX-License-Identifier: Apache-2.0
/*!
Caches the last block of a lane, which is needed twice: for the latest time stamp of a recording,
and for its records. The first caller decodes it.

This module knows neither blocks nor records: the caller passes what it decoded.
*/

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last block of a lane, with records `R`.
#[derive(Debug)]
pub(crate) struct LastBlock<R>(Mutex<State<R>>);

#[derive(Debug)]
enum State<R> {
    Unread,
    /// Decoded for its latest time stamp, in ticks. The records wait for their first reader.
    Kept(Vec<R>, u64),
    /// Its records were read. This is the latest of their time stamps.
    Read(u64),
}

impl<R> Default for LastBlock<R> {
    fn default() -> LastBlock<R> {
        LastBlock(Mutex::new(State::Unread))
    }
}

impl<R> LastBlock<R> {
    /// The latest time stamp of its records, in ticks. If it is not known, `decode` gives the
    /// records, and it.
    pub(crate) fn latest(&self, decode: impl FnOnce() -> (Vec<R>, u64)) -> u64 {
        let mut state = self.state();
        match *state {
            State::Kept(_, ticks) | State::Read(ticks) => ticks,
            State::Unread => {
                let (records, ticks) = decode();
                *state = State::Kept(records, ticks);
                ticks
            }
        }
    }

    /// Its records for their first reader, if they are decoded.
    pub(crate) fn take(&self) -> Option<Vec<R>> {
        let mut state = self.state();
        let State::Kept(records, ticks) = &mut *state else { return None };
        let (records, ticks) = (std::mem::take(records), *ticks);
        *state = State::Read(ticks);
        Some(records)
    }

    /// A reader has decoded its records, whose latest time stamp is `ticks`.
    pub(crate) fn was_read(&self, ticks: u64) {
        *self.state() = State::Read(ticks);
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_decodes() {
        let never = || unreachable!("it is decoded");
        let asked_first = LastBlock::default();
        assert_eq!(asked_first.latest(|| (vec!["a", "b"], 7)), 7);
        assert_eq!(asked_first.take(), Some(vec!["a", "b"]));
        assert_eq!(asked_first.take(), None);
        assert_eq!(asked_first.latest(never), 7);
        let read_first: LastBlock<&str> = LastBlock::default();
        assert_eq!(read_first.take(), None);
        read_first.was_read(9);
        assert_eq!(read_first.latest(never), 9);
    }
}
