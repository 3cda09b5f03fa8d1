// SPDX-License-Identifier: Apache-2.0
//! Random sequences of calls, with handles that are live, stale, foreign or invalid, are compared
//! with a simple reference: every record and every count must be the same.

use crate::{calls, drain, on_thread, op, small_recorder};
use ncclscope_recorder::lane::STARTER_WORDS;
use ncclscope_recorder::{NO_COMM, Recorder};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::record::{Detail, Start, step_flags};
use ncclscope_trace::scratch::LaneHeader;
use ncclscope_trace::{EventKind, Handle, Record, State};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

/// A handle that a caller may pass.
#[derive(Clone, Debug)]
enum Pick {
    /// A handle that was returned before, live or stale.
    Made(usize),
    /// One of the last few handles returned.
    Recent(usize),
    /// A handle as another process would have returned it.
    Foreign(usize, u64),
    /// A handle with one bit flipped.
    Flipped(usize, u32),
    Bits(u64),
}

#[derive(Clone, Debug)]
enum Call {
    Start,
    StartOp(bool),
    StartStep(Pick, u32),
    State(Pick, u8, Option<u64>),
    Stop(Pick),
}

fn pick() -> impl Strategy<Value = Pick> {
    // Lane bits are not flipped: a state call does not check the lane of a handle, only the step's
    // slot and generation.
    let bit = (0u32..64).prop_filter("not the lane", |bit| !(40..48).contains(bit));
    prop_oneof![
        4 => any::<usize>().prop_map(Pick::Made),
        8 => (0usize..4).prop_map(Pick::Recent),
        1 => (any::<usize>(), 0u64..1024).prop_map(|(i, process)| Pick::Foreign(i, process)),
        1 => (any::<usize>(), bit).prop_map(|(i, bit)| Pick::Flipped(i, bit)),
        1 => prop_oneof![Just(0), Just(Handle::REFUSED.0), any::<u64>()].prop_map(Pick::Bits),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    // States of steps, and others.
    let state = prop_oneof![6 => prop::sample::select(vec![8, 9, 10, 11, 12, 20]), 1 => 0u8..40];
    prop_oneof![
        1 => Just(Call::Start),
        2 => any::<bool>().prop_map(Call::StartOp),
        4 => (pick(), 0u32..20).prop_map(|(op, number)| Call::StartStep(op, number)),
        6 => (pick(), state, any::<Option<u64>>()).prop_map(|(h, s, n)| Call::State(h, s, n)),
        3 => pick().prop_map(Call::Stop),
    ]
}

/// A step in progress.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    number: u32,
    flags: u8,
    repeats: u16,
    size: u32,
}

struct Op {
    is_send: bool,
    /// By the step's number modulo 8.
    steps: BTreeMap<usize, Step>,
}

/// A record without its times.
#[derive(Debug, PartialEq)]
enum Seen {
    Start(Handle),
    Step(u32, Step),
    State(Handle, State),
    Stop(Handle),
}

