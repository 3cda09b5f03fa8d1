// SPDX-License-Identifier: Apache-2.0
//! Traces of real jobs, merged with recordings of the same operations as the plugin would have made
//! them: on another clock, longer or shorter than the trace, with calls a little later.
#![expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small numbers")]

mod output;
mod recording;
mod small;
mod tools;
mod truth;

use ncclscope_kineto::join::{Confidence, Joined, Key};
use ncclscope_kineto::{Rank, Trace};
use ncclscope_operations::Timeline;
use ncclscope_operations::launches::Launch;
use ncclscope_trace::{Detail, Recording};
use recording::{Played, Recorder};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use truth::Truth;

const HTA: &str = "hta_nccl_data.json.gz";

/// The eight traces of the job in `dlrm_kineto.tar.gz`, unpacked into `dir`.
fn dlrm(dir: &Path) -> Option<Vec<PathBuf>> {
    let tar = truth::real("dlrm_kineto.tar.gz")?;
    let status = std::process::Command::new("tar").arg("xzf").arg(tar).arg("-C").arg(dir).status();
    assert!(status.unwrap().success());
    let files = std::fs::read_dir(dir.join("dlrm_kineto")).unwrap();
    let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 8);
    Some(files)
}

/// Adds other operations of the job: the first operations again, a step earlier and a step later,
/// and a stretch of other operations before.
fn with_surroundings(truth: &Truth, played: Vec<Played>) -> Vec<Played> {
    let (first, last) = (&truth.kernels[0], truth.kernels.last().unwrap());
    let step = (last.kernel.1 - first.op.0) + 3_000_000;
    let moved = |by: i64| {
        truth.played().into_iter().enumerate().map(move |(at, it)| Played {
            tag: 0,
            external_id: 0,
            call_ns: it.call_ns + by + (at as i64 % 3) * 150_000,
            kernel: (it.kernel.0 + by, it.kernel.1 + by),
            ..it
        })
    };
    let mut all: Vec<Played> = moved(-step).chain(played).chain(moved(step)).collect();
    all.sort_by_key(|it| it.call_ns);
    all
}

fn recorded(recorder: &mut Recorder, played: &[Played], dir: &Path) -> Recording {
    for it in played {
        recorder.play(it);
    }
    Recording::open(&recorder.write(dir)).unwrap()
}

/// The tag of a launch, which all of its operations share.
fn tag(timeline: &Timeline<'_>, rank: &Rank<'_, '_>, launch: &Launch) -> u64 {
    let tags = launch.operations.iter().map(|&operation| {
        match timeline.event(rank.operations()[operation].event).start.detail {
            Detail::Coll(coll) => coll.user_tag,
            Detail::P2p(p2p) => p2p.user_tag,
            _ => 0,
        }
    });
    let tags: BTreeSet<u64> = tags.collect();
    assert_eq!(tags.len(), 1);
    *tags.first().unwrap()
}

/// Asserts that every pair is a kernel and its own launch, and that no pair occurs twice.
fn assert_right(trace: &Trace, timeline: &Timeline<'_>, rank: &Rank<'_, '_>) {
    let pairs = &rank.joined().pairs;
    for pair in pairs {
        let launch = &rank.launches()[pair.launch];
        let kernel = &trace.kernels[pair.kernel];
        assert_eq!(Some(tag(timeline, rank, launch)), kernel.correlation, "{pair:?}");
    }
    let kernels: BTreeSet<usize> = pairs.iter().map(|pair| pair.kernel).collect();
    let launches: BTreeSet<usize> = pairs.iter().map(|pair| pair.launch).collect();
    assert_eq!((kernels.len(), launches.len()), (pairs.len(), pairs.len()));
}

