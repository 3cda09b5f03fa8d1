// SPDX-License-Identifier: Apache-2.0
/*!
Chrome's JSON trace format ("Trace Event Format"), which Perfetto, chrome://tracing and many
scripts read.

Complete slices (`X`), one process for each rank and one thread for each track; thread numbers start
at 1 and never equal a process number, which readers take for a process's main thread. Times are
microseconds with three decimals after `baseTimeNanoseconds`, as Kineto writes them: absolute ones
would not fit the 53 bits of a JSON number.
*/

use crate::args::json_args;
use crate::counters::{Counter, Unit, counters};
use crate::flows::{StepLinks, flows};
use crate::matching::StepIndex;
use crate::parallel::read_ahead;
use crate::pftrace::Written;
use crate::scene::{Name, Scene, Slice, What};
use crate::tracks::{self, Track};
use crate::view::View;
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::Recording;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Writes the recordings of a run as one trace.
///
/// # Errors
/// Those of `out`.
pub fn write(recordings: &[Recording], out: &mut impl Write) -> io::Result<Written> {
    let index = StepIndex::new(recordings);
    let base_ns = recordings.iter().map(base_ns).min().unwrap_or(0);
    writeln!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{base_ns},\"traceEvents\":["
    )?;
    let mut writer = Writer { out, base_ns, is_first: true };
    let mut written = Written::default();
    read_ahead(recordings, |timeline| {
        let scene = Scene::new(timeline);
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

/// The whole second before the first communicator was made, ns since 1970.
fn base_ns(recording: &Recording) -> u64 {
    let clock = recording.tick_map();
    let ticks = recording.comms().iter().map(|comm| comm.ticks).min();
    let first = ticks.unwrap_or_else(|| recording.last_ticks());
    clock.realtime_ns(first) / 1_000_000_000 * 1_000_000_000
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
        self.metadata("process_name", view, 0, &json!({"name": view.name}))?;
        let labels: Vec<&str> = view.groups.iter().map(|group| &*group.name).collect();
        self.metadata("process_labels", view, 0, &json!({"labels": labels.join(", ")}))?;
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
        self.metadata("thread_name", view, tid, &json!({"name": track.name}))?;
        self.metadata("thread_sort_index", view, tid, &json!({"sort_index": tid}))?;
        let mut slices = 0;
        for slice in &track.slices {
            slices += self.slice(scene, (view, tid), slice)?;
            self.arrows(scene, (view, tid), slice, links)?;
        }
        Ok(slices)
    }

    fn metadata(&mut self, name: &str, view: &View, tid: u32, args: &Value) -> io::Result<()> {
        let mut event = json!({"ph": "M", "name": name, "pid": view.pid, "args": args});
        if tid != 0 {
            event["tid"] = tid.into();
        }
        self.line(&event.to_string())
    }

    /// Writes a slice with those that lie in it, and returns how many.
    fn slice(
        &mut self,
        scene: &Scene<'_, '_>,
        place: (&View, u32),
        slice: &Slice,
    ) -> io::Result<u64> {
        let name = scene.name_text(scene.name(slice.what));
        let category = scene.category(slice.what);
        let values = json_args(scene, slice);
        self.complete(place, (&name, category), (slice.start, slice.end), values)?;
        let What::Step(step) = slice.what else { return Ok(1) };
        let mut slices = 1;
        for (state, start, end) in scene.step_states(step, slice).into_iter().flatten() {
            let name = scene.name_text(Name::State(state));
            self.complete(place, (&name, category), (start, end), Map::new())?;
            slices += 1;
        }
        Ok(slices)
    }

    fn complete(
        &mut self,
        (view, tid): (&View, u32),
        (name, category): (&str, &str),
        (start, end): (u64, u64),
        args: Map<String, Value>,
    ) -> io::Result<()> {
        let text = format!(
            "{{\"ph\":\"X\",\"name\":{},\"cat\":\"{category}\",\"pid\":{},\"tid\":{tid},\
             \"ts\":{},\"dur\":{},\"args\":{}}}",
            Value::from(name),
            view.pid,
            self.micros(start),
            micros(end - start),
            Value::Object(args),
        );
        self.line(&text)
    }

    fn counter(&mut self, view: &View, prefix: &str, counter: &Counter) -> io::Result<()> {
        let name = Value::from(format!("{prefix}{}", counter.name));
        for &(ns, value) in &counter.values {
            let value = match counter.unit {
                Unit::Bytes => json!({"bytes": value}),
                Unit::BytesPerSecond => json!({"GB/s": to_f64(value) / 1e9}),
            };
            let text = format!(
                "{{\"ph\":\"C\",\"name\":{name},\"pid\":{},\"ts\":{},\"args\":{value}}}",
                view.pid,
                self.micros(ns),
            );
            self.line(&text)?;
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
        if let What::Step(step) = slice.what {
            let states = scene.step_states(step, slice);
            arrows.extend(links.of(step, &states).map(|arrow| {
                let state = arrow.state.and_then(|at| states[at]).map(|(_, start, _)| start);
                // An arrow binds to the slice around its time: the end itself is outside.
                let last = slice.end.saturating_sub(1).max(slice.start);
                let step = if arrow.is_out { slice.start } else { last };
                (if arrow.is_out { "s" } else { "f" }, arrow.id, state.unwrap_or(step))
            }));
        } else {
            let flows = flows(scene, slice.what);
            arrows.extend(flows.out.iter().map(|&id| ("s", id, slice.start)));
            arrows.extend(flows.into_start.map(|id| ("f", id, slice.start)));
        }
        for (phase, id, ns) in arrows {
            let text = format!(
                "{{\"ph\":\"{phase}\",\"id\":\"{id:#x}\",\"name\":\"flow\",\"cat\":\"flow\",\
                 \"pid\":{},\"tid\":{tid},\"ts\":{}{}}}",
                view.pid,
                self.micros(ns),
                if phase == "f" { ",\"bp\":\"e\"" } else { "" },
            );
            self.line(&text)?;
        }
        Ok(())
    }

    fn micros(&self, ns: u64) -> String {
        micros(ns.saturating_sub(self.base_ns))
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        if !self.is_first {
            self.out.write_all(b",\n")?;
        }
        self.is_first = false;
        self.out.write_all(text.as_bytes())
    }
}

/// Microseconds with three decimals, as Kineto writes them.
#[must_use]
pub fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}
