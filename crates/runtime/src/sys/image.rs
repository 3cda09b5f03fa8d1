// SPDX-License-Identifier: Apache-2.0
//! Finds the loaded shared library that contains an address.

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;

/// Keeps a shared library loaded until it is dropped.
#[derive(Debug)]
pub(crate) struct Image(NonNull<c_void>);

// SAFETY: a handle of the dynamic linker, which may be used on any thread.
unsafe impl Send for Image {}
// SAFETY: as above; the linker has its own lock.
unsafe impl Sync for Image {}

impl Image {
    /// The library that contains `address`. `None` for the program itself, which is never unloaded,
    /// and for addresses outside of libraries.
    pub(crate) fn of(address: usize) -> Option<Image> {
        // SAFETY: zero is a valid value of this plain C struct.
        let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
        // SAFETY: `info` is valid to write to; any address may be asked for.
        let found = unsafe { libc::dladdr(core::ptr::without_provenance(address), &raw mut info) };
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: a name that the loader keeps; NOLOAD only counts a reference to a loaded image.
        let image = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        NonNull::new(image).map(Image)
    }

    /// The address of a symbol of the library.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: gives back the reference that `of` took.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_an_address_in_it() {
        let image = Image::of(libc::getpid as *const () as usize).unwrap();
        assert!(image.symbol(c"getpid").is_some() && image.symbol(c"no such").is_none());
        assert!(Image::of(0).is_none());
    }
}
