// SPDX-License-Identifier: Apache-2.0
//! Reports about recordings of simulated runs.

use ncclscope_report::{Report, ReportBuilder};
use ncclscope_trace::record::{
    ApiCall, CeBatch, CeColl, CeSync, Coll, GroupApi, KernelCh, KernelLaunch, NetPlugin, ProxyOp,
};
use ncclscope_trace::{Detail, EventKind, Handle, Mark, MarkKind, Recording, State, StrId};
use scripts::{API, Call, EPOCH_NS, Fault, PROXY, Process};

/// The report about processes, which are first written to files.
fn report(processes: &[Process]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = ReportBuilder::default();
    for process in processes {
        let path = process.write(dir.path()).unwrap();
        builder.add(&Recording::open(&path).unwrap());
    }
    builder.finish()
}

fn two_ranks(play: impl Fn(&mut Process)) -> [Process; 2] {
    [0, 1].map(|rank| {
        let mut process = Process::new(rank, 2);
        play(&mut process);
        process
    })
}

#[test]
fn a_step_of_the_hosts_clock_is_told_and_changes_no_duration() {
    let durations = |report: &Report| {
        let rows = report.operations.iter().map(|row| row.duration_ns.as_ref().unwrap().max);
        (rows.collect::<Vec<u64>>(), report.open_operations[0].age_ns)
    };
    let run = |set: i64| {
        report(&two_ranks(|p| {
            p.collective(Call::ALL_REDUCE);
            p.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
            p.clock_set = set;
        }))
    };
    let (plain, set) = (run(0), run(-3_600_000_000_000));
    assert_eq!(plain.problems, [""; 0]);
    assert_eq!(durations(&set), durations(&plain));
    let told = "the host's clock was set 60 min 0 s back: all times are by how it was set last";
    assert_eq!(set.problems.len(), 2, "{:?}", set.problems);
    assert!(set.problems.iter().all(|text| text.ends_with(told)), "{:?}", set.problems);
    let length =
        |report: &Report| report.ranks[0].end_ns.unwrap() - report.ranks[0].start_ns.unwrap();
    assert_eq!(length(&set), length(&plain));
}

#[test]
fn one_all_reduce_is_counted_as_nccl_did_it() {
    let report = report(&two_ranks(|p| p.collective(Call::ALL_REDUCE)));
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.ranks.len(), 2);
    for (rank, row) in (0..).zip(&report.ranks) {
        assert_eq!((row.rank, row.nranks, row.api_version), (Some(rank), Some(2), Some(5)));
        assert_eq!(row.nccl_version.as_deref(), Some("2.28.9"));
        assert_eq!(row.threads, ["api", "proxy"]);
        let started: Vec<(&str, u64)> = row.events.iter().map(|(k, e)| (*k, e.started)).collect();
        assert_eq!(
            started,
            [
                ("Coll", 1),
                ("CollApi", 1),
                ("Group", 1),
                ("GroupApi", 1),
                ("KernelCh", 2),
                ("KernelLaunch", 1),
                ("ProxyOp", 4),
                ("ProxyStep", 16),
            ]
        );
        assert!(row.events.values().all(|e| e.open == 0 && e.stale == 0 && e.unknown_parent == 0));
        let states = [
            ("GroupEndApiStart", 1),
            ("GroupStartApiStop", 1),
            ("KernelChStop", 2),
            ("ProxyOpInProgress", 4),
            ("ProxyStepRecvFlushWait", 8),
            ("ProxyStepRecvGPUWait", 8),
            ("ProxyStepRecvWait", 8),
            ("ProxyStepSendGPUWait", 8),
            ("ProxyStepSendPeerWait", 24),
            ("ProxyStepSendWait", 8),
        ];
        let seen: Vec<(&str, u64)> = row.states.iter().map(|(s, n)| (&**s, *n)).collect();
        assert_eq!(seen, states);
        // Callbacks come at least 30 ns after the GPU's time stamp, and the launch 2 µs before it.
        let error = row.clock.gpu_error_ns.unwrap();
        assert!((1_000..5_000).contains(&error), "{error}");
    }
    let [row] = report.operations.as_slice() else { panic!("{:?}", report.operations) };
    assert_eq!(
        (row.func.as_str(), row.bytes, row.count, row.ranks),
        ("AllReduce", Some(4 << 20), 1, 2)
    );
    assert_eq!((row.timing, row.open, row.channels), ("kernel", 0, Some(2)));
    assert_eq!((row.algorithm.as_deref(), row.protocol.as_deref()), (Some("RING"), Some("SIMPLE")));
    let durations = row.duration_ns.unwrap();
    let algbw = row.algbw_gbs.unwrap();
    assert!((algbw - f64::from(4 << 20) / durations.p50 as f64).abs() < 1e-9);
    assert_eq!(row.busbw_gbs, row.algbw_gbs);
    assert_eq!((row.transfer_ns, row.with_waiting_ns), (row.duration_ns, row.duration_ns));
    assert_eq!((row.transfers, row.transfer_unknown), (1, None));
    assert_eq!(report.open_operations.len(), 0);
    assert_eq!(report.lost.total, 0);
}

