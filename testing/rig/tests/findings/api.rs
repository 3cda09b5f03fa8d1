// SPDX-License-Identifier: Apache-2.0
//! Findings about what NCCL reports of calls and operations, and with which rank.

use crate::job::{Run, array, kinds, record, started};
use crate::{COUNT, copies, copies_2_30, kernels_2_32, mixed_2_28, mixed_2_32};
use rig::topology::Topology;
use std::collections::BTreeSet;

/// Broadcasts go to a queue that NCCL's profiler code does not walk (src/plugin/profiler.cc and
/// src/scheduler/allgatherv_sched.cc@v2.30.7-1).
#[test]
fn finding_01_broadcast_is_invisible_below_the_api_level_from_2_29_on() {
    if let Some(run) = mixed_2_28() {
        assert_eq!(run.operations("Broadcast").len(), 1, "{}", run.report);
        for rank in &run.trace.ranks {
            for name in ["CollApi Broadcast", "Coll Broadcast"] {
                assert_eq!(rank.named(name).len(), 1, "2.28.9 {name}");
            }
            assert_eq!(rank.named("KernelCh Broadcast").len(), 2);
        }
        assert!(!run.text.contains("nothing below the API"), "{}", run.text);
    }
    // The matrix checks 2.29.7 itself: its invariants count by release.
    if let Some(run) = record("2.30.7", |job| job, &["broadcast:300001"]) {
        for rank in run.ranks() {
            assert_eq!(kinds(rank), ["CollApi", "GroupApi"], "{rank}");
        }
        expect_untold_broadcast(&run);
    }
    for run in [copies_2_30(), mixed_2_32()].into_iter().flatten() {
        expect_untold_broadcast(run);
    }
}

#[track_caller]
fn expect_untold_broadcast(run: &Run) {
    run.expect_complete();
    assert_eq!(run.operations("Broadcast").len(), 0, "{}", run.report);
    for rank in &run.trace.ranks {
        let named = rank.slices.iter().filter(|slice| slice.name.ends_with("Broadcast"));
        let names: Vec<_> = named.map(|slice| slice.name.as_str()).collect();
        assert_eq!(names, ["CollApi Broadcast"], "rank {}", rank.rank);
    }
    let said = "2 Broadcast calls show nothing below the API. From 2.29 on NCCL reports no more of \
                a Broadcast";
    assert!(run.says(said), "{}", run.report["unknowable"]);
    assert!(run.text.contains(said), "{}", run.text);
}

