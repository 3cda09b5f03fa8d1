// SPDX-License-Identifier: Apache-2.0
//! Small traces, each for one question.

use crate::recording::{Played, Recorder};
use crate::truth::{self, Truth};
use crate::{HTA, assert_right, recorded};
use ncclscope_kineto::file;
use ncclscope_kineto::identity::choose;
use ncclscope_kineto::join::{Confidence, Key};
use ncclscope_kineto::trace::Identity;
use ncclscope_kineto::{Rank, Trace, write};
use ncclscope_operations::Timeline;
use ncclscope_trace::Comm;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// `CLOCK_REALTIME` at `ts` 0, ns.
const BASE: i64 = 1_790_857_026_000_000_000;

fn write_trace(dir: &Path, events: &[Value]) -> PathBuf {
    let path = dir.join("trace.json");
    let trace = json!({
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 4},
        "host_name": "vm", "baseTimeNanoseconds": BASE, "traceEvents": events,
    });
    std::fs::write(&path, trace.to_string()).unwrap();
    path
}

fn kernel(id: u64, start_us: i64) -> Value {
    json!({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "pid": 0, "tid": 20, "ts": start_us, "dur": 100,
        "args": {"External id": id + 5000, "correlation": id, "stream": 20}})
}

/// An operation of a group of two, and its kernel.
fn operation(id: u64, start_us: i64, group: &str, ranks: &str) -> [Value; 2] {
    let op = json!({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 77, "tid": 78,
        "ts": start_us, "dur": 50,
        "args": {"External id": id + 5000, "Collective name": "allreduce", "dtype": "Float",
            "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2,
            "Process Group Name": group, "Process Group Ranks": ranks}});
    [op, kernel(id, start_us + 60)]
}

fn played(tag: u64, call_us: i64, comm: u16) -> Played {
    let call_ns = BASE + call_us * 1000;
    let kernel = (call_ns + 50_000, call_ns + 150_000);
    Played { tag, external_id: 0, func: "AllReduce", comm, count: 64, call_ns, kernel }
}

fn recorder(comms: &[(u32, i32)]) -> Recorder {
    let mut recorder = Recorder::new(77, "vm", 3_000, BASE);
    for (&(ranks, rank), index) in comms.iter().zip(0..) {
        recorder.comms.push(Comm {
            index,
            hash: 1000 + u64::from(index),
            ranks,
            rank,
            api_version: 5,
            ..Comm::default()
        });
    }
    recorder
}

#[test]
fn groups_of_one_size_are_told_apart_by_their_rhythm() {
    let dir = tempfile::tempdir().unwrap();
    let (mut events, mut calls) = (Vec::new(), Vec::new());
    for i in 0..30i64 {
        let at = 1_000 + i * 2_000 + i * i * i % 97;
        let id = i.cast_unsigned() * 2 + 1;
        // In both groups the listed ranks have the same places; this process is the second of both.
        events.extend(operation(id, at, "tp", "[0, 1]"));
        events.extend(operation(id + 1, at + 300 + i * i % 31, "dp", "[]"));
        calls.push(played(id, at + 10, 1));
        calls.push(played(id + 1, at + 310 + i * i % 31, 0));
    }
    let path = write_trace(dir.path(), &events);
    let recording = recorded(&mut recorder(&[(2, 1), (2, 1)]), &calls, dir.path());
    let timeline = Timeline::read(&recording, true);
    let trace = Trace::scan(&path).unwrap();
    let rank = Rank::new(&trace, &timeline);
    assert_right(&trace, &timeline, &rank);
    assert_eq!(rank.joined().count(Key::Order), 60);
}