#[test]
fn peers_have_bytes_waits_and_a_fit() {
    let report = report(&two_ranks(|p| {
        p.collective(Call::ALL_REDUCE);
        p.collective(Call { step_bytes: 1000, ..Call::ALL_REDUCE });
        p.send_recv(1 - p.comm.rank, 250);
    }));
    let [there, back] = report.peers.as_slice() else { panic!("{:?}", report.peers) };
    let comm_ranks = [there.comm_src, there.comm_dst, back.comm_src, back.comm_dst];
    assert_eq!(comm_ranks, [0, 1, 1, 0]);
    // No launcher set ranks, so the ranks in the largest communicator count.
    assert_eq!([there.src, there.dst, back.src, back.dst], [0, 1, 1, 0].map(Some));
    assert_eq!(there.transfers, 8 + 8 + 1);
    assert_eq!(there.bytes, Some(8 * (512 << 10) + 9 * 1000));
    // The simulated network takes 2 µs and 0.1 ns per byte; 960 ns of these pass before SendWait.
    assert!(there.latency_ns.unwrap().abs_diff(1040) < 100, "{there:?}");
    assert!((there.rate_gbs.unwrap() - 10.0).abs() < 0.1, "{there:?}");
    assert!(there.r2.unwrap() > 0.99);
    assert_eq!(there.waits_ns.send_gpu, Some(17 * 19 * 16));
    assert_eq!(there.waits_ns.recv_flush, Some(17 * 40 * 16));
    let functions: Vec<(&str, Option<i32>)> =
        report.operations.iter().map(|o| (o.func.as_str(), o.channels.map(i32::from))).collect();
    assert_eq!(functions, [("AllReduce", Some(2)), ("Recv", Some(1)), ("Send", Some(1))]);
    assert_eq!(report.operations[1].timing, "proxy");
}

