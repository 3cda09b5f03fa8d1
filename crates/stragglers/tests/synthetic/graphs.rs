// SPDX-License-Identifier: Apache-2.0
//! Launches of a CUDA graph belong to the steps in which they run, not to that of their capture.

use ncclscope_stragglers::input::recording::job;
use ncclscope_stragglers::{Limits, analyze};
use ncclscope_trace::record::{ApiCall, Coll, GroupApi, KernelCh};
use ncclscope_trace::{Detail, Handle, Mark, MarkKind, Recording, State, StrId};
use scripts::{API, PROXY, Process};

const STEPS: usize = 30;
const STEP_NS: u64 = 100_000_000;
const LATE_NS: u64 = 20_000_000;

/// A rank that captures one AllReduce in step 0 and launches the graph once in each step. Its
/// kernel starts `late_ns` late, and ends on both ranks at once.
fn rank(rank: i32, late_ns: u64) -> Process {
    let mut process = Process::new(rank, 2);
    let func = process.string("AllReduce");
    let mark = |ticks, value| Mark { ticks, what: MarkKind::Step, name: StrId(0), value };
    process.marks.push(mark(process.now, 0));
    process.now += 1_000;
    let group = GroupApi { graph: true, depth: 1 };
    let group = process.start(API, Handle::NULL, Detail::GroupApi(group));
    let call = ApiCall { func, graph: true, count: 1 << 20, ..ApiCall::default() };
    let call = process.start(API, group, Detail::CollApi(call));
    process.stop(API, call);
    process.stop(API, group);
    for step in 0..STEPS as u64 {
        let begin = (step + 1) * STEP_NS;
        if step > 0 {
            process.marks.push(mark(begin - 1_000, step));
        }
        process.now = begin;
        let channels = 1;
        let coll = Coll { func, seq: step, count: 1 << 20, channels, rank, ..Coll::default() };
        let coll = process.start(API, call, Detail::Coll(coll));
        process.stop(API, coll);
        process.now = begin + late_ns;
        let kernel = KernelCh { channel: 0, ptimer: process.ptimer() };
        let kernel = process.start(PROXY, coll, Detail::KernelCh(kernel));
        process.now = begin + LATE_NS + 1_000_000;
        let ptimer = process.ptimer();
        process.state(PROXY, kernel, State::KERNEL_CH_STOP, ptimer);
        process.stop(PROXY, kernel);
    }
    process
}

#[test]
fn launches_of_a_graph_are_of_their_steps() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = [rank(0, 0), rank(1, LATE_NS)]
        .map(|process| Recording::open(&process.write(dir.path()).unwrap()).unwrap());
    let report = analyze(&job(&recordings), &Limits::default());
    assert_eq!((report.step_count(), report.collectives), (STEPS, STEPS));
    let found: Vec<_> =
        report.findings.iter().map(|one| (one.class.code(), &one.root_ranks[..])).collect();
    assert_eq!(found, [("S1", &[1][..])]);
}
