// SPDX-License-Identifier: Apache-2.0
//! NCCL's activation masks: which events each NCCL of the process makes callbacks for.

use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, Ordering};

/// The activation mask of a communicator's NCCL. All communicators of one NCCL share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActivationMask(NonNull<AtomicI32>);

// SAFETY: points to an atomic integer, which any thread may access.
unsafe impl Send for ActivationMask {}

impl ActivationMask {
    /// The mask at `pointer`; `None` for NULL.
    ///
    /// # Safety
    /// `pointer` is NULL, or points to an integer that all threads access atomically and that stays
    /// valid until the communicator whose `init` passed it is finalized.
    #[must_use]
    pub unsafe fn new(pointer: *mut c_int) -> Option<ActivationMask> {
        NonNull::new(pointer.cast::<AtomicI32>()).map(ActivationMask)
    }

    /// Adds bits. True if some of them were not set.
    pub fn set(self, bits: u32) -> bool {
        // SAFETY: by the promise of `new`; [`Masks`] removes it with its communicator.
        let mask = unsafe { self.0.as_ref() };
        mask.fetch_or(bits.cast_signed(), Ordering::Relaxed).cast_unsigned() & bits != bits
    }

    fn clear(self, bits: u32) {
        // SAFETY: as above.
        let mask = unsafe { self.0.as_ref() };
        mask.fetch_and(!bits.cast_signed(), Ordering::Relaxed);
    }
}

/// The activation masks of the live communicators.
#[derive(Debug)]
pub(crate) struct Masks(Vec<(u16, ActivationMask)>);

impl Masks {
    pub(crate) const fn new() -> Masks {
        Masks(Vec::new())
    }

    /// Adds the mask of a communicator that is initialised.
    pub(crate) fn keep(&mut self, comm: u16, mask: ActivationMask) {
        self.0.push((comm, mask));
    }

    /// Removes the mask of a finalized communicator, whose NCCL may be unloaded.
    pub(crate) fn forget(&mut self, comm: u16) {
        self.0.retain(|(of, _)| *of != comm);
    }

    /// Adds bits to all masks. True if some were missing in any of them.
    pub(crate) fn set(&self, bits: u32) -> bool {
        self.0.iter().fold(false, |missing, (_, mask)| mask.set(bits) | missing)
    }

    /// Clears bits in all masks.
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