#[test]
fn sizes_follow_nccl_tests() {
    let report = report(&two_ranks(|p| {
        p.header.host = "node".into();
        for func in ["AllGather", "Broadcast", "ReduceScatter"] {
            p.collective(Call { func, count: 1024, ..Call::ALL_REDUCE });
        }
    }));
    let rows: Vec<_> = report
        .operations
        .iter()
        .map(|o| {
            (
                o.func.as_str(),
                o.bytes.unwrap(),
                o.datatype.as_str(),
                o.busbw_gbs.zip(o.algbw_gbs).map(|(busbw, algbw)| busbw / algbw),
                o.transfer_unknown,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("AllGather", 8192, "ncclFloat32", Some(0.5), None),
            ("Broadcast", 4096, "ncclFloat32", None, Some("a rank may end before another arrives")),
            ("ReduceScatter", 8192, "ncclFloat32", Some(0.5), None),
        ]
    );
}

/// A rank that arrives late makes the others wait, and the network no slower.
#[test]
fn the_bandwidth_is_that_of_the_transfer_and_the_waiting_names_the_late_rank() {
    let row = |ranks: &[Process]| {
        let mut report = report(ranks);
        assert_eq!(report.operations.len(), 1);
        report.operations.remove(0)
    };
    let even = row(&two_ranks(|p| (0..20).for_each(|_| p.collective(Call::ALL_REDUCE))));
    let uneven = two_ranks(|p| {
        for _ in 0..20 {
            // Rank 0 enters the collective 5 ms before rank 1.
            p.waits = if p.comm.rank == 0 { 5_000_000 } else { 0 };
            p.collective(Call::ALL_REDUCE);
        }
    });
    let late = row(&uneven);
    assert_eq!(late.transfer_ns, even.transfer_ns);
    assert_eq!((late.busbw_gbs, late.transfers), (even.busbw_gbs, 20));
    assert!(late.with_waiting_ns.unwrap().max > 5_000_000, "{late:?}");
    let last = late.last_rank.unwrap();
    assert_eq!((last.rank, last.comm_rank, last.times), (Some(1), 1, 20));
    assert!(last.waiting_ns.abs_diff(20 * 5_000_000) < 20_000, "{last:?}");
    assert!(late.waiting_ns.unwrap().p50.abs_diff(5_000_000) < 1_000, "{late:?}");
    let alone = row(&uneven[..1]);
    assert_eq!((alone.transfer_ns, alone.busbw_gbs), (None, None));
    let why = "no collective has the arrival and the end of all ranks of the communicator";
    assert_eq!(alone.transfer_unknown, Some(why));
    assert!(alone.busbw_with_waiting_gbs.unwrap() < even.busbw_gbs.unwrap() / 2.0);
}

#[test]
fn an_operation_that_does_not_end_makes_the_time_in_nccl_a_bound() {
    let role = |hangs: bool| {
        let mut report = report(&two_ranks(|p| {
            p.collective(Call::ALL_REDUCE);
            if hangs {
                p.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
            }
        }));
        report.roles.remove(0)
    };
    let (whole, hung) = (role(false), role(true));
    assert_eq!((whole.bound, hung.bound), (None, Some("least")));
    assert_eq!(whole.in_nccl_ns, hung.in_nccl_ns);
}

/// Rank 0 is last nine times by a millisecond each, rank 1 once by six seconds.
#[test]
fn the_late_rank_is_the_one_that_cost_most_and_not_the_one_that_was_last_most_often() {
    let report = report(&two_ranks(|p| {
        for time in 0..10 {
            p.waits = match (time, p.comm.rank) {
                (5, 0) => 6_000_000_000,
                (5, _) | (_, 0) => 0,
                _ => 1_000_000,
            };
            p.collective(Call::ALL_REDUCE);
        }
    }));
    let [late, other] = &report.late_ranks[..] else { panic!("{:?}", report.late_ranks) };
    assert_eq!((other.rank, other.waiting_ns < 10_000_000), (Some(0), true), "{other:?}");
    assert_eq!((late.rank, late.comm.as_deref(), late.comm_rank), (Some(1), None, None));
    assert_eq!(late.host.as_ref(), Some(&report.ranks[1].host));
    assert!(late.waiting_ns.abs_diff(6_000_000_000) < 1_000_000, "{late:?}");
    assert!((0.99..=1.0).contains(&late.share), "{late:?}");
    let last = report.operations[0].last_rank.unwrap();
    assert_eq!((last.rank, last.times), (Some(1), 1));
}

#[test]
fn a_hang_says_what_it_waits_for() {
    let report = report(&two_ranks(|p| {
        p.collective(Call::ALL_REDUCE);
        let fault = if p.comm.rank == 0 { Fault::Hang } else { Fault::None };
        p.collective(Call { fault, ..Call::ALL_REDUCE });
    }));
    let [open] = report.open_operations.as_slice() else { panic!("{:?}", report.open_operations) };
    assert_eq!((open.rank, open.func.as_str(), open.nccl_seq), (Some(0), "AllReduce", Some(1)));
    assert_eq!(open.waits_for.len(), 2, "{open:?}");
    let (op, kernel) = (&open.waits_for[0], &open.waits_for[1]);
    assert!(
        op.starts_with("channel 0, send to communicator rank 1: 0 of 4 steps done, step 0 in"),
        "{op}"
    );
    assert!(op.contains("SendPeerWait for 1.00 s"), "{op}");
    assert!(kernel.starts_with("channel 0: KernelCh started"), "{kernel}");
    let row = &report.operations[0];
    assert_eq!((row.count, row.open, row.ranks), (2, 1, 2));
    assert_eq!(row.timings["kernel"], 3);
    assert_eq!(report.ranks[0].events["ProxyStep"].open, 1);
    assert_eq!(report.ranks[0].events["ProxyOp"].open, 1);
}

#[test]
fn without_kernel_events_the_proxy_tells_the_time() {
    let report = report(&two_ranks(|p| {
        p.header.mask &= !EventKind::KernelCh.bit();
        p.collective(Call { fault: Fault::NoKernel, ..Call::ALL_REDUCE });
    }));
    let row = &report.operations[0];
    assert_eq!((row.timing, row.open), ("proxy", 0));
    assert!(row.duration_ns.unwrap().min > 10_000 && row.algbw_gbs.is_some());
    assert!(report.unknowable[0].contains("Kernel events were off"), "{:?}", report.unknowable);
    assert_eq!(report.ranks[0].clock.gpu_error_ns, None);
}

/// One group call of `calls` AllReduces, with one launch that CUDA events measured.
fn launched(p: &mut Process, calls: u64, ns: u64) {
    let (func, float) = (p.string("AllReduce"), p.string("ncclFloat32"));
    let group = p.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 1 }));
    let call = ApiCall { func, datatype: float, count: calls, ..ApiCall::default() };
    let calls: Vec<Handle> =
        (0..calls).map(|_| p.start(API, group, Detail::CollApi(call))).collect();
    let launch = p.start(API, group, Detail::KernelLaunch(KernelLaunch { stream: 7 }));
    // The measurement may be read before the launch itself: another thread records it.
    p.state(PROXY, launch, State::CUDA_EVENT, ns);
    for api in calls {
        let coll = Coll { func, datatype: float, count: call.count, ..Coll::default() };
        let coll = p.start(API, api, Detail::Coll(coll));
        [coll, api].into_iter().for_each(|event| p.stop(API, event));
    }
    [launch, group].into_iter().for_each(|event| p.stop(API, event));
}

