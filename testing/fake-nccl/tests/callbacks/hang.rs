// SPDX-License-Identifier: Apache-2.0
//! The watchdog: it reports a hanging operation once, reports its end, and ignores everything else.

use crate::common::{Played, command, play, play_with};
use ncclscope_trace::EventKind;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::progress::{Heartbeat, Progress, progress_flags};

/// Ends when the watchdog has made all its reports; the limit is two seconds.
fn watched(version: usize, script: &str) -> Played {
    let env = [("NCCLSCOPE_HANG_SEC", "2"), ("NCCLSCOPE_HANG_ACTION", "log,exec:true")];
    play_with(version, script, false, &["--ops", "1"], &env)
}

/// Each script with the text of its report, and the first version with its events.
const HANGS: [(&str, &str, usize); 13] = [
    ("hang-kernel", "H3a kernel-not-started: its kernel has not started", 4),
    ("hang-channel", "H3b kernel-partly-started: its kernel has started on 1 of 2 channels", 4),
    (
        "hang-sends-nothing",
        "N1 gpu-not-producing: this GPU produces no data for rank 1 of the communicator",
        4,
    ),
    ("hang-peer", "  rank 1 of the communicator takes no data on channel 0: its network", 4),
    ("hang-wire", "N3 network-stalled: data to rank 1 of the communicator was given", 4),
    (
        "hang-flush",
        "N4 flush-stalled: data from rank 1 of the communicator arrived on channel 0",
        4,
    ),
    (
        "hang-takes-nothing",
        "N5 gpu-not-consuming: this GPU does not take the data that arrived from rank 1",
        4,
    ),
    ("hang-upstream", "no data has come from rank 1", 4),
    ("hang-proxy", "P1 proxy-stalled: NCCL's proxy thread ", 4),
    ("hang-launch", "H1d call-not-enqueued: the CUDA launch of its kernel does not return", 5),
    (
        "hang-returns",
        "H1d call-not-enqueued: its kernel is launched, and NCCL does not return from the call",
        5,
    ),
    ("hang-enqueues", "H1d call-not-enqueued: NCCL took it, and has not finished enqueuing it", 4),
    ("hang-group", "H1d call-not-enqueued: the application has begun a group of calls", 5),
];

fn check(version: usize, (script, says, _): (&str, &str, usize)) {
    let played = watched(version, script);
    let hangs: Vec<&str> = played.recording.hangs().iter().map(|(_, text)| text.as_str()).collect();
    let [hung, over] = hangs.as_slice() else {
        panic!("v{version} {script}: told once, and once that it is over: {hangs:#?}");
    };
    assert!(hung.starts_with("HANG: AllReduce "), "v{version} {script}: {hung}");
    assert!(hung.contains(says), "v{version} {script}: {hung}");
    assert!(hung.contains("communicator 0xc0ffee"), "v{version} {script}: {hung}");
    assert!(over.starts_with("recovered after "), "v{version} {script}: {over}");
    let freezes = played.recording.header().freezes;
    assert_eq!(freezes, 1, "v{version} {script}: what led to it is kept");
}

#[test]
fn each_local_class_and_its_end_are_reported() {
    HANGS.into_iter().for_each(|hang| check(6, hang));
}

/// The operation itself is in the other process (PXN), which has no events of the transfer.
#[test]
fn a_transfer_for_another_process_is_reported_with_its_owner() {
    let wire = "N3 network-stalled: data to rank 0 of the communicator was given to the network";
    let gpu = "  the GPU of the process that it belongs to has given no data for it; look there";
    let state = ["the oldest in SendWait", "the oldest in SendGPUWait"];
    for ((script, says), state) in
        [("hang-pxn-wire", wire), ("hang-pxn-gpu", gpu)].iter().zip(state)
    {
        let played = watched(6, script);
        let hangs: Vec<&str> =
            played.recording.hangs().iter().map(|(_, text)| text.as_str()).collect();
        let [hung, over] = hangs.as_slice() else { panic!("{script}: {hangs:#?}") };
        let owner = played.recording.header().pid ^ 1;
        let what = format!(
            "the send to rank 0 for process {owner} (PXN), rank 1 of its communicator, has not"
        );
        assert!(hung.starts_with(&format!("HANG: {what}")), "{script}: {hung}");
        assert!(hung.contains(says) && hung.contains(state), "{script}: {hung}");
        assert!(hung.contains("1 of 4 steps done"), "{script}: {hung}");
        assert!(over.starts_with("recovered after "), "{script}: {over}");
    }
}

