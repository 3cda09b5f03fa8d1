// SPDX-License-Identifier: Apache-2.0
//! Descriptors for a plugin that speaks an older version than NCCL does. They are the results of
//! NCCL's own conversions (`src/plugin/profiler/profiler_v*.cc`@v2.30.7-1 and @2.31.2), with zeros
//! in the bytes that these leave unset. Also sets the parent handles in a descriptor, for a caller
//! that replaces them.

use core::ffi::{CStr, c_void};
use core::num::NonZeroU64;

use crate::common::CBool;
use crate::descr::{self, Descr, EventView};
use crate::{EventType, Str, codes, v1, v2, v3, v4, v5, v6, v7};

/// Sets the handles of other events in a descriptor.
pub trait Parents {
    /// Sets `parentObj`.
    fn set_parent(&mut self, parent: *mut c_void);
    /// Sets `parentGroup` where the version and the type have one.
    fn set_group(&mut self, group: *mut c_void);
}

/// Implements [`Parents`] for a version with or without `parentGroup`.
macro_rules! parents {
    ($($module:ident)*; $($grouped:ident)*) => {
        $(impl Parents for $module::EventDescr {
            #[inline]
            fn set_parent(&mut self, parent: *mut c_void) {
                self.parentObj = parent;
            }
            #[inline]
            fn set_group(&mut self, _group: *mut c_void) {}
        })*
        $(impl Parents for $grouped::EventDescr {
            #[inline]
            fn set_parent(&mut self, parent: *mut c_void) {
                self.parentObj = parent;
            }
            #[inline]
            fn set_group(&mut self, group: *mut c_void) {
                if self.r#type == EventType::Coll.bit() {
                    self.payload.coll.parentGroup = group;
                } else if self.r#type == EventType::P2p.bit() {
                    self.payload.p2p.parentGroup = group;
                }
            }
        })*
    };
}
parents!(v1 v2 v3 v4; v5 v6 v7);

/// An event descriptor of an older version.
pub trait Older: Copy + Parents {
    /// The descriptor of what `view` shows, without parents; `None` if the version lacks the type.
    ///
    /// # Safety
    /// Every string in the view is null or a string that is readable during the call.
    unsafe fn describe(view: &EventView) -> Option<Self>;
}

/// Calls `start` with the event of `view` as a descriptor of `version`, which is older than the
/// newest, with these parents; `None` if that version lacks the type.
///
/// # Safety
/// As [`Older::describe`].
#[inline]
pub unsafe fn describe<T>(
    version: u8,
    view: &EventView,
    (parent, group): (*mut c_void, *mut c_void),
    start: impl FnOnce(*mut c_void) -> T,
) -> Option<T> {
    macro_rules! by_version {
        ($($number:literal => $module:ident),*) => {
            match version {
                $($number => {
                    // SAFETY: the caller's promise is the same.
                    let mut descr = unsafe { $module::EventDescr::describe(view) }?;
                    descr.set_parent(parent);
                    descr.set_group(group);
                    Some(start((&raw mut descr).cast()))
                })*
                _ => None,
            }
        };
    }
    by_version!(1 => v1, 2 => v2, 3 => v3, 4 => v4, 5 => v5, 6 => v6)
}

/// Implements [`Older::describe`] from one expression for each event type that the version has.
macro_rules! older {
    ($module:ident, $type:ty, $($pattern:ident($d:ident) => $arm:ident: $value:expr,)*) => {
        impl Older for $module::EventDescr {
            #[inline]
            unsafe fn describe(view: &EventView) -> Option<Self> {
                let event_type = view.descr.event_type()?;
                // SAFETY: of integers and raw pointers only, for which zero is a value.
                let mut descr: Self = unsafe { core::mem::zeroed() };
                descr.r#type = <$type>::try_from(event_type.bit()).ok()?;
                descr.rank = view.rank;
                match &view.descr {
                    Descr::Group | Descr::ProxyCtrl => {}
                    $(Descr::$pattern($d) => descr.payload.$arm = $value,)*
                    _ => return None,
                }
                Some(descr)
            }
        }
    };
}

older! { v1, u8,
    Coll(d) => coll: v1::Coll {
        name: d.name.as_ptr(),
        commHash: number(d.comm_hash),
        seqNumber: d.seq_number,
        // SAFETY: the caller promises the strings, here and below.
        func: unsafe { code(&V1_FUNCS, d.func, 6) },
        sendBuff: pointer(d.send_buff),
        recvBuff: pointer(d.recv_buff),
        count: size(d.count),
        root: d.root,
        // SAFETY: as above.
        datatype: unsafe { code(&V1_DATATYPES, d.datatype, 8) },
        op: 0,
        trafficBytes: size(number(d.traffic_bytes)),
        nMaxChannels: d.n_channels,
        nWarps: d.n_warps,
        // SAFETY: as above.
        algo: unsafe { code(&numbered(&codes::ALGOS), d.algo, 6) },
        // SAFETY: as above.
        proto: unsafe { code(&numbered(&codes::PROTOS), d.proto, 2) },
        isCollnet: 0,
        isNvls: 0,
    },
    P2p(d) => p2p: v1::P2p {
        name: d.name.as_ptr(),
        commHash: number(d.comm_hash),
        // SAFETY: as above.
        func: unsafe { code(&V1_FUNCS, d.func, 6) },
        buff: pointer(d.buff),
        // SAFETY: as above.
        datatype: unsafe { code(&V1_DATATYPES, d.datatype, 8) },
        count: size(d.count),
        peer: d.peer,
    },
    ProxyOp(d) => proxyOp: d.into(),
    ProxyStep(d) => proxyStep: v1::ProxyStep { step: d.step },
}

