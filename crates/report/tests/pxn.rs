// SPDX-License-Identifier: Apache-2.0
//! Sends through the NIC of another process's GPU (PXN) are counted for the rank that owns the
//! data.

use ncclscope_report::{Report, ReportBuilder};
use ncclscope_trace::Recording;
use scripts::{Call, Process};

const SENDS: u64 = 20;
const COUNT: u64 = 1 << 10;

/// A job of two nodes: rank 0 sends to rank 3, which is not recorded, through rank 1's GPU.
fn processes() -> [Process; 2] {
    let [mut sender, mut proxy] = [0, 1].map(|rank| {
        let mut process = Process::new(rank, 4);
        process.header.host = "node-0".into();
        process.comm.nodes = 2;
        process
    });
    // Each process numbers its own communicators.
    sender.comm.index = 3;
    for _ in 0..SENDS {
        sender.send_by(&mut proxy, 3, COUNT);
        sender.now += 200_000_000;
    }
    proxy.collective(Call::ALL_REDUCE);
    [sender, proxy]
}

fn report(processes: &[Process]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let open = |process: &Process| Recording::open(&process.write(dir.path()).unwrap()).unwrap();
    let recordings: Vec<Recording> = processes.iter().map(open).collect();
    ReportBuilder::build_all(&recordings)
}

/// Sender, receiver, transfers and bytes of the links to rank 3.
fn links(report: &Report) -> Vec<(i32, u64, u64)> {
    let to_it = report.peers.iter().filter(|row| row.comm_dst == 3);
    to_it.map(|row| (row.comm_src, row.transfers, row.bytes.unwrap_or(0))).collect()
}

fn says_pxn(report: &Report) -> bool {
    report.unknowable.iter().any(|sentence| sentence.contains("PXN"))
}

#[test]
fn what_another_process_sends_counts_for_the_rank_whose_data_it_is() {
    let [sender, proxy] = processes();
    let whole = report(&[sender, proxy]);
    assert_eq!(links(&whole), [(0, SENDS, SENDS * COUNT * 4)], "{:?}", whole.peers);
    assert!(!says_pxn(&whole), "{:?}", whole.unknowable);
    assert_eq!(whole.problems, [""; 0]);
    let send = whole.operations.iter().find(|row| row.func == "Send").expect("sends");
    let timings: Vec<&str> = send.timings.keys().copied().collect();
    assert_eq!((send.count, timings), (SENDS, vec!["proxy"]), "its end is that of the ProxyOp");
}

#[test]
fn what_is_done_for_an_unrecorded_process_is_said() {
    let [sender, proxy] = processes();
    let alone = report(std::slice::from_ref(&proxy));
    assert!(links(&alone).is_empty() && says_pxn(&alone), "{:?}", alone.unknowable);
    let without = report(std::slice::from_ref(&sender));
    assert!(links(&without).is_empty() && !says_pxn(&without));
    // Another node's process with the same id is not the sender.
    let mut strange = sender;
    strange.header.host = "node-1".into();
    let apart = report(&[strange, proxy]);
    assert!(links(&apart).is_empty() && says_pxn(&apart), "{:?}", apart.peers);
}
