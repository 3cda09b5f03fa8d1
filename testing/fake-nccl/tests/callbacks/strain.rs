// SPDX-License-Identifier: Apache-2.0
//! Overload, signals during callbacks, small stacks, and an allocator that rejects calls from
//! callbacks.

use crate::common::{
    Folded, Found, Played, allocator, at_once, balance, command, exact, only, play_with, survive,
};
use ncclscope_trace::record::Detail;
use ncclscope_trace::{EventKind as K, Record, Start};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

/// Operations after a burst.
const PACED: usize = 200;
/// Operations of a burst that fit the smallest lane.
const FITS: usize = 150;

/// Stops and states of each event in the script, which are separate records except for those of
/// steps.
fn ends(kind: K, version: usize) -> u64 {
    match kind {
        K::Coll => 1,
        // The progress of a ProxyOp is reported from version 4 on.
        K::ProxyOp => {
            if version >= 4 {
                2
            } else {
                1
            }
        }
        _ => 0,
    }
}

/// Number of records by kind: starts, stops and states, and whole steps.
fn records(played: &Played) -> BTreeMap<K, u64> {
    let mut records = BTreeMap::new();
    for lane in 0..played.recording.lanes().len() {
        for record in played.recording.records(lane) {
            let kind = match record {
                Record::Start(start) => start.handle.kind(),
                Record::Stop { handle, .. } | Record::State { handle, .. } => handle.kind(),
                Record::Step(_) => K::ProxyStep,
                Record::ClockSync(_)
                | Record::Mark(_)
                | Record::Heartbeat(_)
                | Record::PairCount(_)
                | Record::Unknown { .. } => continue,
            };
            *records.entry(kind).or_default() += 1;
        }
    }
    records
}

/// The number of missing records that a recording counts, over all kinds.
#[derive(Debug, Default)]
struct Lost {
    lanes: u64,
    overwritten: u64,
    unwritten: u64,
}

/// Checks, kind by kind, that all played events are in the recording or counted as lost.
fn account(played: &Played, version: usize) -> Lost {
    let (header, lanes) = (played.recording.header(), played.recording.lanes());
    let records = records(played);
    let mut lost = Lost::default();
    for kind in [K::Coll, K::ProxyOp, K::ProxyStep] {
        let k = kind.index();
        let (starts, refused) = played.counts[k];
        assert!(starts > PACED as u64, "v{version} {kind}");
        // Events that got no handle have no stops or states.
        let due = starts + (starts - refused) * ends(kind, version);
        let in_lanes = lanes.iter().map(|l| l.header.lost[k] + l.header.lost_ends[k]).sum::<u64>()
            + header.without_memory()[k];
        let held = records.get(&kind).copied().unwrap_or(0);
        let parts = [held, in_lanes, header.overwritten[k], header.unwritten[k]];
        assert_eq!(parts.iter().sum::<u64>(), due, "v{version} {kind}: {parts:?}");
        lost.lanes += in_lanes;
        lost.overwritten += header.overwritten[k];
        lost.unwritten += header.unwritten[k];
    }
    assert_eq!(header.stale, 0, "v{version}");
    lost
}

/// The operations after the burst, each complete.
fn recovers(played: &Played, version: usize) {
    let found = Found::read_end(&played.recording);
    let second = played.recording.comms().iter().find(|c| c.hash == 0xbeef || c.index == 1);
    let second = second.expect("it is defined").index;
    let of = |kind| {
        let all = found.all(kind).into_iter().filter(|start| start.comm == second);
        all.map(|start| start.handle).collect::<Vec<_>>()
    };
    let (colls, ops) = (of(K::Coll), of(K::ProxyOp));
    // All operations, unless the machine delays the drain thread: missing ones are counted.
    let recorded = [colls.len(), ops.len()];
    assert!(recorded.iter().all(|n| (1..=PACED).contains(n)), "v{version}: {recorded:?}");
    let steps = found.steps.iter().filter(|(op, _)| ops.contains(op)).count();
    assert!((1..=ops.len()).contains(&steps), "v{version}: {steps} steps of {recorded:?}");
}

