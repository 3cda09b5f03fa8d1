// SPDX-License-Identifier: Apache-2.0
/*!
Records: what a lane holds, in 64-bit words.

Word 0 of every record is `kind:8 | a:8 | b:16 | c:32` from the low bits up, word 1 is a time stamp
in ticks. Start records go on with the event's handle and its parent's handle; the words after that
belong to the kind of event (the `pack` and `unpack` of [`Start`] are the layout's definition).

A network step is **one** record, written when the step stops: [`Step`].
*/

pub use crate::step::{Step, step_flags};

use crate::define::StrId;
use crate::handle::Handle;
use crate::kind::{EventKind, State};
use crate::mark::Mark;
use crate::progress::Vital;

/// The longest record, in words.
pub const MAX_WORDS: usize = 11;
/// Code of a stop record: `word 2` is the handle.
pub const STOP: u8 = 1;
/// Code of a state record: `a` is the state, `c` a small argument, words 2 and 3 the handle and an
/// argument.
pub const STATE: u8 = 2;
/// Code of a step record whose durations fit 32 bits.
pub const STEP: u8 = 3;
/// Code of a step record with 64-bit durations: a step that stalled for long.
pub const STEP_LONG: u8 = 4;
/// Code of a clock synchronisation: see [`crate::ClockSync`].
pub const CLOCK_SYNC: u8 = 5;
/// Code of a mark: see [`Mark`].
pub const MARK: u8 = 6;
/// Code of [`crate::progress::Progress`].
pub const PROGRESS: u8 = 7;
/// Code of [`crate::progress::Checkpoints`].
pub const CHECKPOINTS: u8 = 8;
/// Code of [`crate::progress::OpProgress`].
pub const OP_PROGRESS: u8 = 9;
/// Code of [`crate::progress::Thread`].
pub const THREAD: u8 = 10;
/// Codes `START + kind` are start records.
pub const START: u8 = 0x10;

/// Durations in step records are in ticks shifted right by this (6 ns at 2.6 GHz, 26 s of range).
pub const STEP_SHIFT: u32 = 4;

/// How many words a record with this code has, and which of them are two 32-bit halves (bit i for
/// word i). `None` for a code that this version does not know.
#[must_use]
#[inline(always)]
pub const fn schema(code: u8) -> Option<(usize, u16)> {
    Some(match code {
        STOP => (3, 0),
        STATE => (4, 0),
        STEP => (5, 0b1_1100),
        STEP_LONG => (7, 0b100),
        CLOCK_SYNC => (4, 0),
        MARK | 0x10 | 0x15 | 0x18 => (3, 0),
        PROGRESS => (11, 0),
        CHECKPOINTS => (7, 0),
        OP_PROGRESS => (7, 0b11_1000),
        THREAD => (5, 0),
        0x11 => (10, 0b1_1000_0000),
        0x12 => (8, 0b100_0000),
        0x13 => (7, 0b111_0000),
        0x16 | 0x1b | 0x1e | 0x1f => (5, 0),
        0x17 => (8, 0b10_0000),
        0x19 | 0x1a => (8, 0b100_0000),
        0x1c => (11, 0b1_0100_0000),
        0x1d => (4, 0),
        _ => return None,
    })
}

/// Takes the words of one record. The number of words is a constant at each call, so that a lane
/// can store them without a loop.
pub trait Sink {
    /// What becomes of the record.
    type Out;

    /// Takes the words.
    fn put<const N: usize>(self, words: [u64; N]) -> Self::Out;
}

/// A record's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    words: [u64; MAX_WORDS],
    len: usize,
}

impl Packed {
    /// The words of the record.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        self.words.get(..self.len).unwrap_or(&self.words)
    }
}

/// Keeps the words.
pub(crate) struct Pack;

impl Sink for Pack {
    type Out = Packed;

    fn put<const N: usize>(self, given: [u64; N]) -> Packed {
        let mut words = [0; MAX_WORDS];
        for (word, given) in words.iter_mut().zip(given) {
            *word = given;
        }
        Packed { words, len: N }
    }
}

