// SPDX-License-Identifier: Apache-2.0
//! A mismatch that did not hang at once is found at its first call, which is no longer among the
//! latest calls.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Options, diagnose, recorded_job};
use ncclscope_findings::{Finding, FindingClass};
use ncclscope_trace::Heartbeat;
use ncclscope_trace::progress::{Progress, name_hash, roll};
use scripts::{Call, Fault, Process};
use std::path::PathBuf;

/// The verdict on three ranks with so many calls, of which rank 1 makes call `wrong` otherwise.
fn verdict(calls: u64, wrong: u64, other: Call) -> Finding {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..3)
        .map(|rank| {
            let (mut process, mut hash) = (Process::new(rank, 3), 0);
            for at in 1..=calls {
                let is_wrong = rank == 1 && at == wrong;
                let call = if is_wrong { other } else { Call::ALL_REDUCE };
                process.collective(call);
                process.now += 5_000_000;
                let [func, datatype] = [call.func, "ncclFloat32"].map(str::as_bytes);
                hash = roll(hash, name_hash(func), name_hash(datatype), 0, call.count);
            }
            let progress = Progress {
                ticks: process.now,
                api: calls,
                enqueued: calls,
                started: calls,
                done: calls,
                hash,
                beat: process.now,
                ..Progress::default()
            };
            process.heartbeats.push(Heartbeat::Progress(progress));
            process.write(dir.path()).unwrap()
        })
        .collect();
    let mut warnings = Vec::new();
    let job = recorded_job(&paths, &InputOptions::default(), &mut warnings).unwrap();
    let mut found = diagnose(&job, &Options::default()).findings;
    assert_eq!((found.len(), &warnings[..]), (1, &[][..]), "{found:#?}");
    found.remove(0)
}

/// A name comes after the events that refer to it, and a live recording may be read in between.
#[test]
fn a_name_that_is_still_to_come_differs_from_no_name() {
    for undefined in ["RING", "SIMPLE", "AllReduce", "ncclFloat32"] {
        let dir = tempfile::tempdir().unwrap();
        let write = |rank: i32| {
            let mut process = Process::new(rank, 3);
            process.header.closed = false;
            process.collective(Call::ALL_REDUCE);
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
            process.now += 60_000_000_000;
            process.undefined = (rank == 1).then_some(undefined);
            process.write(dir.path()).unwrap()
        };
        let paths: Vec<PathBuf> = (0..3).map(write).collect();
        let job = recorded_job(&paths, &InputOptions::default(), &mut Vec::new()).unwrap();
        let found = diagnose(&job, &Options::default()).findings;
        let differs = |verdict: &&Finding| {
            matches!(verdict.class, FindingClass::CallMismatch | FindingClass::SettingsMismatch)
        };
        assert!(!found.is_empty() && found.iter().find(differs).is_none(), "{found:#?}");
    }
}

#[test]
fn the_first_call_that_differs_is_named_with_both_calls() {
    let other = Call { count: 5_000, ..Call::ALL_REDUCE };
    for wrong in [38, 400, 1] {
        let verdict = verdict(900, wrong, other);
        let of = (verdict.class, &verdict.root_ranks[..]);
        assert_eq!(of, (FindingClass::CallMismatch, &[1][..]));
        let texts: Vec<&str> = verdict.evidence.iter().map(|line| &*line.text).collect();
        let count = |count: u64| format!("call {wrong} is AllReduce ncclFloat32, count {count}");
        assert!(texts[0].starts_with(&format!("rank 1: {}", count(5_000))), "{texts:#?}");
        let usual = count(Call::ALL_REDUCE.count);
        assert!(texts[1].starts_with(&format!("ranks 0, 2: {usual}")), "{texts:#?}");
        let calls = format!("; call {wrong} is AllReduce of 5000 against AllReduce of 1048576");
        assert!(verdict.title().ends_with(&calls), "{}", verdict.title());
    }
}
