// SPDX-License-Identifier: Apache-2.0
//! Communicators that are created and destroyed: their work is counted, and then they are
//! forgotten.

use super::SECOND;
use ncclscope_metrics::{Collector, CommKey, Metrics, RankKey};
use ncclscope_trace::record::{ApiCall, Coll, KernelCh, KernelLaunch, ProxyOp, step_flags};
use ncclscope_trace::{
    Comm, Detail, EventKind, Handle, Record, Start, State, Step, TickMap, Vendor,
};
use std::collections::BTreeSet;

const LANE: usize = 1;
/// A tick is a nanosecond.
const HZ: u64 = SECOND;

/// A process whose communicators are played by the test.
#[derive(Default)]
struct Host {
    collector: Collector,
    now: u64,
    handles: u64,
    total: Metrics,
}

impl Host {
    fn join(&mut self, index: u16) {
        self.join_as(index, 0x1000 + u64::from(index));
    }

    fn join_as(&mut self, index: u16, hash: u64) {
        self.join_with(index, hash, 22_809);
    }

    fn join_with(&mut self, index: u16, hash: u64, nccl_version: u32) {
        self.now += 1000;
        self.collector.comm(&Comm {
            index,
            hash,
            name: None,
            nodes: 1,
            ranks: 2,
            rank: 0,
            ticks: self.now,
            api_version: 6,
            nccl_version,
            vendor: Vendor::Nvidia,
        });
    }

    fn leave(&mut self, index: u16) {
        self.now += 1000;
        self.collector.comm_end(index, self.now);
    }

    fn handle(&mut self, kind: EventKind) -> Handle {
        self.handles += 1;
        Handle::value(7, kind, LANE, self.handles)
    }

    fn start(&mut self, comm: u16, parent: Handle, detail: Detail) -> Handle {
        self.now += 1000;
        let handle = self.handle(detail.kind());
        let start = Start { ticks: self.now, comm, handle, parent, detail };
        self.collector.record(LANE, &Record::Start(start));
        handle
    }

    fn stop(&mut self, handle: Handle) {
        self.now += 1000;
        self.collector.record(LANE, &Record::Stop { ticks: self.now, handle });
    }

    /// Plays an operation with a ProxyOp of one step of 8 bytes.
    fn operate(&mut self, comm: u16) {
        let coll = self.start(comm, Handle::NULL, Detail::Coll(Coll::default()));
        let op = ProxyOp { rank: 0, peer: 1, is_send: true, steps: 1, ..ProxyOp::default() };
        let proxy = self.start(comm, coll, Detail::ProxyOp(op));
        self.now += 1000;
        let flags = step_flags::STOPPED | step_flags::IS_SEND | step_flags::SIZED;
        let (ticks, op_ref) = (self.now, proxy.op_ref());
        let step = Step { ticks, flags, size: 8, op_ref, end: 9, ..Step::default() };
        self.collector.record(LANE, &Record::Step(step));
        self.stop(proxy);
        self.stop(coll);
    }

    /// Plays a call with a measured launch, whose operation has a kernel on each of `channels`.
    fn operate_on_the_gpu(&mut self, comm: u16, channels: u8) {
        let call = self.start(comm, Handle::NULL, Detail::CollApi(ApiCall::default()));
        let launch = Detail::KernelLaunch(KernelLaunch { stream: 7 });
        let launch = self.start(comm, Handle::NULL, launch);
        let coll = self.start(comm, call, Detail::Coll(Coll { channels, ..Coll::default() }));
        for channel in 0..channels {
            let kernel = KernelCh { channel, ptimer: self.now };
            let kernel = self.start(comm, coll, Detail::KernelCh(kernel));
            self.state(kernel, State::KERNEL_CH_STOP, self.now);
            self.stop(kernel);
        }
        self.state(launch, State::CUDA_EVENT, 5000);
        self.stop(coll);
    }

    fn state(&mut self, handle: Handle, state: State, arg: u64) {
        let ticks = self.now;
        self.collector.record(LANE, &Record::State { ticks, handle, state, small: 0, arg });
    }

