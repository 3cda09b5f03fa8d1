// SPDX-License-Identifier: Apache-2.0
//! Every scenario file of the rig ends on real NCCL as it expects, and the report of the recordings
//! shows its fault on the right rank or link. If it hangs, the watchdog of a rank that `diagnose`
//! names as the cause gives the same class or none.
//!
//! Thresholds are ratios and lower bounds: the machine may be slow, but not fast.

mod common;

use ncclscope_findings::{FindingClass, Tool};
use ncclscope_trace::Recording;
use rig::job::Job;
use rig::scenario_file::{ExpectedEnd, ScenarioFile};
use rig::{build, wheel};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One millisecond in nanoseconds.
const MS: u64 = 1_000_000;
const MINUTE: u64 = 60_000 * MS;
/// The hang limit of the watchdog and of `diagnose`, and how long the last step of a job that hangs
/// may take, in seconds.
const LIMIT_S: &str = "2";
const HANG_S: &str = "8";

/// The report of a scenario, with helpers for tests.
struct Report {
    /// Name of the scenario and release, for messages.
    name: String,
    json: Value,
    /// The directory of the ranks' recordings.
    record: PathBuf,
}

/// Runs the scenario under the plugin on the first and the last of its releases, and passes each
/// report to `judge`.
fn run(name: &str, judge: impl Fn(&Report)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let file = ScenarioFile::read(&folder.join(name)).expect("the file is right");
    let ends = [file.releases.first(), file.releases.last()];
    for version in ends.into_iter().flatten() {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let name = format!("{name} {version}");
        build::artifacts().expect("the stand-in builds");
        let record = tempfile::tempdir().expect("a folder");
        let job = file.apply(Job::new(&nccl).expect("the stand-in builds"));
        let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
        let job = job.env("NCCLSCOPE_DIR", record.path());
        let job = job.env("NCCLSCOPE_HANG_SEC", LIMIT_S);
        let job =
            if file.ends == ExpectedEnd::Hang { job.arg("--hang-s").arg(HANG_S) } else { job };
        let outcome = job.run().expect("ranks start");
        let checked = file.check(&outcome);
        assert!(checked.is_ok(), "{name}: {}", checked.unwrap_err());
        let report = Report { json: report(record.path()), name, record: record.path().into() };
        report.assert_conform(file.ends == ExpectedEnd::Hang);
        judge(&report);
    }
}

fn report(record: &Path) -> Value {
    common::report(&build::tool(), record)
}

/// The classes that the watchdog of each rank gave, in its reports of hangs.
fn said(record: &Path) -> BTreeSet<(u64, FindingClass)> {
    let files = std::fs::read_dir(record).expect("the run's folder").flatten();
    let files =
        files.map(|file| file.path()).filter(|path| path.extension() == Some("nscope".as_ref()));
    let mut said = BTreeSet::new();
    for recording in files.map(|path| Recording::open(&path).expect("a recording")) {
        let rank = recording.comms().first().and_then(|comm| u64::try_from(comm.rank).ok());
        let hangs = recording.hangs().iter().filter(|(_, text)| text.starts_with("HANG: "));
        for line in hangs.filter_map(|(_, text)| text.lines().nth(1)) {
            let is_it = |class: &FindingClass| line.trim_start().starts_with(&format!("{class}: "));
            let class = FindingClass::ALL.into_iter().find(is_it);
            said.extend(rank.zip(class));
        }
    }
    said
}

