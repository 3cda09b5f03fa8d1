// SPDX-License-Identifier: Apache-2.0
/*!
The memory that callbacks write to: lane table, lane rings, ProxyOp slabs.

One address range is reserved once; pieces of it are made usable ("committed") ahead of need, by
`init` and by the drain thread, never by a callback. A piece is either shared with the lanes file
([`ncclscope_trace::lanes_file`]), whose pages are allocated first (a hole would be a SIGBUS when
the memory is full), or private.
A ring is committed in two pieces: its beginning when a thread may come for its lane, the rest when
the lane is worth it, and its pages are made present after that.
*/

use crate::lane::{LaneHeader, Ring, STARTER_BYTES};
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use core::ffi::{c_int, c_void};
use core::ptr;
use ncclscope_trace::handle::LANES;
use ncclscope_trace::lanes_file;
use ncclscope_trace::layout::{LANE_STRIDE, RING_BYTES, SLAB_BYTES, SLAB_SLOTS, SLABS, SLOT_BYTES};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const TABLE_BYTES: usize = LANES * LANE_STRIDE;
const RINGS_AT: usize = TABLE_BYTES;
const SLABS_AT: usize = RINGS_AT + LANES * RING_BYTES;
const TOTAL: usize = SLABS_AT + SLABS * SLAB_BYTES;
// The region lies in the file as it lies in memory, behind the owner's page.
const _: () = assert!(
    lanes_file::TABLE + RINGS_AT as u64 == lanes_file::RINGS
        && lanes_file::TABLE + SLABS_AT as u64 == lanes_file::SLABS_AT
);
// Pieces are mapped page by page.
const _: () = assert!(SLAB_BYTES.is_multiple_of(4096) && TABLE_BYTES.is_multiple_of(4096));

/// Lanes and slots of the process; all zero until [`Region::reserve`].
#[derive(Debug)]
pub struct Region {
    base: AtomicPtr<u8>,
    rings: AtomicU32,
    slabs: AtomicU32,
}

impl Region {
    /// An empty region.
    #[must_use]
    pub const fn new() -> Region {
        Region {
            base: AtomicPtr::new(ptr::null_mut()),
            rings: AtomicU32::new(0),
            slabs: AtomicU32::new(0),
        }
    }

    /// Reserves the addresses and commits the lane table, shared with the lanes file or private.
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
        if let Err(error) = commit(base, 0, TABLE_BYTES, file, libc::MAP_POPULATE) {
            // SAFETY: exactly what was mapped above; nobody has its address yet.
            unsafe { libc::munmap(base.cast::<c_void>(), TOTAL) };
            return Err(error);
        }
        self.base.store(base, Ordering::Release);
        Ok(())
    }

    /// Makes lanes (each with the beginning of its ring) and slabs usable until there are `rings`
    /// and `slabs` of them (at most all), shared with `file` where there is one with room.
    ///
    /// # Errors
    /// The system's; what was committed before stays usable.
    pub fn grow(&self, rings: usize, slabs: usize, file: Option<&File>) -> io::Result<()> {
        let base = self.reserved()?;
        for lane in self.rings()..rings.min(LANES) {
            let at = RINGS_AT + lane * RING_BYTES;
            let shared = commit_somewhere(base, at, STARTER_BYTES, file, libc::MAP_POPULATE)?;
            self.lane_header(lane).into_iter().for_each(|header| header.begin_small(shared));
            self.rings.fetch_add(1, Ordering::Release);
        }
        for slab in self.slabs()..slabs.min(SLABS) {
            let at = SLABS_AT + slab * SLAB_BYTES;
            commit_somewhere(base, at, SLAB_BYTES, file, libc::MAP_POPULATE)?;
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
        let shared = commit_somewhere(self.reserved()?, at, RING_BYTES - STARTER_BYTES, file, 0)?;
        header.become_whole(shared);
        Ok(())
    }

    /// Makes the pages of a whole lane's ring present.
    pub fn prefault(&self, lane: usize) {
        let (Ok(base), true) = (self.reserved(), lane < self.rings()) else { return };
        let at = base.wrapping_add(RINGS_AT + lane * RING_BYTES).cast::<c_void>();
        // SAFETY: the range is mapped, and its contents stay as they are. Kernels before 5.14
        // refuse, and the first stores fault.
        unsafe { libc::madvise(at, RING_BYTES, libc::MADV_POPULATE_WRITE) };
    }

    fn reserved(&self) -> io::Result<*mut u8> {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() { Err(io::Error::other("nothing is reserved")) } else { Ok(base) }
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
        let base = self.base.load(Ordering::Acquire);
        if base.is_null() || lane >= LANES {
            return None;
        }
        // SAFETY: within the lane table, which `reserve` committed before it stored `base`.
        let at = unsafe { base.add(lane * LANE_STRIDE) };
        // SAFETY: aligned to 512, initialised (zero is valid for atomics), and mapped for the rest
        // of the process; all access is atomic.
        Some(unsafe { &*at.cast::<LaneHeader>() })
    }

    /// The ring of a lane; `None` if the lane is not usable. Its memory ends where the lane's
    /// header says.
    #[must_use]
    #[inline(always)]
    pub fn ring(&self, lane: usize) -> Option<&'static Ring> {
        // SAFETY: the lane is usable.
        (lane < self.rings()).then(|| unsafe { self.ring_at(lane) })
    }

    /// A lane that `holder` holds.
    #[must_use]
    #[inline(always)]
    pub fn held(&self, lane: usize, holder: u64) -> Option<(&'static LaneHeader, &'static Ring)> {
        let header = self.lane_header(lane).filter(|header| header.is_held_by(holder))?;
        // SAFETY: only usable lanes are claimed.
        Some((header, unsafe { self.ring_at(lane) }))
    }

    /// The ring of a lane.
    ///
    /// # Safety
    /// The lane must be usable.
    #[inline(always)]
    unsafe fn ring_at(&self, lane: usize) -> &'static Ring {
        let base = self.base.load(Ordering::Relaxed);
        // SAFETY: the lane is usable, so that `base` is set and the range is inside.
        let at = unsafe { base.add(RINGS_AT + lane * RING_BYTES) };
        // SAFETY: page-aligned, mapped for the rest of the process, and atomic; words that are no
        // memory yet are not touched, because neither end goes beyond `LaneHeader::memory`.
        unsafe { &*at.cast::<Ring>() }
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

/// Commits a piece, shared if that is possible, else private. True if it is shared.
fn commit_somewhere(
    base: *mut u8,
    at: usize,
    len: usize,
    file: Option<&File>,
    flags: c_int,
) -> io::Result<bool> {
    if file.is_some() && commit(base, at, len, file, flags).is_ok() {
        return Ok(true);
    }
    commit(base, at, len, None, flags).map(|()| false)
}

/// Makes reserved addresses usable: file pages first, then the mapping, with `flags`. `at` is the
/// place in the region.
fn commit(
    base: *mut u8,
    at: usize,
    len: usize,
    file: Option<&File>,
    flags: c_int,
) -> io::Result<()> {
    let (kind, fd, offset) = match file {
        Some(file) => {
            let offset = lanes_file::TABLE + at as u64;
            let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
            allocate(file, offset, len)?;
            (libc::MAP_SHARED, file.as_raw_fd(), offset)
        }
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | kind | libc::MAP_FIXED;
    let address = base.wrapping_add(at).cast::<c_void>();
    // SAFETY: the caller passes a page-aligned part of the region's own reservation, so that
    // MAP_FIXED replaces nothing else.
    let mapped = unsafe { libc::mmap(address, len, access, flags, fd, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

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
