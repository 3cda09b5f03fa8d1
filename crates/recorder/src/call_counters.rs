// SPDX-License-Identifier: Apache-2.0
/*!
The number of operations of each communicator: counted in the callback, whether or not they are
recorded, so that all ranks of a job have the same number for a collective.

A communicator has one cell of 128 bytes, from [`watch`] to [`leave`]. There are [`CELLS`] cells; of
further communicators nothing is counted ([`refused`]). Counting uses no locked instruction. NCCL
takes calls for one communicator from one thread at a time (`ncclComm_t` is not thread-safe). It may
report what it enqueues on two threads at once, the caller's and, for captured graphs, CUDA's
callback thread: each has its own count.
*/

use crate::registry::thread;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use ncclscope_trace::progress::{CHECKPOINT_EVERY, roll};

/// Maximum number of communicators that are counted at the same time.
pub const CELLS: usize = PLACES - 1;
/// Cells in [`TABLE`]. Cell 0 is never assigned: calls of communicators without a cell count there.
const PLACES: usize = if cfg!(loom) { 4 } else { 2048 };
/// Maximum attempts of [`counts`] to read a cell that changes.
const TRIES: usize = if cfg!(loom) { 2 } else { 64 };

#[derive(Debug)]
#[repr(C, align(128))]
struct Cell {
    /// 1 while a communicator owns the cell, else 0.
    taken: AtomicU32,
    /// 1 once a call of the communicator was captured into a CUDA graph, else 0.
    captured: AtomicU32,
    api: AtomicU64,
    /// Hash after an even and after an odd number of calls. The one with the parity of `api` is
    /// stable; the next call writes the other.
    hash: [AtomicU64; 2],
    checkpoints: [AtomicU64; 4],
    p2p_api: AtomicU64,
    /// Identity of the thread that made the latest call.
    caller: AtomicU64,
    /// Operations enqueued by `caller`, and by other threads.
    enqueued: [AtomicU64; 2],
    p2p_enqueued: [AtomicU64; 2],
}

/// The counts of one communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Collectives that the application called.
    pub api: u64,
    /// Rolling hash of the `api` collectives.
    pub hash: u64,
    /// The hash after the latest four multiples of [`CHECKPOINT_EVERY`] collectives, newest first;
    /// 0 where there were fewer calls or the next call may be overwriting it.
    pub checkpoints: [u64; 4],
    /// Sends and receives that the application called.
    pub p2p_api: u64,
    /// Collectives that NCCL enqueued.
    pub enqueued: u64,
    /// Sends and receives that NCCL enqueued.
    pub p2p_enqueued: u64,
    /// A call was captured into a CUDA graph: `api` counts the capture once, `enqueued` each
    /// replay.
    pub is_captured: bool,
}

impl Counts {
    /// A number that grows with each call and each operation that NCCL enqueues.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.api + self.p2p_api + self.enqueued + self.p2p_enqueued
    }

    /// Number of collectives that the newest checkpoint covers; 0 before the first checkpoint.
    #[must_use]
    pub const fn checkpoint_at(&self) -> u64 {
        self.api / CHECKPOINT_EVERY * CHECKPOINT_EVERY
    }
}

/// The arguments of a collective that enter the hash.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// [`name_hash`](ncclscope_trace::progress::name_hash) of the function's name.
    pub func: u32,
    /// [`name_hash`](ncclscope_trace::progress::name_hash) of the datatype's name.
    pub datatype: u32,
    /// Root rank; 0 for a function without a root.
    pub root: i32,
    /// Number of elements.
    pub count: u64,
}

static TABLE: [Cell; PLACES] = [const { Cell::new() }; PLACES];
/// Byte offset in [`TABLE`] of each communicator's cell; 0 without a cell. A byte offset instead of
/// an index, and a [`cell`] without a branch, save five instructions in a callback.
static CELL_OF: [AtomicU32; 1 << 16] = [const { AtomicU32::new(0) }; 1 << 16];
/// The cell that was assigned last: the search for a free one starts behind it, so that a cell that
/// was just freed is reused last.
static LATEST: AtomicU32 = AtomicU32::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

impl Cell {
    const fn new() -> Cell {
        Cell {
            taken: AtomicU32::new(0),
            captured: AtomicU32::new(0),
            api: AtomicU64::new(0),
            hash: [const { AtomicU64::new(0) }; 2],
            checkpoints: [const { AtomicU64::new(0) }; 4],
            p2p_api: AtomicU64::new(0),
            caller: AtomicU64::new(0),
            enqueued: [const { AtomicU64::new(0) }; 2],
            p2p_enqueued: [const { AtomicU64::new(0) }; 2],
        }
    }