impl Report {
    /// Asserts that no watchdog contradicts the verdicts that name its rank. If one rank alone can
    /// recognise the class, at least one watchdog must give it.
    #[track_caller]
    fn assert_conform(&self, hangs: bool) {
        let mut diagnose = Command::new(build::tool());
        diagnose.args(["diagnose", "--format", "json", "--hang-sec", LIMIT_S]).arg(&self.record);
        let found = diagnose.output().expect("the tool starts").stdout;
        let found: Value = serde_json::from_slice(&found).expect("the diagnosis is JSON");
        let (name, said) = (&self.name, said(&self.record));
        let verdicts = found["findings"].as_array().expect("the schema");
        assert_eq!(verdicts.is_empty(), !hangs, "{name}: {found:#}");
        for verdict in verdicts {
            let class: FindingClass = verdict["class"].as_str().expect("a code").parse().unwrap();
            let roots = verdict["root_ranks"].as_array().expect("the schema");
            let is_root = |rank: u64| roots.contains(&rank.into());
            let of_roots = said.iter().filter(|(rank, _)| is_root(*rank));
            let own: BTreeSet<FindingClass> = of_roots.map(|(_, class)| *class).collect();
            let expected: BTreeSet<FindingClass> = [class].into();
            assert!(own.is_subset(&expected), "{name}: {said:?}\n{found:#}");
            if class.is_reported_by(Tool::Watchdog) {
                assert_eq!(own, expected, "{name}: {said:?}\n{found:#}");
            }
        }
    }

    /// Process, thread and start of each kernel's slice in an export, which the GPU's timer places.
    fn kernel_times(&self) -> Vec<String> {
        let trace = self.record.join("trace.json");
        let mut export = Command::new(build::tool());
        let output = export.arg("export").arg(&self.record).arg("-o").arg(&trace).output();
        assert!(output.expect("the tool starts").status.success(), "{}", self.name);
        let trace = std::fs::read(&trace).expect("the tool wrote it");
        let trace: Value = serde_json::from_slice(&trace).expect("the trace is JSON");
        let events = trace.as_array().or_else(|| trace["traceEvents"].as_array());
        let timed =
            events.expect("events").iter().filter(|event| event["args"].get("gpu_ns").is_some());
        timed.map(|event| format!("{} {} {}", event["pid"], event["tid"], event["ts"])).collect()
    }

    fn array(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.json[name].as_array().expect("the schema").iter()
    }

    fn number(&self, value: &Value) -> u64 {
        value.as_u64().unwrap_or_else(|| panic!("{}: {value}", self.name))
    }

    /// The sum of all waits of one kind on the link from `src` to `dst`, ns.
    fn wait(&self, (src, dst): (u64, u64), sort: &str) -> u64 {
        let link = self.array("peers").find(|link| link["src"] == src && link["dst"] == dst);
        let link = link.unwrap_or_else(|| panic!("{}: no link {src} to {dst}", self.name));
        self.number(&link["waits_ns"][sort])
    }

    /// Asserts that `more` is at least `times` as long as `less`; both are named.
    #[track_caller]
    fn assert_longer(&self, more: (&str, u64), times: u64, less: (&str, u64)) {
        let holds = more.1 >= times * less.1;
        assert!(holds, "{}: {more:?} is not {times} times {less:?}\n{}", self.name, self.json);
    }

    /// The durations of the operations of `bytes`.
    fn duration(&self, bytes: u64, which: &str) -> u64 {
        let row = self.array("operations").find(|row| row["bytes"] == bytes);
        let row = row.unwrap_or_else(|| panic!("{}: no operation of {bytes}", self.name));
        self.number(&row["duration_ns"][which])
    }

    /// Asserts that each of `ranks` has the operation of `bytes` open; returns what they wait for,
    /// joined.
    fn open<const N: usize>(&self, bytes: u64, ranks: [u64; N]) -> [String; N] {
        ranks.map(|rank| {
            let mut open = self.array("open_operations");
            let open = open.find(|open| open["rank"] == rank && open["bytes"] == bytes);
            let none = || panic!("{}: rank {rank} has none\n{}", self.name, self.json);
            open.unwrap_or_else(none)["waits_for"].to_string()
        })
    }

    /// Whether the release reports kernels.
    fn has_kernels(&self) -> bool {
        !self.events(0, "KernelCh").is_null()
    }

