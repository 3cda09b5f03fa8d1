// SPDX-License-Identifier: Apache-2.0
//! ProxyOps that NCCL never stops: their slots are reclaimed, and operations in flight keep theirs.

use crate::{drain, on_thread, op, small_recorder};
use ncclscope_recorder::{Recorder, clock, slots};
use ncclscope_trace::handle::SLOTS;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::layout::{SLAB_SLOTS, SLABS};
use ncclscope_trace::record::Detail;
use ncclscope_trace::{EventKind, Handle, Record};

fn start(recorder: &Recorder, comm: u16) -> Handle {
    recorder.start_op(comm, Handle::NULL, &op(true))
}

fn refused(recorder: &Recorder) -> u64 {
    recorder.lost_without_slot()[EventKind::ProxyOp.index()]
}

/// Takes every slot of the one slab.
fn fill(recorder: &Recorder, comm: u16) -> Vec<Handle> {
    let all = std::iter::from_fn(|| Some(start(recorder, comm)).filter(|op| !op.is_null()));
    all.collect()
}

#[test]
fn what_finds_no_slot_is_counted_apart_and_what_is_in_flight_stays() {
    let recorder = small_recorder();
    on_thread(|| {
        let all = fill(recorder, 1);
        assert_eq!(all.len(), SLAB_SLOTS);
        assert!(recorder.start_step(Handle::NULL, 0).is_null());
        assert_eq!(refused(recorder), 1);
        assert_eq!(recorder.lost_without_slot()[EventKind::ProxyStep.index()], 1);
        assert_eq!(recorder.lost()[EventKind::ProxyOp.index()], 1);
        let lane = recorder.region.lane_header(0).unwrap();
        assert_eq!((lane.lost(), lane.lost_ends()), ([0; KINDS], [0; KINDS]), "no lane was full");
        assert!(all.iter().all(|&op| !recorder.start_step(op, 0).is_null()), "the oldest stay");
        recorder.stop(all[9]);
        assert_eq!(start(recorder, 1).slot(), all[9].slot());
        assert_eq!(recorder.stale(), 0);
    });
}

#[test]
fn a_finalized_communicators_slots_come_back_and_its_steps_are_kept() {
    let recorder = small_recorder();
    on_thread(|| {
        let old = fill(recorder, 1);
        let steps: Vec<Handle> = old[..10].iter().map(|&op| recorder.start_step(op, 3)).collect();
        recorder.reap();
        assert!(start(recorder, 2).is_null(), "it lives");
        recorder.end_comm(1);
        recorder.end_comm(1);
        recorder.reap();
        let new = fill(recorder, 2);
        assert_eq!(new.len(), SLAB_SLOTS, "all of them");
        assert!(new.iter().all(|op| !old.contains(op)));
        let before = recorder.stale();
        steps.iter().chain(&old).for_each(|&handle| recorder.stop(handle));
        assert_eq!(recorder.stale() - before, 10 + SLAB_SLOTS as u64, "stopped late: harmless");
        recorder.reap();
        assert!(start(recorder, 2).is_null(), "the new ones' communicator lives");
    });
    let steps = drain(recorder).into_iter().filter_map(|(_, record)| match record {
        Record::Step(step) => Some((step.step, step.flags & 2)),
        _ => None,
    });
    assert_eq!(steps.collect::<Vec<_>>(), [(3, 0); 10], "recorded as not stopped");
}

#[test]
fn an_abandoned_operation_that_stops_after_all_is_not_taken_from_the_next() {
    let recorder = small_recorder();
    on_thread(|| {
        let old = fill(recorder, 1);
        recorder.abandon(old[4]);
        recorder.abandon(old[4]);
        recorder.abandon(Handle(old[5].0 ^ 1 << 60));
        recorder.abandon(Handle::NULL);
        recorder.stop(old[4]);
        let new = start(recorder, 1);
        assert_eq!(new.slot(), old[4].slot());
        assert!(start(recorder, 1).is_null(), "the slot is in the list no more");
        assert!(!recorder.start_step(new, 1).is_null(), "and is the new one's");
        recorder.abandon(new);
        assert_eq!(start(recorder, 1).slot(), old[4].slot(), "which may be abandoned too");
        assert_eq!(refused(recorder), 2);
    });
}

