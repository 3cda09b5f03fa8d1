// SPDX-License-Identifier: Apache-2.0
//! Which operations are in flight, from records as NCCL causes them.

mod drift;
mod network;
mod order;

use super::*;
use ncclscope_trace::record::{
    Coll, GroupApi, KernelLaunch, P2p, Packed, ProxyOp, STEP_SHIFT, Step, step_flags,
};
use ncclscope_trace::{StrId, handle::LANES};

const API: usize = 0;
const PROXY: usize = 1;
/// Ticks of a second.
const HZ: u64 = 1_000_000_000;
const MS: u64 = HZ / 1000;

/// A process whose records are read immediately.
struct Rank {
    tracker: Tracker,
    now: u64,
    sequence: u64,
    slot: usize,
}

impl Rank {
    fn new() -> Rank {
        let mut tracker = Tracker::default();
        tracker.comm(&Comm { index: 0, rank: 0, ranks: 2, ..Comm::default() });
        Rank { tracker, now: 1_000, sequence: 0, slot: 0 }
    }

    fn put(&mut self, lane: usize, packed: &Packed) {
        // Decoded records and words have the same effect.
        match Record::unpack(packed.words()).filter(|_| (self.now / 1_000).is_multiple_of(2)) {
            Some(record) => self.tracker.record(lane, &record),
            None => self.tracker.words(lane, packed.words()),
        }
    }

    fn start(&mut self, lane: usize, parent: Handle, detail: Detail) -> Handle {
        self.now += 1_000;
        self.sequence += 1;
        let handle = match detail {
            Detail::ProxyOp(_) => {
                self.slot += 1;
                Handle::slot_op(7, lane, 1, self.slot)
            }
            _ => Handle::value(7, detail.kind(), lane, self.sequence),
        };
        let start = Start { ticks: self.now, comm: 0, handle, parent, detail };
        self.put(lane, &start.pack());
        handle
    }

    fn stop(&mut self, lane: usize, handle: Handle) {
        self.now += 1_000;
        self.put(lane, &Record::stop(self.now, handle));
    }

    /// A collective over two channels that is enqueued.
    fn coll(&mut self) -> Handle {
        self.coll_of(StrId::NONE)
    }

    /// A collective with this protocol.
    fn coll_of(&mut self, proto: StrId) -> Handle {
        let coll = Coll { func: StrId(1), proto, count: 9, channels: 2, ..Coll::default() };
        let group = self.start(API, Handle::NULL, Detail::Group);
        let coll = Coll { group, ..coll };
        let handle = self.start(API, Handle::NULL, Detail::Coll(coll));
        self.stop(API, handle);
        self.stop(API, group);
        handle
    }

    fn kernel(&mut self, op: Handle, channel: u8) -> Handle {
        self.start(PROXY, op, Detail::KernelCh(KernelCh { channel, ptimer: 5 }))
    }

    fn proxy(&mut self, op: Handle, is_send: bool) -> Handle {
        let detail = ProxyOp { is_send, peer: 1, steps: 4, ..ProxyOp::default() };
        self.start(PROXY, op, Detail::ProxyOp(detail))
    }

    fn step(&mut self, proxy: Handle, number: u32) {
        self.now += 1_000;
        let flags = step_flags::STOPPED;
        let ticks = self.now;
        let step = Step { ticks, flags, step: number, op_ref: proxy.op_ref(), ..Step::default() };
        let step = Step { end: 1_000 >> STEP_SHIFT, ..step };
        self.put(PROXY, &step.pack());
    }

    /// A collective that is done, with its network and both kernels.
    fn whole(&mut self) -> Handle {
        let op = self.coll();
        let proxy = self.proxy(op, true);
        let kernels = [self.kernel(op, 0), self.kernel(op, 1)];
        (0..4).for_each(|number| self.step(proxy, number));
        self.stop(PROXY, proxy);
        kernels.into_iter().for_each(|kernel| self.stop(PROXY, kernel));
        op
    }

    fn look(&mut self) -> Vec<OpView> {
        self.look_with(&|_| true)
    }

    fn look_with(&mut self, is_live: &dyn Fn(Handle) -> bool) -> Vec<OpView> {
        self.now += 600 * MS;
        self.tracker.look(self.now, HZ, &LiveState { is_live, fate: &|_| LaunchFate::Unknown });
        self.tracker.in_flight()
    }

    fn comm(&self) -> CommView {
        self.tracker.comms().next().unwrap()
    }
}

