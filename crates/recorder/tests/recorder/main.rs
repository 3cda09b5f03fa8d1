// SPDX-License-Identifier: Apache-2.0
//! The recorder as the plugin uses it, on private memory.

#[path = "../calls/mod.rs"]
mod calls;
mod reclaim;
mod reference;

use ncclscope_recorder::lane::STARTER_WORDS;
use ncclscope_recorder::{Recorder, registry};
use ncclscope_trace::handle::{GENERATIONS, LANES};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::layout::RING_BYTES;
use ncclscope_trace::record::{Detail, ProxyOp, schema, step_flags};
use ncclscope_trace::{EventKind, Handle, Record, State};
use std::sync::atomic::{AtomicU64, Ordering};

/// A recorder whose rings have only their starter memory.
fn small_recorder() -> &'static Recorder {
    calls::choose_clock();
    let recorder: &'static Recorder = Box::leak(Box::default());
    recorder.region.reserve(None).unwrap();
    recorder.region.grow(4, 1, None).unwrap();
    recorder.set_process(7);
    recorder
}

fn recorder() -> &'static Recorder {
    let recorder = small_recorder();
    (0..recorder.region.rings()).for_each(|lane| recorder.region.complete(lane, None).unwrap());
    recorder
}

/// Runs `f` on a new thread, whose lane belongs to no other recorder.
fn on_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}

fn drain(recorder: &Recorder) -> Vec<(usize, Record)> {
    let mut records = Vec::new();
    let mut words = Vec::new();
    for lane in 0..recorder.region.rings() {
        let header = recorder.region.lane_header(lane).unwrap();
        header.peek(recorder.region.ring(lane).unwrap(), &mut words);
        header.take_until(header.tail() + words.len() as u64);
        let mut rest = words.as_slice();
        while let Some(&head) = rest.first() {
            let (len, _) = schema(head.to_le_bytes()[0]).expect("a record");
            records.push((lane, Record::unpack(&rest[..len]).expect("a whole record")));
            rest = &rest[len..];
        }
    }
    records
}

fn op(is_send: bool) -> ProxyOp {
    ProxyOp { pid: 1, channel: 1, peer: 1, steps: 4, is_send, ..ProxyOp::default() }
}

#[test]
fn a_send_step_is_one_record_with_its_states() {
    let recorder = recorder();
    on_thread(|| {
        let parent = recorder.start(0, Handle::NULL, &Detail::Group);
        let send = recorder.start_op(0, parent, &op(true));
        let step = recorder.start_step(send, 3);
        assert_eq!(step.kind(), EventKind::ProxyStep);
        recorder.step_state(step, State::STEP_SEND_GPU_WAIT, || None);
        for _ in 0..4 {
            recorder.step_state(step, State::STEP_SEND_PEER_WAIT, || None);
        }
        recorder.step_state(step, State::STEP_SEND_WAIT, || Some(4096));
        recorder.stop(step);
        recorder.stop(step);
        recorder.stop(send);
        recorder.stop(send);
        assert_eq!(recorder.stale(), 2, "second stops are stale");
    });
    let records = drain(recorder);
    let Some((_, Record::Step(step))) = records.iter().find(|r| matches!(r.1, Record::Step(_)))
    else {
        panic!("no step in {records:?}");
    };
    use step_flags::{FIRST, IS_SEND, SECOND, SIZED, STOPPED, THIRD};
    assert_eq!(step.flags, IS_SEND | STOPPED | FIRST | SECOND | THIRD | SIZED);
    assert_eq!((step.step, step.size, step.repeats), (3, 4096, 3));
    assert!(step.states[1] <= step.states[2] && step.states[2] <= step.end);
    assert_eq!(records.len(), 4);
}

