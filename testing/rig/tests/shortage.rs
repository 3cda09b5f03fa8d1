// SPDX-License-Identifier: Apache-2.0
//! A process that gets too little processor time is reported as such, and its links are not
//! reported as slow.
//!
//! Three ranks in a ring over sockets.

#[path = "common/cgroup.rs"]
mod cgroup;
#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use cgroup::Group;
use rig::job::Job;
use rig::topology::Topology;
use rig::{build, wheel};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verdicts::{Verdict, stragglers};

/// The oldest and the newest release: a run takes half a minute, and the effect is the same in each
/// release.
const ENDS: [&str; 2] = ["2.27.7", "2.32.3"];
const MIDDLE: [&str; 2] = ["2.28.9", "2.30.7"];
/// The rank that gets too little processor time.
const SHORT: usize = 1;

/// What happens to that rank's process while the job runs.
#[derive(Clone, Copy)]
enum Trouble {
    Nothing,
    /// The process is stopped for 20 ms of every 50, as by a quota.
    Throttled,
    /// The process is stopped for 150 ms, twice a second.
    Frozen,
    /// Like `Frozen`, through the freezer of its control group.
    FrozenGroup,
    /// Its control group has a quota of a tenth of a processor: less than a busy machine leaves to
    /// each of the other ranks, so that the quota has an effect there, too.
    Quota,
    /// The process may run on one processor only, which a thread with a larger weight uses all the
    /// time.
    BusyCore,
}

/// Niceness of the process in [`Trouble::BusyCore`], which gets 1/16 of the processor.
const NICE: i32 = 12;

impl Trouble {
    /// For how long the process is stopped, and then runs.
    fn times(self) -> Option<(Duration, Duration)> {
        let ms = Duration::from_millis;
        match self {
            Trouble::Nothing | Trouble::Quota | Trouble::BusyCore => None,
            Trouble::Throttled => Some((ms(20), ms(30))),
            Trouble::Frozen | Trouble::FrozenGroup => Some((ms(150), ms(350))),
        }
    }
}

fn signal(pid: u32, number: i32) {
    let pid = i32::try_from(pid).expect("a process id");
    // SAFETY: no precondition; the process is a child that was not waited for.
    unsafe { libc::kill(pid, number) };
}

/// Pins this thread (`None`), or a process and what it starts later, to one processor.
fn pin(pid: Option<u32>) {
    let pid = pid.map(|pid| i32::try_from(pid).expect("a process id"));
    let pid = pid.and_then(rustix::process::Pid::from_raw);
    let mut one = rustix::thread::CpuSet::new();
    let all = rustix::thread::sched_getaffinity(None).expect("this thread's processors");
    one.set((0..).find(|&cpu| all.is_set(cpu)).expect("a processor"));
    rustix::thread::sched_setaffinity(pid, &one).expect("one processor");
}

/// Applies the trouble to the process until `over`.
fn trouble(trouble: Trouble, pid: u32, group: Option<&Group>, over: &AtomicBool) {
    if let Trouble::BusyCore = trouble {
        pin(None);
        while !over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }
    let Some((stopped, running)) = trouble.times() else { return };
    let stop = |is_stopped: bool| match group {
        Some(group) => group.freeze(is_stopped),
        None => signal(pid, if is_stopped { libc::SIGSTOP } else { libc::SIGCONT }),
    };
    while !over.load(Ordering::Relaxed) {
        stop(true);
        std::thread::sleep(stopped);
        stop(false);
        std::thread::sleep(running);
    }
}