#[test]
fn cuda_events_time_an_operation_with_a_launch_of_its_own() {
    let report = report(&two_ranks(|p| {
        p.header.mask &= !EventKind::KernelCh.bit();
        launched(p, 1, 250_000);
        launched(p, 2, 900_000);
    }));
    let [own, shared] = report.operations.as_slice() else { panic!("{:?}", report.operations) };
    assert_eq!((own.timing, own.duration_ns.unwrap().p50), ("cuda_event", 250_000));
    assert!(own.algbw_gbs.is_some() && shared.algbw_gbs.is_none());
    assert_eq!((shared.timing, shared.count), ("enqueue", 2));
    assert_eq!(report.ranks[0].states.len(), 0, "no state of NCCL's");
    assert!(report.unknowable[0].contains("by CUDA events"), "{:?}", report.unknowable);
}

#[test]
fn shared_memory_without_kernel_events_shows_no_end() {
    let report = report(&two_ranks(|p| {
        p.comm.nodes = 1;
        p.collective(Call { fault: Fault::Local, ..Call::ALL_REDUCE });
    }));
    let row = &report.operations[0];
    assert_eq!((row.timing, row.open, row.algbw_gbs), ("enqueue", 0, None));
    assert_eq!(report.ranks[0].events["ProxyOp"].open, 4);
    assert_eq!(report.open_operations.len(), 0);
    let said = report.unknowable.iter().any(|s| s.contains("2 operations have neither"));
    assert!(said, "{:?}", report.unknowable);
}