#[test]
fn a_receive_step_that_is_started_again_stays_one() {
    let recorder = recorder();
    on_thread(|| {
        let recv = recorder.start_op(0, Handle::NULL, &op(false));
        let first = recorder.start_step(recv, 0);
        for _ in 0..1000 {
            assert_eq!(recorder.start_step(recv, 0), first);
        }
        // Never stopped: it ends with its operation.
        recorder.step_state(first, State::STEP_RECV_WAIT, || None);
        // The next step with the same index supersedes it if that comes before the operation's
        // stop.
        let eighth = recorder.start_step(recv, 8);
        assert_eq!(eighth, first, "same index, same handle");
        recorder.stop(recv);
    });
    let steps: Vec<_> = drain(recorder)
        .into_iter()
        .filter_map(|(_, r)| if let Record::Step(s) = r { Some((s.step, s.flags)) } else { None })
        .collect();
    assert_eq!(steps, [(0, step_flags::FIRST), (8, 0)]);
}

#[test]
fn a_full_lane_drops_the_newest_and_counts_it() {
    let recorder = recorder();
    let pushed = 2 * RING_BYTES as u64 / 8 / 3;
    let handles = on_thread(|| {
        (0..pushed).map(|_| recorder.start(0, Handle::NULL, &Detail::Group)).collect::<Vec<_>>()
    });
    let records = drain(recorder);
    let kept = records.len() as u64;
    let lost = recorder.region.lane_header(records[0].0).unwrap().lost();
    assert_eq!(kept + lost[EventKind::Group.index()], pushed);
    assert!(kept > pushed / 3);
    assert!(handles[..records.len()].iter().all(|h| !h.is_null()));
    assert!(handles[records.len()..].iter().all(|h| h.is_null()));
}

#[test]
fn a_lane_begins_small_and_goes_on_once_it_is_whole() {
    let recorder = small_recorder();
    let fits = STARTER_WORDS / 3;
    let start = || !recorder.start(0, Handle::NULL, &Detail::Group).is_null();
    on_thread(|| {
        assert!((0..fits / 8).all(|_| start()));
        assert_eq!(recorder.worth_completing().collect::<Vec<_>>(), [1, 2], "the next ones");
        assert!((fits / 8..fits).all(|_| start()));
        assert!(!start() && !start(), "no memory there yet");
        for lane in recorder.worth_completing() {
            recorder.region.complete(lane, None).unwrap();
        }
        assert_eq!(recorder.worth_completing().count(), 0);
        assert!((0..fits).all(|_| start()), "at once, with the same lane");
    });
    assert_eq!(drain(recorder).len() as u64, 2 * fits);
    let lost = recorder.region.lane_header(0).unwrap().lost();
    assert_eq!(lost[EventKind::Group.index()], 2);
}

