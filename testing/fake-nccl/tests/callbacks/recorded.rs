// SPDX-License-Identifier: Apache-2.0
//! Replays of real NCCL releases' callbacks: the recording of each thread has the file's lines of
//! that thread, in order, with their parents, states and sizes.

use crate::common::{Found, play};
use fake_nccl::play::bit;
use fake_nccl::replay::{Call, Fields, Verb, parse};
use ncclscope_trace::record::{Detail, GroupApi, KernelCh, Step, step_flags};
use ncclscope_trace::{EventKind, Handle, Record, Recording};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Folders of files, the API version that the release spoke, and how many events of each kind
/// rank 0 had: Group, Coll, P2p, ProxyOp, ProxyStep, KernelCh, GroupApi, CollApi, P2pApi,
/// KernelLaunch.
const RELEASES: [(&str, usize, [usize; 10]); 5] = [
    ("2.23.4-socket", 1, [11, 13, 2, 42, 256, 0, 0, 0, 0, 0]),
    ("2.27.7-socket", 4, [11, 13, 2, 42, 144, 25, 0, 0, 0, 0]),
    ("2.28.9-socket", 5, [11, 13, 2, 42, 144, 25, 9, 11, 2, 9]),
    ("2.30.7-socket", 6, [10, 12, 2, 40, 148, 22, 9, 11, 2, 8]),
    ("2.32.3-socket", 6, [10, 12, 2, 40, 148, 22, 9, 11, 2, 8]),
];

const KINDS: [EventKind; 10] = [
    EventKind::Group,
    EventKind::Coll,
    EventKind::P2p,
    EventKind::ProxyOp,
    EventKind::ProxyStep,
    EventKind::KernelCh,
    EventKind::GroupApi,
    EventKind::CollApi,
    EventKind::P2pApi,
    EventKind::KernelLaunch,
];

/// A record or a line, without times.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Entry {
    Start(Handle, Handle, Vec<u64>),
    Stop(Handle),
    State(Handle, u8, u64),
    /// Operation, step number, flags, repeats, size.
    Step(Handle, u32, u8, u16, u32),
}

fn folder() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/callbacks");
    if path.is_dir() {
        return Some(path);
    }
    // The test harness captures what macros print, so this writes to stderr directly.
    let line = format!("skipped: no recorded callbacks at {}\n", path.display());
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}

#[test]
fn each_thread_of_each_release_is_recorded_line_by_line() {
    let Some(folder) = folder() else { return };
    for (release, version, kinds) in RELEASES {
        for rank in 0..2 {
            let file = folder.join(release).join(format!("rank{rank}.txt"));
            let name = format!("{release} rank {rank}");
            let calls = parse(&std::fs::read_to_string(&file).unwrap());
            let played = play(version, "replay", false, &["--file", file.to_str().unwrap()]);
            let found = Found::read(&played.recording);
            if rank == 0 {
                let expected = KINDS.into_iter().zip(kinds).filter(|k| k.1 != 0).collect();
                assert_eq!(found.kinds(), expected, "{name}");
            }
            let header = played.recording.header();
            assert_eq!((header.stale, header.unknown_events), (0, 0), "{name}");
            assert!(header.without_memory().iter().all(|&n| n == 0), "{name}");
            let handles = handles(&played.text);
            let expected = by_thread(&calls, &handles, version);
            let mut threads = 0;
            for (thread, lines) in expected {
                let Some(lane) = lines.iter().find_map(lane) else { continue };
                let records = entries(&played.recording, lane, version);
                for (i, (line, record)) in lines.iter().zip(&records).enumerate() {
                    assert_eq!(line, record, "{name}, thread {thread}, line {i}");
                }
                assert_eq!(lines.len(), records.len(), "{name}, thread {thread}");
                threads += 1;
            }
            let used = played.recording.lanes().iter().filter(|l| l.header.used).count();
            assert_eq!((threads, threads >= 3), (used, true), "{name}");
            let comm = &played.recording.comms()[0];
            assert_eq!((comm.api_version as usize, comm.rank), (version, init_rank(version, rank)));
        }
    }
}

/// The rank that `init` gets; versions 1 to 3 do not have it.
const fn init_rank(version: usize, rank: i32) -> i32 {
    if version >= 4 { rank } else { -1 }
}

/// The lane of an event that started on it.
fn lane(entry: &Entry) -> Option<usize> {
    match entry {
        Entry::Start(handle, ..) => Some(handle.lane()),
        _ => None,
    }
}

fn handles(text: &str) -> HashMap<u32, Handle> {
    let mut handles = HashMap::from([(0, Handle::NULL)]);
    for line in text.lines() {
        if let ["handle", id, handle] = line.split(' ').collect::<Vec<_>>().as_slice() {
            let handle = Handle(u64::from_str_radix(handle, 16).unwrap());
            assert!(!handle.is_null(), "event {id} was refused");
            handles.insert(id.parse().unwrap(), handle);
        }
    }
    handles
}