#[test]
fn an_operation_that_has_not_begun_is_open_behind_one_that_has() {
    for (fault, word) in [
        (Fault::Local, "channel 0, receive from communicator rank 1: none of 4 steps has started"),
        (Fault::Enqueued, "the kernel has not started"),
    ] {
        let report = report(&two_ranks(|p| {
            p.collective(Call::ALL_REDUCE);
            p.collective(Call { fault, ..Call::ALL_REDUCE });
        }));
        assert_eq!(report.open_operations.len(), 2, "{fault:?}");
        let waits = &report.open_operations[0].waits_for;
        assert!(waits[0].contains(word), "{waits:?}");
    }
    // A later kernel follows it, so it must have run: its events were lost.
    let report = report(&two_ranks(|p| {
        p.collective(Call { fault: Fault::Enqueued, ..Call::ALL_REDUCE });
        p.collective(Call::ALL_REDUCE);
    }));
    assert_eq!(report.open_operations.len(), 0);
    assert_eq!(report.operations[0].timings["enqueue"], 2);
}

/// API v1 to v3: steps have no size, and the states of operations have the bytes moved so far.
#[test]
fn bytes_that_only_operations_tell_are_those_of_the_peer() {
    let peers = |states: &[(u8, u64)]| {
        let mut process = Process::new(0, 2);
        let op = ProxyOp { peer: 1, steps: 2, is_send: true, ..ProxyOp::default() };
        let op = ProxyOp { pid: process.header.pid, ..op };
        // If NCCL reuses the memory of an operation, it counts on from the old value.
        for from in [0, 8_000] {
            let op = process.start(PROXY, Handle::NULL, Detail::ProxyOp(op));
            for &(state, bytes) in states {
                process.state(PROXY, op, State(state), from + bytes);
            }
            process.stop(PROXY, op);
        }
        report(&[process]).peers.iter().map(|row| (row.src, row.dst, row.bytes)).collect::<Vec<_>>()
    };
    let done = [(0, 0), (2, 0), (2, 3_000), (3, 5_000), (3, 8_000)];
    assert_eq!(peers(&done), [(Some(0), Some(1), Some(16_000))], "the last of each counts");
    assert_eq!(peers(&[(19, 0)]), [], "later versions tell nothing there");
}

#[test]
fn libraries_that_communicate_without_nccl_are_named() {
    let named = |beside: Option<&str>| {
        let mut process = Process::new(0, 2);
        process.identity.beside = beside.map(str::to_owned);
        process.collective(Call::ALL_REDUCE);
        let said = report(&[process]).unknowable;
        said.into_iter().find(|sentence| sentence.contains("can communicate without NCCL"))
    };
    assert!(named(Some("nvshmem,vllm")).is_some_and(|said| said.contains(": nvshmem, vllm.")));
    assert_eq!(named(None), None);
}

#[test]
fn events_of_the_network_plugin_belong_to_their_step() {
    let mut process = Process::new(0, 2);
    process.net_events(1 << 16 | 1);
    // Its step, and so its ProxyOp, is not in the recording.
    let gone = Handle::slot_op(u64::from(process.header.process), PROXY, 999, 9).step_of(1);
    let event = process.start(PROXY, gone, Detail::NetPlugin(NetPlugin::default()));
    process.stop(PROXY, event);
    let report = report(&[process]);
    let net = report.ranks[0].events["NetPlugin"];
    assert_eq!((net.started, net.stopped, net.unknown_parent), (3, 3, 1), "one is an orphan");
}