/// The findings of a job with this trouble.
fn run(nccl: &Path, what: Trouble, group: Option<&Group>) -> Vec<Verdict> {
    let record = tempfile::tempdir().expect("a folder");
    let job = Job::new(nccl).expect("the stand-in builds").topology(Topology::Ring3);
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
    let job = job.env("NCCLSCOPE_DIR", record.path());
    // With a quota, each operation takes longer, so there are fewer.
    let steps = match what {
        Trouble::Quota => "repeat:50:allreduce:100000",
        Trouble::BusyCore => "repeat:50:allreduce:100000",
        _ => "repeat:250:allreduce:100000",
    };
    let running = job.steps([steps]).start().expect("ranks start");
    let (pid, over) = (running.pid(SHORT), AtomicBool::new(false));
    // Before the plugin reads its control group.
    group.into_iter().for_each(|group| group.take(pid));
    if let Trouble::BusyCore = what {
        pin(Some(pid));
        let process = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a process id"));
        rustix::process::setpriority_process(process, NICE).expect("more niceness");
    }
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| trouble(what, pid, group, &over));
        let outcome = running.wait();
        over.store(true, Ordering::Relaxed);
        outcome
    });
    outcome.expect_success();
    stragglers(record.path())
}

/// Asserts that the rank is first reported as short of processor time, and that no link is reported
/// as slow. If other tests keep the machine busy, a link of the other ranks may be suspected.
fn assert_short(found: &[Verdict], name: &str) {
    let first = found.first().map(|(class, _, ranks)| (class.as_str(), ranks.as_slice()));
    assert_eq!(first, Some(("S8", &[SHORT as u64][..])), "{name}: {found:?}");
    let is_effect = |(class, confidence, ranks): &Verdict| {
        let is_link = ["S3", "S4", "S5"].contains(&class.as_str());
        is_link && confidence == "confirmed" || ranks.contains(&(SHORT as u64))
    };
    assert!(!found[1..].iter().any(is_effect), "{name}: {found:?}");
}

#[test]
fn a_process_whose_time_is_taken_by_slices_is_called_short_of_it() {
    for version in ENDS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        assert_short(&run(&nccl, Trouble::Throttled, None), version);
    }
}

#[test]
fn a_process_that_is_frozen_now_and_then_is_called_short_of_time() {
    for version in ENDS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        assert_short(&run(&nccl, Trouble::Frozen, None), version);
        let healthy = run(&nccl, Trouble::Nothing, None);
        assert!(healthy.iter().all(|(class, ..)| class != "S8"), "{version}: {healthy:?}");
    }
}

#[test]
fn a_process_whose_group_is_frozen_now_and_then_is_called_short_of_time() {
    let groups = Group::with_freezer();
    if groups.is_empty() {
        eprintln!("left out: no control group can be frozen here (root, `freezer`)");
    }
    let count = if groups.is_empty() { 0 } else { groups.len().max(ENDS.len()) };
    for (group, version) in groups.iter().cycle().zip(ENDS.iter().cycle()).take(count) {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        assert_short(&run(&nccl, Trouble::FrozenGroup, Some(group)), version);
    }
}

#[test]
fn a_process_with_a_small_quota_is_called_short_of_time() {
    for version in ENDS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let Some(group) = Group::with_quota() else {
            eprintln!("left out: no control group with a quota can be made here (root, `cpu`)");
            return;
        };
        assert_short(&run(&nccl, Trouble::Quota, Some(&group)), version);
    }
}

#[test]
fn a_process_on_a_busy_core_is_called_short_of_time() {
    for version in MIDDLE {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        assert_short(&run(&nccl, Trouble::BusyCore, None), version);
    }
}

/// In a tree, data goes up while the proxy threads start the operation, and down when they do
/// nothing else; and the rank that sends first wakes the others.
#[test]
fn no_link_of_a_healthy_tree_is_called_slow() {
    for version in ENDS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = Job::new(&nccl).expect("the stand-in builds").topology(Topology::Ring3);
        let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin()).env("NCCL_ALGO", "TREE");
        let job = job.env("NCCLSCOPE_DIR", record.path());
        let steps = ["allreduce:256", "sleep:10"].into_iter().cycle().take(400);
        let outcome = job.steps(steps).run().expect("ranks start");
        assert!(outcome.succeeded(), "{version}\n{outcome}");
        let found = stragglers(record.path());
        assert!(found.iter().all(|(class, ..)| class != "S3" && class != "S4"), "{found:?}");
    }
}
