// SPDX-License-Identifier: Apache-2.0
/*!
Records: what a lane holds, in 64-bit words.

Word 0 of every record is `kind:8 | a:8 | b:16 | c:32` from the low bits up, word 1 is a time stamp
in ticks. Start records continue with the event's handle and its parent's handle; the words after
that depend on the kind of event. Each record is declared once, with the places of its fields
([`layout`]).

A network step is **one** record, written when the step stops: [`Step`].
*/

pub use crate::fields::{FieldLayout, Layout, Meaning};
pub use crate::start::*;
pub use crate::step::{Step, step_flags};
pub use crate::words::{
    CHECKPOINTS, CLOCK_SYNC, MARK, MAX_WORDS, OP_PROGRESS, PAIR_COUNT, PROGRESS, Packed, SETUP,
    SHORTAGE, START, STATE, STEP, STEP_LONG, STEP_SHIFT, STOP, Sink, THREAD,
};

use crate::clock::ClockSync;
use crate::fields::record_fields;
use crate::handle::Handle;
use crate::kind::{EventKind, KINDS, State};
use crate::mark::Mark;
use crate::pairs::PairCount;
use crate::progress::{Checkpoints, Heartbeat, OpProgress, Progress, Setup, Shortage, Thread};
use crate::step::{Long, Short};
use crate::words::{Pack, head};

/// Codes are below this.
pub(crate) const CODES: usize = START as usize + KINDS;

/// The name of the record with this code, and its words; `None` for a code that this version does
/// not know.
#[must_use]
pub const fn layout(code: u8) -> Option<(&'static str, Layout)> {
    Some(match code {
        STOP => ("stop", StopFields::LAYOUT),
        STATE => ("state", StateFields::LAYOUT),
        STEP => ("step", Short::LAYOUT),
        STEP_LONG => ("long step", Long::LAYOUT),
        CLOCK_SYNC => ("clock", ClockSync::LAYOUT),
        MARK => ("mark", Mark::LAYOUT),
        PROGRESS => ("progress", Progress::LAYOUT),
        CHECKPOINTS => ("checkpoints", Checkpoints::LAYOUT),
        OP_PROGRESS => ("operation in flight", OpProgress::LAYOUT),
        THREAD => ("thread", Thread::LAYOUT),
        SHORTAGE => ("shortage", Shortage::LAYOUT),
        SETUP => ("setup", Setup::LAYOUT),
        PAIR_COUNT => ("pair count", PairCount::LAYOUT),
        START.. if (code as usize) < CODES => {
            let kind = EventKind::from_low_bits((code - START) as u64);
            match Detail::layout(kind) {
                Some(layout) => (kind.name(), layout),
                None => return None,
            }
        }
        _ => return None,
    })
}

/// Words and halves of each code; 0 words for an unused code.
const SCHEMA: [(usize, u16); CODES] = {
    let mut schema = [(0, 0); CODES];
    let mut code = 0;
    while (code as usize) < CODES {
        if let Some((_, layout)) = layout(code) {
            schema[code as usize] = (layout.words, layout.halves);
        }
        code += 1;
    }
    schema
};

/// How many words a record with this code has, and which of them are two 32-bit halves (bit i for
/// word i). `None` for a code that this version does not know.
#[must_use]
#[inline(always)]
pub const fn schema(code: u8) -> Option<(usize, u16)> {
    if code as usize >= CODES {
        return None;
    }
    match SCHEMA[code as usize] {
        (0, _) => None,
        known => Some(known),
    }
}

/// The word of a stop or a state record that contains the handle.
const HANDLE_WORD: usize = 2;

fn is_of_later_kind(handle: Handle) -> bool {
    usize::from(handle.kind_number()) >= KINDS
}

record_fields! {
    struct StopFields: 3 {
        handle: Handle = (2, 0),
    }
}

