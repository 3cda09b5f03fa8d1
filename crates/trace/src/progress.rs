// SPDX-License-Identifier: Apache-2.0
/*!
How far a process has come: what its drain thread writes once a second, and more seldom where
nothing changes.

The counts are those of the process since the communicator was made, not of the recorded window, and
go on while recording is stopped or sampled. Collectives and one-sided transfers are counted apart:
the number of a collective is the same on all members of its communicator, that of a send is not.

The words of each record are given with it; `docs/trace-format.md` has them as a table.
*/

use crate::define::StrId;
use crate::handle::Handle;
use crate::record::{CHECKPOINTS, OP_PROGRESS, PROGRESS, Pack, Packed, Sink, THREAD, halves, head};

/// Collectives between two values of the rolling hash that are kept.
pub const CHECKPOINT_EVERY: u64 = 64;

/// One of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vital {
    /// Counts of a communicator.
    Progress(Progress),
    /// Rolling hashes of a communicator.
    Checkpoints(Checkpoints),
    /// A ProxyOp in flight.
    Op(OpProgress),
    /// A thread of NCCL or of the application.
    Thread(Thread),
}

/// What is not known of a [`Progress`], or special about it.
pub mod progress_flags {
    /// Recording was stopped or sampled at some time: `started` and the `done` counts lack what was
    /// left out.
    pub const PARTIAL: u8 = 1;
    /// Events were lost: likewise.
    pub const LOSSY: u8 = 1 << 1;
    /// NCCL tells no API calls (profiler API v1 to v4): `api` counts what was enqueued.
    pub const NO_API: u8 = 1 << 2;
    /// No kernel channel has been seen: `started` says nothing.
    pub const NO_KERNEL: u8 = 1 << 3;
    /// The end of operations cannot be seen (neither kernel channels nor proxy operations so far):
    /// the `done` counts are those of operations enqueued.
    pub const NO_END: u8 = 1 << 4;
    /// The communicator was finalized.
    pub const ENDED: u8 = 1 << 5;
    /// The rank's own watchdog holds the communicator for stuck.
    pub const STUCK: u8 = 1 << 6;
}

/// Counts of one communicator in one process. Words: 0 head (`a` flags, `b` communicator, `c` age),
/// 1 ticks, then the fields from `api` on in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// When, in ticks.
    pub ticks: u64,
    /// [`crate::Comm::index`].
    pub comm: u16,
    /// [`progress_flags`].
    pub flags: u8,
    /// How long the oldest operation has been in flight, ms; 0 with none.
    pub age_ms: u32,
    /// Collectives that the application called.
    pub api: u64,
    /// Collectives that NCCL enqueued.
    pub enqueued: u64,
    /// Collectives up to the latest whose kernel started.
    pub started: u64,
    /// Collectives up to the first that is not complete: all before are.
    pub done: u64,
    /// Sends and receives that the application called.
    pub p2p_api: u64,
    /// Sends and receives that NCCL enqueued.
    pub p2p_enqueued: u64,
    /// Sends and receives that are complete.
    pub p2p_done: u64,
    /// Rolling hash over the first `api` collectives.
    pub hash: u64,
    /// When the application last called NCCL on this communicator, in ticks; 0 never.
    pub beat: u64,
}

/// Rolling hashes at multiples of [`CHECKPOINT_EVERY`]. Words: 0 head (`b` communicator), 1 ticks,
/// 2 `at`, 3 to 6 the hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Checkpoints {
    /// When, in ticks.
    pub ticks: u64,
    /// [`crate::Comm::index`].
    pub comm: u16,
    /// How many collectives the first hash covers; each further one covers 64 fewer.
    pub at: u64,
    /// The hashes; meaningless where `at` less their distance is not positive.
    pub hashes: [u64; 4],
}

/// A ProxyOp in flight. Words: 0 head (`a`: bit 0 send, bits 1..3 `reached`, bit 3 whether a step
/// is in flight; `b` communicator, `c` channel), 1 ticks, 2 handle, 3 peer and steps, 4 posted and
/// ready, 5 transmitted and done (each the low and the high half), 6 since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpProgress {
    /// When, in ticks.
    pub ticks: u64,
    /// [`crate::Comm::index`].
    pub comm: u16,
    /// The operation's handle.
    pub handle: Handle,
    /// A send; else a receive.
    pub is_send: bool,
    /// Channel.
    pub channel: u8,
    /// The other rank.
    pub peer: i32,
    /// Steps it has in all, as NCCL said at its start.
    pub steps: u32,
    /// Steps that started.
    pub posted: u32,
    /// Send: steps whose data the GPU gave. Receive: steps whose data arrived.
    pub ready: u32,
    /// Send: steps given to the network. Receive: steps whose data was flushed.
    pub transmitted: u32,
    /// Steps that stopped.
    pub done: u32,
    /// States that the oldest step in flight has reached, 0 to 3; `None` with none in flight.
    pub reached: Option<u8>,
    /// Since when nothing of this has changed, in ticks.
    pub since: u64,
}

