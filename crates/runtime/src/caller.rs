// SPDX-License-Identifier: Apache-2.0
/*!
What callbacks must know of the library that calls them: the unit of the times of its kernels, and
whose descriptors it passes. All communicators of a process share both, and `attach` sets them
before a communicator has callbacks.
*/

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ncclscope_trace::Vendor;

/// No communicator was attached.
const UNSET: u64 = u64::MAX;
/// How long a tick of the times of kernels is, ns; 0: unknown.
static TIMER_NS: AtomicU64 = AtomicU64::new(UNSET);
/// The library is AMD's.
static IS_RCCL: AtomicBool = AtomicBool::new(false);

/// The time of a kernel in ns, from what a callback got. 0, which means that there is no time, if
/// the unit is unknown.
#[must_use]
#[inline(always)]
pub fn kernel_time(ticks: u64) -> u64 {
    ticks.wrapping_mul(TIMER_NS.load(Ordering::Relaxed))
}

/// Whether the library is AMD's RCCL, whose descriptors differ from NCCL's:
/// - Its version 7 is one from before NCCL's release: without the application's tag, and the 8
///   bytes at the end that hold it (`src/include/plugin/profiler/profiler_v7.h`).
/// - It has up to 512 channels (`MAXCHANNELS`), and one byte for their number.
///
/// Both are in ROCm/rocm-systems, `projects/rccl`.
#[must_use]
#[inline(always)]
pub fn is_rccl() -> bool {
    IS_RCCL.load(Ordering::Relaxed)
}

/// The unit of the times of kernels, ns; 0: unknown, so that kernels have no times.
pub(crate) fn timer_ns() -> u32 {
    u32::try_from(TIMER_NS.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Notes the library of a communicator. At the first one with which the times of kernels are
/// dropped, returns the line that says so.
pub(crate) fn note(vendor: Vendor, timer_ns: Option<u32>) -> Option<&'static str> {
    if vendor == Vendor::Amd {
        IS_RCCL.store(true, Ordering::Relaxed);
    }
    let new = timer_ns.map_or(0, u64::from);
    let order = Ordering::Relaxed;
    let is_lost = match TIMER_NS.compare_exchange(UNSET, new, order, order) {
        Ok(_) => new == 0,
        Err(before) if before == new => false,
        Err(before) => {
            TIMER_NS.store(0, order);
            before != 0
        }
    };
    is_lost.then_some(if new == 0 { NOT_SAID } else { DIFFERENT })
}

const NOT_SAID: &str = "RCCL gives the times of kernels in ticks of the GPU's timer, and HIP does \
                        not say how long a tick is: kernels have no times";
const DIFFERENT: &str = "the GPUs of this process have timers of different rates: from now on \
                         kernels have no times";

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because all share the process's values.
    #[test]
    fn ticks_become_ns_as_long_as_their_length_is_known() {
        assert!(!is_rccl());
        assert_eq!(note(Vendor::Amd, Some(10)), None);
        assert!(is_rccl());
        assert_eq!((kernel_time(7), note(Vendor::Amd, Some(10))), (70, None));
        assert_eq!(note(Vendor::Amd, Some(40)), Some(DIFFERENT));
        assert_eq!((kernel_time(7), note(Vendor::Amd, None)), (0, None));
        assert_eq!((note(Vendor::Nvidia, Some(1)), kernel_time(7)), (None, 0));
        TIMER_NS.store(UNSET, Ordering::Relaxed);
        assert_eq!((note(Vendor::Amd, None), kernel_time(7), timer_ns()), (Some(NOT_SAID), 0, 0));
        TIMER_NS.store(UNSET, Ordering::Relaxed);
    }
}
