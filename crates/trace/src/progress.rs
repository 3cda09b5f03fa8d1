// SPDX-License-Identifier: Apache-2.0
/*!
Progress records (heartbeats): how far each communicator of a process has come. The drain thread
writes them once a second, and less often while nothing changes.

They count from the creation of the communicator, not from the start of the recorded window, and
continue while recording is stopped or sampled. Collectives and sends and receives are counted
separately, because the number of a collective is the same on all members of its communicator, and
that of a send is not.

Each field is declared with its place in the record's words: word, and lowest bit there.
*/

use crate::fields::record_fields;
use crate::handle::Handle;
use crate::string::StrId;
use crate::words::{
    CHECKPOINTS, MAX_WORDS, OP_PROGRESS, PROGRESS, Pack, Packed, SETUP, SHORTAGE, Sink, THREAD,
};

/// Number of collectives from one kept value of the rolling hash to the next.
pub const CHECKPOINT_EVERY: u64 = 64;

/// One of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// Counts of a communicator.
    Progress(Progress),
    /// Rolling hashes of a communicator.
    Checkpoints(Checkpoints),
    /// A ProxyOp in flight.
    Op(OpProgress),
    /// A thread of NCCL or of the application.
    Thread(Thread),
    /// How long the process was short of processor time.
    Shortage(Shortage),
    /// A look at a process that has not called NCCL for a while.
    Setup(Setup),
}

/// Which counts of a [`Progress`] are incomplete, and its state.
pub mod progress_flags {
    /// Recording was stopped or sampled at some time: `started` and the `done` counts lack what was
    /// left out.
    pub const PARTIAL: u8 = 1;
    /// Events were lost: `started` and the `done` counts lack these.
    pub const LOSSY: u8 = 1 << 1;
    /// NCCL reports no API calls (profiler API v1 to v4): `api` counts enqueued operations.
    pub const NO_API: u8 = 1 << 2;
    /// No kernel channel has been seen: `started` is meaningless.
    pub const NO_KERNEL: u8 = 1 << 3;
    /// The end of operations cannot be seen (neither kernel channels nor proxy operations so far):
    /// the `done` counts are those of operations enqueued.
    pub const NO_END: u8 = 1 << 4;
    /// The communicator was finalized.
    pub const ENDED: u8 = 1 << 5;
    /// The rank's own watchdog reports a hang of the communicator.
    pub const STUCK: u8 = 1 << 6;
    /// Calls were captured into CUDA graphs: `api` counts them once and `enqueued` counts each
    /// replay, so the two cannot be compared.
    pub const CAPTURED: u8 = 1 << 7;
}

record_fields! {
    /// Counts of one communicator in one process.
    #[derive(Default)]
    pub struct Progress: 11 {
        /// A time at which the counts were these, in ticks.
        ticks: u64 = (1, 0),
        /// [`crate::Comm::index`].
        comm: u16 = (0, 16),
        /// [`progress_flags`].
        flags: u8 = (0, 8),
        /// Age of the oldest operation in flight, ms; 0 if there is none.
        age_ms: u32 = (0, 32),
        /// Collectives that the application called.
        api: u64 = (2, 0),
        /// Collectives that NCCL enqueued.
        enqueued: u64 = (3, 0),
        /// Number of the latest collective whose kernel started.
        started: u64 = (4, 0),
        /// Number of collectives before the first that is not complete.
        done: u64 = (5, 0),
        /// Sends and receives that the application called.
        p2p_api: u64 = (6, 0),
        /// Sends and receives that NCCL enqueued.
        p2p_enqueued: u64 = (7, 0),
        /// Sends and receives that are complete.
        p2p_done: u64 = (8, 0),
        /// Rolling hash over the first `api` collectives.
        hash: u64 = (9, 0),
        /// When the application last called NCCL on this communicator, in ticks; 0 never.
        beat: u64 = (10, 0),
    }
}

record_fields! {
    /// Rolling hashes at multiples of [`CHECKPOINT_EVERY`].
    #[derive(Default)]
    pub struct Checkpoints: 7 {
        /// When, in ticks.
        ticks: u64 = (1, 0),
        /// [`crate::Comm::index`].
        comm: u16 = (0, 16),
        /// How many collectives the first hash covers; each further one covers 64 fewer.
        at: u64 = (2, 0),
        /// The hashes; hash i is valid if `at - 64 i` is positive and the hash is not 0, which
        /// stands for one that the next call may have been overwriting.
        hashes: [u64; 4] = (3, 0),
    }
}

impl Checkpoints {
    /// The valid hashes, each after how many collectives it covers.
    pub fn valid(&self) -> impl Iterator<Item = (u64, u64)> {
        let covered = (0..self.hashes.len() as u64).map(|back| back * CHECKPOINT_EVERY);
        let known = covered.zip(self.hashes).filter(|&(less, hash)| self.at > less && hash != 0);
        known.map(|(less, hash)| (self.at - less, hash))
    }
}

