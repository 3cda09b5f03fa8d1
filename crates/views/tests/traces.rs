// SPDX-License-Identifier: Apache-2.0
//! Simulated runs as traces. The pftrace is read with the official schema by the CLI's tests.

use ncclscope_report::ReportBuilder;
use ncclscope_trace::layout::Header;
use ncclscope_trace::record::schema;
use ncclscope_trace::{Comm, Definition, EventKind, Mark, MarkKind, Recording, StrId, Writer};
use ncclscope_views::flows::StepArrows;
use ncclscope_views::{chrome, pftrace};
use scripts::{Call, EPOCH_NS, Fault, PROXY, Process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn run(play: impl Fn(&mut Process)) -> Vec<Recording> {
    let dir = tempfile::tempdir().unwrap();
    let open = |rank| {
        let mut process = Process::new(rank, 2);
        play(&mut process);
        Recording::open(&process.write(dir.path()).unwrap()).unwrap()
    };
    [0, 1].map(open).into()
}

fn chrome_events(recordings: &[Recording]) -> (Value, Vec<Value>) {
    let mut out = Vec::new();
    chrome::write(recordings, &mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    let events = json["traceEvents"].as_array().unwrap().clone();
    (json, events)
}

/// Nanoseconds of a number with three decimals.
fn nanos(micros: &Value) -> u64 {
    format!("{:.3}", micros.as_f64().unwrap()).replace('.', "").parse().unwrap()
}

#[test]
fn a_process_is_named_by_its_rank_in_the_job_and_its_device() {
    let recordings = run(|p| {
        p.identity.rank = Some(40 + p.comm.rank.cast_unsigned());
        p.identity.device = Some(3);
        p.collective(Call::ALL_REDUCE);
    });
    let (_, events) = chrome_events(&recordings);
    let processes = events.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&str> = processes.map(|e| e["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rank 40 (node-0 1000, GPU 3)", "rank 41 (node-1 1001, GPU 3)"]);
}

#[test]
fn chrome_shows_a_process_for_each_rank_with_its_tracks() {
    let recordings = run(|p| {
        p.role = Some("tp");
        p.collective(Call::ALL_REDUCE);
    });
    let (json, events) = chrome_events(&recordings);
    assert_eq!(json["baseTimeNanoseconds"].as_u64(), Some(EPOCH_NS));
    let of = |name: &str| events.iter().filter(|e| e["name"] == name).collect::<Vec<_>>();
    let processes: Vec<&str> =
        of("process_name").iter().map(|e| e["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(processes, ["rank 0 (node-0 1000)", "rank 1 (node-1 1001)"]);
    let tracks: BTreeSet<&str> =
        of("thread_name").iter().map(|e| e["args"]["name"].as_str().unwrap()).collect();
    let expected = [
        "API calls",
        "Groups",
        "Kernel channel 0",
        "Kernel channel 1",
        "Operations",
        "Proxy receive from rank 0, channel 0",
        "Proxy receive from rank 0, channel 1",
        "Proxy receive from rank 1, channel 0",
        "Proxy receive from rank 1, channel 1",
        "Proxy send to rank 0, channel 0",
        "Proxy send to rank 0, channel 1",
        "Proxy send to rank 1, channel 0",
        "Proxy send to rank 1, channel 1",
    ];
    assert_eq!(tracks.into_iter().collect::<Vec<_>>(), expected);
    for event in events.iter().filter(|e| e["tid"].is_u64()) {
        assert!(event["tid"].as_u64().unwrap() >= 1 && event["tid"] != event["pid"], "{event}");
    }
    let operation = &of("AllReduce")[0];
    assert_eq!(operation["args"]["bytes"], 4 << 20);
    assert_eq!(operation["args"]["timing"], "kernel");
    assert_eq!(operation["args"]["role"], "tp");
    assert_eq!(operation["cat"], "operation");
    assert_eq!(of("ProxyStep").len(), 32);
    for state in ["SendGPUWait", "SendPeerWait", "SendWait"] {
        assert_eq!(of(state).len(), 16, "{state}");
    }
    for state in ["RecvWait", "RecvFlushWait", "RecvGPUWait"] {
        assert_eq!(of(state).len(), 16, "{state}");
    }
    assert_eq!(of("KernelCh AllReduce").len(), 4);
}

/// `docs/traces.md` must contain the tables of names.
#[test]
fn the_page_of_names_is_up_to_date() {
    let page = std::fs::read_to_string("../../docs/traces.md").unwrap();
    let tables = ncclscope_views::names::tables();
    assert!(page.contains(&tables), "docs/traces.md must have these tables:\n{tables}");
}

#[test]
fn chrome_slices_of_a_track_nest_and_arrows_have_two_ends() {
    let recordings = run(|p| {
        p.collective(Call::ALL_REDUCE);
        p.collective(Call { func: "AllGather", ..Call::ALL_REDUCE });
        p.send_recv(1 - p.comm.rank, 4096);
    });
    let (_, events) = chrome_events(&recordings);
    let mut tracks: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for event in &events {
        let track = || (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        match event["ph"].as_str().unwrap() {
            "X" => {
                let start = nanos(&event["ts"]);
                let slices = tracks.entry(track()).or_default();
                slices.push((start, start + nanos(&event["dur"])));
            }
            phase @ ("s" | "f") => {
                let ends = arrows.entry(event["id"].as_str().unwrap()).or_default();
                ends[usize::from(phase == "f")] += 1;
            }
            _ => {}
        }
    }
    for slices in tracks.values() {
        let mut open: Vec<u64> = Vec::new();
        for &(start, end) in slices {
            while open.pop_if(|open_end| *open_end <= start).is_some() {}
            assert!(open.last().is_none_or(|&around| end <= around), "{start}..{end} in {open:?}");
            open.push(end);
        }
    }
    assert!(arrows.values().all(|ends| *ends == [1, 1]), "{arrows:?}");
    // Arrows from calls to operations (4 per rank) and kernels (4), from operations to ProxyOps
    // (10), and between the ranks' steps (17 each way).
    assert_eq!(arrows.len(), 2 * (4 + 4 + 10 + 17));
}

#[test]
fn marks_have_a_track_and_training_steps_last() {
    let recordings = run(|p| {
        let mark = |p: &mut Process, what, name, value| {
            p.marks.push(Mark { ticks: p.now, what, name, value });
            p.now += 1_000;
        };
        let note = p.string("checkpoint");
        mark(p, MarkKind::Step, StrId::NONE, 7);
        p.collective(Call::ALL_REDUCE);
        mark(p, MarkKind::Note, note, 0);
        mark(p, MarkKind::Step, StrId::NONE, 8);
        p.collective(Call::ALL_REDUCE);
    });
    let (_, events) = chrome_events(&recordings);
    let of = |name: &str| events.iter().filter(|e| e["name"] == name).collect::<Vec<_>>();
    let steps = of("training step");
    assert_eq!(steps.len(), 4);
    assert_eq!((&steps[0]["args"]["value"], &steps[1]["args"]["value"]), (&7.into(), &8.into()));
    let end = |event: &Value| nanos(&event["ts"]) + nanos(&event["dur"]);
    assert_eq!(end(steps[0]), nanos(&steps[1]["ts"]));
    assert_eq!(nanos(&of("checkpoint")[0]["dur"]), 0);
    pftrace::write(&recordings, &mut Vec::new()).unwrap();
}

#[test]
fn no_step_is_matched_where_counting_could_be_wrong() {
    let arrows = |spoil: &dyn Fn(&mut Process)| {
        let recordings = run(|p| {
            p.collective(Call::ALL_REDUCE);
            p.send_recv(1 - p.comm.rank, 4096);
            spoil(p);
        });
        pftrace::write(&recordings, &mut Vec::new()).unwrap().arrows
    };
    let all = StepArrows { linked: 36, ..StepArrows::default() };
    assert_eq!(arrows(&|_| ()), all);
    // The steps of the collective are identified by its sequence number; those of the send and the
    // receive are not.
    let counted = StepArrows { linked: 32, unknowable: 4, ..StepArrows::default() };
    assert_eq!(arrows(&|p| p.lose(PROXY, EventKind::ProxyOp, 1)), counted);
    let mark = |ticks, what, value| Mark { ticks, what, name: StrId::NONE, value };
    // Every recording begins with a start mark, before its first communicator.
    assert_eq!(arrows(&|p| p.marks.push(mark(1, MarkKind::Start, 1))), all);
    assert_eq!(arrows(&|p| p.marks.push(mark(1, MarkKind::Start, 2))), counted, "a sample");
    assert_eq!(arrows(&|p| p.marks.push(mark(2000, MarkKind::Start, 1))), counted, "later");
    let window = mark(1, MarkKind::Stop, 0);
    assert_eq!(arrows(&|p| p.marks.push(window)), counted);
    // A mark on one side alone makes the other side's count worthless.
    let alone = StepArrows { linked: 32, unknowable: 2, alone: 2 };
    let of_one = |p: &mut Process| {
        if p.comm.rank == 0 {
            p.marks.push(window);
        }
    };
    assert_eq!(arrows(&of_one), alone);
    // Without a hash, the communicator must be unambiguous.
    assert_eq!(arrows(&|p| p.comm.hash = 0), all);
}

#[test]
fn open_slices_end_with_the_recording() {
    let recordings = run(|p| p.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE }));
    let (_, events) = chrome_events(&recordings[..1]);
    let open: BTreeSet<&str> = events
        .iter()
        .filter(|e| e["args"]["open"] == 1)
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    let expected = ["AllReduce", "KernelCh AllReduce", "ProxyOp AllReduce", "ProxyStep"];
    assert_eq!(open.into_iter().collect::<Vec<_>>(), expected);
}

/// NCCL starts ProxyOps for shared memory and never stops them.
#[test]
fn what_nccl_never_stops_shares_tracks() {
    let recordings = run(|p| {
        for _ in 0..100 {
            p.collective(Call { fault: Fault::Local, ..Call::ALL_REDUCE });
        }
    });
    let (_, events) = chrome_events(&recordings[..1]);
    let is_proxy = |e: &&Value| e["name"] == "ProxyOp AllReduce" && e["args"]["open"] == 1;
    let open: Vec<&Value> = events.iter().filter(is_proxy).collect();
    assert_eq!(open.len(), 100 * 4);
    assert!(open.iter().all(|e| nanos(&e["dur"]) < 10_000), "as long as their operations");
    let tracks = events.iter().filter(|e| e["name"] == "thread_name");
    let mut names: Vec<&str> = tracks.map(|e| e["args"]["name"].as_str().unwrap()).collect();
    names.retain(|name| name.starts_with("Proxy "));
    let count = names.len();
    names.dedup();
    assert_eq!((names.len(), count), (4, 4), "one for each channel and direction");
}

#[test]
fn pftrace_is_small_and_the_same_each_time() {
    let recordings = run(|p| (0..50).for_each(|_| p.collective(Call::ALL_REDUCE)));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let written = pftrace::write(&recordings, &mut first).unwrap();
    pftrace::write(&recordings, &mut second).unwrap();
    assert_eq!(first, second);
    let bytes = first.len() as u64 / written.slices;
    println!("{bytes} bytes a slice");
    assert!(bytes <= 80, "{bytes} bytes a slice");
    let steps = 2 * 50 * 16;
    assert_eq!(written.arrows, StepArrows { linked: steps, ..StepArrows::default() });
}

#[test]
fn processes_at_once_are_written_as_one_after_another() {
    let mut recordings = run(|p| (0..5).for_each(|_| p.collective(Call::ALL_REDUCE)));
    // The same processes again: the numbers of all of them are taken.
    recordings.extend(run(|p| (0..5).for_each(|_| p.collective(Call::ALL_REDUCE))));
    let (mut at_once, mut one_by_one) = (Vec::new(), Vec::new());
    pftrace::write(&recordings, &mut at_once).unwrap();
    let mut exporter = pftrace::Exporter::new(&recordings);
    for at in 0..recordings.len() {
        exporter.process(at, &mut one_by_one).unwrap();
    }
    assert!(at_once == one_by_one);
    let mut alone = Vec::new();
    pftrace::write(&recordings[2..3], &mut alone).unwrap();
    let times = at_once.windows(256).filter(|part| *part == &alone[..256]).count();
    assert_eq!(times, 1, "the numbers of the first came again");
}

/// The lane of a killed process may hold any words.
#[test]
fn any_words_make_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let codes: Vec<u8> = (0..=u8::MAX).filter(|&code| schema(code).is_some()).collect();
    for round in 0..50 {
        let mut words = Vec::new();
        for _ in 0..100 {
            let code = codes[usize::try_from(next() % codes.len() as u64).unwrap()];
            let (len, _) = schema(code).unwrap();
            // Small numbers refer to one another as parents; large ones overflow whatever can
            // overflow.
            let mask = if next() % 2 == 0 { 0xfc00_0000_0000_0007 } else { u64::MAX };
            words.push(next() & 0x7fff_0000_0000_ff00 | u64::from(code));
            words.extend((1..len).map(|_| next() & mask));
        }
        let path = dir.path().join(format!("h-{round}.nscope"));
        let header = Header { closed: true, process: 1023, ..Header::default() };
        let mut writer = Writer::create(&path, header, 0).unwrap();
        writer.define(&Definition::Comm(Comm { ranks: 2, ..Comm::default() })).unwrap();
        writer.append(0, 0, &words).unwrap();
        writer.sync_header().unwrap();
        let recordings = [Recording::open(&path).unwrap()];
        let mut builder = ReportBuilder::default();
        builder.add(&recordings[0]);
        let started: u64 =
            builder.finish().ranks.iter().flat_map(|r| r.events.values()).map(|e| e.started).sum();
        assert!(started > 0);
        pftrace::write(&recordings, &mut Vec::new()).unwrap();
        chrome_events(&recordings);
    }
}