#[test]
fn stale_foreign_and_lost_events_are_told_apart() {
    let mut process = Process::new(0, 2);
    process.lose(API, EventKind::CollApi, 3);
    let group =
        process.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 1 }));
    process.stop(API, group);
    process.stop(PROXY, group);
    let gone = Handle::value(u64::from(process.header.process), EventKind::CollApi, 0, 999);
    let launch = process.start(API, gone, Detail::KernelLaunch(KernelLaunch { stream: 0 }));
    process.stop(API, launch);
    process.stop(API, gone);
    let other = Handle::value(1, EventKind::Coll, 0, 1);
    let op = ProxyOp { pid: 5, rank: 1, foreign: true, ..ProxyOp::default() };
    let foreign = process.start(PROXY, other, Detail::ProxyOp(op));
    process.stop(PROXY, foreign);

    let report = report(&[process]);
    let [rank, unknown] = report.ranks.as_slice() else { panic!("{:?}", report.ranks) };
    let group = rank.events["GroupApi"];
    assert_eq!((group.started, group.stopped, group.stale), (1, 1, 1));
    assert_eq!(rank.events["KernelLaunch"].unknown_parent, 1);
    assert_eq!(rank.events["CollApi"].dropped, 3);
    assert!(!rank.events.contains_key("ProxyOp"));
    assert_eq!((unknown.comm.as_deref(), unknown.events["ProxyOp"].started), (None, 1));
    assert_eq!((report.lost.total, report.lost.by_kind["CollApi"]), (3, 3));
    assert!(report.problems[0].contains("1 stop or state belongs"), "{:?}", report.problems);
    assert!(report.unknowable.iter().any(|s| s.contains("PXN")), "{:?}", report.unknowable);
}

#[test]
fn a_graph_replay_finds_its_call_long_after() {
    let mut process = Process::new(0, 2);
    let float = process.string("ncclFloat32");
    let func = process.string("AllReduce");
    let null = Handle::NULL;
    let group_api = process.start(API, null, Detail::GroupApi(GroupApi { graph: true, depth: 1 }));
    let call = ApiCall { func, datatype: float, count: 64, graph: true, ..ApiCall::default() };
    let call = process.start(API, group_api, Detail::CollApi(call));
    process.stop(API, call);
    process.stop(API, group_api);
    for _ in 0..3 {
        // CUDA's callback thread hands the plan over; the sequence number stays the same.
        let group = process.start(PROXY, null, Detail::Group);
        let coll = Coll { func, datatype: float, count: 64, group, channels: 1, ..Coll::default() };
        let coll = process.start(PROXY, call, Detail::Coll(coll));
        let ptimer = process.ptimer();
        let kernel = process.start(PROXY, coll, Detail::KernelCh(KernelCh { channel: 0, ptimer }));
        process.stop(PROXY, coll);
        process.stop(PROXY, group);
        process.now += 5_000;
        process.state(PROXY, kernel, State::KERNEL_CH_STOP, ptimer + 5_000);
        process.stop(PROXY, kernel);
    }
    let report = report(&[process]);
    assert_eq!(report.ranks[0].threads, ["api", "callback"]);
    assert_eq!(report.ranks[0].events["Coll"].unknown_parent, 0);
    let row = &report.operations[0];
    assert_eq!((row.count, row.timing, row.bytes), (3, "kernel", Some(256)));
    assert_eq!(row.duration_ns.unwrap().max, 5_000);
    assert!(report.unknowable.iter().any(|s| s.contains("1 call is captured into CUDA graphs")));
}

#[test]
fn copy_engine_collectives_are_known_by_their_enqueueing() {
    let mut process = Process::new(0, 4);
    let (func, datatype) = (process.string("AlltoAll"), process.string("ncclInt8"));
    let ce = CeColl { func, datatype, count: 1000, seq: 9, ..CeColl::default() };
    let ce = process.start(API, Handle::NULL, Detail::CeColl(ce));
    let sync = process.start(API, ce, Detail::CeSync(CeSync { complete: false, ranks: 4 }));
    process.stop(API, sync);
    process.start(API, ce, Detail::CeBatch(CeBatch { ops: 4, bytes: 4000, intra_sync: false }));
    process.stop(API, ce);
    let report = report(&[process]);
    let row = &report.operations[0];
    assert_eq!((row.func.as_str(), row.bytes, row.timing), ("AlltoAll", Some(4000), "enqueue"));
    assert_eq!((row.open, row.algbw_gbs), (1, None));
    assert_eq!(report.open_operations[0].waits_for, ["CeBatch has not stopped"]);
    assert!(report.unknowable.iter().any(|s| s.starts_with("1 copy-engine collective: NCCL")));
}

