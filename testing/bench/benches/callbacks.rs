// SPDX-License-Identifier: Apache-2.0
//! Measures the parts of a callback: `cargo bench -p bench [NAME]`.
//!
//! The recorder alone, in a loop, without NCCL's C structures and the guard around each callback.
//! For developers of the recorder. `cargo xtask bench` measures the promised times of whole
//! callbacks, and `cargo xtask bench --instructions` measures what must not grow.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ncclscope_recorder::trace::codec::Encoder;
use ncclscope_recorder::trace::kind::KINDS;
use ncclscope_recorder::trace::record::{Coll, Detail, KernelCh, ProxyOp};
use ncclscope_recorder::trace::{Handle, State};
use ncclscope_recorder::{Recorder, clock, gate};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Records that are made between two clearings of the lane, which are not timed; they
/// must fit into a lane.
const CHUNK: u64 = 2000;
/// Steps in the lane that is drained.
const STEPS: u32 = 20_000;

/// A recorder with whole lanes in private memory, which no thread drains.
///
/// It is leaked: a thread's lane belongs to the first recorder that the thread used.
fn recorder() -> &'static Recorder {
    let recorder: &'static Recorder = Box::leak(Box::default());
    clock::choose(true);
    recorder.region.reserve(None).expect("there is address space");
    recorder.region.grow(1, 1, None).expect("there is memory");
    recorder.region.complete(0, None).expect("there is memory");
    recorder.set_process(1);
    recorder
}

/// Discards what the lane holds.
fn empty(recorder: &Recorder) {
    let header = recorder.region.lane_header(0).expect("the lane was made");
    header.take_until(header.tail() + header.pending());
}

/// The time of `times` calls of `each`, which never finds the lane full.
fn timed(recorder: &Recorder, times: u64, mut each: impl FnMut()) -> Duration {
    let (mut left, mut sum) = (times, Duration::ZERO);
    while left > 0 {
        let now = left.min(CHUNK);
        let begin = Instant::now();
        (0..now).for_each(|_| each());
        sum += begin.elapsed();
        empty(recorder);
        left -= now;
    }
    sum
}

const fn op(is_send: bool) -> ProxyOp {
    ProxyOp {
        pid: 1,
        channel: 1,
        peer: 1,
        steps: 4,
        chunk_bytes: 1 << 19,
        is_send,
        foreign: false,
        rank: 0,
    }
}

fn send_step(recorder: &Recorder, op: Handle, number: u32) {
    let step = recorder.start_step(op, number);
    recorder.step_state(step, State::STEP_SEND_GPU_WAIT, || None);
    recorder.step_state(step, State::STEP_SEND_PEER_WAIT, || None);
    recorder.step_state(step, State::STEP_SEND_WAIT, || Some(1 << 19));
    recorder.stop(step);
}

fn callbacks(c: &mut Criterion) {
    let r = recorder();
    let parent = r.start(0, Handle::NULL, &Detail::Group);
    let send = r.start_op(0, parent, &op(true));
    let mut group = c.benchmark_group("callback");
    let mut bench = |name: &str, each: &mut dyn FnMut()| {
        group.bench_function(name, |b| b.iter_custom(|times| timed(r, times, &mut *each)));
    };
    bench("nothing, gate shut", &mut || _ = black_box(gate::is_open()));
    bench("reading the clock", &mut || _ = black_box(clock::now()));
    bench("step, start and stop", &mut || r.stop(r.start_step(black_box(send), 1)));
    bench("step, with three states", &mut || send_step(r, black_box(send), 1));
    let step = r.start_step(send, 2);
    r.step_state(step, State::STEP_SEND_PEER_WAIT, || None);
    bench("SendPeerWait again", &mut || {
        r.step_state(black_box(step), State::STEP_SEND_PEER_WAIT, || None);
    });
    bench("proxy op", &mut || {
        let op = r.start_op(0, black_box(parent), &op(true));
        r.state(op, State::PROXY_OP_IN_PROGRESS, 0, 0);
        r.stop(op);
    });
    let coll = Coll { count: 1 << 20, channels: 4, warps: 16, ..Coll::default() };
    bench("coll", &mut || r.stop(r.start(0, black_box(parent), &Detail::Coll(coll))));
    bench("kernel channel", &mut || {
        let detail = Detail::KernelCh(KernelCh { channel: 1, ptimer: 1 });
        let kernel = r.start(0, black_box(parent), &detail);
        r.state(kernel, State::KERNEL_CH_STOP, 0, 2);
        r.stop(kernel);
    });
    let stale = r.start_op(0, parent, &op(false));
    r.stop(stale);
    bench("stop of what was stopped", &mut || r.stop(black_box(stale)));
    group.finish();
}

/// A recorder whose lane holds [`STEPS`] steps.
fn filled() -> &'static Recorder {
    let r = recorder();
    // A new thread gets a lane of this recorder.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let send = r.start_op(0, Handle::NULL, &op(true));
            (0..STEPS).for_each(|number| send_step(r, send, number));
        });
    });
    r
}

/// The work of the drain thread for a lane, without the file.
fn drain(c: &mut Criterion) {
    let r = filled();
    let header = r.region.lane_header(0).expect("the lane was made");
    let ring = r.region.ring(0).expect("the lane was made");
    let (mut words, mut encoder) = (Vec::new(), Encoder::default());
    let mut group = c.benchmark_group("drain");
    group.throughput(Throughput::Elements(u64::from(STEPS)));
    group.bench_function("steps", |b| {
        b.iter(|| {
            header.peek(ring, &mut words);
            let mut rest = words.as_slice();
            while let Some(mut block) = encoder.encode(0, &mut 0, &mut rest) {
                black_box(block.placed(0, 0));
            }
        });
    });
    group.finish();
    assert_eq!(r.region.lane_header(0).map(|header| header.lost()), Some([0; KINDS]));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50);
    targets = callbacks, drain
}
criterion_main!(benches);
