// SPDX-License-Identifier: Apache-2.0
/*!
Strings by address: NCCL's names of functions, datatypes, algorithms and protocols are literals, so
that an address identifies a name. The first callback that sees an address copies the text into the
table; later ones pay one comparison. Readers of the records get the texts from here.
*/

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::ffi::c_char;
use ncclscope_trace::StrId;
use ncclscope_trace::progress::name_hash;

/// Number of entries that hold strings; a power of two.
const PLACES: usize = 256;
/// Number of entries, including entry 0, whose index is the number of [`StrId::NONE`]; it holds no
/// string. A string's number is the index of its entry.
pub const CAPACITY: usize = 1 + PLACES;
/// Maximum number of bytes kept of a string.
pub const TEXT: usize = 48;
/// Maximum number of entries that a search for one address looks at.
const PROBES: usize = 16;
/// Multiplier that spreads the addresses of literals, which lie close together, over the table.
const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;

const FREE: u32 = 0;
/// A callback is copying the text.
const TAKEN: u32 = 1;
const READY: u32 = 2;

#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    address: AtomicUsize,
    /// [`FREE`], [`TAKEN`] or [`READY`].
    state: AtomicU32,
    /// [`name_hash`] of the text.
    hash: AtomicU32,
    text: [AtomicU8; TEXT],
}

impl Entry {
    #[expect(clippy::declare_interior_mutable_const, reason = "a pattern to fill the table with")]
    const EMPTY: Entry = Entry {
        address: AtomicUsize::new(0),
        state: AtomicU32::new(FREE),
        hash: AtomicU32::new(0),
        text: [const { AtomicU8::new(0) }; TEXT],
    };
}

/// The string table. Its entries are never removed; their addresses may be forgotten.
#[derive(Debug)]
pub struct Interner {
    entries: [Entry; CAPACITY],
    misses: AtomicU64,
}

impl Interner {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Interner {
        Interner { entries: [Entry::EMPTY; CAPACITY], misses: AtomicU64::new(0) }
    }

    /// The number of the string at `text`; [`StrId::NONE`] for NULL and when the table is full.
    ///
    /// # Safety
    /// - `text` is NULL or points to a NUL-terminated string.
    /// - The string keeps its bytes as long as callbacks may pass this address, as a literal does.
    #[must_use]
    #[inline(always)]
    pub unsafe fn intern(&self, text: *const c_char) -> StrId {
        let address = text.addr();
        if address == 0 {
            return StrId::NONE;
        }
        let index = first_index(address);
        if self.entries[index].address.load(Ordering::Acquire) == address {
            return id(index);
        }
        // SAFETY: passed on from the caller.
        unsafe { self.search(text, index) }
    }

