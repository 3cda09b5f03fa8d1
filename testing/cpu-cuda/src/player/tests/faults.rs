// SPDX-License-Identifier: Apache-2.0
//! Launches with planted faults.

use super::super::faults::{Faults, now};
use super::*;
use crate::layout::Counters;

const NAME: &str = "AllReduce_Sum_f32_RING_SIMPLE";
/// Elements of the launches here: one chunk, so four slices of each channel on two ranks.
const COUNT: usize = 400;

/// Two ranks with faults.
struct Two {
    world: World,
    buffs: [(Addr, Addr); 2],
}

impl Two {
    fn new(faults: &str) -> Self {
        let mut world = World::new(2, functions());
        world.player.faults = Faults::parse(faults).expect(faults);
        let input = |rank| floats(COUNT, |i| value(rank, i));
        let buffs = [0, 1].map(|rank| (world.upload(&input(rank)), world.alloc(4 * COUNT)));
        Self { world, buffs }
    }

    /// Runs one AllReduce on both ranks to its end.
    fn run(&self) -> Duration {
        self.run_and(|| {})
    }

    /// Runs one AllReduce on both ranks, and aborts it [`SOON`] after `ready` holds.
    fn run_until(&self, ready: impl Fn() -> bool) -> Duration {
        self.run_and(|| {
            let begun = Instant::now();
            while !ready() && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(SOON);
            self.world.abort_flags.iter().for_each(|flag| flag.store_u32(1));
        })
    }

    fn run_and(&self, meanwhile: impl FnOnce()) -> Duration {
        let launch = |rank: usize| {
            let work = coll_work(&self.world, NAME, COUNT, self.buffs[rank], 0);
            self.world.launch(rank, id(NAME), COLL, &[work])
        };
        let (launches, begun) = ([launch(0), launch(1)], Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| self.world.run(&launches));
            meanwhile();
        });
        assert_eq!(self.world.player.failure(), None, "a fault is no failure of the player");
        begun.elapsed()
    }

    fn done(&self, rank: usize) -> bool {
        download(self.buffs[rank].1, 4 * COUNT) == floats(COUNT, |i| sum(2, i))
    }

    /// Counter and time of work `n` on a channel.
    fn slot(&self, rank: usize, channel: usize, of: Option<Counters>, n: usize) -> (u64, u64) {
        let counters = of.expect("synthetic");
        let base = self.world.comms[rank].add(counters.offset).load_addr();
        let slot = base.add(channel * counters.stride + n * 16);
        (slot.load_u64(), slot.add(8).load_u64())
    }

    fn started(&self, rank: usize, channel: usize, n: usize) -> (u64, u64) {
        self.slot(rank, channel, self.world.layout().comm.work_started, n)
    }

    fn completed(&self, rank: usize, channel: usize, n: usize) -> (u64, u64) {
        self.slot(rank, channel, self.world.layout().comm.work_completed, n)
    }
}

const SOON: Duration = Duration::from_millis(30);
/// A busy machine may take long to run a kernel, but not this long.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_kernel_that_never_begins_leaves_no_trace() {
    let two = Two::new("never:launch=1,rank=1");
    let rank_0_begins = || two.started(0, 0, 1).0 == 1;
    assert!(two.run_until(rank_0_begins) >= SOON);
    assert!(!two.done(0) && !two.done(1));
    assert_eq!((two.started(0, 0, 1).0, two.started(1, 0, 1)), (1, (0, 0)));
}

#[test]
fn a_stuck_kernel_has_begun_and_spares_other_channels() {
    let two = Two::new("stuck:rank=1,launch=2,channel=1,step=2");
    two.run();
    assert!(two.done(0) && two.done(1), "the first launch is whole");
    two.buffs.iter().for_each(|buffs| buffs.1.copy_from(&[0; 4 * COUNT]));
    let whole = COUNT - COUNT / 3;
    let channel_0_is_whole = || download(two.buffs[1].1, 4 * whole) == floats(whole, |i| sum(2, i));
    two.run_until(|| channel_0_is_whole() && two.started(1, 1, 2).0 == 2);
    assert_eq!(two.started(1, 1, 2).0, 2, "the second had begun");
    assert!(channel_0_is_whole());
    assert!(!two.done(1));
}

#[test]
fn a_slow_rank_delays_both() {
    let two = Two::new("delay:rank=1,us=20000");
    // At least one chunk of two slices, each with a step of its own.
    assert!(two.run() >= Duration::from_millis(40));
    assert!(two.done(0) && two.done(1));
}

#[test]
fn a_skewed_clock_shows_in_the_counters() {
    let hour = 3_600_000_000_000;
    let two = Two::new("skew:rank=1,ns=3600000000000;wrap:rank=0,bits=0");
    let before = now();
    two.run();
    assert!(two.started(1, 0, 1).1 >= before + hour && two.completed(1, 0, 1).1 <= now() + hour);
    assert_eq!((two.started(0, 0, 1), two.completed(0, 0, 1)), ((1, 0), (1, 0)));
}

#[test]
fn counters_come_late_and_all_at_once() {
    let two = Two::new("behind:works=3,rank=0");
    for launch in 1..=2 {
        two.run();
        let seen = (two.started(0, 0, launch), two.completed(0, 1, launch));
        assert_eq!(seen, ((0, 0), (0, 0)));
        assert_eq!(two.completed(1, 0, launch).0, launch as u64, "rank 1 is in time");
    }
    two.run();
    for n in 1..=3 {
        assert_eq!((two.started(0, 0, n).0, two.completed(0, 1, n).0), (n as u64, n as u64));
    }
    assert!(two.completed(0, 0, 1).1 <= two.started(0, 0, 2).1, "times are those of the works");
}

/// 2.31 waits for the phases of a work before it calls it completed.
#[test]
fn phases_are_stamped_in_order() {
    let two = Two::new("");
    two.run();
    let counters = two.world.layout().comm.work_phases.expect("synthetic");
    let slot = two.world.comms[0].add(counters.offset).load_addr();
    let words: Vec<_> = (0..5).map(|i| slot.add(8 * i).load_u64()).collect();
    assert_eq!(words[0], 1);
    assert!(words[1] > 0 && words[1..].is_sorted(), "{words:?}");
}
