// SPDX-License-Identifier: Apache-2.0
//! The parts of a table of vectors beside the vectors: open transfers, and facts about processes.

use crate::bytes::{u32_at, u64_at};

/// Bytes of a transfer.
pub const TRANSFER_BYTES: usize = 36;

/// Bits of a transfer's flags.
const SEND: u8 = 1;
const EARLY: u8 = 1 << 1;
const REACHED: u8 = 1 << 2;
/// The time of something that never was, ms.
const NEVER_MS: u32 = u32::MAX;

/// A network transfer (ProxyOp) in flight; see [`crate::progress::OpProgress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenTransfer {
    /// Position of its communicator's vector in the table.
    pub vector: u32,
    /// The other rank in the communicator.
    pub peer: i32,
    /// Channel.
    pub channel: u8,
    /// A send; else a receive.
    pub is_send: bool,
    /// A receive that the network may report as complete before its data arrived (a network plugin,
    /// with LL or LL128).
    pub may_be_early: bool,
    /// Number of states that its oldest step reached, 0 to 3; `None` if no step is in flight.
    pub reached: Option<u8>,
    /// Number of its steps.
    pub steps: u32,
    /// Steps that started.
    pub posted: u32,
    /// Send: steps whose data the GPU gave. Receive: steps whose data arrived.
    pub ready: u32,
    /// Send: steps given to the network. Receive: steps whose data was flushed.
    pub transmitted: u32,
    /// Steps that stopped.
    pub done: u32,
    /// Time since any of this changed, ms.
    pub still_ms: u32,
}

impl OpenTransfer {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(self.is_send, SEND)
            | flag(self.may_be_early, EARLY)
            | flag(self.reached.is_some(), REACHED);
        out.extend(self.vector.to_le_bytes());
        out.extend(self.peer.to_le_bytes());
        out.extend([self.channel, flags, self.reached.unwrap_or(0), 0]);
        let OpenTransfer { steps, posted, ready, transmitted, done, still_ms, .. } = *self;
        for word in [steps, posted, ready, transmitted, done, still_ms] {
            out.extend(word.to_le_bytes());
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<OpenTransfer> {
        let [channel, flags, reached, _] = u32_at(bytes, 8)?.to_le_bytes();
        let word = |at| u32_at(bytes, at);
        Some(OpenTransfer {
            vector: word(0)?,
            peer: word(4)?.cast_signed(),
            channel,
            is_send: flags & SEND != 0,
            may_be_early: flags & EARLY != 0,
            reached: (flags & REACHED != 0).then_some(reached),
            steps: word(12)?,
            posted: word(16)?,
            ready: word(20)?,
            transmitted: word(24)?,
            done: word(28)?,
            still_ms: word(32)?,
        })
    }
}

/// What a table tells of a process beside its vectors. In a file: `job:u64 origin:u64 heard_ns:u64
/// process:u32 pid:u32 idle_ms:u32 kinds:u32`, the texts `host`, `function`, `connects` and
/// `listens`, and `threads:u32` threads, each `tid:u32 kinds:u32 state:u32 span_ns:u64 cpu_ns:u64
/// delay_ns:u64` and the text `place`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// As [`super::Vector::job`]. With the next two it says whose facts these are.
    pub job: u64,
    /// As [`super::Vector::process`].
    pub process: u32,
    /// As [`super::Vector::origin`].
    pub origin: u64,
    /// Process id on its host.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// When it last recorded anything, ns since 1970. All ages of its vectors and transfers count
    /// up to then.
    pub heard_ns: u64,
    /// Time since the application last called NCCL, ms; `None` if it never did.
    pub idle_ms: Option<u32>,
    /// The function in which it creates or ends a communicator, if a look at its threads found one
    /// after its last call.
    pub setup: Option<SetupFacts>,
    /// Kinds of events that its threads started, as bits of [`crate::EventKind`].
    pub kinds: u32,
    /// Its threads; known only after something looked stuck.
    pub threads: Vec<ThreadFacts>,
}

/// See [`crate::progress::Setup`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetupFacts {
    /// Time since a look first saw it there, ms.
    pub age_ms: u32,
    /// NCCL's function.
    pub function: String,
    /// To whom sockets of the process connect without an answer.
    pub connects: String,
    /// The addresses at which it waits for others.
    pub listens: String,
}