/// An API call of a finished group, without events below it.
fn silent_call(process: &mut Process, func: &str) {
    let (func, datatype) = (process.string(func), process.string("ncclFloat32"));
    let group =
        process.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 1 }));
    let call = ApiCall { func, datatype, count: 64, ..ApiCall::default() };
    let call = process.start(API, group, Detail::CollApi(call));
    process.stop(API, call);
    process.stop(API, group);
}

#[test]
fn what_a_release_never_tells_is_said_by_release() {
    let copy_engine = "NCCL 2.28 does not report collectives that it does with copy engines";
    let batched = "1 Broadcast call shows nothing below the API. From 2.29 on";
    let other = "1 Broadcast call shows nothing below the API. NCCL reports no more for operations";
    for (version, expected) in [
        (22_703, [false, false, true]),
        (22_809, [true, false, true]),
        (22_907, [false, true, false]),
        (23_203, [false, true, false]),
    ] {
        let mut process = Process::new(0, 2);
        process.comm.nccl_version = version;
        silent_call(&mut process, "Broadcast");
        silent_call(&mut process, "Reduce");
        let report = report(&[process]);
        let says = |text: &str| report.unknowable.iter().any(|s| s.starts_with(text));
        assert_eq!([copy_engine, batched, other].map(says), expected, "{version}");
        assert!(says("1 Reduce call shows nothing below the API. NCCL reports no more"));
    }
}

#[test]
fn gpu_stamps_that_make_no_sense_are_not_used() {
    let report = report(&two_ranks(|p| {
        p.collective(Call::ALL_REDUCE);
        let (func, float) = (p.string("AllReduce"), p.string("ncclFloat32"));
        let coll = Coll { func, datatype: float, count: 1 << 20, channels: 1, ..Coll::default() };
        let coll = p.start(API, Handle::NULL, Detail::Coll(coll));
        p.stop(API, coll);
        // NCCL's ring of 64 time stamps was overtaken: the start time is that of a later operation.
        let ptimer = p.ptimer();
        let kernel = p.start(PROXY, coll, Detail::KernelCh(KernelCh { channel: 0, ptimer }));
        p.state(PROXY, kernel, State::KERNEL_CH_STOP, ptimer - 500);
        p.stop(PROXY, kernel);
    }));
    let timings: Vec<&str> = report.operations.iter().map(|row| row.timing).collect();
    assert_eq!(timings, ["proxy", "kernel"]);
}

#[test]
fn api_version_4_has_no_api_events_and_v3_no_hash() {
    let report = report(&two_ranks(|p| {
        p.comm.api_version = 3;
        p.comm.hash = 0;
        p.collective(Call::ALL_REDUCE);
    }));
    assert_eq!(report.ranks[0].threads, ["api", "proxy"]);
    assert_eq!(report.ranks[0].comm.as_deref(), Some("unknown-0"));
    assert_eq!(report.operations[0].ranks, 2);
    assert!(report.unknowable.iter().any(|s| s.contains("do not identify communicators")));
}

#[test]
fn json_has_the_keys_of_the_schema() {
    let report = report(&two_ranks(|p| p.collective(Call::ALL_REDUCE)));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], "ncclscope.report/3");
    let rank = &json["ranks"][0];
    let keys =
        ["rank", "nranks", "host", "pid", "comm", "comm_name", "nccl_version", "api_version"];
    assert!(keys.iter().all(|key| rank.get(key).is_some()), "{rank}");
    assert_eq!(rank["events"]["Coll"]["started"], 1);
    assert_eq!(rank["states"]["ProxyStepSendWait"], 8);
    assert_eq!(rank["clock"]["source"], "tsc");
    let operation = &json["operations"][0];
    assert_eq!(operation["comm"], "0x1f2e3d4c");
    assert!(operation["duration_ns"]["p99"].is_u64());
    assert!(json["peers"][0]["r2"].is_null() && json["lost"]["by_kind"].is_object());
    assert!(json["unknowable"].is_array());
}

