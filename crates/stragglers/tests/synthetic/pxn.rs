// SPDX-License-Identifier: Apache-2.0
//! A send through the NIC of another process's GPU (PXN) counts for the link of the rank that owns
//! the data.

use ncclscope_stragglers::input::recording::job;
use ncclscope_trace::Recording;
use scripts::Process;

/// Recordings of a rank that sends 21 times, `pause` ns apart, of the one that does it for it, and
/// of the receiver.
fn recordings(pause: u64) -> [Recording; 3] {
    let dir = tempfile::tempdir().unwrap();
    let [mut sender, mut proxy, receiver] = [0, 1, 2].map(|rank| {
        let mut process = Process::new(rank, 4);
        process.header.host = format!("node-{}", rank / 2);
        process.comm.nodes = 2;
        process
    });
    sender.comm.index = 3;
    for _ in 0..21 {
        sender.send_by(&mut proxy, 2, 1 << 10);
        sender.now += pause;
    }
    [sender, proxy, receiver]
        .map(|process| Recording::open(&process.write(dir.path()).unwrap()).unwrap())
}

#[test]
fn a_link_through_another_process_is_the_senders() {
    let recordings = recordings(100_000);
    let edges = |recordings: &[Recording]| {
        let job = job(recordings);
        let rank = |worker: usize| job.workers[worker].rank;
        let edges = job.edges.iter().map(|e| (rank(e.src), rank(e.dst), e.transfers, e.bytes));
        edges.collect::<Vec<_>>()
    };
    assert_eq!(edges(&recordings), [(0, 2, 21, 21 * 4096)]);
    assert_eq!(edges(&recordings[1..]), [], "the sender is not recorded");
}

/// The first transfer after an idle time wakes the threads and the receiver, and is compared with
/// other such transfers alone.
#[test]
fn transfers_that_come_one_at_a_time_are_kept_apart() {
    // The time of the first one is close to 0, as if something had ended just before.
    for (pause, expected) in [(900_000, &[(21, false)][..]), (2_000_000, &[(1, false), (20, true)])]
    {
        let job = job(&recordings(pause));
        let edges: Vec<_> = job.edges.iter().map(|edge| (edge.transfers, edge.is_first)).collect();
        assert_eq!(edges, expected);
    }
}
