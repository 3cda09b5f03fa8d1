// SPDX-License-Identifier: Apache-2.0
//! The start of an event, with NCCL's description for each kind.

use crate::alignment::Alignment;
use crate::fields::{Field, FieldLayout, Layout, record_fields};
use crate::handle::Handle;
use crate::kind::EventKind;
use crate::string::StrId;
use crate::words::{MAX_WORDS, Pack, Packed, START, Sink, head};

/// The start of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// When the callback was entered, in ticks.
    pub ticks: u64,
    /// Index of the communicator whose context NCCL passed (see [`crate::Comm`]).
    pub comm: u16,
    /// The handle given to NCCL.
    pub handle: Handle,
    /// NCCL's `parentObj`, unchanged: a handle of ours, a stale one, another process's, or null.
    pub parent: Handle,
    /// The fields of the kind of event.
    pub detail: Detail,
}

/// Declares [`Detail`] from one list: the kind of event, and its fields if it has any.
macro_rules! details {
    ($($(#[$doc:meta])* $kind:ident $(($fields:ident))?;)*) => {
        /// The fields of a start by kind of event; names and meaning are NCCL's
        /// (`ncclProfilerEventDescr_v7_t`, NCCL `src/include/plugin/profiler/profiler_v7.h`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Detail {
            $($(#[$doc])* $kind $(($fields))?,)*
        }

        impl Detail {
            /// The kind of event.
            #[must_use]
            #[inline(always)]
            pub const fn kind(&self) -> EventKind {
                match self { $(Detail::$kind { .. } => EventKind::$kind,)* }
            }

            /// The words of a start of this kind; `None` for steps, which have a record of their
            /// own.
            pub(crate) const fn layout(kind: EventKind) -> Option<Layout> {
                match kind {
                    $(EventKind::$kind => Some(layout_of!($($fields)?)),)*
                    EventKind::ProxyStep => None,
                }
            }

            fn of(kind: EventKind, words: &[u64; MAX_WORDS]) -> Detail {
                match kind {
                    $(EventKind::$kind => Detail::$kind $(($fields::get(words)))?,)*
                    EventKind::ProxyStep => Detail::ProxyCtrl,
                }
            }
        }

        impl StartHead {
            /// Passes the words of the start of `detail` to `sink`.
            #[inline(always)]
            pub fn put<S: Sink>(&self, detail: &Detail, sink: S) -> S::Out {
                match detail {
                    $(Detail::$kind $((bound!($fields, fields)))? => {
                        put!(self, $kind, sink $(, fields: $fields)?)
                    })*
                }
            }
        }
    };
}

/// The layout of a start with or without fields.
macro_rules! layout_of {
    () => {
        BARE
    };
    ($fields:ident) => {
        $fields::LAYOUT
    };
}

/// The pattern that binds a variant's fields, if it has any.
macro_rules! bound {
    ($fields:ident, $name:ident) => {
        $name
    };
}

/// Passes the words of a start to a sink: those of the head, and those of the fields.
macro_rules! put {
    ($head:expr, $kind:ident, $sink:expr) => {
        $sink.put($head.before(EventKind::$kind, [0; BARE.words]))
    };
    ($head:expr, $kind:ident, $sink:expr, $it:ident: $fields:ident) => {{
        let mut words = [0; _];
        $it.set(&mut words);
        $sink.put($head.before(EventKind::$kind, words))
    }};
}

details! {
    /// A plan is handed to the proxy: parent of Coll and P2p.
    Group;
    /// A collective is handed over; its end is **not** this event's stop.
    Coll(Coll);
    /// A send or receive is handed over.
    P2p(P2p);
    /// One channel's network work of an operation.
    ProxyOp(ProxyOp);
    /// The proxy progress thread's own activity.
    ProxyCtrl;
    /// A channel's activity inside the kernel.
    KernelCh(KernelCh);
    /// Work of the network plugin for a step.
    NetPlugin(NetPlugin);
    /// A group of API calls, implicit or explicit.
    GroupApi(GroupApi);
    /// An API call of a collective.
    CollApi(ApiCall);
    /// An API call of a send or receive.
    P2pApi(ApiCall);
    /// The launch of a plan's kernel.
    KernelLaunch(KernelLaunch);
    /// A copy-engine collective.
    CeColl(CeColl);
    /// A synchronisation of a copy-engine collective.
    CeSync(CeSync);
    /// A batch of copies of a copy-engine collective.
    CeBatch(CeBatch);
    /// A phase of a symmetric kernel (v7).
    KernelPhase(KernelPhase);
}

record_fields! {
    /// Fields of KernelCh.
    #[derive(Default)]
    pub struct KernelCh: 5 {
        /// Channel index.
        channel: u8 = (0, 8),
        /// GPU globaltimer at the start, ns; 0 where the release gives none.
        ptimer: u64 = (4, 0),
    }
}

record_fields! {
    /// Fields of GroupApi.
    #[derive(Default)]
    pub struct GroupApi: 3 {
        /// Captured into a CUDA graph.
        graph: bool = (0, 8),
        /// 1 implicit, 2 inside one explicit group, and so on.
        depth: i32 = (0, 32),
    }
}

record_fields! {
    /// Fields of CollApi and P2pApi.
    #[derive(Default)]
    pub struct ApiCall: 8, halves 0b100_0000 {
        /// NCCL function name.
        func: StrId = (6, 0),
        /// NCCL datatype name.
        datatype: StrId = (6, 16),
        /// Elements, as the caller gave them.
        count: u64 = (4, 0),
        /// Root rank (collectives).
        root: i32 = (0, 32),
        /// The CUDA stream's handle value.
        stream: u64 = (5, 0),
        /// Captured into a CUDA graph.
        graph: bool = (0, 8),
        /// `userProfilerTag` (v7), 0 otherwise.
        user_tag: u64 = (7, 0),
    }
}

record_fields! {
    /// Fields of Coll.
    #[derive(Default)]
    pub struct Coll: 10, halves 0b1_1000_0000 {
        /// NCCL function name.
        func: StrId = (7, 0),
        /// NCCL datatype name; AllGather and Broadcast count bytes as ncclInt8.
        datatype: StrId = (7, 16),
        /// Algorithm, e.g. RING.
        algo: StrId = (7, 32),
        /// Protocol, e.g. SIMPLE.
        proto: StrId = (7, 48),
        /// Number of this function's operation on the communicator; graph replays may repeat it.
        seq: u64 = (5, 0),
        /// Elements of `datatype`.
        count: u64 = (6, 0),
        /// Root rank.
        root: i32 = (0, 32),
        /// Channels used; 0 unknown.
        channels: u8 = (0, 8),
        /// Warps per block.
        warps: u8 = (8, 0),
        /// A symmetric kernel (v7).
        symmetric: bool = (8, 8),
        /// Alignment of its buffers.
        alignment: Alignment = (8, 9),
        /// There are 256 channels more than `channels` says.
        more_channels: bool = (8, 14),
        /// Kernel variant (v7).
        variant: StrId = (8, 16),
        /// Rank, as the descriptor says.
        rank: i32 = (8, 32),
        /// Handle of the Group event (v5 on; else the parent is the group).
        group: Handle = (4, 0),
        /// `userProfilerTag` (v7), 0 otherwise.
        user_tag: u64 = (9, 0),
    }
}

record_fields! {
    /// Fields of P2p.
    #[derive(Default)]
    pub struct P2p: 8, halves 0b100_0000 {
        /// `Send` or `Recv`.
        func: StrId = (6, 0),
        /// NCCL datatype name.
        datatype: StrId = (6, 16),
        /// Elements of `datatype`.
        count: u64 = (5, 0),
        /// The other rank.
        peer: i32 = (0, 32),
        /// Channels used; 0 unknown.
        channels: u8 = (0, 8),
        /// Alignment of its buffer.
        alignment: Alignment = (6, 32),
        /// Handle of the Group event (v5 on; else the parent is the group).
        group: Handle = (4, 0),
        /// `userProfilerTag` (v7), 0 otherwise.
        user_tag: u64 = (7, 0),
    }
}

record_fields! {
    /// Fields of ProxyOp.
    #[derive(Default)]
    pub struct ProxyOp: 7, halves 0b111_0000 {
        /// Process that the operation belongs to; not ours with PXN.
        pid: u32 = (4, 0),
        /// Channel index.
        channel: u8 = (0, 8),
        /// The other rank.
        peer: i32 = (0, 32),
        /// Steps NCCL announced.
        steps: u32 = (4, 32),
        /// NCCL's chunk size; overstated, do not multiply by `steps`.
        chunk_bytes: u32 = (5, 0),
        /// Send or receive.
        is_send: bool = (5, 32),
        /// Belongs to another process (PXN): its parent is a handle of that process, and the index
        /// of its communicator is that process's, or 65535 where it is not known.
        foreign: bool = (5, 33),
        /// Rank, as the descriptor says.
        rank: i32 = (6, 0),
    }
}

record_fields! {
    /// Fields of NetPlugin.
    #[derive(Default)]
    pub struct NetPlugin: 8, halves 0b10_0000 {
        /// `type << 16 | version` of the network plugin's descriptor.
        id: u64 = (4, 0),
        /// Device index (IB), or the socket's descriptor.
        device: u32 = (5, 0),
        /// Queue pair number (IB).
        qp: u32 = (5, 32),
        /// Opcode (IB) or 0 send, 1 receive (socket).
        op: u32 = (0, 32),
        /// Bytes.
        bytes: u64 = (6, 0),
        /// Work request id (IB).
        wr_id: u64 = (7, 0),
    }
}

record_fields! {
    /// Fields of KernelLaunch.
    #[derive(Default)]
    pub struct KernelLaunch: 5 {
        /// The CUDA stream's handle value.
        stream: u64 = (4, 0),
    }
}

record_fields! {
    /// Fields of CeColl.
    #[derive(Default)]
    pub struct CeColl: 11, halves 0b1_0100_0000 {
        /// NCCL function name.
        func: StrId = (6, 0),
        /// NCCL datatype name.
        datatype: StrId = (6, 16),
        /// Synchronisation strategy.
        sync: StrId = (6, 32),
        /// Alignment of its buffers.
        alignment: Alignment = (6, 48),
        /// Elements of `datatype`.
        count: u64 = (5, 0),
        /// Root rank.
        root: i32 = (0, 32),
        /// The CUDA stream's handle value.
        stream: u64 = (7, 0),
        /// Synchronised inside batches.
        intra_batch_sync: bool = (0, 8),
        /// Copies per batch.
        batch_size: u32 = (8, 0),
        /// Number of batches.
        batches: u32 = (8, 32),
        /// Number of the copy-engine collective on its communicator.
        seq: u64 = (4, 0),
        /// `userProfilerTag` (v7), 0 otherwise.
        user_tag: u64 = (10, 0),
    }
}

record_fields! {
    /// Fields of CeSync.
    #[derive(Default)]
    pub struct CeSync: 4 {
        /// The closing synchronisation.
        complete: bool = (0, 8),
        /// Ranks taking part.
        ranks: u32 = (0, 32),
    }
}

record_fields! {
    /// Fields of CeBatch.
    #[derive(Default)]
    pub struct CeBatch: 5 {
        /// Number of copies.
        ops: u32 = (0, 32),
        /// Bytes of all copies.
        bytes: u64 = (4, 0),
        /// Synchronised inside the batch.
        intra_sync: bool = (0, 8),
    }
}

record_fields! {
    /// Fields of KernelPhase.
    pub struct KernelPhase: 5 {
        /// Channel index.
        channel: u8 = (0, 8),
        /// 0 initial_sync, 1 compute, 2 final_sync.
        phase: u8 = (0, 32),
        /// NCCL's name of the phase.
        name: StrId = (0, 48),
        /// GPU globaltimer at the start, ns.
        ptimer: u64 = (4, 0),
    }
}

/// The layout of a start without fields (`BARE`), and the number of words before the fields.
const BARE: Layout = Layout { words: 3, halves: 0, fields: &[] };

impl Start {
    /// The record's words.
    #[must_use]
    pub fn pack(&self) -> Packed {
        self.put(Pack)
    }

    /// Passes the record's words to `sink`.
    #[inline(always)]
    pub fn put<S: Sink>(&self, sink: S) -> S::Out {
        let Start { ticks, comm, handle, parent, ref detail } = *self;
        StartHead { ticks, comm, handle, parent }.put(detail, sink)
    }

    /// The fields of the kind of event, each with its bits, in the order of their declaration.
    pub fn fields(&self) -> impl Iterator<Item = (&'static FieldLayout, u64)> {
        let (packed, layout) = (self.pack(), Detail::layout(self.detail.kind()).unwrap_or(BARE));
        layout.fields.iter().map(move |field| {
            let bits = packed.words().get(field.word).map_or(0, |word| word >> field.shift);
            (field, bits & u64::MAX >> (u64::BITS - field.bits))
        })
    }

    pub(crate) fn unpack(words: &[u64; MAX_WORDS]) -> Start {
        let kind = EventKind::from_low_bits(words[0].wrapping_sub(START.into()));
        let has_parent = Detail::layout(kind).is_some_and(|layout| layout.words > 3);
        Start {
            ticks: words[1],
            comm: u16::take(words, 0, 16),
            handle: Handle(words[2]),
            parent: if has_parent { Handle(words[3]) } else { Handle::NULL },
            detail: Detail::of(kind, words),
        }
    }
}

/// A start without its detail, which is large, so that it need not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartHead {
    /// See [`Start::ticks`].
    pub ticks: u64,
    /// See [`Start::comm`].
    pub comm: u16,
    /// See [`Start::handle`].
    pub handle: Handle,
    /// See [`Start::parent`].
    pub parent: Handle,
}

impl StartHead {
    /// Adds the first fields of every start record; the parent only if there is a word for it.
    #[inline(always)]
    fn before<const N: usize>(&self, kind: EventKind, mut words: [u64; N]) -> [u64; N] {
        words[0] |= head(START + kind as u8, 0, self.comm, 0);
        words[1] = self.ticks;
        words[2] = self.handle.0;
        if let Some(parent) = words.get_mut(3) {
            *parent = self.parent.0;
        }
        words
    }
}
