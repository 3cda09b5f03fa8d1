// SPDX-License-Identifier: Apache-2.0
//! NCCL's activation masks: which events each NCCL of the process makes callbacks for.

use super::kernel_hold;
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, Ordering};

/// The activation mask of a communicator's NCCL. All communicators of one NCCL share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActivationMask {
    /// Our requests: NCCL's variable, or that of a chain of plugins.
    ours: NonNull<AtomicI32>,
    /// NCCL's variable.
    nccls: NonNull<AtomicI32>,
}

// SAFETY: points to atomic integers, which any thread may access.
unsafe impl Send for ActivationMask {}

impl ActivationMask {
    /// The mask in which our requests are put, and NCCL's, which is the same unless plugins are
    /// chained; `None` if either is NULL.
    ///
    /// # Safety
    /// The pointers are NULL, or point to integers that all threads access atomically and that stay
    /// valid until the communicator whose `init` passed them is finalized.
    #[must_use]
    pub unsafe fn new(ours: *mut c_int, nccls: *mut c_int) -> Option<ActivationMask> {
        let [ours, nccls] = [ours, nccls].map(|pointer| NonNull::new(pointer.cast()));
        Some(ActivationMask { ours: ours?, nccls: nccls? })
    }

    /// Adds bits, except kernel events that must stay off. True if some of them were not set.
    pub fn set(self, bits: u32) -> bool {
        let bits = bits.cast_signed() & !kernel_hold::refused();
        let [ours, nccls] = self.words();
        let before = ours.fetch_or(bits, Ordering::Relaxed) & nccls.load(Ordering::Relaxed);
        nccls.fetch_or(bits, Ordering::Relaxed);
        before & bits != bits
    }

    fn clear(self, bits: u32) {
        let [ours, _] = self.words();
        ours.fetch_and(!bits.cast_signed(), Ordering::Relaxed);
    }

    /// NCCL's mask, after kernel events that must stay off are cleared in it.
    fn look(self) -> u32 {
        let [_, nccls] = self.words();
        let mask = nccls.load(Ordering::Relaxed);
        let excess = kernel_hold::look(mask);
        if excess != 0 {
            nccls.fetch_and(!excess, Ordering::Relaxed);
        }
        (mask & !excess).cast_unsigned()
    }

    fn words(&self) -> [&AtomicI32; 2] {
        // SAFETY: by the promise of `new`; [`Masks`] removes it with its communicator.
        [self.ours, self.nccls].map(|word| unsafe { word.as_ref() })
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

    /// The bits that NCCL has in all masks, and those that it has in any, after kernel events that
    /// must stay off are cleared; `None` without a communicator.
    pub(crate) fn look(&self) -> Option<[u32; 2]> {
        let masks = self.0.iter().map(|(_, mask)| mask.look());
        masks.map(|mask| [mask; 2]).reduce(|[all, any], [mask, _]| [all & mask, any | mask])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_written_as_long_as_a_communicator_has_it() {
        let word = AtomicI32::new(0x8000);
        // SAFETY: `word` outlives `masks`, and is atomic.
        let mask = unsafe { ActivationMask::new(word.as_ptr(), word.as_ptr()) }.unwrap();
        let mut masks = Masks::new();
        masks.keep(0, mask);
        masks.keep(1, mask);
        assert!(masks.set(0x5) && !masks.set(0x5), "missing once");
        masks.clear(0x1);
        assert_eq!(word.load(Ordering::Relaxed), 0x8004, "what others set stays");
        assert_eq!(masks.look(), Some([0x8004; 2]));
        masks.forget(0);
        assert!(masks.set(0x3));
        masks.forget(1);
        masks.clear(u32::MAX);
        assert_eq!(word.load(Ordering::Relaxed), 0x8007);
    }
}
