// SPDX-License-Identifier: Apache-2.0
//! Processes whose communicators come and go.

use super::*;
use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::lanes_file::{self, Owner};
use ncclscope_trace::layout::{Header, LANE_STRIDE};
use ncclscope_trace::progress::Progress;
use ncclscope_trace::record::Coll;
use ncclscope_trace::scratch::lane::{LOST, LOST_ENDS};
use ncclscope_trace::{
    ClockSync, Comm, Definition, Detail, EventKind, Handle, Heartbeat, Record, Start, Vendor,
    Writer,
};
use std::os::unix::fs::FileExt;

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

    /// Lets time pass, which the process records once a second.
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
                vendor: Vendor::Nvidia,
            }))
            .unwrap();
    }

    fn leave(&mut self, index: u16) {
        self.writer.define(&Definition::CommEnd { index, ticks: self.now }).unwrap();
    }

    fn operate(&mut self, comm: u16) {
        let handle = self.start(comm);
        self.append(Record::stop(self.now + 10, handle).words());
    }

    fn start(&mut self, comm: u16) -> Handle {
        self.now += 1000;
        let (ticks, parent) = (self.now, Handle::NULL);
        let handle = Handle::value(u64::from(self.writer.header().pid), EventKind::Coll, 0, ticks);
        let detail = Detail::Coll(Coll::default());
        self.append(Start { ticks, comm, handle, parent, detail }.pack().words());
        handle
    }

    fn append(&mut self, record: &[u64]) {
        self.writer.append(0, self.words, record).unwrap();
        self.words += record.len() as u64;
    }

    /// Records that, according to its watchdog, the process has nothing in flight on a
    /// communicator.
    fn is_quiet(&mut self, comm: u16) {
        let progress = Progress { ticks: self.now, comm, ..Progress::default() };
        let words = Heartbeat::Progress(progress).pack();
        self.writer.append(META_LANE, 0, words.words()).unwrap();
    }
}

/// Reads and ends a window, some seconds after the last one.
fn close(node: &mut Node, clock: &mut Instant) {
    node.poll();
    *clock += Duration::from_secs(3);
    node.close(*clock, false);
}

fn operations(places: &ByProcess, hash: u64) -> u64 {
    let all = places.values().flat_map(|metrics| &metrics.operations);
    let own = all.filter(|(key, _)| key.comm.hash == hash);
    own.map(|(_, sums)| sums.count).sum()
}

#[test]
fn communicators_that_are_gone_are_told_of_for_a_while_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut rank = Rank::new(dir.path(), 7);
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
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
        let rows = total.values().map(|metrics| metrics.operations.len()).sum::<usize>();
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
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
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
    let mut node = Node::new(vec![dir.path().to_owned()], "agent").once();
    node.poll();
    node.close(Instant::now(), true);
    assert!((0..200).all(|index| operations(&node.total(), 0x1000 + index) == 1));
}

/// Polls until this many processes are followed.
fn wait_for(node: &mut Node, alive: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while node.count().alive != alive {
        assert!(Instant::now() < end, "{:?}", node.count());
        node.poll();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sets a file's modification time to an hour ago.
fn age(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

#[test]
fn what_was_recorded_before_the_agent_began_is_not_told_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut rank = Rank::new(dir.path(), 7);
    rank.join(0, 0xbeef);
    (0..5).for_each(|_| rank.operate(0));
    rank.pass(1);
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    let mut clock = Instant::now();
    let mut later = Rank::new(dir.path(), 8);
    later.join(0, 0xcafe);
    (0..3).for_each(|_| later.operate(0));
    rank.operate(0);
    for _ in 0..9 {
        [&mut rank, &mut later].into_iter().for_each(|rank| rank.pass(3));
        close(&mut node, &mut clock);
    }
    let total = node.total();
    assert_eq!(operations(&total, 0xbeef), 1, "a restart sends nothing twice");
    assert_eq!(operations(&total, 0xcafe), 3, "what begins later is new");
}

#[test]
fn what_is_no_recording_yet_is_followed_once_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node-9.nscope");
    std::fs::write(&path, vec![0; 64 << 10]).unwrap();
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    node.poll();
    assert_eq!((node.count().alive, node.count().unreadable), (0, 1));
    let beside = tempfile::tempdir().unwrap();
    drop(Rank::new(beside.path(), 9));
    std::fs::copy(beside.path().join("node-9.nscope"), &path).unwrap();
    wait_for(&mut node, 1);
    assert_eq!(node.count().unreadable, 0);
}

#[test]
fn old_recordings_are_not_even_opened_and_one_that_goes_on_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..100 {
        let path = dir.path().join(format!("old-{number}.nscope"));
        std::fs::write(&path, "this is no recording").unwrap();
        age(&path);
    }
    let mut rank = Rank::new(dir.path(), 7);
    let path = dir.path().join("node-7.nscope");
    age(&path);
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    assert_eq!((node.count().alive, node.count().unreadable), (0, 0));
    // The process was suspended and continues.
    rank.pass(3);
    let minute = Duration::from_secs(60);
    node.poll_at(Instant::now() + minute);
    assert_eq!((node.count().alive, node.count().unreadable), (1, 0));
}

