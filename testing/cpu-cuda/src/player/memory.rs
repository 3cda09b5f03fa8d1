// SPDX-License-Identifier: Apache-2.0
//! Memory that NCCL's threads, other ranks and the player share.
//!
//! The stand-in's device addresses are host addresses, so whatever pointer NCCL passes to a kernel
//! can be followed. All raw accesses of the player are here. Flags and counters are atomic with
//! acquire and release order; data is copied, because these counters determine its owner.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An address in memory that NCCL gave to a kernel.
///
/// # Validity
///
/// Every `Addr` comes from the launch arguments, from a pointer read at a place that the library's
/// DWARF names, or from either plus an offset within its allocation. NCCL keeps those allocations
/// for the duration of the launch, as it must for a GPU. The methods rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addr(usize);

impl Addr {
    /// Wraps an address; see the validity rule of the type.
    pub(crate) const fn new(address: usize) -> Self {
        Self(address)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0 as u64
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn add(self, bytes: usize) -> Self {
        Self(self.0 + bytes)
    }

    fn ptr(self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.0)
    }

    fn mut_ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    fn u64(self) -> &'static AtomicU64 {
        debug_assert!(self.0.is_multiple_of(8), "unaligned counter");
        // SAFETY: valid by the type's rule for as long as the caller uses it (each method below
        // drops it at once), 8-byte aligned by C's layout, and only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.mut_ptr().cast()) }
    }

    fn u32(self) -> &'static AtomicU32 {
        debug_assert!(self.0.is_multiple_of(4), "unaligned flag");
        // SAFETY: as for `u64`, 4-byte aligned.
        unsafe { AtomicU32::from_ptr(self.mut_ptr().cast()) }
    }

    /// Reads a counter or flag; what its writer stored before is visible afterwards.
    pub(crate) fn load_u64(self) -> u64 {
        self.u64().load(Ordering::Acquire)
    }

    /// Publishes a counter or flag after everything stored before.
    pub(crate) fn store_u64(self, value: u64) {
        self.u64().store(value, Ordering::Release);
    }

    /// Reads a flag.
    pub(crate) fn load_u32(self) -> u32 {
        self.u32().load(Ordering::Acquire)
    }

    /// Publishes a flag.
    pub(crate) fn store_u32(self, value: u32) {
        self.u32().store(value, Ordering::Release);
    }

    /// Reads a C `int`.
    pub(crate) fn load_i32(self) -> i32 {
        self.load_u32().cast_signed()
    }

    /// Reads a pointer.
    pub(crate) fn load_addr(self) -> Self {
        Self(usize::try_from(self.load_u64()).expect("64-bit pointers"))
    }

    /// Copies memory out.
    pub(crate) fn copy_to(self, into: &mut [u8]) {
        // SAFETY: `into.len()` bytes are readable by the type's rule, `into` is the player's own.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies memory in.
    pub(crate) fn copy_from(self, from: &[u8]) {
        // SAFETY: `from.len()` bytes are writable by the type's rule, `from` is the player's own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.mut_ptr(), from.len()) }
    }

    /// Copies `bytes` from another address; the two may overlap.
    pub(crate) fn copy_within(self, from: Self, bytes: usize) {
        // SAFETY: both ends are valid for `bytes` by the type's rule.
        unsafe { std::ptr::copy(from.ptr(), self.mut_ptr(), bytes) }
    }
}

/// Reads a little-endian `u32` of a struct that was copied out.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("4 bytes"))
}

/// Reads a little-endian `u64` of a struct that was copied out.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
}

/// Reads a size of a struct that was copied out.
pub(crate) fn usize_at(bytes: &[u8], offset: usize) -> usize {
    usize::try_from(u64_at(bytes, offset)).expect("64-bit sizes")
}

/// Reads a pointer of a struct that was copied out.
pub(crate) fn addr_at(bytes: &[u8], offset: usize) -> Addr {
    Addr::new(usize_at(bytes, offset))
}
