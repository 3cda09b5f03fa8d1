// SPDX-License-Identifier: Apache-2.0
/*!
Perfetto's own format: a stream of protobuf packets (`perfetto/trace/trace_packet.proto`).

Each rank is one packet sequence and one process; its numbers are hashes of who it is, so that
files of several runs or hosts may simply be put behind one another. Names are interned: a packet
defines each before the first packet that uses it. The trace clock is declared equal to
`CLOCK_REALTIME`, as PyTorch's writer does. A track's packets lie together, and its uuid is set once
as the default of the packets that follow; Perfetto sorts by time.
*/

use crate::args::{Arg, args};
use crate::flows::{FlowIndex, Flows, flows};
use crate::ident::Hash;
use crate::proto::Message;
use crate::scene::{Name, Scene, Slice, View, What};
use crate::tracks::{Track, tracks};
use ncclscope_analyze::{EventId, Timeline};
use ncclscope_trace::{Detail, Recording};
use std::collections::HashMap;
use std::io::{self, Write};

/// `Trace.packet`.
const PACKET: u32 = 1;
/// Clocks of `BuiltinClock`.
const REALTIME: u64 = 1;
const BOOTTIME: u64 = 6;
/// `TrackEvent.Type`.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
/// `TracePacket.SequenceFlags`.
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
/// `TrackDescriptor.ChildTracksOrdering.EXPLICIT`.
const EXPLICIT: u64 = 3;

/// Writes the recordings of a run as one trace and returns how many slices it has.
///
/// # Errors
/// Those of `out`.
pub fn write(recordings: &[Recording], out: &mut impl Write) -> io::Result<u64> {
    let index = index(recordings);
    let mut packets = Packets { out, packet: Message::default() };
    let mut slices = 0;
    for recording in recordings {
        let timeline = Timeline::read(recording, true);
        let scene = Scene::new(&timeline);
        for view in scene.views() {
            let mut rank =
                Rank { scene: &scene, view: &view, index: &index, interned: Interned::default() };
            slices += rank.write(&mut packets)?;
        }
    }
    Ok(slices)
}

/// The steps seen on both sides; one recording alone has none.
pub(crate) fn index(recordings: &[Recording]) -> FlowIndex {
    let mut index = FlowIndex::default();
    for recording in recordings.iter().filter(|_| recordings.len() > 1) {
        index.add(&Scene::new(&Timeline::read(recording, true)));
    }
    index.finish();
    index
}

struct Packets<'o, W> {
    out: &'o mut W,
    packet: Message,
}

impl<W: Write> Packets<'_, W> {
    /// Writes a packet of a sequence, with `flags`, filled by `fill`.
    fn write(
        &mut self,
        sequence: u32,
        flags: u64,
        fill: impl FnOnce(&mut Message),
    ) -> io::Result<()> {
        self.packet.clear();
        self.packet.message(PACKET, |packet| {
            fill(packet);
            packet.uint(10, u64::from(sequence)); // trusted_packet_sequence_id
            if flags != 0 {
                packet.uint(13, flags); // sequence_flags
            }
        });
        self.out.write_all(self.packet.bytes())
    }
}

/// Interned strings by the field of `InternedData` that defines them.
#[derive(Default)]
struct Interned {
    names: HashMap<Name, u64>,
    categories: HashMap<&'static str, u64>,
    arg_names: HashMap<&'static str, u64>,
    values: HashMap<String, u64>,
    /// Definitions that no packet has carried yet.
    fresh: Message,
}

const CATEGORIES: u32 = 1;
const NAMES: u32 = 2;
const ARG_NAMES: u32 = 3;
const VALUES: u32 = 29;

/// The number of a string in `map`, defined in `fresh` if it is new.
fn intern<K: std::hash::Hash + Eq>(
    map: &mut HashMap<K, u64>,
    fresh: &mut Message,
    field: u32,
    key: K,
    text: impl FnOnce() -> String,
) -> u64 {
    let next = map.len() as u64 + 1;
    *map.entry(key).or_insert_with(|| {
        fresh.message(field, |entry| {
            entry.uint(1, next);
            entry.text(2, &text());
        });
        next
    })
}

struct Rank<'a, 't, 'r> {
    scene: &'a Scene<'t, 'r>,
    view: &'a View,
    index: &'a FlowIndex,
    interned: Interned,
}

