// SPDX-License-Identifier: Apache-2.0
//! Event kinds and states, by NCCL's numbers and names.

use std::fmt;

/// Number of event kinds; kinds are `0..KINDS`.
pub const KINDS: usize = 16;
/// Kinds that a recording of any version has room for: in handles, in the codes of starts and in
/// the counters by kind.
pub const MOST_KINDS: usize = 64;
/// The events that NCCL is asked for unless told otherwise (`NCCLSCOPE_EVENTS=default`), as its
/// activation mask: all but ProxyCtrl (it floods up to NCCL 2.26) and KernelPhase.
pub const DEFAULT_EVENTS: u32 =
    0xffff & !(EventKind::ProxyCtrl.bit() | EventKind::KernelPhase.bit());

/// What an event traces. The value is the bit index of NCCL's activation mask
/// (NCCL `src/include/plugin/nccl_profiler.h`), and the kind in a [`crate::Handle`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are NCCL's and are explained in docs/glossary.md")]
pub enum EventKind {
    Group = 0,
    Coll = 1,
    P2p = 2,
    ProxyOp = 3,
    ProxyStep = 4,
    ProxyCtrl = 5,
    KernelCh = 6,
    NetPlugin = 7,
    GroupApi = 8,
    CollApi = 9,
    P2pApi = 10,
    KernelLaunch = 11,
    CeColl = 12,
    CeSync = 13,
    CeBatch = 14,
    KernelPhase = 15,
}

impl EventKind {
    /// Every kind, in the order of the numbers.
    pub const ALL: [EventKind; KINDS] = [
        EventKind::Group,
        EventKind::Coll,
        EventKind::P2p,
        EventKind::ProxyOp,
        EventKind::ProxyStep,
        EventKind::ProxyCtrl,
        EventKind::KernelCh,
        EventKind::NetPlugin,
        EventKind::GroupApi,
        EventKind::CollApi,
        EventKind::P2pApi,
        EventKind::KernelLaunch,
        EventKind::CeColl,
        EventKind::CeSync,
        EventKind::CeBatch,
        EventKind::KernelPhase,
    ];

    /// The kind with this number, modulo [`KINDS`]: four bits always name a kind.
    #[must_use]
    #[inline(always)]
    pub const fn from_nibble(nibble: u64) -> EventKind {
        EventKind::ALL[(nibble & 15) as usize]
    }

    /// The number, usable as an index of an array of [`KINDS`] elements.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// NCCL's bit of the activation mask.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << (self as u32)
    }

    /// NCCL's name, without the `ncclProfile` prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Group => "Group",
            EventKind::Coll => "Coll",
            EventKind::P2p => "P2p",
            EventKind::ProxyOp => "ProxyOp",
            EventKind::ProxyStep => "ProxyStep",
            EventKind::ProxyCtrl => "ProxyCtrl",
            EventKind::KernelCh => "KernelCh",
            EventKind::NetPlugin => "NetPlugin",
            EventKind::GroupApi => "GroupApi",
            EventKind::CollApi => "CollApi",
            EventKind::P2pApi => "P2pApi",
            EventKind::KernelLaunch => "KernelLaunch",
            EventKind::CeColl => "CeColl",
            EventKind::CeSync => "CeSync",
            EventKind::CeBatch => "CeBatch",
            EventKind::KernelPhase => "KernelPhase",
        }
    }

    /// The kind of that name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|k| k.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A transition inside an event: `ncclProfilerEventState_t`, whose numbers NCCL never reuses
/// (v2.31.2 has 0 to 31). A number that is not known yet is kept as it came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct State(pub u8);

impl State {
    /// The send waits for the GPU to produce data.
    pub const STEP_SEND_GPU_WAIT: State = State(8);
    /// The send is on the network; its size is known.
    pub const STEP_SEND_WAIT: State = State(9);
    /// The receive is posted.
    pub const STEP_RECV_WAIT: State = State(10);
    /// Data arrived and is being flushed; its size is known.
    pub const STEP_RECV_FLUSH_WAIT: State = State(11);
    /// The receive waits for the GPU to consume data.
    pub const STEP_RECV_GPU_WAIT: State = State(12);
    /// The proxy made its first progress on the operation.
    pub const PROXY_OP_IN_PROGRESS: State = State(19);
    /// The send waits for the peer to post its receive.
    pub const STEP_SEND_PEER_WAIT: State = State(20);
    /// The channel's kernel work ended; carries the GPU's timer.
    pub const KERNEL_CH_STOP: State = State(22);
    /// The phase of the kernel ended; carries the GPU's timer.
    pub const KERNEL_PHASE_STOP: State = State(31);
    /// Ours, not NCCL's: on a KernelLaunch, its argument is the time from the launch's turn in its
    /// stream to its kernel's end, in ns, by two CUDA events (docs/probe.md).
    pub const CUDA_EVENT: State = State(254);
    /// Ours, not NCCL's: on an API event, its argument is the application's id of the call that
    /// led to it (`External id` of PyTorch's profiler).
    pub const EXTERNAL_ID: State = State(255);

    /// NCCL's name without `ncclProfiler`, or `None` for a number of a later release.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 32] = [
            "ProxyOpSendPosted",
            "ProxyOpSendRemFifoWait",
            "ProxyOpSendTransmitted",
            "ProxyOpSendDone",
            "ProxyOpRecvPosted",
            "ProxyOpRecvReceived",
            "ProxyOpRecvTransmitted",
            "ProxyOpRecvDone",
            "ProxyStepSendGPUWait",
            "ProxyStepSendWait",
            "ProxyStepRecvWait",
            "ProxyStepRecvFlushWait",
            "ProxyStepRecvGPUWait",
            "ProxyCtrlIdle",
            "ProxyCtrlActive",
            "ProxyCtrlSleep",
            "ProxyCtrlWakeup",
            "ProxyCtrlAppend",
            "ProxyCtrlAppendEnd",
            "ProxyOpInProgress",
            "ProxyStepSendPeerWait",
            "NetPluginUpdate",
            "KernelChStop",
            "GroupStartApiStop",
            "GroupEndApiStart",
            "CeCollStart",
            "CeCollComplete",
            "CeSyncStart",
            "CeSyncComplete",
            "CeBatchStart",
            "CeBatchComplete",
            "KernelPhaseStop",
        ];
        NAMES.get(usize::from(self.0)).copied()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "State{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bit_indices() {
        for (index, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(kind.bit(), 1 << index);
            assert_eq!(EventKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(EventKind::from_name("proxystep"), Some(EventKind::ProxyStep));
        assert_eq!(EventKind::from_name("Kernel"), None);
    }

    #[test]
    fn state_names_follow_nccl() {
        assert_eq!(State::STEP_SEND_PEER_WAIT.to_string(), "ProxyStepSendPeerWait");
        assert_eq!(State::KERNEL_PHASE_STOP.to_string(), "KernelPhaseStop");
        assert_eq!(State(99).to_string(), "State99");
    }
}
