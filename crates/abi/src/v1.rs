// SPDX-License-Identifier: Apache-2.0
//! Version 1, native in NCCL 2.23. `src/include/nccl_profiler.h`@v2.23.4-1.
//!
//! In all version modules, `@n` at a field is its offset from the start of the descriptor (or of
//! the state arguments), in bytes. Later NCCL speaks this version through a shim that leaves
//! `name`, `commHash`, `op`, `trafficBytes`, `isCollnet` and `isNvls` at 0.
#![expect(non_snake_case, reason = "members of C structs keep their C names")]

use core::ffi::{c_char, c_void};
use core::num::NonZeroU64;

use crate::common::{InitV1, Profiler};
use crate::descr::{self, addr};
use crate::{EventState, StateArg, Str, codes};

/// `ncclProfiler_v1_t`, to be exported as `ncclProfiler_v1`.
pub type NcclProfilerV1 = Profiler<InitV1, EventDescr, StateArgs>;

/// `ncclProfilerEventDescr_v1_t`, 120 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventDescr {
    /// @0 The type's bit, in one byte in versions 1 to 4.
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

/// A collective; names are [`codes`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Coll {
    /// @24 The communicator's name.
    pub name: *const c_char,
    /// @32 The communicator's hash.
    pub commHash: u64,
    /// @40 Counts the collectives of the same function.
    pub seqNumber: u64,
    /// @48 [`codes::func`].
    pub func: u8,
    /// @56 Send buffer.
    pub sendBuff: *const c_void,
    /// @64 Receive buffer.
    pub recvBuff: *mut c_void,
    /// @72 Elements.
    pub count: usize,
    /// @80 Root rank.
    pub root: i32,
    /// @84 [`codes::datatype`].
    pub datatype: u8,
    /// @88 `ncclRedOp_t`.
    pub op: u32,
    /// @96 Bytes this rank moves.
    pub trafficBytes: usize,
    /// @104 Channels at most.
    pub nMaxChannels: u8,
    /// @105 Warps per channel.
    pub nWarps: u8,
    /// @106 [`codes::algo`].
    pub algo: u8,
    /// @107 [`codes::proto`].
    pub proto: u8,
    /// @108 Not 0 if by CollNet.
    pub isCollnet: i32,
    /// @112 Not 0 if by NVLink SHARP.
    pub isNvls: i32,
}

/// A send or receive; names are [`codes`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct P2p {
    /// @24 The communicator's name.
    pub name: *const c_char,
    /// @32 The communicator's hash.
    pub commHash: u64,
    /// @40 [`codes::func`].
    pub func: u8,
    /// @48 The buffer.
    pub buff: *mut c_void,
    /// @56 [`codes::datatype`].
    pub datatype: u8,
    /// @64 Elements.
    pub count: usize,
    /// @72 The other rank.
    pub peer: i32,
}

/// One operation's network work on one channel; the same in every version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProxyOp {
    /// @24 `pid_t` of the process that enqueued it.
    pub pid: i32,
    /// @28 The channel.
    pub channelId: u8,
    /// @32 The other rank.
    pub peer: i32,
    /// @36 Transfers.
    pub nSteps: i32,
    /// @40 Bytes.
    pub chunkSize: i32,
    /// @44 Not 0 if it sends.
    pub isSend: i32,
}

/// One transfer of a proxy operation; the same in every version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProxyStep {
    /// @24 Its number within the operation.
    pub step: i32,
}

/// `ncclProfilerEventStateArgs_v1_t`, 16 bytes; the same in versions 1 to 3.
#[derive(Clone, Copy)]
#[repr(C)]
pub union StateArgs {
    /// For states 0 to 7.
    pub proxyOp: ProxyOpArgs,
    /// For states 13 to 18.
    pub proxyCtrl: ProxyCtrlArgs,
}

/// Progress of a proxy operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProxyOpArgs {
    /// @0 Bytes transferred so far.
    pub transSize: usize,
    /// @8 Steps made so far.
    pub steps: i32,
}

/// What the proxy thread took over; the same in every version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProxyCtrlArgs {
    /// @0 Number of operations, in state 18; 0 in the others.
    pub appendedProxyOps: i32,
}

const _: () = assert!(size_of::<EventDescr>() == 120);
const _: () = assert!(size_of::<StateArgs>() == 16);
const _: () = assert!(size_of::<NcclProfilerV1>() == 48);
opaque_debug!(EventDescr, Payload, StateArgs);

impl StateArgs {
    /// See [`crate::Version::state_arg`]; `NUMBER` is the version.
    ///
    /// Step states come with NULL up to NCCL 2.26 and zeroed from 2.27, so they have no argument.
    ///
    /// # Safety
    /// As [`crate::Version::state_arg`].
    #[inline(always)]
    pub(crate) unsafe fn normalise<const NUMBER: u8>(
        state: EventState,
        args: *const Self,
    ) -> StateArg {
        match state {
            EventState(0..=7) => {
                let ProxyOpArgs { transSize, steps } = selected!(args.proxyOp);
                StateArg::ProxyOp { trans_size: transSize as u64, steps }
            }
            EventState::PROXY_CTRL_APPEND_END => {
                let ProxyCtrlArgs { appendedProxyOps } = selected!(args.proxyCtrl);
                StateArg::AppendedProxyOps(appendedProxyOps)
            }
            _ => StateArg::None,
        }
    }
}

impl From<Coll> for descr::Coll {
    #[inline(always)]
    fn from(c: Coll) -> Self {
        Self {
            name: Str::from_ptr(c.name),
            comm_hash: NonZeroU64::new(c.commHash),
            seq_number: c.seqNumber,
            func: Str::from_static(codes::func(c.func)),
            send_buff: addr(c.sendBuff),
            recv_buff: addr(c.recvBuff),
            count: c.count as u64,
            root: c.root,
            datatype: Str::from_static(codes::datatype(c.datatype)),
            traffic_bytes: NonZeroU64::new(c.trafficBytes as u64),
            n_channels: c.nMaxChannels,
            n_warps: c.nWarps,
            algo: Str::from_static(codes::algo(c.algo)),
            proto: Str::from_static(codes::proto(c.proto)),
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
            func: Str::from_static(codes::func(p.func)),
            buff: addr(p.buff),
            datatype: Str::from_static(codes::datatype(p.datatype)),
            count: p.count as u64,
            peer: p.peer,
            ..Self::default()
        }
    }
}

impl From<ProxyOp> for descr::ProxyOp {
    #[inline(always)]
    fn from(op: ProxyOp) -> Self {
        Self {
            pid: op.pid,
            channel_id: op.channelId,
            peer: op.peer,
            n_steps: op.nSteps,
            chunk_size: op.chunkSize,
            is_send: op.isSend != 0,
        }
    }
}

impl From<ProxyStep> for descr::ProxyStep {
    #[inline(always)]
    fn from(step: ProxyStep) -> Self {
        Self { step: step.step }
    }
}