    /// Asserts that no duration comes from a wrong clock.
    #[track_caller]
    fn assert_sane(&self) {
        for row in self.array("operations") {
            let longest = self.number(&row["duration_ns"]["max"]);
            self.assert_longer(("a minute", MINUTE), 1, ("an operation", longest));
        }
    }

    /// The counts of events of `kind` on `rank`.
    fn events(&self, rank: u64, kind: &str) -> &Value {
        let of = self.array("ranks").find(|row| row["rank"] == rank);
        &of.unwrap_or_else(|| panic!("{}: no rank {rank}\n{}", self.name, self.json))["events"]
            [kind]
    }
}

#[test]
fn a_slow_rank_keeps_its_peer_waiting() {
    run("slow-rank.toml", |report| {
        // The waits of both ranks include seconds of setup in the first operation, so it is not
        // compared.
        let next = report.wait((1, 2), "recv_network");
        report.assert_longer(("ten receives from the slow rank", next), 10, ("10 ms", 10 * MS));
    });
}

#[test]
fn a_missing_rank_has_nothing_open() {
    run("missing-rank.toml", |report| {
        let [waits] = report.open(262_144, [0]);
        assert!(
            waits.contains("receive from communicator rank 1: 0 of"),
            "{}: {waits}",
            report.name
        );
        assert!(waits.contains("in RecvWait"), "{}: {waits}", report.name);
        assert!(report.array("open_operations").all(|open| open["rank"] == 0), "{}", report.json);
        assert_eq!(report.events(0, "Coll")["started"], 3);
        assert_eq!(report.events(1, "Coll")["started"], 2);
    });
}

#[test]
fn a_stuck_kernel_is_what_both_ends_wait_for() {
    run("stuck-kernel.toml", |report| {
        let [peer, stuck] = report.open(4_194_304, [0, 1]);
        assert!(stuck.contains("in SendGPUWait"), "{}: {stuck}", report.name);
        assert!(!stuck.contains("send to communicator rank 0: 0 of"), "in the middle: {stuck}");
        assert!(peer.contains("in RecvWait") && !peer.contains("GPUWait"), "{peer}");
        assert_eq!(stuck.contains("KernelCh started"), report.has_kernels(), "{stuck}");
    });
}

/// Of receives posted together, the first has its data and the later ones do not: the first one
/// shows the cause.
#[test]
fn a_kernel_that_is_stuck_at_its_beginning_is_told_by_its_first_step() {
    run("stuck-kernel-early.toml", |report| {
        let [_, stuck] = report.open(4_194_304, [0, 1]);
        assert!(stuck.contains("send to communicator rank 0: 0 of"), "{}: {stuck}", report.name);
        let told = (1, FindingClass::GpuNotProducing);
        let said = said(&report.record);
        assert!(said.contains(&told) || !report.has_kernels(), "{}: {said:?}", report.name);
    });
}

#[test]
fn a_kernel_that_never_starts_has_no_event() {
    run("kernel-never-starts.toml", |report| {
        let [peer, late] = report.open(1_048_576, [0, 1]);
        assert!(late.contains("send to communicator rank 0: 0 of"), "{}: {late}", report.name);
        assert!(late.contains("in SendGPUWait") && !late.contains("KernelCh"), "{late}");
        assert!(peer.contains("in RecvWait"), "{}: {peer}", report.name);
        assert_eq!(peer.contains("KernelCh started"), report.has_kernels(), "{peer}");
    });
}

#[test]
fn slow_kernels_are_long() {
    run("slow-kernels.toml", |report| {
        if report.has_kernels() {
            // At least two steps of 10 ms or more. A rank that comes late has a short kernel.
            let longest = report.duration(262_144, "max");
            report.assert_longer(("slow kernel", longest), 2, ("10 ms", 10 * MS));
        } else {
            // There are neither network nor kernel events: the report must not invent an end.
            assert!(report.array("operations").all(|row| row["timing"] == "enqueue"));
        }
    });
}

