// SPDX-License-Identifier: Apache-2.0
//! Hangs inside a node, without network events: each verdict that the watchdog can give there, as
//! in the table of docs/hang.md.

use super::{LIMIT, RELEASE, Watched};
use rig::job::Job;
use rig::scenario_file::ScenarioFile;
use rig::wheel;

/// Two steps that succeed.
const WELL: &str = "\"allreduce:4096\", \"allreduce:4096\", \"sleep:200\"";
/// A step that hangs.
const HANGS: &str = "\"allreduce:262144\"";
/// CUDA events without kernel events.
const EVENTS_ALONE: &str = "env = { NCCLSCOPE_KERNEL = \"off\", NCCLSCOPE_CUDA_EVENTS = \"on\" }\n";
/// CUDA events in addition to kernel events.
const EVENTS_TOO: &str = "env = { NCCLSCOPE_CUDA_EVENTS = \"on\" }\n";

pub(super) const RUNS: &str = "its kernel runs, and what it waits for cannot be seen from here";
pub(super) const HAS_TURN: &str =
    "its kernel has not ended since its turn came, and what it waits for cannot";

/// A scenario with these steps; `more` are further lines of the file.
fn scenario(topology: &str, steps: &str, more: &str) -> ScenarioFile {
    let text = format!("topology = \"{topology}\"\nsteps = [{steps}]\nends = \"hang\"\n{more}\n");
    ScenarioFile::parse("inside.toml", &text).expect("the text is right")
}

fn kernel(what: &str) -> String {
    format!("[[fault]]\nkind = \"kernel\"\nrank = 1\nwhat = \"{what}\"\n")
}

/// Lines of a scenario in which rank 1 does these steps instead.
fn instead(steps: &str) -> String {
    format!("[[rank]]\nrank = 1\nsteps = [{steps}]\n")
}

/// Runs a job inside one node that hangs: each of `ranks` must report the given text.
fn hangs_inside(topology: &str, more: &str, said: &[(usize, &str)]) {
    hang_at(&format!("{WELL}, {HANGS}"), (topology, more), said);
}

/// As [`hangs_inside`], with other steps.
fn hang_at(steps: &str, (topology, more): (&str, &str), said: &[(usize, &str)]) {
    let file = scenario(topology, steps, more);
    if let Some(job) = Watched::start(&file, LIMIT) {
        job.wait_for(said);
    }
}

#[test]
fn inside_a_node_a_kernel_that_is_stuck_and_one_that_waits_for_it_both_run() {
    for topology in ["shm", "p2p-ipc"] {
        let said = [(0, RUNS), (1, RUNS)];
        hangs_inside(topology, &kernel("stuck:launch=3,step=1"), &said);
    }
}

#[test]
fn inside_a_node_a_kernel_that_never_starts_is_reported() {
    let said = [
        (0, RUNS),
        (1, "H3a kernel-not-started: its kernel has not started: other work is before it"),
    ];
    hangs_inside("shm", &kernel("never:launch=3"), &said);
    // The stream has reached the kernel, which is all that CUDA events show.
    let said = [(0, HAS_TURN), (1, HAS_TURN)];
    hangs_inside("p2p-cumem", &format!("{EVENTS_ALONE}{}", kernel("never:launch=3")), &said);
}

#[test]
fn inside_a_node_a_rank_that_waits_for_an_idle_one_reports_it() {
    let skip = "[[fault]]\nkind = \"skip\"\nrank = 1\nstep = 4\n";
    hangs_inside("p2p-cumem", skip, &[(0, RUNS)]);
}

#[test]
fn inside_a_node_a_proxy_thread_that_polls_no_kernel_is_named() {
    let stop = "[[fault]]\nkind = \"stopped-proxy\"\nrank = 1\nstep = 4\n";
    hangs_inside("shm", stop, &[(1, "P1 proxy-stalled: NCCL's proxy thread")]);
    // By CUDA events the kernel has ended.
    let events = format!("{EVENTS_TOO}{stop}");
    hangs_inside("shm", &events, &[(1, "P1 proxy-stalled: ")]);
}

/// The effect of other work that occupies the rest of the GPU.
#[test]
fn inside_a_node_a_kernel_without_free_sms_for_some_blocks_is_reported() {
    let said = "H3b kernel-partly-started: its kernel has started on 1 of 2 channels";
    let channels = "env = { NCCL_MIN_NCHANNELS = \"2\", NCCL_MAX_NCHANNELS = \"2\" }\n";
    let never = format!("{channels}{}", kernel("never:launch=3,channel=1"));
    hangs_inside("p2p-ipc", &never, &[(0, RUNS), (1, said)]);
    // Two ranks in one process.
    let Some(nccl) = wheel::find_or_skip(RELEASE) else { return };
    let job = Job::new(&nccl).expect("the stand-in builds").hosts(1).devices(2).threads();
    let job = job
        .env("NCCL_MIN_NCHANNELS", "2")
        .env("NCCL_MAX_NCHANNELS", "2")
        .env("CPU_CUDA_FAULTS", "never:launch=3,rank=1,channel=1")
        .steps(["init", "allreduce:4096", "allreduce:4096", "sleep:200", "allreduce:262144"]);
    let reports = Watched::of(job, LIMIT).wait_for(&[(0, RUNS), (0, said)]);
    let hung = reports[&0].iter().find(|text| text.contains(said)).expect("waited for");
    assert!(hung.contains("rank 1 of 2 has not moved for "), "{hung}");
}

