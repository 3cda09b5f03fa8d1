// SPDX-License-Identifier: Apache-2.0
//! NCCL's strings, which are NULL if a descriptor leaves them unset.

use core::ffi::{CStr, c_char};
use core::fmt;

/// A C string of NCCL's, or NULL. It is read only where a method says so.
///
/// Equality is of addresses: two equal strings at different addresses differ. All strings of
/// descriptors are literals inside libnccl, or inside this library for version 1, so an address
/// stands for one text as long as libnccl stays loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Str(*const c_char);

impl Str {
    /// No string.
    pub const NULL: Self = Self(core::ptr::null());

    /// The string at `ptr`, or none if that is NULL.
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

    /// Where it lies.
    #[inline(always)]
    #[must_use]
    pub const fn as_ptr(self) -> *const c_char {
        self.0
    }

    /// Where it lies, as a number: 0 for none. What interning by address needs.
    #[inline(always)]
    #[must_use]
    pub fn addr(self) -> u64 {
        self.0.addr() as u64
    }

    /// Whether there is none.
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
