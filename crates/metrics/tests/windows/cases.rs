// SPDX-License-Identifier: Apache-2.0
//! The metrics of one operation, link or loss.

use super::{SECOND, collector, measured, merged, near, recording, windows};
use ncclscope_metrics::encode::{Labels, families};
use ncclscope_metrics::{Collector, CommKey, Compat, Metrics, Mode};
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::{Histogram, Timeline, Timing};
use ncclscope_trace::handle::LANES;
use ncclscope_trace::progress::{Progress, progress_flags};
use ncclscope_trace::record::{
    ApiCall, Coll, GroupApi, KernelCh, KernelLaunch, P2p, ProxyOp, STEP_SHIFT, step_flags,
};
use ncclscope_trace::{
    Comm, CommDevice, Detail, EventKind, Handle, Record, Recording, Start, State, Step, TickMap,
};
use scripts::{API, Call, Fault, PROXY, Process};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn one_all_reduce_is_measured_whole() {
    let mut process = Process::new(0, 2);
    process.collective(Call::ALL_REDUCE);
    let metrics = measured(&process, &[]);
    let (key, sums) = metrics.operations.iter().next().unwrap();
    assert_eq!((key.comm.hash, &*key.comm.name, key.comm.ranks), (0x1f2e_3d4c, "world", 2));
    assert_eq!((key.rank, &*key.func, &*key.algo, &*key.proto), (0, "AllReduce", "RING", "SIMPLE"));
    assert_eq!((key.is_p2p, key.channels, key.size_class), (false, 2, Some(22)));
    assert_eq!((key.timing, key.network), (Timing::Kernel, true));
    assert_eq!((sums.count, sums.bytes), (1, 4 << 20));
    // The sends of two channels, of four steps each.
    assert_eq!((sums.transfers, sums.transfer_bytes), (8, 8 * (512 << 10)));
    let link = metrics.links.iter().find(|(key, _)| key.is_send).unwrap().1;
    assert!(near(sums.transfer_seconds, link.seconds.sum));
    let channels = metrics.channels.iter().map(|(key, of)| (key.peer, of.transfers, of.kernels));
    let channels: BTreeSet<_> = channels.collect();
    assert_eq!(channels, BTreeSet::from([(None, 0, 1), (Some(1), 4, 0)]), "kernels have no peer");
    let algo = sums.algo_bandwidth.max().unwrap();
    assert!(near(algo, to_f64(4 << 20) / sums.duration.sum));
    // With two ranks, the bus bandwidth equals the algorithm bandwidth.
    assert_eq!(sums.bus_bandwidth.max(), Some(algo));
    assert!(metrics.proxies[&1].busy > link.seconds.max().unwrap());
    assert_eq!(metrics.lost, BTreeMap::new());
}

#[test]
fn what_nccl_does_not_tell_the_size_of_has_no_size_and_no_bandwidth() {
    let mut process = Process::new(0, 2);
    process.collective(Call { func: "AllGather", ..Call::ALL_REDUCE });
    // Profiler API v1 to v3 does not report the number of ranks.
    (process.comm.ranks, process.comm.nodes, process.comm.api_version) = (0, 0, 3);
    let metrics = measured(&process, &[]);
    let (key, sums) = metrics.operations.iter().next().unwrap();
    assert_eq!((key.size_class, sums.count, sums.bytes), (None, 1, 0));
    assert_eq!((sums.algo_bandwidth.count, sums.bus_bandwidth.count), (0, 0));
    let all = families(&metrics, Labels::ALL);
    let names =
        all.iter().flat_map(|f| &f.points).flat_map(|p| &p.attributes).map(|(name, _)| name);
    let names: BTreeSet<&str> = names.copied().collect();
    assert!(!names.contains("nccl.message_size.bucket"), "{names:?}");
    assert!(!names.contains("nccl.scope") && names.contains("nccl.network"), "{names:?}");
}

#[test]
fn a_bandwidth_begins_with_the_ranks_arrival_not_when_the_host_enqueued() {
    let mut process = Process::new(0, 2);
    // No kernel is reported, and the GPU starts the operation a second after the host.
    process.collective(Call { fault: Fault::NoKernel, ..Call::ALL_REDUCE });
    let whole = measured(&process, &[]);
    let mut process = Process::new(0, 2);
    process.late = SECOND;
    process.collective(Call { fault: Fault::NoKernel, ..Call::ALL_REDUCE });
    let late = measured(&process, &[]);
    let of = |metrics: &Metrics| {
        let (key, sums) = metrics.operations.first_key_value().unwrap();
        assert_eq!(key.timing, Timing::Proxy);
        (sums.duration.max().unwrap(), sums.bus_bandwidth.max().unwrap())
    };
    let ((soon_s, soon), (late_s, late)) = (of(&whole), of(&late));
    assert!(
        soon_s < 0.9 && late_s > 1.0 && (late / soon - 1.0).abs() < 1e-6,
        "{late_s} s, {late} B/s"
    );
}

