// SPDX-License-Identifier: Apache-2.0
/*!
Perfetto's own format: a stream of protobuf packets (`perfetto/trace/trace_packet.proto`).

Each rank is a process; a rank with several communicators has a group of tracks for each. Numbers of
tracks are hashes of their identity, so that files of several ranks, runs or hosts can be
concatenated. The description of a track comes before its packets; packets need not be sorted,
because Perfetto sorts by time.
*/

use crate::args::{Arg, args};
use crate::counters::{Counter, Unit, counters};
use crate::flows::{StepArrows, StepLinks, flows};
use crate::ident::Hash;
use crate::packets::{Interned, Numbers, Sequence};
use crate::parallel::in_batches;
use crate::scene::{Name, Scene, Slice, SliceSource};
use crate::step_index::StepIndex;
use crate::timelines::{Shown, Timelines};
use crate::tracks::{Track, marks, tracks};
use crate::view::{Group, View};
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::{Selection, Timeline};
use ncclscope_protobuf::Message;
use std::io::{self, Write};

/// `TrackDescriptor.ChildTracksOrdering.EXPLICIT`.
const EXPLICIT: u64 = 3;
/// `CounterDescriptor.Unit.UNIT_SIZE_BYTES`.
const SIZE_BYTES: u64 = 3;

/// Counts of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Slices.
    pub slices: u64,
    /// Arrows between steps, and the steps without one.
    pub arrows: StepArrows,
}

impl Written {
    /// Adds the counts of another process.
    pub fn add(&mut self, other: Written) {
        self.slices += other.slices;
        self.arrows.linked += other.arrows.linked;
        self.arrows.alone += other.arrows.alone;
        self.arrows.unknowable += other.arrows.unknowable;
    }
}

/// Writes the recordings of a run as one trace. Several processes are converted in parallel; all
/// but the first are buffered in memory until their turn.
///
/// # Errors
/// An error of `out`.
pub fn write<'r>(shown: impl Into<Shown<'r>>, out: &mut impl Write) -> io::Result<Written> {
    let Exporter { timelines, index, mut numbers } = Exporter::new(shown);
    let mut all = Written::default();
    let aside = |at| {
        let (mut own, mut bytes) = (Numbers::default(), Vec::new());
        let (timeline, selection) = (timelines.take(at), timelines.selection(at));
        let written = process(&index, &mut own, (&timeline, &selection), &mut bytes)?;
        io::Result::Ok((timeline, own, bytes, written))
    };
    in_batches(timelines.len(), aside, |at, part| {
        let selection = timelines.selection(at);
        all.add(match part.transpose()? {
            Some((_, own, bytes, written)) if numbers.join(&own) => {
                out.write_all(&bytes)?;
                written
            }
            // Numbers of its sequences are already in use, so it is written again with others.
            Some((timeline, ..)) => process(&index, &mut numbers, (&timeline, &selection), out)?,
            None => process(&index, &mut numbers, (&timelines.take(at), &selection), out)?,
        });
        io::Result::Ok(())
    })?;
    Ok(all)
}

/// Writes processes one by one, into one file or into several files, which can be concatenated.
#[derive(Debug)]
pub struct Exporter<'r> {
    timelines: Timelines<'r>,
    index: StepIndex,
    numbers: Numbers,
}

impl<'r> Exporter<'r> {
    /// An exporter that finds the steps that two of the recordings share.
    #[must_use]
    pub fn new(shown: impl Into<Shown<'r>>) -> Exporter<'r> {
        let timelines = Timelines::new(shown.into());
        let index = StepIndex::new(&timelines);
        Exporter { timelines, index, numbers: Numbers::default() }
    }

    /// Writes the process of the recording at a position.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn process(&mut self, at: usize, out: &mut impl Write) -> io::Result<Written> {
        let (timeline, selection) = (self.timelines.take(at), self.timelines.selection(at));
        process(&self.index, &mut self.numbers, (&timeline, &selection), out)
    }
}

