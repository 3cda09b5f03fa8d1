// SPDX-License-Identifier: Apache-2.0
//! A profiler that is chained behind ncclscope's plugin gets, on real NCCL, the same callbacks as
//! alone: in the native version of the release, and in those to which NCCL itself converts.

#[path = "../../fake-nccl/plugins/logging.rs"]
mod plugins;

mod common;

use rig::job::Job;
use rig::{build, wheel};
use std::path::{Path, PathBuf};

/// Mask of all kinds except the proxy thread's own activity, which depends on timing.
const ALL: u32 = 0xffdf;
/// The steps of the ranks. They wait before the first operation, since a plugin may write its mask
/// late, and at the end for the last callbacks of NCCL's threads.
const STEPS: [&str; 5] =
    ["sleep:200", "allreduce:300001", "sendrecv:1000", "graph:2x4096", "sleep:300"];

struct TestRun {
    nccl: PathBuf,
    folder: tempfile::TempDir,
    plugin: PathBuf,
    version: usize,
}

impl TestRun {
    fn new(release: &str, version: usize) -> Option<TestRun> {
        let nccl = wheel::find_or_skip(release)?;
        let folder = tempfile::tempdir().unwrap();
        let plugin = plugins::build(version, folder.path());
        Some(TestRun { nccl, folder, plugin, version })
    }

    /// The events of both ranks, as the plugin got them.
    fn run(&self, name: &str, env: &[(&str, &str)]) -> [Vec<String>; 2] {
        let log = |rank: usize| self.folder.path().join(format!("{name}{rank}"));
        let mut job = Job::new(&self.nccl).expect("the stand-in builds").steps(STEPS);
        for rank in 0..2 {
            job = job.rank_env(rank, "CHAINED_LOG", log(rank));
        }
        for (name, value) in env {
            job = job.env(name, value);
        }
        job.run().expect("ranks start").expect_success();
        [0, 1].map(|rank| {
            let log = plugins::read(&log(rank), self.version);
            assert!(!log.contains("BAD"), "{name} {rank}");
            let count = |verb| log.lines().filter(|line| line.starts_with(verb)).count();
            assert_eq!((count("init "), count("finalize ")), (1, 1), "{name} {rank}");
            plugins::events(&log).into_iter().filter_map(|event| timeless(&event)).collect()
        })
    }

    fn alone(&self, mask: u32) -> [Vec<String>; 2] {
        let plugin = self.plugin.to_str().unwrap();
        let mask = mask.to_string();
        self.run("alone", &[("NCCL_PROFILER_PLUGIN", plugin), ("CHAINED_MASK", &mask)])
    }

    fn chained(&self, mask: u32, env: &[(&str, &str)]) -> [Vec<String>; 2] {
        let (plugin, mask) = (self.plugin.to_str().unwrap(), mask.to_string());
        let run = self.run_folder();
        let mut all = vec![
            ("NCCL_PROFILER_PLUGIN", ours().to_str().unwrap()),
            ("NCCLSCOPE_CHAIN", plugin),
            ("NCCLSCOPE_DIR", run.to_str().unwrap()),
            ("CHAINED_MASK", &mask),
        ];
        all.extend(env);
        self.run("chained", &all)
    }

    fn run_folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }
}

fn ours() -> &'static Path {
    static PLUGIN: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PLUGIN.get_or_init(build::plugin)
}

/// An event without the parts that differ between two runs of the same job: how often a peer was
/// not ready, and the communicator's hash. `None` for a step that was restarted before it was
/// posted.
fn timeless(event: &str) -> Option<String> {
    let (head, callbacks) = event.split_once("; ").unwrap_or((event, ""));
    let is_step = head.starts_with("16 ");
    if is_step && !callbacks.contains("state") {
        return None;
    }
    let mut callbacks: Vec<&str> = callbacks.split("; ").collect();
    if head.starts_with("8 ") {
        // Up to 2.26 NCCL also reports intermediate steps, in any order.
        callbacks.sort_unstable();
    }
    callbacks.dedup();
    // Up to 2.26 NCCL stops only some of the receive steps.
    callbacks.retain(|callback| !is_step || *callback != "stop ");
    let words = head.split(' ').map(|word| match word.split_once("hash=") {
        Some((before, hash)) => format!("{before}hash={}", u8::from(hash != "0")),
        None => word.to_owned(),
    });
    Some(format!("{}; {}", words.collect::<Vec<_>>().join(" "), callbacks.join("; ")))
}