#[test]
fn what_a_rank_sends_for_another_process_is_counted() {
    let mut process = Process::new(0, 2);
    let op = ProxyOp { pid: 1, peer: 7, is_send: true, foreign: true, ..ProxyOp::default() };
    let op = process.start(PROXY, Handle(99), Detail::ProxyOp(op));
    let flags = step_flags::IS_SEND | step_flags::STOPPED | step_flags::THIRD | step_flags::SIZED;
    let (ticks, op_ref) = (process.now, op.op_ref());
    process.step(PROXY, &Step { ticks, flags, size: 4096, op_ref, end: 100, ..Step::default() });
    process.stop(PROXY, op);
    let metrics = measured(&process, &[]);
    let (key, link) = metrics.links.first_key_value().expect("PXN's link");
    assert_eq!((&key.comm, key.rank, key.peer), (&CommKey::others(), -1, -1));
    assert_eq!((link.transfers, link.bytes, metrics.links.len()), (1, 4096, 1));
}

/// Link, channel and operation bytes of one send of 4 steps of 1,000 bytes, as reported by API v3
/// (states of the ProxyOp) or by v4 (steps).
fn bytes_of_a_send(api_version: u32) -> (Metrics, Recording) {
    let mut process = Process::new(0, 2);
    process.comm.api_version = api_version;
    let func = process.string("Send");
    let p2p = P2p { func, peer: 1, count: 1_000, ..P2p::default() };
    let p2p = process.start(API, Handle::NULL, Detail::P2p(p2p));
    process.stop(API, p2p);
    let op = ProxyOp { peer: 1, steps: 4, channel: 2, is_send: true, ..ProxyOp::default() };
    let op = process.start(PROXY, p2p, Detail::ProxyOp(op));
    let is_told = api_version < 4;
    let sized = if is_told { 0 } else { step_flags::SIZED };
    let flags = step_flags::IS_SEND | step_flags::STOPPED | step_flags::THIRD | sized;
    // API v3: NCCL does not reset the counter of bytes, so it starts from an earlier operation's
    // 7,000.
    for (step, so_far) in (0..4).zip([7_000, 7_000, 9_000, 11_000]) {
        let size = if is_told { 0 } else { 1_000 };
        let (ticks, op_ref) = (process.now, op.op_ref());
        let step = Step { ticks, flags, step, size, op_ref, end: 100, ..Step::default() };
        process.step(PROXY, &step);
        if is_told {
            process.state(PROXY, op, State(3), so_far);
        }
    }
    process.stop(PROXY, op);
    (measured(&process, &[]), recording(&process))
}

#[test]
fn bytes_that_operations_tell_are_counted_as_those_of_steps() {
    for api_version in 1..=5 {
        let (metrics, recording) = bytes_of_a_send(api_version);
        let (key, link) = metrics.links.first_key_value().expect("a link");
        assert_eq!((key.peer, link.transfers, link.bytes), (1, 4, 4_000), "v{api_version}");
        let channels: u64 = metrics.channels.values().map(|channel| channel.bytes).sum();
        let sent: u64 = metrics.operations.values().map(|sums| sums.transfer_bytes).sum();
        assert_eq!((channels, sent), (4_000, 4_000), "v{api_version}");
        // The report counts the same.
        let timeline = Timeline::read(&recording, false);
        let reported: u64 = timeline.links().iter().map(|(_, link)| link.bytes).sum();
        assert_eq!(reported, 4_000, "v{api_version}");
    }
}

#[test]
fn names_of_other_projects_have_one_clock_each() {
    let mut process = Process::new(0, 2);
    process.late = SECOND;
    for fault in [Fault::None, Fault::NoKernel, Fault::Local] {
        process.collective(Call { fault, ..Call::ALL_REDUCE });
        process.now += SECOND;
    }
    let metrics = measured(&process, &[]);
    let timings: BTreeSet<Timing> = metrics.operations.keys().map(|key| key.timing).collect();
    assert!(timings.len() > 1, "{timings:?}");
    let all = metrics.operations.values();
    let clocks = |take: fn(&Compat) -> &Histogram| {
        let of: Vec<&Histogram> = all.clone().map(|sums| take(&sums.compat)).collect();
        let max = of.iter().filter_map(|of| of.max()).fold(0.0, f64::max);
        let min = of.iter().filter_map(|of| of.min()).fold(f64::INFINITY, f64::min);
        (of.iter().map(|of| of.count).sum::<u64>(), min, max)
    };
    // The GPU's timer does not include the second by which the host was ahead.
    let (kernels, _, most) = clocks(|of| &of.kernel);
    assert!(kernels == 1 && most < 0.1, "{kernels} {most}");
    let (proxies, least, _) = clocks(|of| &of.proxy);
    assert!(proxies == 2 && least > 1.0, "{proxies} {least}");
}

