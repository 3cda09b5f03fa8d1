// SPDX-License-Identifier: Apache-2.0
/*!
The memory that callbacks write to: lane table, lane rings, ProxyOp slabs.

One address range is reserved once. `init` and the drain thread, never a callback, make pieces of it
usable ("commit" them) ahead of need. A piece is either private, or shared with the lanes file
([`ncclscope_trace::lanes_file`]), whose pages are allocated first (a hole would cause a SIGBUS when
memory is full). Neither kind ever maps over addresses that are not reserved: a shared piece is
mapped elsewhere and moved into the range, a private one gets access rights.

A ring is committed in two pieces: its beginning when a thread may take its lane, the rest when the
lane is used enough; then its pages are populated. The lane table is committed in pieces of 16
headers, each before the first of its lanes. The rest of the table reads as zeros, because any bits
may arrive as a handle and their lane is read: a zero header means that no thread holds the lane.
*/

use crate::lane::{LaneHeader, Ring, STARTER_BYTES};
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use core::ffi::c_void;
use core::ptr;
use ncclscope_trace::handle::LANES;
use ncclscope_trace::lanes_file;
use ncclscope_trace::layout::{LANE_STRIDE, RING_BYTES, SLAB_BYTES, SLAB_SLOTS, SLABS, SLOT_BYTES};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const TABLE_BYTES: usize = LANES * LANE_STRIDE;
/// Number of lanes whose headers are committed together.
const TABLE_LANES: usize = 16;
const TABLE_PIECE: usize = TABLE_LANES * LANE_STRIDE;
const RINGS_AT: usize = TABLE_BYTES;
const SLABS_AT: usize = RINGS_AT + LANES * RING_BYTES;
const TOTAL: usize = SLABS_AT + SLABS * SLAB_BYTES;
// The file has the layout of the region, after the page of its owner.
const _: () = assert!(
    lanes_file::TABLE + RINGS_AT as u64 == lanes_file::RINGS
        && lanes_file::TABLE + SLABS_AT as u64 == lanes_file::SLABS_AT
);
// Pieces are mapped in whole pages.
const _: () = assert!(SLAB_BYTES.is_multiple_of(4096) && TABLE_PIECE.is_multiple_of(4096));

/// The memory of the process's lanes and slots; empty until [`Region::reserve`].
#[derive(Debug)]
pub struct Region {
    base: AtomicPtr<u8>,
    rings: AtomicU32,
    slabs: AtomicU32,
    /// 1 once another mapping may lie inside the region; no further pieces are committed then.
    lost: AtomicU32,
}

impl Region {
    /// An empty region.
    #[must_use]
    pub const fn new() -> Region {
        Region {
            base: AtomicPtr::new(ptr::null_mut()),
            rings: AtomicU32::new(0),
            slabs: AtomicU32::new(0),
            lost: AtomicU32::new(0),
        }
    }

    /// Reserves the address range and commits the beginning of the lane table, in the lanes file if
    /// there is one, else in private memory. Call once.
    ///
    /// # Errors
    /// The system's error: no address space, no room in the file, or a file system without
    /// mappings.
    pub fn reserve(&self, file: Option<&File>) -> io::Result<()> {
        // SAFETY: a fresh anonymous mapping without access; it replaces nothing.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                TOTAL,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        // SAFETY: the beginning of the reservation, which is not in use yet.
        if unsafe { libc::mprotect(base.cast::<c_void>(), TABLE_BYTES, libc::PROT_READ) } != 0 {
            let error = io::Error::last_os_error();
            // SAFETY: exactly the mapping made above; no other code knows its address yet.
            unsafe { libc::munmap(base.cast::<c_void>(), TOTAL) };
            return Err(error);
        }
        let error = match commit(base, 0, TABLE_PIECE, file, true) {
            Ok(shared) if shared == file.is_some() => {
                self.base.store(base, Ordering::Release);
                return Ok(());
            }
            // Another mapping may lie at these addresses now, so that they must not be unmapped.
            Err(Failure::Lost(error)) => return Err(error),
            Err(Failure::Kept(error)) => error,
            Ok(_) => io::Error::other("the lanes file cannot be mapped"),
        };
        // SAFETY: exactly the mapping made above; no other code knows its address yet.
        unsafe { libc::munmap(base.cast::<c_void>(), TOTAL) };
        Err(error)
    }

