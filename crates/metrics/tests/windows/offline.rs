// SPDX-License-Identifier: Apache-2.0
//! Windows of any lengths add up to the offline analysis of the same recording.

use super::{SECOND, merged, near, recording, windows};
use ncclscope_metrics::{Collector, CommKey, ENOUGH_SENDS, Metrics, Mode};
use ncclscope_operations::peers::LinkKey;
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_operations::{Completion, Event, Timeline, Timing, operations};
use ncclscope_trace::record::{CeBatch, CeColl, CeSync, KernelCh, ProxyOp, step_flags};
use ncclscope_trace::{Detail, EventKind, Handle, Record, Recording, State, Step, TickMap};
use proptest::prelude::*;
use scripts::{API, Call, Fault, PROXY, Process};
use std::collections::BTreeMap;

/// By function, algorithm, protocol, channels and timing: operations, bytes, count and sum of
/// durations.
type OperationTotals = BTreeMap<(String, String, String, u16, Timing), (u64, u64, u64, f64)>;

fn online_operations(metrics: &Metrics) -> OperationTotals {
    let mut totals = OperationTotals::new();
    for (key, sums) in &metrics.operations {
        let [func, algo, proto] = [&key.func, &key.algo, &key.proto].map(|name| name.to_string());
        let total = totals.entry((func, algo, proto, key.channels, key.timing)).or_default();
        total.0 += sums.count;
        total.1 += sums.bytes;
        total.2 += sums.duration.count;
        total.3 += sums.duration.sum;
    }
    totals
}

fn offline_operations(timeline: &Timeline<'_>) -> OperationTotals {
    let mut totals = OperationTotals::new();
    let text = |id| timeline.recording().string(id).unwrap_or_default().to_owned();
    let over = operations(timeline).into_iter().filter(|op| op.completion != Completion::Open);
    for op in over {
        let (func, algo, proto) = (text(op.func), text(op.algo), text(op.proto));
        let key = (func, algo, proto, op.channels.unwrap_or(0), op.timing);
        let total = totals.entry(key).or_default();
        total.0 += 1;
        total.1 += op.bytes.unwrap_or(0);
        total.2 += u64::from(op.duration_ns.is_some());
        total.3 += op.duration_ns.unwrap_or(0.0) / 1e9;
    }
    totals
}

/// Asserts that the metrics equal the offline analysis in everything that both have.
fn assert_as_offline(recording: &Recording, metrics: &Metrics) {
    let timeline = Timeline::read(recording, true);
    let (online, offline) = (online_operations(metrics), offline_operations(&timeline));
    assert_eq!(online.len(), offline.len(), "{online:?} {offline:?}");
    for ((key, a), (other, b)) in online.iter().zip(&offline) {
        assert_eq!((key, a.0, a.1, a.2), (other, b.0, b.1, b.2));
        assert!(near(a.3, b.3), "{key:?}: {} s, offline {} s", a.3, b.3);
    }
    assert_links(&timeline, metrics);
    assert_channels(&timeline, metrics);
    let all = operations(&timeline);
    let open = all.iter().filter(|op| op.completion == Completion::Open).count() as u64;
    assert_eq!(metrics.ranks.values().map(|rank| rank.in_flight).sum::<u64>(), open);
    let gaps: u64 = metrics.ranks.values().map(|rank| rank.gap.count).sum();
    assert_eq!(gaps, (all.len() as u64 - open).saturating_sub(1), "one communicator");
    let mut events = BTreeMap::new();
    for (_, event) in timeline.events() {
        *events.entry(event.kind().name()).or_insert(0) += 1;
    }
    let steps = timeline.steps().len() as u64 + timeline.orphan_steps();
    if steps > 0 {
        events.insert(EventKind::ProxyStep.name(), steps);
    }
    assert_eq!(metrics.events, events);
    assert_proxies(&timeline, metrics);
}

fn assert_proxies(timeline: &Timeline<'_>, metrics: &Metrics) {
    let last = timeline.recording().last_ticks();
    let moved = |e: &&Event| e.stop.is_some() || e.first_state.is_some() || e.steps.is_some();
    let ops = timeline.events().map(|(_, e)| e).filter(|e| e.kind() == EventKind::ProxyOp);
    let mut ops: Vec<_> =
        ops.filter(moved).map(|e| (e.start.ticks, e.stop.unwrap_or(last))).collect();
    ops.sort_unstable();
    let (mut busy, mut until) = (0, 0);
    for (start, stop) in ops {
        busy += stop.saturating_sub(start.max(until));
        until = until.max(stop);
    }
    let online: f64 = metrics.proxies.values().map(|proxy| proxy.busy).sum();
    assert!(near(online, timeline.clock().duration_ns(busy) / 1e9), "{online} s, not {busy}");
    let ops = timeline.events().filter(|(_, e)| e.kind() == EventKind::ProxyOp);
    let stopped = ops.filter(|(_, e)| e.stop.is_some()).count() as u64;
    assert_eq!(metrics.proxies.values().map(|proxy| proxy.operations).sum::<u64>(), stopped);
}

