// SPDX-License-Identifier: Apache-2.0
//! Finds the loaded shared library that contains an address.

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;

/// Keeps a shared library loaded until it is dropped.
#[derive(Debug)]
pub(crate) struct Image {
    handle: NonNull<c_void>,
    file: String,
}

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
        let handle = NonNull::new(image)?;
        // SAFETY: as above; the image stays loaded.
        let file = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
        Some(Image { handle, file })
    }

    /// The name of its file.
    pub(crate) fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or("")
    }

    /// The address of a symbol of the library, or of those that it is linked with.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

/// [`Image::symbol`]; without an image, of the program and all that it is linked with.
pub(crate) fn symbol(image: Option<&Image>, name: &CStr) -> Option<NonNull<c_void>> {
    match image {
        Some(image) => image.symbol(name),
        // SAFETY: a C string; this handle is always valid.
        None => NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }),
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: gives back the reference that `of` took.
        unsafe { libc::dlclose(self.handle.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_an_address_in_it() {
        let image = Image::of(libc::getpid as *const () as usize).unwrap();
        assert!(image.file_name().starts_with("libc"));
        assert!(image.symbol(c"getpid").is_some() && image.symbol(c"no such").is_none());
        assert!(Image::of(0).is_none());
    }
}
