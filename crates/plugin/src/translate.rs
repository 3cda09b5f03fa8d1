// SPDX-License-Identifier: Apache-2.0
//! Converts the ABI's view of an event to the types of the recording.

use core::num::NonZeroU64;
use ncclscope_abi::descr::{CeColl, Coll, CollApi, NetPlugin, P2p, P2pApi, ProxyOp};
use ncclscope_abi::net::NetDescr;
use ncclscope_abi::{Descr, Str};
use ncclscope_recorder::Interner;
use ncclscope_recorder::call_counters::{self, Call};
use ncclscope_recorder::trace::record::{self, Detail};
use ncclscope_recorder::trace::{Alignment, Handle, StrId};
use ncclscope_runtime::{Runtime, caller, sys};

/// Converts a ProxyOp. With PXN it belongs to another process, whose context and parent have no
/// meaning here.
#[inline(always)]
pub(crate) fn proxy_op(op: &ProxyOp, rank: i32, context: u64) -> record::ProxyOp {
    let ours = op.pid == sys::cached_pid() && Runtime::get().is_ours(context);
    record::ProxyOp {
        pid: op.pid.cast_unsigned(),
        channel: op.channel_id,
        peer: op.peer,
        steps: op.n_steps.cast_unsigned(),
        chunk_bytes: op.chunk_size.cast_unsigned(),
        is_send: op.is_send,
        foreign: !ours,
        rank,
    }
}

/// Stores what the operations of API v1 to v3 report about their communicator.
#[inline(always)]
pub(crate) fn learn(runtime: &Runtime, comm: u16, descr: &Descr, rank: i32) {
    let hash = match descr {
        Descr::Coll(coll) => coll.comm_hash,
        Descr::P2p(p2p) => p2p.comm_hash,
        _ => None,
    };
    if let Some(hash) = hash {
        runtime.learn(comm, hash.get(), rank);
    }
}

/// Counts the operations that the application calls on its communicator, recorded or not. Before
/// API v5, which reports calls, an enqueued operation counts as a call.
#[inline(always)]
pub(crate) fn count(strings: &Interner, comm: u16, detail: &Detail, tells_calls: bool) {
    let call = |func, datatype, root, count| {
        let [func, datatype] = [func, datatype].map(|name| strings.hash(name));
        call_counters::called(comm, Call { func, datatype, root, count });
    };
    match detail {
        Detail::CollApi(d) => {
            call(d.func, d.datatype, d.root, d.count);
            if d.graph {
                call_counters::captured(comm);
            }
        }
        Detail::P2pApi(d) => {
            call_counters::called_p2p(comm);
            if d.graph {
                call_counters::captured(comm);
            }
        }
        Detail::Coll(d) => {
            if !tells_calls {
                call(d.func, d.datatype, d.root, d.count);
            }
            call_counters::enqueued(comm);
        }
        Detail::CeColl(_) => call_counters::enqueued(comm),
        Detail::P2p(_) => {
            if !tells_calls {
                call_counters::called_p2p(comm);
            }
            call_counters::enqueued_p2p(comm);
        }
        _ => {}
    }
}

/// The operation's number on its communicator, `Some(None)` if NCCL gives none (P2P); `None` for
/// events other than operations.
#[inline(always)]
pub(crate) fn operation(descr: &Descr) -> Option<Option<u64>> {
    match descr {
        Descr::Coll(coll) => Some(Some(coll.seq_number)),
        Descr::CeColl(coll) => Some(Some(coll.seq_number)),
        Descr::P2p(_) => Some(None),
        _ => None,
    }
}

/// The fields of an event for which the recorder keeps no state; `None` for an unknown type.
///
/// # Safety
/// Every string is null or a literal, and data that a NetPlugin event attaches is readable.
#[inline(always)]
pub(crate) unsafe fn detail(strings: &Interner, descr: &Descr, rank: i32) -> Option<Detail> {
    // SAFETY: the caller's promise is the same.
    let id = |text: Str| unsafe { strings.intern(text.as_ptr()) };
    Some(match descr {
        Descr::Group => Detail::Group,
        Descr::ProxyCtrl => Detail::ProxyCtrl,
        Descr::Coll(d) => Detail::Coll(coll(d, rank, id)),
        Descr::P2p(d) => Detail::P2p(p2p(d, id)),
        Descr::KernelCh(d) => {
            Detail::KernelCh(record::KernelCh { channel: d.channel_id, ptimer: time(d.p_timer) })
        }
        // SAFETY: the caller's promise is the same.
        Descr::NetPlugin(d) => Detail::NetPlugin(unsafe { net_plugin(d) }),
        Descr::GroupApi(d) => {
            Detail::GroupApi(record::GroupApi { graph: d.graph_captured, depth: d.group_depth })
        }
        Descr::CollApi(d) => Detail::CollApi(coll_api(d, id)),
        Descr::P2pApi(d) => Detail::P2pApi(p2p_api(d, id)),
        Descr::KernelLaunch(d) => Detail::KernelLaunch(record::KernelLaunch { stream: d.stream }),
        Descr::CeColl(d) => Detail::CeColl(ce_coll(d, id)),
        Descr::CeSync(d) => Detail::CeSync(record::CeSync {
            complete: d.is_complete,
            ranks: d.n_ranks.cast_unsigned(),
        }),
        Descr::CeBatch(d) => Detail::CeBatch(record::CeBatch {
            ops: d.num_ops.cast_unsigned(),
            bytes: d.total_bytes,
            intra_sync: d.use_intra_sync,
        }),
        Descr::KernelPhase(d) => Detail::KernelPhase(record::KernelPhase {
            channel: d.channel_id,
            phase: d.phase_id,
            name: id(d.phase_name),
            ptimer: time(d.p_timer),
        }),
        Descr::ProxyOp(_) | Descr::ProxyStep(_) | Descr::Unknown(_) => return None,
    })
}

