// SPDX-License-Identifier: Apache-2.0
//! Names at a fixed distance from each other.
//!
//! The recorder looks up names by their addresses in a hash table, in which a collision of two
//! names costs some sixty instructions more. The linker places literals arbitrarily. A program that
//! passes its own names, or that counts instructions, avoids collisions by this layout.

use core::ffi::CStr;

/// Bytes from one name to the next. Forty names at this distance do not collide, at any load
/// address; a test of the recorder's interner checks that.
pub const STRIDE: usize = 21;

/// `N` names of less than [`STRIDE`] bytes each. Put it into a `static`, because the addresses of
/// the names matter.
#[derive(Debug)]
#[repr(transparent)]
pub struct Names<const N: usize>([[u8; STRIDE]; N]);

impl<const N: usize> Names<N> {
    /// Copies the names into the layout.
    ///
    /// # Panics
    /// If a name is too long. In a `static` that is a compile error.
    #[must_use]
    pub const fn new(names: [&CStr; N]) -> Names<N> {
        let mut places = [[0; STRIDE]; N];
        let mut i = 0;
        while i < N {
            let text = names[i].to_bytes_with_nul();
            places[i].split_at_mut(text.len()).0.copy_from_slice(text);
            i += 1;
        }
        Names(places)
    }

    /// The names, at their addresses in this layout.
    #[must_use]
    pub const fn all(&'static self) -> [&'static CStr; N] {
        let mut names = [c""; N];
        let mut i = 0;
        while i < N {
            if let Ok(name) = CStr::from_bytes_until_nul(&self.0[i]) {
                names[i] = name;
            }
            i += 1;
        }
        names
    }
}
