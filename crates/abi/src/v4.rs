// SPDX-License-Identifier: Apache-2.0
//! Version 4, native in NCCL 2.27. `src/include/plugin/profiler/profiler_v4.h`.
//!
//! `init` describes the communicator, and the descriptors no longer do. KernelCh has times, steps
//! have sizes. Later NCCL speaks this version through a shim that hands over a descriptor from its
//! stack without clearing it: `p2p.nChannels` and all padding are garbage.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_void};
use core::num::NonZeroU64;

use crate::common::{InitV4, Profiler};
use crate::descr::{self, addr};
use crate::net::NetData;
pub use crate::v3::{NetPlugin, ProxyCtrlArgs, ProxyOp, ProxyStep};
use crate::{EventState, StateArg, Str};

/// `ncclProfiler_v4_t`, to be exported as `ncclProfiler_v4`.
pub type NcclProfilerV4 = Profiler<InitV4, EventDescr, StateArgs>;

/// `ncclProfilerEventDescr_v4_t`, 104 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventDescr {
    /// @0 The type's bit.
    pub r#type: u8,
    /// @8 Handle of the parent event, or NULL.
    pub parentObj: *mut c_void,
    /// @16 The rank.
    pub rank: i32,
    /// @24 The arm that `type` selects. Group and ProxyCtrl have none.
    pub payload: Payload,
}

/// The anonymous union of [`EventDescr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union Payload {
    /// For Coll.
    pub coll: Coll,
    /// For P2p.
    pub p2p: P2p,
    /// For ProxyOp.
    pub proxyOp: ProxyOp,
    /// For ProxyStep.
    pub proxyStep: ProxyStep,
    /// For KernelCh.
    pub kernelCh: KernelCh,
    /// For NetPlugin.
    pub netPlugin: NetPlugin,
}

/// A collective.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Coll {
    /// @24 Counts the collectives of the same function.
    pub seqNumber: u64,
    /// @32 The function.
    pub func: *const c_char,
    /// @40 Send buffer.
    pub sendBuff: *const c_void,
    /// @48 Receive buffer.
    pub recvBuff: *mut c_void,
    /// @56 Elements.
    pub count: usize,
    /// @64 Root rank.
    pub root: i32,
    /// @72 Data type.
    pub datatype: *const c_char,
    /// @80 Channels.
    pub nChannels: u8,
    /// @81 Warps per channel.
    pub nWarps: u8,
    /// @88 Algorithm.
    pub algo: *const c_char,
    /// @96 Protocol.
    pub proto: *const c_char,
}

/// A send or receive.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct P2p {
    /// @24 `Send` or `Recv`.
    pub func: *const c_char,
    /// @32 The buffer.
    pub buff: *mut c_void,
    /// @40 Data type.
    pub datatype: *const c_char,
    /// @48 Elements.
    pub count: usize,
    /// @56 The other rank.
    pub peer: i32,
    /// @60 Channels. Set by NCCL 2.27 only; any byte from 2.28 on.
    pub nChannels: u8,
}

/// One channel's activity inside a kernel; the same in every later version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelCh {
    /// @24 The channel.
    pub channelId: u8,
    /// @32 Start by the GPU's `%globaltimer`, ns; 0 if missing.
    pub pTimer: u64,
}

/// `ncclProfilerEventStateArgs_v4_t`, 8 bytes; the same in versions 4 to 7.
#[derive(Clone, Copy)]
#[repr(C)]
pub union StateArgs {
    /// For states 8 to 12 and 20.
    pub proxyStep: ProxyStepArgs,
    /// For states 13 to 18.
    pub proxyCtrl: ProxyCtrlArgs,
    /// For state 21.
    pub netPlugin: NetPluginArgs,
    /// For states 22 and 31.
    pub kernelCh: KernelChArgs,
}

/// A transfer's size.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProxyStepArgs {
    /// @0 Bytes, in states 9 and 11; a stale value of an earlier step in the others.
    pub transSize: usize,
}

/// An update of the network plugin.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetPluginArgs {
    /// @0 Of a type that plugin knows, valid during the call.
    pub data: *mut c_void,
}

/// A time on the GPU.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelChArgs {
    /// @0 End by the GPU's `%globaltimer`, ns; 0 if missing.
    pub pTimer: u64,
}

const _: () = assert!(size_of::<EventDescr>() == 104);
const _: () = assert!(size_of::<StateArgs>() == 8);
const _: () = assert!(size_of::<NcclProfilerV4>() == 48);
opaque_debug!(EventDescr, Payload, StateArgs);

impl StateArgs {
    /// See [`crate::Version::state_arg`]; `NUMBER` is the version.
    ///
    /// # Safety
    /// As [`crate::Version::state_arg`].
    #[inline(always)]
    pub(crate) unsafe fn normalise<const NUMBER: u8>(
        state: EventState,
        args: *const Self,
    ) -> StateArg {
        match state {
            EventState::PROXY_STEP_SEND_WAIT | EventState::PROXY_STEP_RECV_FLUSH_WAIT => {
                let ProxyStepArgs { transSize } = selected!(args.proxyStep);
                StateArg::TransSize(transSize as u64)
            }
            EventState::PROXY_CTRL_APPEND_END => {
                let ProxyCtrlArgs { appendedProxyOps } = selected!(args.proxyCtrl);
                StateArg::AppendedProxyOps(appendedProxyOps)
            }
            EventState::NET_PLUGIN_UPDATE => {
                let NetPluginArgs { data } = selected!(args.netPlugin);
                StateArg::NetPluginData(NetData(data))
            }
            EventState::KERNEL_PHASE_STOP if NUMBER < 7 => StateArg::None,
            EventState::KERNEL_CH_STOP | EventState::KERNEL_PHASE_STOP => {
                let KernelChArgs { pTimer } = selected!(args.kernelCh);
                StateArg::PTimer(NonZeroU64::new(pTimer))
            }
            _ => StateArg::None,
        }
    }
}

impl From<Coll> for descr::Coll {
    #[inline(always)]
    fn from(c: Coll) -> Self {
        Self {
            seq_number: c.seqNumber,
            func: Str::from_ptr(c.func),
            send_buff: addr(c.sendBuff),
            recv_buff: addr(c.recvBuff),
            count: c.count as u64,
            root: c.root,
            datatype: Str::from_ptr(c.datatype),
            n_channels: c.nChannels,
            n_warps: c.nWarps,
            algo: Str::from_ptr(c.algo),
            proto: Str::from_ptr(c.proto),
            ..Self::default()
        }
    }
}

impl From<P2p> for descr::P2p {
    #[inline(always)]
    fn from(p: P2p) -> Self {
        Self {
            func: Str::from_ptr(p.func),
            buff: addr(p.buff),
            datatype: Str::from_ptr(p.datatype),
            count: p.count as u64,
            peer: p.peer,
            n_channels: None, // Whether NCCL has set it is unknown: see the module's page.
            ..Self::default()
        }
    }
}

impl From<KernelCh> for descr::KernelCh {
    #[inline(always)]
    fn from(k: KernelCh) -> Self {
        Self { channel_id: k.channelId, p_timer: NonZeroU64::new(k.pTimer) }
    }
}
