// SPDX-License-Identifier: Apache-2.0
//! The normalised view: one enum with one variant per event type, for every version.
//!
//! Fields are copied by value and keep NCCL's names. Opaque addresses (buffers, streams, handles)
//! are numbers. A field that a version lacks, or that a shim may have left unset, is absent:
//! `None`, a NULL [`Str`], or the number that NCCL itself uses for "none" where the field's text
//! says so.

use core::ffi::c_void;
use core::num::NonZeroU64;

use crate::net::{NetData, NetDescr, NetPluginId};
use crate::{EventType, Str};

/// An event as `startEvent` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventView {
    /// `parentObj`: the handle that the plugin returned for the parent, or 0. With PXN the handle
    /// comes from another process; in the replay of a CUDA graph it may be stale. Never dereference
    /// it.
    pub parent: u64,
    /// `rank`: many events leave it at 0 in most releases. The context has the right one.
    pub rank: i32,
    /// What the event is about.
    pub descr: Descr,
}

/// What an event is about: the arm that its type selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descr {
    /// See [`EventType::Group`]. No payload.
    Group,
    /// See [`EventType::Coll`].
    Coll(Coll),
    /// See [`EventType::P2p`].
    P2p(P2p),
    /// See [`EventType::ProxyOp`].
    ProxyOp(ProxyOp),
    /// See [`EventType::ProxyStep`].
    ProxyStep(ProxyStep),
    /// See [`EventType::ProxyCtrl`]. No payload.
    ProxyCtrl,
    /// See [`EventType::KernelCh`].
    KernelCh(KernelCh),
    /// See [`EventType::NetPlugin`].
    NetPlugin(NetPlugin),
    /// See [`EventType::GroupApi`].
    GroupApi(GroupApi),
    /// See [`EventType::CollApi`].
    CollApi(CollApi),
    /// See [`EventType::P2pApi`].
    P2pApi(P2pApi),
    /// See [`EventType::KernelLaunch`].
    KernelLaunch(KernelLaunch),
    /// See [`EventType::CeColl`].
    CeColl(CeColl),
    /// See [`EventType::CeSync`].
    CeSync(CeSync),
    /// See [`EventType::CeBatch`].
    CeBatch(CeBatch),
    /// See [`EventType::KernelPhase`].
    KernelPhase(KernelPhase),
    /// A type that the version at hand does not define, with its bits as they came.
    Unknown(u64),
}

impl Descr {
    /// The event's type; `None` for [`Descr::Unknown`].
    #[inline]
    #[must_use]
    pub const fn event_type(&self) -> Option<EventType> {
        Some(match self {
            Self::Group => EventType::Group,
            Self::Coll(_) => EventType::Coll,
            Self::P2p(_) => EventType::P2p,
            Self::ProxyOp(_) => EventType::ProxyOp,
            Self::ProxyStep(_) => EventType::ProxyStep,
            Self::ProxyCtrl => EventType::ProxyCtrl,
            Self::KernelCh(_) => EventType::KernelCh,
            Self::NetPlugin(_) => EventType::NetPlugin,
            Self::GroupApi(_) => EventType::GroupApi,
            Self::CollApi(_) => EventType::CollApi,
            Self::P2pApi(_) => EventType::P2pApi,
            Self::KernelLaunch(_) => EventType::KernelLaunch,
            Self::CeColl(_) => EventType::CeColl,
            Self::CeSync(_) => EventType::CeSync,
            Self::CeBatch(_) => EventType::CeBatch,
            Self::KernelPhase(_) => EventType::KernelPhase,
            Self::Unknown(_) => return None,
        })
    }
}