/// Writes the selected part of a process.
///
/// # Errors
/// An error of `out`.
pub(crate) fn process(
    index: &StepIndex,
    numbers: &mut Numbers,
    (timeline, selection): (&Timeline<'_>, &Selection),
    out: &mut impl Write,
) -> io::Result<Written> {
    let scene = Scene::new(timeline).of(selection);
    let mut links = StepLinks::new(&scene, index);
    let mut slices = 0;
    for view in scene.views() {
        let mut rank =
            Rank { scene: &scene, view: &view, links: &mut links, numbers, out, slices: 0 };
        rank.write()?;
        slices += rank.slices;
    }
    Ok(Written { slices, arrows: links.seen })
}

/// A rank that is being written.
struct Rank<'a, 's, 't, 'r, W> {
    scene: &'s Scene<'t, 'r>,
    view: &'a View,
    links: &'a mut StepLinks<'s, 't, 'r>,
    numbers: &'a mut Numbers,
    out: &'a mut W,
    slices: u64,
}

impl<W: Write> Rank<'_, '_, '_, '_, W> {
    fn write(&mut self) -> io::Result<()> {
        let view = self.view;
        let mut sequence = Sequence::of_tracks(self.numbers, view.uuid, self.out);
        sequence.describe(|track| {
            track.uint(1, view.uuid);
            track.message(3, |process| {
                process.uint(1, u64::from(view.pid));
                process.text(6, &view.name); // process_name
                for group in &view.groups {
                    process.text(8, &group.name); // process_labels
                }
            });
        })?;
        // Not directly below the process, because Perfetto sorts tracks by name there.
        for (order, group) in (0..).zip(&view.groups) {
            sequence.describe(|track| {
                track.uint(1, group.uuid);
                track.uint(5, view.uuid); // parent_uuid
                track.text(2, &group.name);
                track.uint(11, EXPLICIT); // child_ordering
                track.uint(12, order); // sibling_order_rank
            })?;
        }
        for (order, track) in (0..).zip(&marks(self.scene)) {
            let uuid = Hash::new("marks").number(view.uuid).number(order).id();
            self.track(track, TrackPosition { uuid, parent: view.uuid, order })?;
        }
        view.groups.iter().try_for_each(|group| self.group(group))
    }

    /// The tracks of a communicator.
    fn group(&mut self, group: &Group) -> io::Result<()> {
        let place = |order| TrackPosition {
            uuid: Hash::new("track").number(group.uuid).number(order).id(),
            parent: group.uuid,
            order,
        };
        let mut order = 0;
        for track in tracks(self.scene, group) {
            self.track(&track, place(order))?;
            order += 1;
        }
        for counter in &counters(self.scene, group) {
            self.counter(counter, place(order))?;
            order += 1;
        }
        Ok(())
    }

    fn track(&mut self, track: &Track, place: TrackPosition) -> io::Result<()> {
        let Rank { scene, links, numbers, out, .. } = self;
        let scene = *scene;
        let Some(first) = track.slices.first() else { return Ok(()) };
        let mut sequence = Sequence::of_events(numbers, place.uuid, first.start, *out)?;
        sequence.describe(|descriptor| place.describe(descriptor, &track.name))?;
        let mut slices = track.slices.len() as u64;
        let mut open: Vec<(u64, Option<u64>)> = Vec::new();
        for slice in &track.slices {
            while let Some((end, flow)) = open.pop_if(|(end, _)| *end <= slice.start) {
                sequence.end(end, flow)?;
            }
            let SliceSource::Step(step) = slice.what else {
                sequence.begin(slice.start, |event, interned| {
                    put_slice(scene, slice, event, interned);
                    put_flows(scene, slice, event);
                })?;
                open.push((slice.end, None));
                continue;
            };
            let states = scene.step_states(step, slice);
            // `flow_ids` on both sides, because the clocks of two hosts may differ by more than the
            // duration of the transfer, and a `terminating_flow_ids` before its `flow_ids` would be
            // dropped.
            let arrow = links.of(step, &states);
            let arrow_at = |at| arrow.filter(|arrow| arrow.state == at);
            sequence.begin(slice.start, |event, interned| {
                put_slice(scene, slice, event, interned);
                if let Some(arrow) = arrow_at(None).filter(|arrow| arrow.is_out) {
                    event.fixed64(47, arrow.id); // flow_ids
                }
            })?;
            for (at, (state, start, end)) in states.into_iter().enumerate().filter_map(shown) {
                let (name, flow) = (Name::State(state), arrow_at(Some(at)).map(|arrow| arrow.id));
                sequence.begin_plain(start, name.number(), || scene.name_text(name), flow)?;
                sequence.end(end, None)?;
                slices += 1;
            }
            let into_end = arrow_at(None).filter(|arrow| !arrow.is_out);
            open.push((slice.end, into_end.map(|arrow| arrow.id)));
        }
        while let Some((end, flow)) = open.pop() {
            sequence.end(end, flow)?;
        }
        self.slices += slices;
        Ok(())
    }

    fn counter(&mut self, counter: &Counter, place: TrackPosition) -> io::Result<()> {
        let Some(&(start, _)) = counter.values.first() else { return Ok(()) };
        let mut sequence = Sequence::of_events(self.numbers, place.uuid, start, self.out)?;
        sequence.describe(|descriptor| {
            place.describe(descriptor, counter.name);
            descriptor.message(8, |counter_descriptor| match counter.unit {
                Unit::Bytes => counter_descriptor.uint(3, SIZE_BYTES), // unit
                Unit::BytesPerSecond => counter_descriptor.text(6, "GB/s"), // unit_name
            });
        })?;
        for &(ns, value) in &counter.values {
            sequence.count(ns, |event| match counter.unit {
                Unit::Bytes => event.uint(30, value), // counter_value
                Unit::BytesPerSecond => event.double(44, to_f64(value) / 1e9), // double_…
            })?;
        }
        Ok(())
    }
}

/// The place of a track: its number, its parent's number, and its index among the parent's tracks.
#[derive(Clone, Copy)]
struct TrackPosition {
    uuid: u64,
    parent: u64,
    order: u64,
}

impl TrackPosition {
    fn describe(self, track: &mut Message, name: &str) {
        track.uint(1, self.uuid);
        track.uint(5, self.parent); // parent_uuid
        track.text(2, name);
        track.uint(12, self.order); // sibling_order_rank
    }
}

fn put_name(scene: &Scene<'_, '_>, name: Name, event: &mut Message, interned: &mut Interned<'_>) {
    event.uint(10, interned.name(name.number(), || scene.name_text(name))); // name_iid
}

/// Adds name, category, arguments and correlation of a slice.
fn put_slice<'s>(
    scene: &'s Scene<'_, '_>,
    slice: &Slice,
    event: &mut Message,
    interned: &mut Interned<'s>,
) {
    put_name(scene, scene.name(slice.what), event, interned);
    event.uint(3, interned.category(scene.category(slice.what))); // category_iids
    args(scene, slice, &mut |name, value| {
        event.message(4, |annotation| {
            annotation.uint(1, interned.arg_name(name)); // name_iid
            match value {
                Arg::Uint(value) => annotation.uint(3, value),
                Arg::Int(value) => annotation.int(4, value),
                Arg::Text(text) => annotation.uint(17, interned.value(text)), // string_value_iid
            }
        });
    });
    if let Some(id) = scene.correlation(slice.what) {
        event.uint(52, id); // correlation_id
    }
}

/// A state with its index; `None` if it is not shown.
fn shown<T>((at, state): (usize, Option<T>)) -> Option<(usize, T)> {
    state.map(|state| (at, state))
}

fn put_flows(scene: &Scene<'_, '_>, slice: &Slice, event: &mut Message) {
    let flows = flows(scene, slice.what);
    for &flow in &flows.out {
        event.fixed64(47, flow); // flow_ids
    }
    if let Some(flow) = flows.into_start {
        event.fixed64(48, flow); // terminating_flow_ids
    }
}