#[test]
fn another_size_or_another_rank_is_no_communicator_of_the_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut events = Vec::new();
    let calls: Vec<Played> = (0..10).map(|i| played(1, 1_000 + i * 2_000, 0)).collect();
    for i in 0..10i64 {
        events.extend(operation(i.cast_unsigned() + 1, 1_000 + i * 2_000, "tp", "[0, 1]"));
    }
    let path = write_trace(dir.path(), &events);
    let trace = Trace::scan(&path).unwrap();
    for (comm, pairs) in [((2, 1), 10), ((4, 1), 0), ((2, 0), 0)] {
        let dir = tempfile::tempdir().unwrap();
        let recording = recorded(&mut recorder(&[comm]), &calls, dir.path());
        let timeline = Timeline::read(&recording, true);
        let rank = Rank::new(&trace, &timeline);
        assert_eq!(rank.joined().pairs.len(), pairs);
        assert_eq!(rank.is_foreign(), pairs == 0);
    }
}

#[test]
fn the_id_of_what_is_around_or_inside_an_operation_is_as_good() {
    for (name, start, length) in [("c10d::allreduce_", -10, 100), ("nccl:all_reduce", 10, 20)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut events, mut calls) = (Vec::new(), Vec::new());
        for i in 0..10i64 {
            let (id, at) = (i.cast_unsigned() + 1, 1_000 + i * 500);
            events.extend(operation(id, at, "tp", "[0, 1]"));
            events.push(json!({"ph": "X", "cat": "cpu_op", "name": name, "pid": 77, "tid": 78,
                "ts": at + start, "dur": length, "args": {"External id": id + 9000}}));
            // In the opposite order, so that only the external ids join them correctly.
            calls.push(Played { external_id: id + 9000, ..played(id, 20_000 - i * 1_000, 0) });
        }
        calls.reverse();
        let path = write_trace(dir.path(), &events);
        let recording = recorded(&mut recorder(&[(2, 1)]), &calls, dir.path());
        let timeline = Timeline::read(&recording, true);
        let trace = Trace::scan(&path).unwrap();
        let rank = Rank::new(&trace, &timeline);
        assert_right(&trace, &timeline, &rank);
        assert_eq!(rank.joined().count(Key::ExternalId), 10, "{name}");
    }
}

#[test]
fn replays_of_a_graph_are_joined_by_time() {
    let dir = tempfile::tempdir().unwrap();
    // Kernels without a CPU operation and without a launch of their own, one of them without any
    // operation.
    let times = [5_000, 5_150, 9_000, 30_000];
    let events: Vec<Value> = times.iter().zip(1..).map(|(&at, id)| kernel(id, at)).collect();
    let path = write_trace(dir.path(), &events);
    let calls: Vec<Played> =
        times.iter().zip(1..).take(3).map(|(at, id)| played(id, at - 45, 0)).collect();
    let recording = recorded(&mut recorder(&[(4, 1)]), &calls, dir.path());
    let timeline = Timeline::read(&recording, true);
    let trace = Trace::scan(&path).unwrap();
    let rank = Rank::new(&trace, &timeline);
    assert_right(&trace, &timeline, &rank);
    let pairs = &rank.joined().pairs;
    assert_eq!((pairs.len(), rank.joined().count(Key::Time)), (3, 3));
    assert!(pairs.iter().all(|pair| pair.confidence == Confidence::Low));
}

#[test]
fn a_trace_without_events_gets_lanes_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = write_trace(dir.path(), &[]);
    let recording = recorded(&mut recorder(&[(4, 1)]), &[played(1, 5, 0)], dir.path());
    let timeline = Timeline::read(&recording, true);
    let trace = Trace::scan(&path).unwrap();
    let mut out = Vec::new();
    write(&Rank::new(&trace, &timeline), &mut out).unwrap();
    let merged: Value = serde_json::from_slice(&out).unwrap();
    assert!(!merged["traceEvents"].as_array().unwrap().is_empty());
}