#[test]
fn the_scope_is_the_communicators() {
    let scopes = |nodes| {
        let mut process = Process::new(0, 2);
        process.comm.nodes = nodes;
        process.collective(Call { fault: Fault::Local, ..Call::ALL_REDUCE });
        let all = families(&measured(&process, &[]), Labels::ALL);
        let points = all.into_iter().find(|f| f.metric.name == "nccl.operations").unwrap().points;
        let attributes = points.into_iter().flat_map(|point| point.attributes);
        let of = |name: &&str| ["nccl.scope", "nccl.network"].contains(name);
        attributes.filter(|(name, _)| of(name)).map(|(_, value)| value.text()).collect::<Vec<_>>()
    };
    assert_eq!(scopes(2), ["inter", "false"], "its neighbours are on its own node");
    assert_eq!(scopes(1), ["intra", "false"]);
}

#[test]
fn cuda_events_time_an_operation_once_a_launch_was_measured() {
    let mut process = Process::new(0, 2);
    let func = process.string("AllReduce");
    for ns in [100_000, 200_000] {
        let graph = Detail::GroupApi(GroupApi { graph: false, depth: 1 });
        let group = process.start(API, Handle::NULL, graph);
        let api = ApiCall { func, ..ApiCall::default() };
        let api = process.start(API, group, Detail::CollApi(api));
        let launch = process.start(API, group, Detail::KernelLaunch(KernelLaunch { stream: 7 }));
        let coll = process.start(API, api, Detail::Coll(Coll { func, ..Coll::default() }));
        [launch, coll, api, group].into_iter().for_each(|event| process.stop(API, event));
        process.state(PROXY, launch, State::CUDA_EVENT, ns);
        process.now += 5 * SECOND;
    }
    // The other lane is read first: the measured time of the first launch comes before the launch
    // itself.
    let metrics = measured(&process, &[SECOND]);
    let timed = |timing| {
        let mut rows = metrics.operations.iter().filter(move |(key, _)| key.timing == timing);
        rows.next().map(|(_, sums)| (sums.count, sums.duration.sum))
    };
    assert_eq!(timed(Timing::Event), Some((1, 0.0002)), "{:?}", metrics.operations);
    assert_eq!(timed(Timing::Enqueue).map(|(count, _)| count), Some(1));
}

#[test]
fn a_stuck_operation_is_in_flight_and_holds_up_no_other() {
    let mut process = Process::new(0, 2);
    let mut rounds = Vec::new();
    let stuck_at = process.now;
    for call in 0..6u8 {
        let fault = if call == 1 { Fault::Hang } else { Fault::None };
        process.collective(Call { fault, ..Call::ALL_REDUCE });
        rounds.push(process.now);
        process.now += 5 * SECOND;
    }
    let windows = windows(&recording(&process), &rounds);
    let counts = windows.iter().map(|w| w.operations.values().map(|sums| sums.count).sum::<u64>());
    // Each operation settles in the window after its own, the last ones at the end.
    assert_eq!(counts.collect::<Vec<_>>(), [0, 1, 0, 1, 1, 1, 1]);
    let state = |at: usize| windows[at].ranks.values().next().map(|r| (r.in_flight, r.oldest));
    assert_eq!(state(0), None);
    assert_eq!(state(1).unwrap().0, 1);
    let (in_flight, oldest) = state(5).unwrap();
    let age = to_f64(rounds[5] - stuck_at) / 1e9;
    assert!(in_flight == 1 && oldest > 19.0 && oldest < age, "{oldest} s");
}

#[test]
fn an_operation_whose_end_was_lost_is_not_in_flight_for_ever() {
    let mut process = Process::new(0, 2);
    let mut rounds = Vec::new();
    for call in 0..9u8 {
        let fault = if call == 1 { Fault::Hang } else { Fault::None };
        process.collective(Call { fault, ..Call::ALL_REDUCE });
        rounds.push(process.now);
        process.now += 10 * SECOND;
    }
    let windows = windows(&recording(&process), &rounds);
    let in_flight = windows.iter().map(|w| w.ranks.values().map(|r| r.in_flight).sum::<u64>());
    // The operation that started 30 s later settles in the window after its own, or in the one
    // after that.
    let in_flight: Vec<u64> = in_flight.collect();
    assert_eq!((&in_flight[..5], &in_flight[7..]), (&[0, 1, 1, 1, 1][..], &[0, 0, 0][..]));
    let total = merged(&windows);
    assert_eq!(total.lost, BTreeMap::from([(("overtaken", "Coll"), 1)]));
    assert_eq!(total.operations.values().map(|sums| sums.count).sum::<u64>(), 8);
}

