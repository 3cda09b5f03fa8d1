// SPDX-License-Identifier: Apache-2.0
//! The built plugin in other processes: every version, every kind of exit, every bad environment.

use fake_nccl::build::plugin;
use fake_nccl::namespaces;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::{EventKind, Handle, Record, Recording};
use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

fn play(dir: &Path, version: usize, ops: usize, end: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fake-nccl"));
    command.arg(plugin()).args([&version.to_string(), "allreduce"]);
    command.args(["--ops", &ops.to_string(), "--end", end]);
    command.env("NCCLSCOPE_DIR", dir).env("NCCLSCOPE_LOG", "stderr");
    command.envs(env.iter().copied());
    command.output().unwrap()
}

fn survived(output: &Output) -> bool {
    output.status.success() && String::from_utf8_lossy(&output.stdout).ends_with("survived\n")
}

fn recordings(dir: &Path) -> Vec<Recording> {
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|p| Recording::open(p).unwrap()).collect()
}

/// Starts and stops by kind. Each handle must occur at most once in each, and parents must exist.
#[derive(Default, Debug, PartialEq, Eq)]
struct Counts {
    started: HashMap<EventKind, usize>,
    stopped: HashMap<EventKind, usize>,
    strangers: usize,
}

fn count(recording: &Recording) -> Counts {
    let mut counts = Counts::default();
    let mut starts: HashMap<Handle, Handle> = HashMap::new();
    for lane in 0..recording.lanes().len() {
        for record in recording.records(lane) {
            match record {
                Record::Start(start) => {
                    assert!(starts.insert(start.handle, start.parent).is_none());
                    *counts.started.entry(start.handle.kind()).or_default() += 1;
                }
                Record::Stop { handle, .. } => {
                    *counts.stopped.entry(handle.kind()).or_default() += 1;
                }
                Record::Step(step) => {
                    *counts.started.entry(EventKind::ProxyStep).or_default() += 1;
                    let stopped = usize::from(step.has(2));
                    *counts.stopped.entry(EventKind::ProxyStep).or_default() += stopped;
                }
                Record::State { .. }
                | Record::ClockSync(_)
                | Record::Mark(_)
                | Record::Heartbeat(_)
                | Record::PairCount(_)
                | Record::Unknown { .. } => {}
            }
        }
    }
    let known = |parent: &Handle| parent.is_null() || starts.contains_key(parent);
    counts.strangers = starts.values().filter(|p| !known(p)).count();
    counts
}

/// The expected events of `ops` operations with two channels and four steps, by version.
fn expected(version: usize, ops: usize) -> HashMap<EventKind, usize> {
    let mut kinds = vec![
        (EventKind::Group, 1),
        (EventKind::Coll, 1),
        (EventKind::ProxyOp, 4),
        (EventKind::ProxyStep, 16),
    ];
    if version >= 3 {
        kinds.push((EventKind::KernelCh, 2));
    }
    if version >= 5 {
        let api = [EventKind::GroupApi, EventKind::CollApi, EventKind::KernelLaunch];
        kinds.extend(api.map(|kind| (kind, 1)));
    }
    kinds.into_iter().map(|(kind, n)| (kind, n * ops)).collect()
}

#[test]
fn every_version_records_every_event_once() {
    for version in fake_nccl::VERSIONS {
        let dir = tempfile::tempdir().unwrap();
        let output = play(dir.path(), version, 50, "finalize", &[]);
        assert!(survived(&output), "v{version}: {output:?}");
        let recordings = recordings(dir.path());
        assert_eq!(recordings.len(), 1);
        let recording = &recordings[0];
        assert_eq!(recording.problems(), &[] as &[String], "v{version}");
        let header = recording.header();
        assert!(header.closed && header.lanes_checksum.is_some());
        let counts = count(recording);
        assert_eq!(counts.started, expected(version, 50), "v{version}");
        assert_eq!(counts.stopped, counts.started, "v{version}");
        assert_eq!(counts.strangers, 0, "v{version}");
        let comm = &recording.comms()[0];
        assert_eq!(comm.hash, 0xc0ffee, "v{version} knows the communicator");
        assert_eq!(comm.api_version as usize, version);
        let strings: Vec<_> =
            (1..=256).filter_map(|id| recording.string(ncclscope_trace::StrId(id))).collect();
        for text in ["AllReduce", "ncclFloat32", "RING", "SIMPLE"] {
            assert!(strings.contains(&text), "v{version}: {strings:?} lacks {text}");
        }
        assert!(recording.lanes().iter().all(|l| l.header.lost == [0; KINDS]), "v{version}");
    }
}

