// SPDX-License-Identifier: Apache-2.0
//! A send through the NIC of another process's GPU (PXN) counts as a wait of the rank that owns the
//! data.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Options, diagnose, recorded_job};
use scripts::{Call, Process};
use std::path::PathBuf;
use std::time::Duration;

const COUNT: u64 = 1 << 10;

/// Rank 0 of a job of two nodes sends to rank 3, which is not recorded, through rank 1's GPU; the
/// recordings of `ranks` are read a minute later.
fn found(ranks: &[usize], is_stuck: bool) -> Diagnosis {
    let mut processes = [0, 1].map(|rank| {
        let mut process = Process::new(rank, 4);
        process.header.host = "node-0".into();
        process.header.closed = false;
        process.comm.nodes = 2;
        process.collective(Call::ALL_REDUCE);
        process
    });
    let [sender, proxy] = &mut processes;
    // Each process numbers its own communicators.
    sender.comm.index = 3;
    match is_stuck {
        true => sender.stuck_send_by(proxy, 3, COUNT),
        false => sender.send_by(proxy, 3, COUNT),
    }
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ranks
        .iter()
        .map(|&rank| {
            processes[rank].now += 60_000_000_000;
            processes[rank].write(dir.path()).unwrap()
        })
        .collect();
    let hang = Duration::from_secs(30);
    let settings = InputOptions { hang, ..InputOptions::default() };
    let job = recorded_job(&paths, &settings, &mut Vec::new()).unwrap();
    let all = paths.len() as u64;
    assert_eq!(settings.progress.get(), (all, all));
    diagnose(&job, &Options::of(hang))
}

#[test]
fn what_another_process_cannot_send_is_a_wait_of_its_rank() {
    let found = found(&[0, 1], true);
    let roots: Vec<&[u32]> = found.findings.iter().map(|it| it.root_ranks.as_slice()).collect();
    assert_eq!((found.waiting_ranks, roots), (1, vec![&[3][..]]), "{found:#?}");
    let evidence = format!("{:?}", found.findings[0].evidence);
    assert!(evidence.contains("rank 0"), "the sender waits, not its neighbour: {evidence}");
}

#[test]
fn what_was_sent_or_is_not_recorded_is_no_wait() {
    for (ranks, is_stuck) in [(&[0, 1][..], false), (&[0], true), (&[1], true)] {
        let found = found(ranks, is_stuck);
        assert!(found.waiting_ranks == 0 && found.findings.is_empty(), "{ranks:?}: {found:#?}");
    }
}