    /// Ends a window after `seconds`, like a meter that exports totals.
    fn close(&mut self, seconds: u64) -> Metrics {
        self.now += seconds * SECOND;
        let gone = self.collector.take_gone();
        self.total.retain_comms(|comm| !gone.contains(comm));
        let window = self.collector.close(self.now, &TickMap::new(vec![], HZ));
        self.total.merge(&window);
        window
    }
}

fn operations(metrics: &Metrics, hash: u64) -> u64 {
    let own = metrics.operations.iter().filter(|(key, _)| key.comm.hash == hash);
    own.map(|(_, sums)| sums.count).sum()
}

fn hashes(metrics: &Metrics) -> BTreeSet<u64> {
    let operations = metrics.operations.keys().map(|key| key.comm.hash);
    let links = metrics.links.keys().map(|key| key.comm.hash);
    let ranks = metrics.ranks.keys().map(|key| key.comm.hash);
    let channels = metrics.channels.keys().map(|key| key.comm.hash);
    operations.chain(links).chain(ranks).chain(channels).collect()
}

#[test]
fn each_of_many_is_told_under_its_name_and_then_forgotten() {
    let mut host = Host::default();
    host.join_as(0, 0xbeef);
    let (mut settled, mut sent) = (0, 0);
    for index in 1..2000u16 {
        host.join(index);
        host.operate(index);
        host.operate(0);
        host.leave(index);
        let window = host.close(3);
        settled += window.operations.values().map(|sums| sums.count).sum::<u64>();
        sent += window.links.values().map(|link| link.bytes).sum::<u64>();
        assert_eq!(operations(&window, 0), 0, "each was told apart");
        assert!(hashes(&host.total).len() <= 4, "{:x?}", hashes(&host.total));
        assert!(host.collector.living().count() <= 3);
    }
    // The last operations of each communicator may not have settled yet.
    assert!(settled >= 2 * 1997, "{settled}");
    assert!(sent >= 8 * 2 * 1999, "{sent}: also beyond as many links as there may be");
    assert!(operations(&host.total, 0xbeef) >= 1997, "who lives loses nothing");
}

/// An agent, and a rank, may run for months.
#[test]
fn what_is_forgotten_takes_no_memory() {
    let mut host = Host::default();
    let mut size_after = |comms: std::ops::Range<u16>| {
        for index in comms {
            // A release in which the calls show since when kernel times are wrong.
            host.join_with(index, 0x1000 + u64::from(index), 23_203);
            (0..3).for_each(|_| host.operate_on_the_gpu(index, 4));
            host.leave(index);
            host.close(3);
            // A kernel that is read when its communicator is already forgotten.
            let late = index.saturating_sub(20);
            host.start(late, Handle::NULL, KERNEL);
        }
        (0..20).for_each(|_| drop(host.close(3)));
        host.collector.take_gone();
        format!("{:?}", host.collector).len()
    };
    let (few, many) = (size_after(0..40), size_after(40..440));
    // Times and counts have a few more digits.
    assert!(many < few + few / 4, "{few} characters of state, then {many}");
}

#[test]
fn those_beyond_the_bound_are_counted_together_until_there_is_room() {
    let mut host = Host::default();
    (0..200).for_each(|index| host.join(index));
    (0..200).for_each(|index| host.operate(index));
    host.close(3);
    host.close(3);
    assert_eq!(host.collector.living().count(), 64);
    assert_eq!(host.total.operations.values().map(|sums| sums.count).sum::<u64>(), 200);
    assert_eq!(operations(&host.total, 0), 200 - 64);
    assert_eq!(hashes(&host.total).len(), 65);
    let others = RankKey { comm: CommKey::others(), rank: -1 };
    assert!(host.total.links.keys().any(|key| key.comm == others.comm && key.peer == -1));
    // 60 communicators end, and others take their places, with counts that begin now.
    (0..60).for_each(|index| host.leave(index));
    host.close(3);
    (64..200).for_each(|index| host.operate(index));
    host.close(3);
    host.close(3);
    assert_eq!(host.collector.living().count(), 64);
    assert_eq!(operations(&host.total, 0), 200 - 64 + 136 - 60, "none is taken back");
    assert_eq!(hashes(&host.total).len(), 65);
}

