// SPDX-License-Identifier: Apache-2.0
//! Version 3, native in NCCL 2.26. `src/include/plugin/profiler/profiler_v3.h`.
//!
//! Adds KernelCh, without times, and NetPlugin, whose updates have no argument. Later NCCL speaks
//! this version through a shim that leaves `name` and `commHash` at 0.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_void};
use core::num::NonZeroU64;

use crate::Str;
use crate::common::{InitV1, Profiler};
use crate::descr::{self, addr};
use crate::net::{NetData, NetPluginId};
pub use crate::v2::{P2p, ProxyCtrlArgs, ProxyOp, ProxyOpArgs, ProxyStep, StateArgs};

/// `ncclProfiler_v3_t`, to be exported as `ncclProfiler_v3`.
pub type NcclProfilerV3 = Profiler<InitV1, EventDescr, StateArgs>;

/// `ncclProfilerEventDescr_v3_t`, 120 bytes.
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

/// A collective: version 2's without `trafficBytes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Coll {
    /// @24 The communicator's name.
    pub name: *const c_char,
    /// @32 The communicator's hash.
    pub commHash: u64,
    /// @40 Counts the collectives of the same function.
    pub seqNumber: u64,
    /// @48 The function.
    pub func: *const c_char,
    /// @56 Send buffer.
    pub sendBuff: *const c_void,
    /// @64 Receive buffer.
    pub recvBuff: *mut c_void,
    /// @72 Elements.
    pub count: usize,
    /// @80 Root rank.
    pub root: i32,
    /// @88 Data type.
    pub datatype: *const c_char,
    /// @96 Channels at most.
    pub nMaxChannels: u8,
    /// @97 Warps per channel.
    pub nWarps: u8,
    /// @104 Algorithm.
    pub algo: *const c_char,
    /// @112 Protocol.
    pub proto: *const c_char,
}

/// One channel's activity inside a kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelCh {
    /// @24 The channel.
    pub channelId: u8,
}

/// An event of the network plugin; the same in every later version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetPlugin {
    /// @24 [`NetPluginId`].
    pub id: i64,
    /// @32 What `id` names, valid during the call.
    pub data: *mut c_void,
}

const _: () = assert!(size_of::<EventDescr>() == 120);
const _: () = assert!(size_of::<NcclProfilerV3>() == 48);
opaque_debug!(EventDescr, Payload);

impl From<Coll> for descr::Coll {
    #[inline(always)]
    fn from(c: Coll) -> Self {
        Self {
            name: Str::from_ptr(c.name),
            comm_hash: NonZeroU64::new(c.commHash),
            seq_number: c.seqNumber,
            func: Str::from_ptr(c.func),
            send_buff: addr(c.sendBuff),
            recv_buff: addr(c.recvBuff),
            count: c.count as u64,
            root: c.root,
            datatype: Str::from_ptr(c.datatype),
            n_channels: c.nMaxChannels,
            n_warps: c.nWarps,
            algo: Str::from_ptr(c.algo),
            proto: Str::from_ptr(c.proto),
            ..Self::default()
        }
    }
}

impl From<KernelCh> for descr::KernelCh {
    #[inline(always)]
    fn from(k: KernelCh) -> Self {
        Self { channel_id: k.channelId, p_timer: None }
    }
}

impl From<NetPlugin> for descr::NetPlugin {
    #[inline(always)]
    fn from(n: NetPlugin) -> Self {
        Self { id: NetPluginId(n.id), data: NetData(n.data) }
    }
}