/// Operations in flight if a kernel of a second communicator, on this stream, started between an
/// early stop and the operation that waits behind it.
fn led_before_another(stream: u64) -> Vec<u64> {
    let mut process = Process::new(0, 2);
    let first = Comm { name: Some("first".into()), ..process.comm.clone() };
    process.comm = Comm { index: 1, hash: 1 << 40, name: Some("second".into()), ..first.clone() };
    process.other_comms = vec![first];
    let [func, algo] = ["AllReduce", "TREE"].map(|name| process.string(name));
    let mut enqueue = |comm: u16, stream: u64, has_kernel: Option<bool>| {
        process.comm.index = comm;
        let call = Detail::CollApi(ApiCall { func, stream, ..ApiCall::default() });
        let call = process.start(API, Handle::NULL, call);
        let group = process.start(API, Handle::NULL, Detail::Group);
        let coll = Coll { func, algo, group, channels: 1, count: 9, ..Coll::default() };
        let coll = process.start(API, call, Detail::Coll(coll));
        [coll, group, call].into_iter().for_each(|event| process.stop(API, event));
        if let Some(stops) = has_kernel {
            let kernel = KernelCh { channel: 0, ptimer: process.ptimer() };
            let kernel = process.start(PROXY, coll, Detail::KernelCh(kernel));
            if stops {
                process.stop(PROXY, kernel);
            }
        }
    };
    enqueue(0, 0xabc, Some(true));
    enqueue(1, stream, Some(false));
    enqueue(0, 0xabc, None);
    let now = process.now;
    process.comm.index = 1;
    let window = windows(&recording(&process), &[now + SECOND]).swap_remove(0);
    window.ranks.values().map(|rank| rank.in_flight).collect()
}

#[test]
fn after_an_early_stop_a_later_kernel_of_the_stream_shows_the_end() {
    assert_eq!(led_before_another(0xabc), [1, 1], "the kernel between them has started");
    assert_eq!(led_before_another(0xdef), [2, 1], "another stream runs beside it");
    assert_eq!(led_before_another(1), [2, 1], "a default stream may be another device's");
}

#[test]
fn the_oldest_operation_in_flight_of_a_communicator_has_a_name() {
    let mut process = Process::new(1, 2);
    let started = process.now;
    process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    process.now += SECOND;
    process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    let recording = recording(&process);
    let mut collector = collector(&recording);
    assert_eq!(collector.oldest_in_flight(), []);
    for lane in 0..LANES {
        recording.records(lane).for_each(|record| collector.record(lane, &record));
    }
    collector.close(60 * SECOND, &recording.tick_map());
    let [open] = &collector.oldest_in_flight()[..] else { panic!("one communicator") };
    assert_eq!((&*open.func, open.rank, open.peer, open.count), ("AllReduce", 1, None, 2));
    assert!((started..started + SECOND).contains(&open.started), "{open:?}");
    assert!(open.bytes > Some(0) && open.comm.ranks == 2, "{open:?}");
}

/// No operation follows it on its communicator, and the rank's watchdog knows that its stop was
/// lost.
#[test]
fn an_operation_is_in_flight_no_longer_than_by_the_watchdog() {
    let mut process = Process::new(0, 2);
    process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    let recording = recording(&process);
    let mut collector = collector(&recording);
    for lane in 0..LANES {
        recording.records(lane).for_each(|record| collector.record(lane, &record));
    }
    let mut close = |seconds: u64, progress: Option<(u64, u32)>| {
        if let Some((at, age_ms)) = progress {
            collector.progress(&Progress { ticks: at * SECOND, age_ms, ..Progress::default() });
        }
        let window = collector.close(seconds * SECOND, &recording.tick_map());
        let in_flight: u64 = window.ranks.values().map(|rank| rank.in_flight).sum();
        (in_flight, window.lost)
    };
    let none = BTreeMap::new();
    assert_eq!(close(60, Some((60, 60_000))), (1, none.clone()), "it is in flight there, too");
    assert_eq!(close(70, Some((4, 0))), (1, none.clone()), "more of it may come");
    let overtaken = BTreeMap::from([(("overtaken", "Coll"), 1)]);
    assert_eq!(close(80, Some((70, 1_000))), (0, overtaken));
    assert_eq!(close(90, None), (0, none));
}

