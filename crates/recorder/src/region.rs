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
/// Lanes whose headers are committed together.
const TABLE_LANES: usize = 16;
const TABLE_PIECE: usize = TABLE_LANES * LANE_STRIDE;
const RINGS_AT: usize = TABLE_BYTES;
const SLABS_AT: usize = RINGS_AT + LANES * RING_BYTES;
const TOTAL: usize = SLABS_AT + SLABS * SLAB_BYTES;
// The region lies in the file as it lies in memory, behind the owner's page.
const _: () = assert!(
    lanes_file::TABLE + RINGS_AT as u64 == lanes_file::RINGS
        && lanes_file::TABLE + SLABS_AT as u64 == lanes_file::SLABS_AT
);
// Pieces are mapped page by page.
const _: () = assert!(SLAB_BYTES.is_multiple_of(4096) && TABLE_PIECE.is_multiple_of(4096));

/// Lanes and slots of the process; all zero until [`Region::reserve`].
#[derive(Debug)]
pub struct Region {
    base: AtomicPtr<u8>,
    rings: AtomicU32,
    slabs: AtomicU32,
    /// 1 once some of the addresses may be another's: there are no further pieces then.
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

    /// Reserves the addresses and commits the lane table's beginning, shared with the lanes file or
    /// private.
    /// Call once.
    ///
    /// # Errors
    /// The system's: no address space, no room in the file, or a file system without mappings.
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
        // SAFETY: the reservation's beginning, which holds nothing yet.
        if unsafe { libc::mprotect(base.cast::<c_void>(), TABLE_BYTES, libc::PROT_READ) } != 0 {
            let error = io::Error::last_os_error();
            // SAFETY: exactly what was mapped above; its address is given to none yet.
            unsafe { libc::munmap(base.cast::<c_void>(), TOTAL) };
            return Err(error);
        }
        let error = match commit(base, 0, TABLE_PIECE, file, true) {
            Ok(shared) if shared == file.is_some() => {
                self.base.store(base, Ordering::Release);
                return Ok(());
            }
            // What is at the addresses now may be another's: they are left alone.
            Err(Failure::Lost(error)) => return Err(error),
            Err(Failure::Kept(error)) => error,
            Ok(_) => io::Error::other("the lanes file cannot be mapped"),
        };
        // SAFETY: exactly what was mapped above; its address is given to none yet.
        unsafe { libc::munmap(base.cast::<c_void>(), TOTAL) };
        Err(error)
    }

    /// Commits a piece, shared if that is possible, else private. True if it is shared.
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

    /// Makes lanes (each with the beginning of its ring) and slabs usable until there are `rings`
    /// and `slabs` of them (at most all), shared with `file` where there is one with room.
    ///
    /// # Errors
    /// The system's; what was committed before stays usable.
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

    /// Makes all of a usable lane's ring memory, once. Its pages are not present yet: the first
    /// store to each takes a page fault, unless [`Region::prefault`] comes first.
    ///
    /// # Errors
    /// The system's; the ring stays as it was.
    pub fn complete(&self, lane: usize, file: Option<&File>) -> io::Result<()> {
        let header = self.lane_header(lane).filter(|header| !header.is_whole());
        let Some(header) = header.filter(|_| lane < self.rings()) else { return Ok(()) };
        let at = RINGS_AT + lane * RING_BYTES + STARTER_BYTES;
        let shared = self.commit(at, RING_BYTES - STARTER_BYTES, file, false)?;
        header.become_whole(shared);
        Ok(())
    }

    /// Makes the pages of a whole lane's ring present.
    pub fn prefault(&self, lane: usize) {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() || lane >= self.rings() {
            return;
        }
        let at = base.wrapping_add(RINGS_AT + lane * RING_BYTES).cast::<c_void>();
        // SAFETY: the range is mapped, and its contents stay as they are. Kernels before 5.14
        // refuse, and the first stores fault.
        unsafe { libc::madvise(at, RING_BYTES, libc::MADV_POPULATE_WRITE) };
    }

    /// Puts fresh private memory in the place of all of it, so that nothing of the lanes file is
    /// left in this process. For the child of a fork, whose memory it is not; nothing is recorded
    /// there any more. Async-signal-safe.
    pub fn leave(&self) {
        let base = self.base.load(Ordering::Relaxed);
        // Some of the addresses may be another's.
        if base.is_null() || self.lost.load(Ordering::Relaxed) != 0 {
            return;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: it replaces exactly what `reserve` mapped; zero is valid for the atomics there.
        unsafe { libc::mmap(base.cast::<c_void>(), TOTAL, access, kind, -1, 0) };
    }

    /// How many rings are usable: lanes below this number.
    #[must_use]
    #[inline(always)]
    pub fn rings(&self) -> usize {
        self.rings.load(Ordering::Acquire) as usize
    }

    /// How many slabs are usable.
    #[must_use]
    #[inline]
    pub fn slabs(&self) -> usize {
        self.slabs.load(Ordering::Acquire) as usize
    }

    /// The header of a lane; `None` before [`Region::reserve`].
    #[must_use]
    #[inline(always)]
    pub fn lane_header(&self, lane: usize) -> Option<&'static LaneHeader> {
        // SAFETY: it is the region's base.
        unsafe { header_at(self.base.load(Ordering::Acquire), lane) }
    }

    /// The ring of a lane; `None` if the lane is not usable. Its memory ends where the lane's
    /// header says.
    #[must_use]
    #[inline(always)]
    pub fn ring(&self, lane: usize) -> Option<&'static Ring> {
        // SAFETY: the lane is usable.
        (lane < self.rings()).then(|| unsafe { ring_at(self.base.load(Ordering::Relaxed), lane) })
    }

    /// A lane that `holder` holds.
    #[must_use]
    #[inline(always)]
    pub fn held(&self, lane: usize, holder: u64) -> Option<(&'static LaneHeader, &'static Ring)> {
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: it is the region's base.
        let header = unsafe { header_at(base, lane) }.filter(|header| header.is_held_by(holder))?;
        // SAFETY: likewise, and only usable lanes are claimed.
        Some((header, unsafe { ring_at(base, lane) }))
    }

    /// Where slot 0 lies. Slots of committed slabs may be used; there are none before
    /// [`Region::reserve`].
    #[must_use]
    #[inline(always)]
    pub fn slots_base(&self) -> *mut u8 {
        self.base.load(Ordering::Relaxed).wrapping_add(SLABS_AT)
    }

    /// True if the slot lies in a committed slab, whose base can be seen then.
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
/// `base` is that of a region.
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
/// `base` is that of a region, and the lane is usable.
#[inline(always)]
unsafe fn ring_at(base: *mut u8, lane: usize) -> &'static Ring {
    // SAFETY: the lane is usable, so that `base` is set and the range is inside.
    let at = unsafe { base.add(RINGS_AT + lane * RING_BYTES) };
    // SAFETY: page-aligned, mapped for the rest of the process, and atomic; words that are no
    // memory yet are not touched, because neither end goes beyond `LaneHeader::memory`.
    unsafe { &*at.cast::<Ring>() }
}