/// A pause does not belong to the recorded time, which is the base of shares.
#[test]
fn recorded_time_is_without_pauses() {
    let recorded = |pause: u64| {
        report(&two_ranks(|p| {
            let mark = |ticks, what| Mark { ticks, what, name: StrId::NONE, value: 1 };
            p.collective(Call::ALL_REDUCE);
            let stop = p.now;
            p.now += pause;
            p.marks = vec![mark(1, MarkKind::Start), mark(stop, MarkKind::Stop)];
            p.marks.push(mark(p.now, MarkKind::Start));
            p.collective(Call::ALL_REDUCE);
        }))
    };
    let (short, long) = (recorded(1_000), recorded(10_000_000_000));
    assert_eq!(short.total_recorded_ns, long.total_recorded_ns);
    assert!((1..5_000_000_000).contains(&long.total_recorded_ns), "{}", long.total_recorded_ns);
    assert_eq!(short.roles[0].share, long.roles[0].share);
}

/// The process records from its beginning, and is stopped for a time.
#[test]
fn what_was_recorded_before_the_first_stop_is_recorded_time() {
    let recorded = |first: bool| {
        report(&two_ranks(|p| {
            let mark = |ticks, what| Mark { ticks, what, name: StrId::NONE, value: 1 };
            p.marks.extend(first.then(|| mark(1, MarkKind::Start)));
            p.collective(Call::ALL_REDUCE);
            p.marks.push(mark(p.now, MarkKind::Stop));
            p.now += 10_000_000_000;
            p.marks.push(mark(p.now, MarkKind::Start));
            p.collective(Call::ALL_REDUCE);
        }))
    };
    let (with_mark, without) = (recorded(true), recorded(false));
    assert_eq!(with_mark.total_recorded_ns, without.total_recorded_ns);
    assert_eq!(with_mark.roles[0].share, without.roles[0].share);
}

#[test]
fn windows_and_samples_are_named() {
    let report = report(&two_ranks(|p| {
        p.collective(Call::ALL_REDUCE);
        let mark = |ticks, what| Mark { ticks, what, name: StrId::NONE, value: 1 };
        p.marks = vec![mark(1, MarkKind::Start), mark(2, MarkKind::Stop), mark(3, MarkKind::Start)];
        p.header.left_out = 3;
        p.role = Some("tp");
        let group =
            p.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 1 }));
        let func = p.string("AllReduce");
        let call = ApiCall { func, count: 1, ..ApiCall::default() };
        let call = p.start(API, group, Detail::CollApi(call));
        p.stop(API, call);
        p.stop(API, group);
    }));
    let says = |text: &str| report.unknowable.iter().filter(|s| s.contains(text)).count();
    assert_eq!(says("Recording was stopped 2 times"), 1, "{:?}", report.unknowable);
    assert_eq!(says("6 operations are left out of the sample"), 1);
    assert_eq!(says("show nothing below the API"), 0, "it is known why");
    assert!(report.ranks.iter().all(|rank| rank.role.as_deref() == Some("tp")));
    let windows: Vec<_> =
        report.windows.iter().map(|w| (w.start_ns, w.stop_ns, w.sample)).collect();
    let of_one = [(EPOCH_NS + 1, Some(EPOCH_NS + 2), 1), (EPOCH_NS + 3, None, 1)];
    assert_eq!(windows, of_one.repeat(2));
}

#[test]
fn each_process_says_which_one_it_is() {
    let report = report(&two_ranks(|p| {
        p.identity.set("job", "4711.0");
        p.identity.set("rank", &p.comm.rank.to_string());
        p.identity.set("weather", "rain");
        p.collective(Call::ALL_REDUCE);
    }));
    let found = serde_json::to_value(&report.processes).unwrap();
    let row = |rank: u32| {
        let (host, pid) = (format!("node-{rank}"), 1_000 + rank);
        let file = format!("{host}-{pid}.nscope");
        let identity = serde_json::json!({
            "job": "4711.0", "host": host, "pid": pid, "rank": rank, "weather": "rain",
        });
        serde_json::json!({ "file": file, "identity": identity, "is_damaged": false })
    };
    assert_eq!(found, serde_json::json!([row(0), row(1)]));
}
