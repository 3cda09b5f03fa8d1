// SPDX-License-Identifier: Apache-2.0
//! A send through the NIC of another process's GPU (PXN) counts for the link of the rank that owns
//! the data.

use ncclscope_stragglers::input::recording::job;
use ncclscope_trace::Recording;
use scripts::Process;

#[test]
fn a_link_through_another_process_is_the_senders() {
    let dir = tempfile::tempdir().unwrap();
    let [mut sender, mut proxy, receiver] = [0, 1, 2].map(|rank| {
        let mut process = Process::new(rank, 4);
        process.header.host = format!("node-{}", rank / 2);
        process.comm.nodes = 2;
        process
    });
    sender.comm.index = 3;
    for _ in 0..20 {
        sender.send_by(&mut proxy, 2, 1 << 10);
        sender.now += 1_000_000;
    }
    let recordings = [sender, proxy, receiver]
        .map(|process| Recording::open(&process.write(dir.path()).unwrap()).unwrap());
    let edges = |recordings: &[Recording]| {
        let job = job(recordings);
        let rank = |worker: usize| job.workers[worker].rank;
        let edges = job.edges.iter().map(|e| (rank(e.src), rank(e.dst), e.transfers, e.bytes));
        edges.collect::<Vec<_>>()
    };
    assert_eq!(edges(&recordings), [(0, 2, 20, 20 * 4096)]);
    assert_eq!(edges(&recordings[1..]), [], "the sender is not recorded");
}