#[test]
fn every_end_leaves_a_recording() {
    for (end, sealed) in [("exit", true), ("reload", true), ("comms", true), ("term", false)] {
        let dir = tempfile::tempdir().unwrap();
        let output = play(dir.path(), 6, 40, end, &[]);
        assert_eq!(survived(&output), sealed, "{end}: {output:?}");
        let recordings = recordings(dir.path());
        assert_eq!(recordings.len(), 1, "{end}");
        let header = recordings[0].header();
        assert_eq!((header.closed, header.lanes_checksum.is_some()), (sealed, sealed), "{end}");
        let rounds = match end {
            "reload" => 3,
            "comms" => 16,
            _ => 1,
        };
        let counts = count(&recordings[0]);
        assert_eq!(counts.started, expected(6, 40 * rounds), "{end}");
        assert_eq!(counts.started, counts.stopped, "{end}");
        assert_eq!(recordings[0].comms().len(), rounds);
    }
}

#[test]
fn a_kill_loses_nothing_that_was_stored() {
    let dir = tempfile::tempdir().unwrap();
    let output = play(dir.path(), 5, 100, "kill", &[]);
    assert_eq!(output.status.signal(), Some(9));
    let recordings = recordings(dir.path());
    let problem = &recordings[0].problems()[0];
    assert!(problem.contains("was killed") && problem.contains("1 network steps"), "{problem}");
    let counts = count(&recordings[0]);
    let mut all = expected(5, 101);
    // One ProxyOp and one step of the last operation were in flight.
    all.insert(EventKind::ProxyOp, 401);
    all.insert(EventKind::ProxyStep, 1601);
    all.insert(EventKind::KernelCh, 200);
    assert_eq!(counts.started, all);
    assert_eq!(counts.stopped[&EventKind::ProxyStep], 1600);
    assert_eq!(counts.stopped[&EventKind::ProxyOp], 400);
    // The definitions that a reader needs were written before the kill.
    assert_eq!(recordings[0].comms()[0].hash, 0xc0ffee);
}

#[test]
fn after_a_fork_the_parent_records_and_the_child_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let output = play(dir.path(), 6, 20, "fork", &[]);
    assert!(survived(&output), "{output:?}");
    let recordings = recordings(dir.path());
    assert_eq!(recordings.len(), 1, "the child makes no file");
    assert_eq!(count(&recordings[0]).started, expected(6, 30));
    assert_eq!(recordings[0].problems(), &[] as &[String]);
}

#[test]
fn a_bad_environment_is_one_line_at_each_end_and_the_job_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let long = dir.path().join("x".repeat(300));
    for (target, word) in [
        (file.as_path(), "the watchdog runs, and records wait"),
        (Path::new("/proc/none"), "the watchdog runs, and records wait"),
        (long.as_path(), "the watchdog runs, and records wait"),
    ] {
        let output = play(target, 6, 5, "finalize", &[]);
        assert!(survived(&output), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let [first, last] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(first.contains(word), "{text}");
        assert!(last.ends_with("nothing of this process was recorded"), "{text}");
    }
    let run = dir.path().join("run");
    let output = play(&run, 6, 5, "finalize", &[("NCCLSCOPE_MODE", "loud")]);
    assert!(survived(&output), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("NCCLSCOPE_MODE=loud: expected off, or flight, trace"), "{text}");
    assert_eq!(count(&recordings(&run)[0]).started, expected(6, 5), "the default is used");
}

