// SPDX-License-Identifier: Apache-2.0
//! Slots of operations that NCCL never stops, and of lanes without a thread.

use crate::slots::open;
use crate::{ABANDONED_SLOTS, PROCESS, RACE, World, fails, holds};
use loom::thread::spawn;
use ncclscope_recorder::reclaim::Slots;
use ncclscope_recorder::slots;
use ncclscope_trace::handle::Handle;
use ncclscope_trace::layout::SLAB_SLOTS;

/// All slots are in use. The drain thread abandons two operations, while their thread starts two
/// new ones; and, if `late`, a third thread stops one of those that were abandoned.
fn abandoned(late: bool) -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(2);
    let recorder = world.recorder;
    recorder.set_process(PROCESS);
    let slots: &'static Slots = Box::leak(Box::default());
    let all: Vec<Handle> = std::iter::from_fn(|| open(world, slots)).collect();
    assert_eq!(all.len(), SLAB_SLOTS);
    let old = [all[7], all[SLAB_SLOTS - 1]];
    let slot = move |op: Handle| slots::at(&recorder.region, op).expect("its slab is there");
    let body = move || {
        let drain = spawn(move || old.into_iter().for_each(|op| recorder.abandon(op)));
        let stops = late.then(|| {
            spawn(move || {
                if slot(old[0]).take_out(old[0]) {
                    slot(old[0]).give_back(old[0], &recorder.region);
                }
            })
        });
        let mut new: Vec<Handle> = (0..2).filter_map(|_| open(world, slots)).collect();
        drain.join().expect("abandons");
        stops.into_iter().for_each(|stops| stops.join().expect("stops, or is stale"));
        new.extend(std::iter::from_fn(|| open(world, slots)));
        let mut places: Vec<usize> = new.iter().map(|op| op.slot()).collect();
        places.sort_unstable();
        assert_eq!(places, [old[0].slot(), old[1].slot()], "each slot once");
        for op in new {
            assert_eq!(op.generation(), 2);
            assert!(slot(op).holds(op) && !old.iter().any(|&old| slot(op).holds(old)));
        }
    };
    (world, body)
}

#[test]
fn slots_of_abandoned_operations_are_used_again_once() {
    let (world, body) = abandoned(false);
    holds("reclaim, abandoned", world.model().preemptions(3), body);
}

#[test]
fn an_abandoned_operation_may_be_stopped_late_by_any_thread() {
    let (world, body) = abandoned(true);
    holds("reclaim, stopped late", world.model().preemptions(2), body);
}

#[test]
fn mutant_an_abandoned_slot_comes_without_its_successor() {
    let (world, body) = abandoned(false);
    let list = world.in_header(ABANDONED_SLOTS);
    fails(RACE, world.model().weak(move |at| at == list), body);
}

/// The only slab belongs to a lane whose thread is gone. The drain thread spares the lane's slots
/// while another lane's thread needs one.
fn spared() -> (World, &'static Slots, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(2);
    let slots: &'static Slots = Box::leak(Box::default());
    assert!(open(world, slots).is_some(), "the slab is lane 0's");
    assert!(world.header(1).claim(1), "lane 1 has a thread");
    let region = &world.recorder.region;
    let body = move || {
        let drain = spawn(move || slots.reap(region));
        let other = || slots::open(region, slots, &world.lane(1), PROCESS, (0, true), 1);
        let early = other();
        drain.join().expect("spares");
        let late = other().expect("all but one slot are spared");
        assert_eq!((late.lane(), late.generation()), (1, 1));
        assert!(early.is_none_or(|early| early.slot() != late.slot()), "each slot once");
        assert!(early.is_none_or(|early| early.slot() != 0) && late.slot() != 0, "one is taken");
    };
    (world, slots, body)
}

#[test]
fn a_lane_without_a_thread_spares_its_slots() {
    let (world, _, body) = spared();
    holds("reclaim, spared", world.model().preemptions(2), body);
}

#[test]
fn mutant_spared_slots_come_without_their_successors() {
    let (world, slots, body) = spared();
    let lists = std::ptr::from_ref(slots).addr();
    let lists = lists..lists + size_of_val(slots);
    fails(RACE, world.model().preemptions(2).weak(move |at| lists.contains(&at)), body);
}