/// A process that was stopped long before the agent starts may be what a job waits for.
#[test]
fn a_process_that_lives_and_writes_nothing_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let new = |pid: u32| {
        let name = format!(
            "{}agent-test-{}-{pid}{}",
            lanes_file::PREFIX,
            std::process::id(),
            lanes_file::SUFFIX
        );
        let lanes = Path::new(ncclscope_control::directories::LANES).join(name);
        let mut rank = Rank::new(dir.path(), pid);
        let path = dir.path().join(format!("node-{pid}.nscope"));
        let file = std::fs::File::create(&lanes).unwrap();
        file.write_all_at(&Owner::new(pid, pid, path.clone()).encode(), 0).unwrap();
        rank.writer.header_mut().lanes_file = Some(lanes.clone());
        rank.writer.sync_header().unwrap();
        age(&path);
        (file, lanes)
    };
    let [stopped, dead] = [7, 8].map(new);
    stopped.0.lock().unwrap();
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    let followed: Vec<u32> = node.processes().map(Process::pid).collect();
    // Any starting rank of this machine may have adopted those of the dead process.
    [stopped, dead].iter().for_each(|(_, lanes)| drop(std::fs::remove_file(lanes)));
    assert_eq!(followed, [7], "the other process is dead");
}

/// As after an error of the disk.
#[test]
fn a_recording_that_fails_while_it_is_read_is_unreadable() {
    let dir = tempfile::tempdir().unwrap();
    let mut rank = Rank::new(dir.path(), 7);
    // A killed rank, whose lanes are read last, with the recording opened anew.
    rank.writer.header_mut().lanes_shared = true;
    rank.pass(1);
    let mut node = Node::new(vec![dir.path().to_owned()], "agent").once();
    node.find(Instant::now(), false);
    assert_eq!((node.count().alive, node.count().unreadable), (1, 0));
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("node-7.nscope"));
    file.unwrap().set_len(0).unwrap();
    node.poll();
    assert_eq!((node.processes.len(), node.count().unreadable), (1, 1));
}

#[test]
fn a_copy_beside_its_original_counts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut rank = Rank::new(dir.path(), 7);
    rank.join(0, 0xbeef);
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    (0..5).for_each(|_| rank.operate(0));
    rank.pass(1);
    // `ncclscope dump -o` into the directory that the agent follows. The name is before that of the
    // original.
    let copy = dir.path().join("a-copy.nscope");
    std::fs::copy(dir.path().join("node-7.nscope"), &copy).unwrap();
    let header = Header { copy: true, closed: true, ..rank.writer.header().clone() };
    let file = std::fs::OpenOptions::new().write(true).open(&copy).unwrap();
    file.write_all_at(&header.encode(), 0).unwrap();
    let mut clock = Instant::now();
    for _ in 0..9 {
        rank.pass(3);
        close(&mut node, &mut clock);
    }
    assert_eq!((operations(&node.total(), 0xbeef), node.processes.len()), (5, 1));
    let mut node = Node::new(vec![dir.path().to_owned()], "agent").once();
    node.poll();
    node.close(Instant::now(), true);
    assert_eq!((operations(&node.total(), 0xbeef), node.processes.len()), (5, 1));
    assert_eq!(node.count().unreadable, 0);
}

/// The process was stopped and continued; the agent checks a retired recording at most once a
/// minute.
#[test]
fn what_a_retired_process_does_before_it_is_looked_at_again_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    let mut rank = Rank::new(dir.path(), 7);
    rank.writer.header_mut().unwritten[EventKind::Coll.index()] = 2;
    rank.join(0, 0xbeef);
    (0..5).for_each(|_| rank.operate(0));
    let mut clock = Instant::now();
    for _ in 0..9 {
        rank.pass(3);
        close(&mut node, &mut clock);
    }
    let open = rank.start(0);
    rank.pass(1);
    close(&mut node, &mut clock);
    let counts = |node: &Node| {
        let total = node.total().into_values().next().unwrap();
        (total.events["Coll"], total.lost[&("unwritten", "Coll")], node.count().lost)
    };
    assert_eq!((operations(&node.total(), 0xbeef), counts(&node)), (5, (6, 2, 2)));
    node.processes.values_mut().for_each(|process| process.fall_silent(2 * SILENT_AFTER));
    close(&mut node, &mut clock);
    clock += LINGER;
    close(&mut node, &mut clock);
    assert_eq!((node.count().alive, node.processes.len()), (0, 0), "it is retired");
    // The process continues long before the next check.
    rank.append(Record::stop(rank.now + 10, open).words());
    (0..3).for_each(|_| rank.operate(0));
    rank.writer.header_mut().unwritten[EventKind::Coll.index()] = 3;
    rank.pass(3);
    node.poll_at(Instant::now() + Duration::from_secs(61));
    assert_eq!(node.processes.len(), 1);
    for _ in 0..9 {
        rank.pass(3);
        close(&mut node, &mut clock);
    }
    assert_eq!(counts(&node), (9, 3, 3));
    // The series of its communicator had ended with it.
    assert_eq!(operations(&node.total(), 0xbeef), 4);
}

