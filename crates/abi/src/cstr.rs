// SPDX-License-Identifier: Apache-2.0
//! C strings in NCCL's descriptors, which may be NULL.

use core::ffi::{CStr, c_char};
use core::fmt;

/// The address of a C string of NCCL, or NULL. Only [`Str::to_cstr`] reads through it.
///
/// Equality is of addresses: two equal strings at different addresses differ. All strings of
/// descriptors are literals inside libnccl, or inside this library for version 1, so an address
/// stands for one text as long as libnccl stays loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Str(*const c_char);

impl Str {
    /// NULL: no string.
    pub const NULL: Self = Self(core::ptr::null());

    /// The string at `ptr`, which may be NULL.
    #[inline(always)]
    #[must_use]
    pub const fn from_ptr(ptr: *const c_char) -> Self {
        Self(ptr)
    }

    /// A literal.
    #[inline(always)]
    #[must_use]
    pub const fn from_static(text: &'static CStr) -> Self {
        Self(text.as_ptr())
    }

    /// Its address; NULL if there is no string.
    #[inline(always)]
    #[must_use]
    pub const fn as_ptr(self) -> *const c_char {
        self.0
    }

    /// Its address as a number, by which it can be interned; 0 if there is no string.
    #[inline(always)]
    #[must_use]
    pub fn addr(self) -> u64 {
        self.0.addr() as u64
    }

    /// Whether there is no string.
    #[inline(always)]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The text without its final NUL; `None` for NULL.
    ///
    /// # Safety
    /// If not NULL, the pointer must lead to a NUL-terminated string that stays readable and
    /// unchanged for `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn to_cstr<'a>(self) -> Option<&'a CStr> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not NULL, and the rest is the caller's promise.
        Some(unsafe { CStr::from_ptr(self.0) })
    }
}

impl Default for Str {
    fn default() -> Self {
        Self::NULL
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Str({:p})", self.0)
    }
}