#[inline(always)]
pub(crate) const fn head(code: u8, a: u8, b: u16, c: u32) -> u64 {
    code as u64 | (a as u64) << 8 | (b as u64) << 16 | (c as u64) << 32
}
#[inline(always)]
pub(crate) const fn halves(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
#[inline(always)]
const fn strings(ids: [StrId; 4]) -> u64 {
    ids[0].0 as u64 | (ids[1].0 as u64) << 16 | (ids[2].0 as u64) << 32 | (ids[3].0 as u64) << 48
}

/// The start of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// When the callback was entered, in ticks.
    pub ticks: u64,
    /// Index of the communicator whose context NCCL passed (see [`crate::Comm`]).
    pub comm: u16,
    /// The handle given to NCCL.
    pub handle: Handle,
    /// NCCL's `parentObj`, as it came: ours, stale, another process's, or null.
    pub parent: Handle,
    /// What the kind of event adds.
    pub detail: Detail,
}

/// The fields of a start by kind of event; names and meaning are NCCL's
/// (`ncclProfilerEventDescr_v7_t`, NCCL `src/include/plugin/profiler/profiler_v7.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A plan is handed to the proxy: parent of Coll and P2p.
    Group,
    /// A collective is handed over; its end is **not** this event's stop.
    Coll(Coll),
    /// A send or receive is handed over.
    P2p(P2p),
    /// One channel's network work of an operation.
    ProxyOp(ProxyOp),
    /// The proxy progress thread's own activity.
    ProxyCtrl,
    /// A channel's activity inside the kernel.
    KernelCh {
        /// Channel index.
        channel: u8,
        /// GPU globaltimer at the start, ns; 0 where the release gives none.
        ptimer: u64,
    },
    /// Work of the network plugin for a step.
    NetPlugin(NetPlugin),
    /// A group of API calls, implicit or explicit.
    GroupApi {
        /// Captured into a CUDA graph.
        graph: bool,
        /// 1 implicit, 2 inside one explicit group, and so on.
        depth: i32,
    },
    /// An API call of a collective.
    CollApi(ApiCall),
    /// An API call of a send or receive.
    P2pApi(ApiCall),
    /// The launch of a plan's kernel.
    KernelLaunch {
        /// The CUDA stream's handle value.
        stream: u64,
    },
    /// A copy-engine collective.
    CeColl(CeColl),
    /// A synchronisation of a copy-engine collective.
    CeSync {
        /// The closing synchronisation.
        complete: bool,
        /// Ranks taking part.
        ranks: u32,
    },
    /// A batch of copies of a copy-engine collective.
    CeBatch {
        /// Number of copies.
        ops: u32,
        /// Bytes of all copies.
        bytes: u64,
        /// Synchronised inside the batch.
        intra_sync: bool,
    },
    /// A phase of a symmetric kernel (v7).
    KernelPhase {
        /// Channel index.
        channel: u8,
        /// 0 initial_sync, 1 compute, 2 final_sync.
        phase: u8,
        /// NCCL's name of the phase.
        name: StrId,
        /// GPU globaltimer at the start, ns.
        ptimer: u64,
    },
}

/// Fields of CollApi and P2pApi.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ApiCall {
    /// NCCL function name.
    pub func: StrId,
    /// NCCL datatype name.
    pub datatype: StrId,
    /// Elements, as the caller gave them.
    pub count: u64,
    /// Root rank (collectives).
    pub root: i32,
    /// The CUDA stream's handle value.
    pub stream: u64,
    /// Captured into a CUDA graph.
    pub graph: bool,
    /// `userProfilerTag` (v7), 0 otherwise.
    pub user_tag: u64,
}

