// SPDX-License-Identifier: Apache-2.0
//! Sends and receives between two ranks are compared only if all of them are known.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::job::CommKind;
use ncclscope_diagnose::recorded_job;
use ncclscope_trace::record::{KernelCh, P2p};
use ncclscope_trace::{Detail, EventKind, Handle};
use scripts::{Call, Process};
use std::path::PathBuf;

/// The pairs of a job of two ranks, of which rank 0 has sent and received, and the other may have:
/// their kinds, and how many each side issued.
fn pairs(answers: bool, loses: bool) -> Vec<(CommKind, Vec<u64>)> {
    let dir = tempfile::tempdir().unwrap();
    let write = |rank: i32| -> PathBuf {
        let mut process = Process::new(rank, 2);
        process.collective(Call::ALL_REDUCE);
        if rank == 0 || answers {
            process.send_recv(1 - rank, 1 << 10);
        }
        if rank == 0 {
            process.send_recv(1, 1 << 10);
        }
        if loses && rank == 1 {
            process.lose(0, EventKind::P2p, 1);
        }
        process.write(dir.path()).unwrap()
    };
    let paths = [0, 1].map(write);
    let job = recorded_job(&paths, &InputOptions::default(), &mut Vec::new()).unwrap();
    let pairs = job.comms.iter().filter(|comm| comm.parent.is_some());
    let issued = |comm: &ncclscope_diagnose::job::Communicator| {
        comm.vectors.iter().map(|vector| vector.enqueued).collect()
    };
    pairs.map(|comm| (comm.kind, issued(comm))).collect()
}

#[test]
fn a_rank_that_never_sends_nor_receives_is_known_to_have_done_none() {
    let (sent, received) = ((CommKind::Pair, vec![2, 0]), (CommKind::Pair, vec![0, 2]));
    assert_eq!(pairs(false, false), [sent, received]);
    let (sent, received) = ((CommKind::Pair, vec![2, 1]), (CommKind::Pair, vec![1, 2]));
    assert_eq!(pairs(true, false), [sent, received]);
}

#[test]
fn where_some_were_lost_the_sides_are_not_compared() {
    for answers in [false, true] {
        let kinds: Vec<CommKind> = pairs(answers, true).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [CommKind::Sequence; 2]);
    }
}

/// Rank 0 receives, and its kernel runs. Rank 1 sends, and no kernel of it has started there, nor
/// has any other send or receive: that shows neither that it is over nor that it is not.
#[test]
fn a_send_without_any_event_is_not_known_to_be_over() {
    let dir = tempfile::tempdir().unwrap();
    let write = |rank: i32| {
        let mut process = Process::new(rank, 2);
        process.collective(Call::ALL_REDUCE);
        let func = process.string(if rank == 0 { "Recv" } else { "Send" });
        let (datatype, peer) = (process.string("ncclFloat32"), 1 - rank);
        let call = P2p { func, datatype, count: 1 << 10, peer, channels: 1, ..P2p::default() };
        let p2p = process.start(0, Handle::NULL, Detail::P2p(call));
        process.stop(0, p2p);
        if rank == 0 {
            let ptimer = process.ptimer();
            process.start(1, p2p, Detail::KernelCh(KernelCh { channel: 0, ptimer }));
        }
        process.write(dir.path()).unwrap()
    };
    let job = recorded_job(&[0, 1].map(write), &InputOptions::default(), &mut Vec::new()).unwrap();
    let pair = job.comms.iter().find(|comm| comm.parent.is_some()).unwrap();
    let of = |rank| pair.vectors.iter().find(|vector| vector.rank == rank).unwrap();
    assert!(of(0).is_inside() && !of(0).is_blind, "{pair:#?}");
    assert!(of(1).is_blind && !of(1).is_inside(), "{pair:#?}");
}
