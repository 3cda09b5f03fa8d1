// SPDX-License-Identifier: Apache-2.0
//! The sends and receives before the end of a recording, which only count.

use ncclscope_trace::reader::OlderPart;
use ncclscope_trace::{Detail, EventKind, Record, Recording};
use std::collections::{BTreeMap, HashMap};

/// How many sends and receives there were before what was read of a recording.
#[derive(Debug, Default)]
pub(super) struct OlderPairs {
    by_comm: HashMap<u16, OlderComm>,
    /// All of them are known.
    pub(super) is_complete: bool,
    /// What is damaged there.
    pub(super) damage: Vec<String>,
}

/// Those of a communicator.
#[derive(Debug, Default)]
pub(super) struct OlderComm {
    pub(super) all: u64,
    /// By (is a send, the other rank).
    pub(super) pairs: BTreeMap<(bool, u32), u64>,
}

impl OlderPairs {
    /// Of a recording. Where the ring was overwritten, they cannot be counted and are not read.
    pub(super) fn of(recording: &Recording) -> OlderPairs {
        let mut older = OlderPairs::default();
        let (lanes, kind) = (recording.lanes(), EventKind::P2p.bit());
        let has_pairs = lanes.iter().any(|lane| lane.header.kinds & kind != 0);
        let is_overwritten = recording.header().overwritten.iter().any(|&count| count != 0);
        if !has_pairs || is_overwritten {
            return older;
        }
        let read = recording.visit_older(kind, |record| {
            let Record::Start(start) = record else { return };
            let Detail::P2p(p2p) = start.detail else { return };
            let comm = older.by_comm.entry(start.comm).or_default();
            comm.all += 1;
            if let Ok(peer) = u32::try_from(p2p.peer) {
                let is_send = recording.string(p2p.func) == Some("Send");
                *comm.pairs.entry((is_send, peer)).or_default() += 1;
            }
        });
        let OlderPart { is_complete, problems } = read.unwrap_or_default();
        (older.is_complete, older.damage) = (is_complete, problems);
        older
    }

    /// Of the communicator of this index, if there are any.
    pub(super) fn of_comm(&self, index: u16) -> Option<&OlderComm> {
        self.by_comm.get(&index)
    }
}
