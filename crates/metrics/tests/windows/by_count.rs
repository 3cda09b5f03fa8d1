// SPDX-License-Identifier: Apache-2.0
//! Windows that end by count or by time add up to one window as long as the job.

use super::offline::{act, play};
use super::{SECOND, collector, merged, near, recording};
use ncclscope_metrics::{Collector, Link, Metrics, Mode, Operations};
use ncclscope_operations::Histogram;
use ncclscope_trace::Recording;
use ncclscope_trace::handle::LANES;
use proptest::prelude::*;
use scripts::{Call, Fault, Process};

/// Interval at which the lanes are drained, ns.
const TICK: u64 = SECOND / 10;

/// Drains as the drain thread does, and ends windows as a rank's meter does: after `events` events
/// (0: never) or `interval` ns, whichever comes first.
fn windows(recording: &Recording, events: u64, interval: u64) -> Vec<Metrics> {
    let mut collector = collector(recording);
    let clock = recording.tick_map();
    let mut lanes: Vec<_> = (0..LANES)
        .map(|lane| recording.records(lane).collect::<Vec<_>>().into_iter().peekable())
        .collect();
    let last = recording.last_ticks();
    let (mut now, mut next, mut windows) = (0, interval, Vec::new());
    while now < last {
        now = (now + TICK).min(last);
        for (lane, records) in lanes.iter_mut().enumerate() {
            while let Some(record) = records.next_if(|record| record.ticks() <= now) {
                collector.record(lane, &record);
            }
        }
        if events > 0 && collector.events() >= events || now >= next {
            windows.push(collector.close(now, &clock));
            assert_eq!(collector.events(), 0, "they are the last window's");
            next = now.saturating_add(interval);
        }
    }
    windows.push(Collector::finish(&mut collector, last, &clock));
    windows
}

/// Asserts that two histograms have the same values, and the same sum except for rounding.
fn assert_same_values(a: &Histogram, b: &Histogram) {
    let buckets = |of: &Histogram| (of.scale(), of.offset(), of.buckets().to_vec());
    assert_eq!((a.count, a.zero_count(), buckets(a)), (b.count, b.zero_count(), buckets(b)));
    assert_eq!((a.min(), a.max()), (b.min(), b.max()));
    assert!(near(a.sum, b.sum), "{} {}", a.sum, b.sum);
}

fn assert_same_operations(a: &Operations, b: &Operations) {
    let counts = |of: &Operations| (of.count, of.bytes, of.transfers, of.transfer_bytes);
    assert_eq!(counts(a), counts(b));
    assert_same_values(&a.duration, &b.duration);
    assert_same_values(&a.bus_bandwidth, &b.bus_bandwidth);
    assert_same_values(&a.algo_bandwidth, &b.algo_bandwidth);
    assert_same_values(&a.compat.kernel, &b.compat.kernel);
    assert_same_values(&a.compat.proxy, &b.compat.proxy);
    assert!(near(a.transfer_seconds, b.transfer_seconds));
}

fn assert_same_link(a: &Link, b: &Link) {
    let same = |of: &Link| (of.transfers, of.bytes, of.fit.least.clone());
    assert_eq!(same(a), same(b));
    assert_same_values(&a.size, &b.size);
    assert_same_values(&a.seconds, &b.seconds);
    let waits = |of: &Link| [of.waits.gpu, of.waits.peer, of.waits.network, of.waits.flush];
    assert!(waits(a).into_iter().zip(waits(b)).all(|(a, b)| near(a, b)));
    assert_eq!(a.line(Mode::Min), b.line(Mode::Min));
    assert_eq!(a.line(Mode::Avg).is_some(), b.line(Mode::Avg).is_some());
}

/// Asserts that whole numbers are equal, and sums of seconds equal except for rounding.
fn assert_same(a: &Metrics, b: &Metrics) {
    assert_eq!((&a.events, &a.lost), (&b.events, &b.lost));
    assert!(a.operations.keys().eq(b.operations.keys()));
    a.operations
        .values()
        .zip(b.operations.values())
        .for_each(|(a, b)| assert_same_operations(a, b));
    assert!(a.links.keys().eq(b.links.keys()));
    a.links.values().zip(b.links.values()).for_each(|(a, b)| assert_same_link(a, b));
    assert!(a.channels.keys().eq(b.channels.keys()));
    for (a, b) in a.channels.values().zip(b.channels.values()) {
        assert_eq!((a.transfers, a.bytes, a.kernels), (b.transfers, b.bytes, b.kernels));
        assert!(near(a.seconds, b.seconds) && near(a.kernel_seconds, b.kernel_seconds));
    }
    let states = |of: &Metrics| {
        let ranks = of.ranks.values();
        ranks.fold((0, 0), |sum, rank| (sum.0 + rank.in_flight, sum.1 + rank.gap.count))
    };
    assert_eq!(states(a), states(b));
    assert!(a.proxies.keys().eq(b.proxies.keys()));
    for (a, b) in a.proxies.values().zip(b.proxies.values()) {
        assert!(a.operations == b.operations && near(a.busy, b.busy), "{a:?} {b:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The windows add up to a single one, whatever ends them.
    #[test]
    fn any_count_and_any_time_add_up_to_one_window(
        acts in proptest::collection::vec(act(), 1..12),
        events in prop_oneof![Just(0), 1u64..300],
        interval in prop_oneof![Just(u64::MAX), TICK..30 * SECOND],
    ) {
        let mut process = Process::new(0, 2);
        play(&mut process, &acts);
        let recording = recording(&process);
        let windows = windows(&recording, events, interval);
        let whole = self::windows(&recording, 0, u64::MAX);
        prop_assert_eq!(whole.len(), 1);
        assert_same(&merged(&windows), &whole[0]);
    }
}

#[test]
fn a_full_window_ends_before_its_time_and_waits_for_nothing() {
    let mut process = Process::new(0, 2);
    process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    for _ in 0..40 {
        process.now += SECOND / 4;
        process.collective(Call::ALL_REDUCE);
    }
    let recording = recording(&process);
    let (by_time, by_count) =
        (windows(&recording, 0, u64::MAX), windows(&recording, 100, u64::MAX));
    assert_eq!(by_time.len(), 1);
    let events: Vec<u64> = by_count.iter().map(|w| w.events.values().sum()).collect();
    let (_, full) = events.split_last().unwrap();
    // A window ends with the drain that fills it; one drain reads the events of one operation.
    assert!(full.len() > 5 && full.iter().all(|count| (100..150).contains(count)), "{events:?}");
    let operations = |w: &Metrics| w.operations.values().map(|sums| sums.count).sum::<u64>();
    let settled: Vec<u64> = by_count.iter().map(operations).collect();
    assert_eq!(settled.iter().sum::<u64>(), 40);
    assert!(settled[2..].iter().all(|count| *count > 0), "{settled:?}");
    // The hanging operation is reported in each window from the first on.
    let in_flight = |w: &Metrics| w.ranks.values().map(|rank| rank.in_flight).sum::<u64>();
    assert!(by_count.iter().all(|w| in_flight(w) >= 1));
    assert_eq!(in_flight(by_count.last().unwrap()), 1);
    assert_same(&merged(&by_count), &by_time[0]);
}
