// SPDX-License-Identifier: Apache-2.0
//! NCCL's activation masks: which events each NCCL of the process makes callbacks for.

use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, Ordering};

/// The mask of the NCCL that a communicator belongs to. All communicators of one NCCL share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActivationMask(NonNull<AtomicI32>);

// SAFETY: it leads to an atomic integer, which any thread may access.
unsafe impl Send for ActivationMask {}

impl ActivationMask {
    /// The mask at `pointer`; `None` for NULL.
    ///
    /// # Safety
    /// `pointer` is NULL, or leads to an integer that all threads access atomically, and that is
    /// there until the communicator whose `init` passed it is finalized.
    #[must_use]
    pub unsafe fn new(pointer: *mut c_int) -> Option<ActivationMask> {
        NonNull::new(pointer.cast::<AtomicI32>()).map(ActivationMask)
    }

    /// Adds bits. True if they were not all there.
    pub fn set(self, bits: u32) -> bool {
        // SAFETY: by the promise of `new`; [`Masks`] forgets it with its communicator.
        let mask = unsafe { self.0.as_ref() };
        mask.fetch_or(bits.cast_signed(), Ordering::Relaxed).cast_unsigned() & bits != bits
    }

    fn clear(self, bits: u32) {
        // SAFETY: as above.
        let mask = unsafe { self.0.as_ref() };
        mask.fetch_and(!bits.cast_signed(), Ordering::Relaxed);
    }
}

/// The masks of the communicators that are alive.
#[derive(Debug)]
pub(crate) struct Masks(Vec<(u16, ActivationMask)>);

impl Masks {
    pub(crate) const fn new() -> Masks {
        Masks(Vec::new())
    }

    /// A communicator is initialised.
    pub(crate) fn keep(&mut self, comm: u16, mask: ActivationMask) {
        self.0.push((comm, mask));
    }

    /// A communicator is finalized: its NCCL may be unloaded.
    pub(crate) fn forget(&mut self, comm: u16) {
        self.0.retain(|(of, _)| *of != comm);
    }

    /// Adds bits everywhere. True if some were missing somewhere.
    pub(crate) fn set(&self, bits: u32) -> bool {
        self.0.iter().fold(false, |missing, (_, mask)| mask.set(bits) | missing)
    }

    /// Takes bits away everywhere.
    pub(crate) fn clear(&self, bits: u32) {
        self.0.iter().for_each(|(_, mask)| mask.clear(bits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_written_as_long_as_a_communicator_has_it() {
        let word = AtomicI32::new(0x8000);
        // SAFETY: `word` outlives `masks`, and is atomic.
        let mask = unsafe { ActivationMask::new(word.as_ptr()) }.unwrap();
        let mut masks = Masks::new();
        masks.keep(0, mask);
        masks.keep(1, mask);
        assert!(masks.set(0x5) && !masks.set(0x5), "missing once");
        masks.clear(0x1);
        assert_eq!(word.load(Ordering::Relaxed), 0x8004, "what others set stays");
        masks.forget(0);
        assert!(masks.set(0x3));
        masks.forget(1);
        masks.clear(u32::MAX);
        assert_eq!(word.load(Ordering::Relaxed), 0x8007);
    }
}
