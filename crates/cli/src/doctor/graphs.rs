// SPDX-License-Identifier: Apache-2.0
//! The additional work that kernel channel events cause in a CUDA graph, by release.

use super::check::Check;
use ncclscope_control::value::KernelEvents;
use ncclscope_operations::kernels;

/// The releases that have kernel channel events, and poll for them on a thread of their own.
const POLLS: std::ops::Range<u32> = 22600..23100;
/// Crashes with kernel channel events and graphs (NVIDIA/nccl#2112).
const CRASHES: u32 = 23003;

/// Of a release (23007 is 2.30.7) with a value of `NCCLSCOPE_KERNEL`; nothing where these events
/// are off.
pub(super) fn check(version: u32, kernel: KernelEvents) -> Option<Check> {
    let is_on = match kernel {
        KernelEvents::Off => false,
        KernelEvents::On => version >= POLLS.start,
        KernelEvents::Auto => version >= POLLS.start && kernels::of_release(version).by_default,
    };
    if !is_on {
        return None;
    }
    let name = "CUDA graphs";
    if version == CRASHES {
        let detail = "NCCL 2.30.3 may crash with kernel events and graphs (NVIDIA/nccl#2112)";
        return Some(Check::warn(name, detail, "leave NCCLSCOPE_KERNEL unset, or use 2.30.7"));
    }
    // Counted on the CPU stand-in: `cargo xtask event-costs`.
    let polls = if version < POLLS.end {
        ", and a thread of NCCL polls for each communicator while work is queued"
    } else {
        ""
    };
    let detail = format!(
        "among ranks of one node, kernel events put a host function into a graph for each launch \
         of NCCL's{polls}"
    );
    let advice = "for inference that replays graphs: NCCLSCOPE_KERNEL=off (docs/env.md)";
    Some(Check::warn(name, detail, advice))
}

#[cfg(test)]
mod tests {
    use super::KernelEvents::{Auto, Off, On};
    use super::*;

    #[test]
    fn only_where_kernel_events_are_on() {
        assert!(check(22501, Auto).is_none() && check(22501, On).is_none());
        assert!(check(23102, Auto).is_none() && check(22809, Off).is_none());
        for version in [22605, 22809, 23007] {
            let check = check(version, Auto).unwrap();
            assert!(check.detail.contains("host function") && check.detail.contains("polls"));
            assert!(check.advice.unwrap().contains("NCCLSCOPE_KERNEL=off"));
        }
        let newest = check(23203, On).unwrap();
        assert!(newest.detail.contains("host function") && !newest.detail.contains("polls"));
    }

    #[test]
    fn the_release_that_crashes_is_named_where_it_is_asked_for() {
        assert!(check(23003, Auto).is_none());
        assert!(check(23003, On).unwrap().detail.contains("#2112"));
    }
}
