// SPDX-License-Identifier: Apache-2.0
//! Threads that claim and release lanes, and the gate that opens and closes recording.

use crate::{PROCESS, RACE, World, fails, holds, numbers, put};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::spawn;
use ncclscope_recorder::{Lane, gate, registry};
use ncclscope_trace::record::Detail;
use ncclscope_trace::scratch::lane::{HEAD, STATE};
use ncclscope_trace::{EventKind, Handle};
use std::sync::Arc;

/// What a thread does with its lane.
type Use = fn(Lane<'_>, u64);

/// Two threads claim the only lane one after the other, use it, and exit.
fn succession(with: Use) -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    let body = move || {
        let thread = |number: u64| {
            spawn(move || {
                let region = &world.recorder.region;
                let is_held = || registry::held(region, 0).is_some();
                assert!(!is_held(), "not yet");
                let lane = registry::current(region)?;
                assert!(is_held(), "another thread's");
                with(lane, number);
                assert!(!is_held(), "not any more");
                Some(number)
            })
        };
        let threads = [thread(1), thread(2)];
        let early = numbers(&world.take(0));
        let mut done: Vec<u64> =
            threads.into_iter().filter_map(|thread| thread.join().expect("ends")).collect();
        assert!(!done.is_empty(), "one of them has it");
        let mut taken = [early, numbers(&world.take(0))].concat();
        taken.sort_unstable();
        done.sort_unstable();
        assert_eq!(taken, done);
    };
    (world, body)
}

#[test]
fn a_lane_goes_from_thread_to_thread_and_on_where_it_was() {
    let (world, body) = succession(|lane, number| {
        assert!(put(lane, number));
        lane.header().release();
    });
    holds("registry, one lane", world.model().preemptions(3), body);
}

#[test]
fn mutant_a_lane_is_taken_without_what_was_left_in_it() {
    let (world, body) = succession(|lane, number| {
        assert!(put(lane, number));
        lane.header().release();
    });
    let state = world.in_header(STATE);
    fails("another thread's", world.model().weak(move |at| at == state), body);
}

#[test]
fn mutant_a_thread_goes_on_with_the_lane_it_gave_back() {
    let (world, body) = succession(|lane, number| {
        lane.header().release();
        assert!(put(lane, number));
    });
    fails(RACE, world.model(), body);
}

/// A thread claims the lane, uses it and exits without releasing it. The drain thread finds that
/// the thread is gone, and another thread claims the lane.
fn left() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    let body = move || {
        let header = world.header(0);
        let is_over = Arc::new(AtomicU64::new(0));
        let over = Arc::clone(&is_over);
        let first = spawn(move || {
            if !header.claim(1) {
                return;
            }
            header.set_thread(1);
            assert!(put(world.lane(0), 1));
            over.store(1, Ordering::Release);
        });
        let second = spawn(move || {
            let has = header.claim(2);
            if has {
                // The id is still that of the previous thread.
                loom::thread::yield_now();
                header.set_thread(2);
                assert!(header.is_held_by(2) && put(world.lane(0), 2));
                assert!(header.is_held_by(2) && header.in_use(), "it lives");
            }
            has
        });
        let is_gone = |id| id == 1 && is_over.load(Ordering::Acquire) == 1;
        (0..2).for_each(|_| header.release_of(is_gone));
        first.join().expect("ends");
        if second.join().expect("ends") {
            (0..2).for_each(|_| header.release_of(is_gone));
            assert!(header.in_use() && header.is_held_by(2), "it did not say that it is gone");
        }
    };
    (world, body)
}

#[test]
fn the_lane_of_a_thread_that_is_gone_comes_back_and_no_other() {
    let (world, body) = left();
    holds("registry, left", world.model().preemptions(3), body);
}

#[test]
fn mutant_a_lane_comes_back_without_what_was_left_in_it() {
    let (world, body) = left();
    let state = world.in_header(STATE);
    fails("header.is_held_by(2)", world.model().weak(move |at| at == state), body);
}

