// SPDX-License-Identifier: Apache-2.0
/*!
A lane: one thread's ring of words, with one producer and one consumer.

# Positions

A position counts the words ever pushed, and never goes back; the word at position `n` lies at index
`n` modulo [`RING_WORDS`]. Two positions describe the ring:

```text
            tail                       head              tail + RING_WORDS
   free      |   records to be taken    |       free         |
-------------+--------------------------+--------------------+----------
             consumer stores            producer stores
```

What lies between `tail` and `head` belongs to the consumer, the rest to the producer. Positions do
not wrap around in the life of a process (2^64 words), so that full and empty rings differ without a
spare word, and so that blocks of a recording can say which words they hold: a reader that finds
words both in a block and in the lane of a killed process takes them once.

# Publication

The producer stores the words of a record one by one (relaxed), then `head` (release). The consumer
loads `head` (acquire), and then sees all words below it completely. The other way around, the
consumer reads words, then stores `tail` (release), and the producer loads `tail` (acquire) before
it stores over them. So no record is ever seen in part. The words are atomics nevertheless: relaxed
loads and stores cost nothing, and this way nothing here is `unsafe`.

A record is pushed whole or not at all. A SIGKILL may come between the words and `head`: then the
record was not pushed, and a reader of the lanes file does not find it.

# What a push costs

Nothing is read-modified-written: `head` has one writer, and so has `tail` except in the rare case
below, and a locked instruction would cost more than the rest of the callback. The producer does not
look at `tail`, whose cache line the consumer's core holds, at each push: `limit` is the position up
to which it may write without a look. Only if a record would pass it, about once per round,
`has_room` computes it anew. `head` and `limit` share a cache line that no other core writes to,
`tail` has its own.

A record of N words, of which N is a constant, is stored without a loop if it does not lie across
the ring's end (`Lane::room`); other records are stored word by word (`Lane::push`).

# When the ring is full

The newest record is dropped and counted by its kind, for two reasons: the caller must not wait, and
the producer cannot make the consumer forget older ones. A lost start is counted apart from a lost
stop or state of an event that was recorded.

`tail` is not the position up to which the consumer has read, but that up to which the words are
stored elsewhere: the drain thread copies words and keeps its own position, the writer thread moves
`tail` once they are in the file. If the file system hangs, the drain thread moves it earlier; the
further position counts ([`LaneHeader::take_until`]).

# A ring that grows

A ring of 1 MiB for each possible thread would take too much memory. A ring therefore begins small:
only its first [`STARTER_WORDS`] are committed memory. `memory` is the position up to which words
may be stored, at first the end of that part, and `limit` never exceeds it. A lane that reaches it
before the drain thread has committed the rest loses records like a full one. Once the rest is
committed, `memory` is `u64::MAX`.
*/

use crate::sync::{AtomicU32, AtomicU64, Hint, Ordering};
use ncclscope_trace::EventKind;
use ncclscope_trace::kind::{KINDS, MOST_KINDS};
use ncclscope_trace::layout::{LANE_STRIDE, RING_BYTES};
use ncclscope_trace::record::Sink;
use ncclscope_trace::scratch::lane as offsets;

/// Words of a ring; few in a loom model.
pub const RING_WORDS: u64 = RING_LEN as u64;
const RING_LEN: usize = if cfg!(loom) { 32 } else { RING_BYTES / 8 };
const MASK: u64 = RING_WORDS - 1;
const _: () = assert!(RING_WORDS.is_power_of_two());
/// Bytes at the start of a ring that are committed from the beginning.
pub const STARTER_BYTES: usize = 128 << 10;
/// Words at the start of a ring that are committed from the beginning.
pub const STARTER_WORDS: u64 = if cfg!(loom) { 16 } else { (STARTER_BYTES / 8) as u64 };
const _: () = assert!(STARTER_BYTES < RING_BYTES && STARTER_BYTES.is_multiple_of(4096));

/// The words of a ring.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Ring([AtomicU64; RING_BYTES / 8]);

