// SPDX-License-Identifier: Apache-2.0
/*!
The recorder in every order that its threads can take, with loom in the place of the processor:

```sh
RUSTFLAGS="--cfg loom" cargo test --profile model --package ncclscope-recorder --test loom \
    --target-dir target/loom
```

Each model stands beside its mutants: the same with an ordering weakened or a step left out, which
must fail. Memory that one thread at a time may touch is checked for races (see
`ncclscope_recorder::model`), so that a missing order shows even where it does no harm by chance.
*/
#![cfg(loom)]

mod call_counters;
#[path = "../calls/mod.rs"]
mod calls;
mod checker;
mod handover;
mod lanes;
mod missed;
mod reclaim;
mod region;
mod slots;
mod strings;
mod threads;

/// What the runtime's files expect in `crate::sys`: a lock, here loom's.
mod sys {
    pub(crate) mod lock {
        use loom::sync::{Mutex, MutexGuard};

        #[derive(Debug)]
        pub(crate) struct Lock<T>(Mutex<T>);

        impl<T> Lock<T> {
            pub(crate) fn new(value: T) -> Lock<T> {
                Lock(Mutex::new(value))
            }

            pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
                self.0.lock().expect("no thread panics")
            }
        }
    }
}

use ncclscope_recorder::lane::Ring;
use ncclscope_recorder::model::Model;
use ncclscope_recorder::{Lane, LaneHeader, Recorder};
use ncclscope_trace::layout::{LANE_STRIDE, RING_BYTES, SLOT_BYTES};
use ncclscope_trace::record::{Sink, schema};
use ncclscope_trace::scratch::{lane, slot};
use ncclscope_trace::{EventKind, Record};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The process bits of handles.
const PROCESS: u64 = 7;
/// Offset in a lane header of `memory`: how much of the ring is committed.
const MEMORY: usize = lane::TAIL + 8;
/// Offset in a lane header of `returned_slots`: slots that other threads gave back.
const RETURNED: usize = 128;
/// Offset in a lane header of `abandoned_slots`: slots of operations that NCCL will not stop.
const ABANDONED_SLOTS: usize = RETURNED + 4;
/// Offset in a slot of the mark that NCCL will not stop its operation.
const ABANDONED: usize = 32;
/// Offsets in a lane header that only the thread that holds the lane accesses.
const HOLDERS: std::ops::Range<usize> = lane::SEQUENCE..104;

/// A recorder on private memory, with one slab.
#[derive(Clone, Copy)]
struct World {
    recorder: &'static Recorder,
}

impl World {
    /// A world with `lanes` lanes, whose rings have only their starter memory.
    fn small(lanes: usize) -> World {
        calls::choose_clock();
        let recorder: &'static Recorder = Box::leak(Box::default());
        recorder.region.reserve(None).expect("address space");
        recorder.region.grow(lanes, 1, None).expect("memory");
        World { recorder }
    }

    /// A world with `lanes` lanes, whose rings are whole.
    fn whole(lanes: usize) -> World {
        let world = World::small(lanes);
        (0..lanes).for_each(|lane| world.recorder.region.complete(lane, None).expect("memory"));
        world
    }

    fn header(self, lane: usize) -> &'static LaneHeader {
        self.recorder.region.lane_header(lane).expect("a lane")
    }

    fn ring(self, lane: usize) -> &'static Ring {
        self.recorder.region.ring(lane).expect("a lane")
    }

    /// The producer's end of a lane, for the one thread that plays the producer.
    fn lane(self, lane: usize) -> Lane<'static> {
        Lane::new(self.header(lane), self.ring(lane), lane)
    }

    /// Address of a field of lane 0's header.
    fn in_header(self, offset: usize) -> usize {
        std::ptr::from_ref(self.header(0)).addr() + offset
    }

    /// Address of a word of lane 0's ring.
    fn in_ring(self, word: usize) -> usize {
        std::ptr::from_ref(self.ring(0)).addr() + 8 * word
    }

    /// A model of this world. Rings, slots, and what belongs to a lane's holder are plain memory.
    /// Handles and step tags in slots are not: they are how a stale handle is detected, which
    /// another thread may use at any time.
    fn model(self) -> Model {
        let table = self.in_header(0);
        let rings = self.in_ring(0);
        let slots = self.recorder.region.slots_base().addr();
        Model::default().plain(move |at| {
            let in_slots = |at: usize| match at % SLOT_BYTES {
                slot::HANDLE | ABANDONED => false,
                at if at < slot::STEPS => true,
                at => (at - slot::STEPS) % slot::STEP_BYTES != slot::STEP_TAG,
            };
            match at {
                at if at >= slots && at < slots + (SLOT_BYTES << 9) => in_slots(at - slots),
                at if at >= rings && at < slots => (at - rings) < RING_BYTES << 6,
                at if at >= table && at < rings => HOLDERS.contains(&((at - table) % LANE_STRIDE)),
                _ => false,
            }
        })
    }

    /// Takes what a lane holds, as the drain thread does.
    fn take(self, lane: usize) -> Vec<u64> {
        let (header, mut words) = (self.header(lane), Vec::new());
        header.peek(self.ring(lane), &mut words);
        header.take_until(header.tail() + words.len() as u64);
        words
    }

    /// Takes a lane's records.
    fn records(self, lane: usize) -> Vec<Record> {
        let words = self.take(lane);
        let (mut rest, mut records) = (words.as_slice(), Vec::new());
        while let Some(&head) = rest.first() {
            let (len, _) = schema(head.to_le_bytes()[0]).expect("torn: no record");
            records.push(Record::unpack(&rest[..len]).expect("torn: half a record"));
            rest = &rest[len..];
        }
        records
    }
}

/// Pushes the record with a number; counts it as lost if there is no room.
fn put(lane: Lane<'_>, number: u64) -> bool {
    let done = lane.put([number, !number]);
    if !done {
        lane.header().lose(EventKind::Group);
    }
    done
}

/// The numbers of the records that `put` pushed.
fn numbers(words: &[u64]) -> Vec<u64> {
    let number = |record: &[u64]| {
        assert!(matches!(record, [a, b] if *a == !b), "torn: {record:x?}");
        record[0]
    };
    words.chunks(2).map(number).collect()
}

/// Checks that the model holds in every order, and that there are several orders.
#[expect(clippy::print_stdout, reason = "what the test found")]
fn holds(name: &str, model: Model, body: impl Fn() + Send + Sync + 'static) {
    let orders = model.check(body);
    println!("{name}: {orders} orders");
    assert!(orders > 5, "{name}: only {orders} orders");
}

/// Checks that the mutant fails with a message that contains `message`.
fn fails(message: &str, model: Model, body: impl Fn() + Send + Sync + 'static) {
    let result = catch_unwind(AssertUnwindSafe(|| model.check(body)));
    let panic = result.expect_err("the mutant must not pass");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains(message), "the mutant failed otherwise: {text}");
}

/// Loom's message if two threads race for plain memory.
const RACE: &str = "Causality violation";