#[test]
fn what_is_done_is_not_in_flight() {
    let mut rank = Rank::new();
    for _ in 0..3 {
        rank.whole();
    }
    assert_eq!(rank.look(), []);
    let comm = rank.comm();
    assert_eq!((comm.colls, comm.started, comm.over, comm.oldest_coll), (3, 3, 3, None));
    assert!(comm.has_kernels && comm.has_ends);
    let past: Vec<u64> = rank.tracker.past(0).map(|past| past.number).collect();
    assert_eq!(past, [1, 2, 3]);
}

#[test]
fn a_kernel_that_runs_is_in_flight_and_what_is_behind_it() {
    let mut rank = Rank::new();
    rank.whole();
    let stuck = rank.coll();
    let kernels = [rank.kernel(stuck, 0), rank.kernel(stuck, 1)];
    rank.stop(PROXY, kernels[0]);
    let last = rank.now;
    let behind = rank.coll();
    let open = rank.look();
    let handles: Vec<Handle> = open.iter().map(|op| op.handle).collect();
    assert_eq!(handles, [stuck, behind]);
    assert_eq!((open[0].started.count(), open[0].stopped.count(), open[0].since), (2, 1, last));
    assert!(open[1].awaits_kernel && open[1].started.count() == 0, "{:?}", open[1]);
    assert_eq!((rank.comm().oldest_coll, rank.comm().started), (Some(2), 2));
    rank.stop(PROXY, kernels[1]);
    for kernel in [rank.kernel(behind, 0), rank.kernel(behind, 1)] {
        rank.stop(PROXY, kernel);
    }
    assert_eq!(rank.look(), []);
}

#[test]
fn what_operations_take_as_a_rule_is_known_by_their_size() {
    let mut rank = Rank::new();
    // The first operation connects and does not count.
    for wait_ms in [900, 3, 40, 2] {
        let op = rank.coll();
        let kernel = [rank.kernel(op, 0), rank.kernel(op, 1)];
        rank.now += wait_ms * MS;
        kernel.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
        assert_eq!(rank.look(), []);
    }
    let paused = rank.coll();
    let kernel = [rank.kernel(paused, 0), rank.kernel(paused, 1)];
    let from = rank.now;
    rank.now += 9_000 * MS;
    rank.tracker.was_away(from, rank.now);
    kernel.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
    let op = rank.coll();
    rank.kernel(op, 0);
    let usual = rank.look()[0].usual;
    assert!((40 * MS..80 * MS).contains(&usual), "{usual}");
    let larger = Coll { func: StrId(1), count: 900, channels: 2, ..Coll::default() };
    let larger = rank.start(API, Handle::NULL, Detail::Coll(larger));
    assert_eq!(rank.look().iter().find(|op| op.handle == larger).unwrap().usual, 0);
}

#[test]
fn a_kernel_that_starts_on_some_channels_only_is_in_flight_where_all_are_used() {
    let started_on_one = |rank: &mut Rank| {
        let op = rank.coll();
        let kernel = rank.kernel(op, 0);
        rank.stop(PROXY, kernel);
        rank.now += 20 * HZ;
        rank.look()
    };
    // Up to API v3 NCCL reports an upper bound of the channels.
    for (api_version, is_open) in [(3, false), (4, true)] {
        let mut rank = Rank::new();
        let comm = Comm { index: 0, rank: 0, ranks: 2, api_version, ..Comm::default() };
        rank.tracker.comm(&comm);
        assert_eq!(started_on_one(&mut rank), [], "it is not known");
        let mut rank = Rank::new();
        rank.tracker.comm(&comm);
        rank.whole();
        rank.look();
        let open = started_on_one(&mut rank);
        assert_eq!(open.len(), usize::from(is_open), "v{api_version}");
        assert!(open.iter().all(|op| op.awaits_channels && op.started.count() == 1));
        rank.whole();
        assert_eq!(rank.look(), [], "kernels run one after another");
        assert_eq!(started_on_one(&mut rank), [], "it was not so");
    }
}

/// A look judges each operation by what all of them show.
#[test]
fn what_others_show_counts_in_whatever_order_they_are_looked_at() {
    for before in 1..32 {
        let mut rank = Rank::new();
        rank.tracker.comm(&Comm { index: 0, rank: 0, ranks: 2, api_version: 4, ..Comm::default() });
        for _ in 0..before {
            rank.whole();
        }
        let op = rank.coll();
        let kernel = rank.kernel(op, 0);
        rank.stop(PROXY, kernel);
        rank.now += HZ;
        let open: Vec<Handle> = rank.look().into_iter().map(|op| op.handle).collect();
        assert_eq!(open, [op]);
    }
}

