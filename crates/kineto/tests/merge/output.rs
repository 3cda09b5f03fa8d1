// SPDX-License-Identifier: Apache-2.0
//! Contents of a merged trace.

use crate::truth::{self, Truth};
use crate::{HTA, dlrm, recorded, with_surroundings};
use ncclscope_kineto::file::Output;
use ncclscope_kineto::{Rank, Trace, merged, write};
use ncclscope_operations::Timeline;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Merges a trace with a recording of the same operations into `output`.
pub(crate) fn merge(path: &Path, output: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let truth = Truth::read(path);
    let played = with_surroundings(&truth, truth.played());
    let recording = recorded(&mut truth.recorder(1_700_123), &played, dir.path());
    let timeline = Timeline::read(&recording, true);
    let trace = Trace::scan(path).unwrap();
    let rank = Rank::new(&trace, &timeline);
    assert_eq!(rank.joined().pairs.len(), trace.kernels.len());
    let is_compressed = output.to_string_lossy().ends_with(".gz");
    let mut out = Output::new(File::create(output).unwrap(), is_compressed);
    write(&rank, &mut out).unwrap();
    out.finish().unwrap();
}

fn events(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().unwrap()
}

fn is_ours(event: &Value) -> bool {
    event["pid"].as_u64().is_some_and(|pid| pid >= 1 << 30) || event["cat"] == "inside"
}

/// Slices with their start and end, by process and thread.
type Rows<'e> = BTreeMap<(u64, u64), Vec<(i64, i64, &'e Value)>>;

fn slices(events: &[Value]) -> Rows<'_> {
    let mut rows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events.iter().filter(|event| is_ours(event) && event["ph"] == "X") {
        let row = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let start = truth::ns(&event["ts"]);
        rows.entry(row).or_default().push((start, start + truth::ns(&event["dur"]), event));
    }
    rows
}

/// Asserts that the slices of each track nest, and that no tool takes one for GPU time.
fn assert_lanes(events: &[Value]) {
    for ((pid, tid), mut slices) in slices(events) {
        assert!(pid >= 1 << 30 && (1..10_000).contains(&tid));
        slices.sort_by_key(|&(start, end, _)| (start, std::cmp::Reverse(end)));
        let mut open: Vec<i64> = Vec::new();
        for (start, end, event) in slices {
            while open.pop_if(|last| *last <= start).is_some() {}
            assert!(open.last().is_none_or(|&last| end <= last), "{event}");
            open.push(end);
            assert!(event["args"]["stream"].is_null() && event["args"]["correlation"].is_null());
            assert_ne!(event["cat"], "kernel");
        }
    }
    let names = events.iter().filter(|e| is_ours(e) && e["ph"] != "M");
    for name in names.map(|event| event["name"].as_str().unwrap()) {
        assert!(!name.starts_with("nccl"), "{name}");
    }
}

/// Asserts that arrows have two ends, of which the first is not later than the second, each inside
/// a slice.
fn assert_arrows(events: &[Value], count: usize) {
    let mut arrows: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["cat"] == "inside") {
        arrows.entry(event["id"].as_u64().unwrap()).or_default().push(event);
    }
    assert_eq!(arrows.len(), count);
    let rows = slices(events);
    let mut kernels = BTreeSet::new();
    for ends in arrows.values() {
        let [from, to] = ends[..] else { panic!("{ends:?}") };
        assert_eq!((&from["ph"], &to["ph"]), (&"s".into(), &"f".into()));
        assert!(truth::ns(&from["ts"]) <= truth::ns(&to["ts"]));
        for end in [from, to] {
            let at = truth::ns(&end["ts"]);
            let row = (end["pid"].as_u64().unwrap(), end["tid"].as_u64().unwrap());
            match rows.get(&row) {
                Some(lane) => assert!(lane.iter().any(|&(a, b, _)| a <= at && at <= b), "{end}"),
                None => {
                    let is_it = |event: &&Value| {
                        event["cat"].as_str().is_some_and(|cat| cat.eq_ignore_ascii_case("kernel"))
                            && (&event["pid"], &event["tid"]) == (&end["pid"], &end["tid"])
                            && truth::ns(&event["ts"]) == at
                    };
                    assert!(events.iter().any(|event| is_it(&event)), "{end}");
                    kernels.insert((row, at));
                }
            }
        }
    }
    assert!(!kernels.is_empty());
}

