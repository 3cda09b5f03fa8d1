// SPDX-License-Identifier: Apache-2.0
/*!
Copies a trace, with the tracks of a recording after its last event.

Everything in the trace is copied byte for byte. The added tracks have a process number of their
own, none of their slices is a `kernel` or has a `stream`, and their thread numbers begin at 1. So
tools that sum GPU time by these fields get the same result as before, and do not mistake an added
track for a process's main thread. [`ncclscope_views::scene`] decides which tracks there are and
what they show, as for all traces.
*/

use crate::args::args;
use crate::event::LANES;
use crate::file;
use crate::json::Error;
use crate::rank::Rank;
use ncclscope_operations::EventId;
use ncclscope_trace::EventKind;
use ncclscope_views::chrome::{self, Event};
use ncclscope_views::flows::flows;
use ncclscope_views::scene::{Name, Slice, SliceSource};
use ncclscope_views::tracks;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// First process number of our tracks: above the process ids of Linux and the numbers of devices.
pub const FIRST_PID: u64 = 1 << 30;
/// Sort index after the rows of the GPUs and before those of the profiler.
pub(crate) const SORT_INDEX: u64 = 6_000_000;

/// Why a merged trace could not be written.
#[derive(Debug)]
pub enum WriteError {
    /// The trace can no longer be read, or changed meanwhile.
    Input(Error),
    /// An error of the system.
    Output(io::Error),
}

/// Writes the trace of a rank with its tracks. Returns how many slices were added.
///
/// # Errors
/// See [`WriteError`].
pub fn write(rank: &Rank<'_, '_>, out: &mut impl Write) -> Result<u64, WriteError> {
    let trace = rank.trace();
    let mut input = file::open(&trace.path).map_err(|e| WriteError::Input(e.into()))?;
    copy(&mut input, trace.insert.at, out)?;
    let mut events = Events::new(out, trace.insert.is_first);
    let mut place = RankTracks {
        // Different from those of other ranks, so that a viewer can show several traces at once.
        pid: FIRST_PID + trace.identity.rank.map_or(0, |(rank, _)| rank.into()),
        sort_index: SORT_INDEX,
        base_ns: trace.base_ns,
        first_id: 0,
        device: &mut Value::clone,
    };
    let slices = write_lanes(rank, &mut place, &mut events).map_err(WriteError::Output)?;
    copy(&mut input, trace.bytes - trace.insert.at, out)?;
    Ok(slices)
}

/// Copies exactly `bytes` bytes.
fn copy(input: &mut impl Read, mut bytes: u64, out: &mut impl Write) -> Result<(), WriteError> {
    let mut buffer = vec![0; 1 << 18];
    while bytes != 0 {
        let part = buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        let read = match input.read(&mut buffer[..part]) {
            Ok(0) => return Err(WriteError::Input(Error::Truncated)),
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(WriteError::Input(e.into())),
        };
        out.write_all(&buffer[..read]).map_err(WriteError::Output)?;
        bytes -= read as u64;
    }
    Ok(())
}

/// Writes events one after another into an array.
pub(crate) struct Events<'o, W> {
    out: &'o mut W,
    is_first: bool,
}

impl<W: Write> Events<'_, W> {
    pub(crate) fn new(out: &mut W, is_first: bool) -> Events<'_, W> {
        Events { out, is_first }
    }

    pub(crate) fn copy(&mut self, event: &[u8]) -> io::Result<()> {
        self.begin()?;
        self.out.write_all(event)
    }

    fn put(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.begin()?;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn begin(&mut self) -> io::Result<()> {
        let comma = if self.is_first { "\n" } else { ",\n" };
        self.is_first = false;
        self.out.write_all(comma.as_bytes())
    }

    fn metadata(&mut self, name: &str, (pid, tid): (u64, usize), args: Value) -> io::Result<()> {
        let (pid, tid, args) = (pid.into(), tid.into(), Some(args));
        self.put(&Event { ph: "M", name, pid, tid, ts: Some(0.0), args, ..Event::default() })
    }
}

