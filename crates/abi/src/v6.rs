// SPDX-License-Identifier: Apache-2.0
//! Version 6, native in NCCL 2.29 and 2.30. `src/include/plugin/profiler/profiler_v6.h`.
//!
//! Adds collectives by copy engines; everything else is version 5's. NCCL 2.31 and later speak this
//! version through a shim that clears the descriptor first.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_void};

use crate::common::{InitV5, Profiler};
use crate::descr::{self, addr};
pub use crate::v5::{
    Coll, CollApi, GroupApi, KernelCh, KernelChArgs, KernelLaunch, NetPlugin, NetPluginArgs, P2p,
    P2pApi, ProxyCtrlArgs, ProxyOp, ProxyStep, ProxyStepArgs, StateArgs,
};
use crate::{CBool, Str};

/// `ncclProfiler_v6_t`, to be exported as `ncclProfiler_v6`.
pub type NcclProfilerV6 = Profiler<InitV5, EventDescr, StateArgs>;

/// `ncclProfilerEventDescr_v6_t`, 112 bytes.
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
}

/// A collective by copy engines.
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
}

/// A synchronisation within a collective by copy engines; the same in version 7.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CeCollSync {
    /// @24 Whether it is the one at the end.
    pub isComplete: CBool,
    /// @28 Ranks that take part.
    pub nRanks: i32,
}

/// A batch of copies within a collective by copy engines; the same in version 7.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CeCollBatch {
    /// @24 Copies.
    pub numOps: i32,
    /// @32 Bytes of them together.
    pub totalBytes: usize,
    /// @40 Whether ranks synchronise within it.
    pub useIntraSync: CBool,
}

const _: () = assert!(size_of::<EventDescr>() == 112);
const _: () = assert!(size_of::<NcclProfilerV6>() == 48);
opaque_debug!(EventDescr, Payload);

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
            user_tag: None,
        }
    }
}

impl From<CeCollSync> for descr::CeSync {
    #[inline(always)]
    fn from(s: CeCollSync) -> Self {
        Self { is_complete: s.isComplete.get(), n_ranks: s.nRanks }
    }
}

impl From<CeCollBatch> for descr::CeBatch {
    #[inline(always)]
    fn from(b: CeCollBatch) -> Self {
        Self {
            num_ops: b.numOps,
            total_bytes: b.totalBytes as u64,
            use_intra_sync: b.useIntraSync.get(),
        }
    }
}
