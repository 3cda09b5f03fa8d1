// SPDX-License-Identifier: Apache-2.0
//! What the joiner passes on is what a whole timeline has, in bounded memory.

use super::*;
use ncclscope_trace::record::{ApiCall, Coll, GroupApi, KernelCh, KernelLaunch};
use ncclscope_trace::{Comm, Detail, Handle, Mark, MarkKind, State};
use proptest::prelude::*;
use scripts::{API, Call, Fault, PROXY, Process};

/// What a consumer receives, operations with the handle of their event.
#[derive(Debug, Default)]
struct Told {
    operations: Vec<(u64, String)>,
    /// Events by kind, and those that have children.
    events: std::collections::BTreeMap<&'static str, (u64, u64)>,
}

impl Consumer for Told {
    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        let handle = |id: EventId| timeline.event(id).start.handle.0;
        let mut open: Vec<u64> = operation.open.iter().map(|&id| handle(id)).collect();
        open.sort_unstable();
        let (of, zero) = (operation.event, EventId::of_index(0));
        let told = Operation { event: zero, open: Vec::new(), ..operation.clone() };
        self.operations.push((handle(of), format!("{told:?} {open:?}")));
    }

    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
        let (all, parents) = self.events.entry(event.kind().name()).or_default();
        *all += 1;
        *parents += u64::from(timeline.has_children(id));
    }
}

fn counted(timeline: &Timeline<'_>, clocks: &GpuClocks) -> String {
    let counts: Vec<_> =
        (0..timeline.recording().comms().len()).map(|at| timeline.counts(at)).collect();
    let rest = (timeline.unattributed(), timeline.unmatched_ends(), timeline.orphan_steps());
    let links: Vec<_> = timeline.links().iter().collect();
    let stray = timeline.stray_kernels();
    format!("{counts:?} {rest:?} {links:?} {stray} {:?} {clocks:?}", timeline.rank(0))
}

/// Passes the records in the order of time, and reports each time as reached.
fn feed(recording: &Recording, joiner: &mut Joiner<'_, '_, Told>) {
    let mut lanes = [0, 1].map(|lane| recording.records(lane).peekable());
    loop {
        let next = lanes.iter_mut().enumerate();
        let next = next.filter_map(|(lane, records)| Some((records.peek()?.ticks(), lane)));
        let Some((ticks, lane)) = next.min() else { break };
        joiner.reached(ticks);
        let record = lanes[lane].next().unwrap();
        joiner.record(lane, &record);
        let (held, Room { sweep, live, most }) = (joiner.timeline.len(), joiner.room);
        assert!(held <= 2 * live.max(most).max(sweep) + sweep, "{held} events");
    }
}

/// Passes the operations and events of a whole timeline to a consumer.
fn pass_on(timeline: &Timeline<'_>, consumer: &mut impl Consumer) {
    let mut operations = crate::operations(timeline);
    operations.sort_by_key(|operation| timeline.event(operation.event).start.ticks);
    operations.iter().for_each(|operation| consumer.operation(timeline, operation));
    timeline.events().for_each(|(id, event)| consumer.event(timeline, id, event));
}

/// What a consumer receives from a whole timeline, and from records one by one.
fn both(process: &Process, room: Room) -> [(Told, String); 2] {
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
    let mut whole = Told::default();
    let timeline = Timeline::read(&recording, false);
    pass_on(&timeline, &mut whole);
    let counts = counted(&timeline, &GpuClocks::of(&timeline));

    let mut parts = Told::default();
    let mut joiner = Joiner::new(&recording, room, &mut parts);
    feed(&recording, &mut joiner);
    let (joined, _) = joiner.finish();
    assert_eq!((joined.cut_short, joined.timeline.len()), (0, 0));
    whole.operations.sort();
    parts.operations.sort();
    [(whole, counts), (parts, counted(&joined.timeline, &joined.clocks))]
}