/// A collective. Version 1's `op`, `isCollnet` and `isNvls` are left out: no later version has
/// them, and `algo` gives the latter two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coll {
    /// The communicator's name; versions 1 to 3 on NCCL up to 2.26 only.
    pub name: Str,
    /// The communicator's hash; versions 1 to 3 on NCCL up to 2.26 only.
    pub comm_hash: Option<NonZeroU64>,
    /// Counts this communicator's collectives of the same function. Graph replays repeat it.
    pub seq_number: u64,
    /// The function, such as `AllReduce`; `Invalid` if NCCL has no name for it.
    pub func: Str,
    /// Send buffer's address.
    pub send_buff: u64,
    /// Receive buffer's address.
    pub recv_buff: u64,
    /// Elements of `datatype`. `AllGather` and `Broadcast` count bytes, as `ncclInt8`.
    pub count: u64,
    /// Root rank, for the functions that have one.
    pub root: i32,
    /// Data type, such as `ncclFloat32`; `Unknown` for `ncclUint8` too from version 2 on.
    pub datatype: Str,
    /// Bytes this rank moves; versions 1 and 2 on NCCL up to 2.26 only.
    pub traffic_bytes: Option<NonZeroU64>,
    /// `nMaxChannels` in versions 1 to 3, `nChannels` from 4. 0 for `CollNet`.
    pub n_channels: u8,
    /// Warps per channel.
    pub n_warps: u8,
    /// Algorithm, such as `RING`; for symmetric kernels the variant's name.
    pub algo: Str,
    /// Protocol, such as `SIMPLE`; empty for symmetric kernels.
    pub proto: Str,
    /// Handle of the Group event, or 0; from version 5.
    pub parent_group: u64,
    /// Name of the kernel's variant; version 7.
    pub kernel_variant: Str,
    /// Whether a symmetric kernel does it; version 7.
    pub is_sym_coll: Option<bool>,
    /// The application's tag, if it gave one; version 7.
    pub user_tag: Option<NonZeroU64>,
}

/// A send or receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct P2p {
    /// The communicator's name; versions 1 to 3 on NCCL up to 2.26 only.
    pub name: Str,
    /// The communicator's hash; versions 1 to 3 on NCCL up to 2.26 only.
    pub comm_hash: Option<NonZeroU64>,
    /// `Send` or `Recv`.
    pub func: Str,
    /// The buffer's address.
    pub buff: u64,
    /// Data type, such as `ncclFloat32`.
    pub datatype: Str,
    /// Elements of `datatype`.
    pub count: u64,
    /// The other rank.
    pub peer: i32,
    /// Channels used. From version 5. Unknown in version 4: NCCL 2.28 and later do not set it
    /// there, and the plugin cannot distinguish them from NCCL 2.27, which does.
    pub n_channels: Option<u8>,
    /// Handle of the Group event, or 0; from version 5.
    pub parent_group: u64,
    /// The application's tag, if it gave one; version 7.
    pub user_tag: Option<NonZeroU64>,
}

/// One operation's network work on one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyOp {
    /// The process that enqueued it. If not this one (PXN), context and parent are foreign.
    pub pid: i32,
    /// The channel.
    pub channel_id: u8,
    /// The other rank.
    pub peer: i32,
    /// Number of transfers.
    pub n_steps: i32,
    /// Bytes, multiplied by the channel's chunk steps: larger than a transfer.
    pub chunk_size: i32,
    /// Whether it sends. `CollNet` leaves it at false.
    pub is_send: bool,
}

/// One transfer of a [`ProxyOp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStep {
    /// Its number within the operation.
    pub step: i32,
}

/// One channel's activity inside a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCh {
    /// The channel.
    pub channel_id: u8,
    /// Start by the GPU's `%globaltimer`, ns; absent in version 3 and where NCCL has 0.
    pub p_timer: Option<NonZeroU64>,
}

/// An event of the network plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetPlugin {
    /// Id of the network plugin's event type, which determines the layout of `data`.
    pub id: NetPluginId,
    /// The network plugin's data, readable during the call only.
    pub data: NetData,
}

