// SPDX-License-Identifier: Apache-2.0
//! Version 5, native in NCCL 2.28. `src/include/plugin/profiler/profiler_v5.h`.
//!
//! Adds the API events and KernelLaunch. `type` takes eight bytes. The API call is the parent of
//! Coll and P2p, and their Group is in `parentGroup`. Later NCCL speaks this version through a shim
//! that does not clear the descriptor: padding is garbage, so `graphCaptured`, which NCCL's example
//! header declares as an `int`, must be read as one byte.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_void};

use crate::common::{InitV5, Profiler};
use crate::descr::{self, addr};
pub use crate::v4::{
    KernelCh, KernelChArgs, NetPlugin, NetPluginArgs, ProxyCtrlArgs, ProxyOp, ProxyStep,
    ProxyStepArgs, StateArgs,
};
use crate::{CBool, Str};

/// `ncclProfiler_v5_t`, to be exported as `ncclProfiler_v5`.
pub type NcclProfilerV5 = Profiler<InitV5, EventDescr, StateArgs>;

/// `ncclProfilerEventDescr_v5_t`, 112 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventDescr {
    /// @0 The type's bit, in eight bytes from here on.
    pub r#type: u64,
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
    /// For GroupApi.
    pub groupApi: GroupApi,
    /// For CollApi.
    pub collApi: CollApi,
    /// For P2pApi.
    pub p2pApi: P2pApi,
    /// For KernelLaunch.
    pub kernelLaunch: KernelLaunch,
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

/// A group of API calls; the same in every later version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GroupApi {
    /// @24 Whether a CUDA graph is being captured.
    pub graphCaptured: CBool,
    /// @28 Depth of nesting at the first operation.
    pub groupDepth: i32,
}

/// A call to a collective's API function; the same in version 6.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CollApi {
    /// @24 The function.
    pub func: *const c_char,
    /// @32 Elements.
    pub count: usize,
    /// @40 Data type.
    pub datatype: *const c_char,
    /// @48 Root rank.
    pub root: i32,
    /// @56 `cudaStream_t`.
    pub stream: *mut c_void,
    /// @64 Whether a CUDA graph is being captured.
    pub graphCaptured: CBool,
}

/// A call to `ncclSend` or `ncclRecv`; the same in version 6.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct P2pApi {
    /// @24 `Send` or `Recv`.
    pub func: *const c_char,
    /// @32 Elements.
    pub count: usize,
    /// @40 Data type.
    pub datatype: *const c_char,
    /// @48 `cudaStream_t`.
    pub stream: *mut c_void,
    /// @56 Whether a CUDA graph is being captured.
    pub graphCaptured: CBool,
}

/// The launch of a plan's kernel; the same in every later version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelLaunch {
    /// @24 `cudaStream_t`.
    pub stream: *mut c_void,
}

/// A collective; the same in version 6.
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
    /// @104 Handle of the Group event.
    pub parentGroup: *mut c_void,
}

/// A send or receive; the same in version 6.
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
    /// @60 Channels.
    pub nChannels: u8,
    /// @64 Handle of the Group event.
    pub parentGroup: *mut c_void,
}

const _: () = assert!(size_of::<EventDescr>() == 112);
const _: () = assert!(size_of::<NcclProfilerV5>() == 48);
opaque_debug!(EventDescr, Payload);

impl From<GroupApi> for descr::GroupApi {
    #[inline(always)]
    fn from(g: GroupApi) -> Self {
        Self { graph_captured: g.graphCaptured.get(), group_depth: g.groupDepth }
    }
}

impl From<CollApi> for descr::CollApi {
    #[inline(always)]
    fn from(c: CollApi) -> Self {
        Self {
            func: Str::from_ptr(c.func),
            count: c.count as u64,
            datatype: Str::from_ptr(c.datatype),
            root: c.root,
            stream: addr(c.stream),
            graph_captured: c.graphCaptured.get(),
            user_tag: None,
        }
    }
}

impl From<P2pApi> for descr::P2pApi {
    #[inline(always)]
    fn from(p: P2pApi) -> Self {
        Self {
            func: Str::from_ptr(p.func),
            count: p.count as u64,
            datatype: Str::from_ptr(p.datatype),
            stream: addr(p.stream),
            graph_captured: p.graphCaptured.get(),
            user_tag: None,
        }
    }
}

impl From<KernelLaunch> for descr::KernelLaunch {
    #[inline(always)]
    fn from(k: KernelLaunch) -> Self {
        Self { stream: addr(k.stream) }
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
            parent_group: addr(c.parentGroup),
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
            n_channels: Some(p.nChannels),
            parent_group: addr(p.parentGroup),
            ..Self::default()
        }
    }
}