impl Ring {
    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        // The mask keeps the index below the array's length; the compiler sees it too.
        &self.0[(position & MASK) as usize]
    }

    /// `len` consecutive words; `None` if they lie across the ring's end.
    #[inline(always)]
    fn run(&self, position: u64, len: usize) -> Option<&[AtomicU64]> {
        let first = (position & MASK) as usize;
        self.0[..RING_LEN].get(first..first + len)
    }

    /// The words of a range of positions (at most a whole ring), in order, as two slices: up to the
    /// ring's end, and from its start.
    fn range(&self, range: core::ops::Range<u64>) -> (&[AtomicU64], &[AtomicU64]) {
        let first = (range.start & MASK) as usize;
        let len = range.end.saturating_sub(range.start).min(RING_WORDS) as usize;
        let (start, end) = self.0[..RING_LEN].split_at(first);
        match end.get(..len) {
            Some(words) => (words, &[]),
            None => (end, &start[..len - end.len()]),
        }
    }
}

/// A lane's header; byte offsets are those of [`ncclscope_trace::scratch::lane`].
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LaneHeader {
    /// Number of claims and releases of the lane: odd while a thread holds it.
    state: AtomicU32,
    kinds: AtomicU32,
    /// System id of the thread that holds the lane, or held it last.
    thread: AtomicU32,
    /// Value of `state` when `thread` was written.
    named: AtomicU32,
    _0: [u32; 12],
    // The producer's cache line.
    head: AtomicU64,
    sequence: AtomicU64,
    /// Position up to which the producer may write without a look at `tail`.
    limit: AtomicU64,
    free_slot: AtomicU32,
    next_slot: AtomicU32,
    last_slot: AtomicU32,
    /// Rest of a list of abandoned slots that the lane's thread took from `abandoned_slots`.
    abandoned_rest: AtomicU32,
    /// The identity of the thread that holds the lane; 0 while none does.
    holder: AtomicU64,
    _2: [u64; 2],
    // Lists that other threads write. `returned_slots`: slots of ProxyOps that they stopped.
    returned_slots: AtomicU32,
    /// Slots of ProxyOps that NCCL will not stop, see [`crate::reclaim`].
    abandoned_slots: AtomicU32,
    _3: [u32; 14],
    // The consumer's cache line.
    tail: AtomicU64,
    /// Position up to which the ring is committed memory; `u64::MAX` once all of it is.
    memory: AtomicU64,
    /// Number of words at the ring's end that are private memory, which readers of the lanes file
    /// do not see.
    hidden: AtomicU64,
    _4: [u64; 5],
    lost: [AtomicU64; KINDS],
    _5: [u64; MOST_KINDS - KINDS],
    lost_ends: [AtomicU64; KINDS],
    _6: [u64; MOST_KINDS - KINDS],
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<LaneHeader>() == LANE_STRIDE);
    assert!(offset_of!(LaneHeader, state) == offsets::STATE);
    assert!(offset_of!(LaneHeader, kinds) == offsets::KINDS);
    assert!(offset_of!(LaneHeader, thread) == offsets::THREAD);
    assert!(offset_of!(LaneHeader, head) == offsets::HEAD);
    assert!(offset_of!(LaneHeader, sequence) == offsets::SEQUENCE);
    assert!(offset_of!(LaneHeader, returned_slots) == 128);
    assert!(offset_of!(LaneHeader, tail) == offsets::TAIL);
    assert!(offset_of!(LaneHeader, hidden) == offsets::HIDDEN);
    assert!(offset_of!(LaneHeader, lost) == offsets::LOST);
    assert!(offset_of!(LaneHeader, lost_ends) == offsets::LOST_ENDS);
};

/// Bit of `state` that is set while a thread holds the lane.
const HELD: u32 = 1;

/// Number of releases of any lane of the process. A hint without ordering: a thread that reads an
/// old number looks for a lane one event later.
static RELEASES: Hint = Hint::new(0);

/// A number that changes whenever a lane is released.
pub(crate) fn releases() -> u32 {
    RELEASES.load(Ordering::Acquire)
}

impl LaneHeader {
    /// Claims the lane for the calling thread, whose identity is `holder`. False if another thread
    /// holds it.
    #[must_use]
    pub fn claim(&self, holder: u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        // Checked with a plain load: while all lanes are taken, threads look at all of them again
        // and again.
        if state & HELD != 0 || !self.advance(state, 1) {
            return false;
        }
        self.holder.store(holder, Ordering::Relaxed);
        true
    }