/// Nothing but CUDA events shows the end of an operation inside a node; the watchdog asks for them.
#[test]
fn what_the_watchdog_sees_by_cuda_events_is_in_flight() {
    let mut process = Process::new(0, 2);
    let func = process.string("AllReduce");
    let began = process.now;
    for _ in 0..2 {
        let coll = process.start(API, Handle::NULL, Detail::Coll(Coll { func, ..Coll::default() }));
        process.stop(API, coll);
        process.now += SECOND;
    }
    let recording = recording(&process);
    let mut collector = collector(&recording);
    for lane in 0..LANES {
        recording.records(lane).for_each(|record| collector.record(lane, &record));
    }
    let mut close = |seconds: u64, age_ms: u32, flags: u8| {
        let (ticks, enqueued) = (began + seconds * SECOND, 2);
        collector.progress(&Progress { ticks, age_ms, flags, enqueued, ..Progress::default() });
        let window = collector.close(ticks, &recording.tick_map());
        let rank = window.ranks.into_values().next().unwrap_or_default();
        (rank.in_flight, rank.oldest.round(), rank.hidden)
    };
    assert_eq!(close(20, 20_000, 0), (2, 20.0, 0), "the second waits behind the first");
    assert_eq!(close(30, 29_000, 0), (1, 29.0, 0), "the first has ended");
    assert_eq!(close(40, 0, 0), (0, 0.0, 0));
    assert_eq!(close(50, 9_000, progress_flags::NO_END), (0, 0.0, 1), "it is a guess");
    assert_eq!(close(60, 0, progress_flags::NO_END), (0, 0.0, 1));
    assert_eq!(close(70, 0, 0), (0, 0.0, 0));
}

#[test]
fn what_was_before_we_began_does_not_count() {
    let mut process = Process::new(0, 2);
    (0..3).for_each(|_| process.collective(Call::ALL_REDUCE));
    let before = recording(&process);
    process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    let began = process.now;
    process.now += 5 * SECOND;
    process.collective(Call::ALL_REDUCE);
    let whole = recording(&process);
    let mut collector = collector(&whole);
    let mut read = |from: u64, until: u64| {
        for lane in (0..LANES).rev() {
            let records = whole.records(lane).filter(|r| (from..until).contains(&r.ticks()));
            records.for_each(|record| collector.record(lane, &record));
        }
        let clock = whole.tick_map();
        if from == 0 {
            collector.begin(until, &clock);
            return Metrics::default();
        }
        collector.finish(whole.last_ticks(), &clock)
    };
    read(0, began);
    let after = read(began, u64::MAX);
    let count = |metrics: &Metrics| metrics.operations.values().map(|s| s.count).sum::<u64>();
    assert_eq!(count(&merged(&windows(&before, &[]))), 3);
    assert_eq!((count(&after), after.events["Coll"]), (1, 1), "{:?}", after.operations);
    assert_eq!(after.ranks.values().next().unwrap().in_flight, 1, "a state is one still");
}

#[test]
fn a_child_that_starts_late_belongs_to_its_operation() {
    let mut process = Process::new(0, 2);
    let func = process.string("AllReduce");
    let coll = Coll { func, channels: 1, ..Coll::default() };
    let enqueued = process.start(API, Handle::NULL, Detail::Coll(coll));
    process.stop(API, enqueued);
    let mut rounds = vec![process.now];
    process.now += SECOND;
    let kernel = Detail::KernelCh(KernelCh { channel: 0, ptimer: 500 });
    let kernel = process.start(PROXY, enqueued, kernel);
    rounds.push(process.now);
    process.now += SECOND;
    rounds.push(process.now);
    process.state(PROXY, kernel, State::KERNEL_CH_STOP, 1_000_000_500);
    process.stop(PROXY, kernel);
    let windows = windows(&recording(&process), &rounds);
    assert_eq!(windows.iter().map(|w| w.operations.len()).collect::<Vec<_>>(), [0, 0, 0, 1]);
    let (key, sums) = windows[3].operations.iter().next().unwrap();
    assert_eq!((key.timing, key.network, sums.duration.sum), (Timing::Kernel, false, 1.0));
}

/// The metrics of the same records, lane by lane, in both orders of two lanes.
fn in_both_orders(lanes: [Vec<Record>; 2]) -> [Metrics; 2] {
    [[0, 1], [1, 0]].map(|order| {
        let mut collector = Collector::default();
        for lane in order {
            lanes[lane].iter().for_each(|record| collector.record(lane, record));
        }
        collector.finish(50_000, &TickMap::new(vec![], 1_000_000_000))
    })
}