#[test]
fn what_is_in_flight_of_those_counted_together_is_a_state_of_each_window() {
    let mut host = Host::default();
    (0..70).for_each(|index| host.join(index));
    let stuck: Vec<Handle> =
        (64..70).map(|index| host.start(index, Handle::NULL, with_a_kernel())).collect();
    let kernels: Vec<Handle> =
        (64..70).zip(&stuck).map(|(index, coll)| host.start(index, *coll, KERNEL)).collect();
    stuck.iter().for_each(|coll| host.stop(*coll));
    host.close(1);
    let others = RankKey { comm: CommKey::others(), rank: -1 };
    assert_eq!(host.total.ranks[&others].in_flight, 6);
    // The six communicators that now have series of their own have their operations in flight under
    // their own names.
    (0..6).for_each(|index| host.leave(index));
    host.close(3);
    assert_eq!(host.total.ranks[&others].in_flight, 6);
    host.close(1);
    assert_eq!(host.total.ranks[&others].in_flight, 0);
    assert_eq!(host.total.ranks.values().map(|rank| rank.in_flight).sum::<u64>(), 6);
    kernels.into_iter().for_each(|kernel| host.stop(kernel));
    host.close(1);
    assert_eq!(host.total.ranks.values().map(|rank| rank.in_flight).sum::<u64>(), 0);
}

const KERNEL: Detail = Detail::KernelCh(KernelCh { channel: 0, ptimer: 5 });

/// The details of an operation with a kernel on one channel.
fn with_a_kernel() -> Detail {
    Detail::Coll(Coll { channels: 1, ..Coll::default() })
}

#[test]
fn an_operation_that_did_not_end_before_its_communicator_is_given_up_and_counted() {
    let mut host = Host::default();
    host.join(5);
    let coll = host.start(5, Handle::NULL, with_a_kernel());
    let kernel = host.start(5, coll, KERNEL);
    host.stop(coll);
    host.leave(5);
    let window = host.close(10);
    assert_eq!(window.ranks.values().map(|rank| rank.in_flight).sum::<u64>(), 1);
    assert_eq!(host.collector.living().count(), 1);
    let window = host.close(10);
    assert_eq!(window.lost[&("unfinished", "Coll")], 1);
    assert_eq!(window.ranks.values().map(|rank| rank.in_flight).sum::<u64>(), 0);
    assert_eq!(host.collector.living().count(), 0);
    // Late events belong to no communicator, and are forgotten as well.
    host.stop(kernel);
    host.operate(5);
    (0..3).for_each(|_| drop(host.close(10)));
    assert_eq!(hashes(&host.total), [0].into(), "{:?}", host.total);
    assert_eq!(operations(&host.total, 0), 1);
}

#[test]
fn a_communicator_of_two_devices_is_gone_when_both_are() {
    let mut host = Host::default();
    [1, 2].into_iter().for_each(|index| host.join_as(index, 0xaa));
    [1, 2].into_iter().for_each(|index| host.operate(index));
    host.leave(1);
    (0..3).for_each(|_| drop(host.close(5)));
    assert_eq!(operations(&host.total, 0xaa), 2);
    host.leave(2);
    (0..3).for_each(|_| drop(host.close(5)));
    assert_eq!(hashes(&host.total), [].into());
}

#[test]
fn a_number_that_is_used_again_is_another_communicator() {
    let mut host = Host::default();
    for hash in [0xa, 0xb, 0xc] {
        host.join_as(3, hash);
        host.operate(3);
        let windows = [host.close(3), host.close(3)];
        assert_eq!(windows.iter().map(|window| operations(window, hash)).sum::<u64>(), 1);
        host.leave(3);
    }
    host.close(3);
    host.close(3);
    assert_eq!((hashes(&host.total), host.collector.living().count()), ([].into(), 0));
}
