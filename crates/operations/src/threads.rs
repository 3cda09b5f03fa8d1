// SPDX-License-Identifier: Apache-2.0
//! Which of NCCL's threads a lane belonged to, by the kinds of its events.

use ncclscope_trace::Recording;
use ncclscope_trace::kind::Part;

const API: u32 = Part::Api.kinds() | Part::CopyEngine.kinds();
const PLAN: u32 = Part::Plan.kinds();
const PROXY: u32 = Part::Proxy.kinds() | Part::Control.kinds();
const KERNEL: u32 = Part::Kernel.kinds();
const NET: u32 = Part::Net.kinds();

/// The role of the thread (or threads, one after another) that used a lane, from the kinds of
/// event started on it. `has_api`: the process has API events.
#[must_use]
pub fn role(kinds: u32, has_api: bool) -> &'static str {
    let has = |mask: u32| kinds & mask != 0;
    match (has(API), has(PLAN), has(PROXY)) {
        (true, _, true) | (_, true, true) => "mixed",
        (true, _, false) => "api",
        // Plans are handed over by the calling thread, or by CUDA's callback thread for graphs.
        (false, true, false) if has_api => "callback",
        (false, true, false) => "api",
        (false, false, true) => "proxy",
        (false, false, false) if has(KERNEL) => "kernel",
        (false, false, false) if has(NET) => "net",
        // It only stopped events.
        _ => "other",
    }
}

/// The roles of the used lanes of a recording, in the order of the lanes.
#[must_use]
pub fn roles(recording: &Recording) -> Vec<&'static str> {
    let used = || recording.lanes().iter().filter(|lane| lane.header.used);
    let has_api = used().any(|lane| lane.header.kinds & API != 0);
    used().map(|lane| role(lane.header.kinds, has_api)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::EventKind;

    #[test]
    fn roles_by_kinds() {
        let bits = |kinds: &[EventKind]| kinds.iter().fold(0, |mask, kind| mask | kind.bit());
        let plan = bits(&[EventKind::Group, EventKind::Coll]);
        assert_eq!(role(bits(&[EventKind::GroupApi]) | plan, true), "api");
        assert_eq!(role(plan, false), "api");
        assert_eq!(role(plan, true), "callback");
        let proxy = bits(&[EventKind::ProxyOp, EventKind::KernelCh]);
        assert_eq!(role(proxy, true), "proxy");
        assert_eq!(role(bits(&[EventKind::ProxyCtrl]), true), "proxy");
        assert_eq!(role(bits(&[EventKind::KernelCh]), true), "kernel");
        assert_eq!(role(bits(&[EventKind::NetPlugin]), true), "net");
        assert_eq!(role(proxy | plan, true), "mixed");
        assert_eq!(role(0, true), "other");
    }
}
