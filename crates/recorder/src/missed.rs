// SPDX-License-Identifier: Apache-2.0
/*!
The latest events without a record, for the watchdog: a lost event must not look like an operation
that hangs, and must not hide other operations that do.

This is a ring of [`CELLS`] cells. It is written when an event is lost, never when one is recorded.
A late reader learns that it missed cells, but not which. A cell contains the lap in which it was
written, so that a reader or writer that is overtaken by a lap does not confuse two entries. Kinds
that no operation waits for are omitted, so that a flood of them, which fills a lane, does not fill
this ring.
*/

use crate::sync::{AtomicU64, Ordering};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::{EventKind, Handle};

/// Number of lost events that are remembered.
pub const CELLS: usize = if cfg!(loom) { 2 } else { 1024 };
/// The bits of a handle above this one, its process bits, are replaced by the code and the lap.
const CODE_SHIFT: u32 = 54;
const CODE_BITS: u32 = 5;
/// Code of a stop. The code of a start is the event's kind plus 1, so that no word is 0.
const STOP: u64 = (1 << CODE_BITS) - 1;
const _: () = assert!((KINDS as u64) < STOP);
const LAP_SHIFT: u32 = CODE_SHIFT + CODE_BITS;
/// Number of laps that a cell's word distinguishes.
const LAPS: u64 = if cfg!(loom) { 2 } else { 32 };
/// Maximum calls of [`Missed::take`] that wait for a writer which has taken a turn but not yet
/// written its cell.
const MOST_WAITS: u32 = if cfg!(loom) { 1 } else { 8 };

/// A lost start or stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// An event of this kind with this parent started.
    Start(EventKind, Handle),
    /// The event with this handle stopped.
    Stop(Handle),
}

impl Miss {
    /// True if the loss could make an operation look hung or finished. Other losses are not kept.
    pub(crate) const fn is_kept(self) -> bool {
        match self {
            Miss::Start(kind, _) => is_child(kind),
            Miss::Stop(handle) => is_waited_for(handle.kind()),
        }
    }
}

/// The latest lost events.
#[derive(Debug)]
pub struct Missed {
    turns: AtomicU64,
    /// The words of the events; 0 in a cell that was never used.
    cells: [AtomicU64; CELLS],
}

/// The position of the only reader.
#[derive(Debug, Default)]
pub struct ReadPosition {
    turn: u64,
    /// Number of calls that waited for this turn.
    waits: u32,
}

impl Default for Missed {
    fn default() -> Missed {
        Missed::new()
    }
}

impl Missed {
    /// An empty ring.
    #[must_use]
    pub const fn new() -> Missed {
        Missed { turns: AtomicU64::new(0), cells: [const { AtomicU64::new(0) }; CELLS] }
    }

    /// Remembers a lost event of this process. May be called on any thread.
    pub fn put(&self, miss: Miss) {
        if !miss.is_kept() {
            return;
        }
        let (code, handle) = match miss {
            Miss::Start(kind, parent) => (kind as u64 + 1, parent),
            Miss::Stop(handle) => (STOP, handle),
        };
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let handle = handle.0 & ((1 << CODE_SHIFT) - 1);
        let word = lap(turn) << LAP_SHIFT | code << CODE_SHIFT | handle;
        self.cell(turn).store(word, Ordering::Release);
    }

    /// Appends the events lost since `at` to `into`, up to the first one that is still being
    /// written. `process` are the process bits of the handles. Returns false if events were
    /// overwritten, or if a writer did not finish within a few calls.
    pub fn take(&self, at: &mut ReadPosition, process: u64, into: &mut Vec<Miss>) -> bool {
        let mut is_whole = true;
        let turns = self.turns.load(Ordering::Relaxed);
        while at.turn < turns {
            let word = self.cell(at.turn).load(Ordering::Acquire);
            // Loaded after the cell: if the cell was written in a later turn, this load sees that
            // turn.
            let oldest = self.turns.load(Ordering::Relaxed).saturating_sub(CELLS as u64);
            if at.turn < oldest {
                *at = ReadPosition { turn: oldest, waits: 0 };
                is_whole = false;
                continue;
            }
            let is_written = word != 0 && word >> LAP_SHIFT == lap(at.turn);
            if is_written {
                into.push(miss(word, process));
            } else if at.waits < MOST_WAITS {
                at.waits += 1;
                break;
            } else {
                // The writer is too late, or a writer that is a lap late has overwritten the cell.
                is_whole = false;
            }
            *at = ReadPosition { turn: at.turn + 1, waits: 0 };
        }
        is_whole
    }