#[test]
fn the_trace_is_kept_and_the_lanes_come_behind_its_events() {
    let Some(path) = truth::real(HTA) else { return };
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("merged.json.gz");
    merge(&path, &output);
    let (before, after) = (truth::bytes(&path), truth::bytes(&output));
    let common = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    assert!(after.ends_with(&before[common..]), "not only bytes put in");
    let (before, after): (Value, Value) =
        (serde_json::from_slice(&before).unwrap(), serde_json::from_slice(&after).unwrap());
    let (old, all) = (events(&before), events(&after));
    assert_eq!(&all[..old.len()], old);
    let new = &all[old.len()..];
    assert!(new.iter().all(is_ours));
    assert_lanes(new);
    // Each operation has three arrows: one of its own, and one of each of its two channels.
    assert_arrows(all, 21 * 3);
    let of = |name: &str| {
        let found = new.iter().filter(|event| event["name"] == name);
        found.filter_map(|event| event["args"]["name"].as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of("process_name"), ["NCCL rank 0 (ncclscope)"]);
    let lanes: BTreeSet<&str> = of("thread_name").into_iter().collect();
    let expected = [
        "API calls",
        "Groups",
        "Kernel channel 0",
        "Kernel channel 1",
        "Operations",
        "Proxy send to rank 1, channel 0",
        "Proxy send to rank 1, channel 1",
    ];
    assert_eq!(lanes.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn operations_say_what_they_were_joined_by_and_channels_lie_in_their_kernel() {
    let Some(path) = truth::real(HTA) else { return };
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("merged.json");
    merge(&path, &output);
    let after: Value = serde_json::from_slice(&truth::bytes(&output)).unwrap();
    let truth = Truth::read(&path);
    let base = after["baseTimeNanoseconds"].as_i64().unwrap();
    let ours: Vec<&Value> = events(&after).iter().filter(|event| is_ours(event)).collect();
    for it in &truth.kernels {
        let is_it = |event: &&&Value| event["args"]["kernel_correlation"] == it.correlation;
        let operation = ours.iter().find(is_it).unwrap();
        let args = &operation["args"];
        assert_eq!(operation["name"], it.func);
        assert_eq!(args["join_key"], "order in process group");
        assert_eq!(args["join_confidence"], "high");
        assert_eq!(args["kernel_external_id"], it.external_id);
        assert_eq!(args["process_group_description"], "default_pg");
        let is_inside = |event: &&&Value| {
            event["cat"] == "nccl_kernel" && {
                let (start, length) = (base + truth::ns(&event["ts"]), truth::ns(&event["dur"]));
                let whole = it.kernel.1 - it.kernel.0;
                (start - it.kernel.0).abs() < 5_000 && (length - whole).abs() < 5_000
            }
        };
        assert_eq!(ours.iter().filter(is_inside).count(), 2);
    }
    let alone = ours.iter().filter(|event| event["args"]["join_key"] == "none").count();
    // Of the 42 operations before and after, only those within the profiler's time are in the
    // trace.
    assert_eq!(alone, 3);
}

#[test]
fn ranks_in_one_file_are_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let Some(files) = dlrm(dir.path()) else { return };
    let output = dir.path().join("all.json");
    let mut out = Output::new(File::create(&output).unwrap(), false);
    let mut shared = merged::Shared::default();
    let files: Vec<PathBuf> = files.into_iter().take(3).collect();
    merged::begin(&mut out, 0).unwrap();
    let mut before = 0;
    for path in &files {
        let truth = Truth::read(path);
        before += truth.json["traceEvents"].as_array().unwrap().len();
        let recording = recorded(&mut truth.recorder(0), &truth.played(), dir.path());
        let timeline = Timeline::read(&recording, true);
        let trace = Trace::scan(path).unwrap();
        let rank = Rank::new(&trace, &timeline);
        merged::add(&mut out, &rank, 0, &mut shared).unwrap();
    }
    merged::end(&mut out).unwrap();
    out.finish().unwrap();
    let merged: Value = serde_json::from_slice(&truth::bytes(&output)).unwrap();
    let all = events(&merged);
    assert_eq!(all.iter().filter(|event| !is_ours(event)).count(), before);
    assert_lanes(all);
    // Sends and receives of two peers, each with two channels: 4 operations, 8 channels.
    let arrows = |path: &PathBuf| -> usize {
        let kernels = Truth::read(path).kernels;
        kernels.iter().map(|it| if it.func == "SendRecv" { 12 } else { 3 }).sum()
    };
    assert_arrows(all, files.iter().map(arrows).sum());
    let names: BTreeSet<String> = all
        .iter()
        .filter(|e| e["name"] == "process_name" && e["pid"].as_u64().is_some_and(|pid| pid < 8))
        .map(|event| event["pid"].to_string())
        .collect();
    assert_eq!(names.len(), 8, "the devices of the first rank keep their numbers");
}