fn assert_links(timeline: &Timeline<'_>, metrics: &Metrics) {
    let offline: BTreeMap<LinkKey, _> = timeline
        .links()
        .iter()
        .filter(|(_, link)| link.transfers > 0)
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(key, link)| (*key, *link))
        .collect();
    let is_ours = |key: &&ncclscope_metrics::LinkKey| key.comm != CommKey::others();
    assert_eq!(metrics.links.keys().filter(is_ours).count(), offline.len());
    for (key, link) in metrics.links.iter().filter(|(key, _)| is_ours(key)) {
        let comms = timeline.recording().comms();
        let comm = comms.iter().position(|comm| comm.hash == key.comm.hash).unwrap();
        let (rank, peer, is_send) = (key.rank, key.peer, key.is_send);
        let other = &offline[&LinkKey { comm, rank, peer, is_send }];
        assert_eq!((link.transfers, link.bytes), (other.transfers, other.bytes));
        assert_eq!((link.size.count, link.seconds.count), (other.sized, other.transfers));
        let waits = if is_send {
            [link.waits.gpu, link.waits.peer, link.waits.network]
        } else {
            [link.waits.network, link.waits.flush, link.waits.gpu]
        };
        for (wait, ns) in waits.into_iter().zip(other.waits_ns) {
            assert!(near(wait, ns / 1e9), "{key:?}: {wait} s, offline {ns} ns");
        }
        let line = (link.line(Mode::Avg), other.fit.line());
        let is_line = line.1.is_none_or(|line| line.slope > 0.0);
        let is_line = other.fit.count() >= ENOUGH_SENDS && is_line;
        assert_eq!(line.0.is_some(), is_line, "{line:?}");
        if let (Some(online), Some(offline)) = line {
            assert!((online.rate_mb_s * offline.slope - 1.0).abs() < 1e-6, "{line:?}");
        }
    }
}

fn assert_channels(timeline: &Timeline<'_>, metrics: &Metrics) {
    let mut offline: BTreeMap<(u8, bool), (u64, u64, u64)> = BTreeMap::new();
    for (id, step) in timeline.steps().iter().filter(|(_, s)| s.has(step_flags::STOPPED)) {
        let event = timeline.event(*id);
        // ProxyOps for other processes count, too.
        let Detail::ProxyOp(op) = event.start.detail else { continue };
        let sums = offline.entry((op.channel, op.is_send)).or_default();
        sums.0 += 1;
        sums.1 += u64::from(step.size);
    }
    for (_, event) in timeline.events() {
        let Detail::KernelCh(KernelCh { channel, ptimer }) = event.start.detail else { continue };
        let valid = event.ptimer_stop.is_some_and(|(stop, _)| ptimer != 0 && stop >= ptimer);
        if event.stop.is_some() && valid {
            offline.entry((channel, true)).or_default().2 += 1;
        }
    }
    let mut online: BTreeMap<(u8, bool), (u64, u64, u64)> = BTreeMap::new();
    for (key, channel) in &metrics.channels {
        let sums = online.entry((key.channel, key.is_send)).or_default();
        sums.0 += channel.transfers;
        sums.1 += channel.bytes;
        sums.2 += channel.kernels;
    }
    assert_eq!(online, offline);
}

/// A copy-engine collective of two batches; if `is_stuck`, the last batch does not stop.
fn copy_engine(process: &mut Process, is_stuck: bool) {
    let (func, datatype) = (process.string("AllGather"), process.string("ncclFloat32"));
    let detail = CeColl { func, datatype, count: 1 << 10, ..CeColl::default() };
    let coll = process.start(API, Handle::NULL, Detail::CeColl(detail));
    let sync = process.start(API, coll, Detail::CeSync(CeSync { complete: false, ranks: 2 }));
    process.stop(API, sync);
    let batch = Detail::CeBatch(CeBatch { ops: 1, bytes: 4096, intra_sync: false });
    let batch = process.start(API, coll, batch);
    process.stop(API, coll);
    if !is_stuck {
        process.stop(API, batch);
    }
}