/// Fields of Coll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Coll {
    /// NCCL function name.
    pub func: StrId,
    /// NCCL datatype name; AllGather and Broadcast count bytes as ncclInt8.
    pub datatype: StrId,
    /// Algorithm, e.g. RING.
    pub algo: StrId,
    /// Protocol, e.g. SIMPLE.
    pub proto: StrId,
    /// Number of this function's operation on the communicator; graph replays may repeat it.
    pub seq: u64,
    /// Elements of `datatype`.
    pub count: u64,
    /// Root rank.
    pub root: i32,
    /// Channels used; 0 unknown.
    pub channels: u8,
    /// Warps per block.
    pub warps: u8,
    /// Rank, as the descriptor says.
    pub rank: i32,
    /// Handle of the Group event (v5 on; else the parent is the group).
    pub group: Handle,
    /// Kernel variant (v7).
    pub variant: StrId,
    /// A symmetric kernel (v7).
    pub symmetric: bool,
    /// `userProfilerTag` (v7), 0 otherwise.
    pub user_tag: u64,
}

/// Fields of P2p.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct P2p {
    /// `Send` or `Recv`.
    pub func: StrId,
    /// NCCL datatype name.
    pub datatype: StrId,
    /// Elements of `datatype`.
    pub count: u64,
    /// The other rank.
    pub peer: i32,
    /// Channels used; 0 unknown.
    pub channels: u8,
    /// Handle of the Group event (v5 on; else the parent is the group).
    pub group: Handle,
    /// `userProfilerTag` (v7), 0 otherwise.
    pub user_tag: u64,
}

/// Fields of ProxyOp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ProxyOp {
    /// Process that the operation belongs to; not ours with PXN.
    pub pid: u32,
    /// Channel index.
    pub channel: u8,
    /// The other rank.
    pub peer: i32,
    /// Steps NCCL announced.
    pub steps: u32,
    /// NCCL's chunk size; overstated, do not multiply by `steps`.
    pub chunk_bytes: u32,
    /// Send or receive.
    pub is_send: bool,
    /// Belongs to another process (PXN): context and parent are not ours.
    pub foreign: bool,
    /// Rank, as the descriptor says.
    pub rank: i32,
}

/// Fields of NetPlugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NetPlugin {
    /// `type << 16 | version` of the network plugin's descriptor.
    pub id: u64,
    /// Device index (IB), or the socket's descriptor.
    pub device: u32,
    /// Queue pair number (IB).
    pub qp: u32,
    /// Opcode (IB) or 0 send, 1 receive (socket).
    pub op: u32,
    /// Bytes.
    pub bytes: u64,
    /// Work request id (IB).
    pub wr_id: u64,
}

/// Fields of CeColl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CeColl {
    /// NCCL function name.
    pub func: StrId,
    /// NCCL datatype name.
    pub datatype: StrId,
    /// Synchronisation strategy.
    pub sync: StrId,
    /// Elements of `datatype`.
    pub count: u64,
    /// Root rank.
    pub root: i32,
    /// The CUDA stream's handle value.
    pub stream: u64,
    /// Synchronised inside batches.
    pub intra_batch_sync: bool,
    /// Copies per batch.
    pub batch_size: u32,
    /// Number of batches.
    pub batches: u32,
    /// Number of the copy-engine collective on its communicator.
    pub seq: u64,
    /// `userProfilerTag` (v7), 0 otherwise.
    pub user_tag: u64,
}

impl Detail {
    /// The kind of event.
    #[must_use]
    #[inline(always)]
    pub const fn kind(&self) -> EventKind {
        match self {
            Detail::Group => EventKind::Group,
            Detail::Coll(_) => EventKind::Coll,
            Detail::P2p(_) => EventKind::P2p,
            Detail::ProxyOp(_) => EventKind::ProxyOp,
            Detail::ProxyCtrl => EventKind::ProxyCtrl,
            Detail::KernelCh { .. } => EventKind::KernelCh,
            Detail::NetPlugin(_) => EventKind::NetPlugin,
            Detail::GroupApi { .. } => EventKind::GroupApi,
            Detail::CollApi(_) => EventKind::CollApi,
            Detail::P2pApi(_) => EventKind::P2pApi,
            Detail::KernelLaunch { .. } => EventKind::KernelLaunch,
            Detail::CeColl(_) => EventKind::CeColl,
            Detail::CeSync { .. } => EventKind::CeSync,
            Detail::CeBatch { .. } => EventKind::CeBatch,
            Detail::KernelPhase { .. } => EventKind::KernelPhase,
        }
    }
}