/// The parent of a replay's Coll is the call of the capture, which ended long before and serves
/// every replay.
#[test]
fn finding_05_replays_of_a_graph_come_from_another_thread_and_name_the_captured_call() {
    // From 2.29 on, no profiler sees a Broadcast, and its kernels disturb the times of other
    // kernels.
    for (run, broadcast) in [(mixed_2_28(), 1), (kernels_2_32(), 0)] {
        let Some(run) = run else { continue };
        run.expect_complete();
        for rank in run.ranks() {
            // Four AllReduce, one group of a send and a receive, one capture; and the Broadcast.
            assert_eq!(started(rank, "GroupApi"), 6 + broadcast, "{rank}");
            assert_eq!(started(rank, "CollApi"), 5 + broadcast, "{rank}");
            assert_eq!(started(rank, "KernelLaunch"), 6 + broadcast, "{rank}");
            // None for the capture, and one for each replay.
            assert_eq!(started(rank, "Group"), 8 + broadcast, "{rank}");
            assert_eq!(started(rank, "Coll"), 7 + broadcast, "{rank}");
        }
        for rank in &run.trace.ranks {
            let calls = rank.named("CollApi AllReduce").into_iter();
            let captured: Vec<_> = calls.filter(|call| call.args["graph_captured"] == 1).collect();
            let [call] = captured.as_slice() else { panic!("{} captures", captured.len()) };
            let replays = rank.below(call, "Operations");
            let numbers: Vec<_> = replays.iter().map(|replay| replay.number("nccl_seq")).collect();
            assert_eq!(numbers, [4, 5, 6], "rank {}", rank.rank);
            for replay in &replays {
                assert_eq!(replay.number("bytes"), 4 * 4096);
                assert!(replay.start > call.end, "the call was over");
            }
            assert_eq!(rank.below(call, "Kernel channel").len(), 6, "two channels a replay");
        }
        for file in array(&run.checked, "files") {
            for kind in ["Group", "Coll"] {
                assert_eq!(file["kinds"][kind]["threads"].to_string(), r#"["api","callback"]"#);
            }
            for kind in ["GroupApi", "CollApi", "KernelLaunch"] {
                assert_eq!(file["kinds"][kind]["threads"].to_string(), r#"["api"]"#, "{kind}");
            }
        }
    }
}

/// `eDescr.rank` is 0 in most events of 2.28.9 (src/plugin/profiler.cc@v2.28.9-1): four ranks in
/// one process tell whether the rank is that of `init`.
#[test]
fn finding_06_the_rank_is_that_of_init() {
    let threads = |job: rig::job::Job| job.topology(Topology::Threads);
    let Some(run) = record("2.28.9", threads, &["allreduce:1000"]) else { return };
    run.expect_complete();
    let pids: BTreeSet<_> = run.ranks().iter().map(|rank| rank["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 1, "{}", run.report);
    let numbers: BTreeSet<_> = run.ranks().iter().map(|rank| rank["rank"].as_u64()).collect();
    assert_eq!(numbers, BTreeSet::from([0, 1, 2, 3].map(Some)), "{}", run.report);
    for rank in run.ranks() {
        for kind in ["GroupApi", "CollApi", "KernelLaunch", "Coll", "KernelCh"] {
            assert_eq!(started(rank, kind), 1, "{kind} {rank}");
        }
    }
    for rank in &run.trace.ranks {
        for name in ["GroupApi", "CollApi AllReduce", "KernelLaunch", "KernelCh AllReduce"] {
            assert_eq!(rank.named(name).len(), 1, "rank {} {name}", rank.rank);
        }
    }
}

/// The call counts floats, and the Coll event counts bytes of type int8: the reported size must be
/// neither a quarter nor four times the right one.
#[test]
fn finding_07_a_broadcast_of_2_28_counts_bytes_and_has_the_right_size() {
    let Some(run) = mixed_2_28() else { return };
    let rows = run.operations("Broadcast");
    let [row] = rows.as_slice() else { panic!("{}", run.report) };
    assert_eq!((&row["bytes"], &row["datatype"]), (&(4 * COUNT).into(), &"ncclFloat32".into()));
    for rank in &run.trace.ranks {
        let [call] = rank.named("CollApi Broadcast")[..] else { panic!("one call") };
        assert_eq!((call.number("count"), &call.args["datatype"]), (COUNT, &"ncclFloat32".into()));
        let [operation] = rank.operations("Broadcast")[..] else { panic!("one operation") };
        assert_eq!(operation.number("bytes"), 4 * COUNT);
        // The root, which is rank 1, sends all of the data over the network once.
        let sent = rank.below(call, "Proxy send");
        let bytes: u64 = sent.iter().map(|op| op.number("bytes")).sum();
        assert_eq!(bytes, if rank.rank == 1 { 4 * COUNT } else { 0 }, "rank {}", rank.rank);
    }
    // The root may end before the others arrive.
    assert!(row["busbw_gbs"].is_null(), "{row}");
    let rate = row["busbw_with_waiting_gbs"].as_f64().expect("a bandwidth");
    let median = row["with_waiting_ns"]["p50"].as_f64().expect("a time");
    let moved = rate * median;
    assert!((moved / 1_200_004.0 - 1.0).abs() < 0.01, "{moved} bytes: {row}");
}

/// 2.28.9 reports nothing about a collective by copy engines; 2.29 and later report a tree.
#[test]
fn finding_12_copy_engine_collectives_are_invisible_in_2_28_and_a_tree_later() {
    if let Some(run) = copies("2.28.9", &["ce:1000"]) {
        for rank in run.ranks() {
            assert_eq!(kinds(rank), [""; 0], "{rank}");
        }
        let said = "NCCL 2.28 does not report collectives that it does with copy engines";
        assert!(run.says(said), "{}", run.report["unknowable"]);
        assert!(run.text.contains(said), "{}", run.text);
    }
    if let Some(run) = copies_2_30() {
        expect_copies(run, "2.30.7");
    }
    if let Some(run) = copies("2.32.3", &["ce:1000"]) {
        expect_copies(&run, "2.32.3");
    }
}

#[track_caller]
fn expect_copies(run: &Run, version: &str) {
    run.expect_complete();
    for rank in run.ranks() {
        assert_eq!(kinds(rank), ["CeBatch", "CeColl", "CeSync", "CollApi", "GroupApi"], "{rank}");
        assert_eq!(rank["threads"].to_string(), r#"["api"]"#, "{version} {rank}");
    }
    for rank in &run.trace.ranks {
        let [call] = rank.named("CollApi AllGather")[..] else { panic!("one call") };
        let [operation] = rank.below(call, "Operations")[..] else { panic!("one operation") };
        assert_eq!(operation.number("bytes"), 8000, "{version}");
        let parts: Vec<_> =
            rank.slices.iter().filter(|slice| slice.track == "Copy engine").collect();
        let names: Vec<_> = parts.iter().map(|slice| slice.name.as_str()).collect();
        assert_eq!(names, ["CeColl AllGather", "CeSync", "CeBatch", "CeSync"], "{version}");
        let inside =
            |part: &&crate::trace::Slice| part.start >= parts[0].start && part.end <= parts[0].end;
        assert!(parts.iter().all(inside), "{version}");
    }
    assert!(run.says("2 copy-engine collectives"), "{version} {}", run.report["unknowable"]);
}
