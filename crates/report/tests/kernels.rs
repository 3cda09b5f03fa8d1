// SPDX-License-Identifier: Apache-2.0
//! Kernels whose stop is not their end, and kernels with the times of other kernels: the report and
//! the metrics about them.

use ncclscope_metrics::{Collector, Metrics};
use ncclscope_operations::Timing;
use ncclscope_report::schema::OperationRow;
use ncclscope_report::{Report, ReportBuilder};
use ncclscope_trace::handle::LANES;
use ncclscope_trace::record::{ApiCall, Coll, GroupApi, KernelCh, KernelLaunch, P2p};
use ncclscope_trace::{Detail, EventKind, Handle, Mark, MarkKind, Recording, State, StrId};
use scripts::{API, PROXY, Process};

const MS: u64 = 1_000_000;

/// The variant of an AllReduce of two channels on one node.
#[derive(Clone, Copy)]
struct Play {
    algo: &'static str,
    /// Duration of the launch by CUDA events, ns, if it was measured.
    event_ns: Option<u64>,
    /// Whether its kernel starts.
    starts: bool,
}

const NVLS: Play = Play { algo: "NVLS", event_ns: None, starts: true };

/// A process with API v6 and NCCL of this version.
fn process(version: u32) -> Process {
    let mut process = Process::new(0, 2);
    (process.comm.nodes, process.comm.nccl_version) = (1, version);
    process.header.closed = false;
    process
}

/// The call, its launch and the operation.
fn call(p: &mut Process, algo: &str, func: &str) -> (Handle, Handle) {
    let (func, float) = (p.string(func), p.string("ncclFloat32"));
    let (algo, proto) = (p.string(algo), p.string("SIMPLE"));
    let top = p.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 1 }));
    let api = ApiCall { func, datatype: float, count: 1 << 20, ..ApiCall::default() };
    let api = p.start(API, top, Detail::CollApi(api));
    let launch = p.start(API, top, Detail::KernelLaunch(KernelLaunch { stream: 7 }));
    let group = p.start(API, Handle::NULL, Detail::Group);
    let coll = Coll { func, datatype: float, algo, proto, channels: 2, ..Coll::default() };
    let coll = Coll { count: 1 << 20, group, ..coll };
    let coll = p.start(API, api, Detail::Coll(coll));
    [coll, group, launch, api, top].into_iter().for_each(|event| p.stop(API, event));
    (coll, launch)
}

/// An AllReduce whose kernel stops after 1 ms and ends 9 ms later.
fn all_reduce(p: &mut Process, play: Play) {
    let (coll, launch) = call(p, play.algo, "AllReduce");
    if !play.starts {
        return;
    }
    let kernel = |channel, ptimer| Detail::KernelCh(KernelCh { channel, ptimer });
    let kernels = [0, 1].map(|channel| p.start(PROXY, coll, kernel(channel, p.ptimer())));
    p.now += MS;
    for kernel in kernels {
        p.state(PROXY, kernel, State::KERNEL_CH_STOP, p.ptimer());
        p.stop(PROXY, kernel);
    }
    p.now += 9 * MS;
    if let Some(ns) = play.event_ns {
        p.state(PROXY, launch, State::CUDA_EVENT, ns);
    }
}

fn recording(p: &Process) -> Recording {
    let dir = tempfile::tempdir().unwrap();
    Recording::open(&p.write(dir.path()).unwrap()).unwrap()
}

fn report(p: &Process) -> Report {
    let mut builder = ReportBuilder::default();
    builder.add(&recording(p));
    builder.finish()
}

fn row(report: &Report) -> &OperationRow {
    report.operations.iter().find(|row| row.func == "AllReduce").expect("there is one")
}

/// All metrics of the process.
fn metrics(p: &Process) -> Metrics {
    let (recording, mut collector) = (recording(p), Collector::default());
    collector.clock(&recording.tick_map());
    for id in 1..=100 {
        if let Some(text) = recording.string(StrId(id)) {
            collector.string(StrId(id), text);
        }
    }
    recording.comms().iter().for_each(|comm| collector.comm(comm));
    let of_lane = |lane| recording.records(lane).map(move |record| (lane, record));
    let mut records: Vec<_> = (0..LANES).flat_map(of_lane).collect();
    records.sort_by_key(|(_, record)| record.ticks());
    for (lane, record) in &records {
        collector.record(*lane, record);
    }
    collector.finish(recording.last_ticks(), &recording.tick_map())
}

/// Number of operations that each clock timed, and number of bandwidths.
fn timed(metrics: &Metrics) -> (Vec<(Timing, u64)>, u64) {
    let all = || metrics.operations.iter().filter(|(key, _)| &*key.func == "AllReduce");
    let rates = all().map(|(_, sums)| sums.bus_bandwidth.count).sum();
    (all().map(|(key, sums)| (key.timing, sums.count)).collect(), rates)
}