record_fields! {
    /// A ProxyOp in flight.
    #[derive(Default)]
    pub struct OpProgress: 7, halves 0b11_1000 {
        /// When, in ticks.
        ticks: u64 = (1, 0),
        /// [`crate::Comm::index`].
        comm: u16 = (0, 16),
        /// The operation's handle.
        handle: Handle = (2, 0),
        /// A send; else a receive.
        is_send: bool = (0, 8),
        /// Channel.
        channel: u8 = (0, 32),
        /// The other rank.
        peer: i32 = (3, 0),
        /// Number of all its steps, as NCCL announced it at the start.
        steps: u32 = (3, 32),
        /// Steps that started.
        posted: u32 = (4, 0),
        /// Send: steps whose data the GPU gave. Receive: steps whose data arrived.
        ready: u32 = (4, 32),
        /// Send: steps given to the network. Receive: steps whose data was flushed.
        transmitted: u32 = (5, 0),
        /// Steps that stopped.
        done: u32 = (5, 32),
        /// Number of states that the oldest step in flight has reached, 0 to 3; `None` if no step
        /// is in flight.
        reached: Option<u8> = (0, 9),
        /// Time of the last change of any of these, in ticks.
        since: u64 = (6, 0),
    }
}

record_fields! {
    /// A thread that makes callbacks, as the kernel reports it; written only while an operation may
    /// hang.
    #[derive(Default)]
    pub struct Thread: 5 {
        /// When, in ticks.
        ticks: u64 = (1, 0),
        /// Thread id.
        tid: u32 = (0, 32),
        /// State as `/proc/PID/task/TID/stat` gives it: `R`, `S`, `D`, `T`…; 0 if the thread is
        /// gone.
        state: u8 = (0, 8),
        /// The kernel function in which it waits (`wchan`), if known.
        place: StrId = (0, 16),
        /// Processor time used, ns.
        cpu_ns: u64 = (2, 0),
        /// Time in which it was ready to run and did not, ns.
        run_delay_ns: u64 = (3, 0),
        /// Kinds of events that it started, as bits of [`crate::EventKind`].
        kinds: u32 = (4, 0),
    }
}

record_fields! {
    /// How long the threads of the process were ready to run and did not, in about a second. It is
    /// written only if that is more than a hundredth of the time.
    #[derive(Default)]
    pub struct Shortage: 5 {
        /// The end of that second, in ticks.
        ticks: u64 = (1, 0),
        /// Its length, us.
        span_us: u32 = (0, 32),
        /// Sum of the delays of the drain thread's timers, us: the process was stopped (a signal, a
        /// freezer, a paused machine) or got no processor.
        late_us: u32 = (2, 0),
        /// The longest of these delays, us.
        longest_us: u32 = (2, 32),
        /// Of the threads that make callbacks, the longest time that one was ready and did not run
        /// (`/proc/PID/task/TID/schedstat`), us.
        delay_us: u32 = (3, 0),
        /// How long the CPU quota of the process's control group delayed its threads (`cpu.stat`),
        /// us, summed over processors.
        throttled_us: u32 = (3, 32),
        /// The thread of `delay_us`.
        tid: u32 = (4, 0),
    }
}

record_fields! {
    /// A look at a process whose application has not called NCCL for a while: whether a thread is
    /// in a function that creates or ends a communicator, of which NCCL reports no event.
    #[derive(Default)]
    pub struct Setup: 3 {
        /// When, in ticks.
        ticks: u64 = (1, 0),
        /// Thread id; 0 if no thread is in such a function.
        tid: u32 = (0, 32),
        /// The function, such as `ncclCommSplit`; none if no thread is in one.
        function: StrId = (0, 16),
        /// To whom sockets of the process connect without an answer: `ADDRESS:PORT, …`.
        connects: StrId = (2, 0),
        /// The addresses of its interfaces at which the process waits for others: `ADDRESS, …`.
        listens: StrId = (2, 16),
    }
}

impl Setup {
    /// Whether this look sees the call that the look before saw. A pause of the application before
    /// a look saw the call is no part of the call.
    #[must_use]
    pub fn continues(&self, before: &Setup) -> bool {
        (self.tid, self.function) == (before.tid, before.function)
    }
}

impl Thread {
    /// Number of looks, the latest of which show what a thread does now: about ten seconds.
    pub const LOOKS: usize = 11;
    /// Least time between the first and the last of these that shows whether it runs, ms.
    pub const LEAST_MS: u32 = 100;

    /// Processor time that it has used since an earlier look, and time in which it was ready to run
    /// and did not, ns.
    #[must_use]
    pub const fn since(&self, before: &Thread) -> (u64, u64) {
        let cpu_ns = self.cpu_ns.saturating_sub(before.cpu_ns);
        (cpu_ns, self.run_delay_ns.saturating_sub(before.run_delay_ns))
    }
}