#[test]
fn an_end_is_known_before_the_operation_is_over() {
    let mut rank = Rank::new();
    let outside = LiveState { is_live: &|_| true, fate: &|_| LaunchFate::Unknown };
    rank.whole();
    let end = rank.now;
    let silent = rank.coll();
    let next = rank.coll();
    for kind in [EventKind::KernelCh, EventKind::ProxyOp] {
        rank.tracker.missed(LostEvent::Start { kind, parent: silent }, rank.now);
    }
    rank.tracker.look(rank.now, HZ, &outside);
    let comm = rank.comm();
    assert_eq!((comm.over, comm.last_end), (0, end), "more of it may come");
    assert_eq!(rank.tracker.in_flight()[0].handle, next);
    rank.look();
    assert_eq!((rank.comm().over, rank.comm().last_end), (2, end), "nothing shows a later end");
}

#[test]
fn what_ended_before_its_communicator_did_is_over_all_the_same() {
    let mut rank = Rank::new();
    rank.whole();
    rank.coll();
    rank.tracker.end_comm(0);
    let outside = LiveState { is_live: &|_| true, fate: &|_| LaunchFate::Unknown };
    rank.tracker.look(rank.now, HZ, &outside);
    let past: Vec<u64> = rank.tracker.past(0).map(|past| past.number).collect();
    assert_eq!(past, [1], "and the other never was");
    assert_eq!(rank.look(), []);
}

#[test]
fn one_in_a_thousand_makes_no_rule() {
    let mut rank = Rank::new();
    rank.whole();
    rank.look();
    for number in 0..1_000 {
        let op = rank.coll();
        let kernel = [rank.kernel(op, 0), rank.kernel(op, 1)];
        rank.now += if number == 500 { 90_000 * MS } else { MS };
        kernel.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
    }
    assert_eq!(rank.look(), []);
    let op = rank.coll();
    rank.kernel(op, 0);
    let usual = rank.look()[0].usual;
    assert!((MS..3 * MS).contains(&usual), "{usual}");
}

#[test]
fn a_kernel_that_never_starts_is_missed_only_where_kernels_are_told_of() {
    let mut rank = Rank::new();
    rank.coll();
    assert_eq!(rank.look(), [], "nothing but its enqueuing can be seen");
    assert!(!rank.comm().has_ends);
    rank.whole();
    let late = rank.coll();
    assert_eq!(rank.look()[0].handle, late);
}

impl Rank {
    /// Sends to these ranks in one group, enqueued.
    fn sends<const N: usize>(&mut self, peers: [i32; N]) -> [Handle; N] {
        let group = self.start(API, Handle::NULL, Detail::Group);
        peers.map(|peer| {
            let p2p = P2p { func: StrId(3), count: 9, peer, channels: 2, group, ..P2p::default() };
            let op = self.start(API, Handle::NULL, Detail::P2p(p2p));
            self.stop(API, op);
            op
        })
    }
}

#[test]
fn the_sends_of_one_group_are_one_kernel() {
    let mut rank = Rank::new();
    rank.whole();
    rank.sends([1, 1]);
    assert_eq!(rank.look(), [], "kernels of sends were never told of");
    let [first, _] = rank.sends([1, 1]);
    let kernel = rank.kernel(first, 0);
    rank.stop(PROXY, kernel);
    assert_eq!(rank.look(), [], "a part of it that moves nothing has no kernel of its own");
    rank.sends([0]);
    assert_eq!(rank.look(), [], "nor has what a rank sends to itself");
    rank.sends([1, 1]);
    assert_eq!((rank.look().len(), rank.comm().open_p2ps), (2, 2), "no kernel yet");
}

#[test]
fn what_a_communicator_leaves_undone_is_told_once() {
    let mut rank = Rank::new();
    rank.whole();
    rank.coll();
    rank.tracker.end_comm(0);
    assert_eq!(rank.look(), [], "it is in flight no more");
    assert_eq!((rank.comm().oldest_coll, rank.comm().ended), (Some(2), true));
    rank.look();
    assert_eq!(rank.comm().oldest_coll, None);
}