#[test]
fn more_threads_than_lanes_are_counted_and_lanes_come_back() {
    registry::install();
    let recorder = recorder();
    for _ in 0..50 {
        on_thread(|| assert!(!recorder.start(0, Handle::NULL, &Detail::Group).is_null()));
    }
    let barrier = std::sync::Barrier::new(6);
    let refused = std::thread::scope(|scope| {
        let start = || {
            let handle = recorder.start(0, Handle::NULL, &Detail::Group);
            barrier.wait();
            u64::from(handle.is_null())
        };
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    assert_eq!(refused, 2);
    assert_eq!(recorder.lost_without_lane()[EventKind::Group.index()], 2);
}

#[test]
fn each_of_as_many_threads_as_there_are_lanes_has_one() {
    let recorder = small_recorder();
    assert_eq!(lanes_of_a_crowd(recorder), (0..LANES).collect::<std::collections::BTreeSet<_>>());
    assert_eq!(recorder.lost_without_lane(), [0; KINDS]);
}

/// Commits all lanes, and starts an event on as many threads at once. Returns their lanes.
fn lanes_of_a_crowd(recorder: &'static Recorder) -> std::collections::BTreeSet<usize> {
    registry::install();
    let last = || recorder.region.held(LANES - 1, 1);
    assert!(last().is_none(), "a handle may have any bits, and no thread holds that lane");
    recorder.region.grow(LANES, 1, None).unwrap();
    let barrier = std::sync::Barrier::new(LANES);
    std::thread::scope(|scope| {
        let start = || {
            let handle = recorder.start(0, Handle::NULL, &Detail::Group);
            barrier.wait();
            assert!(!handle.is_null());
            handle.lane()
        };
        let threads: Vec<_> = (0..LANES).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn an_op_stopped_on_another_thread_gives_its_slot_back() {
    let recorder = recorder();
    let to_stop = std::sync::mpsc::channel::<Handle>();
    let done = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for handle in to_stop.1 {
                recorder.stop(handle);
                done.0.send(()).unwrap();
            }
        });
        scope.spawn(move || {
            // Far more operations than the slots of the one slab.
            for _ in 0..5000 {
                let handle = recorder.start_op(0, Handle::NULL, &op(true));
                assert!(!handle.is_null());
                to_stop.0.send(handle).unwrap();
                done.1.recv().unwrap();
            }
        });
    });
    assert_eq!(recorder.stale(), 0);
}

/// The generation of slot 0.
fn generation(recorder: &Recorder) -> &AtomicU64 {
    // SAFETY: the address is inside slot 0, which is in a committed slab.
    let at = unsafe { recorder.region.slots_base().add(24) };
    // SAFETY: these are eight aligned bytes of memory that stays mapped, and every user accesses
    // them as an atomic.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

#[test]
fn the_generation_of_a_slot_wraps_and_stale_handles_stay_stale() {
    let recorder = recorder();
    on_thread(|| {
        let run = || {
            let send = recorder.start_op(0, Handle::NULL, &op(true));
            let step = recorder.start_step(send, 0);
            recorder.stop(step);
            recorder.stop(send);
            [send, step]
        };
        let mut old = run().to_vec();
        generation(recorder).store(GENERATIONS - 3, Ordering::Relaxed);
        old.extend((0..2).flat_map(|_| run()));
        let send = recorder.start_op(0, Handle::NULL, &op(true));
        assert_eq!((old[4].generation(), send.generation()), (GENERATIONS - 1, 0));
        assert_eq!(old[4].slot(), send.slot());
        let step = recorder.start_step(send, 0);
        assert!(!step.is_null() && !old.contains(&step) && !old.contains(&send));
        for &handle in &old {
            recorder.stop(handle);
        }
        assert_eq!(recorder.stale(), old.len() as u64);
        recorder.stop(step);
        recorder.stop(send);
        assert_eq!(recorder.stale(), old.len() as u64);
    });
    let records = drain(recorder);
    assert_eq!(records.iter().filter(|r| matches!(r.1, Record::Step(_))).count(), 4);
}

/// Threads that exit without releasing their lanes, as in a process with many `pthread` keys.
#[test]
fn lanes_of_threads_that_are_gone_come_back_without_a_key() {
    let recorder = recorder();
    let start = || recorder.start(0, Handle::NULL, &Detail::Group);
    // The C library reuses the control block of the previous thread for a new one.
    for _ in 0..300 {
        on_thread(|| assert!(!start().is_null()));
    }
    // These threads have a control block each, and the next ones may have others.
    let crowd = || {
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            let one = || {
                let handle = start();
                barrier.wait();
                usize::from(handle.is_null())
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        })
    };
    for round in 0..50 {
        assert_eq!(crowd(), 0, "round {round}");
        // A thread can be joined a moment before the system forgets it.
        while recorder.lanes().any(|(_, lane)| lane.in_use()) {
            recorder.reap_lanes();
        }
    }
    on_thread(|| {
        let handle = start();
        (0..3).for_each(|_| recorder.reap_lanes());
        assert!(recorder.region.lane_header(handle.lane()).unwrap().in_use(), "it lives");
    });
    assert_eq!(recorder.lost_without_lane()[EventKind::Group.index()], 0);
}
