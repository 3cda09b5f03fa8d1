// SPDX-License-Identifier: Apache-2.0
//! A process that gets too little processor time is called so, and its links are not called slow.
//!
//! Three ranks in a ring over sockets.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use rig::job::Job;
use rig::topology::Topology;
use rig::{build, wheel};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verdicts::{Verdict, stragglers};

const RELEASES: [&str; 4] = ["2.27.7", "2.28.9", "2.30.7", "2.32.3"];
/// The rank that is short of processor time.
const SHORT: usize = 1;

/// What happens to that rank's process while the job runs.
#[derive(Clone, Copy)]
enum Trouble {
    Nothing,
    /// It is stopped for 20 ms in every 50, as by a quota.
    Throttled,
    /// It is frozen for 150 ms, twice a second.
    Frozen,
    /// Its control group has a quota of a tenth of a processor: less than what a busy machine
    /// leaves to each of the other ranks, so that it is used up there, too.
    Quota,
}

impl Trouble {
    /// For how long it is stopped, and then runs.
    fn times(self) -> Option<(Duration, Duration)> {
        let ms = Duration::from_millis;
        match self {
            Trouble::Nothing | Trouble::Quota => None,
            Trouble::Throttled => Some((ms(20), ms(30))),
            Trouble::Frozen => Some((ms(150), ms(350))),
        }
    }
}

fn signal(pid: u32, number: i32) {
    let pid = i32::try_from(pid).expect("a process id");
    // SAFETY: no precondition; the process is a child that was not waited for.
    unsafe { libc::kill(pid, number) };
}

/// Makes trouble for the process until `over`.
fn trouble(trouble: Trouble, pid: u32, over: &AtomicBool) {
    let Some((stopped, running)) = trouble.times() else { return };
    while !over.load(Ordering::Relaxed) {
        signal(pid, libc::SIGSTOP);
        std::thread::sleep(stopped);
        signal(pid, libc::SIGCONT);
        std::thread::sleep(running);
    }
}

/// The findings of a job in which that happens.
fn run(nccl: &Path, what: Trouble) -> Vec<Verdict> {
    let record = tempfile::tempdir().expect("a folder");
    let job = Job::new(nccl).expect("the stand-in builds").topology(Topology::Ring3);
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
    let job = job.env("NCCLSCOPE_DIR", record.path());
    // With a quota each operation takes longer.
    let steps = match what {
        Trouble::Quota => "repeat:50:allreduce:100000",
        _ => "repeat:400:allreduce:100000",
    };
    let running = job.steps([steps]).start().expect("ranks start");
    let (pid, over) = (running.pid(SHORT), AtomicBool::new(false));
    // Before the plugin asks for its group.
    let group = matches!(what, Trouble::Quota).then(Group::new).flatten();
    group.iter().for_each(|group| group.take(pid));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| trouble(what, pid, &over));
        let outcome = running.wait();
        over.store(true, Ordering::Relaxed);
        outcome
    });
    outcome.expect_success();
    stragglers(record.path())
}

/// A control group with a quota of 10 ms of processor time in 100 ms.
struct Group(PathBuf);

impl Group {
    /// `None` where no such group can be made: that needs root, and a writable `cpu` controller.
    fn new() -> Option<Group> {
        let name = format!("ncclscope-test-{}", std::process::id());
        let versions: [(&str, &[(&str, &str)]); 2] = [
            ("/sys/fs/cgroup", &[("cpu.max", "10000 100000")]),
            (
                "/sys/fs/cgroup/cpu",
                &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "10000")],
            ),
        ];
        versions.into_iter().find_map(|(mount, settings)| {
            let has_controller = ["cgroup.procs", "cpu.cfs_quota_us"];
            if !has_controller.iter().any(|file| Path::new(mount).join(file).exists()) {
                return None;
            }
            let path = Path::new(mount).join(&name);
            std::fs::create_dir(&path).ok()?;
            let group = Group(path);
            let set = |&(file, value): &(&str, &str)| std::fs::write(group.0.join(file), value);
            settings.iter().all(|setting| set(setting).is_ok()).then_some(group)
        })
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("a group of ours");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It is empty when its processes have ended; the kernel removes no other.
        let _removed = std::fs::remove_dir(&self.0);
    }
}

/// The rank is called short of processor time before all else, and no link is called slow; where
/// the machine is busy with other tests a link of the others may be a suspicion.
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
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        assert_short(&run(&nccl, Trouble::Throttled), version);
    }
}

#[test]
fn a_process_that_is_frozen_now_and_then_is_called_short_of_time() {
    for version in [RELEASES[0], RELEASES[3]] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        assert_short(&run(&nccl, Trouble::Frozen), version);
        let healthy = run(&nccl, Trouble::Nothing);
        assert!(healthy.iter().all(|(class, ..)| class != "S8"), "{version}: {healthy:?}");
    }
}

#[test]
fn a_process_with_a_small_quota_is_called_short_of_time() {
    if Group::new().is_none() {
        eprintln!("left out: no control group with a quota can be made here (root, `cpu`)");
        return;
    }
    for version in [RELEASES[0], RELEASES[3]] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        assert_short(&run(&nccl, Trouble::Quota), version);
    }
}