/// Numbers and times for the tracks of a rank in a trace.
pub(crate) struct RankTracks<'d> {
    /// Their process number.
    pub(crate) pid: u64,
    pub(crate) sort_index: u64,
    /// The base of the trace's times, ns since 1970.
    pub(crate) base_ns: i64,
    /// Ids of arrows are above this.
    pub(crate) first_id: u64,
    /// Returns the number of a device's process in the trace.
    pub(crate) device: &'d mut dyn FnMut(&Value) -> Value,
}

/// Writes the tracks of a rank.
pub(crate) fn write_lanes<W: Write>(
    rank: &Rank<'_, '_>,
    place: &mut RankTracks<'_>,
    events: &mut Events<'_, W>,
) -> io::Result<u64> {
    let pid = place.pid;
    let number = rank.trace().identity.rank.map_or(String::new(), |(n, _)| format!(" rank {n}"));
    let name = json!({"name": format!("NCCL{number} {LANES}")});
    events.metadata("process_name", (pid, 0), name)?;
    events.metadata("process_labels", (pid, 0), json!({"labels": summary(rank)}))?;
    let sort = json!({"sort_index": place.sort_index});
    events.metadata("process_sort_index", (pid, 0), sort)?;
    let (scene, mut slices) = (rank.scene(), 0);
    let (mut places, mut ends) = (ArrowTargets::new(), Vec::new());
    let view = scene.whole();
    for (tid, track) in (1..).zip(tracks::of_view(scene, &view)) {
        events.metadata("thread_name", (pid, tid), json!({"name": track.name}))?;
        events.metadata("thread_sort_index", (pid, tid), json!({"sort_index": tid}))?;
        for slice in &track.slices {
            slices += place.slice(rank, tid, slice, events)?;
            if matches!(slice.what, SliceSource::Event(_) | SliceSource::Operation(_)) {
                places.insert(slice.what, (tid, *slice));
            }
            let flows = flows(scene, slice.what);
            let start = (tid, signed(slice.start));
            ends.extend(flows.out.into_iter().map(|flow| (flow, "s", start)));
            ends.extend(flows.into_start.map(|flow| (flow, "f", start)));
        }
    }
    let last_id = place.arrows_of_kernels(rank, &places, events)?;
    place.arrows_of_slices(ends, last_id, events)?;
    Ok(slices)
}