impl Start {
    /// The record's words.
    #[must_use]
    pub fn pack(&self) -> Packed {
        self.put(Pack)
    }

    /// Gives the record's words to `sink`.
    #[inline(always)]
    pub fn put<S: Sink>(&self, sink: S) -> S::Out {
        let Start { ticks, comm, handle, parent, ref detail } = *self;
        StartHead { ticks, comm, handle, parent }.put(detail, sink)
    }
}

/// A start but for its detail, which is large and need not be copied together with it.
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
    /// Gives the words of the start of `detail` to `sink`.
    #[inline(always)]
    #[expect(clippy::cast_sign_loss, reason = "ranks travel as their 32 bits")]
    pub fn put<S: Sink>(&self, detail: &Detail, sink: S) -> S::Out {
        let (h, p) = (self.handle.0, self.parent.0);
        let kind = detail.kind();
        match *detail {
            Detail::Group | Detail::ProxyCtrl => sink.put(self.first(kind, 0, 0)),
            Detail::GroupApi { graph, depth } => {
                sink.put(self.first(kind, graph as u8, depth as u32))
            }
            Detail::Coll(ref d) => self.put_coll(d, sink),
            Detail::P2p(d) => {
                let [w0, t, _] = self.first(kind, d.channels, d.peer as u32);
                let names = strings([d.func, d.datatype, StrId::NONE, StrId::NONE]);
                sink.put([w0, t, h, p, d.group.0, d.count, names, d.user_tag])
            }
            Detail::ProxyOp(d) => {
                let [w0, t, _] = self.first(kind, d.channel, d.peer as u32);
                let flags = d.is_send as u32 | (d.foreign as u32) << 1;
                let (ids, sizes) = (halves(d.pid, d.steps), halves(d.chunk_bytes, flags));
                sink.put([w0, t, h, p, ids, sizes, halves(d.rank as u32, 0)])
            }
            Detail::KernelCh { channel, ptimer } => {
                let [w0, t, _] = self.first(kind, channel, 0);
                sink.put([w0, t, h, p, ptimer])
            }
            Detail::KernelPhase { channel, phase, name, ptimer } => {
                let [w0, t, _] = self.first(kind, channel, phase as u32 | (name.0 as u32) << 16);
                sink.put([w0, t, h, p, ptimer])
            }
            Detail::NetPlugin(d) => {
                let [w0, t, _] = self.first(kind, 0, d.op);
                sink.put([w0, t, h, p, d.id, halves(d.device, d.qp), d.bytes, d.wr_id])
            }
            Detail::CollApi(d) | Detail::P2pApi(d) => {
                let [w0, t, _] = self.first(kind, d.graph as u8, d.root as u32);
                let names = strings([d.func, d.datatype, StrId::NONE, StrId::NONE]);
                sink.put([w0, t, h, p, d.count, d.stream, names, d.user_tag])
            }
            Detail::KernelLaunch { stream } => {
                let [w0, t, _] = self.first(kind, 0, 0);
                sink.put([w0, t, h, p, stream])
            }
            Detail::CeColl(ref d) => self.put_ce_coll(d, sink),
            Detail::CeSync { complete, ranks } => {
                let [w0, t, _] = self.first(kind, complete as u8, ranks);
                sink.put([w0, t, h, p])
            }
            Detail::CeBatch { ops, bytes, intra_sync } => {
                let [w0, t, _] = self.first(kind, intra_sync as u8, ops);
                sink.put([w0, t, h, p, bytes])
            }
        }
    }

    /// What every start record begins with.
    #[inline(always)]
    const fn first(&self, kind: EventKind, a: u8, c: u32) -> [u64; 3] {
        let code = START + kind as u8;
        [head(code, a, self.comm, c), self.ticks, self.handle.0]
    }

    #[inline(always)]
    #[expect(clippy::cast_sign_loss, reason = "ranks travel as their 32 bits")]
    fn put_coll<S: Sink>(&self, d: &Coll, sink: S) -> S::Out {
        let [w0, t, h] = self.first(EventKind::Coll, d.channels, d.root as u32);
        let names = strings([d.func, d.datatype, d.algo, d.proto]);
        let kernel = d.warps as u32 | (d.symmetric as u32) << 8 | (d.variant.0 as u32) << 16;
        let kernel = halves(kernel, d.rank as u32);
        let (parent, group) = (self.parent.0, d.group.0);
        sink.put([w0, t, h, parent, group, d.seq, d.count, names, kernel, d.user_tag])
    }

    #[inline(always)]
    #[expect(clippy::cast_sign_loss, reason = "ranks travel as their 32 bits")]
    fn put_ce_coll<S: Sink>(&self, d: &CeColl, sink: S) -> S::Out {
        let [w0, t, h] = self.first(EventKind::CeColl, d.intra_batch_sync as u8, d.root as u32);
        let names = strings([d.func, d.datatype, d.sync, StrId::NONE]);
        let batches = halves(d.batch_size, d.batches);
        let parent = self.parent.0;
        sink.put([w0, t, h, parent, d.seq, d.count, names, d.stream, batches, 0, d.user_tag])
    }
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An event started.
    Start(Start),
    /// An event stopped, or NCCL stopped a handle again.
    Stop {
        /// When, in ticks.
        ticks: u64,
        /// The handle.
        handle: Handle,
    },
    /// An event other than a step changed state.
    State {
        /// When, in ticks.
        ticks: u64,
        /// The handle.
        handle: Handle,
        /// The new state.
        state: State,
        /// A count (v1–v3 `steps`, `appendedProxyOps`).
        small: u32,
        /// pTimer in ns, or bytes.
        arg: u64,
    },
    /// A network step.
    Step(Step),
    /// The clock was compared with the system's.
    ClockSync(crate::ClockSync),
    /// The application, or whoever controls the recording, says something.
    Mark(Mark),
    /// How far the process has come.
    Vital(Vital),
}