#[test]
fn a_recording_says_which_process_it_is_of() {
    let torchrun = [
        ("RANK", "11"),
        ("LOCAL_RANK", "3"),
        ("GROUP_RANK", "1"),
        ("WORLD_SIZE", "16"),
        ("TORCHELASTIC_RUN_ID", "a1b2"),
        ("NCCLSCOPE_JOB", "night"),
        ("NCCL_ALGO", "Tree"),
    ];
    for (command, is_there) in [("on", true), ("off", false)] {
        let dir = tempfile::tempdir().unwrap();
        let mut env = torchrun.to_vec();
        env.push(("NCCLSCOPE_COMMAND", command));
        assert!(survived(&play(dir.path(), 5, 1, "return", &env)));
        let [recording] = &recordings(dir.path())[..] else { panic!("one recording") };
        let found = recording.identity();
        let place = [found.rank, found.local_rank, found.node_rank, found.world_size];
        assert_eq!(place, [Some(11), Some(3), Some(1), Some(16)]);
        let names = [found.job.as_deref(), found.run.as_deref()];
        assert_eq!(names, [Some("night"), Some("a1b2")]);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(found.boot_id.as_deref(), Some(boot.trim()));
        let header = recording.header();
        assert_eq!((found.pid, found.host.as_deref()), (Some(header.pid), Some(&*header.host)));
        assert!(found.start_ticks.is_some() && found.nonce.is_some(), "{found:?}");
        assert_eq!(found.profiler_api, Some(5));
        assert!(found.other.contains(&("NCCL_ALGO".into(), "Tree".into())), "{found:?}");
        let has_command = found.command.as_deref().is_some_and(|text| text.contains("allreduce"));
        assert_eq!(has_command, is_there, "{found:?}");
    }
}

#[test]
fn mode_off_asks_for_nothing_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let output = play(dir.path(), 6, 5, "finalize", &[("NCCLSCOPE_MODE", "off")]);
    assert!(survived(&output), "{output:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Runs in a private file system of 3 MiB; needs the permission to mount one.
#[test]
fn a_full_disk_costs_records_and_nothing_else() {
    for (size, fill, word) in [
        ("3m", "head -c 3000000 /dev/zero", "counted as lost"),
        ("4k", ":", "counted as lost"),
        ("4k", "echo x", "the watchdog runs, and records wait"),
    ] {
        let [dir, kept] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let script = format!(
            "mount -t tmpfs -o size={size} none {dir} && {{ {fill} > {dir}/x; }} && \"$@\" && \
             cp {dir}/* {kept}",
            dir = dir.path().display(),
            kept = kept.path().display(),
        );
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
        command.arg(env!("CARGO_BIN_EXE_fake-nccl")).arg(plugin());
        command.args(["6", "allreduce", "--ops", "4000"]);
        command.env("NCCLSCOPE_DIR", dir.path()).env("NCCLSCOPE_LOG", "stderr");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if namespaces::are_forbidden(&stderr) {
            return;
        }
        assert!(survived(&output), "{output:?}");
        std::fs::remove_file(kept.path().join("x")).unwrap();
        assert!(stderr.contains(word), "{size}: {stderr}");
    }
}

fn lanes_files(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".lanes")).count()
}

/// A directory in memory, for lanes.
fn memory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ncclscope-test-").tempdir_in("/dev/shm").unwrap()
}

#[test]
fn lanes_of_a_killed_process_are_kept_until_the_next_one_adopts_them() {
    let (shm, dir) = (memory(), tempfile::tempdir().unwrap());
    let env = [("NCCLSCOPE_LANES", shm.path().to_str().unwrap())];
    play(dir.path(), 6, 100, "kill", &env);
    assert_eq!(lanes_files(shm.path()), 1);
    let before = count(&recordings(dir.path())[0]);
    adopt(shm.path());
    let recording = &recordings(dir.path())[0];
    assert!(recording.header().lanes_shared);
    assert_eq!(count(recording), before);
}

/// Lets the next process adopt the lanes in `shm`, which must have some.
fn adopt(shm: &Path) {
    let next = tempfile::tempdir().unwrap();
    let env = [("NCCLSCOPE_LANES", shm.to_str().unwrap())];
    let mut rounds = 0..20;
    while lanes_files(shm) != 0 {
        assert!(rounds.next().is_some(), "nothing adopts");
        let output = play(next.path(), 6, 1000, "finalize", &env);
        assert!(survived(&output), "{output:?}");
    }
}

/// A forked child shares the lock of the lanes, through its descriptor and its mapping.
#[test]
fn a_child_that_outlives_its_rank_does_not_keep_the_lanes() {
    let (shm, dir) = (memory(), tempfile::tempdir().unwrap());
    let (lanes, control) = (shm.path().to_str().unwrap(), dir.path().join("control"));
    let env = [("NCCLSCOPE_LANES", lanes), ("NCCLSCOPE_CONTROL", control.to_str().unwrap())];
    let output = play(&dir.path().join("run"), 6, 100, "fork-kill", &env);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let child = text.lines().find_map(|line| line.strip_prefix("child ")).unwrap();
    let proc = Path::new("/proc").join(child);
    assert_eq!(lanes_files(shm.path()), 1);
    adopt(shm.path());
    assert!(proc.exists(), "the child has ended before its time");
    assert!(!std::fs::read_to_string(proc.join("maps")).unwrap().contains(".lanes"));
    let socket = std::fs::read_dir(control).unwrap().next().unwrap().unwrap().path();
    let refused = std::os::unix::net::UnixStream::connect(socket).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "nothing answers there");
    assert!(Command::new("kill").arg(child).status().unwrap().success());
    let recording = &recordings(&dir.path().join("run"))[0];
    assert!(recording.header().lanes_shared);
    assert_eq!(count(recording).started[&EventKind::Coll], 101);
}

