// SPDX-License-Identifier: Apache-2.0
/*!
The memory that callbacks write to: lane table, lane rings, ProxyOp slabs.

One address range is reserved once; pieces of it are made usable ("committed") ahead of need, by
`init` and by the drain thread, never by a callback. A piece is either shared with the recording's
file, whose blocks are allocated first (a hole would be a SIGBUS when the disk is full), or private.
*/

use crate::lane::{LaneHeader, Ring};
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use core::ffi::c_void;
use core::ptr;
use ncclscope_trace::handle::LANES;
use ncclscope_trace::layout::{
    Header, LANE_STRIDE, LANE_TABLE, RING_BYTES, SLAB_BYTES, SLAB_SLOTS, SLABS, SLOT_BYTES,
};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const TABLE_BYTES: usize = LANES * LANE_STRIDE;
const RINGS_AT: usize = TABLE_BYTES;
const SLABS_AT: usize = RINGS_AT + LANES * RING_BYTES;
const TOTAL: usize = SLABS_AT + SLABS * SLAB_BYTES;
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

    /// Reserves the addresses and commits the lane table. `file` is the recording to share with,
    /// with its header; without it everything is private. Call once.
    ///
    /// # Errors
    /// The system's: no address space, no room in the file, or a file system without mappings.
    pub fn reserve(&self, file: Option<(&File, &Header)>) -> io::Result<()> {
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
        let shared = file.map(|(file, _)| (file, LANE_TABLE));
        if let Err(error) = commit(base, TABLE_BYTES, shared) {
            // SAFETY: exactly what was mapped above; nobody has its address yet.
            unsafe { libc::munmap(base.cast::<c_void>(), TOTAL) };
            return Err(error);
        }
        self.base.store(base, Ordering::Release);
        Ok(())
    }

    /// Makes rings and slabs usable until there are `rings` and `slabs` of them (at most all).
    ///
    /// # Errors
    /// The system's; what was committed before stays usable.
    pub fn grow(
        &self,
        rings: usize,
        slabs: usize,
        file: Option<(&File, &Header)>,
    ) -> io::Result<()> {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() {
            return Err(io::Error::other("nothing is reserved"));
        }
        for ring in self.rings()..rings.min(LANES) {
            // SAFETY: ring `ring` lies within the TOTAL bytes reserved at `base`.
            let at = unsafe { base.add(RINGS_AT + ring * RING_BYTES) };
            commit(at, RING_BYTES, file.map(|(f, h)| (f, h.ring_offset(ring))))?;
            self.rings.fetch_add(1, Ordering::Release);
        }
        for slab in self.slabs()..slabs.min(SLABS) {
            // SAFETY: slab `slab` lies within the TOTAL bytes reserved at `base`.
            let at = unsafe { base.add(SLABS_AT + slab * SLAB_BYTES) };
            commit(at, SLAB_BYTES, file.map(|(f, h)| (f, h.slab_offset(slab))))?;
            self.slabs.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Replaces the shared rings and slabs by private memory, so that the file can be cut. What a
    /// late callback still writes goes nowhere. The lane table stays shared.
    pub fn detach(&self) {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() {
            return;
        }
        for (at, len) in
            [(RINGS_AT, self.rings() * RING_BYTES), (SLABS_AT, self.slabs() * SLAB_BYTES)]
        {
            // SAFETY: the range lies within the TOTAL bytes reserved at `base`.
            let start = unsafe { base.add(at) };
            // Without memory for that the file simply keeps its size.
            let _ = commit(start, len, None);
        }
    }

    /// How many rings are usable: lanes below this number.
    #[must_use]
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

    /// The ring of a lane; `None` if it is not committed.
    #[must_use]
    pub fn ring(&self, lane: usize) -> Option<&'static Ring> {
        if lane >= self.rings() {
            return None;
        }
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: ring `lane` is committed, so `base` is set and the range is inside.
        let at = unsafe { base.add(RINGS_AT + lane * RING_BYTES) };
        // SAFETY: page-aligned, initialised, mapped for the rest of the process, atomic access.
        Some(unsafe { &*at.cast::<Ring>() })
    }

    /// Where slot 0 lies; null before [`Region::reserve`]. Slots of committed slabs may be used.
    #[must_use]
    #[inline(always)]
    pub fn slots_base(&self) -> *mut u8 {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() { base } else { base.wrapping_add(SLABS_AT) }
    }

    /// True if the slot lies in a committed slab.
    #[must_use]
    #[inline(always)]
    pub fn has_slot(&self, slot: usize) -> bool {
        slot / SLAB_SLOTS < self.slabs.load(Ordering::Relaxed) as usize
    }
}

impl Default for Region {
    fn default() -> Region {
        Region::new()
    }
}

const _: () = assert!(SLAB_BYTES == SLAB_SLOTS * SLOT_BYTES);

/// Makes reserved addresses usable: file blocks first, then the mapping, pages present.
fn commit(at: *mut u8, len: usize, file: Option<(&File, u64)>) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let (flags, fd, offset) = match file {
        Some((file, offset)) => {
            let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
            allocate(file, offset, len)?;
            (libc::MAP_SHARED, file.as_raw_fd(), offset)
        }
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_FIXED | libc::MAP_POPULATE;
    // SAFETY: the caller passes a page-aligned part of the region's own reservation, so that
    // MAP_FIXED replaces nothing else.
    let mapped = unsafe { libc::mmap(at.cast::<c_void>(), len, access, flags, fd, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives the file real blocks, so that no store to the mapping finds the disk full.
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
