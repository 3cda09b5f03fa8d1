// SPDX-License-Identifier: Apache-2.0
//! Processes whose communicators come and go.

use super::*;
use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::layout::Header;
use ncclscope_trace::record::Coll;
use ncclscope_trace::{
    ClockSync, Comm, Definition, Detail, EventKind, Handle, Record, Start, Writer,
};

const SECOND: u64 = 1_000_000_000;

/// A recording that is being written.
struct Rank {
    writer: Writer,
    now: u64,
    words: u64,
}

impl Rank {
    fn new(dir: &Path, pid: u32) -> Rank {
        let host = "node".to_owned();
        let header = Header { pid, process: pid, host, hz: SECOND, ..Header::default() };
        let path = dir.join(format!("node-{pid}.nscope"));
        let mut rank =
            Rank { writer: Writer::create(&path, header, 8 << 20).unwrap(), now: 0, words: 0 };
        rank.pass(1);
        rank
    }

    /// Time passes, which a process tells once a second.
    fn pass(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
        let (ticks, monotonic_ns, realtime_ns) = (self.now, self.now, self.now);
        let sync = ClockSync { ticks, monotonic_ns, realtime_ns, error_ns: 40 };
        self.writer.append(META_LANE, 0, Record::clock_sync(&sync).words()).unwrap();
        self.writer.sync_header().unwrap();
    }

    fn join(&mut self, index: u16, hash: u64) {
        self.writer
            .define(&Definition::Comm(Comm {
                index,
                hash,
                name: None,
                nodes: 1,
                ranks: 2,
                rank: 0,
                ticks: self.now,
                api_version: 3,
                nccl_version: 22_809,
            }))
            .unwrap();
    }

    fn leave(&mut self, index: u16) {
        self.writer.define(&Definition::CommEnd { index, ticks: self.now }).unwrap();
    }

    fn operate(&mut self, comm: u16) {
        self.now += 1000;
        let (ticks, parent) = (self.now, Handle::NULL);
        let handle = Handle::value(u64::from(self.writer.header().pid), EventKind::Coll, 0, ticks);
        let detail = Detail::Coll(Coll::default());
        let start = Start { ticks, comm, handle, parent, detail }.pack();
        let stop = Record::stop(ticks + 10, handle);
        for record in [start.words(), stop.words()] {
            self.writer.append(0, self.words, record).unwrap();
            self.words += record.len() as u64;
        }
    }
}

/// Reads and ends a window, some seconds after the last one.
fn close(node: &mut Node, clock: &mut Instant) {
    node.poll();
    *clock += Duration::from_secs(3);
    node.close(*clock, false);
}

fn operations(metrics: &Metrics, hash: u64) -> u64 {
    let own = metrics.operations.iter().filter(|(key, _)| key.comm.hash == hash);
    own.map(|(_, sums)| sums.count).sum()
}

#[test]
fn communicators_that_are_gone_are_told_of_for_a_while_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut rank = Rank::new(dir.path(), 7);
    let mut node = Node::new(vec![dir.path().to_owned()], None);
    let mut clock = Instant::now();
    rank.join(0, 0xbeef);
    for index in 1..300u16 {
        rank.join(index, 0x1000 + u64::from(index));
        rank.operate(index);
        rank.operate(0);
        rank.leave(index);
        rank.pass(3);
        close(&mut node, &mut clock);
        let total = node.total();
        let rows = total.operations.len();
        assert!(rows <= 3 + 120 / 3 + 2, "{rows} rows after {index}");
        if let Some(before) = index.checked_sub(10).filter(|&before| before > 0) {
            assert_eq!(operations(&total, 0x1000 + u64::from(before)), 1, "a scrape finds it");
        }
    }
    assert!(operations(&node.total(), 0xbeef) >= 297);
    assert_eq!(operations(&node.total(), 0x1001), 0);
}

#[test]
fn a_communicator_is_gone_from_the_node_when_no_process_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut ranks = [7, 8].map(|pid| Rank::new(dir.path(), pid));
    let mut node = Node::new(vec![dir.path().to_owned()], None);
    let mut clock = Instant::now();
    for rank in &mut ranks {
        rank.join(1, 0xaa);
        rank.operate(1);
    }
    let mut all = |node: &mut Node, ranks: &mut [Rank; 2]| {
        for _ in 0..60 {
            ranks.iter_mut().for_each(|rank| rank.pass(3));
            close(node, &mut clock);
        }
    };
    all(&mut node, &mut ranks);
    assert_eq!(operations(&node.total(), 0xaa), 2);
    ranks[0].leave(1);
    all(&mut node, &mut ranks);
    assert_eq!(operations(&node.total(), 0xaa), 2, "it lives in the other process");
    ranks[1].leave(1);
    all(&mut node, &mut ranks);
    assert_eq!(operations(&node.total(), 0xaa), 0);
}

#[test]
fn once_tells_of_all_communicators_that_ever_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut rank = Rank::new(dir.path(), 7);
    for index in 0..200u16 {
        rank.join(index, 0x1000 + u64::from(index));
        rank.operate(index);
        rank.leave(index);
        rank.pass(1);
    }
    let mut node = Node::once(vec![dir.path().to_owned()]);
    node.poll();
    node.close(Instant::now(), true);
    assert!((0..200).all(|index| operations(&node.total(), 0x1000 + index) == 1));
}
