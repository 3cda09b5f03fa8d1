// SPDX-License-Identifier: Apache-2.0
//! Event kinds and states, with NCCL's numbers and names, and the properties that all events of a
//! kind share.

use std::fmt;
use std::ops::RangeInclusive;

/// The first release of NCCL with each version of the profiler API, as a code of `ncclGetVersion`
/// (`src/plugin/profiler.cc` at each tag).
const FIRST_RELEASES: [u32; *API_VERSIONS.end() as usize] =
    [22_300, 22_400, 22_600, 22_700, 22_800, 22_900, 23_100];
/// The versions of NCCL's profiler API that recordings know.
pub const API_VERSIONS: RangeInclusive<u32> = 1..=7;

/// The highest version of the profiler API that a release has, of those that are known.
#[must_use]
pub fn api_of_release(nccl_version: u32) -> Option<u32> {
    let known = FIRST_RELEASES.partition_point(|first| *first <= nccl_version);
    API_VERSIONS.take(known).last()
}

/// Number of kinds for which handles, codes of starts and counters by kind have room in any
/// version.
pub const MOST_KINDS: usize = 64;
/// All events, as NCCL's activation mask (`NCCLSCOPE_EVENTS=all`).
pub const ALL_EVENTS: u32 = mask_of(0);
/// The events that NCCL is asked for unless set otherwise (`NCCLSCOPE_EVENTS=default`), as its
/// activation mask: all but ProxyCtrl (it floods up to NCCL 2.26) and KernelPhase.
pub const DEFAULT_EVENTS: u32 = ALL_EVENTS & !mask_of(OFF);
/// Mask of events that only add detail and are the parent of no other event: a recording without
/// them still has every operation.
pub const SPARE_EVENTS: u32 = mask_of(SPARE);

/// Flags of a kind in the list of kinds: no flag.
const NONE: u8 = 0;
/// The kind is in [`SPARE_EVENTS`].
const SPARE: u8 = 1;
/// The kind is not in [`DEFAULT_EVENTS`].
const OFF: u8 = 2;

/// Declares [`EventKind`] from one list: variant, number, first version of NCCL's profiler API,
/// part, flags. docs/howto/event-kind.md says how to add one.
macro_rules! event_kinds {
    ($($name:ident = $number:literal, since $since:literal, $part:ident, $flags:expr;)*) => {
        /// The type of an event. The value is the bit index of NCCL's activation mask
        /// (NCCL `src/include/plugin/nccl_profiler.h`), and the kind in a [`crate::Handle`].
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        #[expect(
            missing_docs,
            reason = "the names are NCCL's and are explained in docs/glossary.md"
        )]
        pub enum EventKind { $($name = $number,)* }

        /// Number of event kinds; kinds are `0..KINDS`.
        pub const KINDS: usize = [$($number),*].len();

        impl EventKind {
            /// Every kind, in the order of the numbers.
            pub const ALL: [EventKind; KINDS] = [$(EventKind::$name),*];
        }

        const INFO: [KindInfo; KINDS] = [$(KindInfo {
            name: stringify!($name),
            since: $since,
            part: Part::$part,
            flags: $flags,
        }),*];
    };
}

event_kinds! {
    Group = 0, since 1, Plan, NONE;
    Coll = 1, since 1, Plan, NONE;
    P2p = 2, since 1, Plan, NONE;
    ProxyOp = 3, since 1, Proxy, NONE;
    ProxyStep = 4, since 1, Proxy, SPARE;
    ProxyCtrl = 5, since 1, Control, SPARE | OFF;
    KernelCh = 6, since 3, Kernel, NONE;
    NetPlugin = 7, since 3, Net, SPARE;
    GroupApi = 8, since 5, Api, NONE;
    CollApi = 9, since 5, Api, NONE;
    P2pApi = 10, since 5, Api, NONE;
    KernelLaunch = 11, since 5, Api, NONE;
    CeColl = 12, since 6, CopyEngine, NONE;
    CeSync = 13, since 6, CopyEngine, NONE;
    CeBatch = 14, since 6, CopyEngine, NONE;
    KernelPhase = 15, since 7, Kernel, SPARE | OFF;
}

/// The properties that all events of a kind share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KindInfo {
    /// NCCL's name, without the `ncclProfile` prefix.
    pub name: &'static str,
    /// The first version of NCCL's profiler API that has the kind.
    pub since: u32,
    /// The part of NCCL whose work it shows.
    pub part: Part,
    flags: u8,
}