    #[inline(always)]
    fn called(&self, call: Call) {
        // Release: a reader that sees a value of this call must also see the `api` of the call
        // before, or it would take the value for that of an earlier call.
        let (relaxed, release) = (Ordering::Relaxed, Ordering::Release);
        let Call { func, datatype, root, count } = call;
        let before = self.api.load(relaxed);
        let last = parity(before);
        let hash = roll(self.hash[last].load(relaxed), func, datatype, root, count);
        let api = before + 1;
        self.hash[last ^ 1].store(hash, release);
        if api.is_multiple_of(CHECKPOINT_EVERY) {
            self.checkpoints[checkpoint(api)].store(hash, release);
        }
        self.caller.store(thread(), relaxed);
        self.api.store(api, release);
    }

    fn clear(&self) {
        self.captured.store(0, Ordering::Relaxed);
        [&self.api, &self.p2p_api, &self.caller]
            .into_iter()
            .chain(&self.hash)
            .chain(&self.checkpoints)
            .chain(&self.enqueued)
            .chain(&self.p2p_enqueued)
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }

    fn read(&self) -> Option<Counts> {
        let acquire = Ordering::Acquire;
        let api = self.api.load(acquire);
        // The next call may overwrite the oldest of the four checkpoints.
        let kept = if (api + 1).is_multiple_of(CHECKPOINT_EVERY) { 3 } else { 4 };
        let counts = Counts {
            api,
            hash: self.hash[parity(api)].load(acquire),
            checkpoints: core::array::from_fn(|back| {
                match api.checked_sub(back as u64 * CHECKPOINT_EVERY) {
                    Some(at) if back < kept => self.checkpoints[checkpoint(at)].load(acquire),
                    _ => 0,
                }
            }),
            p2p_api: self.p2p_api.load(acquire),
            enqueued: self.enqueued.iter().map(|count| count.load(acquire)).sum(),
            p2p_enqueued: self.p2p_enqueued.iter().map(|count| count.load(acquire)).sum(),
            is_captured: self.captured.load(acquire) != 0,
        };
        (self.api.load(Ordering::Relaxed) == api).then_some(counts)
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "one bit")]
const fn parity(api: u64) -> usize {
    api as usize & 1
}

/// Index of the checkpoint that covers `api` calls, rounded down to a multiple.
#[inline(always)]
const fn checkpoint(api: u64) -> usize {
    (api / CHECKPOINT_EVERY) as usize & 3
}

/// The cell of a communicator; without one, cell 0, whose counts are never reported.
#[inline(always)]
fn cell(comm: u16) -> &'static Cell {
    let start = CELL_OF[usize::from(comm)].load(Ordering::Relaxed) as usize;
    // SAFETY: the table holds 0 or what `watch`, its only writer, stored: the offset of a cell.
    let cell = unsafe { TABLE.as_ptr().byte_add(start) };
    // SAFETY: points to a cell of the static `TABLE`.
    unsafe { &*cell }
}

/// Starts counting for communicator `comm`, from zero. Call before its first callback. False if no
/// cell is free.
pub fn watch(comm: u16) -> bool {
    leave(comm);
    let latest = LATEST.load(Ordering::Relaxed) as usize;
    let mut places = (0..CELLS).map(|step| 1 + (latest + step) % CELLS);
    let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
    let take = |taken: &AtomicU32| {
        taken.load(relaxed) == 0 && taken.compare_exchange(0, 1, acquire, relaxed).is_ok()
    };
    let place = places.find(|&place| take(&TABLE[place].taken));
    let start = place.map(|place| (u32::try_from(place), u32::try_from(place * size_of::<Cell>())));
    let Some((Ok(place), Ok(start))) = start else {
        REFUSED.fetch_add(1, relaxed);
        return false;
    };
    TABLE[place as usize].clear();
    LATEST.store(place, relaxed);
    CELL_OF[usize::from(comm)].store(start, Ordering::Release);
    true
}

/// Frees the communicator's cell. Call after it was finalized and its counts were read for the last
/// time.
pub fn leave(comm: u16) {
    let start = CELL_OF[usize::from(comm)].swap(0, Ordering::Acquire) as usize;
    if start != 0 {
        TABLE[start / size_of::<Cell>()].taken.store(0, Ordering::Release);
    }
}

/// Number of communicators so far for which no cell was free.
#[must_use]
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Counts a collective that the application called.
#[inline(always)]
pub fn called(comm: u16, call: Call) {
    cell(comm).called(call);
}

/// Marks that the call counted last was captured into a CUDA graph.
#[inline(always)]
pub fn captured(comm: u16) {
    cell(comm).captured.store(1, Ordering::Relaxed);
}

/// Counts a send or a receive that the application called.
#[inline(always)]
pub fn called_p2p(comm: u16) {
    let cell = cell(comm);
    cell.caller.store(thread(), Ordering::Relaxed);
    bump(&cell.p2p_api);
}

/// Counts a collective that NCCL enqueued.
#[inline(always)]
pub fn enqueued(comm: u16) {
    let cell = cell(comm);
    bump(&cell.enqueued[usize::from(cell.caller.load(Ordering::Relaxed) != thread())]);
}