/// A process may create tens of thousands of communicators.
#[test]
fn what_comes_late_of_a_communicator_that_is_forgotten_does_not_bring_it_back() {
    let mut rank = Rank::new();
    rank.whole();
    let proxy = rank.coll();
    let proxy = rank.proxy(proxy, true);
    rank.tracker.end_comm(0);
    rank.look();
    rank.tracker.forget_comm(0);
    rank.step(proxy, 0);
    let late = rank.coll();
    rank.kernel(late, 0);
    for _ in 0..3 {
        assert_eq!(rank.look(), [], "it never moves again");
        assert_eq!(rank.tracker.comms().count(), 0);
    }
    rank.tracker.comm(&Comm { index: 0, rank: 0, ranks: 2, ..Comm::default() });
    let next = rank.coll();
    rank.kernel(next, 0);
    assert_eq!(rank.look()[0].handle, next, "of another one with its number");
    assert_eq!((rank.comm().colls, rank.comm().ended), (1, false));
}

/// After `CONTROL PROFILER_MASK none` of NCCL's RAS.
#[test]
fn where_kernel_events_are_off_no_operation_waits_for_them() {
    let mut rank = Rank::new();
    let with_kernel = |rank: &mut Rank| {
        let op = rank.coll();
        let kernels = [rank.kernel(op, 0), rank.kernel(op, 1)];
        kernels.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
    };
    with_kernel(&mut rank);
    assert!(rank.look().is_empty() && rank.comm().has_ends);
    let waits = rank.coll();
    assert_eq!(rank.look()[0].handle, waits, "its kernel may come");
    with_kernel(&mut rank);
    assert_eq!(rank.look(), []);
    rank.tracker.kernels_off(rank.now);
    rank.coll();
    assert_eq!(rank.look(), []);
    assert!(!rank.comm().has_ends, "and its end is not seen");
}

/// Kernels of aborted communicators are forgotten; else they would leave no room for others.
#[test]
fn kernels_that_a_communicator_leaves_open_are_forgotten() {
    let mut rank = Rank::new();
    rank.tracker.comm(&Comm { index: 1, rank: 0, ranks: 2, ..Comm::default() });
    for _ in 0..300 {
        let op = rank.coll();
        for channel in 0..64 {
            rank.kernel(op, channel);
        }
        rank.tracker.end_comm(0);
        assert_eq!(rank.look(), []);
        rank.tracker.forget_comm(0);
        rank.tracker.comm(&Comm { index: 0, rank: 0, ranks: 2, ..Comm::default() });
    }
    let op = rank.coll();
    let kernels = [0, 1].map(|channel| rank.kernel(op, channel));
    assert_eq!(rank.look()[0].handle, op, "it is followed");
    kernels.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
    assert_eq!(rank.look(), []);
}

#[test]
fn a_slot_that_is_free_again_ends_its_operation() {
    let mut rank = Rank::new();
    let op = rank.coll();
    let proxy = rank.proxy(op, false);
    rank.step(proxy, 0);
    assert_eq!(rank.look().len(), 1);
    assert_eq!(rank.look_with(&|handle| handle != proxy), []);
}

#[test]
fn a_loss_forgets_what_may_have_ended() {
    let mut rank = Rank::new();
    rank.whole();
    let stuck = rank.coll();
    rank.kernel(stuck, 0);
    assert_eq!(rank.look().len(), 1);
    rank.tracker.forget(rank.now);
    assert_eq!(rank.look(), []);
    let next = rank.coll();
    assert_eq!(rank.look()[0].handle, next);
    assert!(rank.tracker.is_lossy());
}

#[test]
fn what_began_after_the_latest_loss_is_not_forgotten() {
    let mut rank = Rank::new();
    rank.whole();
    let before = rank.coll();
    rank.kernel(before, 0);
    let loss = rank.now;
    rank.now += 1;
    let after = rank.coll();
    rank.kernel(after, 0);
    assert_eq!(rank.look().len(), 2);
    rank.tracker.forget(loss);
    let left: Vec<Handle> = rank.look().iter().map(|op| op.handle).collect();
    assert_eq!(left, [after]);
}

