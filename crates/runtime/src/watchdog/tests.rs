// SPDX-License-Identifier: Apache-2.0
//! The watchdog if many operations hang at once: its cost must grow linearly with their number.

mod conformance;

use super::*;
use ncclscope_recorder::call_counters;
use ncclscope_trace::progress::progress_flags;
use ncclscope_trace::record::{Coll, KernelCh};
use ncclscope_trace::{Detail, Record, Start};
use std::cell::Cell;

thread_local! {
    /// Number of descriptions made, each of which takes time for all that is in flight.
    pub(super) static DESCRIBED: Cell<usize> = const { Cell::new(0) };
}

const HZ: u64 = 1_000_000_000;
/// The time at which everything begins, in ticks.
const BEGIN: u64 = 5 * HZ;

/// A watchdog with one finished operation and `depth` hanging ones on each of `comms`
/// communicators.
fn hung(comms: u16, depth: u64) -> Watchdog {
    let limit = Some(Duration::from_secs(1));
    let mut watchdog = Watchdog::new(OwnProcess::new("h", 7, None), limit, HangActions::default());
    for comm in 0..comms {
        watchdog.comm(&Comm { index: comm, hash: comm.into(), ranks: 2, ..Comm::default() });
        for number in 0..=depth {
            let ticks = if number == 0 { 1 } else { BEGIN };
            let of = |kind| Handle::value(1, kind, 0, u64::from(comm) * (depth + 1) + number);
            let (op, kernel) = (of(EventKind::Coll), of(EventKind::KernelCh));
            let mut put = |handle, parent, detail| {
                let start = Start { ticks, comm, handle, parent, detail };
                watchdog.words(0, start.pack().words());
            };
            put(op, Handle::NULL, Detail::Coll(Coll { count: 1, channels: 1, ..Coll::default() }));
            put(kernel, op, Detail::KernelCh(KernelCh { channel: 0, ptimer: 0 }));
            watchdog.words(0, Record::stop(ticks, op).words());
            if number == 0 {
                watchdog.words(0, Record::stop(ticks, kernel).words());
            }
        }
    }
    watchdog
}

/// Looks, this many half seconds after the beginning.
fn look(watchdog: &mut Watchdog, halves: u64) -> Found {
    let clock = Clock { now: BEGIN + halves * HZ / 2, hz: HZ };
    watchdog.seen.tick(clock.now);
    look_at(watchdog, clock, false, &[])
}

/// Looks after the records were read. The slots of ProxyOps contain these `steps`; `is_live` says
/// whether the ProxyOps are still in their slots.
fn look_at(watchdog: &mut Watchdog, clock: Clock, is_live: bool, steps: &[StepSeen]) -> Found {
    let outside = LiveState { is_live: &|_| is_live, fate: &|_| LaunchFate::Unknown };
    watchdog.detector.look(clock, watchdog.seen, &outside);
    let mut found = Found::default();
    watchdog.recover(clock, &mut found);
    let limit = watchdog.limit_ns.unwrap_or(u64::MAX);
    let suspects = watchdog.detector.suspects(clock, limit, BEFORE_NS);
    watchdog.fire(suspects, clock, steps, &mut found);
    watchdog.tell_heartbeats(clock, steps, &mut found);
    found
}

fn why(watchdog: &mut Watchdog) -> Why {
    watchdog.waits_for((Clock { now: BEGIN + 4 * HZ, hz: HZ }, &[]), 48 << 10)
}

#[test]
fn of_thousands_that_hang_only_those_are_described_that_are_told() {
    let mut watchdog = hung(2000, 2);
    let hangs: Vec<Hang> = (0..8).flat_map(|halves| look(&mut watchdog, halves).hangs).collect();
    assert_eq!((hangs.len(), watchdog.detector.count()), (MOST_AT_ONCE, 2000));
    let lines = hangs[MOST_AT_ONCE - 1].lines();
    assert_eq!(lines.last().unwrap(), "  also stuck: 1984 more", "{lines:?}");
    let named = lines.iter().filter(|line| line.contains("also stuck: operation 2 ("));
    assert_eq!(named.count(), 8, "{lines:?}");
    assert_eq!(DESCRIBED.replace(0), MOST_AT_ONCE);
    let why = why(&mut watchdog);
    assert!((10..200).contains(&why.hangs.len()), "{}", why.hangs.len());
    assert_eq!((why.count, DESCRIBED.get()), (2000, why.hangs.len() + 1), "and how many more");
}

/// The communicators of the records, each with whether it has ended.
fn told(found: &Found) -> Vec<(u16, bool, u64)> {
    let ended = |progress: &Progress| progress.flags & progress_flags::ENDED != 0;
    found.progress().map(|it| (it.comm, ended(it), it.enqueued)).collect()
}

/// NCCL creates and finalizes communicators one after another: the end of each is recorded, and
/// then nothing is kept.
#[test]
fn a_communicator_that_comes_and_goes_between_two_looks_leaves_nothing_behind() {
    // They have no counter cells, as if too many were alive.
    let (counted, uncounted) = (61_000, 61_001);
    let mut watchdog = hung(0, 0);
    for halves in 0..3 {
        // The counts of known communicators are read first; here there are none.
        watchdog.counts.clear();
        assert!(call_counters::watch(counted));
        call_counters::enqueued(counted);
        for index in [counted, uncounted] {
            watchdog.comm(&Comm { index, hash: 9, ranks: 2, ..Comm::default() });
            watchdog.end_comm(index);
        }
        assert_eq!(told(&look(&mut watchdog, 2 * halves)), [(counted, true, 1)]);
        call_counters::leave(counted);
        watchdog.forget_gone();
        assert!(told(&look(&mut watchdog, 2 * halves + 1)).is_empty());
        assert!(watchdog.told.is_empty() && watchdog.own.first().is_none());
        assert_eq!(watchdog.detector.tracker.comms().count(), 0);
    }
}

/// A communicator whose hangs cannot be seen is finalized while recording is stopped.
#[test]
fn a_communicator_that_is_gone_is_not_one_that_cannot_be_seen() {
    let mut watchdog = hung(0, 0);
    watchdog.comm(&Comm { index: 0, hash: 9, ranks: 2, ..Comm::default() });
    let detail = Detail::Coll(Coll { count: 1, channels: 1, ..Coll::default() });
    let (handle, parent) = (Handle::value(1, EventKind::Coll, 0, 1), Handle::NULL);
    let start = Start { ticks: 1, comm: 0, handle, parent, detail };
    watchdog.words(0, start.pack().words());
    let look = |watchdog: &mut Watchdog, halves, sample| {
        look(watchdog, halves);
        let Watchdog { blind, detector, own, seen, .. } = watchdog;
        blind.look(sample, detector.tracker.comms(), own, *seen);
        blind.now()
    };
    (0..13).for_each(|halves| drop(look(&mut watchdog, halves, Some(1))));
    let now = look(&mut watchdog, 13, Some(1));
    assert!(now.len() == 1 && now[0].contains("communicator 0x9"), "{now:?}");
    watchdog.end_comm(0);
    look(&mut watchdog, 14, None);
    watchdog.forget_gone();
    assert_eq!(look(&mut watchdog, 16, Some(1)), [""; 0]);
}