impl Record {
    /// A stop record.
    #[must_use]
    pub fn stop(ticks: u64, handle: Handle) -> Packed {
        Record::put_stop(Pack, ticks, handle)
    }

    /// Gives the words of a stop record to `sink`.
    #[inline(always)]
    pub fn put_stop<S: Sink>(sink: S, ticks: u64, handle: Handle) -> S::Out {
        sink.put(Record::stop_words(ticks, handle))
    }

    /// The words of a stop record.
    #[must_use]
    #[inline(always)]
    pub const fn stop_words(ticks: u64, handle: Handle) -> [u64; 3] {
        [head(STOP, 0, 0, 0), ticks, handle.0]
    }

    /// A state record.
    #[must_use]
    pub fn state(ticks: u64, handle: Handle, state: State, small: u32, arg: u64) -> Packed {
        Record::put_state(Pack, ticks, handle, state, (small, arg))
    }

    /// Gives the words of a state record to `sink`.
    #[inline(always)]
    pub fn put_state<S: Sink>(
        sink: S,
        ticks: u64,
        handle: Handle,
        state: State,
        (small, arg): (u32, u64),
    ) -> S::Out {
        sink.put(Record::state_words(ticks, handle, state, (small, arg)))
    }

    /// The words of a state record.
    #[must_use]
    #[inline(always)]
    pub const fn state_words(
        ticks: u64,
        handle: Handle,
        state: State,
        (small, arg): (u32, u64),
    ) -> [u64; 4] {
        [head(STATE, state.0, 0, small), ticks, handle.0, arg]
    }