/// The part of NCCL whose work an event shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// The application's calls.
    Api,
    /// The operations and plans that NCCL enqueues for calls.
    Plan,
    /// Copy engines.
    CopyEngine,
    /// Kernels on the GPU.
    Kernel,
    /// The proxy thread's work for an operation.
    Proxy,
    /// The proxy thread's work for itself.
    Control,
    /// The network plugin.
    Net,
}

impl Part {
    /// The kinds of events that show it, as an activation mask.
    #[must_use]
    pub const fn kinds(self) -> u32 {
        let (mut mask, mut i) = (0, 0);
        while i < KINDS {
            if INFO[i].part as u8 == self as u8 {
                mask |= EventKind::ALL[i].bit();
            }
            i += 1;
        }
        mask
    }

    /// The category of its events in traces.
    #[must_use]
    pub const fn category(self) -> &'static str {
        match self {
            Part::Api => "api",
            Part::Plan => "group",
            Part::CopyEngine => "copy_engine",
            Part::Kernel => "kernel",
            Part::Proxy | Part::Control => "proxy",
            Part::Net => "net",
        }
    }
}

/// The kinds that have all of `flags`, as an activation mask.
const fn mask_of(flags: u8) -> u32 {
    let (mut mask, mut i) = (0, 0);
    while i < KINDS {
        if INFO[i].flags & flags == flags {
            mask |= EventKind::ALL[i].bit();
        }
        i += 1;
    }
    mask
}

/// Mask of the bits that the greatest kind's number needs.
const LOW_BITS: u64 = KINDS.next_power_of_two() as u64 - 1;

/// All kinds, padded with the first kind to a power of two, so that [`LOW_BITS`] never index past
/// the end.
const PADDED: [EventKind; KINDS.next_power_of_two()] = {
    let mut all = [EventKind::ALL[0]; KINDS.next_power_of_two()];
    let mut i = 0;
    while i < KINDS {
        all[i] = EventKind::ALL[i];
        i += 1;
    }
    all
};

impl EventKind {
    /// The kind with the number in the lowest bits, of which it uses as many as the greatest number
    /// needs. Any bits name a kind.
    #[must_use]
    #[inline(always)]
    pub const fn from_low_bits(bits: u64) -> EventKind {
        PADDED[(bits & LOW_BITS) as usize]
    }

    /// The properties that all events of the kind share.
    #[must_use]
    pub const fn info(self) -> &'static KindInfo {
        &INFO[self as usize]
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
        self.info().name
    }

    /// The part of NCCL whose work it shows.
    #[must_use]
    pub const fn part(self) -> Part {
        self.info().part
    }

    /// Whether it is in [`SPARE_EVENTS`].
    #[must_use]
    pub const fn is_spare(self) -> bool {
        self.bit() & SPARE_EVENTS != 0
    }

    /// The kind with NCCL's name `name`; upper and lower case are the same.
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
/// (v2.31.2 has 0 to 31). An unknown number is kept unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct State(pub u8);

impl State {
    /// The GPU has taken the data that a ProxyOp received. The last of the states 0 to 7, which
    /// only API v1 to v3 has and which carry the bytes that the operation has moved.
    pub const PROXY_OP_RECV_DONE: State = State(7);
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
    /// NCCL entered `ncclGroupEnd` of the group.
    pub const GROUP_END_API_START: State = State(24);
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
        for bits in 0..=u8::MAX {
            let low = usize::from(bits) % KINDS.next_power_of_two();
            let kind = EventKind::from_low_bits(bits.into());
            assert_eq!(kind.index(), if low < KINDS { low } else { 0 });
        }
        assert_eq!(EventKind::from_name("proxystep"), Some(EventKind::ProxyStep));
        assert_eq!(EventKind::from_name("Kernel"), None);
    }

    #[test]
    fn masks_follow_the_list() {
        assert_eq!((ALL_EVENTS & 0xffff, DEFAULT_EVENTS & 0xffff), (0xffff, 0x7fdf));
        assert_eq!(SPARE_EVENTS & 0xffff, 0x80b0, "ProxyStep, ProxyCtrl, NetPlugin, KernelPhase");
        assert_eq!(Part::Plan.kinds(), 0b111);
        let versions = EventKind::ALL.map(|kind| kind.info().since);
        assert!(versions.is_sorted() && versions.iter().all(|since| API_VERSIONS.contains(since)));
    }

    #[test]
    fn state_names_follow_nccl() {
        assert_eq!(State::STEP_SEND_PEER_WAIT.to_string(), "ProxyStepSendPeerWait");
        assert_eq!(State::KERNEL_PHASE_STOP.to_string(), "KernelPhaseStop");
        assert_eq!(State(99).to_string(), "State99");
    }
}
