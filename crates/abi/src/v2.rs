// SPDX-License-Identifier: Apache-2.0
//! Version 2, native in NCCL 2.24 and 2.25. `src/include/plugin/profiler/profiler_v2.h`.
//!
//! Function, data type, algorithm and protocol are strings from here on. Later NCCL speaks this
//! version through a shim that leaves `name`, `commHash` and `trafficBytes` at 0.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_void};
use core::num::NonZeroU64;

use crate::Str;
use crate::common::{InitV1, Profiler};
use crate::descr::{self, addr};
pub use crate::v1::{ProxyCtrlArgs, ProxyOp, ProxyOpArgs, ProxyStep, StateArgs};

/// `ncclProfiler_v2_t`, to be exported as `ncclProfiler_v2`.
pub type NcclProfilerV2 = Profiler<InitV1, EventDescr, StateArgs>;

/// `ncclProfilerEventDescr_v2_t`, 128 bytes.
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
}

/// A collective.
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
    /// @96 Bytes this rank moves.
    pub trafficBytes: usize,
    /// @104 Channels at most.
    pub nMaxChannels: u8,
    /// @105 Warps per channel.
    pub nWarps: u8,
    /// @112 Algorithm.
    pub algo: *const c_char,
    /// @120 Protocol.
    pub proto: *const c_char,
}

/// A send or receive; the same in version 3.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct P2p {
    /// @24 The communicator's name.
    pub name: *const c_char,
    /// @32 The communicator's hash.
    pub commHash: u64,
    /// @40 `Send` or `Recv`.
    pub func: *const c_char,
    /// @48 The buffer.
    pub buff: *mut c_void,
    /// @56 Data type.
    pub datatype: *const c_char,
    /// @64 Elements.
    pub count: usize,
    /// @72 The other rank.
    pub peer: i32,
}

const _: () = assert!(size_of::<EventDescr>() == 128);
const _: () = assert!(size_of::<NcclProfilerV2>() == 48);
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
            traffic_bytes: NonZeroU64::new(c.trafficBytes as u64),
            n_channels: c.nMaxChannels,
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
            name: Str::from_ptr(p.name),
            comm_hash: NonZeroU64::new(p.commHash),
            func: Str::from_ptr(p.func),
            buff: addr(p.buff),
            datatype: Str::from_ptr(p.datatype),
            count: p.count as u64,
            peer: p.peer,
            ..Self::default()
        }
    }
}
