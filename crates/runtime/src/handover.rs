// SPDX-License-Identifier: Apache-2.0
//! Queues from one thread to another: ordered, bounded, and blocking only on short locks.

use crate::sys::lock::Lock;
use std::collections::VecDeque;

/// A queue between threads. Items that do not fit are returned and counted.
#[derive(Debug)]
pub(crate) struct Handover<T> {
    /// Maximum total weight of the queued items.
    limit: usize,
    queue: Lock<Queue<T>>,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    refused: u64,
}

impl<T> Handover<T> {
    /// An empty queue that takes items up to a weight of `limit` together.
    #[cfg(not(loom))]
    pub(crate) const fn new(limit: usize) -> Handover<T> {
        let queue = Queue { items: VecDeque::new(), weight: 0, refused: 0 };
        Handover { limit, queue: Lock::new(queue) }
    }

    /// [`Handover::new`] for the loom model, whose locks cannot be made in constants.
    #[cfg(loom)]
    pub(crate) fn new(limit: usize) -> Handover<T> {
        let queue = Queue { items: VecDeque::new(), weight: 0, refused: 0 };
        Handover { limit, queue: Lock::new(queue) }
    }

    /// Adds `item`. An item of weight 0 always fits.
    ///
    /// # Errors
    /// The item, if there is no room for its weight.
    pub(crate) fn put(&self, item: T, weight: usize) -> Result<(), T> {
        let mut queue = self.queue.lock();
        if weight > 0 && queue.weight.saturating_add(weight) > self.limit {
            queue.refused += 1;
            return Err(item);
        }
        queue.weight += weight;
        queue.items.push_back((item, weight));
        Ok(())
    }

    /// Removes the oldest item.
    pub(crate) fn next(&self) -> Option<T> {
        let mut queue = self.queue.lock();
        let (item, weight) = queue.items.pop_front()?;
        queue.weight -= weight;
        Some(item)
    }

    /// Removes the oldest item for which `is_wanted` is true.
    pub(crate) fn next_that(&self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        let mut queue = self.queue.lock();
        let at = queue.items.iter().position(|(item, _)| is_wanted(item))?;
        let (item, weight) = queue.items.remove(at)?;
        queue.weight -= weight;
        Some(item)
    }

    /// Makes `item` the oldest one again, without regard to the limit.
    pub(crate) fn put_back(&self, item: T, weight: usize) {
        let mut queue = self.queue.lock();
        queue.weight += weight;
        queue.items.push_front((item, weight));
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().items.len()
    }

    /// Removes all items.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut queue = self.queue.lock();
        queue.weight = 0;
        queue.items.drain(..).map(|(item, _)| item).collect()
    }

    /// True if no thread holds the queue's lock now.
    #[cfg(not(loom))]
    pub(crate) fn is_free(&self) -> bool {
        self.queue.is_free()
    }

    /// Number of items so far that did not fit.
    pub(crate) fn refused(&self) -> u64 {
        self.queue.lock().refused
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_given_back_and_counted() {
        let queue = Handover::new(10);
        assert_eq!((queue.put('a', 6), queue.put('b', 5)), (Ok(()), Err('b')));
        assert_eq!((queue.put('c', 4), queue.put('d', 0)), (Ok(()), Ok(())));
        assert_eq!((queue.refused(), queue.next()), (1, Some('a')));
        assert_eq!(queue.put('e', 6), Ok(()), "there is room again");
        assert_eq!(queue.next_that(|&item| item == 'd'), Some('d'));
        assert_eq!((queue.next_that(|&item| item == 'x'), queue.len()), (None, 2));
        queue.put_back('a', 6);
        assert_eq!(queue.put('f', 1), Err('f'), "what came back counts");
        assert_eq!(queue.take(), ['a', 'c', 'e']);
        assert_eq!(queue.next(), None);
        assert_eq!(queue.put('f', 10), Ok(()));
    }
}
