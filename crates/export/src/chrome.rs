// SPDX-License-Identifier: Apache-2.0
/*!
Chrome's JSON trace format ("Trace Event Format"), which Perfetto, chrome://tracing and many
scripts read.

Complete slices (`X`), one process for each rank and one thread for each track; thread numbers start
at 1 and never equal a process number, which readers take for a process's main thread. Times are
microseconds with three decimals after `baseTimeNanoseconds`, as Kineto writes them: absolute ones
would not fit the 53 bits of a JSON number.
*/

use crate::args::{Arg, args};
use crate::flows::{FlowIndex, flows};
use crate::pftrace::{category, index};
use crate::scene::{Scene, Slice, View};
use crate::tracks::tracks;
use ncclscope_analyze::Timeline;
use ncclscope_trace::Recording;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Writes the recordings of a run as one trace and returns how many slices it has.
///
/// # Errors
/// Those of `out`.
pub fn write(recordings: &[Recording], out: &mut impl Write) -> io::Result<u64> {
    let index = index(recordings);
    let base_ns = recordings.iter().map(base_ns).min().unwrap_or(0);
    writeln!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{base_ns},\"traceEvents\":["
    )?;
    let mut writer = Writer { out, base_ns, is_first: true };
    let mut slices = 0;
    for recording in recordings {
        let timeline = Timeline::read(recording, true);
        let scene = Scene::new(&timeline);
        for view in scene.views() {
            slices += writer.rank(&scene, &view, &index)?;
        }
    }
    writer.out.write_all(b"\n]}\n")?;
    Ok(slices)
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
    fn rank(&mut self, scene: &Scene<'_, '_>, view: &View, index: &FlowIndex) -> io::Result<u64> {
        self.metadata("process_name", view, 0, &json!({"name": view.name}))?;
        let mut slices = 0;
        for (tid, track) in (1u32..).zip(tracks(scene, view)) {
            self.metadata("thread_name", view, tid, &json!({"name": track.name}))?;
            self.metadata("thread_sort_index", view, tid, &json!({"sort_index": tid}))?;
            for slice in &track.slices {
                self.slice(scene, view, tid, slice)?;
                self.arrows(scene, view, tid, slice, index)?;
            }
            slices += track.slices.len() as u64;
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

    fn slice(
        &mut self,
        scene: &Scene<'_, '_>,
        view: &View,
        tid: u32,
        slice: &Slice,
    ) -> io::Result<()> {
        let mut values = Map::new();
        args(scene, slice, &mut |name, value| {
            let value = match value {
                Arg::Uint(value) => value.into(),
                Arg::Int(value) => value.into(),
                Arg::Text(text) => text.into(),
            };
            values.insert(name.into(), value);
        });
        let text = format!(
            "{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{tid},\"ts\":{},\
             \"dur\":{},\"args\":{}}}",
            Value::from(scene.name_text(scene.name(slice.what))),
            category(scene, slice.what),
            view.pid,
            self.micros(slice.start),
            micros(slice.end - slice.start),
            Value::Object(values),
        );
        self.line(&text)
    }

    fn arrows(
        &mut self,
        scene: &Scene<'_, '_>,
        view: &View,
        tid: u32,
        slice: &Slice,
        index: &FlowIndex,
    ) -> io::Result<()> {
        let flows = flows(scene, index, slice.what);
        let outs = flows.out.iter().map(|&id| ("s", id, slice.start));
        let into_start = flows.into_start.iter().map(|&id| ("f", id, slice.start));
        // An arrow binds to the slice around its time: the end itself is outside.
        let last = slice.end.saturating_sub(1).max(slice.start);
        let into_end = flows.into_end.iter().map(|&id| ("f", id, last));
        for (phase, id, ns) in outs.chain(into_start).chain(into_end) {
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

/// Microseconds with three decimals.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}