    /// Takes over the lane of a thread that exited without releasing it, for the calling thread,
    /// which has the same control block. False if `holder` does not hold the lane.
    #[must_use]
    pub fn inherit(&self, holder: u64) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & HELD != 0 && self.is_held_by(holder) && self.advance(state, 2)
    }

    /// Advances `state` by `by` if it still has the value `state`.
    fn advance(&self, state: u32, by: u32) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        self.state.compare_exchange(state, state.wrapping_add(by), acquire, relaxed).is_ok()
    }

    /// Stores the system id of the thread that claimed or inherited the lane.
    pub fn set_thread(&self, id: u32) {
        self.thread.store(id, Ordering::Relaxed);
        self.named.store(self.state.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Releases the lane if the system no longer knows its thread. The first call that finds this
    /// only clears the holder; the second call releases the lane. Between the two, a new thread
    /// with the same control block, which took itself for the holder, finishes its event. Not for
    /// callbacks; leave time between two calls.
    pub fn release_of(&self, is_gone: impl FnOnce(u32) -> bool) {
        let state = self.state.load(Ordering::Acquire);
        // If `named` differs, the id may still be that of the previous thread.
        let is_named = self.named.load(Ordering::Acquire) == state;
        let is_over = state & HELD != 0 && is_named && is_gone(self.thread());
        // If `state` has changed, another thread has the lane.
        if !is_over || !self.advance(state, 2) {
            return;
        }
        if self.is_held_by(0) {
            self.release();
        } else {
            self.holder.store(0, Ordering::Relaxed);
            self.named.store(state.wrapping_add(2), Ordering::Release);
        }
    }

    /// System id of the thread that holds the lane, or held it last; 0 if unknown.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Kinds of the events that started on the lane, as [`EventKind::bit`]s.
    #[must_use]
    pub fn kinds(&self) -> u32 {
        self.kinds.load(Ordering::Relaxed)
    }

    /// True if `holder` claimed the lane and did not release it. Reliable if the caller asks for
    /// its own thread.
    #[must_use]
    #[inline(always)]
    pub fn is_held_by(&self, holder: u64) -> bool {
        self.holder.load(Ordering::Relaxed) == holder
    }

    /// Releases the lane when its thread has exited. The next thread continues at its positions.
    pub fn release(&self) {
        self.holder.store(0, Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state.wrapping_add(1), Ordering::Release);
        RELEASES.fetch_add(1, Ordering::Release);
    }

    /// True while a thread holds the lane.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.state.load(Ordering::Acquire) & HELD != 0
    }

    /// Marks the ring's first [`STARTER_WORDS`] as committed, in the lanes file if `shared`.
    pub(crate) fn begin_small(&self, shared: bool) {
        self.hidden.store(if shared { 0 } else { RING_WORDS }, Ordering::Relaxed);
        self.memory.store(STARTER_WORDS, Ordering::Release);
    }

    /// Marks the whole ring as committed; the added part is in the lanes file if `shared`.
    pub(crate) fn become_whole(&self, shared: bool) {
        if !shared && self.is_shared() {
            self.hidden.store(RING_WORDS - STARTER_WORDS, Ordering::Relaxed);
        }
        self.memory.store(u64::MAX, Ordering::Release);
    }

    /// True if all committed memory of the ring is in the lanes file.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.hidden.load(Ordering::Relaxed) == 0
    }

    /// True if the whole ring is committed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.memory.load(Ordering::Relaxed) == u64::MAX
    }

    /// True if a quarter of the starter memory is used, so that the rest should be committed.
    #[must_use]
    pub fn outgrows(&self) -> bool {
        !self.is_whole() && self.head.load(Ordering::Relaxed) > STARTER_WORDS / 4
    }

    /// True if a thread holds the lane or has recorded on it.
    #[must_use]
    pub fn was_used(&self) -> bool {
        self.in_use() || self.head.load(Ordering::Relaxed) != 0
    }

    /// Number of words pushed and not yet taken.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.head() - self.tail.load(Ordering::Relaxed)
    }

    /// Position behind the last word pushed. Words before it may be read.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Position of the next word to take. For the consumer.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Replaces `out` by the pending words, without taking them. For the consumer.
    pub fn peek(&self, ring: &Ring, out: &mut Vec<u64>) {
        out.clear();
        self.copy(ring, self.tail()..self.head(), out);
    }

    /// Appends the words of `range` to `out`, without taking them. The range must lie between a
    /// [`tail`](LaneHeader::tail) that does not move during the call and a
    /// [`head`](LaneHeader::head).
    pub fn copy(&self, ring: &Ring, range: core::ops::Range<u64>, out: &mut Vec<u64>) {
        let (before, behind) = ring.range(range);
        // Two loops without a mask, so that a word costs one load and one store.
        out.reserve(before.len() + behind.len());
        out.extend(before.iter().map(|word| word.load(Ordering::Relaxed)));
        out.extend(behind.iter().map(|word| word.load(Ordering::Relaxed)));
    }

    /// Moves `tail` forward to `position`, up to which the producer may then overwrite. Called by
    /// the thread that read the words and by the one that stored them; `tail` never moves back.
    pub fn take_until(&self, position: u64) {
        self.tail.fetch_max(position, Ordering::Release);
    }

    /// The header's bytes in the format of the recording; for lanes that are not in the lanes file.
    #[must_use]
    pub fn snapshot(&self) -> [u8; LANE_STRIDE] {
        let mut out = [0; LANE_STRIDE];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(to) = out.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        };
        let relaxed = Ordering::Relaxed;
        put(offsets::STATE, &self.state.load(relaxed).to_le_bytes());
        put(offsets::KINDS, &self.kinds.load(relaxed).to_le_bytes());
        put(offsets::THREAD, &self.thread.load(relaxed).to_le_bytes());
        put(offsets::HEAD, &self.head.load(relaxed).to_le_bytes());
        put(offsets::TAIL, &self.tail.load(relaxed).to_le_bytes());
        put(offsets::HIDDEN, &self.hidden.load(relaxed).to_le_bytes());
        for kind in 0..KINDS {
            put(offsets::LOST + 8 * kind, &self.lost[kind].load(relaxed).to_le_bytes());
            put(offsets::LOST_ENDS + 8 * kind, &self.lost_ends[kind].load(relaxed).to_le_bytes());
        }
        out
    }

    /// Counts an event of which nothing is recorded.
    #[cold]
    pub fn lose(&self, kind: EventKind) {
        bump(&self.lost[kind.index()]);
    }

    /// Counts a lost stop or state of a recorded event.
    #[cold]
    pub fn lose_end(&self, kind: EventKind) {
        bump(&self.lost_ends[kind.index()]);
    }

    /// Events lost so far, by kind.
    #[must_use]
    pub fn lost(&self) -> [u64; KINDS] {
        core::array::from_fn(|kind| self.lost[kind].load(Ordering::Relaxed))
    }

    /// Lost stops and states of recorded events so far, by kind.
    #[must_use]
    pub fn lost_ends(&self) -> [u64; KINDS] {
        self.lost_ends.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Computes `limit` anew from the consumer's position and the committed memory. True if there
    /// is room up to position `end`.
    fn has_room(&self, end: u64) -> bool {
        let free = self.tail.load(Ordering::Acquire) + RING_WORDS;
        let limit = free.min(self.memory.load(Ordering::Acquire));
        self.limit.store(limit, Ordering::Relaxed);
        end <= limit
    }

    pub(crate) fn slots(&self) -> SlotList<'_> {
        SlotList {
            free: &self.free_slot,
            next: &self.next_slot,
            last: &self.last_slot,
            returned: &self.returned_slots,
            abandoned: &self.abandoned_slots,
            abandoned_rest: &self.abandoned_rest,
        }
    }
}