fn start(ticks: u64, handle: Handle, parent: Handle, detail: Detail) -> Record {
    Record::Start(Start { ticks, comm: 0, handle, parent, detail })
}

/// A Coll of one channel, and its handle.
fn coll(ticks: u64, number: u64) -> (Handle, Record) {
    let handle = Handle::value(7, EventKind::Coll, 0, number);
    let coll = Coll { channels: 1, count: 1, ..Coll::default() };
    (handle, start(ticks, handle, Handle::NULL, Detail::Coll(coll)))
}

#[test]
fn ends_on_other_lanes_are_joined_in_any_order() {
    let (handle, begin) = coll(1_000, 1);
    let kernel = Handle::value(7, EventKind::KernelCh, 0, 2);
    let op = Handle::slot_op(7, 0, 3, 0);
    let detail = Detail::ProxyOp(ProxyOp { is_send: true, ..ProxyOp::default() });
    let starts = vec![
        begin,
        start(1_500, kernel, handle, Detail::KernelCh(KernelCh { channel: 0, ptimer: 5_000 })),
        start(2_000, op, handle, detail),
    ];
    let state = State::KERNEL_CH_STOP;
    let ends = vec![
        Record::Stop { ticks: 1_100, handle },
        // NCCL stops it twice: the first stop counts.
        Record::Stop { ticks: 9_900, handle: op },
        Record::Stop { ticks: 9_000, handle: op },
        Record::State { ticks: 8_000, handle: kernel, state, small: 0, arg: 7_000 },
        Record::Stop { ticks: 8_100, handle: kernel },
        Record::State { ticks: 8_200, handle: kernel, state, small: 0, arg: 7_000 },
    ];
    for metrics in in_both_orders([starts, ends]) {
        let (key, sums) = metrics.operations.iter().next().unwrap();
        assert_eq!((key.timing, key.network, sums.count), (Timing::Kernel, true, 1));
        assert!(near(sums.duration.sum, 2e-6), "{sums:?}");
        let channel = metrics.channels.values().next().unwrap();
        assert!(channel.kernels == 1 && near(channel.kernel_seconds, 2e-6), "{channel:?}");
        assert_eq!(metrics.proxies[&0].operations, 1);
    }
}

#[test]
fn the_earlier_of_two_stops_is_the_operations() {
    let (handle, begin) = coll(1_000, 1);
    let stops = [1_400, 1_200, 1_300].map(|ticks| Record::Stop { ticks, handle });
    for metrics in in_both_orders([vec![begin], stops.to_vec()]) {
        let sums = metrics.operations.values().next().unwrap();
        assert!(near(sums.duration.sum, 2e-7), "{sums:?}");
    }
}

#[test]
fn after_a_kernel_was_seen_a_missing_one_is_outstanding() {
    let (first, begin) = coll(1_000, 1);
    let (second, next) = coll(2_000, 2);
    let kernel = Handle::value(7, EventKind::KernelCh, 1, 3);
    let proxy = vec![
        start(1_500, kernel, first, Detail::KernelCh(KernelCh { channel: 0, ptimer: 5 })),
        Record::Stop { ticks: 1_600, handle: kernel },
    ];
    let stop = |ticks, handle| Record::Stop { ticks, handle };
    let api = vec![begin, stop(1_100, first), next, stop(2_100, second)];
    for metrics in in_both_orders([api, proxy]) {
        let ranks = metrics.ranks.values().next().unwrap();
        assert_eq!((ranks.in_flight, metrics.operations.len()), (1, 1));
        assert!(near(ranks.oldest, 48e-6), "{ranks:?}");
    }
}

/// Per window, the timing of the operations that settled in it.
fn timings(windows: &[Metrics]) -> Vec<Option<Timing>> {
    windows.iter().map(|w| w.operations.keys().map(|key| key.timing).next()).collect()
}

#[test]
fn without_any_child_it_is_over_after_a_while() {
    let mut process = Process::new(0, 2);
    process.comm.api_version = 3;
    process.collective(Call { fault: Fault::Local, ..Call::ALL_REDUCE });
    let rounds = [0, SECOND, 3 * SECOND].map(|after| process.now + after);
    let windows = windows(&recording(&process), &rounds);
    assert_eq!(timings(&windows), [None, None, Some(Timing::Enqueue), None]);
    assert!(windows.iter().all(|w| w.ranks.is_empty()), "not in flight");
}