#[test]
fn a_lost_event_doubts_its_own_operation_only() {
    use EventKind::{KernelCh, ProxyOp as Op};
    let mut rank = Rank::new();
    rank.whole();
    let stuck = rank.coll();
    let kernel = rank.kernel(stuck, 0);
    let handles =
        |rank: &mut Rank| -> Vec<Handle> { rank.look().iter().map(|op| op.handle).collect() };
    let silent = rank.coll();
    assert_eq!(handles(&mut rank), [stuck, silent], "it ought to have a kernel");
    rank.tracker.missed(LostEvent::Start { kind: Op, parent: silent }, rank.now);
    rank.tracker.missed(LostEvent::Start { kind: Op, parent: Handle::NULL }, rank.now);
    assert_eq!(handles(&mut rank), [stuck, silent], "a lost ProxyOp says nothing of kernels");
    rank.tracker.missed(LostEvent::Start { kind: KernelCh, parent: silent }, rank.now);
    assert_eq!(handles(&mut rank), [stuck], "its kernel may have ended");
    let later = rank.coll();
    rank.tracker.missed(LostEvent::Start { kind: KernelCh, parent: stuck }, rank.now);
    assert_eq!(handles(&mut rank), [stuck, later], "a kernel of it has not stopped");
    assert!(rank.tracker.in_flight()[0].is_lossy && !rank.tracker.in_flight()[1].is_lossy);
    rank.tracker.missed(LostEvent::Stop(kernel), rank.now);
    assert_eq!(handles(&mut rank), [later], "an end without a record is an end");
    assert!(rank.tracker.is_lossy());
}

#[test]
fn what_cuda_events_show_running_is_in_flight() {
    let mut rank = Rank::new();
    let launched = |rank: &mut Rank| {
        let launch =
            rank.start(API, Handle::NULL, Detail::KernelLaunch(KernelLaunch { stream: 0xabc }));
        rank.stop(API, launch);
        (launch, rank.coll())
    };
    let [(first, one), (second, two)] = [launched(&mut rank), launched(&mut rank)];
    let mut fates =
        std::collections::HashMap::from([(first, LaunchFate::Waits), (second, LaunchFate::Waits)]);
    let mut look = |rank: &mut Rank, launch: Handle, fate: LaunchFate| {
        fates.insert(launch, fate);
        rank.now += 600 * MS;
        let fate = |launch| fates.get(&launch).copied().unwrap_or(LaunchFate::Unknown);
        rank.tracker.look(rank.now, HZ, &LiveState { is_live: &|_| true, fate: &fate });
        let open = rank.tracker.in_flight();
        open.iter().map(|op| (op.handle, op.since)).collect::<Vec<_>>()
    };
    let waits = look(&mut rank, first, LaunchFate::Waits);
    assert_eq!(waits.iter().map(|op| op.0).collect::<Vec<_>>(), [one, two]);
    assert!(rank.comm().has_ends);
    let began = rank.now;
    assert_eq!(look(&mut rank, first, LaunchFate::Runs { since: began })[0], (one, began));
    let ended = rank.now;
    assert_eq!(look(&mut rank, first, LaunchFate::Ended { at: ended }), [(two, ended)], "in order");
    assert_eq!(look(&mut rank, second, LaunchFate::Lost), [(two, ended)], "it does not end");
    assert_eq!(look(&mut rank, second, LaunchFate::Unknown), [], "nothing is known of it any more");
    // The launch of another communicator on this thread is not this operation's.
    let start = Start {
        ticks: rank.now,
        comm: 5,
        handle: Handle::value(7, EventKind::KernelLaunch, API, 900),
        parent: Handle::NULL,
        detail: Detail::KernelLaunch(KernelLaunch { stream: 1 }),
    };
    rank.put(API, &start.pack());
    rank.coll();
    assert_eq!(look(&mut rank, start.handle, LaunchFate::Waits), []);
}

#[test]
fn children_may_come_before_their_operation() {
    let mut rank = Rank::new();
    rank.whole();
    rank.sequence += 1;
    let coll = Handle::value(7, EventKind::Coll, API, 999);
    let kernel = rank.kernel(coll, 0);
    let other = rank.kernel(coll, 1);
    rank.stop(PROXY, kernel);
    assert_eq!(rank.look(), []);
    let detail = Detail::Coll(Coll { channels: 2, count: 9, ..Coll::default() });
    let start = Start { ticks: rank.now, comm: 0, handle: coll, parent: Handle::NULL, detail };
    rank.put(API, &start.pack());
    rank.stop(API, coll);
    assert_eq!((rank.look().len(), rank.comm().started), (1, 2));
    rank.stop(PROXY, other);
    assert_eq!(rank.look(), []);
}