#[test]
fn open_files_are_left_for_scrapes_and_what_finds_no_room_is_followed_later() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new(vec![dir.path().to_owned()], "agent");
    let limit = usize::try_from(getrlimit(Resource::Nofile).current.unwrap()).unwrap();
    assert!(node.most < limit && node.most >= limit / 2);
    let mut node = Node { most: 2, ..node };
    let mut ranks = [7, 8, 9].map(|pid| Rank::new(dir.path(), pid));
    node.begin();
    assert_eq!((node.count().alive, node.count().unreadable), (2, 1));
    // The first two processes end, and five minutes later their files are closed.
    for pid in [7, 8] {
        std::fs::remove_file(dir.path().join(format!("node-{pid}.nscope"))).unwrap();
    }
    let mut clock = Instant::now();
    close(&mut node, &mut clock);
    clock += LINGER;
    close(&mut node, &mut clock);
    ranks[2].pass(1);
    wait_for(&mut node, 1);
    assert_eq!(node.count().unreadable, 0);
}

#[test]
fn a_fifo_is_no_recording_and_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("x.nscope");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _rank = Rank::new(dir.path(), 7);
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    assert_eq!((node.count().alive, node.count().unreadable), (1, 1));
}

#[test]
fn two_jobs_of_a_node_stay_two() {
    let dir = tempfile::tempdir().unwrap();
    let mut ranks = [7, 8].map(|pid| Rank::new(dir.path(), pid));
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    for (rank, job) in ranks.iter_mut().zip(["4711.0", "4712.0"]) {
        rank.writer.define(&Definition::Identity { key: "job".into(), value: job.into() }).unwrap();
        rank.join(1, 0xaa);
        rank.operate(1);
    }
    let mut clock = Instant::now();
    for _ in 0..9 {
        ranks.iter_mut().for_each(|rank| rank.pass(3));
        close(&mut node, &mut clock);
    }
    let total = node.total();
    let counts = total.values().map(|of| of.operations.values().map(|sums| sums.count).sum());
    assert_eq!(counts.collect::<Vec<u64>>(), [1, 1]);
    let Table { jobs, .. } = node.vectors();
    assert_eq!(
        jobs.into_values().collect::<BTreeSet<_>>(),
        ["4711.0", "4712.0"].map(str::to_owned).into()
    );
}

/// Without a hash (API v1 to v3) the ranks of two processes look the same.
#[test]
fn what_is_in_flight_of_several_processes_adds_up_and_a_lost_stop_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut ranks = [7, 8].map(|pid| Rank::new(dir.path(), pid));
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    let mut clock = Instant::now();
    node.begin();
    for rank in &mut ranks {
        rank.join(0, 0);
        rank.start(0);
        rank.pass(20);
    }
    let in_flight = |node: &Node| {
        let total = node.total().into_values().next().unwrap();
        let ranks = total.ranks.values().map(|rank| (rank.in_flight, rank.oldest.round()));
        (ranks.collect::<Vec<_>>(), total.lost.get(&("overtaken", "Coll")).copied())
    };
    close(&mut node, &mut clock);
    assert_eq!(in_flight(&node), (vec![(2, 20.0)], None));
    // The watchdog of one of them knows that its stop was lost.
    ranks[0].is_quiet(0);
    ranks.iter_mut().for_each(|rank| rank.pass(3));
    close(&mut node, &mut clock);
    assert_eq!(in_flight(&node), (vec![(1, 23.0)], Some(1)));
}

#[test]
fn what_was_lost_is_counted_by_cause() {
    let dir = tempfile::tempdir().unwrap();
    let mut rank = Rank::new(dir.path(), 7);
    let mut node = Node::new(vec![dir.path().to_owned()], "agent");
    node.begin();
    let mut header = [0u8; LANE_STRIDE];
    let kind = 8 * EventKind::KernelCh.index();
    // Events, ends, and events of a kind that this version does not know.
    for (at, lost) in [(LOST + kind, 3), (LOST_ENDS + kind, 5), (LOST + 8 * KINDS, 7)] {
        header[at] = lost;
    }
    rank.writer.write_lane(4, &header).unwrap();
    rank.pass(3);
    close(&mut node, &mut Instant::now());
    let lost = node.total().into_values().next().unwrap().lost;
    assert_eq!(lost[&("lane_full", "KernelCh")], 3);
    assert_eq!(lost[&("lost_end", "KernelCh")], 5);
    assert_eq!((lost[&("lane_full", "")], node.count().lost), (7, 15));
}