fn play(process: &mut Process, (what, steps, pause): (u8, u32, u64)) {
    let fault = match what {
        0 | 1 => Fault::NoKernel,
        2 => Fault::Local,
        3 => Fault::Enqueued,
        _ => Fault::None,
    };
    let channels = 1 + what % 3;
    let func = ["AllReduce", "AllGather", "Broadcast"][usize::from(what / 3 % 3)];
    match what {
        9 => process.send_recv(1, 100),
        _ => process.collective(Call { func, steps, channels, fault, ..Call::ALL_REDUCE }),
    }
    process.now += pause;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn what_is_handed_over_early_is_what_it_is_at_the_end(
        plays in proptest::collection::vec((0u8..10, 0u32..4, 0u64..600_000_000), 1..60),
        (sweep, version, hangs) in (1usize..40, 0usize..3, any::<bool>()),
    ) {
        let mut process = Process::new(0, 2);
        (process.comm.api_version, process.comm.nccl_version) =
            [(5, 22_809), (4, 22_304), (6, 23_007)][version];
        plays.iter().for_each(|&one| play(&mut process, one));
        if hangs {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        }
        let [(whole, counts), (parts, counts_of_parts)] =
            both(&process, Room { sweep, live: LIVE, most: MOST });
        prop_assert_eq!(whole.operations, parts.operations);
        prop_assert_eq!(whole.events, parts.events);
        prop_assert_eq!(counts, counts_of_parts);
    }
}

/// The starts of operations in the order in which a consumer receives them.
#[derive(Debug, Default)]
struct Starts(Vec<u64>);

impl Consumer for Starts {
    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        self.0.push(timeline.event(operation.event).start.ticks);
    }

    fn event(&mut self, _: &Timeline<'_>, _: EventId, _: &Event) {}
}

/// For example, PyTorch calls NCCL from the main thread and from that of autograd.
#[test]
fn operations_of_two_threads_come_in_the_order_of_their_starts() {
    let mut process = Process::new(0, 2);
    for at in 0..400 {
        let detail = Detail::Coll(Coll::default());
        let coll = process.start(at / 2 % 2, Handle::NULL, detail);
        process.stop(at / 2 % 2, coll);
    }
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
    let (mut whole, mut parts) = (Starts::default(), Starts::default());
    pass_on(&Timeline::read(&recording, false), &mut whole);
    join(&recording, None, &mut parts);
    assert_eq!(whole.0.len(), 400);
    assert!(whole.0.is_sorted() && whole.0 == parts.0);
}

#[test]
fn a_long_recording_needs_no_more_room_than_what_is_in_flight() {
    let mut process = Process::new(0, 2);
    for _ in 0..2_000 {
        process.collective(Call::ALL_REDUCE);
        process.now += 5_000_000;
    }
    let [whole, parts] = both(&process, Room { sweep: 64, live: 4_000, most: 4_000 });
    assert_eq!(whole.0.operations, parts.0.operations);
    assert_eq!(whole.1, parts.1);
}

/// NCCL may stop an event again after recording was stopped and started.
#[test]
fn a_second_stop_long_after_the_first_is_no_stop_without_a_start() {
    let mut process = Process::new(0, 2);
    let (what, name) = (MarkKind::Stop, ncclscope_trace::StrId(0));
    let stop = Mark { ticks: process.now, what, name, value: 0 };
    process.marks.push(stop);
    let group = process.start(API, Handle::NULL, Detail::Group);
    process.stop(API, group);
    for _ in 0..300 {
        process.collective(Call::ALL_REDUCE);
        process.now += 5_000_000;
    }
    process.stop(API, group);
    let [whole, parts] = both(&process, Room { sweep: 64, live: 4_000, most: 4_000 });
    assert_eq!(whole.1, parts.1);
}

/// A send may hang while other operations, whose end no record shows, go on for minutes.
#[test]
fn what_hangs_outlives_what_may_be_over() {
    let mut process = Process::new(0, 2);
    process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    let first = process.comm.clone();
    process.comm = Comm { index: first.index + 1, hash: first.hash + 1, ..first.clone() };
    process.other_comms.push(first);
    for _ in 0..500 {
        process.collective(Call { fault: Fault::Local, ..Call::ALL_REDUCE });
        process.now += 5_000_000;
    }
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
    let mut told = Told::default();
    let mut joiner = Joiner::new(&recording, Room { sweep: 50, live: 200, most: 1_000 }, &mut told);
    feed(&recording, &mut joiner);
    let before_last = joiner.consumer.operations.len();
    let (joined, _) = joiner.finish();
    assert_eq!((joined.cut_short, told.operations.len()), (0, 501));
    let open: Vec<usize> = (0..501).filter(|&at| told.operations[at].1.contains("Open")).collect();
    assert!(matches!(*open, [at] if at >= before_last && before_last > 300), "{open:?}");
}