/// A thread that makes callbacks, as the system sees it; written only while something looks stuck.
/// Words: 0 head (`a` state, `b` place, `c` thread id), 1 ticks, 2 `cpu_ns`, 3 `run_delay_ns`, 4
/// `kinds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Thread {
    /// When, in ticks.
    pub ticks: u64,
    /// Thread id.
    pub tid: u32,
    /// State as `/proc/PID/task/TID/stat` gives it: `R`, `S`, `D`, `T`…; 0 if the thread is gone.
    pub state: u8,
    /// Where it waits in the kernel (`wchan`), if the system tells.
    pub place: StrId,
    /// Processor time used, ns.
    pub cpu_ns: u64,
    /// Time it was ready to run and did not, ns.
    pub run_delay_ns: u64,
    /// Kinds of events that it started, as bits of [`crate::EventKind`].
    pub kinds: u32,
}

impl Vital {
    /// When, in ticks.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        match self {
            Vital::Progress(it) => it.ticks,
            Vital::Checkpoints(it) => it.ticks,
            Vital::Op(it) => it.ticks,
            Vital::Thread(it) => it.ticks,
        }
    }

    /// The record.
    #[must_use]
    pub fn pack(&self) -> Packed {
        match *self {
            Vital::Progress(p) => Pack.put([
                head(PROGRESS, p.flags, p.comm, p.age_ms),
                p.ticks,
                p.api,
                p.enqueued,
                p.started,
                p.done,
                p.p2p_api,
                p.p2p_enqueued,
                p.p2p_done,
                p.hash,
                p.beat,
            ]),
            Vital::Checkpoints(Checkpoints { ticks, comm, at, hashes: [h0, h1, h2, h3] }) => {
                Pack.put([head(CHECKPOINTS, 0, comm, 0), ticks, at, h0, h1, h2, h3])
            }
            Vital::Op(op) => pack_op(&op),
            Vital::Thread(t) => Pack.put([
                head(THREAD, t.state, t.place.0, t.tid),
                t.ticks,
                t.cpu_ns,
                t.run_delay_ns,
                u64::from(t.kinds),
            ]),
        }
    }

    /// Decodes a record's words; `None` if `code` is of no such record.
    pub(crate) fn unpack(code: u8, w: &[u64; crate::record::MAX_WORDS]) -> Option<Vital> {
        let x = w[0].to_le_bytes();
        let (a, b, c) = (x[1], u16::from_le_bytes([x[2], x[3]]), high(w[0]));
        Some(match code {
            PROGRESS => Vital::Progress(Progress {
                ticks: w[1],
                comm: b,
                flags: a,
                age_ms: c,
                api: w[2],
                enqueued: w[3],
                started: w[4],
                done: w[5],
                p2p_api: w[6],
                p2p_enqueued: w[7],
                p2p_done: w[8],
                hash: w[9],
                beat: w[10],
            }),
            CHECKPOINTS => Vital::Checkpoints(Checkpoints {
                ticks: w[1],
                comm: b,
                at: w[2],
                hashes: [w[3], w[4], w[5], w[6]],
            }),
            OP_PROGRESS => Vital::Op(OpProgress {
                ticks: w[1],
                comm: b,
                handle: Handle(w[2]),
                is_send: a & 1 != 0,
                channel: c.to_le_bytes()[0],
                peer: low(w[3]).cast_signed(),
                steps: high(w[3]),
                posted: low(w[4]),
                ready: high(w[4]),
                transmitted: low(w[5]),
                done: high(w[5]),
                reached: (a & 8 != 0).then_some((a >> 1) & 3),
                since: w[6],
            }),
            THREAD => Vital::Thread(Thread {
                ticks: w[1],
                tid: c,
                state: a,
                place: StrId(b),
                cpu_ns: w[2],
                run_delay_ns: w[3],
                kinds: low(w[4]),
            }),
            _ => return None,
        })
    }
}

fn pack_op(op: &OpProgress) -> Packed {
    let reached = op.reached.map_or(0, |reached| 8 | (reached & 3) << 1);
    Pack.put([
        head(OP_PROGRESS, u8::from(op.is_send) | reached, op.comm, u32::from(op.channel)),
        op.ticks,
        op.handle.0,
        halves(op.peer.cast_unsigned(), op.steps),
        halves(op.posted, op.ready),
        halves(op.transmitted, op.done),
        op.since,
    ])
}

