// SPDX-License-Identifier: Apache-2.0
/*!
Chrome's JSON trace format ("Trace Event Format"), which Perfetto, chrome://tracing and many
scripts read.

Complete slices (`X`), one process for each rank and one thread for each track; thread numbers start
at 1 and never equal a process number, which readers take for a process's main thread. Times are
microseconds since `baseTimeNanoseconds`, with a fraction, as Kineto writes them, because absolute
times would not fit into the 53 bits of a JSON number.
*/

use crate::args::Args;
use crate::counters::{Counter, Unit, counters};
use crate::flows::{StepLinks, flows};
use crate::parallel::read_ahead;
use crate::pftrace::Written;
use crate::scene::{Name, Scene, Slice, SliceSource};
use crate::step_index::StepIndex;
use crate::timelines::{Shown, Timelines};
use crate::tracks::{self, Track};
use crate::view::View;
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::Recording;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Writes the recordings of a run as one trace.
///
/// # Errors
/// An error of `out`.
pub fn write<'r>(shown: impl Into<Shown<'r>>, out: &mut impl Write) -> io::Result<Written> {
    let shown = shown.into();
    let (recordings, timelines) = (shown.recordings, Timelines::new(shown));
    let index = StepIndex::new(&timelines);
    let base_ns = recordings.iter().map(base_ns).min().unwrap_or(0);
    writeln!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{base_ns},\"traceEvents\":["
    )?;
    let mut writer = Writer { out, base_ns, is_first: true };
    let mut written = Written::default();
    read_ahead(&timelines, |at, timeline| {
        let scene = Scene::new(timeline).of(&timelines.selection(at));
        let mut links = StepLinks::new(&scene, &index);
        let mut slices = 0;
        for view in scene.views() {
            slices += writer.rank(&scene, &view, &mut links)?;
        }
        written.add(Written { slices, arrows: links.seen });
        io::Result::Ok(())
    })?;
    writer.out.write_all(b"\n]}\n")?;
    Ok(written)
}

/// The whole second before the first communicator's `init`, ns since 1970.
fn base_ns(recording: &Recording) -> u64 {
    let clock = recording.tick_map();
    let ticks = recording.comms().iter().map(|comm| comm.ticks).min();
    let first = ticks.unwrap_or_else(|| recording.last_ticks());
    clock.realtime_ns(first) / 1_000_000_000 * 1_000_000_000
}

/// An event of the format. Empty fields are left out.
#[derive(Debug, Default, Serialize)]
pub struct Event<'a, A = Value> {
    /// Its phase: `X` a slice, `s` and `f` the ends of an arrow, `C` a value, `M` a name.
    pub ph: &'static str,
    /// Its name.
    pub name: &'a str,
    /// Its category, by which viewers filter.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub cat: &'a str,
    /// The id of an arrow, the same at both ends.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub id: Value,
    /// Process.
    pub pid: Value,
    /// Thread: its track.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub tid: Value,
    /// Time in microseconds; see [`micros`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<f64>,
    /// Length; as `ts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// `e`: an arrow ends at the enclosing slice.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub bp: &'static str,
    /// Its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<A>,
}

/// Converts nanoseconds to the microseconds of the format: exact to the third decimal in a trace of
/// less than 100 days. Whole microseconds are exact even for times since 1970.
#[must_use]
pub fn micros(ns: u64) -> f64 {
    if ns.is_multiple_of(1000) { to_f64(ns / 1000) } else { to_f64(ns) / 1000.0 }
}

struct Writer<'o, W> {
    out: &'o mut W,
    base_ns: u64,
    is_first: bool,
}