/// A time of the GPU's timer, ns; 0 if there is none.
#[inline(always)]
pub(crate) fn time(ticks: Option<NonZeroU64>) -> u64 {
    caller::kernel_time(or_zero(ticks))
}

#[inline(always)]
fn or_zero(value: Option<NonZeroU64>) -> u64 {
    value.map_or(0, NonZeroU64::get)
}

#[inline(always)]
fn coll(d: &Coll, rank: i32, id: impl Fn(Str) -> StrId) -> record::Coll {
    record::Coll {
        func: id(d.func),
        datatype: id(d.datatype),
        algo: id(d.algo),
        proto: id(d.proto),
        seq: d.seq_number,
        count: d.count,
        root: d.root,
        channels: d.n_channels,
        // RCCL's 256 is 0 in the descriptor's byte.
        more_channels: d.n_channels == 0 && caller::is_rccl() && d.is_sym_coll != Some(true),
        warps: d.n_warps,
        rank,
        alignment: Alignment::of(d.send_buff | d.recv_buff),
        group: Handle(d.parent_group),
        variant: id(d.kernel_variant),
        symmetric: d.is_sym_coll == Some(true),
        user_tag: or_zero(d.user_tag),
    }
}

#[inline(always)]
fn p2p(d: &P2p, id: impl Fn(Str) -> StrId) -> record::P2p {
    record::P2p {
        func: id(d.func),
        datatype: id(d.datatype),
        count: d.count,
        peer: d.peer,
        channels: d.n_channels.unwrap_or(0),
        alignment: Alignment::of(d.buff),
        group: Handle(d.parent_group),
        user_tag: or_zero(d.user_tag),
    }
}

#[inline(always)]
fn coll_api(d: &CollApi, id: impl Fn(Str) -> StrId) -> record::ApiCall {
    record::ApiCall {
        func: id(d.func),
        datatype: id(d.datatype),
        count: d.count,
        root: d.root,
        stream: d.stream,
        graph: d.graph_captured,
        user_tag: or_zero(d.user_tag),
    }
}

#[inline(always)]
fn p2p_api(d: &P2pApi, id: impl Fn(Str) -> StrId) -> record::ApiCall {
    record::ApiCall {
        func: id(d.func),
        datatype: id(d.datatype),
        count: d.count,
        root: 0,
        stream: d.stream,
        graph: d.graph_captured,
        user_tag: or_zero(d.user_tag),
    }
}

#[inline(always)]
fn ce_coll(d: &CeColl, id: impl Fn(Str) -> StrId) -> record::CeColl {
    record::CeColl {
        func: id(d.func),
        datatype: id(d.datatype),
        sync: id(d.sync_strategy),
        alignment: Alignment::of(d.send_buff | d.recv_buff),
        count: d.count,
        root: d.root,
        stream: d.stream,
        intra_batch_sync: d.intra_batch_sync,
        batch_size: d.batch_size,
        batches: d.num_batches,
        seq: d.seq_number,
        user_tag: or_zero(d.user_tag),
    }
}

/// # Safety
/// The data that the event attaches is readable.
#[inline(always)]
unsafe fn net_plugin(d: &NetPlugin) -> record::NetPlugin {
    let id = d.id.0.cast_unsigned();
    // SAFETY: the caller's promise is the same.
    match unsafe { d.read() } {
        NetDescr::IbQp { device, wr_id, opcode, qp_num, length } => record::NetPlugin {
            id,
            device: device.cast_unsigned(),
            qp: qp_num.cast_unsigned(),
            op: opcode.cast_unsigned(),
            bytes: length,
            wr_id,
        },
        NetDescr::Socket { fd, is_send, length } => record::NetPlugin {
            id,
            device: fd.cast_unsigned(),
            op: u32::from(!is_send),
            bytes: length,
            ..record::NetPlugin::default()
        },
        NetDescr::Opaque => record::NetPlugin { id, ..record::NetPlugin::default() },
    }
}
