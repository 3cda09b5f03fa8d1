// SPDX-License-Identifier: Apache-2.0
/*!
Packet sequences. Each track is one sequence, so its packets do not repeat the track and the names,
and have only the time since the previous packet.

A sequence starts with a snapshot that relates its incremental clock to the trace's, which is
declared equal to `CLOCK_REALTIME`, as PyTorch's writer does. Numbers of sequences are hashes, so
that files can be concatenated.
*/

use crate::ident::{Hash, Map};
use ncclscope_protobuf::Message;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

/// `Trace.packet`.
const PACKET: u32 = 1;
/// Clocks of `BuiltinClock`.
const REALTIME: u64 = 1;
const BOOTTIME: u64 = 6;
/// The clock of a sequence; ids 64 to 127 are reserved for these.
const INCREMENTAL: u64 = 64;
/// `TracePacket.SequenceFlags`.
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
/// `TrackEvent.Type`.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;

/// The interned strings of a sequence.
#[derive(Default)]
pub(crate) struct Interned<'r> {
    categories: Vec<&'static str>,
    arg_names: Vec<&'static str>,
    names: Map<u64, u64>,
    values: HashMap<&'r str, u64>,
    /// Definitions that no packet contains yet: an `InternedData`.
    fresh: Message,
}

impl<'r> Interned<'r> {
    /// The number of a category.
    pub(crate) fn category(&mut self, text: &'static str) -> u64 {
        position(&mut self.categories, text, |number| define(&mut self.fresh, 1, number, text))
    }

    /// The number of an argument's name.
    pub(crate) fn arg_name(&mut self, text: &'static str) -> u64 {
        position(&mut self.arg_names, text, |number| define(&mut self.fresh, 3, number, text))
    }

    /// The number of the name with this key; `text` is called if it is new.
    pub(crate) fn name(&mut self, key: u64, text: impl FnOnce() -> String) -> u64 {
        let number = self.names.len() as u64 + 1;
        *self.names.entry(key).or_insert_with(|| {
            define(&mut self.fresh, 2, number, &text());
            number
        })
    }

    /// The number of an argument's value.
    pub(crate) fn value(&mut self, text: &'r str) -> u64 {
        let number = self.values.len() as u64 + 1;
        *self.values.entry(text).or_insert_with(|| {
            define(&mut self.fresh, 29, number, text);
            number
        })
    }
}

/// The number of a text in a short list, from 1 on; `define` is called with the number of a new
/// one.
fn position(texts: &mut Vec<&'static str>, text: &'static str, define: impl FnOnce(u64)) -> u64 {
    if let Some(at) = texts.iter().position(|known| *known == text) {
        return at as u64 + 1;
    }
    texts.push(text);
    let number = texts.len() as u64;
    define(number);
    number
}

fn put_plain(event: &mut Message, name: Option<u64>, flow: Option<u64>) {
    if let Some(name) = name {
        event.uint(10, name); // name_iid
    }
    if let Some(flow) = flow {
        event.fixed64(47, flow); // flow_ids
    }
}

fn define(fresh: &mut Message, field: u32, number: u64, text: &str) {
    fresh.message(field, |entry| {
        entry.uint(1, number); // iid
        entry.text(2, text); // name, str
    });
}

/// Numbers of sequences in use.
#[derive(Debug, Default)]
pub(crate) struct Numbers(HashSet<u32>);

impl Numbers {
    /// Adds the numbers of `other`; false if a number is in both.
    pub(crate) fn join(&mut self, other: &Numbers) -> bool {
        let is_apart = self.0.is_disjoint(&other.0);
        if is_apart {
            self.0.extend(&other.0);
        }
        is_apart
    }

    /// A number for the sequence of the track with this uuid: its hash, or the next free number.
    /// Below 2^31, because Perfetto (v52) rejects clocks of sequences with greater numbers.
    fn take(&mut self, uuid: u64) -> u32 {
        let below = |number: u32| (number & 0x7fff_ffff).max(1);
        let mut number = below(Hash::new("sequence").number(uuid).id32());
        while !self.0.insert(number) {
            number = below(number + 1);
        }
        number
    }
}

/// The packets of one track, or of the descriptions of tracks.
pub(crate) struct Sequence<'o, 'r, W> {
    out: &'o mut W,
    packet: Message,
    /// The last fields of each packet.
    tail: Message,
    now: u64,
    interned: Interned<'r>,
}

