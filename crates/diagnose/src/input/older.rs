// SPDX-License-Identifier: Apache-2.0
//! The sends and receives before the part of a recording that was read; they are only counted.

use ncclscope_trace::reader::OlderPart;
use ncclscope_trace::{Detail, EventKind, PairCount, Record, Recording, StrId};
use std::collections::{BTreeMap, HashMap};

/// Maximum of a number in a forged record, so that sums do not overflow.
pub(super) const MOST: u64 = 1 << 62;

/// Numbers of the sends and receives before the part of a recording that was read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OlderPairs {
    by_comm: HashMap<u16, OlderComm>,
    /// All sends and receives are counted.
    pub(super) is_complete: bool,
    /// The older part was read, so that its damage is known.
    pub(super) is_read: bool,
    pub(super) damage: Vec<String>,
}

/// The numbers for one communicator.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OlderComm {
    pub(super) all: u64,
    /// Numbers by (is a send, other rank).
    pub(super) pairs: BTreeMap<(bool, u32), u64>,
}

impl OlderPairs {
    /// The numbers that the end of a recording contains; if it does not, the older part is read.
    pub(super) fn of(recording: &Recording) -> OlderPairs {
        let Some(counts) = recording.pairs_before() else { return OlderPairs::read(recording) };
        let mut older = OlderPairs { is_complete: true, ..OlderPairs::default() };
        for &PairCount { comm, func, peer, count, .. } in counts {
            older.add(recording, (comm, func, peer), count);
        }
        older
    }

    /// Counts by reading the older part of a recording, unless part of it was overwritten, with
    /// which counting is impossible.
    fn read(recording: &Recording) -> OlderPairs {
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
            older.add(recording, (start.comm, p2p.func, p2p.peer), 1);
        });
        older.is_read = read.is_ok();
        let OlderPart { is_complete, problems } = read.unwrap_or_default();
        (older.is_complete, older.damage) = (is_complete, problems);
        older
    }

    /// Adds `count` operations of a communicator and function with another rank. In a forged
    /// recording the numbers may be arbitrary.
    fn add(&mut self, recording: &Recording, (comm, func, peer): (u16, StrId, i32), count: u64) {
        let comm = self.by_comm.entry(comm).or_default();
        let add = |sum: &mut u64| *sum = sum.saturating_add(count).min(MOST);
        add(&mut comm.all);
        if let Ok(peer) = u32::try_from(peer) {
            let is_send = recording.string(func) == Some("Send");
            add(comm.pairs.entry((is_send, peer)).or_default());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_comm.is_empty()
    }

    /// The numbers for the communicator with this index, if there are any.
    pub(super) fn of_comm(&self, index: u16) -> Option<&OlderComm> {
        self.by_comm.get(&index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::layout::{Header, LANE_STRIDE, SEGMENT};
    use ncclscope_trace::record::P2p;
    use ncclscope_trace::scratch::lane;
    use ncclscope_trace::{Definition, Handle, Start, Writer};
    use std::path::Path;

    const SEND: StrId = StrId(1);
    const RECV: StrId = StrId(2);

    /// A recording of sends and receives with two ranks, and of sends to itself.
    fn write(path: &Path, segments: u64, rounds: u64) {
        let mut writer = Writer::create(path, Header::default(), segments * SEGMENT).unwrap();
        let mut header = [0; LANE_STRIDE];
        header[lane::STATE] = 1;
        header[lane::KINDS..lane::KINDS + 4].copy_from_slice(&EventKind::P2p.bit().to_le_bytes());
        writer.write_lane(0, &header).unwrap();
        for (id, text) in [(SEND, "Send"), (RECV, "Recv")] {
            writer.define(&Definition::String { id, text: text.into() }).unwrap();
        }
        for round in 0..rounds {
            let start = |at: u64| {
                let (comm, peer, func) = [(0, 3, SEND), (0, 3, RECV), (7, 1, SEND), (7, -1, RECV)]
                    [usize::try_from(at % 4).unwrap()];
                let ticks = 1 + 2000 * round + at;
                let handle = Handle(ticks.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let detail = Detail::P2p(P2p { peer, func, user_tag: !handle.0, ..P2p::default() });
                Start { ticks, comm, handle, parent: Handle::NULL, detail }.pack()
            };
            let words: Vec<u64> = (0..2000).flat_map(|at| start(at).words().to_vec()).collect();
            writer.append(0, 0, &words).unwrap();
        }
        writer.header_mut().closed = true;
        writer.sync_header().unwrap();
    }

    #[test]
    fn what_the_end_says_is_what_the_older_part_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h-1.nscope");
        write(&path, 64, 100);
        for segments in [1, 2, 3, 5] {
            let end = Recording::open_end(&path, segments).unwrap();
            let (mut said, read) = (OlderPairs::of(&end), OlderPairs::read(&end));
            assert_eq!((said.is_read, read.is_read), (false, true));
            said.is_read = true;
            assert_eq!(said, read);
            let all = end.records(0).count() as u64
                + said.of_comm(0).unwrap().all
                + said.of_comm(7).unwrap().all;
            assert_eq!((all, said.is_complete, end.is_whole()), (200_000, true, false));
        }
        let whole = Recording::open(&path).unwrap();
        assert_eq!(OlderPairs::of(&whole), OlderPairs { is_complete: true, ..Default::default() });
    }

    #[test]
    fn what_was_overwritten_is_known_from_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h-1.nscope");
        write(&path, 4, 100);
        for segments in [1, 2, usize::MAX] {
            let end = Recording::open_end(&path, segments).unwrap();
            assert!(end.header().overwritten[EventKind::P2p.index()] > 0);
            assert!(!OlderPairs::read(&end).is_complete);
            let said = OlderPairs::of(&end);
            let mut all = said.of_comm(0).unwrap().pairs.clone();
            let before = said.of_comm(0).unwrap().all;
            end.visit_lane(0, |record| {
                let Record::Start(start) = record else { unreachable!() };
                let Detail::P2p(p2p) = start.detail else { unreachable!() };
                if start.comm == 0 {
                    *all.entry((p2p.func == SEND, 3)).or_default() += 1;
                }
            });
            assert_eq!(all, [((false, 3), 50_000), ((true, 3), 50_000)].into());
            let here = said.of_comm(0).unwrap().pairs.values().sum::<u64>();
            assert_eq!((said.is_complete, before), (true, here));
            let other = said.of_comm(7).unwrap();
            assert_eq!(other.pairs, [((true, 1), other.all / 2)].into(), "no rank has number -1");
        }
    }
}
