// SPDX-License-Identifier: Apache-2.0
//! Names at a fixed distance from each other.
//!
//! The recorder looks up names by their addresses. A name that shares its place in the recorder's
//! table with another costs some sixty instructions more. The linker places literals arbitrarily; a
//! program with names of its own, or one that counts instructions, avoids collisions with this
//! table.

use core::ffi::CStr;

/// Bytes from one name to the next. No two of forty names at this distance share a place, wherever
/// the library is loaded; the recorder's interner has the test.
pub const STRIDE: usize = 21;

/// `N` names of less than [`STRIDE`] bytes each. To be put into a `static`: what counts is where
/// they lie.
#[derive(Debug)]
#[repr(transparent)]
pub struct Names<const N: usize>([[u8; STRIDE]; N]);

impl<const N: usize> Names<N> {
    /// Lays the names out.
    ///
    /// # Panics
    /// Where a name is too long; with a `static`, when it is compiled.
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

    /// The names, where they lie.
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