#[test]
fn a_version_without_api_events_reports_the_same_for_enqueued_operations() {
    let first = HANGS.into_iter().filter(|(.., since)| *since <= 4);
    first.step_by(4).for_each(|hang| check(4, hang));
}

#[test]
fn what_is_no_hang_is_left_alone() {
    let check = |version| {
        let played = watched(version, "hang-quiet");
        assert_eq!(played.recording.hangs(), [], "v{version}");
        assert_eq!(played.recording.header().freezes, 0, "v{version}");
    };
    std::thread::scope(|scope| {
        for version in [3, 4, 7] {
            scope.spawn(move || check(version));
        }
    });
}

#[test]
fn an_operation_whose_end_may_be_lost_is_no_hang() {
    // Losses in a flood are random: it is repeated until they include ends.
    let lost_ends = |played: &Played| -> u64 {
        played.recording.lanes().iter().flat_map(|lane| lane.header.lost_ends).sum()
    };
    let played = (0..5).map(|_| watched(6, "hang-lossy")).find(|played| {
        assert_eq!(played.recording.hangs(), []);
        lost_ends(played) > 0
    });
    let played = played.expect("the flood is too much for the drain thread, ends among it");
    assert_eq!(played.recording.hangs(), []);
    assert_ne!(last_progress(&played).flags & progress_flags::LOSSY, 0);
}

/// The time until the script's hang was reported, ms.
fn reported_after(played: &Played) -> u64 {
    let lines = played.text.lines().rev();
    let mut said = lines.filter_map(|line| line.strip_prefix("reported after "));
    said.next().and_then(|ms| ms.strip_suffix(" ms")?.parse().ok()).expect("the script says so")
}

/// The seconds that follow `before` in a report: the plugin's own clock.
fn seconds_after(report: &str, before: &str) -> f64 {
    let (_, after) = report.split_once(before).expect("it is in the report");
    after.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn a_hang_is_reported_in_time_although_events_are_refused() {
    let played = watched(6, "hang-refused");
    let hangs = played.recording.hangs();
    assert!(hangs[0].1.contains("started and not ended: 0-1"), "{hangs:?}");
    let ms = reported_after(&played);
    // A second of it is the watchdog's pace, and a busy machine makes that longer.
    assert!((2_000..8_000).contains(&ms), "{ms} ms, the limit is 2 s");
    assert_ne!(last_progress(&played).flags & progress_flags::LOSSY, 0);
}

#[test]
fn a_process_that_is_stopped_for_longer_than_the_limit_does_not_hang() {
    let env = [("NCCLSCOPE_HANG_SEC", "3"), ("NCCLSCOPE_HANG_ACTION", "log,exec:true")];
    let played = play_with(6, "hang-stopped", false, &["--ops", "1"], &env);
    let hangs = played.recording.hangs();
    assert_eq!(hangs.len(), 2, "that after it is found, and over: {hangs:#?}");
    assert!(hangs[0].1.starts_with("HANG: AllReduce 4 "), "{hangs:#?}");
    let ms = reported_after(&played);
    assert!((3_000..9_000).contains(&ms), "{ms} ms, the limit is 3 s");
}

#[test]
fn an_application_that_does_not_answer_keeps_no_command_no_copy_and_no_signal() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let (run, said) = (dir.path().join("run"), dir.path().join("said"));
    let actions = format!("log,dump,signal:ABRT,exec:cp $NCCLSCOPE_HANG_REPORT {said:?}");
    let mut command = command(6, "hang-blocked", &run, &["--ops", "1"]);
    command.env("NCCLSCOPE_HANG_SEC", "2").env("NCCLSCOPE_HANG_ACTION", actions);
    let output = command.output().unwrap();
    assert_eq!(output.status.signal(), Some(6), "{output:?}");
    assert!(std::fs::read_to_string(said).unwrap().starts_with("HANG: AllReduce 3 "));
    let files = std::fs::read_dir(&run).unwrap().flatten().map(|file| file.file_name());
    let mut names: Vec<String> = files.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name.starts_with("dump-"));
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn many_hangs_at_once_are_a_few_reports_that_name_the_others() {
    let played = watched(6, "hang-many");
    let hangs: Vec<&str> = played.recording.hangs().iter().map(|(_, text)| text.as_str()).collect();
    let (hung, over): (Vec<&str>, Vec<&str>) =
        hangs.iter().partition(|text| text.starts_with("HANG: "));
    assert_eq!((hung.len(), over.len()), (8, 8), "each reported hang has an end: {hangs:#?}");
    let also: usize = hung.iter().map(|text| text.matches("also stuck: AllReduce").count()).sum();
    assert_eq!(also, 8, "{hangs:#?}");
    assert!(hung.iter().any(|text| text.contains("also stuck: 4 more")), "{hangs:#?}");
    assert!(over.iter().all(|text| text.starts_with("recovered after ")), "{hangs:#?}");
}