const fn low(word: u64) -> u32 {
    let x = word.to_le_bytes();
    u32::from_le_bytes([x[0], x[1], x[2], x[3]])
}
const fn high(word: u64) -> u32 {
    low(word >> 32)
}

/// The rolling hash after one more collective. All ranks that call the same collectives in the same
/// order have the same. Function and datatype are given as [`name_hash`] of NCCL's names, which are
/// the same in all processes; the count enters only where all ranks must give the same.
#[must_use]
#[inline(always)]
pub const fn roll(hash: u64, func: u32, datatype: u32, root: i32, count: u64) -> u64 {
    let count = count * (func & COUNT_MATTERS) as u64;
    let mut mixed = hash ^ halves(func, datatype);
    mixed = (mixed ^ count ^ (root.cast_unsigned() as u64) << 48).wrapping_mul(ODD);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(ODD);
    mixed ^ mixed >> 29
}

/// 2^64 divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The bit of [`name_hash`] that tells functions of which all ranks must give the same count.
const COUNT_MATTERS: u32 = 1;

/// 32 bits of a name, for [`roll`]: FNV-1a, but for the lowest bit, which tells whether the name is
/// of a function of which all ranks of a communicator must give the same count. Where each rank may
/// rightly have its own part (all-to-all, gather, scatter), a difference is no defect.
#[must_use]
pub const fn name_hash(name: &[u8]) -> u32 {
    let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
    while at < name.len() {
        hash = (hash ^ name[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    let alike: [&[u8]; 5] = [b"AllReduce", b"AllGather", b"ReduceScatter", b"Broadcast", b"Reduce"];
    let mut which = 0;
    while which < alike.len() {
        if is_same(name, alike[which]) {
            return hash | COUNT_MATTERS;
        }
        which += 1;
    }
    hash & !COUNT_MATTERS
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Whether all ranks of a communicator must give the same count to this function of NCCL's.
#[must_use]
pub const fn count_matters(func: &str) -> bool {
    name_hash(func.as_bytes()) & COUNT_MATTERS != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn back(vital: Vital) {
        let packed = vital.pack();
        assert_eq!(Record::unpack(packed.words()), Some(Record::Vital(vital)));
        assert_eq!(Record::Vital(vital).ticks(), vital.ticks());
    }

    #[test]
    fn each_comes_back() {
        back(Vital::Progress(Progress {
            ticks: 1,
            comm: 2,
            flags: 0x7f,
            age_ms: u32::MAX,
            api: 3,
            enqueued: 4,
            started: 5,
            done: 6,
            p2p_api: 7,
            p2p_enqueued: 8,
            p2p_done: 9,
            hash: u64::MAX,
            beat: 10,
        }));
        let hashes = [1, 2, u64::MAX, 4];
        back(Vital::Checkpoints(Checkpoints { ticks: 1, comm: 0xfffe, at: 192, hashes }));
        for reached in [None, Some(0), Some(1), Some(2), Some(3)] {
            back(Vital::Op(OpProgress {
                ticks: 9,
                comm: 1,
                handle: Handle(77),
                is_send: reached.is_some(),
                channel: 255,
                peer: -1,
                steps: 8,
                posted: 7,
                ready: 6,
                transmitted: 5,
                done: u32::MAX,
                reached,
                since: 8,
            }));
        }
        let place = StrId(3);
        let (cpu_ns, run_delay_ns) = (u64::MAX, 1);
        let kinds = 0xffff;
        back(Vital::Thread(Thread {
            ticks: 1,
            tid: 2,
            state: b'D',
            place,
            cpu_ns,
            run_delay_ns,
            kinds,
        }));
    }

    #[test]
    fn the_hash_tells_what_differs_and_where() {
        let op = |func: &'static str, count, root| {
            move |hash| {
                roll(hash, name_hash(func.as_bytes()), name_hash(b"ncclFloat32"), root, count)
            }
        };
        let all = [op("AllReduce", 8, 0), op("Broadcast", 8, 0), op("Broadcast", 8, 1)];
        let after = |order: &[usize]| order.iter().fold(0, |hash, &at| all[at](hash));
        assert_eq!(after(&[0, 1, 2]), after(&[0, 1, 2]));
        let others: &[&[usize]] = &[&[0, 2, 1], &[1, 0, 2], &[0, 1], &[0, 1, 2, 0], &[]];
        for other in others {
            assert_ne!(after(&[0, 1, 2]), after(other), "{other:?}");
        }
        assert_ne!(op("AllReduce", 8, 0)(5), op("AllReduce", 9, 0)(5));
        assert_eq!(op("AlltoAll", 8, 0)(5), op("AlltoAll", 9, 0)(5));
        assert!(count_matters("Reduce") && count_matters("ReduceScatter"));
        assert!(!count_matters("Gather") && !count_matters("Reduc") && !count_matters(""));
    }
}