impl<'o, 'r, W: Write> Sequence<'o, 'r, W> {
    /// A sequence for descriptions of tracks, without events.
    pub(crate) fn of_tracks(numbers: &mut Numbers, uuid: u64, out: &'o mut W) -> Self {
        let mut tail = Message::default();
        tail.uint(10, numbers.take(uuid).into()); // trusted_packet_sequence_id
        let (packet, interned) = (Message::default(), Interned::default());
        Sequence { out, packet, tail, now: 0, interned }
    }

    /// Starts the sequence of a track's events; no event may be before `start`.
    pub(crate) fn of_events(
        numbers: &mut Numbers,
        uuid: u64,
        start: u64,
        out: &'o mut W,
    ) -> io::Result<Self> {
        let mut sequence = Self::of_tracks(numbers, uuid, out);
        sequence.now = start;
        sequence.write(|packet, _| {
            packet.uint(13, STATE_CLEARED); // sequence_flags
            packet.uint(87, 1); // first_packet_on_sequence
            packet.message(6, |snapshot| {
                for clock in [INCREMENTAL, BOOTTIME, REALTIME] {
                    snapshot.message(1, |entry| {
                        entry.uint(1, clock); // clock_id
                        entry.uint(2, start); // timestamp
                        if clock == INCREMENTAL {
                            entry.uint(3, 1); // is_incremental
                        }
                    });
                }
                snapshot.uint(2, BOOTTIME); // primary_trace_clock
            });
            packet.message(59, |defaults| {
                defaults.uint(58, INCREMENTAL); // timestamp_clock_id
                defaults.message(11, |event| event.uint(11, uuid)); // track_uuid
            });
        })?;
        sequence.tail.uint(13, NEEDS_STATE);
        Ok(sequence)
    }

    /// Describes a track: the fields of a `TrackDescriptor`.
    pub(crate) fn describe(&mut self, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.write(|packet, _| packet.message(60, fill))
    }

    /// Begins a slice; `fill` adds the fields of its `TrackEvent`.
    pub(crate) fn begin(
        &mut self,
        ns: u64,
        fill: impl FnOnce(&mut Message, &mut Interned<'r>),
    ) -> io::Result<()> {
        self.event(ns, SLICE_BEGIN, fill)
    }

    /// Ends the innermost slice, with the arrow `flow` at its end if there is one.
    pub(crate) fn end(&mut self, ns: u64, flow: Option<u64>) -> io::Result<()> {
        self.short(ns, SLICE_END, None, flow)
    }

    /// Begins a slice that has only a name, with an arrow if there is one.
    pub(crate) fn begin_plain(
        &mut self,
        ns: u64,
        key: u64,
        text: impl FnOnce() -> String,
        flow: Option<u64>,
    ) -> io::Result<()> {
        let name = self.interned.name(key, text);
        if !self.interned.fresh.bytes().is_empty() {
            return self.event(ns, SLICE_BEGIN, |event, _| put_plain(event, Some(name), flow));
        }
        self.short(ns, SLICE_BEGIN, Some(name), flow)
    }

    /// Writes a short packet in one pass, without a nested buffer; most packets are short.
    fn short(
        &mut self,
        ns: u64,
        kind: u64,
        name: Option<u64>,
        flow: Option<u64>,
    ) -> io::Result<()> {
        let since = ns.saturating_sub(self.now);
        self.now = self.now.max(ns);
        let packet = &mut self.packet;
        packet.clear();
        packet.short_message(PACKET, |packet| {
            packet.uint(8, since); // timestamp
            packet.short_message(11, |event| {
                event.uint(9, kind); // type
                put_plain(event, name, flow);
            });
            packet.append(&self.tail);
        });
        self.out.write_all(packet.bytes())
    }

    /// Sets the value of a counter; `fill` adds it.
    pub(crate) fn count(&mut self, ns: u64, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.event(ns, COUNTER, |event, _| fill(event))
    }

    fn event(
        &mut self,
        ns: u64,
        kind: u64,
        fill: impl FnOnce(&mut Message, &mut Interned<'r>),
    ) -> io::Result<()> {
        let since = ns.saturating_sub(self.now);
        self.now = self.now.max(ns);
        self.write(|packet, interned| {
            packet.uint(8, since); // timestamp
            packet.message(11, |event| {
                event.uint(9, kind); // type
                fill(event, interned);
            });
        })
    }

    fn write(&mut self, fill: impl FnOnce(&mut Message, &mut Interned<'r>)) -> io::Result<()> {
        let Sequence { packet, tail, interned, .. } = self;
        packet.clear();
        packet.message(PACKET, |packet| {
            fill(packet, interned);
            if !interned.fresh.bytes().is_empty() {
                packet.raw(12, &interned.fresh); // interned_data
                interned.fresh.clear();
            }
            packet.append(tail);
        });
        self.out.write_all(packet.bytes())
    }
}
