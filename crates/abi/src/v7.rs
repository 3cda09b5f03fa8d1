// SPDX-License-Identifier: Apache-2.0
//! Version 7, native in NCCL 2.31 and 2.32. Layout: debugging information of libnccl 2.32.3.
//!
//! Adds KernelPhase, the application's tag per operation (`ncclCollConfig_t.userProfilerTag`; NCCL
//! reserves the highest bit; 0 is untagged) and fields that identify symmetric kernels.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_void};
use core::num::NonZeroU64;

use crate::common::{InitV5, Profiler};
use crate::descr::{self, addr};
pub use crate::v6::{
    CeCollBatch, CeCollSync, GroupApi, KernelCh, KernelChArgs, KernelLaunch, NetPlugin,
    NetPluginArgs, ProxyCtrlArgs, ProxyOp, ProxyStep, ProxyStepArgs, StateArgs,
};
use crate::{CBool, Str};

/// `ncclProfiler_v7_t`, to be exported as `ncclProfiler_v7`.
pub type NcclProfilerV7 = Profiler<InitV5, EventDescr, StateArgs>;

/// `ncclProfilerEventDescr_v7_t`, 136 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventDescr {
    /// @0 The type's bit.
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
    /// For CeColl.
    pub ceColl: CeColl,
    /// For CeSync.
    pub ceCollSync: CeCollSync,
    /// For CeBatch.
    pub ceCollBatch: CeCollBatch,
    /// For KernelPhase.
    pub kernelPhase: KernelPhase,
}

/// A call to a collective's API function: version 5's and a tag.
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
    /// @72 The application's tag.
    pub userTag: u64,
}

/// A call to `ncclSend` or `ncclRecv`: version 5's and a tag.
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
    /// @64 The application's tag.
    pub userTag: u64,
}

/// A collective: version 5's, the kernel's variant and a tag.
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
    /// @88 Algorithm; for symmetric kernels the end of the kernel's name.
    pub algo: *const c_char,
    /// @96 Protocol; for symmetric kernels the empty string.
    pub proto: *const c_char,
    /// @104 Handle of the Group event.
    pub parentGroup: *mut c_void,
    /// @112 Name of the kernel's variant.
    pub kernelVariant: *const c_char,
    /// @120 Whether a symmetric kernel does it.
    pub isSymColl: CBool,
    /// @128 The application's tag.
    pub userTag: u64,
}

/// A send or receive: version 5's and a tag.
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
    /// @72 The application's tag.
    pub userTag: u64,
}

/// A collective by copy engines: version 6's and a tag.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CeColl {
    /// @24 Counts the communicator's copy engine collectives.
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
    /// @80 `MC` or `UC`.
    pub syncStrategy: *const c_char,
    /// @88 Whether ranks synchronise within a batch.
    pub intraBatchSync: CBool,
    /// @92 Copies per batch.
    pub batchSize: u32,
    /// @96 Batches.
    pub numBatches: u32,
    /// @100 Counts the communicator's copy engine collectives.
    pub ceSeqNum: u32,
    /// @104 `cudaStream_t`.
    pub stream: *mut c_void,
    /// @112 The application's tag.
    pub userTag: u64,
}

/// A phase inside a channel of a symmetric kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelPhase {
    /// @24 The channel.
    pub channelId: u8,
    /// @25 0 initial synchronisation, 1 compute, 2 final synchronisation.
    pub phaseId: u8,
    /// @32 `initial_sync`, `compute`, `final_sync`.
    pub phaseName: *const c_char,
    /// @40 Start by the GPU's `%globaltimer`, ns; 0 if missing.
    pub pTimer: u64,
}

const _: () = assert!(size_of::<EventDescr>() == 136);
const _: () = assert!(size_of::<NcclProfilerV7>() == 48);
opaque_debug!(EventDescr, Payload);

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
            user_tag: NonZeroU64::new(c.userTag),
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
            user_tag: NonZeroU64::new(p.userTag),
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
            parent_group: addr(c.parentGroup),
            kernel_variant: Str::from_ptr(c.kernelVariant),
            is_sym_coll: Some(c.isSymColl.get()),
            user_tag: NonZeroU64::new(c.userTag),
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
            user_tag: NonZeroU64::new(p.userTag),
            ..Self::default()
        }
    }
}

impl From<CeColl> for descr::CeColl {
    #[inline(always)]
    fn from(c: CeColl) -> Self {
        Self {
            seq_number: c.seqNumber,
            func: Str::from_ptr(c.func),
            send_buff: addr(c.sendBuff),
            recv_buff: addr(c.recvBuff),
            count: c.count as u64,
            root: c.root,
            datatype: Str::from_ptr(c.datatype),
            sync_strategy: Str::from_ptr(c.syncStrategy),
            intra_batch_sync: c.intraBatchSync.get(),
            batch_size: c.batchSize,
            num_batches: c.numBatches,
            ce_seq_num: c.ceSeqNum,
            stream: addr(c.stream),
            user_tag: NonZeroU64::new(c.userTag),
        }
    }
}

impl From<KernelPhase> for descr::KernelPhase {
    #[inline(always)]
    fn from(k: KernelPhase) -> Self {
        Self {
            channel_id: k.channelId,
            phase_id: k.phaseId,
            phase_name: Str::from_ptr(k.phaseName),
            p_timer: NonZeroU64::new(k.pTimer),
        }
    }
}
