// SPDX-License-Identifier: Apache-2.0
//! All traces show one picture: a recording has the same slices, with the same durations and
//! arguments, as pftrace, as Chrome's JSON and inside a profile of PyTorch; and an operation lasts
//! as long as `report` says.

mod play;
mod read;

use ncclscope_kineto::{Rank, Trace, write};
use ncclscope_operations::Timeline;
use ncclscope_report::ReportBuilder;
use ncclscope_trace::Recording;
use ncclscope_views::{chrome, pftrace};
use read::Shown;
use scripts::{EPOCH_NS, Process};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn recorded(process: &Process, dir: &Path) -> [Recording; 1] {
    [Recording::open(&process.write(dir).unwrap()).unwrap()]
}

fn in_pftrace(recordings: &[Recording]) -> Vec<Shown> {
    let mut bytes = Vec::new();
    pftrace::write(recordings, &mut bytes).unwrap();
    read::pftrace(&bytes)
}

fn chrome_trace(recordings: &[Recording]) -> Vec<u8> {
    let mut bytes = Vec::new();
    chrome::write(recordings, &mut bytes).unwrap();
    bytes
}

fn in_chrome(recordings: &[Recording]) -> Vec<Shown> {
    read::chrome(&chrome_trace(recordings), 0)
}

/// A profile of `window`, ns, without kernels, so that the clocks are taken as equal.
fn profile(recordings: &[Recording], window: (u64, u64), dir: &Path) -> Vec<u8> {
    let path = dir.join("profile.json");
    let span = json!({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
        "tid": "PyTorch Profiler", "ts": window.0 / 1000, "dur": (window.1 - window.0) / 1000});
    let profile = json!({"baseTimeNanoseconds": EPOCH_NS, "traceEvents": [span]});
    std::fs::write(&path, profile.to_string()).unwrap();
    let timeline = Timeline::read(&recordings[0], true);
    let trace = Trace::scan(&path).unwrap();
    let mut bytes = Vec::new();
    write(&Rank::new(&trace, &timeline), &mut bytes).unwrap();
    bytes
}

/// The tracks of the recordings in such a profile.
fn in_kineto(recordings: &[Recording], window: (u64, u64), dir: &Path) -> Vec<Shown> {
    let mut shown = read::chrome(&profile(recordings, window, dir), 1 << 30);
    for slice in &mut shown {
        // Arguments that only a profile has, and PyTorch's own word for an id.
        slice.args.retain(|name, _| !name.starts_with("join_"));
        if let Some(id) = slice.args.remove("External id") {
            slice.args.insert("external_id".into(), id);
        }
    }
    shown
}

/// A window of a year.
const ALWAYS: (u64, u64) = (0, 31_536_000_000_000_000);

#[track_caller]
fn assert_same(of: &str, one: &[Shown], other: &[Shown]) {
    for (one, other) in one.iter().zip(other) {
        assert_eq!(one, other, "{of}");
    }
    assert_eq!(one.len(), other.len(), "{of}");
}

#[test]
fn all_formats_show_the_same_slices_durations_and_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = recorded(&play::everything(), dir.path());
    let perfetto = in_pftrace(&recordings);
    assert_same("chrome", &in_chrome(&recordings), &perfetto);
    assert_same("kineto", &in_kineto(&recordings, ALWAYS, dir.path()), &perfetto);
    let tracks: BTreeSet<&str> = perfetto.iter().map(|slice| slice.track.as_str()).collect();
    for name in ["Steps and marks", "Groups", "Copy engine", "Network plugin", "Proxy control"] {
        assert!(tracks.iter().any(|track| track.ends_with(name)), "no {name} in {tracks:?}");
    }
    let of_net = |slice: &&Shown| slice.track.contains("Network plugin send to rank");
    let steps: Vec<String> =
        perfetto.iter().filter(of_net).map(|slice| slice.args["step"].to_string()).collect();
    assert_eq!(steps, ["0", "1"], "each beside its step, with its number");
    let categories: BTreeSet<&str> =
        tracks.iter().filter_map(|t| t.split_once(": ")).map(|t| t.0).collect();
    assert_eq!(categories.len(), 2, "two communicators: {categories:?}");
    let args: BTreeSet<&str> =
        perfetto.iter().flat_map(|s| s.args.keys().map(String::as_str)).collect();
    // Arguments of proxies that work for other processes, and of network operations in flight.
    let absent = ["pid", "steps_done"];
    let known = ncclscope_views::names::ARGUMENTS.iter().map(|(name, ..)| *name);
    let known: BTreeSet<&str> = known.filter(|name| !absent.contains(name)).collect();
    assert_eq!(args, known);
}