/// Each lane has the first events of a burst: later ones are lost.
fn keeps_the_first(played: &Played, version: usize) {
    let mut lanes = 0;
    for lane in 0..played.recording.lanes().len() {
        let mut seqs = Vec::new();
        for record in played.recording.records(lane) {
            if let Record::Start(Start { comm: 0, detail: Detail::Coll(coll), .. }) = record {
                seqs.push(coll.seq);
            }
        }
        let Some(&first) = seqs.first() else { continue };
        lanes += 1;
        let unbroken = seqs.iter().zip(first..).take_while(|(seq, n)| **seq == *n).count();
        assert!(unbroken >= FITS, "v{version}, lane {lane}: {unbroken} of {}", seqs.len());
        assert!(seqs.is_sorted(), "v{version}, lane {lane}");
    }
    assert!(lanes > 0, "v{version}");
}

#[test]
fn a_burst_is_recorded_or_counted_and_what_follows_is_recorded() {
    for (version, threads, ops, ring, lanes) in [
        (1, "2", "40000", "64", "/dev/shm"),
        (6, "2", "40000", "64", "/dev/shm"),
        (6, "4", "20000", "64", "off"),
    ] {
        let options = ["--ops", ops, "--threads", threads];
        let env = [("NCCLSCOPE_RING_MB", ring), ("NCCLSCOPE_LANES", lanes)];
        let played = play_with(version, "burst", false, &options, &env);
        let lost = account(&played, version);
        let rate = played.text.lines().find(|line| line.starts_with("rate ")).unwrap();
        println!("v{version}, {threads} threads, lanes {lanes}: {rate} operations/s, {lost:?}");
        assert!(lost.lanes > 0, "v{version}: it was too much");
        assert_eq!((lost.overwritten, lost.unwritten), (0, 0), "v{version}: the ring is ample");
        keeps_the_first(&played, version);
        recovers(&played, version);
    }
}

#[test]
fn what_a_small_ring_lets_go_is_counted() {
    let options = ["--ops", "100000", "--threads", "2"];
    let played = play_with(6, "burst", false, &options, &[("NCCLSCOPE_RING_MB", "1")]);
    let lost = account(&played, 6);
    assert!(lost.overwritten > 0, "{lost:?}");
    recovers(&played, 6);
}

#[test]
fn a_small_stack_is_enough_for_every_callback() {
    at_once(|version| {
        let (played, found) = exact(version, "stacks", &["--ops", "3"], Folded::default());
        assert_eq!(found.all(K::P2p).len(), 3, "v{version}");
        assert_eq!(played.recording.comms().len(), 1 + 3, "v{version}");
    });
}

#[test]
fn the_hosts_signal_handlers_may_interrupt_anything() {
    for version in [1, 6] {
        let options = ["--ops", "3000", "--threads", "2"];
        let env = [("NCCLSCOPE_RING_MB", "1024")];
        let played = play_with(version, "interrupted", false, &options, &env);
        balance(&played, &Found::read(&played.recording), Folded::default());
    }
}

/// NCCL never makes callbacks in a signal handler. Callbacks there may corrupt the lane's records,
/// but not the host.
#[test]
fn a_host_whose_signal_handlers_make_callbacks_survives() {
    for version in [1, 6] {
        let dir = tempfile::tempdir().unwrap();
        let options = ["--ops", "3000", "--threads", "2"];
        let mut command = command(version, "reentered", dir.path(), &options);
        survive(&mut command, "callbacks in handlers");
        let recording = only(dir.path(), "callbacks in handlers");
        assert_eq!(recording.comms().len(), 2, "v{version}: it can be read");
    }
}

/// A host's allocator that aborts the process if a callback allocates or frees.
#[test]
fn no_callback_calls_the_hosts_allocator() {
    let run = |version: usize, script: &str| {
        let dir = tempfile::tempdir().unwrap();
        let options = ["--ops", "20", "--threads", "4"];
        let mut command = command(version, script, dir.path(), &options);
        command.env("LD_PRELOAD", allocator()).output().unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let planted = run(6, "allocates");
    let out = text(&planted.stdout);
    if out.contains("allocated 0\n") {
        println!("skipped: a sanitizer's allocator is in the way");
        return;
    }
    assert_eq!(planted.status.signal(), Some(6), "one that allocates is found: {planted:?}");
    assert!(text(&planted.stderr).contains("malloc inside a callback"), "{planted:?}");
    for version in [1, 4, 7] {
        for script in ["allreduce", "stacks", "chaos", "twice", "wild", "unmatched", "threads"] {
            let output = run(version, script);
            assert!(output.status.success(), "v{version} {script}: {output:?}");
            let seen = text(&output.stdout);
            let seen = seen.lines().find_map(|l| l.strip_prefix("allocated ")).unwrap();
            assert!(seen.parse::<u64>().unwrap() > 0, "v{version} {script}");
        }
    }
}