#[test]
fn slots_of_a_thread_that_is_gone_go_to_lanes_that_need_them() {
    ncclscope_recorder::registry::install();
    let recorder = small_recorder();
    on_thread(|| fill(recorder, 1).into_iter().for_each(|op| recorder.stop(op)));
    let (start_two, wait) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        // Claims the lane to which the slots belong.
        let first = scope.spawn(|| {
            assert!(!start(recorder, 1).is_null());
            start_two.wait();
            wait.wait();
        });
        start_two.wait();
        on_thread(|| {
            assert!(start(recorder, 1).is_null(), "another lane");
            recorder.reap();
            assert!(start(recorder, 1).is_null(), "its thread lives");
        });
        wait.wait();
        first.join().unwrap();
    });
    recorder.reap();
    // Lane 0 has no slots of its own any more; its next thread takes the spared slots, as on any
    // other lane.
    on_thread(|| assert_eq!(fill(recorder, 1).len(), SLAB_SLOTS - 1));
}

/// Each collective has 16 ProxyOps that are never stopped, beside ordinary ones: this works for as
/// long as the recorder learns in time which of them are over.
#[test]
fn a_step_of_a_thread_without_a_lane_is_lost_for_that_reason() {
    let recorder = small_recorder();
    let lanes = recorder.region.rings();
    let barrier = &std::sync::Barrier::new(lanes + 1);
    std::thread::scope(|scope| {
        for number in 0..lanes {
            scope.spawn(move || {
                let _has_a_lane = recorder.start(1, Handle::NULL, &Detail::Group);
                barrier.wait();
                if number == 0 {
                    fill(recorder, 1);
                }
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        barrier.wait();
        on_thread(|| assert!(recorder.start_step(Handle::NULL, 0).is_null()));
        barrier.wait();
    });
    assert_ne!(refused(recorder), 0);
    let step = EventKind::ProxyStep.index();
    assert_eq!((recorder.lost_without_lane()[step], recorder.lost_without_slot()[step]), (1, 0));
}

#[test]
fn leaks_without_end_refuse_nothing() {
    let recorder = small_recorder();
    recorder.region.grow(1, 8, None).unwrap();
    recorder.region.complete(0, None).unwrap();
    on_thread(|| {
        let mut leaked: std::collections::VecDeque<Handle> = std::collections::VecDeque::new();
        for round in 0..5000 {
            leaked.extend((0..16).map(|_| start(recorder, 1)));
            let ordinary = start(recorder, 2);
            let step = recorder.start_step(ordinary, 0);
            assert!(!step.is_null(), "round {round}");
            recorder.stop(step);
            recorder.stop(ordinary);
            // ProxyOps of a hundred operations ago.
            while leaked.len() > 1600 {
                recorder.abandon(leaked.pop_front().unwrap());
            }
            drain(recorder);
        }
        assert_eq!(refused(recorder), 0);
        assert!(recorder.wanted(1).1 <= 8 + 8, "a few slabs are enough");
    });
}

#[test]
fn as_many_operations_as_there_are_slots_can_be_in_flight() {
    let recorder = small_recorder();
    recorder.region.grow(1, SLABS, None).unwrap();
    recorder.region.complete(0, None).unwrap();
    on_thread(|| {
        let ops: Vec<Handle> = (0..SLOTS)
            .map(|n| {
                if n.is_multiple_of(1000) {
                    drain(recorder);
                }
                start(recorder, 1)
            })
            .collect();
        assert!(start(recorder, 1).is_null());
        let places: std::collections::HashSet<usize> = ops.iter().map(|op| op.slot()).collect();
        assert_eq!(places.len(), SLOTS);
        for &op in &ops {
            drain(recorder);
            recorder.stop(recorder.start_step(op, 7));
            recorder.stop(op);
        }
        assert_eq!(recorder.stale(), 0);
        assert!(!start(recorder, 1).is_null());
    });
}

/// The drain thread reads the time, and another thread starts a step before it looks at the slots.
/// The age of such a step is below 0.
#[test]
fn a_step_that_started_since_is_not_in_flight_yet() {
    let recorder = small_recorder();
    on_thread(|| {
        let op = start(recorder, 1);
        let before = clock::now();
        while clock::now() == before {}
        assert!(!recorder.start_step(op, 7).is_null());
        let after = clock::now();
        let starts = |now| {
            let steps = slots::in_flight(&recorder.region, now).into_iter();
            steps.map(|(_, step)| step.ticks).collect::<Vec<u64>>()
        };
        assert_eq!(starts(before), []);
        assert!(matches!(starts(after)[..], [at] if before < at && at <= after));
    });
}