/// A ProxyOp of another process that this process's proxy thread works on.
fn foreign_op(process: &mut Process) {
    let op = ProxyOp { pid: 1, steps: 1, is_send: true, foreign: true, ..ProxyOp::default() };
    let op = process.start(PROXY, Handle(0x77), Detail::ProxyOp(op));
    process.state(PROXY, op, State::PROXY_OP_IN_PROGRESS, 0);
    let flags = step_flags::IS_SEND | step_flags::STOPPED | step_flags::THIRD | step_flags::SIZED;
    let (ticks, op_ref) = (process.now, op.op_ref());
    process.step(PROXY, &Step { ticks, flags, op_ref, size: 8, end: 9, ..Step::default() });
    process.stop(PROXY, op);
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Collective(Call),
    SendRecv(u64),
    Copy,
    Foreign,
    StuckCopy,
}

pub(crate) fn play(process: &mut Process, acts: &[(Act, u64)]) {
    for &(act, pause) in acts {
        match act {
            Act::Collective(call) => {
                // A process with an operation within its node is its own peer.
                let ranks = process.comm.ranks;
                process.comm.ranks = if call.fault == Fault::Local { 1 } else { ranks };
                process.collective(call);
                process.comm.ranks = ranks;
            }
            Act::SendRecv(count) => process.send_recv(1, count),
            Act::Copy => copy_engine(process, false),
            Act::StuckCopy => copy_engine(process, true),
            Act::Foreign => foreign_op(process),
        }
        process.now += pause;
    }
}

pub(crate) fn act() -> impl Strategy<Value = (Act, u64)> {
    let fault = prop_oneof![
        5 => Just(Fault::None),
        1 => Just(Fault::Hang),
        1 => Just(Fault::Local),
        1 => Just(Fault::Enqueued),
        1 => Just(Fault::NoKernel),
    ];
    let func = prop_oneof![Just("AllReduce"), Just("AllGather"), Just("Broadcast")];
    let size = (1u64..1 << 20, 1u8..4, 1u32..5, 1u32..1 << 20);
    let call =
        (fault, func, size).prop_map(|(fault, func, (count, channels, steps, step_bytes))| {
            Act::Collective(Call { func, count, channels, steps, step_bytes, fault })
        });
    let act = prop_oneof![
        6 => call,
        2 => (1u64..1 << 16).prop_map(Act::SendRecv),
        1 => Just(Act::Copy),
        1 => Just(Act::StuckCopy),
        1 => Just(Act::Foreign),
    ];
    (act, prop_oneof![0u64..1000, SECOND..2 * SECOND])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Windows of any lengths add up to the offline result.
    #[test]
    fn any_windows_add_up_to_the_offline_report(
        acts in proptest::collection::vec(act(), 1..12),
        shares in proptest::collection::vec(0.0..1.0f64, 0..12),
    ) {
        let mut process = Process::new(0, 2);
        play(&mut process, &acts);
        let recording = recording(&process);
        let mut rounds: Vec<u64> = shares.iter().map(|share| {
            to_u64(share * to_f64(process.now))
        }).collect();
        rounds.sort_unstable();
        let windows = windows(&recording, &rounds);
        assert_as_offline(&recording, &merged(&windows));
    }

    /// Records with random bits neither stop the collector nor make it grow.
    #[test]
    fn garbage_is_survived(
        words in proptest::collection::vec((0u8..0x22, any::<[u64; 11]>()), 0..200),
        shift in 0u32..64,
    ) {
        let mut collector = Collector::default();
        let clock = TickMap::new(vec![], 1_000_000_000);
        let mut steps = 0;
        for (at, (code, mut words)) in words.into_iter().enumerate() {
            words[0] = words[0] & !0xff | u64::from(code);
            // Few different handles, so that records refer to one another.
            words[2] >>= shift;
            if let Some(record) = Record::unpack(&words) {
                steps += u64::from(matches!(record, Record::Step(_)));
                collector.record(at % 70, &record);
            }
            if at % 50 == 49 {
                let window = collector.close(words[1], &clock);
                steps -= window.events.get("ProxyStep").unwrap_or(&0);
            }
        }
        let last = collector.finish(u64::MAX, &clock);
        prop_assert_eq!(last.events.get("ProxyStep").copied().unwrap_or(0), steps);
    }
}