impl NetPlugin {
    /// Copies the network plugin's data, if its layout is known.
    ///
    /// # Safety
    /// The `startEvent` call that passed this must not have returned yet, and `data` must point to
    /// the layout that `id` names, as NCCL promises.
    #[inline]
    #[must_use]
    pub unsafe fn read(&self) -> NetDescr {
        // SAFETY: the caller's promise is the same.
        unsafe { self.data.read(self.id) }
    }
}

/// A group of API calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupApi {
    /// Whether a CUDA graph is being captured.
    pub graph_captured: bool,
    /// 1 for an implicit group, 2 within one explicit group, 3 within two, …
    pub group_depth: i32,
}

/// A call to a collective's API function: what the application asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollApi {
    /// The function.
    pub func: Str,
    /// Elements, as the application counts them.
    pub count: u64,
    /// Data type, as the application chose it.
    pub datatype: Str,
    /// Root rank, for the functions that have one.
    pub root: i32,
    /// The CUDA stream's handle.
    pub stream: u64,
    /// Whether a CUDA graph is being captured.
    pub graph_captured: bool,
    /// The application's tag, if it gave one; version 7.
    pub user_tag: Option<NonZeroU64>,
}

/// A call to `ncclSend` or `ncclRecv`, by the application or within `ncclAlltoAll` and its like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct P2pApi {
    /// `Send` or `Recv`.
    pub func: Str,
    /// Elements.
    pub count: u64,
    /// Data type.
    pub datatype: Str,
    /// The CUDA stream's handle.
    pub stream: u64,
    /// Whether a CUDA graph is being captured.
    pub graph_captured: bool,
    /// The application's tag, if it gave one; version 7.
    pub user_tag: Option<NonZeroU64>,
}

/// The launch of a plan's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLaunch {
    /// The CUDA stream's handle.
    pub stream: u64,
}

/// A collective by copy engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CeColl {
    /// The same counter as `ce_seq_num`.
    pub seq_number: u64,
    /// The function.
    pub func: Str,
    /// Send buffer's address.
    pub send_buff: u64,
    /// Receive buffer's address.
    pub recv_buff: u64,
    /// Elements of `datatype`.
    pub count: u64,
    /// Root rank, for the functions that have one.
    pub root: i32,
    /// Data type.
    pub datatype: Str,
    /// How ranks synchronise: `MC` (multicast) or `UC` (unicast).
    pub sync_strategy: Str,
    /// Whether ranks synchronise within a batch.
    pub intra_batch_sync: bool,
    /// Copies per batch.
    pub batch_size: u32,
    /// Batches.
    pub num_batches: u32,
    /// Counts the communicator's copy engine collectives.
    pub ce_seq_num: u32,
    /// The CUDA stream's handle.
    pub stream: u64,
    /// The application's tag, if it gave one; version 7.
    pub user_tag: Option<NonZeroU64>,
}

/// A synchronisation within a [`CeColl`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CeSync {
    /// Whether it is the one at the end.
    pub is_complete: bool,
    /// Ranks that take part.
    pub n_ranks: i32,
}

/// A batch of copies within a [`CeColl`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CeBatch {
    /// Copies.
    pub num_ops: i32,
    /// Bytes of all copies.
    pub total_bytes: u64,
    /// Whether ranks synchronise within it.
    pub use_intra_sync: bool,
}

/// A phase inside a channel of a symmetric kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelPhase {
    /// The channel.
    pub channel_id: u8,
    /// 0 initial synchronisation, 1 compute, 2 final synchronisation.
    pub phase_id: u8,
    /// `initial_sync`, `compute`, `final_sync`.
    pub phase_name: Str,
    /// Start by the GPU's `%globaltimer`, ns; absent where NCCL has 0.
    pub p_timer: Option<NonZeroU64>,
}

/// An opaque address as a number.
#[inline(always)]
pub(crate) fn addr(ptr: *const c_void) -> u64 {
    ptr.addr() as u64
}