#[test]
fn a_kernel_that_is_reported_late_is_waited_for() {
    let mut process = Process::new(0, 2);
    let call = Call { channels: 1, ..Call::ALL_REDUCE };
    process.collective(Call { fault: Fault::NoKernel, ..call });
    let coll = recording(&process);
    let starts = coll.records(API).filter_map(|record| match record {
        Record::Start(start) if start.handle.kind() == EventKind::Coll => Some(start.handle),
        _ => None,
    });
    let coll = starts.last().unwrap();
    let mut rounds = [0, 1, 4].map(|after| process.now + after * SECOND).to_vec();
    process.now += 5 * SECOND;
    let kernel = process.start(PROXY, coll, Detail::KernelCh(KernelCh { channel: 0, ptimer: 9 }));
    process.state(PROXY, kernel, State::KERNEL_CH_STOP, 1_009);
    process.stop(PROXY, kernel);
    rounds.extend([0, 1].map(|after| process.now + after * SECOND));
    let windows = windows(&recording(&process), &rounds);
    let kernel = Some(Timing::Kernel);
    assert_eq!(timings(&windows), [None, None, None, None, kernel, None]);
}

#[test]
fn what_misses_its_operation_is_counted_in_the_end() {
    let mut process = Process::new(0, 2);
    let lost = Handle::value(7, EventKind::Coll, 0, 99);
    let kernel = process.start(PROXY, lost, Detail::KernelCh(KernelCh { channel: 0, ptimer: 500 }));
    process.stop(PROXY, kernel);
    process.stop(PROXY, lost);
    process.step(PROXY, &Step { ticks: process.now, ..Step::default() });
    let rounds: Vec<u64> = (1..8).map(|at| process.now + at * SECOND).collect();
    let metrics = measured(&process, &rounds);
    let kinds = ["Coll", "KernelCh", "ProxyStep"].map(|kind| metrics.lost[&("unmatched", kind)]);
    assert_eq!((kinds, metrics.lost.len()), ([1; 3], 3));
}

#[test]
fn rate_and_latency_of_a_link_are_recovered() {
    let mut process = Process::new(0, 2);
    // A link of 12.5 GB/s and 18 us latency; every tenth transfer is late.
    for step in 0..2_000u32 {
        let op = ProxyOp { peer: 1, is_send: true, ..ProxyOp::default() };
        let op = process.start(PROXY, Handle::NULL, Detail::ProxyOp(op));
        let size = (step % 16 + 1) * 65_536;
        let late = if step % 10 == 0 { 30_000 } else { 0 };
        let network = 18_000 + u64::from(size) * 2 / 25 + late;
        let flags =
            step_flags::IS_SEND | step_flags::STOPPED | step_flags::THIRD | step_flags::SIZED;
        let (ticks, op_ref) = (process.now, op.op_ref());
        let end = network >> STEP_SHIFT;
        process.step(PROXY, &Step { ticks, flags, size, op_ref, end, ..Step::default() });
        process.stop(PROXY, op);
    }
    let metrics = measured(&process, &[process.now / 3, process.now / 2]);
    let line = metrics.links.values().next().unwrap().line(Mode::Min).unwrap();
    assert!((line.rate_mb_s / 12_500.0 - 1.0).abs() < 0.01, "{line:?}");
    assert!(
        (line.latency_us.unwrap() / 18.0 - 1.0).abs() < 0.01 && line.r2 > Some(0.99),
        "{line:?}"
    );
    // On average a transfer takes 3 us longer.
    let line = metrics.links.values().next().unwrap().line(Mode::Avg).unwrap();
    assert!((line.latency_us.unwrap() / 21.0 - 1.0).abs() < 0.05, "{line:?}");
}

#[test]
fn a_million_starts_that_never_stop_are_bounded() {
    const STARTS: u64 = 1_000_000;
    let mut collector = Collector::default();
    let clock = TickMap::new(vec![], 1_000_000_000);
    let mut total = Metrics::default();
    for number in 0..STARTS {
        let is_op = number % 3 == 0;
        let detail = if is_op {
            Detail::ProxyOp(ProxyOp { peer: 1, ..ProxyOp::default() })
        } else {
            Detail::Coll(Coll { channels: 1, ..Coll::default() })
        };
        let handle = Handle::value(7, detail.kind(), 0, number << 3);
        let parent = if is_op { Handle(number << 20 | 1) } else { Handle::NULL };
        let start = Start { ticks: number * 100, comm: 0, handle, parent, detail };
        collector.record(0, &Record::Start(start));
        if number % 100_000 == 0 {
            total.merge(&collector.close(number * 100, &clock));
        }
    }
    total.merge(&collector.finish(STARTS * 100, &clock));
    let in_flight: u64 = total.ranks.values().map(|rank| rank.in_flight).sum();
    assert!(in_flight <= 1 << 16, "{in_flight}");
    let overflowed: u64 = total.lost.values().sum();
    assert!(overflowed > STARTS - (1 << 17), "{overflowed}");
    assert_eq!(total.events.values().sum::<u64>(), STARTS);
}