impl From<&Record> for Seen {
    fn from(record: &Record) -> Seen {
        match record {
            Record::Start(start) => Seen::Start(start.handle),
            Record::Step(s) => {
                let (number, flags, repeats, size) = (s.step, s.flags, s.repeats, s.size);
                Seen::Step(s.op_ref, Step { number, flags, repeats, size })
            }
            Record::State { handle, state, .. } => Seen::State(*handle, *state),
            Record::Stop { handle, .. } => Seen::Stop(*handle),
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// The expected records and counts.
#[derive(Default)]
struct Reference {
    /// Whether calls try the fast path first.
    hot: bool,
    made: Vec<Handle>,
    ops: HashMap<Handle, Op>,
    /// Words for which the lane still has room.
    room: usize,
    seen: Vec<Seen>,
    lost: [u64; KINDS],
    lost_ends: [u64; KINDS],
    stale: u64,
    unknown: u64,
}

impl Reference {
    fn handle(&self, pick: &Pick) -> Handle {
        let made = |i: usize| match self.made.len() {
            0 => Handle::NULL,
            len => self.made[i % len],
        };
        match *pick {
            Pick::Made(i) => made(i),
            Pick::Recent(i) => made(self.made.len().saturating_sub(1 + i)),
            Pick::Foreign(i, process) => Handle(made(i).0 & !(0x3ff << 54) | process << 54),
            // Only existing kinds: readers drop records of other kinds.
            Pick::Flipped(i, bit) => Handle((made(i).0 ^ 1 << bit) & !(3 << 52)),
            Pick::Bits(bits) => Handle(bits & !(3 << 52)),
        }
    }

    /// Notes a record of `words` words, if there is room.
    fn record(&mut self, words: usize, seen: Seen) -> bool {
        let fits = words <= self.room;
        if fits {
            self.room -= words;
            self.seen.push(seen);
        }
        fits
    }

    fn started(&mut self, handle: Handle, kind: EventKind, words: usize) {
        if self.record(words, Seen::Start(handle)) {
            assert_eq!((handle.process(), handle.kind(), handle.lane()), (7, kind, 0));
            assert!(!self.made.contains(&handle), "each is new");
            self.made.push(handle);
        } else {
            assert!(handle.is_null());
            self.lost[kind.index()] += 1;
        }
    }

    fn end_step(&mut self, op: Handle, step: Step) {
        if !self.record(5, Seen::Step(op.op_ref(), step)) {
            self.lost[EventKind::ProxyStep.index()] += 1;
        }
    }

    /// The step that a handle names, if it is in progress.
    fn step(&mut self, handle: Handle) -> Option<&mut Step> {
        self.ops.get_mut(&handle.op_of())?.steps.get_mut(&handle.step_index())
    }

    fn start_step(&mut self, op: Handle, number: u32, step: Handle) {
        if op == Handle::REFUSED {
            assert_eq!(step, op, "left out with its operation, and no loss");
            return;
        }
        let Some(live) = self.ops.get_mut(&op) else {
            assert!(step.is_null());
            self.lost[EventKind::ProxyStep.index()] += 1;
            return;
        };
        assert_eq!(step, op.step_of(number));
        self.made.push(step);
        let new = Step { number, flags: u8::from(live.is_send), repeats: 0, size: 0 };
        let before = live.steps.insert(step.step_index(), new);
        if let Some(before) = before.clone().filter(|before| before.number == number) {
            live.steps.insert(step.step_index(), before);
        } else if let Some(before) = before {
            self.end_step(op, before);
        }
    }

    fn step_state(&mut self, handle: Handle, state: State, size: Option<u64>) {
        use step_flags::{FIRST, SECOND, SIZED, THIRD};
        let Some(step) = self.step(handle) else {
            self.stale += 1;
            return;
        };
        let size =
            size.filter(|_| matches!(state, State::STEP_SEND_WAIT | State::STEP_RECV_FLUSH_WAIT));
        let flag = match state {
            State::STEP_SEND_GPU_WAIT | State::STEP_RECV_WAIT => FIRST,
            State::STEP_SEND_PEER_WAIT | State::STEP_RECV_FLUSH_WAIT => SECOND,
            State::STEP_SEND_WAIT | State::STEP_RECV_GPU_WAIT => THIRD,
            _ => {
                self.unknown += 1;
                return;
            }
        };
        if state == State::STEP_SEND_PEER_WAIT && step.flags & SECOND != 0 {
            step.repeats += 1;
        }
        step.flags |= flag;
        if let Some(size) = size {
            step.flags |= SIZED;
            step.size = u32::try_from(size).unwrap_or(u32::MAX);
        }
    }

    fn other_state(&mut self, handle: Handle, state: State) {
        if handle == Handle::REFUSED {
            return;
        }
        if handle.process() != 7 {
            self.stale += 1;
        } else if !self.record(4, Seen::State(handle, state)) {
            self.lost_ends[handle.kind().index()] += 1;
        }
    }

    fn stop(&mut self, handle: Handle) {
        if handle.is_null() || handle == Handle::REFUSED {
            return;
        }
        let ours = handle.process() == 7;
        match handle.kind() {
            EventKind::ProxyStep if ours => {
                let op = self.ops.get_mut(&handle.op_of());
                match op.and_then(|op| op.steps.remove(&handle.step_index())) {
                    Some(step) => {
                        let flags = step.flags | step_flags::STOPPED;
                        self.end_step(handle, Step { flags, ..step });
                    }
                    None => self.stale += 1,
                }
            }
            EventKind::ProxyOp if ours => match self.ops.remove(&handle) {
                Some(op) => {
                    op.steps.into_values().for_each(|step| self.end_step(handle, step));
                    self.stopped(handle);
                }
                None => self.stale += 1,
            },
            _ if ours => self.stopped(handle),
            _ => self.stale += 1,
        }
    }

    fn stopped(&mut self, handle: Handle) {
        if !self.record(3, Seen::Stop(handle)) {
            self.lost_ends[handle.kind().index()] += 1;
        }
    }

    /// Makes the call, and notes its expected results.
    fn run(&mut self, recorder: &Recorder, call: &Call) {
        match *call {
            Call::Start => {
                let handle = recorder.start(NO_COMM, Handle(9), &Detail::Group);
                self.started(handle, EventKind::Group, 3);
            }
            Call::StartOp(is_send) => {
                let op = op(is_send);
                let handle = recorder.start_op(NO_COMM, Handle(9), &op);
                let (comm, parent) = (NO_COMM, Handle(9));
                let detail = Detail::ProxyOp(op);
                let record = Start { ticks: 0, comm, handle, parent, detail };
                self.started(handle, EventKind::ProxyOp, record.pack().words().len());
                if !handle.is_null() {
                    self.ops.insert(handle, Op { is_send, steps: BTreeMap::new() });
                }
            }
            Call::StartStep(ref pick, number) => {
                let op = self.handle(pick);
                let step = match self.hot {
                    true => calls::start_step(recorder, op, number),
                    false => recorder.start_step(op, number),
                };
                self.start_step(op, number, step);
            }
            Call::State(ref pick, state, size) => {
                let (handle, state) = (self.handle(pick), State(state));
                let is_step = recorder.is_step(handle);
                match (self.hot, is_step) {
                    (true, _) => calls::state(recorder, handle, state, size),
                    (_, true) => recorder.step_state(handle, state, || size),
                    (_, false) => recorder.state(handle, state, 0, 0),
                }
                if is_step {
                    self.step_state(handle, state, size);
                } else {
                    self.other_state(handle, state);
                }
            }
            Call::Stop(ref pick) => {
                let handle = self.handle(pick);
                if self.hot {
                    calls::stop(recorder, handle)
                } else {
                    recorder.stop(handle)
                }
                self.stop(handle);
            }
        }
    }
}

/// Fills lane 0 until `room` words are left, or up to two more. Returns how many are left, and the
/// number of records.
fn fill(recorder: &Recorder, room: usize) -> (usize, usize) {
    let words = usize::try_from(STARTER_WORDS).expect("few");
    let records = words.saturating_sub(room) / 3;
    for _ in 0..records {
        assert!(!recorder.start(NO_COMM, Handle::NULL, &Detail::Group).is_null());
    }
    (words - 3 * records, records)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn any_calls_are_recorded_or_counted_exactly(
        calls in prop::collection::vec(call(), 0..200),
        room in prop_oneof![2 => Just(usize::MAX), 1 => 0usize..400],
        hot: bool,
    ) {
        let recorder = small_recorder();
        let (reference, before) = on_thread(|| {
            let (room, before) = fill(recorder, room);
            let mut reference = Reference { hot, room, ..Reference::default() };
            calls.iter().for_each(|call| reference.run(recorder, call));
            (reference, before)
        });
        let records = drain(recorder);
        let seen: Vec<Seen> = records[before..].iter().map(|(_, record)| record.into()).collect();
        prop_assert_eq!(seen, reference.seen);
        let header = recorder.region.lane_header(0).unwrap();
        let counts = LaneHeader::decode(&header.snapshot()).unwrap();
        prop_assert_eq!(counts.lost, reference.lost);
        prop_assert_eq!(counts.lost_ends, reference.lost_ends);
        prop_assert_eq!(recorder.stale(), reference.stale);
        prop_assert_eq!(recorder.unknown(), reference.unknown);
        prop_assert_eq!(recorder.lost_without_lane(), [0; KINDS]);
    }
}
