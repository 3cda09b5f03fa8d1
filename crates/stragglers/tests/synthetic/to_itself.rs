// SPDX-License-Identifier: Apache-2.0
//! An AllToAll as PyTorch does it: each rank sends to all ranks and to itself, of which NCCL shows
//! no kernel.

use ncclscope_stragglers::input::recording::job;
use ncclscope_stragglers::{Limits, analyze};
use ncclscope_trace::record::{ApiCall, GroupApi, KernelCh, P2p};
use ncclscope_trace::{Detail, Handle, Mark, MarkKind, Recording, State, StrId};
use scripts::{API, PROXY, Process};

const RANKS: i32 = 4;
const STEPS: usize = 20;
const STEP_NS: u64 = 100_000_000;
const LATE_NS: u64 = 20_000_000;

fn rank(rank: i32, late_ns: u64) -> Process {
    let mut process = Process::new(rank, RANKS.unsigned_abs());
    // Up to 2.30 kernel events have the times of other kernels from here on, and are not used.
    process.comm.nccl_version = 23_102;
    let funcs = ["Send", "Recv"].map(|name| process.string(name));
    let datatype = process.string("ncclFloat32");
    for (step, value) in (0..).zip(0..).take(STEPS) {
        let begin = (step + 1) * STEP_NS;
        let what = MarkKind::Step;
        process.marks.push(Mark { ticks: begin - 1_000, what, name: StrId::NONE, value });
        process.now = begin + late_ns;
        let group_api = Detail::GroupApi(GroupApi { graph: false, depth: 1 });
        let group_api = process.start(API, Handle::NULL, group_api);
        let group = process.start(API, Handle::NULL, Detail::Group);
        let (mut all, mut kernels) = (Vec::new(), Vec::new());
        for (peer, func) in (0..RANKS).flat_map(|peer| funcs.map(|func| (peer, func))) {
            let call = ApiCall { func, datatype, count: 1 << 16, ..ApiCall::default() };
            let api = process.start(API, group_api, Detail::P2pApi(call));
            process.stop(API, api);
            let count = 1 << 16;
            let p2p = P2p { func, datatype, count, peer, channels: 1, group, ..P2p::default() };
            let p2p = process.start(API, api, Detail::P2p(p2p));
            process.stop(API, p2p);
            all.push(p2p);
            if peer != rank {
                let kernel = KernelCh { channel: 0, ptimer: process.ptimer() };
                kernels.push(process.start(PROXY, p2p, Detail::KernelCh(kernel)));
            }
        }
        process.stop(API, group);
        process.stop(API, group_api);
        process.now = begin + LATE_NS + 1_000_000;
        let ptimer = process.ptimer();
        for kernel in kernels {
            process.state(PROXY, kernel, State::KERNEL_CH_STOP, ptimer);
            process.stop(PROXY, kernel);
        }
    }
    process
}

#[test]
fn an_all_to_all_with_a_send_to_itself_is_judged() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = [(0, 0), (1, 0), (2, LATE_NS), (3, 0)]
        .map(|(at, late)| Recording::open(&rank(at, late).write(dir.path()).unwrap()).unwrap());
    let job = job(&recordings);
    assert!(job.batches.iter().all(|batch| batch.partners.len() == 6 && !batch.is_lacking));
    let report = analyze(&job, &Limits::default());
    // As many as without the sends to itself: the last step has no end.
    let steps = STEPS - 1;
    assert_eq!((report.batches, report.step_count()), (4 * steps, steps));
    let found: Vec<_> =
        report.findings.iter().map(|one| (one.class.code(), &one.root_ranks[..])).collect();
    assert_eq!(found, [("S1", &[2][..])], "{report:#?}");
}
