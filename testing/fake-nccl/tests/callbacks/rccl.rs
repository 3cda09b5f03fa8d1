// SPDX-License-Identifier: Apache-2.0
//! AMD's RCCL as the caller.

use crate::common::{Found, Played, balance, play_with};
use fake_nccl::build::rccl;
use ncclscope_trace::record::{Detail, KernelCh};
use ncclscope_trace::{EventKind, Handle, State, Vendor};
use std::collections::HashMap;

/// Operations of a run.
const OPS: usize = 8;
/// What the script plants for each kernel, ns.
const KERNEL_NS: u64 = 4_000_000;

fn play(version: usize, env: &[(&str, &str)]) -> (Played, Found) {
    let library = rccl();
    let library = library.to_str().expect("a path of text");
    let played = play_with(version, "rccl", false, &["--ops", "8", "--nccl", library], env);
    let found = Found::read(&played.recording);
    balance(&played, &found, crate::common::Folded::default());
    (played, found)
}

/// The recorded duration of each kernel channel that has one, ns.
fn kernels(found: &Found) -> Vec<u64> {
    let stops = found.states.iter().filter(|(_, state, ..)| *state == State::KERNEL_CH_STOP);
    let stops: HashMap<Handle, u64> = stops.map(|&(handle, _, _, arg)| (handle, arg)).collect();
    let length = |(handle, stop): (&Handle, &u64)| {
        let Detail::KernelCh(KernelCh { ptimer, .. }) = found.events[handle].detail else {
            panic!("a kernel's stop belongs to a kernel")
        };
        (ptimer != 0 && *stop != 0).then(|| stop - ptimer)
    };
    stops.iter().filter_map(length).collect()
}

fn identity(played: &Played) -> (Option<&str>, Option<u32>) {
    let identity = played.recording.identity();
    (identity.nccl.as_deref(), identity.timer_ns)
}

#[test]
fn kernels_have_their_times_in_ns_whatever_the_rate_of_the_timer() {
    for version in 4..=7 {
        for (khz, tick_ns) in [("100000", 10), ("25000", 40)] {
            let env = [("FAKE_RCCL_KHZ", khz), ("FAKE_RCCL_VERSION", "22707")];
            let (played, found) = play(version, &env);
            assert_eq!(identity(&played), (Some("RCCL 2.27.7"), Some(tick_ns)), "v{version}");
            let comm = &played.recording.comms()[0];
            assert_eq!((comm.vendor, comm.nccl_version), (Vendor::Amd, 22_707));
            let kernels = kernels(&found);
            assert_eq!(kernels.len(), OPS * 256 - 1, "v{version}: one never stops");
            let off = kernels.iter().map(|ns| ns.abs_diff(KERNEL_NS)).max().unwrap();
            assert!(off <= u64::from(tick_ns), "v{version}: {off} ns off");
        }
    }
}

#[test]
fn times_in_an_unknown_unit_are_dropped_and_one_line_says_so() {
    let (played, found) = play(4, &[("FAKE_RCCL_KHZ", "0")]);
    assert_eq!(identity(&played), (Some("RCCL 2.27.7"), Some(0)));
    assert_eq!(kernels(&found), []);
    let notes = played.recording.notes();
    let about = notes.iter().filter(|note| note.contains("HIP does not say how long a tick is"));
    assert_eq!(about.count(), 1, "{notes:?}");
}

#[test]
fn two_hundred_and_fifty_six_channels_are_not_none() {
    let (_, found) = play(5, &[]);
    let colls = found.all(EventKind::Coll);
    assert_eq!(colls.len(), OPS);
    for coll in colls {
        let Detail::Coll(coll) = coll.detail else { unreachable!() };
        assert_eq!((coll.channels, coll.more_channels), (0, true));
    }
}

#[test]
fn the_proxys_own_diagnosis_is_not_asked_for() {
    for version in [6, 7] {
        let (played, found) = play(version, &[("NCCLSCOPE_EVENTS", "all")]);
        let phase = EventKind::KernelPhase;
        assert_eq!(played.recording.header().mask & phase.bit(), 0, "v{version}");
        assert_eq!(played.counts[phase.index()], (0, 0), "v{version}");
        assert_eq!(found.all(phase).len(), 0, "v{version}");
    }
}

/// A collective's descriptor ends where no memory follows: the process dies if more is read.
#[test]
fn no_tag_is_read_where_version_7_has_none() {
    let (_, found) = play(7, &[]);
    for kind in [EventKind::Coll, EventKind::CollApi] {
        let all = found.all(kind);
        assert_eq!(all.len(), OPS);
        for event in all {
            let tag = match event.detail {
                Detail::CollApi(call) => call.user_tag,
                Detail::Coll(coll) => coll.user_tag,
                _ => unreachable!(),
            };
            assert_eq!(tag, 0, "{kind}");
        }
    }
}

#[test]
fn releases_have_rows_of_their_own() {
    for (version, has_kernels) in [("22707", true), ("22803", true), ("23004", false)] {
        let (played, _) = play(5, &[("FAKE_RCCL_VERSION", version)]);
        let asked = played.recording.header().mask & EventKind::KernelCh.bit() != 0;
        assert_eq!(asked, has_kernels, "{version}");
    }
}
