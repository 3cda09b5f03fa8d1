// SPDX-License-Identifier: Apache-2.0
//! ProxyOp slots: one thread takes them, others give them back, and stale handles of all kinds.

use crate::{PROCESS, RACE, RETURNED, World, calls, fails, holds};
use loom::thread::spawn;
use ncclscope_recorder::reclaim::Slots;
use ncclscope_recorder::slots;
use ncclscope_trace::handle::Handle;
use ncclscope_trace::layout::SLAB_SLOTS;
use ncclscope_trace::record::{ProxyOp, step_flags};
use ncclscope_trace::scratch::lane::STATE;
use ncclscope_trace::{EventKind, Record, State};

pub(crate) fn open(world: World, slots: &Slots) -> Option<Handle> {
    slots::open(&world.recorder.region, slots, &world.lane(0), PROCESS, (0, true), 1)
}

/// All slots are in use; two other threads stop an operation each while their lane's thread starts
/// two new ones.
fn give_back() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(3);
    let used: &'static Slots = Box::leak(Box::default());
    let all: Vec<Handle> = (0..SLAB_SLOTS).filter_map(|_| open(world, used)).collect();
    assert_eq!(all.len(), SLAB_SLOTS);
    let old = [all[0], all[SLAB_SLOTS - 1]];
    let region = &world.recorder.region;
    let body = move || {
        let stop = |lane: usize, handle: Handle| {
            spawn(move || {
                let slot = slots::at(region, handle).expect("its slab is there");
                assert!(lane != 0 && slot.take_out(handle), "no other thread has it");
                slot.give_back(handle, region);
            })
        };
        let (first, second) = (stop(1, old[0]), stop(2, old[1]));
        let mut new: Vec<Handle> = (0..2).filter_map(|_| open(world, used)).collect();
        first.join().expect("stops");
        second.join().expect("stops");
        new.extend(std::iter::from_fn(|| open(world, used)));
        let mut places: Vec<usize> = new.iter().map(|handle| handle.slot()).collect();
        places.sort_unstable();
        assert_eq!(places, [old[0].slot(), old[1].slot()], "each slot once");
        for handle in new {
            let slot = slots::at(region, handle).expect("its slab is there");
            assert!(slot.holds(handle) && !old.iter().any(|&old| slot.holds(old)));
            assert_eq!(handle.generation(), 2);
        }
    };
    (world, body)
}

#[test]
fn slots_that_others_give_back_are_used_again_once() {
    let (world, body) = give_back();
    holds("slots, given back", world.model().preemptions(3), body);
}

#[test]
fn mutant_a_slot_is_given_back_without_its_successor() {
    let (world, body) = give_back();
    let returned = world.in_header(RETURNED);
    fails(RACE, world.model().weak(move |at| at == returned), body);
}

/// An operation and its step are over. Another thread uses their handles, after `forged`, while the
/// lane's thread reuses the slot.
fn stale(forged: fn(Handle) -> Handle) -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(2);
    let recorder = world.recorder;
    recorder.set_process(PROCESS);
    let body = move || {
        let run = move || {
            let op = ProxyOp { is_send: true, ..ProxyOp::default() };
            let op = recorder.start_op(0, Handle::NULL, &op);
            let step = calls::start_step(recorder, op, 9);
            calls::state(recorder, step, State::STEP_SEND_WAIT, Some(64));
            calls::stop(recorder, step);
            calls::stop(recorder, op);
            op
        };
        let old = run();
        assert_eq!(world.records(0).len(), 3);
        let other = spawn(move || {
            let (op, step) = (forged(old), forged(old).step_of(9));
            calls::state(recorder, step, State::STEP_SEND_PEER_WAIT, None);
            calls::stop(recorder, step);
            calls::stop(recorder, op);
            assert!(calls::start_step(recorder, op, 10).is_null(), "taken for a live one");
        });
        let new = run();
        other.join().expect("is ignored");
        assert_eq!((new.slot(), new.generation()), (old.slot(), old.generation() + 1));
        assert_eq!(recorder.stale(), 3, "counted");
        assert_eq!(world.header(1).lost()[EventKind::ProxyStep.index()], 1, "counted");
        let records = world.records(0);
        let [Record::Start(start), Record::Step(step), Record::Stop { handle, .. }] = records[..]
        else {
            panic!("not an operation of one step: {records:?}");
        };
        use step_flags::{IS_SEND, SIZED, STOPPED, THIRD};
        assert_eq!((start.handle, handle, step.op_ref), (new, new, new.op_ref()));
        assert_eq!((step.flags, step.size), (IS_SEND | STOPPED | THIRD | SIZED, 64));
    };
    (world, body)
}