impl<W: Write> Writer<'_, W> {
    fn rank(
        &mut self,
        scene: &Scene<'_, '_>,
        view: &View,
        links: &mut StepLinks<'_, '_, '_>,
    ) -> io::Result<u64> {
        self.metadata("process_name", view, 0, json!({"name": view.name}))?;
        let labels: Vec<&str> = view.groups.iter().map(|group| &*group.name).collect();
        self.metadata("process_labels", view, 0, json!({"labels": labels.join(", ")}))?;
        let mut slices = 0;
        for (tid, track) in (1u32..).zip(tracks::of_view(scene, view)) {
            slices += self.track(scene, (view, tid), &track, links)?;
        }
        for group in &view.groups {
            for counter in counters(scene, group) {
                self.counter(view, &view.prefix(group), &counter)?;
            }
        }
        Ok(slices)
    }

    fn track(
        &mut self,
        scene: &Scene<'_, '_>,
        (view, tid): (&View, u32),
        track: &Track,
        links: &mut StepLinks<'_, '_, '_>,
    ) -> io::Result<u64> {
        self.metadata("thread_name", view, tid, json!({"name": track.name}))?;
        self.metadata("thread_sort_index", view, tid, json!({"sort_index": tid}))?;
        let mut slices = 0;
        for slice in &track.slices {
            slices += self.slice(scene, (view, tid), slice)?;
            self.arrows(scene, (view, tid), slice, links)?;
        }
        Ok(slices)
    }

    fn metadata(&mut self, name: &str, view: &View, tid: u32, args: Value) -> io::Result<()> {
        let tid = if tid == 0 { Value::Null } else { tid.into() };
        let (pid, args) = (view.pid.into(), Some(args));
        self.put(&Event { ph: "M", name, pid, tid, args, ..Event::default() })
    }

    /// Writes a slice and the slices inside it, and returns their number.
    fn slice(
        &mut self,
        scene: &Scene<'_, '_>,
        place: (&View, u32),
        slice: &Slice,
    ) -> io::Result<u64> {
        let (name, cat) = (scene.name_text(scene.name(slice.what)), scene.category(slice.what));
        let times = (slice.start, slice.end);
        self.complete(place, (&name, cat), times, Args { scene, slice })?;
        let SliceSource::Step(step) = slice.what else { return Ok(1) };
        let mut slices = 1;
        for (state, start, end) in scene.step_states(step, slice).into_iter().flatten() {
            let name = scene.name_text(Name::State(state));
            self.complete(place, (&name, cat), (start, end), json!({}))?;
            slices += 1;
        }
        Ok(slices)
    }

    fn complete(
        &mut self,
        (view, tid): (&View, u32),
        (name, cat): (&str, &str),
        (start, end): (u64, u64),
        args: impl Serialize,
    ) -> io::Result<()> {
        self.put(&Event {
            ph: "X",
            name,
            cat,
            id: Value::Null,
            pid: view.pid.into(),
            tid: tid.into(),
            ts: self.micros(start),
            dur: Some(micros(end - start)),
            bp: "",
            args: Some(args),
        })
    }

    fn counter(&mut self, view: &View, prefix: &str, counter: &Counter) -> io::Result<()> {
        let name = &*format!("{prefix}{}", counter.name);
        for &(ns, value) in &counter.values {
            let args = Some(match counter.unit {
                Unit::Bytes => json!({"bytes": value}),
                Unit::BytesPerSecond => json!({"GB/s": to_f64(value) / 1e9}),
            });
            let (pid, ts) = (view.pid.into(), self.micros(ns));
            self.put(&Event { ph: "C", name, pid, ts, args, ..Event::default() })?;
        }
        Ok(())
    }

    fn arrows(
        &mut self,
        scene: &Scene<'_, '_>,
        (view, tid): (&View, u32),
        slice: &Slice,
        links: &mut StepLinks<'_, '_, '_>,
    ) -> io::Result<()> {
        let mut arrows = Vec::new();
        if let SliceSource::Step(step) = slice.what {
            let states = scene.step_states(step, slice);
            arrows.extend(links.of(step, &states).map(|arrow| {
                let state = arrow.state.and_then(|at| states[at]).map(|(_, start, _)| start);
                // An arrow binds to the slice around its time, and the end of a slice is outside.
                let last = slice.end.saturating_sub(1).max(slice.start);
                let step = if arrow.is_out { slice.start } else { last };
                (if arrow.is_out { "s" } else { "f" }, arrow.id, state.unwrap_or(step))
            }));
        } else {
            let flows = flows(scene, slice.what);
            arrows.extend(flows.out.iter().map(|&id| ("s", id, slice.start)));
            arrows.extend(flows.into_start.map(|id| ("f", id, slice.start)));
        }
        for (ph, id, ns) in arrows {
            self.put(&Event::<Value> {
                ph,
                name: "flow",
                cat: "flow",
                id: format!("{id:#x}").into(),
                pid: view.pid.into(),
                tid: tid.into(),
                ts: self.micros(ns),
                bp: if ph == "f" { "e" } else { "" },
                ..Event::default()
            })?;
        }
        Ok(())
    }

    fn micros(&self, ns: u64) -> Option<f64> {
        Some(micros(ns.saturating_sub(self.base_ns)))
    }

    fn put(&mut self, event: &impl Serialize) -> io::Result<()> {
        if !self.is_first {
            self.out.write_all(b",\n")?;
        }
        self.is_first = false;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds() {
        let text = |ns| serde_json::to_string(&micros(ns)).unwrap();
        assert_eq!(
            [text(0), text(1_500), text(4_458_676_522_690)],
            ["0.0", "1.5", "4458676522.69"]
        );
        assert_eq!(text(8_639_999_999_999_999), "8639999999999.999");
        // A time since 1970, for which a float cannot hold a fraction.
        assert_eq!(text(1_694_128_201_434_192_000), "1694128201434192.0");
    }
}