#[test]
fn calls_that_do_not_return_are_told_with_their_launch() {
    let mut rank = Rank::new();
    let call = |func| ncclscope_trace::record::ApiCall { func, ..Default::default() };
    let group =
        rank.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph: false, depth: 1 }));
    rank.start(API, group, Detail::CollApi(call(StrId(5))));
    rank.start(API, group, Detail::P2pApi(call(StrId(6))));
    let calls = rank.tracker.calls();
    let [open] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!((open.colls, open.p2ps, open.func, open.ending), (1, 1, StrId(5), None));
    rank.now += 1_000;
    rank.put(API, &Record::state(rank.now, group, State::GROUP_END_API_START, 0, 0));
    assert_eq!(rank.tracker.calls()[0].ending, Some(rank.now));
    let launch = rank.start(API, group, Detail::KernelLaunch(KernelLaunch { stream: 0xabc }));
    assert_eq!(rank.tracker.calls()[0].launch.map(|l| (l.stream, l.stop)), Some((0xabc, None)));
    rank.stop(API, launch);
    assert_eq!(rank.tracker.calls()[0].launch.unwrap().stop, Some(rank.now));
    let op = rank.coll();
    // Another thread may stop it, and its lane may be read first.
    rank.stop(2, group);
    assert_eq!(rank.tracker.calls(), []);
    let kernels = [rank.kernel(op, 0)];
    rank.stop(PROXY, kernels[0]);
    rank.look();
    let group = Handle::value(7, EventKind::GroupApi, API, 5_000);
    rank.stop(2, group);
    let detail = Detail::GroupApi(GroupApi { graph: false, depth: 1 });
    let parent = Handle::NULL;
    let start = Start { ticks: rank.now, comm: 0, handle: group, parent, detail };
    rank.put(API, &start.pack());
    assert_eq!(rank.tracker.calls(), []);
}

#[test]
fn any_words_and_any_number_of_operations_are_bounded() {
    let mut rank = Rank::new();
    let mut tracker = Tracker::default();
    for word in 0..4096_u64 {
        let bits = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = [bits & !0xff | (word & 0x1f), bits, bits << 3, 0, bits, 7, 7, 7, 7, 7, 7];
        tracker.words(usize::try_from(word).unwrap() % LANES, &words);
        if word % 512 == 0 {
            let outside = LiveState { is_live: &|_| bits & 1 == 0, fate: &|_| LaunchFate::Unknown };
            tracker.look(bits, HZ, &outside);
        }
    }
    let _ = tracker.in_flight();
    rank.whole();
    for _ in 0..40_000 {
        rank.coll();
    }
    assert!(rank.look().len() <= 1 << 13);
    assert!(rank.tracker.is_lossy(), "too many are left out, and that is told");
}

/// NCCL stops the ProxyOps of one kernel together: a receive may have all of its data long before
/// the send beside it.
#[test]
fn what_has_moved_all_does_not_stand_for_what_has_not() {
    let mut rank = Rank::new();
    let [receive, send] = rank.sends([1, 1]);
    let (done, stuck) = (rank.proxy(receive, false), rank.proxy(send, true));
    (0..4).for_each(|number| rank.step(done, number));
    let received = rank.now;
    rank.step(stuck, 0);
    let open = rank.look();
    let open: Vec<_> = open.iter().map(|op| (op.handle, op.is_only_unstopped)).collect();
    assert_eq!(open, [(receive, true), (send, false)]);
    rank.now += 50 * HZ;
    rank.step(stuck, 1);
    rank.look();
    assert!(rank.comm().since >= Some(received + 50 * HZ), "{:?}", rank.comm());
    rank.stop(PROXY, stuck);
    rank.look();
    assert_eq!(rank.comm().open_p2ps, 1, "it is in flight until its own stop");
    rank.stop(PROXY, done);
    assert_eq!(rank.look(), []);
}

