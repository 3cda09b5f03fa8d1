// SPDX-License-Identifier: Apache-2.0
//! Memory that the drain thread commits while callbacks look for it.

use crate::{PROCESS, World, fails, holds, numbers, put};
use loom::thread::spawn;
use ncclscope_recorder::model::touch;
use ncclscope_recorder::reclaim::Slots;
use ncclscope_recorder::{registry, slots};
use ncclscope_trace::layout::{RING_BYTES, SLAB_SLOTS, SLOT_BYTES};

/// The only lane and the only slab are in use. The drain thread commits one more of each; a new
/// thread finds none, or one whose memory is committed.
fn growth() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::small(1);
    let region = &world.recorder.region;
    assert!(world.header(0).claim(1));
    let slots: &'static Slots = Box::leak(Box::default());
    assert!(slots::open(region, slots, &world.lane(0), PROCESS, (0, true), 1).is_some());
    let slab = region.slots_base().addr() + SLAB_SLOTS * SLOT_BYTES;
    let body = move || {
        let callback = spawn(move || {
            let lane = registry::current(region)?;
            assert!(put(lane, 1), "there is room");
            let handle = slots::open(region, slots, &lane, PROCESS, (0, true), 1);
            Some((lane.index(), handle.map(|handle| handle.slot())))
        });
        // Models the system's zeroing of the memory.
        (0..2).for_each(|word| touch(world.in_ring(RING_BYTES / 8 + word)));
        (0..SLOT_BYTES / 8).for_each(|word| touch(slab + 8 * word));
        region.grow(2, 2, None).expect("memory");
        match callback.join().expect("starts") {
            Some((lane, slot)) => {
                assert!(lane == 1 && slot.is_none_or(|slot| slot == SLAB_SLOTS));
                assert_eq!(numbers(&world.take(1)), [1]);
            }
            None => assert!(!world.header(1).was_used()),
        }
    };
    (world, body)
}

#[test]
fn what_is_published_is_memory() {
    let (world, body) = growth();
    holds("region, growing", world.model(), body);
}

#[test]
fn mutant_memory_is_published_before_it_is_there() {
    let (world, body) = growth();
    let recorder = std::ptr::from_ref(world.recorder).addr();
    let counts = recorder..recorder + size_of_val(world.recorder);
    fails("there is room", world.model().weak(move |at| counts.contains(&at)), body);
}
