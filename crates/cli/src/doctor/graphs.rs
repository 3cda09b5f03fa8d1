// SPDX-License-Identifier: Apache-2.0
//! The additional work that kernel channel events cause in a CUDA graph, by release.

use super::check::Check;
use ncclscope_control::releases::{InGraphs, Release};
use ncclscope_control::value::KernelEvents;

/// The check for a release with a value of `NCCLSCOPE_KERNEL`; `None` if these events are off, or
/// what they add was not counted.
pub(super) fn check(release: &Release, kernel: KernelEvents) -> Option<Check> {
    let is_on = match kernel {
        KernelEvents::Off => false,
        KernelEvents::On => true,
        KernelEvents::Auto => release.by_default,
    };
    let name = "CUDA graphs";
    let polls = match release.in_graphs {
        _ if !is_on => return None,
        InGraphs::Nothing | InGraphs::Untried => return None,
        InGraphs::Crashes => {
            let advice = "leave NCCLSCOPE_KERNEL unset, or use 2.30.7";
            return Some(Check::warn(name, release.reason, advice));
        }
        InGraphs::Polls => {
            ", and a thread of NCCL polls for each communicator while work is queued"
        }
        InGraphs::HostFunctions => "",
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
    use ncclscope_control::releases::of_release;
    use ncclscope_trace::Vendor;

    fn check(version: u32, kernel: KernelEvents) -> Option<Check> {
        super::check(of_release(Vendor::Nvidia, version), kernel)
    }

    #[test]
    fn only_where_kernel_events_are_on() {
        assert!(check(22501, Auto).is_none() && check(22501, On).is_none());
        assert!(check(23102, Auto).is_none() && check(22809, Off).is_none());
        assert!(check(23007, Auto).is_none());
        for version in [22605, 22809] {
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