/// 500 sends and receives with 256 peers wait behind a kernel that hangs.
#[test]
fn a_queue_that_is_too_deep_keeps_the_oldest() {
    let mut rank = Rank::new();
    let group = |rank: &mut Rank, peers: i32| -> Vec<Handle> {
        let group = rank.start(API, Handle::NULL, Detail::Group);
        let ops = (1..=peers).map(|peer| {
            let p2p = P2p { func: StrId(2), count: 9, peer, group, ..P2p::default() };
            let op = rank.start(API, Handle::NULL, Detail::P2p(p2p));
            rank.stop(API, op);
            op
        });
        ops.collect()
    };
    for op in group(&mut rank, 1) {
        let kernel = rank.kernel(op, 0);
        rank.stop(PROXY, kernel);
    }
    let stuck = rank.coll();
    let kernels = [rank.kernel(stuck, 0), rank.kernel(stuck, 1)];
    let first = group(&mut rank, 256);
    for _ in 1..500 {
        group(&mut rank, 256);
    }
    let open = rank.look();
    assert_eq!((open[0].handle, open[0].started.count(), open[0].stopped.count()), (stuck, 2, 0));
    assert_eq!((rank.comm().p2ps, rank.comm().colls), (1 + 500 * 256, 1), "all are counted");
    assert!(rank.tracker.is_lossy());
    kernels.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
    assert_eq!(rank.look()[0].handle, first[0], "it is the next one's turn");
    let kernels: Vec<Handle> = first.iter().map(|&op| rank.kernel(op, 0)).collect();
    kernels.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
    rank.look();
    rank.look();
    let next = rank.coll();
    assert!(rank.look().iter().any(|op| op.handle == next), "there is room again");
}

/// More channels at once than there is room for.
#[test]
fn channels_beyond_the_limit_hold_up_nothing() {
    let mut rank = Rank::new();
    let ops: Vec<Handle> = (0..300).map(|_| rank.coll()).collect();
    let kernels = |&op: &Handle| (0..64).map(|channel| (op, channel)).collect::<Vec<_>>();
    let all: Vec<(Handle, u8)> = ops.iter().flat_map(kernels).collect();
    let started: Vec<Handle> =
        all.into_iter().map(|(op, channel)| rank.kernel(op, channel)).collect();
    assert_eq!(rank.look()[0].handle, ops[0]);
    started.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
    assert_eq!(rank.look(), []);
}

impl Rank {
    /// A collective over an algorithm, whose kernel stops at once on both channels.
    fn led(&mut self, algo: StrId) -> Handle {
        let group = self.start(API, Handle::NULL, Detail::Group);
        let coll = Coll { func: StrId(1), algo, count: 9, channels: 2, group, ..Coll::default() };
        let handle = self.start(API, Handle::NULL, Detail::Coll(coll));
        self.stop(API, handle);
        self.stop(API, group);
        for kernel in [self.kernel(handle, 0), self.kernel(handle, 1)] {
            self.stop(PROXY, kernel);
        }
        handle
    }
}

/// If thread 0 of the kernel finishes before the others, an operation that waits behind it shows
/// that the kernel has not ended.
#[test]
fn an_early_stop_is_no_end_while_the_next_operation_waits() {
    for (text, is_early) in [("TREE", true), ("NVLS", true), ("PAT", true), ("RING", false)] {
        let mut rank = Rank::new();
        let algo = StrId(9);
        rank.tracker.string(StrId(1), "AllReduce");
        rank.tracker.string(algo, text);
        let led = rank.led(algo);
        assert_eq!(rank.look(), [], "{text}: nothing shows that it has not ended");
        let led = if is_early { rank.led(algo) } else { led };
        let behind = rank.coll();
        let open: Vec<Handle> = rank.look().iter().map(|op| op.handle).collect();
        let expected = if is_early { vec![led, behind] } else { vec![behind] };
        assert_eq!(open, expected, "{text}");
        let kernel = rank.kernel(behind, 0);
        let open: Vec<Handle> = rank.look().iter().map(|op| op.handle).collect();
        assert_eq!(open, [behind], "{text}: kernels of a communicator run in order");
        rank.stop(PROXY, kernel);
    }
}

/// The operations in flight if a kernel of a second communicator, on `stream`, has started between
/// an early stop and the operation that waits behind it.
fn led_before_another(stream: u64) -> Vec<u64> {
    let mut rank = Rank::new();
    rank.tracker.comm(&Comm { index: 1, rank: 0, ranks: 2, ..Comm::default() });
    rank.tracker.string(StrId(9), "TREE");
    let launch = |rank: &mut Rank, comm: u16, stream: u64| {
        rank.now += 1_000;
        let handle = Handle::value(7, EventKind::KernelLaunch, API, 900 + u64::from(comm));
        let detail = Detail::KernelLaunch(KernelLaunch { stream });
        let start = Start { ticks: rank.now, comm, handle, parent: Handle::NULL, detail };
        rank.put(API, &start.pack());
        rank.stop(API, handle);
    };
    launch(&mut rank, 0, 0xabc);
    rank.led(StrId(9));
    launch(&mut rank, 1, stream);
    let other = Handle::value(7, EventKind::Coll, API, 77);
    let detail = Detail::Coll(Coll { channels: 1, count: 9, ..Coll::default() });
    let start = Start { ticks: rank.now, comm: 1, handle: other, parent: Handle::NULL, detail };
    rank.put(API, &start.pack());
    rank.stop(API, other);
    launch(&mut rank, 0, 0xabc);
    rank.coll();
    rank.kernel(other, 0);
    rank.look().iter().map(|op| op.number + 10 * u64::from(op.comm)).collect()
}