#[test]
fn inside_a_node_a_kernel_behind_other_work_of_its_stream_has_not_started() {
    let busy = instead(&format!("{WELL}, \"busy:90000\", {HANGS}"));
    let steps = format!("{WELL}, {HANGS}");
    let said = "H3a kernel-not-started: its kernel has not started: other work is before it";
    hang_at(&steps, ("p2p-cumem", &busy), &[(0, RUNS), (1, said)]);
    let said = "H3a kernel-not-started: its kernel has not started, by its CUDA \
                event too: other work is before it";
    let busy = format!("{EVENTS_ALONE}{busy}");
    hang_at(&steps, ("shm", &busy), &[(0, HAS_TURN), (1, said)]);
}

#[test]
fn inside_a_node_a_kernel_behind_another_communicators_is_not_the_cause() {
    let steps = "\"allreduce:4096\", \"init\", \"comms:4096\", \"sleep:200\", \
                 \"start:262144\", \"comms:4096\"";
    let more = format!("{EVENTS_TOO}{}", kernel("stuck:launch=3,step=1"));
    let said = "it is behind operation 3 of another communicator on the same stream";
    hang_at(steps, ("p2p-ipc", &more), &[(1, RUNS), (1, said)]);
}

/// No thread may wait for the stream: a thread that waits gets the error.
#[test]
fn inside_a_node_a_kernel_that_ends_with_an_error_is_reported() {
    let steps = format!("{WELL}, \"start:262144\", \"sleep:90000\"");
    for (topology, events) in [("shm", EVENTS_TOO), ("p2p-cumem", EVENTS_ALONE)] {
        let more = format!("{events}{}", kernel("fail:launch=3"));
        hang_at(&steps, (topology, &more), &[(1, "H3c gpu-dead: "), (1, "error 719")]);
    }
}

#[test]
fn inside_a_node_a_kernel_whose_end_nccl_does_not_report_is_reported() {
    let steps = format!("{WELL}, {HANGS}, \"sleep:90000\"");
    let more = format!("{EVENTS_TOO}{}", kernel("mute:launch=3"));
    let said =
        "P1 proxy-stalled: its kernel has ended, by its CUDA event, and NCCL has not reported that";
    hang_at(&steps, ("shm", &more), &[(1, said)]);
}

#[test]
fn inside_a_node_a_call_that_connects_to_a_missing_rank_is_reported() {
    let skip = "[[fault]]\nkind = \"skip\"\nrank = 1\nstep = 4\n";
    let file = scenario("p2p-ipc", &format!("{WELL}, \"sendrecv:4096\""), skip);
    // The first operation gets ten times the limit.
    let Some(job) = Watched::start(&file, "1") else { return };
    job.wait_for(&[(0, "H1d call-not-enqueued: NCCL prepares it, or connects to other ranks")]);
}

#[test]
fn inside_a_node_a_group_that_is_not_ended_is_reported() {
    let more = instead(&format!("{WELL}, \"unended:262144\""));
    let said = "H1d call-not-enqueued: the application has begun a group of calls, and has not \
                called ncclGroupEnd";
    hang_at(&format!("{WELL}, {HANGS}"), ("shm", &more), &[(0, RUNS), (1, said)]);
}

/// A kernel like NVLS, whose stop comes at once, whatever the other ranks do. Nothing is queued
/// after it, and no CUDA event shows its end.
#[test]
fn inside_a_process_an_early_stop_that_waits_for_a_rank_of_it_is_reported() {
    let Some(nccl) = wheel::find_or_skip(RELEASE) else { return };
    let job = Job::new(&nccl).expect("the stand-in builds").hosts(1).devices(2).threads();
    let job = job
        .env("NCCL_ALGO", "Tree")
        .env("CPU_CUDA_FAULTS", "early")
        .env("NCCLSCOPE_KERNEL", "on")
        .steps(["init", "allreduce:4096", "allreduce:4096", "sleep:200", "alone:0x262144"])
        .steps(["sleep:90000"]);
    let said =
        "it waits for rank 1 of the communicator, which is in this process and has not entered";
    let reports = Watched::of(job, LIMIT).wait_for(&[(0, said)]);
    let [hung] = reports[&0].as_slice() else { panic!("one rank waits: {reports:#?}") };
    assert!(hung.contains("rank 0 of 2 has not moved for "), "{hung}");
    assert!(hung.contains("kernel started on 2 and ended on 2 of 2 channels"), "{hung}");
}