older! { v2, u8,
    Coll(d) => coll: v2::Coll {
        name: d.name.as_ptr(),
        commHash: number(d.comm_hash),
        seqNumber: d.seq_number,
        func: d.func.as_ptr(),
        sendBuff: pointer(d.send_buff),
        recvBuff: pointer(d.recv_buff),
        count: size(d.count),
        root: d.root,
        datatype: d.datatype.as_ptr(),
        trafficBytes: size(number(d.traffic_bytes)),
        nMaxChannels: d.n_channels,
        nWarps: d.n_warps,
        algo: d.algo.as_ptr(),
        proto: d.proto.as_ptr(),
    },
    P2p(d) => p2p: d.into(),
    ProxyOp(d) => proxyOp: d.into(),
    ProxyStep(d) => proxyStep: v1::ProxyStep { step: d.step },
}

older! { v3, u8,
    Coll(d) => coll: v3::Coll {
        name: d.name.as_ptr(),
        commHash: number(d.comm_hash),
        seqNumber: d.seq_number,
        func: d.func.as_ptr(),
        sendBuff: pointer(d.send_buff),
        recvBuff: pointer(d.recv_buff),
        count: size(d.count),
        root: d.root,
        datatype: d.datatype.as_ptr(),
        nMaxChannels: d.n_channels,
        nWarps: d.n_warps,
        algo: d.algo.as_ptr(),
        proto: d.proto.as_ptr(),
    },
    P2p(d) => p2p: d.into(),
    ProxyOp(d) => proxyOp: d.into(),
    ProxyStep(d) => proxyStep: v1::ProxyStep { step: d.step },
    KernelCh(d) => kernelCh: v3::KernelCh { channelId: d.channel_id },
    NetPlugin(d) => netPlugin: d.into(),
}

older! { v4, u8,
    Coll(d) => coll: v4::Coll {
        seqNumber: d.seq_number,
        func: d.func.as_ptr(),
        sendBuff: pointer(d.send_buff),
        recvBuff: pointer(d.recv_buff),
        count: size(d.count),
        root: d.root,
        datatype: d.datatype.as_ptr(),
        nChannels: d.n_channels,
        nWarps: d.n_warps,
        algo: d.algo.as_ptr(),
        proto: d.proto.as_ptr(),
    },
    P2p(d) => p2p: v4::P2p {
        func: d.func.as_ptr(),
        buff: pointer(d.buff),
        datatype: d.datatype.as_ptr(),
        count: size(d.count),
        peer: d.peer,
        nChannels: d.n_channels.unwrap_or(0),
    },
    ProxyOp(d) => proxyOp: d.into(),
    ProxyStep(d) => proxyStep: v1::ProxyStep { step: d.step },
    KernelCh(d) => kernelCh: d.into(),
    NetPlugin(d) => netPlugin: d.into(),
}

/// `older!` with the event types that versions 5 and 6 share.
macro_rules! older_with_api {
    ($module:ident, $($more:tt)*) => {
        older! { $module, u64,
            Coll(d) => coll: v5::Coll {
                seqNumber: d.seq_number,
                func: d.func.as_ptr(),
                sendBuff: pointer(d.send_buff),
                recvBuff: pointer(d.recv_buff),
                count: size(d.count),
                root: d.root,
                datatype: d.datatype.as_ptr(),
                nChannels: d.n_channels,
                nWarps: d.n_warps,
                algo: d.algo.as_ptr(),
                proto: d.proto.as_ptr(),
                parentGroup: pointer(d.parent_group),
            },
            P2p(d) => p2p: v5::P2p {
                func: d.func.as_ptr(),
                buff: pointer(d.buff),
                datatype: d.datatype.as_ptr(),
                count: size(d.count),
                peer: d.peer,
                nChannels: d.n_channels.unwrap_or(0),
                parentGroup: pointer(d.parent_group),
            },
            ProxyOp(d) => proxyOp: d.into(),
            ProxyStep(d) => proxyStep: v1::ProxyStep { step: d.step },
            KernelCh(d) => kernelCh: d.into(),
            NetPlugin(d) => netPlugin: d.into(),
            GroupApi(d) => groupApi: v5::GroupApi {
                graphCaptured: CBool::from(d.graph_captured),
                groupDepth: d.group_depth,
            },
            CollApi(d) => collApi: v5::CollApi {
                func: d.func.as_ptr(),
                count: size(d.count),
                datatype: d.datatype.as_ptr(),
                root: d.root,
                stream: pointer(d.stream),
                graphCaptured: CBool::from(d.graph_captured),
            },
            P2pApi(d) => p2pApi: v5::P2pApi {
                func: d.func.as_ptr(),
                count: size(d.count),
                datatype: d.datatype.as_ptr(),
                stream: pointer(d.stream),
                graphCaptured: CBool::from(d.graph_captured),
            },
            KernelLaunch(d) => kernelLaunch: v5::KernelLaunch { stream: pointer(d.stream) },
            $($more)*
        }
    };
}

