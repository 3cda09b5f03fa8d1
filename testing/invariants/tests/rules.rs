// SPDX-License-Identifier: Apache-2.0
//! A good recording satisfies all rules. Damaged in one way at a time, it violates the rule for
//! that.

use invariants::{Expect, Verdict, check};
use ncclscope_trace::layout::{Header, LANE_STRIDE};
use ncclscope_trace::progress::Progress;
use ncclscope_trace::record::{
    ApiCall, Coll, Detail, GroupApi, KernelCh, KernelLaunch, Packed, ProxyOp, step_flags,
};
use ncclscope_trace::scratch::lane;
use ncclscope_trace::{
    Comm, Definition, EventKind, Handle, Heartbeat, Record, Recording, Start, State, Step, StrId,
    Writer,
};

const PROCESS: u64 = 5;
/// The lane of the plugin's own records.
const META: u16 = ncclscope_trace::codec::META_LANE;
const API: u16 = 1;
const PROXY: u16 = 2;
const STRINGS: [&str; 4] = ["AllReduce", "RING", "SIMPLE", "Reduce"];
const ALL_REDUCE: StrId = StrId(1);
const REDUCE: StrId = StrId(4);

/// The contents of a recording.
struct Case {
    header: Header,
    comm: Comm,
    is_finalized: bool,
    lost: u64,
    records: Vec<(u16, Record)>,
    /// The counts at 100 us, when nothing is under way any more.
    progress: Progress,
}

fn value(kind: EventKind, lane: u16, sequence: u64) -> Handle {
    Handle::value(PROCESS, kind, usize::from(lane), sequence)
}

fn op(slot: usize) -> Handle {
    Handle::slot_op(PROCESS, usize::from(PROXY), 1, slot)
}

impl Case {
    /// An AllReduce of two channels between two ranks on two nodes, one step each way.
    fn good() -> Case {
        let header = Header {
            closed: true,
            pid: 77,
            process: 5,
            mask: 0x7fdf,
            host: "h".into(),
            ..Header::default()
        };
        let comm =
            Comm { ranks: 2, nodes: 2, api_version: 5, nccl_version: 22809, ..Comm::default() };
        let progress = Progress { ticks: 100_000, api: 1, enqueued: 1, ..Progress::default() };
        let (is_finalized, lost, records) = (true, 0, Vec::new());
        let mut case = Case { header, comm, is_finalized, lost, records, progress };
        case.api();
        case.proxy();
        case
    }

    fn start(&mut self, lane: u16, ticks: u64, handle: Handle, parent: Handle, detail: Detail) {
        let start = Start { ticks, comm: 0, handle, parent, detail };
        self.records.push((lane, Record::Start(start)));
    }

    fn stop(&mut self, lane: u16, ticks: u64, handle: Handle) {
        self.records.push((lane, Record::Stop { ticks, handle }));
    }

    fn api(&mut self) {
        let group_api = value(EventKind::GroupApi, API, 0);
        let call = value(EventKind::CollApi, API, 1);
        let launch = value(EventKind::KernelLaunch, API, 2);
        let group = value(EventKind::Group, API, 3);
        let coll = coll_handle();
        let api = ApiCall { func: ALL_REDUCE, ..ApiCall::default() };
        let detail = Coll {
            func: ALL_REDUCE,
            algo: StrId(2),
            proto: StrId(3),
            channels: 2,
            group,
            ..Coll::default()
        };
        let graph_less = Detail::GroupApi(GroupApi { graph: false, depth: 1 });
        self.start(API, 100, group_api, Handle::NULL, graph_less);
        self.start(API, 110, call, group_api, Detail::CollApi(api));
        self.stop(API, 120, call);
        self.start(API, 130, launch, group_api, Detail::KernelLaunch(KernelLaunch { stream: 1 }));
        self.stop(API, 140, launch);
        self.start(API, 150, group, Handle::NULL, Detail::Group);
        self.start(API, 160, coll, call, Detail::Coll(detail));
        self.stop(API, 170, coll);
        self.stop(API, 180, group);
        self.stop(API, 190, group_api);
    }