impl Rank<'_, '_, '_> {
    fn write(&mut self, packets: &mut Packets<'_, impl Write>) -> io::Result<u64> {
        let sequence = Hash::new("sequence").number(self.view.uuid).id32();
        self.begin(sequence, packets)?;
        let mut slices = 0;
        for (order, track) in (0u64..).zip(tracks(self.scene, self.view)) {
            slices += track.slices.len() as u64;
            self.track(sequence, order, &track, packets)?;
        }
        Ok(slices)
    }

    /// The clock, the start of the sequence and the process.
    fn begin(&self, sequence: u32, packets: &mut Packets<'_, impl Write>) -> io::Result<()> {
        let start = self.scene.timeline().ns(0);
        packets.write(sequence, STATE_CLEARED, |packet| {
            packet.uint(87, 1); // first_packet_on_sequence
            packet.message(6, |snapshot| {
                for clock in [BOOTTIME, REALTIME] {
                    snapshot.message(1, |entry| {
                        entry.uint(1, clock);
                        entry.uint(2, start);
                    });
                }
                snapshot.uint(2, BOOTTIME); // primary_trace_clock
            });
        })?;
        packets.write(sequence, 0, |packet| {
            packet.message(60, |track| {
                track.uint(1, self.view.uuid);
                track.message(3, |process| {
                    process.uint(1, u64::from(self.view.pid));
                    process.text(6, &self.view.name);
                });
                track.uint(11, EXPLICIT); // child_ordering
            });
        })
    }

    fn track(
        &mut self,
        sequence: u32,
        order: u64,
        track: &Track,
        packets: &mut Packets<'_, impl Write>,
    ) -> io::Result<()> {
        let uuid = Hash::new("track").number(self.view.uuid).number(order).id();
        packets.write(sequence, 0, |packet| {
            packet.message(60, |descriptor| {
                descriptor.uint(1, uuid);
                descriptor.uint(5, self.view.uuid); // parent_uuid
                descriptor.text(2, &track.name);
                descriptor.uint(12, order); // sibling_order_rank
            });
        })?;
        packets.write(sequence, NEEDS_STATE, |packet| {
            packet.message(59, |defaults| {
                defaults.uint(58, BOOTTIME); // timestamp_clock_id
                defaults.message(11, |event| event.uint(11, uuid)); // track_uuid
            });
        })?;
        let mut open: Vec<(u64, Option<u64>)> = Vec::new();
        for slice in &track.slices {
            while let Some((end, flow)) = open.pop_if(|(end, _)| *end <= slice.start) {
                write_end(sequence, end, flow, packets)?;
            }
            let flows = flows(self.scene, self.index, slice.what);
            self.write_begin(sequence, slice, &flows, packets)?;
            open.push((slice.end, flows.into_end));
        }
        while let Some((end, flow)) = open.pop() {
            write_end(sequence, end, flow, packets)?;
        }
        Ok(())
    }

    fn write_begin(
        &mut self,
        sequence: u32,
        slice: &Slice,
        flows: &Flows,
        packets: &mut Packets<'_, impl Write>,
    ) -> io::Result<()> {
        let event = self.begin_event(slice, flows);
        let fresh = std::mem::take(&mut self.interned.fresh);
        packets.write(sequence, NEEDS_STATE, |packet| {
            packet.uint(8, slice.start); // timestamp
            if !fresh.bytes().is_empty() {
                packet.raw(12, &fresh); // interned_data
            }
            packet.raw(11, &event); // track_event
        })
    }

    fn begin_event(&mut self, slice: &Slice, flows: &Flows) -> Message {
        let scene = self.scene;
        let Interned { names, categories, arg_names, values, fresh } = &mut self.interned;
        let name = scene.name(slice.what);
        let name = intern(names, fresh, NAMES, name, || scene.name_text(name));
        let category = category(scene, slice.what);
        let category = intern(categories, fresh, CATEGORIES, category, || category.into());
        let mut event = Message::default();
        event.uint(9, SLICE_BEGIN);
        event.uint(10, name); // name_iid
        event.uint(3, category); // category_iids
        args(scene, slice, &mut |name, value| {
            let name_iid = intern(arg_names, fresh, ARG_NAMES, name, || name.into());
            event.message(4, |annotation| {
                annotation.uint(1, name_iid);
                match value {
                    Arg::Uint(value) => annotation.uint(3, value),
                    Arg::Int(value) => annotation.int(4, value),
                    Arg::Text(text) => {
                        let iid = intern(values, fresh, VALUES, text.to_owned(), || text.into());
                        annotation.uint(17, iid); // string_value_iid
                    }
                }
            });
        });
        for &flow in &flows.out {
            event.fixed64(47, flow); // flow_ids
        }
        if let Some(flow) = flows.into_start {
            event.fixed64(48, flow); // terminating_flow_ids
        }
        if let Some(id) = scene.correlation(slice.what) {
            event.uint(52, id); // correlation_id
        }
        event
    }
}

fn write_end(
    sequence: u32,
    end: u64,
    flow: Option<u64>,
    packets: &mut Packets<'_, impl Write>,
) -> io::Result<()> {
    packets.write(sequence, NEEDS_STATE, |packet| {
        packet.uint(8, end); // timestamp
        packet.message(11, |event| {
            event.uint(9, SLICE_END);
            if let Some(flow) = flow {
                event.fixed64(48, flow);
            }
        });
    })
}

/// What to filter by: the family of a slice.
pub(crate) fn category(scene: &Scene<'_, '_>, what: What) -> &'static str {
    let of_event = |id: EventId| match scene.timeline().event(id).start.detail {
        Detail::GroupApi { .. }
        | Detail::CollApi(_)
        | Detail::P2pApi(_)
        | Detail::KernelLaunch { .. } => "api",
        Detail::Group | Detail::Coll(_) | Detail::P2p(_) => "group",
        Detail::CeColl(_) | Detail::CeSync { .. } | Detail::CeBatch { .. } => "copy_engine",
        Detail::KernelCh { .. } | Detail::KernelPhase { .. } => "kernel",
        Detail::ProxyOp(_) | Detail::ProxyCtrl => "proxy",
        Detail::NetPlugin(_) => "net",
    };
    match what {
        What::Operation(_) => "operation",
        What::Step(_) => "step",
        What::Event(id) => of_event(id),
    }
}