    /// # Safety
    /// As for [`Interner::intern`], and `text` is not NULL.
    #[cold]
    unsafe fn search(&self, text: *const c_char, first: usize) -> StrId {
        let address = text.addr();
        for probe in 0..PROBES {
            let index = 1 + (first - 1 + probe) % PLACES;
            let entry = &self.entries[index];
            // `fill` stores the address last, so that a thread that finds the address finds the
            // whole string. Two threads that see a new string at the same time may store it twice.
            if entry.address.load(Ordering::Acquire) == address {
                return id(index);
            }
            let is_forgotten = entry.address.load(Ordering::Relaxed) == 0
                && entry.state.load(Ordering::Acquire) == READY;
            // SAFETY: passed on from the caller.
            if is_forgotten && unsafe { has_text(entry, text) } {
                entry.address.store(address, Ordering::Release);
                return id(index);
            }
            let free = entry.state.load(Ordering::Relaxed) == FREE;
            let claim = |entry: &Entry| {
                entry.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            };
            if free && claim(entry).is_ok() {
                // SAFETY: passed on from the caller; the exchange made the entry ours to fill.
                unsafe { fill(entry, text) };
                return id(index);
            }
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        StrId::NONE
    }

    /// Forgets the addresses, because a library may be unloaded and another one loaded there. The
    /// next use of an address compares the text; an unchanged string keeps its number.
    pub fn forget_addresses(&self) {
        self.entries.iter().for_each(|entry| entry.address.store(0, Ordering::Relaxed));
    }

    /// [`name_hash`] of a string of this table (of its first [`TEXT`] bytes); 0 for
    /// [`StrId::NONE`].
    #[must_use]
    #[inline(always)]
    pub fn hash(&self, id: StrId) -> u32 {
        let entry = self.entries.get(usize::from(id.0));
        entry.map_or(0, |entry| entry.hash.load(Ordering::Relaxed))
    }

    /// The text of entry `index` with its number; `None` until it is complete. For the drain
    /// thread.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(StrId, String)> {
        let entry = self.entries.get(index)?;
        if entry.state.load(Ordering::Acquire) != READY {
            return None;
        }
        let bytes: Vec<u8> = entry
            .text
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .take_while(|&byte| byte != 0)
            .collect();
        Some((id(index), String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Number of lookups that failed because the table was full.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }
}

impl Default for Interner {
    fn default() -> Interner {
        Interner::new()
    }
}

/// True if the complete entry holds this text (its first [`TEXT`] bytes).
///
/// # Safety
/// `text` points to a NUL-terminated string.
unsafe fn has_text(entry: &Entry, text: *const c_char) -> bool {
    for (i, kept) in entry.text.iter().enumerate() {
        // SAFETY: no NUL was found before byte `i`, so it still belongs to the string.
        let at = unsafe { text.add(i) };
        // SAFETY: as above; any byte is a valid `c_char`.
        let byte = unsafe { at.read() }.to_le_bytes()[0];
        if byte != kept.load(Ordering::Relaxed) {
            return false;
        }
        if byte == 0 {
            break;
        }
    }
    true
}

/// # Safety
/// `text` points to a NUL-terminated string.
unsafe fn fill(entry: &Entry, text: *const c_char) {
    let mut bytes = [0; TEXT];
    let mut len = 0;
    for (i, slot) in entry.text.iter().enumerate() {
        // SAFETY: no NUL was found before byte `i`, so it still belongs to the string.
        let at = unsafe { text.add(i) };
        // SAFETY: as above; any byte is a valid `c_char`.
        let byte = unsafe { at.read() }.to_le_bytes()[0];
        if byte == 0 {
            break;
        }
        slot.store(byte, Ordering::Relaxed);
        bytes[i] = byte;
        len = i + 1;
    }
    entry.hash.store(name_hash(bytes.split_at(len).0), Ordering::Relaxed);
    entry.state.store(READY, Ordering::Release);
    entry.address.store(text.addr(), Ordering::Release);
}

#[inline(always)]
fn first_index(address: usize) -> usize {
    1 + (address.wrapping_mul(SPREAD) >> (usize::BITS - PLACES.ilog2()))
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the index is below CAPACITY")]
const fn id(index: usize) -> StrId {
    StrId(index as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn intern(table: &Interner, text: &CString) -> StrId {
        // SAFETY: a CString that outlives the call and is not changed.
        unsafe { table.intern(text.as_ptr()) }
    }

    #[test]
    fn the_same_address_is_the_same_string() {
        let table = Interner::new();
        let (a, b) = (CString::new("AllReduce").unwrap(), CString::new("RING").unwrap());
        let (ia, ib) = (intern(&table, &a), intern(&table, &b));
        assert_ne!(ia, ib);
        assert_eq!((intern(&table, &a), intern(&table, &b)), (ia, ib));
        assert_eq!(table.get(usize::from(ia.0)), Some((ia, "AllReduce".into())));
        assert_eq!(table.hash(ia), name_hash(b"AllReduce"));
        assert_eq!(table.hash(StrId::NONE), 0);
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { table.intern(core::ptr::null()) }, StrId::NONE);
    }

    #[test]
    fn at_a_forgotten_address_there_may_be_another_string() {
        let table = Interner::new();
        let mut text = *b"AllReduce\0";
        // SAFETY: a string that outlives the call; its address is forgotten before it changes.
        let intern = |text: &[u8; 10]| unsafe { table.intern(text.as_ptr().cast()) };
        let first = intern(&text);
        table.forget_addresses();
        assert_eq!((intern(&text), intern(&text)), (first, first), "the same string");
        table.forget_addresses();
        text = *b"AllGather\0";
        let second = intern(&text);
        assert_ne!(first, second);
        assert_eq!(table.get(usize::from(first.0)).unwrap().1, "AllReduce");
        assert_eq!(table.get(usize::from(second.0)).unwrap().1, "AllGather");
        table.forget_addresses();
        text = *b"AllReduce\0";
        assert_eq!(intern(&text), first, "it is there again");
    }

    #[test]
    fn forty_strings_each_21_bytes_from_the_next_share_no_place() {
        // The layout of `ncclscope_abi::names`. The distance between two products is the product of
        // the distance between the addresses, so that this holds at any start address.
        let apart = |n: usize| (21 * n).wrapping_mul(SPREAD);
        let place = usize::MAX / PLACES;
        assert!((1..40).all(|n| apart(n).min(apart(n).wrapping_neg()) > place));
    }

    #[test]
    fn each_address_leads_to_an_entry_that_its_string_can_have() {
        let names = vec![b'x'; 40 * PLACES];
        let mut seen = [false; CAPACITY];
        for at in names.iter().take(39 * PLACES) {
            let (text, table) = (core::ptr::from_ref(at), Interner::new());
            let first = first_index(text.addr());
            // SAFETY: the bytes have no NUL, but there are more of them than `fill` reads.
            let number = unsafe { table.intern(text.cast()) };
            assert_eq!(usize::from(number.0), first);
            seen[first] = true;
        }
        assert!(!seen[0] && seen[1..].iter().all(|&seen| seen), "{seen:?}");
    }

    #[test]
    fn long_strings_are_cut_and_a_full_table_counts() {
        let table = Interner::new();
        let long = CString::new("x".repeat(200)).unwrap();
        let i = intern(&table, &long);
        assert_eq!(table.get(usize::from(i.0)).unwrap().1, "x".repeat(TEXT));
        let many: Vec<CString> =
            (0..2000).map(|n| CString::new(format!("s{n}")).unwrap()).collect();
        let stored = many.iter().filter(|s| intern(&table, s) != StrId::NONE).count();
        assert!(stored > CAPACITY / 2 && stored < CAPACITY, "{stored}");
        assert_eq!(table.misses(), (many.len() - stored) as u64);
    }
}