    fn proxy(&mut self) {
        for slot in 0..4 {
            let (is_send, channel) = (slot % 2 == 1, u8::try_from(slot / 2).unwrap());
            let detail =
                ProxyOp { pid: 77, channel, peer: 1, steps: 1, is_send, ..ProxyOp::default() };
            let at = 200 + slot as u64;
            self.start(PROXY, at, op(slot), coll_handle(), Detail::ProxyOp(detail));
        }
        for channel in 0..2_u8 {
            let kernel = value(EventKind::KernelCh, PROXY, u64::from(channel));
            let detail = Detail::KernelCh(KernelCh { channel, ptimer: 5000 });
            self.start(PROXY, 300, kernel, coll_handle(), detail);
        }
        for slot in 0..4 {
            self.records.push((PROXY, Record::Step(step(slot))));
        }
        for channel in 0..2 {
            let handle = value(EventKind::KernelCh, PROXY, channel);
            let state = State::KERNEL_CH_STOP;
            let ticks = 900 + 2 * channel;
            let end = Record::State { ticks, handle, state, small: 0, arg: 6000 };
            self.records.push((PROXY, end));
            self.stop(PROXY, ticks + 1, handle);
        }
        for slot in 0..4 {
            self.stop(PROXY, 1000, op(slot));
        }
    }

    fn check(self, expect: &Expect) -> Verdict {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h-77.nscope");
        let mut writer = Writer::create(&path, self.header.clone(), 0).unwrap();
        for (id, text) in (1..).zip(STRINGS) {
            writer.define(&Definition::String { id: StrId(id), text: text.into() }).unwrap();
        }
        writer.define(&Definition::Comm(self.comm)).unwrap();
        if self.is_finalized {
            writer.define(&Definition::CommEnd { index: 0, ticks: 2000 }).unwrap();
        }
        let heartbeat = Heartbeat::Progress(self.progress).pack();
        writer.append(META, 0, heartbeat.words()).unwrap();
        for lane in [API, PROXY] {
            let records = self.records.iter().filter(|(of, _)| *of == lane);
            let words: Vec<u64> = records.flat_map(|(_, r)| pack(r).words().to_vec()).collect();
            writer.append(lane, 0, &words).unwrap();
            let mut bytes = [0; LANE_STRIDE];
            bytes[lane::STATE] = 1;
            bytes[lane::LOST] = u8::try_from(self.lost).unwrap();
            writer.write_lane(usize::from(lane), &bytes).unwrap();
        }
        *writer.header_mut() = Header {
            segments: writer.header().segments,
            next_block: writer.header().next_block,
            definitions: writer.header().definitions,
            ..self.header
        };
        writer.sync_header().unwrap();
        check(&Recording::open(&path).unwrap(), expect)
    }

    /// The details of the start with this handle.
    fn detail(&mut self, handle: Handle) -> &mut Start {
        let starts = self.records.iter_mut().filter_map(|(_, record)| match record {
            Record::Start(start) => Some(start),
            _ => None,
        });
        starts.into_iter().find(|start| start.handle == handle).unwrap()
    }

    fn remove(&mut self, is_it: impl Fn(&Record) -> bool) {
        let before = self.records.len();
        self.records.retain(|(_, record)| !is_it(record));
        assert!(self.records.len() < before, "nothing to remove");
    }

    fn change_step(&mut self, change: impl Fn(&mut Step)) {
        let steps = self.records.iter_mut().filter_map(|(_, record)| match record {
            Record::Step(step) if step.has(step_flags::IS_SEND) => Some(step),
            _ => None,
        });
        steps.for_each(change);
    }
}

fn coll_handle() -> Handle {
    value(EventKind::Coll, API, 4)
}

fn step(slot: usize) -> Step {
    use step_flags as f;
    let all = f::STOPPED | f::FIRST | f::SECOND | f::THIRD | f::SIZED;
    Step {
        ticks: 320,
        flags: all | u8::from(slot % 2 == 1),
        op_ref: op(slot).op_ref(),
        size: 64,
        states: [0, 5, 10],
        end: 20,
        ..Step::default()
    }
}