older_with_api! { v5, }
older_with_api! { v6,
    CeColl(d) => ceColl: v6::CeColl {
        seqNumber: d.seq_number,
        func: d.func.as_ptr(),
        sendBuff: pointer(d.send_buff),
        recvBuff: pointer(d.recv_buff),
        count: size(d.count),
        root: d.root,
        datatype: d.datatype.as_ptr(),
        syncStrategy: d.sync_strategy.as_ptr(),
        intraBatchSync: CBool::from(d.intra_batch_sync),
        batchSize: d.batch_size,
        numBatches: d.num_batches,
        ceSeqNum: d.ce_seq_num,
        stream: pointer(d.stream),
    },
    CeSync(d) => ceCollSync: v6::CeCollSync {
        isComplete: CBool::from(d.is_complete),
        nRanks: d.n_ranks,
    },
    CeBatch(d) => ceCollBatch: v6::CeCollBatch {
        numOps: d.num_ops,
        totalBytes: size(d.total_bytes),
        useIntraSync: CBool::from(d.use_intra_sync),
    },
}

impl From<&descr::ProxyOp> for v1::ProxyOp {
    #[inline]
    fn from(op: &descr::ProxyOp) -> Self {
        Self {
            pid: op.pid,
            channelId: op.channel_id,
            peer: op.peer,
            nSteps: op.n_steps,
            chunkSize: op.chunk_size,
            isSend: i32::from(op.is_send),
        }
    }
}

impl From<&descr::P2p> for v2::P2p {
    #[inline]
    fn from(p: &descr::P2p) -> Self {
        Self {
            name: p.name.as_ptr(),
            commHash: number(p.comm_hash),
            func: p.func.as_ptr(),
            buff: pointer(p.buff),
            datatype: p.datatype.as_ptr(),
            count: size(p.count),
            peer: p.peer,
        }
    }
}

impl From<&descr::NetPlugin> for v3::NetPlugin {
    #[inline]
    fn from(n: &descr::NetPlugin) -> Self {
        Self { id: n.id.0, data: n.data.0.cast_mut() }
    }
}

impl From<&descr::KernelCh> for v4::KernelCh {
    #[inline]
    fn from(k: &descr::KernelCh) -> Self {
        Self { channelId: k.channel_id, pTimer: number(k.p_timer) }
    }
}

/// The names that NCCL's conversion to version 1 knows; any other becomes `Send`.
const V1_FUNCS: [(&CStr, u8); 7] = [
    (c"Broadcast", 0),
    (c"Reduce", 1),
    (c"AllGather", 2),
    (c"ReduceScatter", 3),
    (c"AllReduce", 4),
    (c"SendRecv", 5),
    (c"Recv", 7),
];
/// The data types that NCCL's conversion to version 1 knows; any other becomes `ncclFloat64`.
const V1_DATATYPES: [(&CStr, u8); 7] = [
    (c"ncclInt8", 0),
    (c"ncclInt32", 2),
    (c"ncclUint32", 3),
    (c"ncclInt64", 4),
    (c"ncclUint64", 5),
    (c"ncclFloat16", 6),
    (c"ncclFloat32", 7),
];

/// The names of a table, each with its index.
const fn numbered<const N: usize>(names: &[&'static CStr; N]) -> [(&'static CStr, u8); N] {
    let mut table = [(c"", 0); N];
    let mut i = 0;
    let mut place = 0;
    while i < N {
        table[i] = (names[i], place);
        place += 1;
        i += 1;
    }
    table
}

/// The code of a name; `other` if the table lacks the name, or it is NULL.
///
/// # Safety
/// `name` is null or a string that is readable during the call.
unsafe fn code(table: &[(&CStr, u8)], name: Str, other: u8) -> u8 {
    // SAFETY: the caller's promise is the same.
    let Some(name) = (unsafe { name.to_cstr() }) else { return other };
    table.iter().find(|(known, _)| *known == name).map_or(other, |(_, code)| *code)
}

#[inline]
fn number(value: Option<NonZeroU64>) -> u64 {
    value.map_or(0, NonZeroU64::get)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "this crate compiles for 64-bit machines only")]
const fn size(value: u64) -> usize {
    value as usize
}

/// Converts a number back to the opaque address.
#[inline]
const fn pointer(value: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(size(value))
}
