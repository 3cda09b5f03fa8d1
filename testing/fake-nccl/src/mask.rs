// SPDX-License-Identifier: Apache-2.0
//! NCCL's activation mask, on its own page: a test can write-protect it, so that a write is fatal.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use libloading::os::unix::Library;
use std::path::Path;

/// Bytes mapped for the mask: the largest page size of machines that run NCCL.
const PAGE: usize = 64 << 10;

/// The mask. It is NCCL's global and outlives every plugin: it is never unmapped.
#[derive(Debug)]
pub struct Mask(&'static AtomicI32);

impl Mask {
    /// A mask that requests nothing.
    ///
    /// # Errors
    /// The system's error text if it has no memory.
    pub fn new() -> Result<Mask, String> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever the system puts it.
        let page = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, access, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().to_string());
        }
        // SAFETY: aligned, zeroed, mapped for the rest of the process, and only used atomically.
        Ok(Mask(unsafe { AtomicI32::from_ptr(page.cast::<i32>()) }))
    }

    /// The mask of a library that is loaded now and stays loaded.
    ///
    /// # Errors
    /// The loader's error text.
    pub fn of(library: &Path) -> Result<Mask, String> {
        // SAFETY: running the library's initialisers is what this is for.
        let library = unsafe { Library::new(library) }.map_err(|e| e.to_string())?;
        // SAFETY: NCCL's global of this name is an integer.
        let mask = *unsafe { library.get::<*mut c_int>(b"ncclProfilerEventMask\0") }
            .map_err(|e| e.to_string())?;
        // It stays loaded.
        let _ = library.into_raw();
        // SAFETY: aligned, never unmapped, and only used atomically.
        Ok(Mask(unsafe { AtomicI32::from_ptr(mask) }))
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed).cast_unsigned()
    }

    /// Writes the mask, as RAS or another profiler does.
    pub fn set(&self, mask: i32) {
        self.0.store(mask, Ordering::Relaxed);
    }

    /// The address that `init` gets.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut c_int {
        self.0.as_ptr()
    }

    /// Makes writes fault with SIGSEGV, or allows them again.
    ///
    /// # Panics
    /// If the system call fails.
    pub fn seal(&self, sealed: bool) {
        let access = if sealed { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
        // SAFETY: the range is the whole mapping made by `new`, which holds nothing but the mask.
        let result = unsafe { libc::mprotect(self.as_ptr().cast::<c_void>(), PAGE, access) };
        assert_eq!(result, 0, "the mask's page cannot be sealed");
    }
}