#[test]
fn stale_handles_of_another_thread_are_counted_and_ignored() {
    let (world, body) = stale(|old| old);
    holds("slots, stale handles", world.model().preemptions(2), body);
}

#[test]
fn mutant_a_slot_has_no_generation() {
    let (world, body) =
        stale(|old| Handle::slot_op(PROCESS, old.lane(), old.generation() + 1, old.slot()));
    fails("taken for a live one", world.model(), body);
}

/// Another thread stops an operation while its step is in progress and its own thread continues; in
/// the mutant, its own thread stops it too.
fn elsewhere(twice: bool) -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(2);
    let recorder = world.recorder;
    recorder.set_process(PROCESS);
    let body = move || {
        let start = move || recorder.start_op(0, Handle::NULL, &ProxyOp::default());
        let first = start();
        let step = calls::start_step(recorder, first, 0);
        let other = spawn(move || calls::stop(recorder, first));
        if twice {
            calls::stop(recorder, first);
        }
        let second = start();
        calls::stop(recorder, second);
        other.join().expect("stops");
        if twice {
            return;
        }
        calls::stop(recorder, step);
        assert_eq!(recorder.stale(), 1, "the step ended with its operation");
        // A step is recorded on the lane of its operation, or not at all.
        assert_eq!(world.header(1).lost()[EventKind::ProxyStep.index()], 1, "counted");
        let handle = |record: &Record| match record {
            Record::Start(start) => start.handle,
            Record::Stop { handle, .. } => *handle,
            _ => Handle::NULL,
        };
        let handles = |lane| world.records(lane).iter().map(handle).collect::<Vec<_>>();
        assert_eq!(handles(0), [first, second, second]);
        assert_eq!(handles(1), [first]);
    };
    (world, body)
}

#[test]
fn an_operation_stopped_elsewhere_is_accounted_for() {
    let (world, body) = elsewhere(false);
    holds("slots, stopped elsewhere", world.model(), body);
}

/// Two threads claim the only lane one after the other, run an operation, and exit.
fn succession() -> (World, impl Fn() + Send + Sync + 'static) {
    let world = World::whole(1);
    let recorder = world.recorder;
    recorder.set_process(PROCESS);
    let body = move || {
        let thread = || {
            spawn(move || {
                let op = recorder.start_op(0, Handle::NULL, &ProxyOp::default());
                if !op.is_null() {
                    calls::stop(recorder, op);
                    world.header(0).release();
                }
                op
            })
        };
        let threads = [thread(), thread()];
        let ops = threads.map(|thread| thread.join().expect("ends"));
        let lost = world.header(0).lost()[EventKind::ProxyOp.index()];
        assert_eq!(lost, 0, "it is not the lane's loss");
        let refused = recorder.lost_without_lane()[EventKind::ProxyOp.index()];
        let started: Vec<Handle> = ops.into_iter().filter(|op| !op.is_null()).collect();
        assert_eq!(started.len() as u64 + refused, 2);
        assert!(started.iter().all(|op| op.slot() == 0), "given back, taken again");
        let mut generations: Vec<u64> = started.iter().map(|op| op.generation()).collect();
        generations.sort_unstable();
        assert_eq!(generations, (1..=started.len() as u64).collect::<Vec<_>>());
        assert_eq!((world.records(0).len(), recorder.stale()), (2 * started.len(), 0));
    };
    (world, body)
}

#[test]
fn a_lane_goes_to_the_next_thread_with_its_slots() {
    let (world, body) = succession();
    holds("slots, of a lane's next thread", world.model(), body);
}

#[test]
fn mutant_the_next_thread_does_not_see_the_lanes_slots() {
    let (world, body) = succession();
    let state = world.in_header(STATE);
    fails(RACE, world.model().weak(move |at| at == state), body);
}

/// NCCL does not do this. If it did, records could be wrong, but no memory would be corrupted.
#[test]
fn mutant_two_threads_stop_an_operation_at_once() {
    let (world, body) = elsewhere(true);
    fails(RACE, world.model().preemptions(2), body);
}
