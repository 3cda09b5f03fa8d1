// SPDX-License-Identifier: Apache-2.0
/*!
Which events have no record, for the watchdog: what was lost must not look like an operation that
hangs, and one that was lost must not hide all others that do.

A ring of the latest [`CELLS`]. It is written where an event is lost, never where one is recorded. A
reader that comes too late learns that it did, not what it missed. Kinds that no operation waits for
are left out, so that the flood that fills a lane does not fill this ring.
*/

use crate::sync::{AtomicU64, Ordering};
use ncclscope_trace::{EventKind, Handle};

/// Events that are remembered.
pub const CELLS: usize = if cfg!(loom) { 2 } else { 1024 };
/// Handles are kept without their process bits, which have the code of what happened instead.
const CODE_SHIFT: u32 = 54;
/// The code of a stop; that of a start has the event's kind.
const STOP: u64 = 1 << 8;
/// Added to the kind of a start, which may be 0.
const START: u64 = 1 << 9;

/// An event that has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// An event of this kind started, of this parent.
    Start(EventKind, Handle),
    /// This event stopped.
    Stop(Handle),
}

/// The latest of them.
#[derive(Debug)]
pub struct Missed {
    turns: AtomicU64,
    /// 0 where it was taken, or is about to be written.
    cells: [AtomicU64; CELLS],
}

impl Missed {
    pub(crate) const fn new() -> Missed {
        Missed { turns: AtomicU64::new(0), cells: [const { AtomicU64::new(0) }; CELLS] }
    }

    /// An event of this process is lost. For any thread.
    pub(crate) fn put(&self, miss: Miss) {
        let (code, handle) = match miss {
            Miss::Start(kind, parent) if is_child(kind) => (START | kind as u64, parent),
            Miss::Stop(handle) if is_waited_for(handle.kind()) => (STOP, handle),
            _ => return,
        };
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let word = code << CODE_SHIFT | handle.0 & ((1 << CODE_SHIFT) - 1);
        self.cell(turn).store(word, Ordering::Release);
    }

    /// Puts what was lost since turn `seen` into `into`, up to the first that is being written;
    /// `process` are this process's bits. Returns false if some of it was written over. For one
    /// reader, which begins with 0.
    pub fn take(&self, seen: &mut u64, process: u64, into: &mut Vec<Miss>) -> bool {
        let turns = self.turns.load(Ordering::Relaxed);
        let oldest = turns.saturating_sub(CELLS as u64);
        let is_whole = *seen >= oldest;
        *seen = (*seen).max(oldest);
        while *seen < turns {
            let word = self.cell(*seen).swap(0, Ordering::Acquire);
            if word == 0 {
                break;
            }
            *seen += 1;
            let handle = word & ((1 << CODE_SHIFT) - 1);
            let handle = match handle {
                0 => Handle::NULL,
                bits => Handle(process << CODE_SHIFT | bits),
            };
            into.push(match word >> CODE_SHIFT {
                STOP => Miss::Stop(handle),
                kind => Miss::Start(EventKind::from_nibble(kind), handle),
            });
        }
        is_whole
    }

    fn cell(&self, turn: u64) -> &AtomicU64 {
        &self.cells[usize::try_from(turn % CELLS as u64).unwrap_or(0)]
    }
}

/// Whether an operation, or a call, is over only when such an event is.
const fn is_waited_for(kind: EventKind) -> bool {
    use EventKind::{
        CeBatch, CeColl, CeSync, Coll, GroupApi, KernelCh, KernelLaunch, P2p, ProxyOp,
    };
    matches!(
        kind,
        Coll | P2p | CeColl | CeSync | CeBatch | KernelCh | ProxyOp | GroupApi | KernelLaunch
    )
}

/// Whether an operation that shows no such event may be taken for one that waits for it.
const fn is_child(kind: EventKind) -> bool {
    matches!(kind, EventKind::KernelCh | EventKind::ProxyOp | EventKind::KernelLaunch)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn handle(number: u64) -> Handle {
        Handle::value(7, EventKind::KernelCh, 3, number)
    }

    #[test]
    fn what_is_lost_is_told_once_and_in_order() {
        let missed = Missed::new();
        let mut seen = 0;
        let mut take = |found: &mut Vec<Miss>| missed.take(&mut seen, 7, found);
        let mut found = Vec::new();
        assert!(take(&mut found) && found.is_empty());
        let parent = Handle::value(7, EventKind::Coll, 0, 9);
        let misses = [Miss::Start(EventKind::ProxyOp, parent), Miss::Stop(handle(1))];
        misses.into_iter().for_each(|miss| missed.put(miss));
        missed.put(Miss::Start(EventKind::Group, parent));
        missed.put(Miss::Stop(Handle::value(7, EventKind::NetPlugin, 0, 1)));
        assert!(take(&mut found));
        assert_eq!(found, misses, "nothing waits for the others");
        (0..CELLS as u64 + 3).for_each(|number| missed.put(Miss::Stop(handle(number))));
        found.clear();
        assert!(!take(&mut found), "three were written over");
        assert_eq!((found.len(), found[0]), (CELLS, Miss::Stop(handle(3))));
        assert!(take(&mut found), "which is told once");
    }

    #[test]
    fn writers_may_be_many_and_a_reader_takes_no_half() {
        let missed = &Missed::new();
        let writer = |first: u64| {
            for number in 0..20_000 {
                // Kind and handle belong together: a half of each shows.
                if number % 2 == 0 {
                    missed.put(Miss::Stop(handle(first + number)));
                } else {
                    let parent = Handle::value(7, EventKind::Coll, 1, number);
                    missed.put(Miss::Start(EventKind::ProxyOp, parent));
                }
            }
        };
        std::thread::scope(|scope| {
            let writers = [0, 1 << 30].map(|first| scope.spawn(move || writer(first)));
            let (mut seen, mut found) = (0, Vec::new());
            while !writers.iter().all(|writer| writer.is_finished()) {
                missed.take(&mut seen, 7, &mut found);
                for miss in found.drain(..) {
                    let is_whole = match miss {
                        Miss::Start(kind, parent) => {
                            kind == EventKind::ProxyOp && parent.kind() == EventKind::Coll
                        }
                        Miss::Stop(handle) => handle.kind() == EventKind::KernelCh,
                    };
                    assert!(is_whole, "{miss:?}");
                }
            }
        });
    }
}