    /// Commits a piece, in the lanes file if possible, else in private memory. True if it is in the
    /// file.
    fn commit(
        &self,
        at: usize,
        len: usize,
        file: Option<&File>,
        present: bool,
    ) -> io::Result<bool> {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() || self.lost.load(Ordering::Relaxed) != 0 {
            return Err(io::Error::other("nothing is reserved"));
        }
        commit(base, at, len, file, present).map_err(|failure| match failure {
            Failure::Kept(error) => error,
            Failure::Lost(error) => {
                self.lost.store(1, Ordering::Relaxed);
                error
            }
        })
    }

    /// Commits further lanes (header and starter part of the ring) and slabs, until there are
    /// `rings` and `slabs` of them (at most all there can be). Uses `file` if given and not full.
    ///
    /// # Errors
    /// The system's error; the pieces that were committed before stay usable.
    pub fn grow(&self, rings: usize, slabs: usize, file: Option<&File>) -> io::Result<()> {
        for lane in self.rings()..rings.min(LANES) {
            let at = RINGS_AT + lane * RING_BYTES;
            if lane != 0 && lane.is_multiple_of(TABLE_LANES) {
                self.commit(lane * LANE_STRIDE, TABLE_PIECE, file, true)?;
            }
            let shared = self.commit(at, STARTER_BYTES, file, true)?;
            self.lane_header(lane).into_iter().for_each(|header| header.begin_small(shared));
            self.rings.fetch_add(1, Ordering::Release);
        }
        for slab in self.slabs()..slabs.min(SLABS) {
            let at = SLABS_AT + slab * SLAB_BYTES;
            self.commit(at, SLAB_BYTES, file, true)?;
            self.slabs.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Commits the rest of a usable lane's ring, unless that is done already. The pages are not
    /// present yet: the first store to each takes a page fault, unless [`Region::prefault`] comes
    /// first.
    ///
    /// # Errors
    /// The system's error; the ring stays as it was.
    pub fn complete(&self, lane: usize, file: Option<&File>) -> io::Result<()> {
        let header = self.lane_header(lane).filter(|header| !header.is_whole());
        let Some(header) = header.filter(|_| lane < self.rings()) else { return Ok(()) };
        let at = RINGS_AT + lane * RING_BYTES + STARTER_BYTES;
        let shared = self.commit(at, RING_BYTES - STARTER_BYTES, file, false)?;
        header.become_whole(shared);
        Ok(())
    }

    /// Makes the pages of a completed ring present.
    pub fn prefault(&self, lane: usize) {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() || lane >= self.rings() {
            return;
        }
        let at = base.wrapping_add(RINGS_AT + lane * RING_BYTES).cast::<c_void>();
        // SAFETY: the range is mapped, and its contents do not change. Kernels before 5.14 return
        // an error; then the first store to each page takes a page fault.
        unsafe { libc::madvise(at, RING_BYTES, libc::MADV_POPULATE_WRITE) };
    }

    /// Replaces the region by fresh private memory, so that nothing of the lanes file stays mapped.
    /// For the child of a fork, where nothing is recorded. Async-signal-safe.
    pub fn leave(&self) {
        let base = self.base.load(Ordering::Relaxed);
        // If a mapping was lost, part of the address range may belong to another mapping.
        if base.is_null() || self.lost.load(Ordering::Relaxed) != 0 {
            return;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: replaces exactly the range that `reserve` mapped; zero is a valid value of the
        // atomics.
        unsafe { libc::mmap(base.cast::<c_void>(), TOTAL, access, kind, -1, 0) };
    }

    /// Number of usable rings: those of the lanes below this index.
    #[must_use]
    #[inline(always)]
    pub fn rings(&self) -> usize {
        self.rings.load(Ordering::Acquire) as usize
    }

    /// Number of usable slabs.
    #[must_use]
    #[inline]
    pub fn slabs(&self) -> usize {
        self.slabs.load(Ordering::Acquire) as usize
    }

    /// The header of a lane; `None` before [`Region::reserve`].
    #[must_use]
    #[inline(always)]
    pub fn lane_header(&self, lane: usize) -> Option<&'static LaneHeader> {
        // SAFETY: `base` holds null or the region's base.
        unsafe { header_at(self.base.load(Ordering::Acquire), lane) }
    }

    /// The ring of a lane; `None` if the lane is not usable. The header's `memory` says how much of
    /// it is committed.
    #[must_use]
    #[inline(always)]
    pub fn ring(&self, lane: usize) -> Option<&'static Ring> {
        // SAFETY: the lane is usable.
        (lane < self.rings()).then(|| unsafe { ring_at(self.base.load(Ordering::Relaxed), lane) })
    }

    /// The header and ring of a lane, if `holder` holds it.
    #[must_use]
    #[inline(always)]
    pub fn held(&self, lane: usize, holder: u64) -> Option<(&'static LaneHeader, &'static Ring)> {
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: `base` is null or the region's base.
        let header = unsafe { header_at(base, lane) }.filter(|header| header.is_held_by(holder))?;
        // SAFETY: `base` is the region's, and only usable lanes are ever held.
        Some((header, unsafe { ring_at(base, lane) }))
    }

    /// The address of slot 0. Only slots of committed slabs may be used; before [`Region::reserve`]
    /// there are none.
    #[must_use]
    #[inline(always)]
    pub fn slots_base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed).wrapping_add(SLABS_AT)
    }

    /// True if the slot lies in a committed slab. True also makes the base address visible.
    #[must_use]
    #[inline(always)]
    pub fn has_slot(&self, slot: usize) -> bool {
        slot / SLAB_SLOTS < self.slabs.load(Ordering::Acquire) as usize
    }
}

