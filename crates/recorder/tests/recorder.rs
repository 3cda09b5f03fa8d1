// SPDX-License-Identifier: Apache-2.0
//! The recorder as the plugin uses it, on private memory, against a simple model.

use ncclscope_recorder::lane::STARTER_WORDS;
use ncclscope_recorder::{NO_COMM, Recorder, registry};
use ncclscope_trace::layout::RING_BYTES;
use ncclscope_trace::record::{Detail, ProxyOp, schema, step_flags};
use ncclscope_trace::{EventKind, Handle, Record, State};
use proptest::prelude::*;
use std::collections::HashMap;

/// One whose rings are as small as they begin.
fn small_recorder() -> &'static Recorder {
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

/// Runs `f` on a thread of its own, whose lane belongs to no other recorder.
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
        // Never stopped: the operation's stop ends it.
        recorder.step_state(first, State::STEP_RECV_WAIT, || None);
        // The next use of the same index supersedes it if it comes first.
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
        assert_eq!(recorder.worth_completing().collect::<Vec<_>>(), [1, 2, 3], "the next ones");
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
            // Far more operations than the one slab has slots.
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

#[derive(Clone, Debug)]
enum Action {
    StartOp(bool),
    StopOp(usize),
    StartStep(usize, u32),
    State(usize, u8),
    StopStep(usize),
    Garbage(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        any::<bool>().prop_map(Action::StartOp),
        any::<usize>().prop_map(Action::StopOp),
        (any::<usize>(), 0u32..40).prop_map(|(i, n)| Action::StartStep(i, n)),
        (any::<usize>(), 0u8..34).prop_map(|(i, s)| Action::State(i, s)),
        any::<usize>().prop_map(Action::StopStep),
        any::<u64>().prop_map(Action::Garbage),
    ]
}

/// What the recorder must have written: whole steps and operations, each once.
#[derive(Default)]
struct Model {
    live_ops: HashMap<u64, HashMap<u64, u32>>,
    ops: Vec<Handle>,
    steps: Vec<Handle>,
    steps_started: usize,
    steps_lost: usize,
}

impl Model {
    fn run(&mut self, recorder: &Recorder, action: &Action) {
        match *action {
            Action::StartOp(is_send) => {
                let handle = recorder.start_op(NO_COMM, Handle(9), &op(is_send));
                assert!(self.live_ops.insert(handle.0, HashMap::new()).is_none());
                self.ops.push(handle);
            }
            Action::StopOp(i) if !self.ops.is_empty() => {
                let handle = self.ops[i % self.ops.len()];
                recorder.stop(handle);
                self.live_ops.remove(&handle.0);
            }
            Action::StartStep(i, n) if !self.ops.is_empty() => {
                let op = self.ops[i % self.ops.len()];
                let step = recorder.start_step(op, n);
                let Some(steps) = self.live_ops.get_mut(&op.0) else {
                    assert!(step.is_null());
                    self.steps_lost += 1;
                    return;
                };
                assert!(!step.is_null());
                if steps.insert(step.0, n) != Some(n) {
                    self.steps_started += 1;
                }
                self.steps.push(step);
            }
            Action::State(i, state) if !self.steps.is_empty() => {
                recorder.step_state(self.steps[i % self.steps.len()], State(state), || None);
            }
            Action::StopStep(i) if !self.steps.is_empty() => {
                let step = self.steps[i % self.steps.len()];
                recorder.stop(step);
                for steps in self.live_ops.values_mut() {
                    steps.remove(&step.0);
                }
            }
            Action::Garbage(bits) => {
                // Bits that no handle of this process has.
                let handle = Handle(bits & !(0x3ff << 54) | 9 << 54);
                recorder.stop(handle);
                recorder.state(handle, State(9), 0, 0);
                assert!(recorder.start_step(handle, 1).is_null());
                self.steps_lost += 1;
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_step_and_operation_is_recorded_once(
        actions in prop::collection::vec(action(), 0..300)
    ) {
        let recorder = recorder();
        let (model, lost) = on_thread(|| {
            let mut model = Model::default();
            for action in &actions {
                model.run(recorder, action);
            }
            for op in std::mem::take(&mut model.ops) {
                recorder.stop(op);
            }
            (model, recorder.region.lane_header(0).unwrap().lost())
        });
        let records = drain(recorder);
        let steps = records.iter().filter(|r| matches!(r.1, Record::Step(_))).count();
        prop_assert_eq!(steps, model.steps_started);
        prop_assert_eq!(lost[EventKind::ProxyStep.index()], model.steps_lost as u64);
        let mut open: HashMap<u32, Handle> = HashMap::new();
        for (_, record) in &records {
            match record {
                Record::Start(start) => { open.insert(start.handle.op_ref(), start.handle); }
                Record::Step(step) => prop_assert!(open.contains_key(&step.op_ref)),
                Record::Stop { handle, .. } => {
                    prop_assert_eq!(open.remove(&handle.op_ref()), Some(*handle));
                }
                other => prop_assert!(false, "unexpected {:?}", other),
            }
        }
        prop_assert!(open.is_empty());
    }
}