impl Heartbeat {
    /// When, in ticks.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        match self {
            Heartbeat::Progress(it) => it.ticks,
            Heartbeat::Checkpoints(it) => it.ticks,
            Heartbeat::Op(it) => it.ticks,
            Heartbeat::Thread(it) => it.ticks,
            Heartbeat::Shortage(it) => it.ticks,
            Heartbeat::Setup(it) => it.ticks,
        }
    }

    /// Packs the record.
    #[must_use]
    pub fn pack(&self) -> Packed {
        match self {
            Heartbeat::Progress(it) => packed(PROGRESS, |words| it.set(words)),
            Heartbeat::Checkpoints(it) => packed(CHECKPOINTS, |words| it.set(words)),
            Heartbeat::Op(it) => packed(OP_PROGRESS, |words| it.set(words)),
            Heartbeat::Thread(it) => packed(THREAD, |words| it.set(words)),
            Heartbeat::Shortage(it) => packed(SHORTAGE, |words| it.set(words)),
            Heartbeat::Setup(it) => packed(SETUP, |words| it.set(words)),
        }
    }

    /// Decodes a record's words; `None` if `code` is not that of a heartbeat.
    pub(crate) fn unpack(code: u8, words: &[u64; MAX_WORDS]) -> Option<Heartbeat> {
        Some(match code {
            PROGRESS => Heartbeat::Progress(Progress::get(words)),
            CHECKPOINTS => Heartbeat::Checkpoints(Checkpoints::get(words)),
            OP_PROGRESS => Heartbeat::Op(OpProgress::get(words)),
            THREAD => Heartbeat::Thread(Thread::get(words)),
            SHORTAGE => Heartbeat::Shortage(Shortage::get(words)),
            SETUP => Heartbeat::Setup(Setup::get(words)),
            _ => return None,
        })
    }
}

fn packed<const N: usize>(code: u8, set: impl FnOnce(&mut [u64; N])) -> Packed {
    let mut words = [0; N];
    words[0] = code.into();
    set(&mut words);
    Pack.put(words)
}

/// The rolling hash after one more collective. All ranks that call the same collectives in the same
/// order have the same hash. `func` and `datatype` are [`name_hash`] of NCCL's names, which are the
/// same in all processes. `count` is included only for functions for which all ranks must pass the
/// same count.
#[must_use]
#[inline(always)]
pub const fn roll(hash: u64, func: u32, datatype: u32, root: i32, count: u64) -> u64 {
    let count = count * (func & COUNT_MATTERS) as u64;
    let mut mixed = hash ^ (func as u64 | (datatype as u64) << 32);
    mixed = (mixed ^ count ^ (root.cast_unsigned() as u64) << 48).wrapping_mul(ODD);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(ODD);
    mixed ^ mixed >> 29
}

/// 2^64 divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The bit of [`name_hash`] that is set for functions to which all ranks must pass the same count.
const COUNT_MATTERS: u32 = 1;

/// A 32-bit hash of a name, for [`roll`]: FNV-1a, except the lowest bit, which is set if all ranks
/// of a communicator must pass the same count to the function of that name. For other functions
/// (all-to-all, gather, scatter) different counts are not a defect.
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

/// Whether all ranks of a communicator must pass the same count to this NCCL function.
#[must_use]
pub const fn count_matters(func: &str) -> bool {
    name_hash(func.as_bytes()) & COUNT_MATTERS != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn a_hash_that_was_not_read_is_none() {
        let of = |at, hashes| Checkpoints { at, hashes, ..Checkpoints::default() };
        let valid = |points: Checkpoints| points.valid().collect::<Vec<_>>();
        let all = [(256, 4), (192, 3), (128, 2), (64, 1)];
        assert_eq!(valid(of(256, [4, 3, 2, 1])), all);
        assert_eq!(valid(of(256, [4, 3, 2, 0])), all[..3], "the next call was overwriting it");
        assert_eq!(valid(of(128, [2, 1, 0, 0])), all[2..], "there were no more calls");
        assert_eq!(valid(Checkpoints::default()), []);
    }

    fn back(heartbeat: Heartbeat) {
        let packed = heartbeat.pack();
        assert_eq!(Record::unpack(packed.words()), Some(Record::Heartbeat(heartbeat)));
        assert_eq!(Record::Heartbeat(heartbeat).ticks(), heartbeat.ticks());
    }

    #[test]
    fn each_comes_back() {
        back(Heartbeat::Progress(Progress {
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
        back(Heartbeat::Checkpoints(Checkpoints { ticks: 1, comm: 0xfffe, at: 192, hashes }));
        for reached in [None, Some(0), Some(1), Some(2), Some(3)] {
            back(Heartbeat::Op(OpProgress {
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
        back(Heartbeat::Thread(Thread {
            ticks: 1,
            tid: 2,
            state: b'D',
            place,
            cpu_ns,
            run_delay_ns,
            kinds,
        }));
        back(Heartbeat::Shortage(Shortage {
            ticks: 1,
            span_us: 2,
            late_us: 3,
            longest_us: u32::MAX,
            delay_us: 5,
            throttled_us: u32::MAX,
            tid: 7,
        }));
        let [function, connects, listens] = [1, 2, u16::MAX].map(StrId);
        back(Heartbeat::Setup(Setup { ticks: 1, tid: 2, function, connects, listens }));
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