#[test]
fn what_finds_no_room_is_handed_over_as_it_is() {
    let mut process = Process::new(0, 2);
    // Calls that never return: none of their events ends.
    for _ in 0..500 {
        process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    }
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
    let mut told = Told::default();
    let mut joiner = Joiner::new(&recording, Room { sweep: 50, live: 200, most: 200 }, &mut told);
    feed(&recording, &mut joiner);
    let (joined, _) = joiner.finish();
    assert!(joined.cut_short > 400, "{}", joined.cut_short);
    assert_eq!(told.operations.len(), 500);
}

/// A kernel may start only after those of another communicator, minutes after its operation was
/// enqueued, and then hang. No earlier kernel of the communicator shows that one is to come.
#[test]
fn the_first_kernel_of_a_communicator_may_come_late() {
    let mut process = Process::new(0, 2);
    let first = process.comm.clone();
    process.comm = Comm { index: first.index + 1, hash: first.hash + 1, ..first.clone() };
    let late = [0, 1].map(|_| {
        let detail = Coll { count: 1, channels: 1, rank: 0, ..Coll::default() };
        let coll = process.start(API, Handle::NULL, Detail::Coll(detail));
        process.stop(API, coll);
        coll
    });
    process.other_comms.push(std::mem::replace(&mut process.comm, first));
    for _ in 0..400 {
        process.collective(Call { steps: 0, ..Call::ALL_REDUCE });
        process.now += 50_000_000;
    }
    let kernel = |process: &mut Process, of| {
        process.now += 1_000;
        let ptimer = process.ptimer();
        let kernel = KernelCh { channel: 0, ptimer };
        process.start(PROXY, of, Detail::KernelCh(kernel))
    };
    let done = kernel(&mut process, late[0]);
    let ptimer = process.ptimer();
    process.state(PROXY, done, State::KERNEL_CH_STOP, ptimer);
    process.stop(PROXY, done);
    kernel(&mut process, late[1]);
    // With room for few events, the operation that is the first of its communicator stays.
    for (live, missing) in [(LIVE, 0), (50, 1)] {
        let [whole, parts] = both(&process, Room { sweep: 40, live, most: MOST });
        let same = parts.0.operations.iter().filter(|one| whole.0.operations.contains(one));
        assert_eq!(same.count(), whole.0.operations.len() - missing, "room for {live}");
        let of_first = |told: &Told| told.operations.iter().find(|one| one.0 == late[0].0).cloned();
        assert_eq!(of_first(&parts.0), of_first(&whole.0));
    }
}

/// Replays of a CUDA graph have the captured call as their parent, which stays for ever.
#[test]
fn replays_go_and_their_captured_call_stays() {
    let mut process = Process::new(0, 2);
    let group = GroupApi { graph: true, depth: 1 };
    let group = process.start(API, Handle::NULL, Detail::GroupApi(group));
    let call = ApiCall { graph: true, count: 1, ..ApiCall::default() };
    let call = process.start(API, group, Detail::CollApi(call));
    process.stop(API, call);
    process.stop(API, group);
    for _ in 0..1_000 {
        let launch = KernelLaunch { stream: 0x7f00 };
        let launch = process.start(API, Handle::NULL, Detail::KernelLaunch(launch));
        process.stop(API, launch);
        let detail = Coll { count: 1, channels: 1, ..Coll::default() };
        let replay = process.start(API, call, Detail::Coll(detail));
        process.stop(API, replay);
        process.now += 5_000_000;
        let channel = KernelCh { channel: 0, ptimer: process.ptimer() };
        let kernel = process.start(PROXY, replay, Detail::KernelCh(channel));
        process.now += 1_000;
        let ptimer = process.ptimer();
        process.state(PROXY, kernel, State::KERNEL_CH_STOP, ptimer);
        process.stop(PROXY, kernel);
        // A CUDA event comes late, too.
        process.now += 300_000_000;
        process.state(API, launch, State::CUDA_EVENT, 1_000);
    }
    let [whole, parts] = both(&process, Room { sweep: 64, live: 900, most: 1_000 });
    assert_eq!(whole.0.operations.len(), 1_000);
    assert_eq!(whole.0.operations, parts.0.operations);
    assert_eq!(whole.1, parts.1, "no event without a start, no unknown parent");
}
