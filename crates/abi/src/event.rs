// SPDX-License-Identifier: Apache-2.0
//! Event types, event masks and event states: numbers with the same meaning in all versions. NCCL
//! `src/include/plugin/nccl_profiler.h`@v2.30.7-1, libnccl 2.32.3.

use core::ffi::c_int;
use core::fmt;
use core::ops::{BitAnd, BitOr};

/// Declares [`EventType`] from one list: variant, bit number, first API version, documentation.
macro_rules! event_types {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, since $since:literal;)*) => {
        /// The type of an event. The discriminant is the number of its bit.
        ///
        /// NCCL passes the bit itself, in 8 bits in versions 1 to 4 and in 64 bits from version 5.
        /// It may pass other types than these (RCCL's 65536, or future ones), so convert it with
        /// [`EventType::from_bits`] only.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum EventType {
            $(
                $(#[$doc])*
                #[doc = concat!("Since version ", stringify!($since), ".")]
                $name = $bit,
            )*
        }

        impl EventType {
            /// Every type, in the order of their bits.
            pub const ALL: [Self; [$($bit),*].len()] = [$(Self::$name,)*];

            /// The type that `bits` names; `None` if it is not exactly one known bit.
            #[inline(always)]
            #[must_use]
            pub const fn from_bits(bits: u64) -> Option<Self> {
                match bits {
                    $(b if b == 1 << $bit => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// NCCL's name of the type, without its prefix `ncclProfile`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The lowest API version that has the type.
            #[must_use]
            pub const fn since(self) -> u8 {
                match self { $(Self::$name => $since,)* }
            }
        }
    };
}

event_types! {
    /// One launch plan; the parent of Coll and P2p up to NCCL 2.27.
    Group = 0, since 1;
    /// A collective, from enqueueing to handing its work over.
    Coll = 1, since 1;
    /// A send or receive, from enqueueing to handing its work over.
    P2p = 2, since 1;
    /// Network work of one operation on one channel.
    ProxyOp = 3, since 1;
    /// One network transfer of a proxy operation.
    ProxyStep = 4, since 1;
    /// The proxy progress thread's own doings: idle, asleep, appending.
    ProxyCtrl = 5, since 1;
    /// One channel's activity inside the kernel.
    KernelCh = 6, since 3;
    /// An event of the network plugin.
    NetPlugin = 7, since 3;
    /// A group of API calls, implicit ones included.
    GroupApi = 8, since 5;
    /// A call to a collective's API function.
    CollApi = 9, since 5;
    /// A call to `ncclSend` or `ncclRecv`.
    P2pApi = 10, since 5;
    /// The CUDA launch of one plan.
    KernelLaunch = 11, since 5;
    /// A collective by copy engines.
    CeColl = 12, since 6;
    /// A synchronisation within a copy engine collective.
    CeSync = 13, since 6;
    /// A batch of copies within a copy engine collective.
    CeBatch = 14, since 6;
    /// A phase inside a channel of a symmetric kernel.
    KernelPhase = 15, since 7;
}

impl EventType {
    /// The bit that stands for the type in descriptors and masks.
    #[inline(always)]
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// A set of event types, such as `eActivationMask`. Bits of unknown types are kept.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct EventMask(u64);

impl EventMask {
    /// Nothing: NCCL starts no event.
    pub const NONE: Self = Self(0);
    /// Every [`EventType`].
    pub const ALL: Self = Self((1 << EventType::ALL.len()) - 1);
    /// Bit 16, proxy diagnostics: known to RCCL 2.31 only, never to NCCL.
    pub const RCCL_PROXY_DIAGNOSTICS: Self = Self(1 << 16);

    /// The mask with exactly these bits.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The mask from NCCL's C `int`, in which each bit is a flag.
    #[inline(always)]
    #[must_use]
    pub const fn from_c_int(mask: c_int) -> Self {
        Self(mask.cast_unsigned() as u64)
    }

    /// The bits.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The bits that fit NCCL's C `int`: the lowest 32.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "an int is all that NCCL has room for")]
    pub const fn to_c_int(self) -> c_int {
        (self.0 as u32).cast_signed()
    }

    /// Whether the mask has `event_type`.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, event_type: EventType) -> bool {
        self.0 & event_type.bit() != 0
    }

    /// Whether the mask has no bit at all.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The mask and `event_type`.
    #[must_use]
    pub const fn with(self, event_type: EventType) -> Self {
        Self(self.0 | event_type.bit())
    }

    /// The mask less `event_type`.
    #[must_use]
    pub const fn without(self, event_type: EventType) -> Self {
        Self(self.0 & !event_type.bit())
    }

    /// The types in the mask, lowest bit first; bits of unknown types are skipped.
    pub fn iter(self) -> impl Iterator<Item = EventType> {
        EventType::ALL.into_iter().filter(move |&t| self.contains(t))
    }
}

impl From<EventType> for EventMask {
    fn from(event_type: EventType) -> Self {
        Self(event_type.bit())
    }
}

impl FromIterator<EventType> for EventMask {
    fn from_iter<I: IntoIterator<Item = EventType>>(types: I) -> Self {
        types.into_iter().fold(Self::NONE, Self::with)
    }
}

impl BitOr for EventMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for EventMask {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventMask({:#x})", self.0)
    }
}

/// A transition inside an event, as `recordEventState` passes it: a C enum, so any number may come.
/// Ignore unknown states.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct EventState(pub c_int);

/// Declares the states from one list: constant, value, NCCL's name, first API version,
/// documentation.
macro_rules! event_states {
    ($($(#[$doc:meta])* $konst:ident = $value:literal, $name:literal, since $since:literal;)*) => {
        impl EventState {
            /// How many states are known; their values are `0..COUNT`.
            pub const COUNT: c_int = {
                let mut count = 0;
                $(count = if $value < count { count } else { $value + 1 };)*
                count
            };

            $($(#[$doc])* pub const $konst: Self = Self($value);)*

            /// NCCL's name of the state, without its prefix `ncclProfiler` and suffix `_v4`;
            /// `None` if the number is no known state.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self { $(Self::$konst => Some($name),)* _ => None }
            }

            /// The lowest API version that has the state; `None` if the number is no known state.
            #[must_use]
            pub const fn since(self) -> Option<u8> {
                match self { $(Self::$konst => Some($since),)* _ => None }
            }
        }
    };
}

event_states! {
    /// ProxyOp, send: buffers posted to the GPU. NCCL 2.23 to 2.26, like all of 0 to 7.
    PROXY_OP_SEND_POSTED = 0, "ProxyOpSendPosted", since 1;
    /// ProxyOp, send: waits for the receiver's clear-to-send; may repeat.
    PROXY_OP_SEND_REM_FIFO_WAIT = 1, "ProxyOpSendRemFifoWait", since 1;
    /// ProxyOp, send: handed to the network.
    PROXY_OP_SEND_TRANSMITTED = 2, "ProxyOpSendTransmitted", since 1;
    /// ProxyOp, send: the network is done.
    PROXY_OP_SEND_DONE = 3, "ProxyOpSendDone", since 1;
    /// ProxyOp, receive: buffers posted to the network.
    PROXY_OP_RECV_POSTED = 4, "ProxyOpRecvPosted", since 1;
    /// ProxyOp, receive: data has arrived.
    PROXY_OP_RECV_RECEIVED = 5, "ProxyOpRecvReceived", since 1;
    /// ProxyOp, receive: data flushed and handed to the GPU.
    PROXY_OP_RECV_TRANSMITTED = 6, "ProxyOpRecvTransmitted", since 1;
    /// ProxyOp, receive: the GPU is done.
    PROXY_OP_RECV_DONE = 7, "ProxyOpRecvDone", since 1;
    /// ProxyStep, send: waits for the GPU to deliver data.
    PROXY_STEP_SEND_GPU_WAIT = 8, "ProxyStepSendGPUWait", since 1;
    /// ProxyStep, send: waits for the network; carries the transfer's size from version 4.
    PROXY_STEP_SEND_WAIT = 9, "ProxyStepSendWait", since 1;
    /// ProxyStep, receive: waits for data from the network.
    PROXY_STEP_RECV_WAIT = 10, "ProxyStepRecvWait", since 1;
    /// ProxyStep, receive: waits for the flush; carries the transfer's size from version 4.
    PROXY_STEP_RECV_FLUSH_WAIT = 11, "ProxyStepRecvFlushWait", since 1;
    /// ProxyStep, receive: waits for the GPU to take the data.
    PROXY_STEP_RECV_GPU_WAIT = 12, "ProxyStepRecvGPUWait", since 1;
    /// ProxyCtrl: the progress thread found nothing to do.
    PROXY_CTRL_IDLE = 13, "ProxyCtrlIdle", since 1;
    /// ProxyCtrl: the progress thread has work.
    PROXY_CTRL_ACTIVE = 14, "ProxyCtrlActive", since 1;
    /// ProxyCtrl: the progress thread goes to sleep.
    PROXY_CTRL_SLEEP = 15, "ProxyCtrlSleep", since 1;
    /// ProxyCtrl: the progress thread was woken.
    PROXY_CTRL_WAKEUP = 16, "ProxyCtrlWakeup", since 1;
    /// ProxyCtrl: begins to take over posted operations.
    PROXY_CTRL_APPEND = 17, "ProxyCtrlAppend", since 1;
    /// ProxyCtrl: has taken over posted operations; carries how many.
    PROXY_CTRL_APPEND_END = 18, "ProxyCtrlAppendEnd", since 1;
    /// ProxyOp: first progress made.
    PROXY_OP_IN_PROGRESS = 19, "ProxyOpInProgress", since 4;
    /// ProxyStep, send: waits for the receiver's clear-to-send; may repeat.
    PROXY_STEP_SEND_PEER_WAIT = 20, "ProxyStepSendPeerWait", since 4;
    /// NetPlugin: an update, typed by the network plugin.
    NET_PLUGIN_UPDATE = 21, "NetPluginUpdate", since 4;
    /// KernelCh: the channel is done; carries GPU time.
    KERNEL_CH_STOP = 22, "KernelChStop", since 4;
    /// GroupApi: `ncclGroupStart` has returned. Arguments may be NULL or unset.
    GROUP_START_API_STOP = 23, "GroupStartApiStop", since 5;
    /// GroupApi: `ncclGroupEnd` was entered. Arguments may be NULL or unset.
    GROUP_END_API_START = 24, "GroupEndApiStart", since 5;
    /// CeColl: in the enum, never recorded by NCCL up to 2.30.7.
    CE_COLL_START = 25, "CeCollStart", since 6;
    /// CeColl: in the enum, never recorded by NCCL up to 2.30.7.
    CE_COLL_COMPLETE = 26, "CeCollComplete", since 6;
    /// CeSync: in the enum, never recorded by NCCL up to 2.30.7.
    CE_SYNC_START = 27, "CeSyncStart", since 6;
    /// CeSync: in the enum, never recorded by NCCL up to 2.30.7.
    CE_SYNC_COMPLETE = 28, "CeSyncComplete", since 6;
    /// CeBatch: in the enum, never recorded by NCCL up to 2.30.7.
    CE_BATCH_START = 29, "CeBatchStart", since 6;
    /// CeBatch: in the enum, never recorded by NCCL up to 2.30.7.
    CE_BATCH_COMPLETE = 30, "CeBatchComplete", since 6;
    /// KernelPhase: the phase is over; carries GPU time.
    KERNEL_PHASE_STOP = 31, "KernelPhaseStop", since 7;
}

impl fmt::Debug for EventState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "EventState({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_go_to_bits_and_back() {
        for (i, t) in EventType::ALL.into_iter().enumerate() {
            assert_eq!(t.bit(), 1 << i);
            assert_eq!(EventType::from_bits(t.bit()), Some(t));
        }
        for bits in [0, 3, 1 << EventType::ALL.len(), 1 << 40, u64::MAX] {
            assert_eq!(EventType::from_bits(bits), None);
        }
        assert_eq!(EventType::KernelPhase.bit(), 32768);
        assert_eq!(EventType::GroupApi.name(), "GroupApi");
    }

    #[test]
    fn masks_hold_what_they_are_given() {
        let mask: EventMask = [EventType::Coll, EventType::KernelCh].into_iter().collect();
        assert_eq!(mask.bits(), 66);
        assert!(mask.contains(EventType::Coll) && !mask.contains(EventType::P2p));
        assert_eq!(mask.iter().collect::<Vec<_>>(), [EventType::Coll, EventType::KernelCh]);
        assert_eq!(mask.without(EventType::Coll), EventType::KernelCh.into());
        assert_eq!(EventType::ALL.into_iter().collect::<EventMask>(), EventMask::ALL);
        assert_eq!(EventMask::from_c_int(-1).bits(), 0xffff_ffff);
        assert_eq!(EventMask::from_c_int(-1).to_c_int(), -1);
        assert_eq!(EventMask::from_bits(1 << 40).to_c_int(), 0);
        assert_eq!((mask | EventMask::RCCL_PROXY_DIAGNOSTICS).bits(), 65602);
        assert_eq!(mask & EventMask::from_bits(2), EventType::Coll.into());
    }

    #[test]
    fn known_states_have_a_name_each() {
        let mut names: Vec<_> =
            (0..EventState::COUNT).filter_map(|s| EventState(s).name()).collect();
        assert_eq!(names.len(), 32);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 32);
        for unknown in [-1, EventState::COUNT, 99] {
            assert_eq!(EventState(unknown).name(), None);
        }
        assert_eq!(format!("{:?}", EventState(99)), "EventState(99)");
    }
}
