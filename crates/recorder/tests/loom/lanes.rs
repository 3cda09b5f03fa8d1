// SPDX-License-Identifier: Apache-2.0
//! One producer and the drain thread: publishing, wrapping, a full lane, growing, and the cut
//! between the records that a drain takes and those that it leaves.

use crate::{MEMORY, RACE, World, fails, holds, numbers, put};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::spawn;
use ncclscope_recorder::lane::{RING_WORDS, STARTER_WORDS};
use ncclscope_recorder::model::touch;
use ncclscope_trace::EventKind;
use ncclscope_trace::scratch::lane::{HEAD, TAIL};
use std::sync::Arc;

/// Number of records pushed beforehand, so that two words are left before the ring's end.
const BEFORE: u64 = RING_WORDS / 2 - 2;

/// Three records wrap around the ring's end while the drain thread takes what is there.
fn wrap() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    assert!((0..BEFORE).all(|n| put(world.lane(0), n)));
    world.take(0);
    let body = move || {
        let producer = spawn(move || (0..3).for_each(|n| assert!(put(world.lane(0), n))));
        let mut taken = world.take(0);
        taken.extend(world.take(0));
        producer.join().expect("pushes");
        taken.extend(world.take(0));
        assert_eq!(numbers(&taken), [0, 1, 2]);
    };
    (world, body)
}

#[test]
fn records_go_around_the_rings_end_whole_and_in_order() {
    let (world, body) = wrap();
    holds("lane, around its end", world.model(), body);
}

#[test]
fn mutant_the_head_is_published_without_its_words() {
    let (world, body) = wrap();
    let head = world.in_header(HEAD);
    fails(RACE, world.model().weak(move |at| at == head), body);
    // Also without the check for races: a record is torn, or is an older one.
    let (world, body) = wrap();
    let head = world.in_header(HEAD);
    fails("torn", world.model().plain(|_| false).weak(move |at| at == head), body);
}

/// Two records fit; the third fits if the drain thread took some in time.
fn full() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    assert!((0..BEFORE).all(|n| put(world.lane(0), n)));
    let body = move || {
        let producer = spawn(move || {
            let put = |n: &u64| put(world.lane(0), *n);
            (BEFORE..BEFORE + 4).filter(put).collect::<Vec<_>>()
        });
        let mut taken = world.take(0);
        taken.extend(world.take(0));
        let accepted = producer.join().expect("pushes");
        taken.extend(world.take(0));
        let lost = world.header(0).lost()[EventKind::Group.index()];
        assert_eq!(accepted.len() as u64 + lost, 4);
        assert_eq!(accepted[..2], [BEFORE, BEFORE + 1], "there was room");
        assert_eq!(numbers(&taken), (0..BEFORE).chain(accepted).collect::<Vec<_>>());
    };
    (world, body)
}

#[test]
fn a_full_lane_drops_the_newest_and_counts_it() {
    let (world, body) = full();
    holds("lane, full", world.model(), body);
}

#[test]
fn mutant_the_tail_is_published_before_the_words_are_read() {
    let (world, body) = full();
    let tail = world.in_header(TAIL);
    fails(RACE, world.model().weak(move |at| at == tail), body);
}

/// The lane is as full as a small one can be, and then becomes whole.
fn growth() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::small(1);
    let before = STARTER_WORDS / 2 - 1;
    assert!((0..before).all(|n| put(world.lane(0), n)));
    let body = move || {
        let producer = spawn(move || {
            let put = |n: &u64| put(world.lane(0), *n);
            (before..before + 3).filter(put).collect::<Vec<_>>()
        });
        // Models the system's zeroing of the ring's rest.
        let starter = usize::try_from(STARTER_WORDS).expect("few");
        (starter..starter + 4).for_each(|word| touch(world.in_ring(word)));
        world.recorder.region.complete(0, None).expect("memory");
        let mut taken = world.take(0);
        let accepted = producer.join().expect("pushes");
        taken.extend(world.take(0));
        let lost = world.header(0).lost()[EventKind::Group.index()];
        assert_eq!(accepted.len() as u64 + lost, 3);
        assert_eq!(accepted[0], before, "there was room");
        assert_eq!(numbers(&taken), (0..before).chain(accepted).collect::<Vec<_>>());
    };
    (world, body)
}

#[test]
fn a_lane_becomes_whole_under_its_producer() {
    let (world, body) = growth();
    holds("lane, growing", world.model(), body);
}

#[test]
fn mutant_the_memory_is_told_of_before_it_is_there() {
    let (world, body) = growth();
    let memory = world.in_header(MEMORY);
    fails(RACE, world.model().weak(move |at| at == memory), body);
}

/// A way in which the drain thread takes a lane.
type Take = fn(World) -> Vec<u64>;

/// Another thread signals the drain thread, in an ordering of its own, that a record was pushed:
/// the window drained then has the record, and the next window begins where this one ends.
fn cut(take: Take) -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    let body = move || {
        let told = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&told);
        let producer = spawn(move || {
            put(world.lane(0), 0);
            tell.store(true, Ordering::Release);
            put(world.lane(0), 1);
            put(world.lane(0), 2);
        });
        let was_told = told.load(Ordering::Acquire);
        let mut windows = vec![numbers(&take(world))];
        assert!(!was_told || windows[0].first() == Some(&0), "missed what came before");
        windows.push(numbers(&take(world)));
        producer.join().expect("pushes");
        windows.push(numbers(&take(world)));
        assert_eq!(windows.concat(), [0, 1, 2], "not every record is in one window");
    };
    (world, body)
}

#[test]
fn every_record_is_in_one_window_and_no_later_than_told() {
    let (world, body) = cut(|world| world.take(0));
    holds("window", world.model(), body);
}

#[test]
fn mutant_a_window_ends_where_the_lane_does_by_now() {
    let (world, body) = cut(|world| {
        let (header, mut words) = (world.header(0), Vec::new());
        header.peek(world.ring(0), &mut words);
        header.take_until(header.tail() + header.pending());
        words
    });
    fails("not every record is in one window", world.model(), body);
}