impl Default for Region {
    fn default() -> Region {
        Region::new()
    }
}

const _: () = assert!(SLAB_BYTES == SLAB_SLOTS * SLOT_BYTES);

/// The header of a lane; `None` before [`Region::reserve`].
///
/// # Safety
/// `base` is null or the base address of a region.
#[inline(always)]
unsafe fn header_at(base: *mut u8, lane: usize) -> Option<&'static LaneHeader> {
    if base.is_null() || lane >= LANES {
        return None;
    }
    // SAFETY: within the lane table, which `reserve` made readable before it stored `base`; only
    // usable lanes, whose headers are committed, are written to.
    let at = unsafe { base.add(lane * LANE_STRIDE) };
    // SAFETY: aligned to 64, initialised (zero is valid for atomics), and mapped for the rest of
    // the process; all access is atomic.
    Some(unsafe { &*at.cast::<LaneHeader>() })
}

/// The ring of a lane.
///
/// # Safety
/// `base` is the base address of a region, and the lane is usable.
#[inline(always)]
unsafe fn ring_at(base: *mut u8, lane: usize) -> &'static Ring {
    // SAFETY: the lane is usable, so that `base` is not null and the range lies in the region.
    let at = unsafe { base.add(RINGS_AT + lane * RING_BYTES) };
    // SAFETY: page-aligned, mapped for the rest of the process, and atomic. Words that are not
    // committed yet are not accessed: producer and consumer stay below `LaneHeader::memory`.
    unsafe { &*at.cast::<Ring>() }
}

/// Why a piece could not be committed.
enum Failure {
    /// The addresses are still reserved.
    Kept(io::Error),
    /// The system may have released the addresses; another mapping may lie there now.
    Lost(io::Error),
}

/// Commits reserved addresses, in the lanes file if possible, else in private memory. With
/// `present`, also makes the pages present. True if the memory is in the file. `at` is the offset
/// in the region.
fn commit(
    base: *mut u8,
    at: usize,
    len: usize,
    file: Option<&File>,
    present: bool,
) -> Result<bool, Failure> {
    let address = base.wrapping_add(at);
    let mapped = file.map(|file| map(file, at, len, present));
    if let Some(Ok(elsewhere)) = mapped {
        return place(elsewhere, len, address).map(|()| true);
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a page-aligned part of the region's own reservation that is not in use yet; it stays
    // reserved even if the call fails.
    if unsafe { libc::mprotect(address.cast::<c_void>(), len, access) } != 0 {
        return Err(Failure::Kept(io::Error::last_os_error()));
    }
    for page in (0..len).step_by(4096).filter(|_| present) {
        let page = address.wrapping_add(page);
        // SAFETY: inside the piece, which is committed now and not in use yet.
        unsafe { page.write_volatile(0) };
    }
    Ok(false)
}

/// Allocates the pages of a piece of the file and maps it at any address.
fn map(file: &File, at: usize, len: usize, present: bool) -> io::Result<*mut c_void> {
    let offset = lanes_file::TABLE + at as u64;
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    allocate(file, offset, len)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | if present { libc::MAP_POPULATE } else { 0 };
    // SAFETY: a fresh mapping; it replaces nothing.
    let mapped =
        unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped) }
}