#[test]
fn a_slow_link_is_one_edge() {
    run("slow-link.toml", |report| {
        let slow = report.wait((1, 2), "send_network");
        for other in [(0, 1), (2, 0)] {
            let other = ("other sends", report.wait(other, "send_network"));
            report.assert_longer(("slow sends", slow), 2, other);
        }
    });
}

#[test]
fn a_stalled_link_is_one_edge() {
    run("stalled-link.toml", |report| {
        let [before, at, after] = report.open(4_194_304, [0, 1, 2]);
        assert!(at.contains("in SendWait"), "{}: {at}", report.name);
        assert!(after.contains("in RecvWait"), "{}: {after}", report.name);
        for other in [before, after] {
            assert!(!other.contains("in SendWait"), "{}: {other}", report.name);
        }
    });
}

#[test]
fn a_stopped_proxy_is_silence_without_a_sender() {
    run("stopped-proxy.toml", |report| {
        let silence = ("receives from rank 1", report.wait((1, 0), "recv_network"));
        let ready = ("receives from rank 0", report.wait((0, 1), "recv_network"));
        report.assert_longer(silence, 2, ready);
        let sends = ("sends of rank 1", report.wait((1, 0), "send_network"));
        report.assert_longer(silence, 2, sends);
        let longest = report.duration(1_048_576, "max");
        report.assert_longer(("the operation", longest), 1, ("1 s", 1000 * MS));
    });
}

#[test]
fn a_dead_proxy_leaves_an_operation_without_network() {
    run("dead-proxy.toml", |report| {
        let [peer] = report.open(4_194_304, [0]);
        assert!(peer.contains("receive from communicator rank 1: 0 of"), "{}: {peer}", report.name);
        assert_eq!(report.events(1, "Coll")["started"], 2, "it was handed over");
        assert_eq!(report.events(1, "ProxyOp")["started"], 4, "those of the first operation");
        assert_eq!(report.events(0, "ProxyOp")["started"], 8);
    });
}

#[test]
fn a_skewed_clock_moves_no_duration() {
    run("skewed-clock.toml", |report| {
        report.assert_sane();
        assert!(report.array("operations").all(|row| row["timing"] == "kernel"));
        for rank in report.array("ranks") {
            let error = report.number(&rank["clock"]["gpu_error_ns"]);
            report.assert_longer(("a minute", MINUTE), 1, ("error of the GPU's clock", error));
        }
    });
}

#[test]
fn a_clock_that_goes_back_is_not_believed() {
    run("wrapped-clock.toml", |report| {
        report.assert_sane();
        let row = report.array("operations").find(|row| row["bytes"] == 262_144);
        let timings = &row.expect("the repeated operation")["timings"];
        // The operation with rank 1's fourth kernel is timed by the network.
        assert_eq!((&timings["proxy"], &timings["kernel"]), (&1.into(), &9.into()), "{timings}");
    });
}

#[test]
fn counters_that_are_overrun_lose_no_event() {
    run("counters-behind.toml", |report| {
        report.assert_sane();
        for rank in [0, 1] {
            let kernels = report.events(rank, "KernelCh");
            let counts = (&kernels["started"], &kernels["stopped"], &kernels["open"]);
            assert_eq!(counts, (&240.into(), &240.into(), &0.into()), "{}", report.name);
        }
        assert_eq!(report.json["lost"]["total"], 0, "{}", report.name);
        // About 16 works of two channels have the times of works that come 64 later: how many
        // depends on when NCCL's thread polls. No time is used twice, and each unused one is
        // counted.
        let stray = report.number(&report.json["lost"]["stray_kernel_times"]);
        let times = report.kernel_times();
        let distinct: HashSet<_> = times.iter().collect();
        assert_eq!(distinct.len(), times.len(), "{}: stray {stray}", report.name);
        assert_eq!(times.len() as u64 + stray, 480, "{}: {}", report.name, report.json["lost"]);
    });
}