/// Where a lane keeps its ProxyOp slots; see [`crate::slots`].
#[derive(Debug)]
pub(crate) struct SlotList<'a> {
    pub(crate) free: &'a AtomicU32,
    pub(crate) next: &'a AtomicU32,
    pub(crate) last: &'a AtomicU32,
    pub(crate) returned: &'a AtomicU32,
    pub(crate) abandoned: &'a AtomicU32,
    pub(crate) abandoned_rest: &'a AtomicU32,
}

#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The producer's end of a lane. Not `Send`: it stays on the thread that claimed the lane.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    header: &'a LaneHeader,
    ring: &'a Ring,
    index: usize,
    _not_send: core::marker::PhantomData<*const ()>,
}

impl<'a> Lane<'a> {
    /// The producer's end of a lane that the calling thread claimed.
    #[must_use]
    pub const fn new(header: &'a LaneHeader, ring: &'a Ring, index: usize) -> Lane<'a> {
        Lane { header, ring, index, _not_send: core::marker::PhantomData }
    }

    /// The lane's number.
    #[must_use]
    #[inline(always)]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// The lane's header.
    #[must_use]
    #[inline(always)]
    pub const fn header(&self) -> &'a LaneHeader {
        self.header
    }

    /// True if a flood of events (`ProxyCtrl` up to NCCL 2.26) should leave the remaining room to
    /// other events.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        let memory = self.header.memory.load(Ordering::Relaxed).min(RING_WORDS);
        self.header.pending() > memory / 2 || (memory < RING_WORDS && self.header.outgrows())
    }

    /// The next sequence number for a value handle.
    #[must_use]
    #[inline(always)]
    pub fn next_sequence(&self) -> u64 {
        let sequence = self.header.sequence.load(Ordering::Relaxed) + 1;
        self.header.sequence.store(sequence, Ordering::Relaxed);
        sequence
    }

    /// Adds `kind` to the kinds of events that started on this lane.
    #[inline(always)]
    pub fn saw(&self, kind: EventKind) {
        let kinds = self.header.kinds.load(Ordering::Relaxed);
        if kinds & kind.bit() == 0 {
            self.header.kinds.store(kinds | kind.bit(), Ordering::Relaxed);
        }
    }

    /// Room for a record of `N` words in one piece; `None` if `limit` or the ring's end is in the
    /// way.
    #[inline(always)]
    pub(crate) fn room<const N: usize>(&self) -> Option<Room<'a, N>> {
        let Lane { header, ring, .. } = *self;
        let head = header.head.load(Ordering::Relaxed);
        let end = head + N as u64;
        if end > header.limit.load(Ordering::Relaxed) {
            return None;
        }
        let words = ring.run(head, N)?.first_chunk()?;
        Some(Room { header, words, end })
    }

    /// Pushes a record word by word. False if there is no room.
    #[cold]
    #[inline(never)]
    fn push<const N: usize>(header: &LaneHeader, ring: &Ring, words: [u64; N]) -> bool {
        let head = header.head.load(Ordering::Relaxed);
        let end = head + N as u64;
        if !header.has_room(end) {
            return false;
        }
        (head..).zip(words).for_each(|(at, word)| ring.word(at).store(word, Ordering::Relaxed));
        header.head.store(end, Ordering::Release);
        true
    }
}