#[test]
fn three_threads_on_two_lanes_have_one_each_or_are_counted() {
    let world = World::whole(2);
    holds("registry, two lanes", world.model(), move || {
        let start = move || world.recorder.start(0, Handle::NULL, &Detail::Group);
        let (a, b) = (spawn(start), spawn(start));
        let handles = [a.join().expect("starts"), b.join().expect("starts"), start()];
        let mut lanes: Vec<usize> =
            handles.iter().filter(|h| !h.is_null()).map(|h| h.lane()).collect();
        lanes.sort_unstable();
        assert_eq!(lanes, [0, 1]);
        assert_eq!(world.recorder.lost_without_lane()[EventKind::Group.index()], 1);
        assert!((0..2).all(|lane| world.records(lane).len() == 1));
    });
}

#[test]
fn mutant_a_thread_writes_to_a_lane_it_did_not_take() {
    let world = World::whole(2);
    fails(RACE, world.model(), move || {
        let thread = |lane: fn(World) -> Option<Lane<'static>>| {
            spawn(move || assert!(put(lane(world).expect("a lane"), 1)))
        };
        let takes = thread(|world| registry::current(&world.recorder.region));
        let writes = thread(|world| Some(world.lane(0)));
        takes.join().expect("writes");
        writes.join().expect("writes");
    });
}

/// The gate is killed while a thread writes, and the lanes are drained for the last time.
fn kill() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    let body = move || {
        gate::open();
        let made = Arc::new(AtomicU64::new(0));
        let tell = Arc::clone(&made);
        let writer = spawn(move || {
            let mut number = 0;
            for _ in 0..3 {
                if !gate::is_open() {
                    break;
                }
                assert!(put(world.lane(0), number));
                number += 1;
                tell.store(number, Ordering::Release);
            }
            assert!(number == 3 || (!gate::is_open() && gate::is_dead()), "shut for good");
            number
        });
        let before = made.load(Ordering::Acquire);
        gate::kill();
        gate::open();
        assert!(gate::is_dead(), "shut for good");
        let drained = numbers(&world.take(0));
        assert!(drained.len() as u64 >= before, "what came before is drained");
        let all = writer.join().expect("stops");
        let late = numbers(&world.take(0));
        assert_eq!([drained, late].concat(), (0..all).collect::<Vec<_>>());
    };
    (world, body)
}

#[test]
fn the_gate_is_killed_under_a_writer_and_nothing_is_torn() {
    let (world, body) = kill();
    holds("gate, killed", world.model(), body);
}

#[test]
fn mutant_the_last_drain_sees_half_a_record() {
    let (world, body) = kill();
    let head = world.in_header(HEAD);
    fails("torn", world.model().plain(|_| false).weak(move |at| at == head), body);
}

/// The gate opens: a thread that finds it open also finds everything that was set up before.
fn opening() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    let body = move || {
        let callback = spawn(move || {
            if gate::is_open() {
                let handle = world.recorder.start(0, Handle::NULL, &Detail::Group);
                assert_eq!(handle.process(), PROCESS, "too early");
            }
        });
        world.recorder.set_process(PROCESS);
        gate::open();
        callback.join().expect("starts");
    };
    (world, body)
}

#[test]
fn a_thread_that_finds_the_gate_open_finds_what_was_set_up() {
    let (world, body) = opening();
    holds("gate, opened", world.model(), body);
}

#[test]
fn mutant_the_gate_opens_without_what_was_set_up() {
    let (world, body) = opening();
    let recorder = std::ptr::from_ref(world.recorder).addr();
    let recorder = recorder..recorder + size_of_val(world.recorder);
    let table = world.in_header(0);
    // The gate's memory is neither in the recorder nor in its region.
    let elsewhere =
        move |at: usize| !recorder.contains(&at) && !(table..table + (1 << 30)).contains(&at);
    fails("too early", world.model().weak(elsewhere), body);
}