#[test]
fn profiles_have_the_arrows_between_the_slices_of_a_rank() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = recorded(&play::everything(), dir.path());
    let expected = read::arrows(&chrome_trace(&recordings), "flow", 0);
    let found = |window| {
        let profile = profile(&recordings, window, dir.path());
        read::arrows(&profile, "nccl_flow", 1 << 30)
    };
    assert!(expected.len() > 20);
    assert_eq!(found(ALWAYS), expected);
    // An arrow of which one end is not shown is left out.
    let some = found((0, 150_000));
    assert!(!some.is_empty() && some.len() < expected.len(), "{}", some.len());
}

#[test]
fn what_is_not_over_is_open_in_all_formats() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = recorded(&play::hang(), dir.path());
    let perfetto = in_pftrace(&recordings);
    assert!(perfetto.iter().any(|slice| slice.args.contains_key("open")));
    assert_same("chrome", &in_chrome(&recordings), &perfetto);
    assert_same("kineto", &in_kineto(&recordings, ALWAYS, dir.path()), &perfetto);
}

#[test]
fn a_profile_has_the_slices_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = recorded(&play::everything(), dir.path());
    let all = in_kineto(&recordings, ALWAYS, dir.path());
    let mut starts: Vec<u64> = all.iter().map(|slice| slice.start - EPOCH_NS).collect();
    starts.sort_unstable();
    let at = |part: usize| starts[starts.len() * part / 4] / 1000 * 1000;
    let window = (at(1), at(3));
    let some = in_kineto(&recordings, window, dir.path());
    assert!(some.len() > 20 && some.len() < all.len(), "{} of {}", some.len(), all.len());
    let is_inside = |slice: &&Shown| {
        slice.start - EPOCH_NS <= window.1 && slice.start + slice.length >= EPOCH_NS + window.0
    };
    // States are shown if their whole step is shown.
    let is_state = |slice: &&Shown| slice.name.ends_with("Wait");
    let expected: Vec<&Shown> = all.iter().filter(is_inside).filter(|s| !is_state(s)).collect();
    assert_eq!(some.iter().filter(|s| !is_state(s)).collect::<Vec<_>>(), expected);
}

#[test]
fn the_slice_of_an_operation_has_the_duration_that_report_says() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = recorded(&play::durations(), dir.path());
    let mut lengths: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for slice in in_pftrace(&recordings).into_iter().filter(|s| s.track == "Operations") {
        assert_eq!(slice.args["duration_ns"], slice.length, "{slice:?}");
        lengths.entry(slice.name).or_default().push(slice.length);
    }
    let mut builder = ReportBuilder::default();
    builder.add(&recordings[0]);
    let rows = builder.finish().operations;
    let timings: BTreeSet<&str> = rows.iter().map(|row| row.timing).collect();
    assert_eq!(timings, ["cuda_event", "enqueue", "kernel", "kernel_lead", "proxy"].into());
    assert_eq!(rows.len(), lengths.len());
    for row in rows {
        let of = &lengths[&row.func];
        let durations = row.duration_ns.unwrap();
        let [least, most] = [of.iter().min(), of.iter().max()].map(Option::unwrap);
        assert_eq!((durations.min, durations.max), (*least, *most), "{}", row.func);
        assert_eq!(of.len() as u64, row.count, "{}", row.func);
    }
}