/// Room in the ring for a record of `N` words, of one lane's producer.
#[derive(Debug)]
pub(crate) struct Room<'a, const N: usize> {
    header: &'a LaneHeader,
    words: &'a [AtomicU64; N],
    end: u64,
}

impl<const N: usize> Room<'_, N> {
    /// Pushes the record.
    #[inline(always)]
    pub(crate) fn fill(self, words: [u64; N]) {
        self.words.iter().zip(words).for_each(|(at, word)| at.store(word, Ordering::Relaxed));
        self.header.head.store(self.end, Ordering::Release);
    }
}

/// Pushes a record. `put` returns false if there is no room; the caller then counts the loss.
impl Sink for Lane<'_> {
    type Out = bool;

    #[inline(always)]
    fn put<const N: usize>(self, words: [u64; N]) -> bool {
        match self.room::<N>() {
            Some(room) => {
                room.fill(words);
                true
            }
            // A copy of the words, so that only this path needs them on the stack: passing `words`
            // itself would make each callback store them there before it looks for room.
            None => Lane::push::<N>(self.header, self.ring, core::array::from_fn(|at| words[at])),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed};

    #[test]
    fn words_are_copied_across_the_rings_end() {
        // SAFETY: the layout has a size.
        let ring = unsafe { alloc_zeroed(Layout::new::<Ring>()) }.cast::<Ring>();
        // SAFETY: aligned, zero, which is valid for atomics, and never freed.
        let ring: &'static Ring = unsafe { &*ring };
        // SAFETY: zero is valid for atomics.
        let header: LaneHeader = unsafe { core::mem::zeroed() };
        let position = |at: u64| ring.word(at).store(at, Ordering::Relaxed);
        let end = 3 * RING_WORDS + 5;
        (end - RING_WORDS..end).for_each(position);
        for range in
            [end - RING_WORDS..end, end - 10..end - 4, end - 5..end, end..end, end - 1..end]
        {
            let mut out = vec![7];
            header.copy(ring, range.clone(), &mut out);
            assert!(out.into_iter().eq([7].into_iter().chain(range)));
        }
    }
}
