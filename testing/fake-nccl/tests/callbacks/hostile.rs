// SPDX-License-Identifier: Apache-2.0
//! Callbacks that NCCL should never make, and garbage that shims leave around the others.

use crate::common::{Folded, Found, OTHER, at_once, exact, play};
use fake_nccl::descr::GARBAGE;
use ncclscope_trace::record::{Detail, step_flags};
use ncclscope_trace::{EventKind as K, StrId};

const OPS: usize = 5;

#[test]
fn names_may_be_longer_than_the_room_for_them() {
    for version in 2..=7 {
        let (played, found) = exact(version, "verbose", &["--ops", "5"], Folded::default());
        let text = |id: StrId| played.recording.string(id).expect("it is defined");
        for coll in found.all(K::Coll) {
            let Detail::Coll(d) = coll.detail else { unreachable!() };
            let text = text(d.func);
            assert!(text.chars().count() >= 32, "v{version}: {text}");
            assert!(text.chars().all(|c| c == char::REPLACEMENT_CHARACTER), "v{version}: {text}");
            assert_eq!([d.func; 3], [d.datatype, d.algo, d.proto], "v{version}");
        }
        assert_eq!(found.all(K::Coll).len(), OPS, "v{version}");
        assert_eq!(played.recording.header().strings_lost, 0, "v{version}");
    }
}

#[test]
fn a_parent_may_be_another_communicators() {
    for version in fake_nccl::VERSIONS {
        let (played, found) = exact(version, "strangers", &["--ops", "5"], Folded::default());
        let header = played.recording.header();
        // One step is started under another operation, and one without a parent.
        assert_eq!((header.stale, header.unknown_events), (0, 0), "v{version}");
        let elsewhere = |s: &&ncclscope_trace::Start| {
            found.events.get(&s.parent).is_some_and(|parent| parent.comm != s.comm)
        };
        let each = match version {
            // Coll, P2p and ProxyOp, the first two without a parent in a Group.
            1..=2 => 3,
            3..=4 => 5,
            _ => 7,
        };
        let count = found.events.values().filter(elsewhere).count();
        assert_eq!(count, 3 * each * OPS, "v{version}");
        assert_eq!(found.steps.len(), 3 * OPS, "v{version}");
        let stopped = found.steps.iter().all(|(_, s)| s.has(step_flags::STOPPED));
        assert!(stopped, "v{version}");
        assert!(found.events.keys().all(|h| found.stops.contains_key(h)), "v{version}");
    }
}

#[test]
fn the_mask_is_written_by_init_alone() {
    at_once(|version| {
        // The page is write-protected: a write is a SIGSEGV, also when the process exits.
        let options = ["--ops", "5", "--end", "exit"];
        let (played, found) = exact(version, "sealed", &options, Folded::default());
        assert_eq!(found.all(K::Coll).len(), 2 * OPS, "v{version}");
        assert_eq!(played.recording.comms().len(), 2, "v{version}");
    });
}

/// The text of an unset field of `N` bytes.
fn garbage() -> Vec<String> {
    let byte = u64::from_le_bytes([GARBAGE; 8]);
    let [half, quarter] = [byte & 0xffff_ffff, byte & 0xffff];
    let signed = u32::from_le_bytes([GARBAGE; 4]).cast_signed();
    let numbers = [byte, half, quarter, u64::from(GARBAGE)].map(|n| n.to_string());
    numbers.into_iter().chain([signed.to_string(), byte.cast_signed().to_string()]).collect()
}

#[test]
fn garbage_around_the_fields_is_in_no_record() {
    let garbage = garbage();
    for (script, since) in
        [("allreduce", 1), ("sendrecv", 1), ("net", 3), ("ctrl", 1), ("ce", 6), ("phases", 7)]
    {
        for version in since..=7 {
            let (_, found) = exact(version, script, &["--ops", "2"], Folded::default());
            for start in found.events.values() {
                let text = format!("{:?}", start.detail);
                let field = |g: &&String| {
                    [",", " }"].iter().any(|end| text.contains(&format!(": {g}{end}")))
                };
                let strange: Vec<_> = garbage.iter().filter(field).collect();
                assert!(strange.is_empty(), "v{version} {script}: {text}");
            }
            for &(_, state, small, arg) in &found.states {
                let strange =
                    [u64::from(small), arg].iter().any(|n| garbage.contains(&n.to_string()));
                assert!(!strange, "v{version} {script} {state}: {small} {arg}");
            }
            for start in found.all(K::P2p) {
                let Detail::P2p(d) = start.detail else { unreachable!() };
                // In version 4 it is unknown whether NCCL sets the field.
                let told = if version >= 5 { 2 } else { 0 };
                assert_eq!(u32::from(d.channels), told, "v{version}: {d:?}");
            }
        }
    }
}

#[test]
fn no_order_at_all_is_survived_and_accounted_for() {
    for version in fake_nccl::VERSIONS {
        let played = play(version, "chaos", false, &["--ops", "4000", "--threads", "4"]);
        // Reading it proves that each record is complete: handles are unique, and each step belongs
        // to an operation of its lane.
        let found = Found::read(&played.recording);
        let (kinds, header) = (found.kinds(), played.recording.header());
        let known = [6, 6, 8, 8, 12, 15, 16][version - 1];
        for kind in K::ALL {
            let (k, name) = (kind.index(), format!("v{version} {kind}"));
            let lost: u64 = played.recording.lanes().iter().map(|l| l.header.lost[k]).sum();
            let lost = lost + header.without_memory()[k] + header.unwritten[k];
            let recorded = kinds.get(&kind).copied().unwrap_or(0) as u64;
            let (starts, refused) = played.counts[k];
            assert_eq!(header.overwritten[k], 0, "{name}");
            if k >= known {
                assert_eq!((recorded, lost, refused), (0, 0, starts), "{name}: none has a handle");
            } else if kind == K::ProxyStep {
                // Some steps were started again, which is no new step. Two threads that end the
                // same step at the same moment may both count it; NCCL's proxy threads share no
                // steps, and a locked instruction at each stop would cost more than the rest of the
                // stop.
                let most = starts + starts / 100;
                assert!(recorded > 0 && refused <= lost, "{name}: {refused} of {lost}");
                assert!(recorded + lost <= most, "{name}: {recorded} + {lost} of {starts}");
            } else {
                assert_eq!((recorded + lost, lost), (starts, refused), "{name}");
                assert!(recorded > 0, "{name}");
            }
        }
        let (starts, refused) = played.counts[OTHER];
        assert_eq!(starts, refused, "v{version}: an unknown type has no handle");
        assert!(header.stale > 0 && header.unknown_events >= starts, "v{version}: {header:?}");
        let ends = found.stops.values().sum::<usize>() + found.states.len();
        assert!(ends as u64 <= played.ends, "v{version}: what was not played is not recorded");
    }
}