#[test]
fn after_an_early_stop_a_later_kernel_of_the_stream_shows_the_end() {
    assert_eq!(led_before_another(0xabc), [11, 2], "the kernel between them has started");
    assert_eq!(led_before_another(0xdef), [1, 11, 2], "another stream runs beside it");
    assert_eq!(led_before_another(1), [1, 11, 2], "a default stream may be another device's");
}

/// Two ranks of one process, rank 0 with an early stop. Returns the operations in flight with the
/// absent rank.
fn led_beside(other: u64, change: impl FnOnce(&mut Rank)) -> Vec<(Handle, Option<i32>)> {
    let mut rank = Rank::new();
    for (index, hash) in [(0, 0xc0ffee), (1, other)] {
        let comm = Comm { index, hash, rank: index.into(), ranks: 2, ..Comm::default() };
        rank.tracker.comm(&comm);
    }
    rank.tracker.string(StrId(9), "TREE");
    rank.led(StrId(9));
    change(&mut rank);
    rank.look().iter().map(|op| (op.handle, op.absent)).collect()
}

#[test]
fn an_early_stop_is_no_end_while_a_rank_of_the_process_has_not_entered() {
    let open = led_beside(0xc0ffee, |_| ());
    assert_eq!(open.iter().map(|op| op.1).collect::<Vec<_>>(), [Some(1)]);
    let enters = |rank: &mut Rank| {
        let handle = Handle::value(7, EventKind::Coll, API, 77);
        let detail = Detail::Coll(Coll { channels: 1, count: 9, ..Coll::default() });
        let start = Start { ticks: rank.now, comm: 1, handle, parent: Handle::NULL, detail };
        rank.put(API, &start.pack());
        rank.stop(API, handle);
    };
    assert_eq!(led_beside(0xc0ffee, enters), [], "it has entered: nothing shows");
    assert_eq!(led_beside(0xbeef, |_| ()), [], "another communicator's");
    assert_eq!(led_beside(0xc0ffee, |rank| rank.tracker.end_comm(1)), [], "it is gone");
    assert_eq!(led_beside(0xc0ffee, |rank| rank.tracker.lost()), [], "it may have entered");
    assert_eq!(led_beside(0xc0ffee, |rank| rank.tracker.partial()), [], "not all is recorded");
}

/// Operations that were enqueued in a window, and whose kernel or network part starts long after
/// its end, have no children.
#[test]
fn what_is_told_of_no_more_is_over_and_later_operations_are_not() {
    let [mut rank, mut led, mut networked] = [0; 3].map(|_| Rank::new());
    rank.whole();
    let late = rank.coll();
    assert_eq!(rank.look()[0].handle, late, "its kernel may come");
    let running = rank.coll();
    rank.kernel(running, 0);
    // A TREE kernel whose thread 0 has finished, and an operation behind it.
    led.tracker.string(StrId(9), "TREE");
    led.led(StrId(9));
    led.coll();
    assert_eq!(led.look().len(), 2);
    let proxies = networked.coll();
    let proxy = networked.proxy(proxies, true);
    networked.step(proxy, 0);
    networked.stop(PROXY, proxy);
    networked.look();
    networked.coll();
    assert_eq!(networked.look().len(), 1);
    for rank in [&mut rank, &mut led, &mut networked] {
        rank.tracker.settled(u64::MAX);
    }
    let open = rank.look();
    assert_eq!((open.len(), open[0].handle), (1, running), "what is seen to run still ends");
    assert!(open[0].is_lossy, "it may run on more channels");
    assert_eq!((led.look(), networked.look()), (vec![], vec![]));
    for mut rank in [rank, led, networked] {
        let until = rank.now;
        rank.tracker.settled(until);
        let next = rank.coll();
        assert_eq!(rank.look().last().unwrap().handle, next, "of the window after it");
    }
}