#[test]
fn the_children_of_one_parent_are_bounded() {
    const STARTS: u64 = 300_000;
    let mut collector = Collector::default();
    let (parent, begin) = coll(1_000, 1);
    collector.record(0, &begin);
    for number in 0..STARTS {
        let kernel = Handle::value(7, EventKind::KernelCh, 1, number);
        let detail = Detail::KernelCh(KernelCh { channel: 0, ptimer: 5 });
        collector.record(1, &start(2_000, kernel, parent, detail));
    }
    let window = collector.finish(50_000, &TickMap::new(vec![], 1_000_000_000));
    let overflowed = window.lost[&("overflow", "KernelCh")];
    assert!(overflowed > STARTS / 2 && overflowed < STARTS, "{overflowed}");
    assert_eq!(window.lost[&("overflow", "Coll")], 1);
}

#[test]
fn two_devices_of_one_process_are_two_ranks() {
    let mut process = Process::new(0, 2);
    process.collective(Call::ALL_REDUCE);
    let first = recording(&process);
    let (mut collector, clock) = (collector(&first), first.tick_map());
    let mut other = first.comms()[0].clone();
    (other.index, other.rank) = (1, 1);
    collector.comm(&other);
    for lane in [API, PROXY] {
        for record in first.records(lane) {
            collector.record(lane, &record);
            // A second set of the same records, with other handles and another communicator.
            let move_to =
                |handle: Handle| if handle.is_null() { handle } else { Handle(handle.0 ^ 1 << 40) };
            collector.record(
                lane + 4,
                &match record {
                    Record::Start(mut start) => {
                        (start.comm, start.handle, start.parent) =
                            (1, move_to(start.handle), move_to(start.parent));
                        if let Detail::ProxyOp(op) = &mut start.detail {
                            op.rank = 1;
                        }
                        Record::Start(start)
                    }
                    Record::Stop { ticks, handle } => {
                        Record::Stop { ticks, handle: move_to(handle) }
                    }
                    Record::State { ticks, handle, state, small, arg } => {
                        Record::State { ticks, handle: move_to(handle), state, small, arg }
                    }
                    Record::Step(mut step) => {
                        step.op_ref = (Handle(u64::from(step.op_ref) << 3 ^ 1 << 40)).op_ref();
                        Record::Step(step)
                    }
                    other => other,
                },
            );
        }
    }
    let metrics = collector.finish(first.last_ticks(), &clock);
    let ranks: Vec<i32> = metrics.operations.keys().map(|key| key.rank).collect();
    assert_eq!(ranks, [0, 1]);
    let sums: Vec<_> = metrics.operations.values().collect();
    assert_eq!(sums[0], sums[1]);
    // Two channels each for sends, receives and kernels.
    assert_eq!((metrics.links.len(), metrics.channels.len()), (4, 12));
}

#[test]
fn running_totals_of_losses_become_differences() {
    let mut collector = Collector::default();
    let clock = TickMap::new(vec![], 1_000_000_000);
    collector.lost("lane_full", "ProxyStep", 5);
    collector.lost("no_lane", "", 0);
    let key = ("lane_full", "ProxyStep");
    assert_eq!(collector.close(1, &clock).lost, BTreeMap::from([(key, 5)]));
    collector.lost("lane_full", "ProxyStep", 5);
    assert_eq!(collector.close(2, &clock).lost, BTreeMap::new());
    collector.lost("lane_full", "ProxyStep", 9);
    assert_eq!(collector.close(3, &clock).lost, BTreeMap::from([(key, 4)]));
}

#[test]
fn the_ranks_of_a_process_have_devices_of_their_own() {
    let devices = |ranks: &[i32]| {
        let mut collector = Collector::default();
        for (&rank, index) in ranks.iter().zip(0u16..) {
            let comm = Comm { index, hash: 7, ranks: 4, rank, ..Comm::default() };
            collector.comm(&comm);
            let uuid = format!("GPU-{index}");
            let of = CommDevice { comm: index, index: index.into(), uuid, ..CommDevice::default() };
            collector.device(&of);
        }
        let window = collector.close(0, &TickMap::new(Vec::new(), 1_000_000_000));
        let found = window.devices.into_iter().map(|(key, on)| (key.rank, on.index, on.uuid));
        found.map(|(rank, index, uuid)| (rank, index, uuid.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(devices(&[2, 3]), [(2, 0, "GPU-0".into()), (3, 1, "GPU-1".into())]);
    assert_eq!(devices(&[2]), [], "a process of one rank has its device itself");
}