record_fields! {
    struct StateFields: 4 {
        state: State = (0, 8),
        small: u32 = (0, 32),
        handle: Handle = (2, 0),
        arg: u64 = (3, 0),
    }
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An event started.
    Start(Start),
    /// An event stopped; NCCL may stop a handle twice.
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
    ClockSync(ClockSync),
    /// The application, or a client of the control socket, puts a mark.
    Mark(Mark),
    /// How far the process has come.
    Heartbeat(Heartbeat),
    /// Number of sends or receives before this block.
    PairCount(PairCount),
    /// A record of a later version; [`crate::Recording::record_name`] gives its name. A stop or a
    /// state of an event of a later kind is reported with the code of that kind's start.
    Unknown {
        /// When, in ticks.
        ticks: u64,
        /// Its code.
        code: u8,
    },
}

impl Record {
    /// A stop record.
    #[must_use]
    pub fn stop(ticks: u64, handle: Handle) -> Packed {
        Record::put_stop(Pack, ticks, handle)
    }

    /// Passes the words of a stop record to `sink`.
    #[inline(always)]
    pub fn put_stop<S: Sink>(sink: S, ticks: u64, handle: Handle) -> S::Out {
        sink.put(Record::stop_words(ticks, handle))
    }

    /// The words of a stop record.
    #[must_use]
    #[inline(always)]
    pub fn stop_words(ticks: u64, handle: Handle) -> [u64; 3] {
        let mut words = [head(STOP, 0, 0, 0), ticks, 0];
        StopFields { handle }.set(&mut words);
        words
    }

    /// A state record.
    #[must_use]
    pub fn state(ticks: u64, handle: Handle, state: State, small: u32, arg: u64) -> Packed {
        Record::put_state(Pack, ticks, handle, state, (small, arg))
    }

    /// Passes the words of a state record to `sink`.
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
    pub fn state_words(
        ticks: u64,
        handle: Handle,
        state: State,
        (small, arg): (u32, u64),
    ) -> [u64; 4] {
        let mut words = [head(STATE, 0, 0, 0), ticks, 0, 0];
        StateFields { state, small, handle, arg }.set(&mut words);
        words
    }

    /// A clock synchronisation record.
    #[must_use]
    pub fn clock_sync(sync: &ClockSync) -> Packed {
        let mut words = [CLOCK_SYNC.into(), 0, 0, 0];
        sync.set(&mut words);
        Pack.put(words)
    }

    /// The record's time stamp; for a step, its start.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        match self {
            Record::Start(start) => start.ticks,
            Record::Step(step) => step.ticks,
            Record::ClockSync(sync) => sync.ticks,
            Record::Mark(mark) => mark.ticks,
            Record::Heartbeat(heartbeat) => heartbeat.ticks(),
            Record::PairCount(count) => count.ticks,
            Record::Stop { ticks, .. }
            | Record::State { ticks, .. }
            | Record::Unknown { ticks, .. } => *ticks,
        }
    }

    /// Decodes the record that `words` begin with; `None` for an unknown code or too few words.
    #[must_use]
    pub fn unpack(words: &[u64]) -> Option<Record> {
        let code = words.first()?.to_le_bytes()[0];
        let (len, _) = schema(code)?;
        // Words after the record are not part of any of its fields.
        if let Some(all) = words.first_chunk() {
            return Record::of(code, all);
        }
        let mut all = [0; MAX_WORDS];
        all.get_mut(..len)?.copy_from_slice(words.get(..len)?);
        Record::of(code, &all)
    }

    fn of(code: u8, all: &[u64; MAX_WORDS]) -> Option<Record> {
        let ticks = all[1];
        Some(match code {
            STOP | STATE if is_of_later_kind(Handle(all[HANDLE_WORD])) => {
                Record::Unknown { ticks, code: START + Handle(all[HANDLE_WORD]).kind_number() }
            }
            STOP => Record::Stop { ticks, handle: StopFields::get(all).handle },
            STATE => {
                let StateFields { state, small, handle, arg } = StateFields::get(all);
                Record::State { ticks, handle, state, small, arg }
            }
            STEP | STEP_LONG => Record::Step(Step::unpack(all, code == STEP_LONG)),
            CLOCK_SYNC => Record::ClockSync(ClockSync::get(all)),
            MARK => Record::Mark(Mark::get(all)),
            PROGRESS..=SHORTAGE | SETUP => Record::Heartbeat(Heartbeat::unpack(code, all)?),
            PAIR_COUNT => Record::PairCount(PairCount::get(all)),
            _ => Record::Start(Start::unpack(all)),
        })
    }
}