    fn cell(&self, turn: u64) -> &AtomicU64 {
        &self.cells[usize::try_from(turn % CELLS as u64).unwrap_or(0)]
    }
}

const fn lap(turn: u64) -> u64 {
    turn / CELLS as u64 % LAPS
}

/// Decodes the word of a cell.
fn miss(word: u64, process: u64) -> Miss {
    let handle = match word & ((1 << CODE_SHIFT) - 1) {
        0 => Handle::NULL,
        bits => Handle(process << CODE_SHIFT | bits),
    };
    match word >> CODE_SHIFT & ((1 << CODE_BITS) - 1) {
        STOP => Miss::Stop(handle),
        code => Miss::Start(EventKind::from_low_bits(code - 1), handle),
    }
}

/// True for kinds whose stop an operation or a call needs in order to be over.
const fn is_waited_for(kind: EventKind) -> bool {
    use EventKind::{
        CeBatch, CeColl, CeSync, Coll, GroupApi, KernelCh, KernelLaunch, P2p, ProxyOp,
    };
    matches!(
        kind,
        Coll | P2p | CeColl | CeSync | CeBatch | KernelCh | ProxyOp | GroupApi | KernelLaunch
    )
}

/// True for kinds of children without which an operation may look as if it still waited for them.
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
        let mut place = ReadPosition::default();
        let mut take = |found: &mut Vec<Miss>| missed.take(&mut place, 7, found);
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
        assert!(take(&mut found), "it is reported once");
    }

    /// A writer is suspended between taking its turn and writing its cell, and resumes a lap later.
    #[test]
    fn a_writer_that_is_late_blinds_the_reader_for_a_few_calls_only() {
        let missed = Missed::new();
        let (mut place, mut found) = (ReadPosition::default(), Vec::new());
        let late = missed.turns.fetch_add(1, Ordering::Relaxed);
        missed.put(Miss::Stop(handle(1)));
        (0..MOST_WAITS).for_each(|_| assert!(missed.take(&mut place, 7, &mut found)));
        assert_eq!(found, [], "it may still write");
        assert!(!missed.take(&mut place, 7, &mut found), "it is not waited for any longer");
        assert_eq!(found, [Miss::Stop(handle(1))]);
        (1..CELLS as u64).for_each(|number| missed.put(Miss::Stop(handle(number))));
        let word = lap(late) << LAP_SHIFT | STOP << CODE_SHIFT | 5;
        missed.cell(late).store(word, Ordering::Release);
        missed.put(Miss::Stop(handle(9)));
        found.clear();
        let mut took = || missed.take(&mut place, 7, &mut found);
        (0..MOST_WAITS).for_each(|_| assert!(took()));
        assert!(!took(), "what was written over is not known");
        let stops = (1..CELLS as u64 - 1).chain([9]).map(|number| Miss::Stop(handle(number)));
        assert_eq!(found, stops.collect::<Vec<_>>());
    }

    #[test]
    fn writers_may_be_many_and_a_reader_takes_no_half() {
        let missed = &Missed::new();
        let writer = |first: u64| {
            for number in 0..20_000 {
                // Kind and handle belong together, so that a mixture of two words is detected.
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
            let (mut place, mut found) = (ReadPosition::default(), Vec::new());
            while !writers.iter().all(|writer| writer.is_finished()) {
                missed.take(&mut place, 7, &mut found);
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