/// An end of an arrow between our slices: the arrow, its phase, the track and the time.
type End = (u64, &'static str, (usize, i64));

/// The track and the slice of what an arrow may lead to.
type ArrowTargets = HashMap<SliceSource, (usize, Slice)>;

/// The result of the join, for a reader of the trace.
fn summary(rank: &Rank<'_, '_>) -> String {
    let (joined, all) = (rank.joined(), rank.trace().kernels.len());
    format!("{} of {all} kernels joined", joined.pairs.len())
}

impl RankTracks<'_> {
    /// Writes a slice and the slices inside it, and returns their number.
    fn slice<W: Write>(
        &self,
        rank: &Rank<'_, '_>,
        tid: usize,
        slice: &Slice,
        events: &mut Events<'_, W>,
    ) -> io::Result<u64> {
        let scene = rank.scene();
        let cat = format!("nccl_{}", scene.category(slice.what));
        let mut put = |name: Name, (start, end): (u64, u64), args: Map<String, Value>| {
            let (start, end) = (signed(start), signed(end));
            events.put(&Event {
                ph: "X",
                name: &scene.name_text(name),
                cat: &cat,
                pid: self.pid.into(),
                tid: tid.into(),
                ts: Some(self.micros(start)),
                dur: Some(chrome::micros(self.grid(end) - self.grid(start))),
                args: Some(Value::Object(args)),
                ..Event::default()
            })
        };
        put(scene.name(slice.what), (slice.start, slice.end), args(rank, slice))?;
        let SliceSource::Step(step) = slice.what else { return Ok(1) };
        let mut slices = 1;
        for (state, start, end) in scene.step_states(step, slice).into_iter().flatten() {
            put(Name::State(state), (start, end), Map::new())?;
            slices += 1;
        }
        Ok(slices)
    }

    /// Writes arrows between each joined kernel and the events inside it. An arrow leaves the one
    /// that began first. Returns the last id.
    fn arrows_of_kernels<W: Write>(
        &mut self,
        rank: &Rank<'_, '_>,
        places: &ArrowTargets,
        events: &mut Events<'_, W>,
    ) -> io::Result<u64> {
        let mut id = self.first_id;
        for pair in &rank.joined().pairs {
            let kernel = &rank.trace().kernels[pair.kernel];
            let device = (self.device)(&kernel.pid);
            let at_kernel = (&device, &kernel.tid, kernel.start_ns);
            let mut targets: Vec<SliceSource> = Vec::new();
            for &operation in &rank.launches()[pair.launch].operations {
                targets.extend(u32::try_from(operation).ok().map(SliceSource::Operation));
                targets.extend(inner_events(rank, operation).into_iter().map(SliceSource::Event));
            }
            for (tid, slice) in targets.iter().filter_map(|target| places.get(target)) {
                id += 1;
                let (pid, tid) = (Value::from(self.pid), Value::from(*tid));
                let (start, end) = (signed(slice.start), signed(slice.end));
                // An operation may begin before its kernel, so the arrow is at the later of the
                // starts.
                let inside = start.max(kernel.start_ns);
                let ends = if inside < end || start >= kernel.start_ns {
                    [at_kernel, (&pid, &tid, inside)]
                } else {
                    [(&pid, &tid, start), at_kernel]
                };
                // Their name must not begin with `nccl`: one end is on a device's row.
                for (ph, end) in ["s", "f"].into_iter().zip(ends) {
                    self.end(ph, ("inside", "inside", id), end, events)?;
                }
            }
        }
        Ok(id)
    }

    /// Writes the arrows between slices of the rank that all traces have, if both ends are shown.
    fn arrows_of_slices<W: Write>(
        &self,
        mut ends: Vec<End>,
        last_id: u64,
        events: &mut Events<'_, W>,
    ) -> io::Result<()> {
        ends.sort_unstable_by_key(|&(flow, phase, _)| (flow, std::cmp::Reverse(phase)));
        let whole = ends.chunk_by(|a, b| a.0 == b.0).filter(|ends| ends.len() == 2);
        for (ends, id) in whole.zip(last_id + 1..) {
            for &(_, ph, (tid, ns)) in ends {
                let end = (&self.pid.into(), &tid.into(), ns);
                self.end(ph, ("flow", "nccl_flow", id), end, events)?;
            }
        }
        Ok(())
    }

    /// Writes an end of an arrow.
    fn end<W: Write>(
        &self,
        ph: &'static str,
        (name, cat, id): (&str, &str, u64),
        (pid, tid, ns): (&Value, &Value, i64),
        events: &mut Events<'_, W>,
    ) -> io::Result<()> {
        events.put(&Event {
            ph,
            bp: if ph == "f" { "e" } else { "" },
            name,
            cat,
            id: id.into(),
            pid: pid.clone(),
            tid: tid.clone(),
            ts: Some(self.micros(ns)),
            ..Event::default()
        })
    }

    /// Rounds a time to the resolution of the trace. If times count from 1970, a JSON number cannot
    /// hold nanoseconds, so whole microseconds are used and slices nest in any reader.
    fn grid(&self, ns: i64) -> u64 {
        let grid = if self.base_ns == 0 { 1000 } else { 1 };
        u64::try_from(ns - self.base_ns).unwrap_or(0) / grid * grid
    }

    /// A time in the trace's microseconds.
    fn micros(&self, ns: i64) -> f64 {
        chrome::micros(self.grid(ns))
    }
}

/// The kernel channels of an operation, or if there are none, its ProxyOps.
fn inner_events(rank: &Rank<'_, '_>, operation: usize) -> Vec<EventId> {
    let timeline = rank.scene().timeline();
    let children = timeline.children(rank.operations()[operation].event);
    let of = |kind| {
        let is = |id: &EventId| timeline.event(*id).kind() == kind;
        children.iter().copied().filter(is).collect::<Vec<_>>()
    };
    let kernels = of(EventKind::KernelCh);
    if !kernels.is_empty() {
        return kernels;
    }
    let has_steps = |id: &EventId| timeline.event(*id).steps.is_some();
    of(EventKind::ProxyOp).into_iter().filter(has_steps).collect()
}

/// Converts ns since 1970, which fit into an `i64` until the year 2262.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