#[test]
fn proxy_ops_that_nccl_never_stops_cost_nothing_and_hide_no_hang() {
    // Without lanes of other processes to adopt first, the drain thread prepares slots in time.
    let env = [
        ("NCCLSCOPE_HANG_SEC", "2"),
        ("NCCLSCOPE_HANG_ACTION", "log,exec:true"),
        ("NCCLSCOPE_LANES", "off"),
    ];
    let played = play_with(6, "hang-leaks", false, &["--ops", "1"], &env);
    let (op, step) = (EventKind::ProxyOp.index(), EventKind::ProxyStep.index());
    let recording = &played.recording;
    assert_eq!((played.counts[op].1, played.counts[step].1), (0, 0), "none is refused");
    assert_eq!(recording.header().without_slot, [0; KINDS]);
    let lost: u64 = recording.lanes().iter().flat_map(|lane| lane.header.lost).sum();
    assert_eq!(lost, 0);
    let hangs = recording.hangs();
    let hung = &hangs[0].1;
    assert!(
        hung.contains(
            "N3 network-stalled: data to rank 1 of the communicator was given to the network"
        ),
        "{hangs:?}"
    );
    // An operation of the other communicator that ended just before does not raise the limit.
    for said in ["enqueued ", "has not moved for "] {
        let seconds = seconds_after(hung, said);
        assert!((2.0..3.0).contains(&seconds), "{said}{seconds} s, the limit is 2 s: {hung}");
    }
    assert_eq!(hangs.len(), 2, "{hangs:?}");
}

#[test]
fn a_drill_goes_the_whole_way_and_says_what_it_is() {
    let played = watched(5, "hang-drill");
    let hangs = played.recording.hangs();
    assert_eq!(hangs.len(), 2, "{hangs:?}");
    assert!(hangs[0].1.starts_with("DRILL: HANG: a simulated operation"), "{hangs:?}");
    assert!(hangs[1].1.starts_with("DRILL: recovered after "), "{hangs:?}");
}

#[test]
fn how_far_a_process_has_come_is_in_its_recording() {
    for version in fake_nccl::VERSIONS {
        let played = play(version, "allreduce", false, &["--ops", "100"]);
        let last = last_progress(&played);
        let Progress { api, enqueued, started, done, .. } = last;
        let kernels = if version >= 3 { 100 } else { 0 };
        assert_eq!((api, enqueued, started, done), (100, 100, kernels, 100), "v{version}");
        let has = |flag| last.flags & flag != 0;
        assert_eq!(has(progress_flags::NO_API), version < 5, "v{version}");
        assert_eq!(has(progress_flags::NO_KERNEL), version < 3, "v{version}");
        let never = progress_flags::PARTIAL | progress_flags::LOSSY | progress_flags::STUCK;
        assert!(!has(never | progress_flags::NO_END) && has(progress_flags::ENDED), "{last:?}");
        assert_ne!(last.hash, 0, "v{version}");
    }
}

/// The last progress record of its communicator.
fn last_progress(played: &Played) -> Progress {
    let progress = |heartbeat: &Heartbeat| match heartbeat {
        Heartbeat::Progress(progress) => Some(*progress),
        _ => None,
    };
    played.recording.heartbeats().iter().rev().find_map(progress).expect("a progress record")
}