/// The recording that each thread should have, from the file's lines.
fn by_thread(
    calls: &[Call],
    handles: &HashMap<u32, Handle>,
    version: usize,
) -> BTreeMap<u64, Vec<Entry>> {
    let mut threads: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
    let mut steps: HashMap<u32, Entry> = HashMap::new();
    let mut sends: HashMap<u32, u8> = HashMap::new();
    for call in calls {
        let lines = threads.entry(call.thread).or_default();
        match &call.verb {
            Verb::Start { id, bit, parent, fields } if *bit == bit::PROXY_STEP => {
                let number = u32::try_from(fields.number("step")).unwrap();
                let flags = sends[parent] | step_flags::STOPPED;
                steps.insert(*id, Entry::Step(handles[parent], number, flags, 0, 0));
            }
            Verb::Start { id, bit, parent, fields } => {
                let is_send = u8::try_from(fields.number("isSend")).unwrap();
                sends.insert(*id, is_send * step_flags::IS_SEND);
                let facts = expected_fields(*bit, fields, version);
                lines.push(Entry::Start(handles[id], handles[parent], facts));
            }
            Verb::Stop(id) => match steps.remove(id) {
                Some(step) => lines.push(step),
                None => lines.push(Entry::Stop(handles[id])),
            },
            Verb::State { id, state, arg } => match steps.get_mut(id) {
                Some(step) => reach(step, *state, arg.filter(|_| version >= 4)),
                None => {
                    let told = *state == 22 || *state < 8;
                    let arg = arg.filter(|_| told).unwrap_or(0);
                    lines.push(Entry::State(handles[id], u8::try_from(*state).unwrap(), arg));
                }
            },
            Verb::Init(_) | Verb::Finalize => {}
        }
    }
    assert!(steps.is_empty(), "the files stop every step");
    threads
}

fn reach(step: &mut Entry, state: i32, arg: Option<u64>) {
    let Entry::Step(_, _, flags, repeats, size) = step else { unreachable!() };
    if state == 20 && *flags & step_flags::SECOND != 0 {
        *repeats += 1;
    }
    *flags |= match state {
        8 | 10 => step_flags::FIRST,
        20 | 11 => step_flags::SECOND,
        _ => step_flags::THIRD,
    };
    if let Some(bytes) = arg.filter(|_| matches!(state, 9 | 11)) {
        *flags |= step_flags::SIZED;
        *size = u32::try_from(bytes).unwrap();
    }
}

/// The numeric fields of a start in the file; none in version 1.
fn expected_fields(bit: u64, fields: &Fields, version: usize) -> Vec<u64> {
    let names: &[&str] = match bit {
        _ if version == 1 => &[],
        bit::COLL => &["seq", "count", "root", "nCh", "nWarps"],
        bit::P2P => &["count", "peer"],
        bit::PROXY_OP => &["ch", "peer", "nSteps", "chunk", "isSend", "rank"],
        bit::KERNEL_CH => &["ch", "pTimer"],
        bit::GROUP_API => &["graph", "depth"],
        bit::COLL_API => &["count", "root"],
        bit::P2P_API => &["count"],
        _ => &[],
    };
    names.iter().map(|name| fields.number(name)).collect()
}

fn recorded_fields(detail: &Detail, version: usize) -> Vec<u64> {
    let wide = |n: i32| u64::from(n.cast_unsigned());
    match detail {
        _ if version == 1 => vec![],
        Detail::Coll(d) => {
            vec![d.seq, d.count, wide(d.root), u64::from(d.channels), u64::from(d.warps)]
        }
        Detail::P2p(d) => vec![d.count, wide(d.peer)],
        Detail::ProxyOp(d) => {
            assert!(!d.foreign, "{d:?}");
            let sizes = [d.steps, d.chunk_bytes, u32::from(d.is_send)].map(u64::from);
            let mut all = vec![u64::from(d.channel), wide(d.peer)];
            all.extend(sizes);
            all.push(wide(d.rank));
            all
        }
        Detail::KernelCh(KernelCh { channel, ptimer }) => vec![u64::from(*channel), *ptimer],
        Detail::GroupApi(GroupApi { graph, depth }) => vec![u64::from(*graph), wide(*depth)],
        Detail::CollApi(d) => vec![d.count, wide(d.root)],
        Detail::P2pApi(d) => vec![d.count],
        _ => vec![],
    }
}

fn entries(recording: &Recording, lane: usize, version: usize) -> Vec<Entry> {
    let mut ops: HashMap<u32, Handle> = HashMap::new();
    let mut all = Vec::new();
    for record in recording.records(lane) {
        match record {
            Record::Start(s) => {
                if s.handle.kind() == EventKind::ProxyOp {
                    ops.insert(s.handle.op_ref(), s.handle);
                }
                let parent =
                    if s.handle.kind() == EventKind::Group { Handle::NULL } else { s.parent };
                all.push(Entry::Start(s.handle, parent, recorded_fields(&s.detail, version)));
            }
            Record::Stop { handle, .. } => all.push(Entry::Stop(handle)),
            Record::State { handle, state, arg, .. } => {
                all.push(Entry::State(handle, state.0, arg));
            }
            Record::Step(Step { step, flags, repeats, size, op_ref, .. }) => {
                all.push(Entry::Step(ops[&op_ref], step, flags, repeats, size));
            }
            Record::ClockSync(_)
            | Record::Mark(_)
            | Record::Heartbeat(_)
            | Record::PairCount(_)
            | Record::Unknown { .. } => {}
        }
    }
    all
}