#[test]
fn an_early_stop_is_the_least_that_an_operation_took() {
    let mut p = process(22_809);
    (0..3).for_each(|_| all_reduce(&mut p, NVLS));
    let report = report(&p);
    let row = row(&report);
    assert_eq!((row.timing, row.open, row.algbw_gbs), ("kernel_lead", 0, None));
    assert!(report.unknowable.iter().any(|text| text.contains("the least that they took")));
    assert_eq!(timed(&metrics(&p)), (vec![(Timing::KernelLead, 3)], 0));
    // With a ring, the stop is the end.
    let mut p = process(22_809);
    all_reduce(&mut p, Play { algo: "RING", ..NVLS });
    assert_eq!(timed(&metrics(&p)), (vec![(Timing::Kernel, 1)], 1));
}

#[test]
fn a_cuda_event_tells_the_end_behind_an_early_stop() {
    let mut p = process(22_809);
    let measured = Play { event_ns: Some(10 * MS), ..NVLS };
    (0..3).for_each(|_| all_reduce(&mut p, measured));
    let whole = report(&p);
    assert_eq!((row(&whole).timing, row(&whole).open), ("cuda_event", 0));
    assert_eq!(row(&whole).duration_ns.unwrap().p50, 10 * MS);
    let (timings, rates) = timed(&metrics(&p));
    assert!(timings.iter().any(|(timing, _)| *timing == Timing::Event) && rates >= 2);
    // The event of the last one does not come, so its kernel has not ended.
    all_reduce(&mut p, NVLS);
    let open = report(&p);
    assert_eq!((row(&open).open, open.open_operations.len()), (1, 1));
    let waits = &open.open_operations[0].waits_for;
    assert!(waits[0].contains("which is not its end here"), "{waits:?}");
    // If the process ended in order, the end is merely unknown.
    p.header.closed = true;
    assert_eq!(report(&p).open_operations.len(), 0);
}

#[test]
fn what_waits_behind_an_early_stop_shows_that_it_is_no_end() {
    let mut p = process(22_809);
    all_reduce(&mut p, NVLS);
    all_reduce(&mut p, NVLS);
    all_reduce(&mut p, Play { starts: false, ..NVLS });
    let report = report(&p);
    let [behind, first] = report.open_operations.as_slice() else { panic!("{report:?}") };
    let (behind, first) =
        if behind.age_ns < first.age_ns { (behind, first) } else { (first, behind) };
    assert!(first.waits_for[0].contains("which is not its end here"), "{first:?}");
    assert!(behind.waits_for[0].contains("has not started"), "{behind:?}");
    assert_eq!(row(&report).count, 3);
}

/// Something else occupies the rest of the GPU; the watchdog reports the same.
#[test]
fn a_kernel_that_has_started_on_some_channels_only_is_not_over() {
    let mut p = process(22_809);
    let ring = Play { algo: "RING", ..NVLS };
    (0..2).for_each(|_| all_reduce(&mut p, ring));
    let (coll, _) = call(&mut p, "RING", "AllReduce");
    let kernel = Detail::KernelCh(KernelCh { channel: 0, ptimer: p.ptimer() });
    let kernel = p.start(PROXY, coll, kernel);
    p.now += MS;
    p.state(PROXY, kernel, State::KERNEL_CH_STOP, p.ptimer());
    p.stop(PROXY, kernel);
    let open = report(&p);
    assert_eq!((row(&open).count, row(&open).open), (3, 1));
    let waits = &open.open_operations[0].waits_for;
    assert_eq!(waits, &["its kernel has started on 1 of 2 channels, and stopped there"]);
    let in_flight = |p: &Process| metrics(p).ranks.values().map(|rank| rank.in_flight).sum::<u64>();
    assert_eq!(in_flight(&p), 1);
    // A later kernel shows that NCCL uses fewer channels than it announced.
    all_reduce(&mut p, ring);
    assert_eq!((report(&p).open_operations.len(), in_flight(&p)), (0, 0));
}

/// From 2.31 on, the device's and the host's counts differ after a Broadcast; on 2.28 they do not.
#[test]
fn after_a_broadcast_kernels_are_believed_where_nccl_counts_it() {
    for (version, is_told) in [(22_809, true), (23_203, false)] {
        let mut p = process(version);
        let ring = Play { algo: "RING", ..NVLS };
        all_reduce(&mut p, ring);
        let broadcast = p.string("Broadcast");
        let top = p.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 1 }));
        let api = ApiCall { func: broadcast, count: 9, ..ApiCall::default() };
        let api = p.start(API, top, Detail::CollApi(api));
        [api, top].into_iter().for_each(|event| p.stop(API, event));
        all_reduce(&mut p, ring);
        all_reduce(&mut p, Play { starts: false, ..ring });
        let report = report(&p);
        let believed = if is_told { 2 } else { 1 };
        assert_eq!(row(&report).timings["kernel"], believed, "{version}");
        // The kernel times of the second and the third AllReduce, two channels each; the third's
        // never come.
        let stray = if is_told { 0 } else { 4 };
        assert_eq!(report.lost.stray_kernel_times, stray, "{version}");
        assert_eq!(report.lost.losses.len(), usize::from(!is_told), "{version}");
        assert_eq!(report.open_operations.len(), usize::from(is_told), "{version}");
        let metrics = metrics(&p);
        let lost = metrics.lost.get(&("stray", EventKind::KernelCh.name())).copied();
        assert_eq!(lost, (!is_told).then_some(2), "{version}");
        let kernel =
            timed(&metrics).0.iter().filter(|(timing, _)| *timing == Timing::Kernel).count();
        assert_eq!(kernel, 1, "{version}");
    }
}