fn pack(record: &Record) -> Packed {
    match record {
        Record::Start(start) => start.pack(),
        Record::Step(step) => step.pack(),
        Record::Stop { ticks, handle } => Record::stop(*ticks, *handle),
        Record::State { ticks, handle, state, small, arg } => {
            Record::state(*ticks, *handle, *state, *small, *arg)
        }
        Record::ClockSync(sync) => Record::clock_sync(sync),
        Record::Mark(_) | Record::Heartbeat(_) | Record::PairCount(_) | Record::Unknown { .. } => {
            unreachable!("no case here marks anything")
        }
    }
}

fn is_stop_of(record: &Record, of: Handle) -> bool {
    matches!(record, Record::Stop { handle, .. } if *handle == of)
}

fn is_kind(record: &Record, kind: EventKind) -> bool {
    match record {
        Record::Start(start) => start.detail.kind() == kind,
        Record::Stop { handle, .. } | Record::State { handle, .. } => handle.kind() == kind,
        _ => false,
    }
}

/// The rule that must be violated, and the change to the good recording.
type Break = (&'static str, fn(&mut Case));

const BREAKS: &[Break] = &[
    ("open", |case| case.remove(|r| is_stop_of(r, coll_handle()))),
    ("open", |case| case.change_step(|step| step.flags &= !step_flags::STOPPED)),
    ("stop-without-start", |case| {
        case.stop(API, 1500, value(EventKind::Group, API, 99));
    }),
    ("second-stop", |case| case.stop(API, 1500, coll_handle())),
    ("handle", |case| {
        let again = Handle::value(6, EventKind::Group, usize::from(API), 9);
        case.start(API, 1500, again, Handle::NULL, Detail::Group);
        case.stop(API, 1501, again);
    }),
    ("parent", |case| case.detail(coll_handle()).parent = Handle::NULL),
    ("parent", |case| case.detail(coll_handle()).parent = value(EventKind::CollApi, API, 77)),
    ("parent", |case| case.detail(op(0)).parent = value(EventKind::CollApi, API, 1)),
    ("parent", |case| {
        case.detail(op(0)).parent = Handle::value(9, EventKind::Coll, usize::from(API), 4);
    }),
    ("parent-first", |case| case.detail(op(0)).ticks = 155),
    ("comm", |case| case.detail(op(0)).comm = 1),
    ("func", |case| {
        let Detail::Coll(coll) = &mut case.detail(coll_handle()).detail else { panic!() };
        coll.func = REDUCE;
    }),
    ("group", |case| {
        let Detail::Coll(coll) = &mut case.detail(coll_handle()).detail else { panic!() };
        coll.group = value(EventKind::Group, API, 55);
    }),
    ("peer", |case| {
        let Detail::ProxyOp(op) = &mut case.detail(op(0)).detail else { panic!() };
        op.peer = 2;
    }),
    ("channels", |case| {
        let Detail::ProxyOp(op) = &mut case.detail(op(0)).detail else { panic!() };
        op.channel = 9;
    }),
    ("step-of-open-op", |case| {
        let late = step(0);
        case.records.push((PROXY, Record::Step(Step { ticks: 1100, ..late })));
    }),
    ("step-of-open-op", |case| case.change_step(|step| step.ticks = 150)),
    ("step-direction", |case| case.change_step(|step| step.flags ^= step_flags::IS_SEND)),
    ("step-states", |case| case.change_step(|step| step.states = [0, 15, 10])),
    ("step-states", |case| case.change_step(|step| step.end = 8)),
    ("step-states", |case| case.change_step(|step| step.flags &= !step_flags::SECOND)),
    ("steps", |case| {
        let Detail::ProxyOp(op) = &mut case.detail(op(0)).detail else { panic!() };
        op.steps = 3;
    }),
    ("completion", |case| {
        for (_, record) in &mut case.records {
            if let Record::Stop { ticks, handle } = record
                && handle.kind() == EventKind::KernelCh
            {
                *ticks = 10;
            }
        }
    }),
    ("ptimer", |case| {
        for (_, record) in &mut case.records {
            if let Record::State { arg, .. } = record {
                *arg = 4999;
            }
        }
    }),
    ("lane-order", |case| case.detail(value(EventKind::KernelLaunch, API, 2)).ticks = 115),
    ("lost", |case| case.lost = 3),
    ("lost", |case| case.header.overwritten[1] = 1),
    ("lost", |case| case.header.without_lane[1] = 1),
    ("defect", |case| case.header.garbage_words = 1),
    ("defect", |case| case.header.panics = 1),
    ("whole", |case| case.header.closed = false),
    ("kind", |case| case.comm.api_version = 4),
    ("progress", |case| case.progress.api = 2),
    ("progress", |case| case.progress.enqueued = 0),
    ("progress", |case| case.progress.p2p_enqueued = 1),
    // The counts of the end are given the time of the start.
    ("progress", |case| case.progress.ticks = 50),
    ("launches", |case| case.remove(|r| is_kind(r, EventKind::KernelLaunch))),
    ("call", |case| {
        let call = value(EventKind::CollApi, API, 20);
        let group = value(EventKind::GroupApi, API, 0);
        case.start(API, 1500, call, group, Detail::CollApi(ApiCall::default()));
        case.stop(API, 1501, call);
    }),
    ("kernel-channels", |case| {
        let handle = value(EventKind::KernelCh, PROXY, 1);
        case.remove(|r| match r {
            Record::Start(start) => start.handle == handle,
            Record::Stop { handle: of, .. } | Record::State { handle: of, .. } => *of == handle,
            _ => false,
        });
    }),
    ("proxy-ops", |case| {
        case.remove(|r| match r {
            Record::Start(start) => start.handle == op(3),
            Record::Step(step) => step.op_ref == op(3).op_ref(),
            _ => is_stop_of(r, op(3)),
        });
    }),
];

#[test]
fn a_good_recording_passes() {
    let verdict = Case::good().check(&Expect::default());
    assert_eq!(verdict.violations, []);
    assert_eq!(verdict.open, []);
    let counts: Vec<_> = verdict.kinds.iter().map(|(kind, c)| (*kind, c.started)).collect();
    let expected = [
        ("Coll", 1),
        ("CollApi", 1),
        ("Group", 1),
        ("GroupApi", 1),
        ("KernelCh", 2),
        ("KernelLaunch", 1),
        ("ProxyOp", 4),
        ("ProxyStep", 4),
    ];
    assert_eq!(counts, expected);
    assert!(verdict.kinds.values().all(|count| count.started == count.stopped));
    assert_eq!(verdict.kinds["Coll"].late, 1, "its call stopped before");
}

#[test]
fn each_rule_finds_what_breaks_it() {
    for (index, (rule, break_it)) in BREAKS.iter().enumerate() {
        let mut case = Case::good();
        break_it(&mut case);
        let verdict = case.check(&Expect::default());
        let found: Vec<_> = verdict.violations.iter().map(|v| v.rule).collect();
        assert!(found.contains(rule), "break {index}: {rule} is not in {found:?}");
    }
}

#[test]
fn what_is_open_for_a_reason_is_listed() {
    let open = |case: Case, expect: &Expect| {
        let verdict = case.check(expect);
        assert_eq!(verdict.violations, []);
        verdict.open.iter().map(|open| (open.kind, open.reason, open.count)).collect::<Vec<_>>()
    };
    let mut never_finalized = Case::good();
    never_finalized.is_finalized = false;
    never_finalized.remove(|r| is_stop_of(r, coll_handle()));
    let reason = "its communicator was never finalized";
    assert_eq!(open(never_finalized, &Expect::default()), [("Coll", reason, 1)]);

    let mut killed = Case::good();
    killed.header.closed = false;
    killed.remove(|r| is_stop_of(r, op(0)));
    let expect = Expect { killed_ok: true, ..Expect::default() };
    assert_eq!(open(killed, &expect), [("ProxyOp", "the process was killed, or still runs", 1)]);

    // Shared memory and peer access: ProxyOps without steps, which NCCL does not stop.
    let mut local = Case::good();
    local.comm.nodes = 1;
    local.remove(|r| matches!(r, Record::Step(_)));
    local.remove(
        |r| matches!(r, Record::Stop { handle, .. } if handle.kind() == EventKind::ProxyOp),
    );
    let reason = "its transport is no network: NCCL never stops it";
    assert_eq!(open(local, &Expect::default()), [("ProxyOp", reason, 4)]);

    let mut aborted = Case::good();
    aborted.remove(|r| is_stop_of(r, op(0)));
    let expect = Expect { aborted_ok: true, ..Expect::default() };
    assert_eq!(open(aborted, &expect), [("ProxyOp", "the operation was aborted", 1)]);
}

/// Adds another AllReduce, which has only a kernel and ends.
fn add_later_operation(case: &mut Case) {
    let call = value(EventKind::CollApi, API, 5);
    let (group, coll) = (value(EventKind::Group, API, 6), value(EventKind::Coll, API, 7));
    let kernel = value(EventKind::KernelCh, PROXY, 2);
    let api = ApiCall { func: ALL_REDUCE, ..ApiCall::default() };
    let detail = Coll { func: ALL_REDUCE, group, ..Coll::default() };
    (case.progress.api, case.progress.enqueued) = (2, 2);
    case.start(API, 1100, call, value(EventKind::GroupApi, API, 0), Detail::CollApi(api));
    case.stop(API, 1110, call);
    case.start(API, 1120, group, Handle::NULL, Detail::Group);
    case.start(API, 1130, coll, call, Detail::Coll(detail));
    case.stop(API, 1140, coll);
    case.stop(API, 1150, group);
    case.start(PROXY, 1200, kernel, coll, Detail::KernelCh(KernelCh { channel: 0, ptimer: 7000 }));
    case.stop(PROXY, 1300, kernel);
}

#[test]
fn a_kernel_that_was_not_started_leaves_a_second_stop_elsewhere() {
    let [skipped, other] = [1, 2].map(|number| value(EventKind::KernelCh, PROXY, number));
    let breaks_rule = |is_stopped_again: bool| {
        let mut case = Case::good();
        add_later_operation(&mut case);
        case.remove(|r| match r {
            Record::Start(start) => start.handle == skipped,
            Record::Stop { handle: of, .. } | Record::State { handle: of, .. } => *of == skipped,
            _ => false,
        });
        if is_stopped_again {
            case.stop(PROXY, 1400, other);
        }
        let violations = case.check(&Expect::default()).violations;
        violations.iter().any(|violation| violation.rule == "kernel-channels")
    };
    assert!(breaks_rule(false));
    assert!(!breaks_rule(true));
}

#[test]
fn an_abort_excuses_the_last_operation_only() {
    let expect = Expect { aborted_ok: true, ..Expect::default() };
    let case = |broken| {
        let mut case = Case::good();
        add_later_operation(&mut case);
        case.remove(|r| is_stop_of(r, broken));
        case.check(&expect)
    };
    let earlier = case(op(0));
    assert_eq!(earlier.open, []);
    assert_eq!(earlier.violations[0].rule, "open", "{:?}", earlier.violations);
    let last = case(value(EventKind::KernelCh, PROXY, 2));
    assert_eq!(last.violations, []);
    assert_eq!(last.open[0].reason, "the operation was aborted");
}

#[test]
fn a_clock_may_be_expected_to_go_back() {
    let mut case = Case::good();
    for (_, record) in &mut case.records {
        if let Record::State { arg, .. } = record {
            *arg = 1;
        }
    }
    let expect = Expect { ptimer_ok: true, ..Expect::default() };
    assert_eq!(case.check(&expect).violations, []);
}

#[test]
fn losses_may_be_expected() {
    let mut case = Case::good();
    case.lost = 2;
    let expect = Expect { lost_ok: true, ..Expect::default() };
    assert_eq!(case.check(&expect).violations, []);
}

#[test]
fn what_the_release_does_not_tell_the_caller_may() {
    let without_sizes = || {
        let mut case = Case::good();
        (case.comm.ranks, case.comm.nodes) = (0, 0);
        case.remove(|r| match r {
            Record::Start(start) => start.handle == op(3),
            Record::Step(step) => step.op_ref == op(3).op_ref(),
            _ => is_stop_of(r, op(3)),
        });
        case
    };
    assert_eq!(without_sizes().check(&Expect::default()).violations, []);
    let expect = Expect { ranks: Some(2), nodes: Some(2), ..Expect::default() };
    let verdict = without_sizes().check(&expect);
    assert_eq!(verdict.violations[0].rule, "proxy-ops");
}