/// Moves a mapping to reserved addresses. Everything that can fail for lack of memory was done
/// before. If the call fails nevertheless, the addresses may no longer be reserved.
fn place(mapped: *mut c_void, len: usize, address: *mut u8) -> Result<(), Failure> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let to = address.cast::<c_void>();
    // SAFETY: `mapped` was made by `map`; `to` is a page-aligned part of the region's own
    // reservation, so that nothing else is replaced.
    let moved = match simulated_failure(address, len) {
        // SAFETY: as above.
        false => unsafe { libc::mremap(mapped, len, len, flags, to) },
        true => libc::MAP_FAILED,
    };
    if moved != libc::MAP_FAILED {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // SAFETY: exactly the mapping that `map` made; no other code knows its address.
    unsafe { libc::munmap(mapped, len) };
    Err(Failure::Lost(error))
}

#[cfg(not(test))]
const fn simulated_failure(_address: *mut u8, _len: usize) -> bool {
    false
}

#[cfg(test)]
use tests::simulated_failure;

/// Allocates pages of the file, so that a store to the mapping never fails because memory is full.
fn allocate(file: &File, offset: libc::off_t, len: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    loop {
        // SAFETY: a plain system call on a descriptor that `file` keeps open.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    std::thread_local! {
        /// Makes the next placement fail after the system has released the reservation.
        static FAILS: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn simulated_failure(address: *mut u8, len: usize) -> bool {
        let fails = FAILS.take();
        if fails {
            // SAFETY: a part of the region's reservation, which is not in use yet.
            unsafe { libc::munmap(address.cast::<c_void>(), len) };
        }
        fails
    }

    fn memory_file() -> File {
        // SAFETY: the name is a string.
        let fd = unsafe { libc::memfd_create(c"lanes".as_ptr(), 0) };
        assert!(fd >= 0);
        // SAFETY: it is open, and only this owns it.
        unsafe { File::from_raw_fd(fd) }
    }

    #[test]
    fn shared_pieces_lie_in_the_file_and_private_ones_do_not() {
        let (region, file) = (Region::new(), memory_file());
        region.reserve(Some(&file)).unwrap();
        region.grow(1, 1, Some(&file)).unwrap();
        let slab = region.slots_base();
        // SAFETY: the first bytes of a committed slab.
        unsafe { slab.cast::<u64>().write_volatile(0x1234_5678) };
        let mut found = [0; 8];
        file.read_exact_at(&mut found, lanes_file::SLABS_AT).unwrap();
        assert_eq!(u64::from_le_bytes(found), 0x1234_5678);
        // A file that cannot be mapped: the pieces become private memory.
        let useless = File::open("/dev/null").unwrap();
        region.grow(2, 2, Some(&useless)).unwrap();
        assert!(region.lane_header(0).unwrap().is_shared());
        assert!(!region.lane_header(1).unwrap().is_shared());
        region.complete(1, None).unwrap();
        region.prefault(1);
        let end = slab.wrapping_sub(8 + (LANES - 2) * RING_BYTES).cast::<u64>();
        // SAFETY: the last word of a whole ring.
        unsafe { end.write_volatile(7) };
        assert!(Region::new().reserve(Some(&useless)).is_err(), "the table is shared, or nothing");
    }

    #[test]
    fn nothing_is_mapped_over_addresses_that_were_lost() {
        let (region, file) = (Region::new(), memory_file());
        region.reserve(Some(&file)).unwrap();
        region.grow(1, 1, Some(&file)).unwrap();
        FAILS.set(true);
        region.grow(1, 2, Some(&file)).unwrap_err();
        // The host maps something at this address.
        let hole = region.slots_base().wrapping_add(SLAB_BYTES).cast::<c_void>();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: it replaces nothing.
        let hosts = unsafe { libc::mmap(hole, SLAB_BYTES, access, flags, -1, 0) };
        assert_eq!(hosts, hole, "there is a hole");
        // SAFETY: mapped above.
        unsafe { hosts.cast::<u64>().write_volatile(42) };
        region.grow(1, 2, Some(&file)).unwrap_err();
        region.grow(2, 2, None).unwrap_err();
        region.complete(0, None).unwrap_err();
        // SAFETY: mapped above.
        assert_eq!(unsafe { hosts.cast::<u64>().read_volatile() }, 42, "the host's");
        assert_eq!((region.rings(), region.slabs()), (1, 1), "what there was is usable");
    }
}