#[track_caller]
fn expect_same(run: &TestRun, mask: u32, env: &[(&str, &str)], name: &str) {
    let alone = run.alone(mask);
    let chained = run.chained(mask, env);
    for (alone, chained) in alone.iter().zip(&chained) {
        assert!(!alone.is_empty(), "{name}");
        let only = |these: &[String], those: &[String]| -> Vec<String> {
            these.iter().filter(|event| !those.contains(event)).cloned().collect()
        };
        let differ = (only(alone, chained), only(chained, alone));
        assert_eq!(differ, (vec![], vec![]), "{name}: alone, chained");
        assert_eq!(alone.len(), chained.len(), "{name}");
    }
}

#[test]
fn a_plugin_gets_what_it_gets_alone_in_the_version_of_the_release() {
    let releases =
        [("2.23.4", 1), ("2.25.1", 2), ("2.26.5", 3), ("2.27.7", 4), ("2.28.9", 5), ("2.30.7", 6)];
    for (release, version) in releases.into_iter().chain([("2.32.3", 7)]) {
        let Some(run) = TestRun::new(release, version) else { continue };
        expect_same(&run, ALL, &[], &format!("{release} v{version}"));
        // The plugin has recorded the same job.
        let report = common::report(&cli(), &run.run_folder());
        let ranks = report["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), 2, "{report}");
        for rank in ranks {
            assert_eq!(rank["events"]["Coll"]["started"], 3, "{release} {rank}");
            assert_eq!(rank["events"]["Coll"]["stopped"], 3, "{release} {rank}");
            assert_eq!(rank["events"]["P2p"]["started"], 2, "{release} {rank}");
        }
    }
}

fn cli() -> PathBuf {
    build::tool()
}

/// The plugin's conversion of a newer NCCL's events for an older plugin is the same as NCCL's.
#[test]
fn an_older_plugin_gets_what_nccl_converts_for_it() {
    for (release, version) in
        [("2.25.1", 1), ("2.27.7", 3), ("2.30.7", 3), ("2.30.7", 4), ("2.30.7", 5), ("2.32.3", 6)]
    {
        let Some(run) = TestRun::new(release, version) else { continue };
        expect_same(&run, ALL, &[], &format!("{release} v{version}"));
    }
}

/// The plugin requests nearly all kinds, the chained one only one kind: it gets that kind and its
/// ancestors.
#[test]
fn a_plugin_gets_what_its_own_mask_takes() {
    let (kernel, op, coll_api, p2p) = (64, 8, 512, 4);
    for (release, version, masks) in [
        ("2.25.1", 2, [op].as_slice()),
        ("2.26.5", 3, &[kernel]),
        ("2.28.9", 5, &[coll_api]),
        ("2.32.3", 7, &[kernel, p2p]),
    ] {
        let Some(run) = TestRun::new(release, version) else { continue };
        for &mask in masks {
            // If any plugin requests kernel channels, NCCL counts the replays of graphs.
            let env = [("NCCLSCOPE_KERNEL", if mask == kernel { "on" } else { "off" })];
            expect_same(&run, mask, &env, &format!("{release} v{version} {mask}"));
            for rank in 0..2 {
                for name in ["alone", "chained"] {
                    let log = run.folder.path().join(format!("{name}{rank}.v{version}"));
                    std::fs::remove_file(log).unwrap();
                }
            }
        }
    }
}

/// The plugin is off, and the chained one requests events only some time after its `init`: NCCL
/// still gets the mask.
#[test]
fn a_mask_that_is_written_later_reaches_nccl() {
    let Some(run) = TestRun::new("2.30.7", 6) else { return };
    let env = [("NCCLSCOPE_MODE", "off"), ("CHAINED_LATER", "2")];
    let steps = run.chained(0, &env);
    for rank in steps {
        assert!(rank.iter().any(|event| event.starts_with("2 ")), "{rank:?}");
    }
}

/// The plugin measures launches with CUDA events (docs/probe.md) in a chain, too.
#[test]
fn cuda_events_go_with_a_chain() {
    let Some(run) = TestRun::new("2.28.9", 5) else { return };
    let driver = run.folder.path().join("driver");
    std::fs::create_dir(&driver).unwrap();
    let cuda = &build::artifacts().expect("the stand-in builds").cuda;
    std::os::unix::fs::symlink(cuda, driver.join("libcuda.so.1")).unwrap();
    let env = [
        ("NCCLSCOPE_CUDA_EVENTS", "on"),
        ("NCCLSCOPE_KERNEL", "off"),
        ("LD_LIBRARY_PATH", driver.to_str().unwrap()),
    ];
    expect_same(&run, ALL, &env, "2.28.9 with CUDA events");
    let report = common::report(&cli(), &run.run_folder());
    let rows = report["operations"].as_array().unwrap();
    let row = rows.iter().find(|row| row["bytes"] == 4 * 300_001).expect("it is there");
    assert_eq!(row["timings"]["cuda_event"], 2, "{row}");
}