#[test]
fn the_recording_of_the_process_is_chosen() {
    let dirs: Vec<tempfile::TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |(index, (pid, host, rank)): (usize, (u32, &str, i32))| {
        let mut recorder = Recorder::new(pid, host, 0, BASE);
        recorder.comms.push(Comm { ranks: 4, rank, hash: 7, api_version: 5, ..Comm::default() });
        recorded(&mut recorder, &[played(1, 5, 0)], dirs[index].path())
    };
    let all: Vec<_> =
        [(77, "a", 0), (77, "b", 1), (78, "b", 2)].into_iter().enumerate().map(open).collect();
    let identity = |rank: Option<u32>, host: Option<&str>, pid| Identity {
        rank: rank.map(|rank| (rank, 4)),
        host: host.map(Into::into),
        pid,
    };
    assert_eq!(choose(&identity(Some(1), None, None), &all), Some(1));
    assert_eq!(choose(&identity(None, Some("b"), Some(77)), &all), Some(1));
    assert_eq!(choose(&identity(None, None, Some(78)), &all), Some(2));
    // Two candidates are equally good, none matches, or the process is not there.
    assert_eq!(choose(&identity(None, None, Some(77)), &all), None);
    assert_eq!(choose(&identity(Some(3), None, None), &all), None);
    assert_eq!(choose(&identity(Some(1), Some("b"), Some(79)), &all), None);
    assert_eq!(choose(&identity(None, None, None), &all), None);
    assert_eq!(choose(&identity(None, None, None), &all[..1]), Some(0));
}

/// Writes a real trace, repeated `times` times, to `path`. Returns what the plugin would have
/// recorded.
fn repeat(truth: &Truth, times: u64, path: &Path) -> Vec<Played> {
    let events = truth.json["traceEvents"].as_array().unwrap();
    let base = truth.json["baseTimeNanoseconds"].as_i64().unwrap();
    let period_us = 700_000;
    let mut out = BufWriter::new(std::fs::File::create(path).unwrap());
    write!(out, "{{\"distributedInfo\":{},", truth.json["distributedInfo"]).unwrap();
    writeln!(out, "\"baseTimeNanoseconds\":{base},\"traceEvents\":[").unwrap();
    let mut all = Vec::new();
    for time in 0..times {
        for (at, event) in events.iter().enumerate() {
            let mut event = event.clone();
            if let Some(ts) = event["ts"].as_f64() {
                event["ts"] = (ts + f64::from(time as u32) * f64::from(period_us)).into();
            }
            for key in ["External id", "correlation"] {
                if let Some(id) = event["args"][key].as_u64() {
                    event["args"][key] = (id + time * 1_000_000).into();
                }
            }
            let comma = if time == 0 && at == 0 { "" } else { ",\n" };
            write!(out, "{comma}{event}").unwrap();
        }
        let by = i64::try_from(time).unwrap() * i64::from(period_us) * 1000;
        all.extend(truth.played().into_iter().map(|it| Played {
            tag: it.tag + time * 1_000_000,
            call_ns: it.call_ns + by,
            kernel: (it.kernel.0 + by, it.kernel.1 + by),
            ..it
        }));
    }
    write!(out, "],\"traceName\":\"long\"}}").unwrap();
    out.flush().unwrap();
    all
}

/// `NCCLSCOPE_LONG_TRACE=DIR:N` makes the trace N times as long and leaves it in DIR, with its
/// recording.
#[test]
fn every_kernel_of_a_long_trace_is_joined() {
    let Some(path) = truth::real(HTA) else { return };
    let scratch = tempfile::tempdir().unwrap();
    let wish = std::env::var("NCCLSCOPE_LONG_TRACE").unwrap_or_default();
    let (dir, times) = match wish.rsplit_once(':') {
        Some((dir, times)) => (Path::new(dir), times.parse().unwrap()),
        None => (scratch.path(), 3),
    };
    let truth = Truth::read(&path);
    let long = dir.join("long.json");
    let played = repeat(&truth, times, &long);
    let recording = recorded(&mut truth.recorder(2_000_000), &played, dir);
    let timeline = Timeline::read(&recording, true);
    let trace = Trace::scan(&long).unwrap();
    let rank = Rank::new(&trace, &timeline);
    assert_eq!(trace.kernels.len() as u64, 21 * times);
    assert_right(&trace, &timeline, &rank);
    assert_eq!(rank.joined().count(Key::Order), trace.kernels.len());
    let bytes = io::copy(&mut file::open(&long).unwrap(), &mut io::sink()).unwrap();
    assert_eq!(bytes, trace.bytes);
}