/// Counts a send or a receive that NCCL enqueued.
#[inline(always)]
pub fn enqueued_p2p(comm: u16) {
    let cell = cell(comm);
    bump(&cell.p2p_enqueued[usize::from(cell.caller.load(Ordering::Relaxed) != thread())]);
}

#[inline(always)]
fn bump(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Address range of the hashes of cell `place`, for a model's mutant.
#[cfg(loom)]
#[must_use]
pub fn hashes_of(place: usize) -> core::ops::Range<usize> {
    let hashes = &TABLE[place].hash;
    let at = core::ptr::from_ref(hashes).addr();
    at..at + size_of_val(hashes)
}

/// The counts of a communicator; `None` if it has no cell, or if a call changed them during each of
/// the attempts to read them.
#[must_use]
pub fn counts(comm: u16) -> Option<Counts> {
    let cell = Some(cell(comm)).filter(|cell| !core::ptr::eq(*cell, &TABLE[0]))?;
    (0..TRIES).find_map(|_| cell.read())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use ncclscope_trace::progress::name_hash;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Serializes the tests, because one of them takes all cells.
    #[expect(clippy::disallowed_types, reason = "tests may block")]
    static BOARD_IS_MINE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    const SUM: Call = Call { func: name_hash(b"AllReduce"), datatype: 7, root: 0, count: 5 };

    #[test]
    fn counts_and_checkpoints_are_those_of_the_calls() {
        let _board = BOARD_IS_MINE.lock();
        let comm = 700;
        called(comm, SUM);
        assert_eq!(counts(comm), None, "no thread watches it");
        assert!(watch(comm));
        let mut hash = 0;
        let mut at = Vec::new();
        for n in 1..=300 {
            called(comm, SUM);
            hash = roll(hash, SUM.func, SUM.datatype, SUM.root, SUM.count);
            if n % CHECKPOINT_EVERY == 0 {
                at.insert(0, hash);
            }
        }
        enqueued(comm);
        called_p2p(comm);
        enqueued_p2p(comm);
        enqueued_p2p(comm);
        let counts_now = counts(comm).unwrap();
        assert_eq!((counts_now.api, counts_now.hash), (300, hash));
        assert_eq!(counts_now.checkpoints.as_slice(), at);
        assert_eq!(counts_now.checkpoint_at(), 256);
        assert_eq!((counts_now.p2p_api, counts_now.enqueued, counts_now.p2p_enqueued), (1, 1, 2));
        leave(comm);
        called(comm, SUM);
        assert_eq!(counts(comm), None);
    }

    #[test]
    fn each_living_communicator_has_a_cell_of_its_own() {
        let _board = BOARD_IS_MINE.lock();
        let (first, lives) = (10_000, u16::try_from(CELLS - 8).unwrap());
        for comm in 0..lives {
            assert!(watch(first + comm), "{comm}");
            (0..=comm % 7).for_each(|_| called(first + comm, SUM));
        }
        // Far more communicators than cells, one after another: those that live keep their cells.
        for round in 0..3 * lives {
            assert!(watch(9_000), "{round}");
            called(9_000, SUM);
            assert_eq!(counts(9_000).unwrap().api, 1);
            leave(9_000);
        }
        for comm in 0..lives {
            assert_eq!(counts(first + comm).unwrap().api, u64::from(comm % 7) + 1, "{comm}");
        }
        let before = refused();
        let more = (0..9).filter(|&more| watch(20_000 + more)).count();
        assert!(more < 9, "there are no more");
        assert_eq!(refused() - before, 9 - more as u64);
        assert_eq!(counts(first).unwrap().api, 1, "nothing is taken from the one that has it");
        (0..9).for_each(|more| leave(20_000 + more));
        (0..lives).for_each(|comm| leave(first + comm));
    }

    #[test]
    fn the_count_enters_the_hash_only_where_ranks_must_agree_on_it() {
        let _board = BOARD_IS_MINE.lock();
        let hash_of = |comm, name: &[u8], count| {
            assert!(watch(comm));
            called(comm, Call { func: name_hash(name), count, ..SUM });
            counts(comm).unwrap().hash
        };
        assert_ne!(hash_of(701, b"AllReduce", 5), hash_of(701, b"AllReduce", 6));
        assert_eq!(hash_of(701, b"AlltoAll", 5), hash_of(701, b"AlltoAll", 6));
    }

    #[test]
    fn a_reader_never_sees_half_a_call() {
        let _board = BOARD_IS_MINE.lock();
        let comm = 702;
        assert!(watch(comm));
        let after: Vec<u64> = std::iter::successors(Some(0), |&hash| {
            Some(roll(hash, SUM.func, SUM.datatype, SUM.root, SUM.count))
        })
        .take(20_001)
        .collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..20_000).for_each(|_| called(comm, SUM));
                over.store(true, Relaxed);
            });
            while !over.load(Relaxed) {
                if let Some(counts) = counts(comm) {
                    assert_eq!(after[usize::try_from(counts.api).unwrap()], counts.hash);
                }
            }
        });
        assert_eq!(counts(comm).unwrap().api, 20_000);
    }
}