    /// A clock synchronisation record.
    #[must_use]
    pub fn clock_sync(sync: &crate::ClockSync) -> Packed {
        let c = head(CLOCK_SYNC, 0, 0, sync.error_ns);
        Pack.put([c, sync.ticks, sync.monotonic_ns, sync.realtime_ns])
    }

    /// The record's time stamp: for a step its start.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        match self {
            Record::Start(start) => start.ticks,
            Record::Step(step) => step.ticks,
            Record::ClockSync(sync) => sync.ticks,
            Record::Mark(mark) => mark.ticks,
            Record::Vital(vital) => vital.ticks(),
            Record::Stop { ticks, .. } | Record::State { ticks, .. } => *ticks,
        }
    }

    /// Decodes the words of one record; `None` for an unknown code or too few words.
    #[must_use]
    pub fn unpack(words: &[u64]) -> Option<Record> {
        let code = low8(*words.first()?);
        let (len, _) = schema(code)?;
        if words.len() < len {
            return None;
        }
        let mut w = [0; MAX_WORDS];
        w.get_mut(..len)?.copy_from_slice(words.get(..len)?);
        Some(match code {
            STOP => Record::Stop { ticks: w[1], handle: Handle(w[2]) },
            STATE => Record::State {
                ticks: w[1],
                handle: Handle(w[2]),
                state: State(a(w[0])),
                small: hi(w[0]),
                arg: w[3],
            },
            STEP | STEP_LONG => Record::Step(unpack_step(&w, code == STEP_LONG)),
            CLOCK_SYNC => Record::ClockSync(crate::ClockSync {
                ticks: w[1],
                monotonic_ns: w[2],
                realtime_ns: w[3],
                error_ns: hi(w[0]),
            }),
            MARK => Record::Mark(Mark::unpack([w[0], w[1], w[2]])),
            PROGRESS..=THREAD => Record::Vital(Vital::unpack(code, &w)?),
            _ => Record::Start(unpack_start(&w)),
        })
    }
}

const fn low8(w: u64) -> u8 {
    w.to_le_bytes()[0]
}
const fn a(w: u64) -> u8 {
    w.to_le_bytes()[1]
}
const fn b(w: u64) -> u16 {
    let x = w.to_le_bytes();
    u16::from_le_bytes([x[2], x[3]])
}
const fn lo(w: u64) -> u32 {
    let x = w.to_le_bytes();
    u32::from_le_bytes([x[0], x[1], x[2], x[3]])
}
const fn hi(w: u64) -> u32 {
    lo(w >> 32)
}
const fn rank(bits: u32) -> i32 {
    bits.cast_signed()
}
const fn unstrings(w: u64) -> [StrId; 4] {
    let x = w.to_le_bytes();
    [
        StrId(u16::from_le_bytes([x[0], x[1]])),
        StrId(u16::from_le_bytes([x[2], x[3]])),
        StrId(u16::from_le_bytes([x[4], x[5]])),
        StrId(u16::from_le_bytes([x[6], x[7]])),
    ]
}

fn unpack_step(w: &[u64; MAX_WORDS], long: bool) -> Step {
    let (states, end) = if long {
        ([w[3], w[4], w[5]], w[6])
    } else {
        let wide = u64::from;
        ([wide(lo(w[3])), wide(hi(w[3])), wide(lo(w[4]))], wide(hi(w[4])))
    };
    Step {
        ticks: w[1],
        flags: a(w[0]),
        repeats: b(w[0]),
        step: hi(w[0]),
        op_ref: lo(w[2]),
        size: hi(w[2]),
        states,
        end,
    }
}

fn unpack_start(w: &[u64; MAX_WORDS]) -> Start {
    let kind = EventKind::from_nibble(w[0]);
    let detail = unpack_detail(kind, w);
    let has_parent = !matches!(detail, Detail::Group | Detail::ProxyCtrl | Detail::GroupApi { .. });
    Start {
        ticks: w[1],
        comm: b(w[0]),
        handle: Handle(w[2]),
        parent: if has_parent { Handle(w[3]) } else { Handle::NULL },
        detail,
    }
}

