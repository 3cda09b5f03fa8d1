// SPDX-License-Identifier: Apache-2.0
//! Finds the role of a thread, or of the threads of a lane, from the kinds of events that it
//! started.

use ncclscope_trace::Recording;
use ncclscope_trace::kind::Part;

const API: u32 = Part::Api.kinds() | Part::CopyEngine.kinds();
const PLAN: u32 = Part::Plan.kinds();
const PROXY: u32 = Part::Proxy.kinds() | Part::Control.kinds();
const KERNEL: u32 = Part::Kernel.kinds();
const NET: u32 = Part::Net.kinds();

/// What a thread does for NCCL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It makes the application's calls, and enqueues.
    Api,
    /// CUDA's callback thread, which enqueues the operations of graph replays.
    Callback,
    /// The proxy thread, which progresses network transfers.
    Proxy,
    /// It enqueues and progresses network transfers: usually two threads that used the lane one
    /// after another.
    Mixed,
    /// It reports kernels only.
    Kernel,
    /// It reports the network plugin only.
    Net,
    /// It started no events.
    #[default]
    Other,
}

impl Role {
    /// The role of the thread (or threads, one after another) that started events of these
    /// `kinds`. `has_api`: the process has API events.
    #[must_use]
    pub const fn of(kinds: u32, has_api: bool) -> Role {
        match (kinds & API != 0, kinds & PLAN != 0, kinds & PROXY != 0) {
            (true, _, true) | (_, true, true) => Role::Mixed,
            (true, _, false) => Role::Api,
            // The calling thread enqueues plans, or for graphs CUDA's callback thread.
            (false, true, false) if has_api => Role::Callback,
            (false, true, false) => Role::Api,
            (false, false, true) => Role::Proxy,
            (false, false, false) if kinds & KERNEL != 0 => Role::Kernel,
            (false, false, false) if kinds & NET != 0 => Role::Net,
            _ => Role::Other,
        }
    }

    /// Its name for users.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Api => "api",
            Role::Callback => "callback",
            Role::Proxy => "proxy",
            Role::Mixed => "mixed",
            Role::Kernel => "kernel",
            Role::Net => "net",
            Role::Other => "other",
        }
    }

    /// Whether it makes the application's calls, or enqueues.
    #[must_use]
    pub const fn enqueues(self) -> bool {
        matches!(self, Role::Api | Role::Callback | Role::Mixed)
    }

    /// Whether it progresses network transfers.
    #[must_use]
    pub const fn is_proxy(self) -> bool {
        matches!(self, Role::Proxy | Role::Mixed)
    }
}

/// Whether a process has API events: `kinds` are those of its lanes.
#[must_use]
pub fn has_api(mut kinds: impl Iterator<Item = u32>) -> bool {
    kinds.any(|kinds| kinds & API != 0)
}

/// The roles of the used lanes of a recording, in the order of the lanes.
#[must_use]
pub fn roles(recording: &Recording) -> Vec<&'static str> {
    let used = || recording.lanes().iter().filter(|lane| lane.header.used);
    let has_api = has_api(used().map(|lane| lane.header.kinds));
    used().map(|lane| Role::of(lane.header.kinds, has_api).name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::EventKind;

    #[test]
    fn roles_by_kinds() {
        let role = |kinds, has_api| Role::of(kinds, has_api).name();
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
