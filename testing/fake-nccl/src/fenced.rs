// SPDX-License-Identifier: Apache-2.0
//! A copy of a descriptor that ends where no memory follows, so that a read beyond it is fatal.

use crate::descr::Descr;
use core::ffi::c_void;
use core::ptr::NonNull;

/// Bytes of the fence, and of the memory before it: the largest page size of machines that run
/// NCCL.
const PAGE: usize = 64 << 10;

pub(crate) struct Fenced {
    pages: NonNull<u8>,
    bytes: usize,
}

impl Fenced {
    /// A copy of a descriptor without its last `cut` bytes.
    pub(crate) fn new(descr: &mut Descr, cut: usize) -> Fenced {
        let (access, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the system puts it.
        let pages = unsafe { libc::mmap(core::ptr::null_mut(), 2 * PAGE, access, flags, -1, 0) };
        // SAFETY: the first half of the mapping.
        let opened = unsafe { libc::mprotect(pages, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert!(pages != libc::MAP_FAILED && opened == 0, "there is memory");
        let pages = NonNull::new(pages.cast::<u8>()).expect("a mapping is not at 0");
        let bytes = descr.bytes();
        let bytes = &bytes[..bytes.len() - cut];
        let fenced = Fenced { pages, bytes: bytes.len() };
        let to = fenced.address().cast::<u8>();
        // SAFETY: so many bytes before the fence are writable.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        fenced
    }

    pub(crate) fn address(&self) -> *mut c_void {
        // SAFETY: inside the first half of the mapping.
        unsafe { self.pages.as_ptr().add(PAGE - self.bytes).cast() }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), 2 * PAGE) };
    }
}