/// Up to 2.30 the host does not count a rank's send to itself.
#[test]
fn after_a_send_to_itself_kernels_are_believed_where_nccl_counts_it() {
    let ring = Play { algo: "RING", ..NVLS };
    for (version, peer, is_told) in
        [(22_809, 0, false), (22_809, 1, true), (23_007, 0, false), (23_203, 0, true)]
    {
        let mut p = process(version);
        all_reduce(&mut p, ring);
        let func = p.string("Send");
        let send = Detail::P2p(P2p { func, count: 9, peer, ..P2p::default() });
        let send = p.start(API, Handle::NULL, send);
        p.stop(API, send);
        all_reduce(&mut p, ring);
        let (of, metrics) = (format!("{version} {peer}"), metrics(&p));
        let report = report(&p);
        let believed = if is_told { 2 } else { 1 };
        assert_eq!(row(&report).timings["kernel"], believed, "{of}");
        assert!(timed(&metrics).0.contains(&(Timing::Kernel, believed)), "{of}");
        let stray = if is_told { 0 } else { 2 };
        assert_eq!(report.lost.stray_kernel_times, stray, "{of}");
        let lost = metrics.lost.get(&("stray", EventKind::KernelCh.name())).copied();
        assert_eq!(lost, (!is_told).then_some(2), "{of}");
    }
}

/// Recording stopped for a while, in which the rank may have sent to itself, too.
#[test]
fn a_send_to_itself_makes_all_kernels_of_a_windowed_recording_doubtful() {
    for (peer, believed) in [(0, 0), (1, 1)] {
        let mut p = process(22_809);
        let what = MarkKind::Stop;
        p.marks.push(Mark { ticks: p.now + 1, what, name: StrId::NONE, value: 1 });
        all_reduce(&mut p, Play { algo: "RING", ..NVLS });
        let send = p.start(API, Handle::NULL, Detail::P2p(P2p { peer, ..P2p::default() }));
        p.stop(API, send);
        let report = report(&p);
        let timings = &row(&report).timings;
        assert_eq!(timings.get("kernel").copied().unwrap_or(0), believed, "{peer}");
    }
}

/// A Broadcast may have been called before recording started, or while it was stopped.
#[test]
fn kernels_are_not_believed_where_a_broadcast_may_not_be_recorded() {
    for (what, is_late, believed) in
        [(MarkKind::Start, false, 1), (MarkKind::Start, true, 0), (MarkKind::Stop, true, 0)]
    {
        let mut p = process(23_203);
        let ticks = if is_late { p.now + 1 } else { 0 };
        p.marks.push(Mark { ticks, what, name: StrId::NONE, value: 1 });
        all_reduce(&mut p, Play { algo: "RING", ..NVLS });
        let report = report(&p);
        let timings = &row(&report).timings;
        assert_eq!(timings.get("kernel").copied().unwrap_or(0), believed, "{what:?} {is_late}");
    }
}

/// NCCL read the times of the first kernel after its ring of time stamps was overtaken: they are
/// the times of the third.
#[test]
fn times_of_a_later_kernel_are_found_and_dropped() {
    let mut p = process(22_809);
    let (mut starts, mut kernels) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (coll, _) = call(&mut p, "RING", "AllReduce");
        starts.push((coll, p.ptimer()));
        p.now += MS;
    }
    for (coll, ptimer) in [(starts[0].0, starts[2].1), starts[1], starts[2]] {
        for channel in [0, 1] {
            let kernel = p.start(PROXY, coll, Detail::KernelCh(KernelCh { channel, ptimer }));
            kernels.push((kernel, ptimer + 500_000));
        }
    }
    for (kernel, ptimer) in kernels {
        p.state(PROXY, kernel, State::KERNEL_CH_STOP, ptimer);
        p.stop(PROXY, kernel);
    }
    let report = report(&p);
    assert_eq!(report.lost.stray_kernel_times, 2);
    assert_eq!((row(&report).timings["kernel"], row(&report).timings["proxy"]), (2, 1));
    assert_eq!(row(&report).duration_ns.unwrap().max, 500_000);
    let metrics = metrics(&p);
    assert_eq!(metrics.lost[&("stray", EventKind::KernelCh.name())], 2);
    assert!(timed(&metrics).0.contains(&(Timing::Kernel, 2)), "{:?}", timed(&metrics));
}