fn unpack_detail(kind: EventKind, w: &[u64; MAX_WORDS]) -> Detail {
    let (small, arg) = (a(w[0]), hi(w[0]));
    match kind {
        EventKind::Group => Detail::Group,
        // A step has no start record of its own; its code is not in the schema.
        EventKind::ProxyCtrl | EventKind::ProxyStep => Detail::ProxyCtrl,
        EventKind::Coll => Detail::Coll(unpack_coll(w)),
        EventKind::P2p => {
            let [func, datatype, ..] = unstrings(w[6]);
            Detail::P2p(P2p {
                func,
                datatype,
                count: w[5],
                peer: rank(arg),
                channels: small,
                group: Handle(w[4]),
                user_tag: w[7],
            })
        }
        EventKind::ProxyOp => Detail::ProxyOp(ProxyOp {
            pid: lo(w[4]),
            channel: small,
            peer: rank(arg),
            steps: hi(w[4]),
            chunk_bytes: lo(w[5]),
            is_send: hi(w[5]) & 1 != 0,
            foreign: hi(w[5]) & 2 != 0,
            rank: rank(lo(w[6])),
        }),
        EventKind::KernelCh => Detail::KernelCh { channel: small, ptimer: w[4] },
        EventKind::KernelPhase => Detail::KernelPhase {
            channel: small,
            phase: low8(u64::from(arg)),
            name: StrId(b(u64::from(arg))),
            ptimer: w[4],
        },
        EventKind::NetPlugin => Detail::NetPlugin(NetPlugin {
            id: w[4],
            device: lo(w[5]),
            qp: hi(w[5]),
            op: arg,
            bytes: w[6],
            wr_id: w[7],
        }),
        EventKind::GroupApi => Detail::GroupApi { graph: small != 0, depth: rank(arg) },
        EventKind::CollApi => Detail::CollApi(unpack_api(w)),
        EventKind::P2pApi => Detail::P2pApi(unpack_api(w)),
        EventKind::KernelLaunch => Detail::KernelLaunch { stream: w[4] },
        EventKind::CeColl => Detail::CeColl(unpack_ce_coll(w)),
        EventKind::CeSync => Detail::CeSync { complete: small != 0, ranks: arg },
        EventKind::CeBatch => Detail::CeBatch { ops: arg, bytes: w[4], intra_sync: small != 0 },
    }
}

fn unpack_coll(w: &[u64; MAX_WORDS]) -> Coll {
    let [func, datatype, algo, proto] = unstrings(w[7]);
    Coll {
        func,
        datatype,
        algo,
        proto,
        seq: w[5],
        count: w[6],
        root: rank(hi(w[0])),
        channels: a(w[0]),
        warps: low8(w[8]),
        rank: rank(hi(w[8])),
        group: Handle(w[4]),
        variant: StrId(b(w[8])),
        symmetric: a(w[8]) != 0,
        user_tag: w[9],
    }
}

fn unpack_api(w: &[u64; MAX_WORDS]) -> ApiCall {
    let [func, datatype, ..] = unstrings(w[6]);
    ApiCall {
        func,
        datatype,
        count: w[4],
        root: rank(hi(w[0])),
        stream: w[5],
        graph: a(w[0]) != 0,
        user_tag: w[7],
    }
}

fn unpack_ce_coll(w: &[u64; MAX_WORDS]) -> CeColl {
    let [func, datatype, sync, _] = unstrings(w[6]);
    CeColl {
        func,
        datatype,
        sync,
        count: w[5],
        root: rank(hi(w[0])),
        stream: w[7],
        intra_batch_sync: a(w[0]) != 0,
        batch_size: lo(w[8]),
        batches: hi(w[8]),
        seq: w[4],
        user_tag: w[10],
    }
}