/// Why a piece is not usable.
enum Failure {
    /// As before: the addresses are still reserved.
    Kept(io::Error),
    /// The system may have taken the addresses away: whatever is there now may be another's.
    Lost(io::Error),
}

/// Makes reserved addresses usable, shared with the file if that is possible, else private; with
/// `present`, its pages are there then. True if they are shared. `at` is the place in the region.
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
    // SAFETY: a page-aligned part of the region's own reservation, which this does not give up even
    // where it fails; it is not in use yet.
    if unsafe { libc::mprotect(address.cast::<c_void>(), len, access) } != 0 {
        return Err(Failure::Kept(io::Error::last_os_error()));
    }
    for page in (0..len).step_by(4096).filter(|_| present) {
        let page = address.wrapping_add(page);
        // SAFETY: inside the piece, which is memory now and holds nothing yet.
        unsafe { page.write_volatile(0) };
    }
    Ok(false)
}

/// Maps a piece of the file, its pages allocated first, wherever the system likes.
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

/// Moves a mapping to reserved addresses. All that may fail for want of memory was done before the
/// system gives the reservation up: where it fails nevertheless, the addresses may be free.
fn place(mapped: *mut c_void, len: usize, address: *mut u8) -> Result<(), Failure> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let to = address.cast::<c_void>();
    // SAFETY: `mapped` was mapped for this; `to` is a page-aligned part of the region's own
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
    // SAFETY: exactly what was mapped before; its address is given to none.
    unsafe { libc::munmap(mapped, len) };
    Err(Failure::Lost(error))
}

#[cfg(not(test))]
const fn simulated_failure(_address: *mut u8, _len: usize) -> bool {
    false
}

#[cfg(test)]
use tests::simulated_failure;

/// Gives the file real pages, so that no store to the mapping finds the memory full.
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
        /// The next placement fails when the system has given the reservation up.
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
        // A file in which nothing can be mapped: the pieces are private.
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
        // The host maps something just there.
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