/// Containers that share `/dev/shm`, but not the directory of the recordings.
#[test]
fn another_container_leaves_the_lanes_of_a_killed_rank_alone() {
    let (shm, dir) = (memory(), tempfile::tempdir().unwrap());
    let env = [("NCCLSCOPE_LANES", shm.path().to_str().unwrap())];
    play(dir.path(), 6, 100, "kill", &env);
    let script = format!(
        "mount -t tmpfs none {} && for i in 1 2 3; do \"$@\" || exit 1; done",
        dir.path().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_fake-nccl")).arg(plugin()).args(["6", "allreduce"]);
    command.args(["--ops", "1000", "--end", "finalize"]);
    let output = command.env("NCCLSCOPE_DIR", dir.path()).envs(env).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if namespaces::are_forbidden(&stderr) {
        return;
    }
    assert!(survived(&output), "{output:?}");
    assert_eq!(lanes_files(shm.path()), 1, "they are not the other container's to remove");
    adopt(shm.path());
    let recording = &recordings(dir.path())[0];
    assert!(recording.header().lanes_shared);
    assert_eq!(count(recording).started[&EventKind::Coll], 101);
}

#[test]
fn without_a_place_for_lanes_everything_is_recorded_all_the_same() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for lanes in ["off", "/nonexistent", disk.path().to_str().unwrap()] {
        let dir = tempfile::tempdir().unwrap();
        let output = play(dir.path(), 6, 40, "finalize", &[("NCCLSCOPE_LANES", lanes)]);
        assert!(survived(&output), "{output:?}");
        let recordings = recordings(dir.path());
        assert_eq!(recordings[0].problems(), &[] as &[String], "{lanes}");
        assert_eq!(count(&recordings[0]).started, expected(6, 40), "{lanes}");
    }
    assert_eq!(lanes_files(disk.path()), 0, "a disk is no place for lanes");
    let dir = tempfile::tempdir().unwrap();
    play(dir.path(), 6, 40, "kill", &[("NCCLSCOPE_LANES", "off")]);
    let problem = recordings(dir.path())[0].problems()[0].clone();
    assert!(problem.contains("its lanes were in no file"), "{problem}");
}

/// Containers often have 64 MiB of shared memory, and NCCL crashes if it is full. Sixteen
/// communicators would need more than the half of a small one that the plugin may use; the plugin
/// leaves at least half of each free.
#[test]
fn shared_memory_is_never_filled() {
    let own = tempfile::tempdir().unwrap();
    let default = Path::new("/dev/shm");
    for (size, shm) in [("6m", own.path()), ("64m", own.path()), ("64m", default)] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "mount -t tmpfs -o size={size} none {shm} && \"$@\" && df --output=pcent {shm} && \
             ls {shm}",
            shm = shm.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
        command.arg(env!("CARGO_BIN_EXE_fake-nccl")).arg(plugin());
        command.args(["6", "allreduce", "--ops", "40", "--end", "comms"]);
        command.env("NCCLSCOPE_DIR", dir.path()).env("NCCLSCOPE_LOG", "stderr");
        if shm != default {
            command.env("NCCLSCOPE_LANES", shm);
        }
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if namespaces::are_forbidden(&stderr) {
            return;
        }
        let stdout = String::from_utf8_lossy(&output.stdout);
        let (_, after) = stdout.split_once("survived\n").unwrap_or_else(|| panic!("{output:?}"));
        let per_cent = |word: &str| word.strip_suffix('%')?.parse::<u32>().ok();
        let used = after.split_whitespace().find_map(per_cent).expect("df tells it");
        assert!(used <= 50, "{size} of {}: {after}", shm.display());
        let recordings = recordings(dir.path());
        assert_eq!(count(&recordings[0]).started, expected(6, 640), "{size}");
    }
}