/// Joins a trace with a recording of `played`, and checks that nothing is joined wrongly.
fn joined(path: &Path, truth: &Truth, shift_ns: i64, played: &[Played]) -> Joined {
    let dir = tempfile::tempdir().unwrap();
    let trace = Trace::scan(path).unwrap();
    let recording = recorded(&mut truth.recorder(shift_ns), played, dir.path());
    let timeline = Timeline::read(&recording, true);
    let rank = Rank::new(&trace, &timeline);
    assert_right(&trace, &timeline, &rank);
    rank.joined().clone()
}

/// Clock offsets, from none to ten hours.
const SHIFTS: [i64; 4] = [0, 1_700_123, -2_345_678_901, 36_000_000_000_000];

#[test]
fn every_kernel_finds_its_operation_by_order() {
    let Some(path) = truth::real(HTA) else { return };
    let truth = Truth::read(&path);
    let played = with_surroundings(&truth, truth.played());
    for shift in SHIFTS {
        let joined = joined(&path, &truth, shift, &played);
        assert_eq!((joined.pairs.len(), joined.count(Key::Order)), (21, 21));
        assert!(joined.pairs.iter().all(|pair| pair.confidence == Confidence::High));
        // PyTorch's operation begins before the call.
        assert!((joined.offset.ns + shift).abs() < 50_000, "{:?}", joined.offset);
        assert!(joined.residual_ns().unwrap() < 20_000);
    }
}

#[test]
fn kernels_without_an_operation_stay_alone() {
    let Some(path) = truth::real(HTA) else { return };
    let truth = Truth::read(&path);
    let missing = [0, 1, 9, 20];
    let all = truth.played().into_iter().enumerate();
    let played = all.filter(|(at, _)| !missing.contains(at)).map(|(_, it)| it).collect();
    let surrounded = with_surroundings(&truth, played);
    for shift in SHIFTS {
        let joined = joined(&path, &truth, shift, &surrounded);
        assert_eq!(joined.pairs.len(), 17);
    }
}

#[test]
fn a_recording_of_part_of_the_window() {
    let Some(path) = truth::real(HTA) else { return };
    let truth = Truth::read(&path);
    for part in [0..5, 4..12, 16..21] {
        let played = &truth.played()[part];
        assert_eq!(joined(&path, &truth, 400_000, played).pairs.len(), played.len());
    }
}

#[test]
fn traces_of_old_releases_are_joined_by_their_launches() {
    let dir = tempfile::tempdir().unwrap();
    let Some(files) = dlrm(dir.path()) else { return };
    for path in files {
        let truth = Truth::read(&path);
        let played = with_surroundings(&truth, truth.played());
        for shift in SHIFTS {
            let joined = joined(&path, &truth, shift, &played);
            assert_eq!((joined.pairs.len(), joined.count(Key::Order)), (8, 8), "{shift}");
        }
    }
}

#[test]
fn external_ids_need_no_clock() {
    let Some(path) = truth::real(HTA) else { return };
    let truth = Truth::read(&path);
    // Calls at more irregular times than in real jobs, so that times do not help.
    let mut played = truth.played();
    for (at, it) in played.iter_mut().enumerate() {
        it.call_ns += (at as i64 * 7919 % 23) * 90_000_000;
        it.external_id = truth.kernels[at].external_id;
    }
    played.sort_by_key(|it| it.call_ns);
    let found = joined(&path, &truth, 0, &played);
    assert_eq!((found.pairs.len(), found.count(Key::ExternalId)), (21, 21));
    assert!(found.pairs.iter().all(|pair| pair.confidence == Confidence::Exact));
}

#[test]
fn a_few_external_ids_show_the_offset_for_the_others() {
    let Some(path) = truth::real(HTA) else { return };
    let truth = Truth::read(&path);
    let mut played = truth.played();
    for at in [0, 10, 20] {
        played[at].external_id = truth.kernels[at].external_id;
    }
    let found = joined(&path, &truth, 36_000_000_000_000, &played);
    assert_eq!((found.count(Key::ExternalId), found.count(Key::Order)), (3, 18));
}
