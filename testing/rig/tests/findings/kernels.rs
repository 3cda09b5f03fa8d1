// SPDX-License-Identifier: Apache-2.0
//! Findings about kernel events and their times.

use crate::job::{array, record, started};
use crate::{kernels_2_32, mixed_2_28, with_kernels};

/// NCCL runs a send and a receive in one kernel, and reports the kernel's times for both.
#[test]
fn finding_08_a_send_and_a_receive_of_one_kernel_are_not_counted_twice() {
    for run in [mixed_2_28(), kernels_2_32()].into_iter().flatten() {
        for rank in &run.trace.ranks {
            let times = |name: &str| -> Vec<_> {
                let kernels = rank.named(name).into_iter();
                kernels.map(|k| (k.track.as_str(), k.start, k.number("gpu_ns"))).collect()
            };
            let (sends, receives) = (times("KernelCh Send"), times("KernelCh Recv"));
            assert!(!sends.is_empty(), "rank {}", rank.rank);
            assert_eq!(sends, receives, "rank {}: the same channels and pTimers", rank.rank);
            for func in ["Send", "Recv"] {
                let [operation] = rank.operations(func)[..] else { panic!("one {func}") };
                // The stop belongs to one of them: their ends are those of the network, or later if
                // NCCL on a busy machine notices the kernel's stop late.
                assert_eq!(operation.args["timing"], "proxy");
                let way = if func == "Send" { "Proxy send" } else { "Proxy receive" };
                let proxies = rank.below(operation, "Proxy");
                assert!(proxies.iter().all(|proxy| proxy.track.starts_with(way)), "{func}");
                let end = proxies.iter().map(|proxy| proxy.end).max().expect("a proxy operation");
                assert!(operation.end + 1 >= end, "{func}: {} {end}", operation.end);
                let bytes: u64 = proxies.iter().map(|proxy| proxy.number("bytes")).sum();
                assert_eq!(bytes, 4 * crate::COUNT, "{func}");
            }
        }
        for func in ["Send", "Recv"] {
            let rows = run.operations(func);
            let [row] = rows.as_slice() else { panic!("{}", run.report) };
            assert_eq!((&row["count"], &row["ranks"]), (&1.into(), &2.into()), "{row}");
            assert_eq!(row["bytes"], 4 * crate::COUNT, "{row}");
        }
    }
}

/// With kernel events on, the first collective connects the profiler for all channels (256 round
/// trips of the proxy, src/plugin/profiler.cc@v2.28.9-1) between its call and its launch: seconds
/// that belong to no operation.
#[test]
fn finding_09_the_late_launch_of_the_first_collective_is_in_no_duration() {
    let Some(run) = mixed_2_28() else { return };
    for rank in &run.trace.ranks {
        let calls = rank.named("CollApi AllReduce");
        let launches = rank.named("KernelLaunch");
        let gap = |at: usize| launches[at].start - calls[at].start;
        let (first, mut later) = (gap(0), [gap(1), gap(2), gap(3)]);
        later.sort_unstable();
        assert!(first > 10 * later[1], "rank {}: {first}, {later:?} ns", rank.rank);
        for (call, launch) in calls.iter().zip(&launches).take(4) {
            let [operation] = rank.below(call, "Operations")[..] else { panic!("one operation") };
            let [kernel] = rank.below(call, "Kernel channel")[..] else { panic!("one channel") };
            assert!(operation.start > launch.start, "it begins after its launch");
            assert_eq!(operation.args["timing"], "kernel");
            assert_eq!(operation.number("duration_ns"), kernel.number("gpu_ns"));
        }
    }
    let rows = run.operations("AllReduce");
    let first = rows.iter().find(|row| row["bytes"] == 4000).expect("a row");
    assert_eq!(first["timings"].to_string(), r#"{"kernel":8}"#, "{first}");
}

/// The profiler thread of 2.32.3 polls the counters of kernels, even while communicators are
/// destroyed and created: it must neither crash nor miss a channel.
#[test]
fn finding_10_the_profiler_thread_of_2_32_outlives_communicators() {
    let steps = [
        "allreduce:1000",
        "init",
        "comms:1000",
        "destroy:0",
        "repeat:5:allreduce:3000",
        "graph:2x4096",
        "destroy:0",
        "init",
        "repeat:5:allreduce:3000",
        "sendrecv:1000",
    ];
    let Some(run) = record("2.32.3", with_kernels, &steps) else { return };
    run.expect_complete();
    assert_eq!(run.ranks().len(), 6, "{}", run.report);
    for row in array(&run.report, "operations") {
        // Each channel has its own kernel event with its own times.
        let ranks = row["ranks"].as_u64().zip(row["count"].as_u64());
        let all = ranks.map(|(ranks, count)| ranks * count);
        let timings = row["timings"].as_object().expect("counts by source");
        assert_eq!(timings.len(), 1, "{row}");
        // The stop event of a send or receive kernel is not its end.
        let is_p2p = row["algorithm"].is_null();
        let timing = if is_p2p { "proxy" } else { "kernel" };
        assert_eq!(timings.get(timing).and_then(|count| count.as_u64()), all, "{row}");
    }
    for rank in run.ranks() {
        assert!(started(rank, "KernelCh") >= started(rank, "Coll"), "{rank}");
    }
    // The lane of an exited thread may be reused by another thread: only in a job with one
    // communicator do lanes identify threads.
    let Some(run) = kernels_2_32() else { return };
    for file in array(&run.checked, "files") {
        assert_eq!(file["kinds"]["KernelCh"]["threads"].to_string(), r#"["kernel"]"#, "{file}");
    }
}