/// What the kernel reports of a thread between two moments; see [`crate::progress::Thread`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadFacts {
    /// Thread id.
    pub tid: u32,
    /// `R`, `S`, `D`…; 0: it does not exist any more.
    pub state: u8,
    /// Kinds of events that it started, as bits of [`crate::EventKind`].
    pub kinds: u32,
    /// The kernel function in which it waits; empty if unknown.
    pub place: String,
    /// Time between the two moments, ns; 0 if there was only one.
    pub span_ns: u64,
    /// Processor time used, ns.
    pub cpu_ns: u64,
    /// Time in which it was ready to run and did not, ns.
    pub delay_ns: u64,
}

impl ProcessFacts {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.job, self.origin, self.heard_ns] {
            out.extend(word.to_le_bytes());
        }
        let idle_ms = self.idle_ms.unwrap_or(NEVER_MS);
        let none = SetupFacts::default();
        let setup = self.setup.as_ref().unwrap_or(&none);
        let SetupFacts { age_ms, function, connects, listens } = setup;
        for word in [self.process, self.pid, idle_ms, self.kinds, *age_ms] {
            out.extend(word.to_le_bytes());
        }
        put_text(out, &self.host);
        [function, connects, listens].iter().for_each(|text| put_text(out, text));
        out.extend(length(self.threads.len()));
        for thread in &self.threads {
            for word in [thread.tid, thread.kinds, thread.state.into()] {
                out.extend(word.to_le_bytes());
            }
            for word in [thread.span_ns, thread.cpu_ns, thread.delay_ns] {
                out.extend(word.to_le_bytes());
            }
            put_text(out, &thread.place);
        }
    }

    pub(super) fn decode(cut: &mut Cut<'_>) -> Option<ProcessFacts> {
        let [job, origin, heard_ns] = [cut.u64()?, cut.u64()?, cut.u64()?];
        let [process, pid, idle_ms] = [cut.u32()?, cut.u32()?, cut.u32()?];
        let [kinds, age_ms] = [cut.u32()?, cut.u32()?];
        let host = cut.text()?;
        let [function, connects, listens] = [cut.text()?, cut.text()?, cut.text()?];
        let setup = SetupFacts { age_ms, function, connects, listens };
        let count = cut.u32()?;
        let threads = cut.all(count.into(), ThreadFacts::decode);
        (threads.len() as u64 == u64::from(count)).then_some(ProcessFacts {
            job,
            process,
            origin,
            pid,
            host,
            heard_ns,
            idle_ms: Some(idle_ms).filter(|&idle| idle != NEVER_MS),
            setup: Some(setup).filter(|setup| !setup.function.is_empty()),
            kinds,
            threads,
        })
    }
}

impl ThreadFacts {
    fn decode(cut: &mut Cut<'_>) -> Option<ThreadFacts> {
        let [tid, kinds, state] = [cut.u32()?, cut.u32()?, cut.u32()?];
        let [span_ns, cpu_ns, delay_ns] = [cut.u64()?, cut.u64()?, cut.u64()?];
        let state = u8::try_from(state).ok()?;
        Some(ThreadFacts { tid, state, kinds, place: cut.text()?, span_ns, cpu_ns, delay_ns })
    }
}

/// Appends a text with its length.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend(length(text.len()));
    out.extend(text.bytes());
}

fn length(of: usize) -> [u8; 4] {
    u32::try_from(of).unwrap_or(u32::MAX).to_le_bytes()
}

/// Bytes from the front of which values are cut; nothing is cut if they are too few.
pub(super) struct Cut<'a>(pub(super) &'a [u8]);

impl Cut<'_> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let word = u32_at(self.0, 0)?;
        self.skip(4);
        Some(word)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let word = u64_at(self.0, 0)?;
        self.skip(8);
        Some(word)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let end = usize::try_from(u32_at(self.0, 0)?).ok()?.checked_add(4)?;
        let text = String::from_utf8_lossy(self.0.get(4..end)?).into_owned();
        self.skip(end);
        Some(text)
    }

    /// Up to `count` items; those that are not whole are not cut.
    pub(super) fn all<T>(&mut self, count: u64, decode: impl Fn(&mut Self) -> Option<T>) -> Vec<T> {
        let mut items = Vec::new();
        for _ in 0..count {
            let before = self.0;
            let Some(item) = decode(self) else {
                self.0 = before;
                break;
            };
            items.push(item);
        }
        items
    }

    fn skip(&mut self, bytes: usize) {
        self.0 = self.0.get(bytes..).unwrap_or(&[]);
    }
}
