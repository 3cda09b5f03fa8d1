// SPDX-License-Identifier: Apache-2.0
//! Recordings with an example of everything that a trace can show.

use ncclscope_trace::record::{
    ApiCall, CeBatch, CeColl, CeSync, Coll, GroupApi, KernelCh, KernelLaunch, KernelPhase,
    NetPlugin,
};
use ncclscope_trace::{Detail, Handle, Mark, MarkKind, State, StrId};
use scripts::{API, Call, Fault, PROXY, Process};

/// A collective with the properties that the scripts leave out; within a node.
#[derive(Clone, Copy)]
struct Made {
    func: &'static str,
    algo: &'static str,
    has_kernel: bool,
    is_symmetric: bool,
    /// 0 if it was not measured.
    cuda_event_ns: u64,
}

const MADE: Made = Made {
    func: "ReduceScatter",
    algo: "TREE",
    has_kernel: true,
    is_symmetric: false,
    cuda_event_ns: 0,
};

fn make(p: &mut Process, made: Made) {
    let (func, datatype) = (p.string(made.func), p.string("ncclFloat32"));
    let (algo, proto, variant) = (p.string(made.algo), p.string("LL"), p.string("RSxLD_AGxST"));
    let (root, user_tag, stream) = (1, 9, 0x7f00);
    let graph = made.is_symmetric;
    let group_api = p.start(API, Handle::NULL, Detail::GroupApi(GroupApi { graph, depth: 1 }));
    let call = ApiCall { func, datatype, count: 1000, root, stream, graph, user_tag };
    let api = p.start(API, group_api, Detail::CollApi(call));
    p.state(API, api, State::EXTERNAL_ID, 77);
    p.stop(API, api);
    let launch = p.start(API, group_api, Detail::KernelLaunch(KernelLaunch { stream }));
    p.stop(API, launch);
    let group = p.start(API, Handle::NULL, Detail::Group);
    let coll = Coll {
        func,
        datatype,
        algo,
        proto,
        seq: 40,
        count: 1000,
        root,
        channels: 1,
        more_channels: false,
        warps: 16,
        symmetric: made.is_symmetric,
        variant,
        rank: p.comm.rank,
        group,
        alignment: ncclscope_trace::Alignment::of(4096),
        user_tag,
    };
    let coll = p.start(API, api, Detail::Coll(coll));
    for handle in [coll, group, group_api] {
        p.stop(API, handle);
    }
    p.now += 5_000;
    if made.has_kernel {
        kernel(p, coll);
    }
    if made.cuda_event_ns != 0 {
        p.state(PROXY, launch, State::CUDA_EVENT, made.cuda_event_ns);
    }
}

fn kernel(p: &mut Process, coll: Handle) {
    let (channel, ptimer) = (0, p.ptimer() - 80);
    let kernel = p.start(PROXY, coll, Detail::KernelCh(KernelCh { channel, ptimer }));
    let phase = KernelPhase { channel, phase: 1, name: p.string("compute"), ptimer };
    let phase = p.start(PROXY, kernel, Detail::KernelPhase(phase));
    p.now += 40_000;
    for (handle, state) in [(phase, State::KERNEL_PHASE_STOP), (kernel, State::KERNEL_CH_STOP)] {
        let ptimer = p.ptimer() - 30;
        p.state(PROXY, handle, state, ptimer);
        p.stop(PROXY, handle);
    }
}

/// A collective by copy engines.
fn copies(p: &mut Process) {
    let (func, datatype) = (p.string("Scatter"), p.string("ncclFloat32"));
    let (sync, stream) = (p.string("MC"), 0x7f00);
    let ce = CeColl { func, datatype, sync, count: 64, stream, root: 1, ..CeColl::default() };
    let ce = p.start(API, Handle::NULL, Detail::CeColl(ce));
    for detail in [
        Detail::CeSync(CeSync { complete: true, ranks: 2 }),
        Detail::CeBatch(CeBatch { ops: 2, bytes: 256, intra_sync: false }),
    ] {
        let part = p.start(API, ce, detail);
        p.now += 1_000;
        p.stop(API, part);
    }
    p.stop(API, ce);
}

fn mark(p: &mut Process, what: MarkKind, name: StrId, value: u64) {
    p.marks.push(Mark { ticks: p.now, what, name, value });
    p.now += 1_000;
}

/// At least one event of each kind, in two communicators, one of which the recording does not
/// define.
pub(crate) fn everything() -> Process {
    let mut p = Process::new(0, 2);
    p.role = Some("tp");
    let note = p.string("checkpoint");
    mark(&mut p, MarkKind::Step, StrId::NONE, 7);
    p.collective(Call::ALL_REDUCE);
    p.comm.index = 1;
    mark(&mut p, MarkKind::Note, note, 0);
    p.collective(Call::ALL_REDUCE);
    p.collective(Call { func: "Broadcast", ..Call::ALL_REDUCE });
    p.send_recv(1, 4096);
    mark(&mut p, MarkKind::Step, StrId::NONE, 8);
    make(&mut p, MADE);
    make(&mut p, Made { cuda_event_ns: 50_000, ..MADE });
    let event = p.start(PROXY, Handle::NULL, Detail::ProxyCtrl);
    p.stop(PROXY, event);
    p.net_events(2 << 16 | 1);
    let net = NetPlugin { id: 1 << 16 | 1, device: 1, qp: 2, op: 3, bytes: 4096, wr_id: 0 };
    let event = p.start(PROXY, Handle::NULL, Detail::NetPlugin(net));
    p.stop(PROXY, event);
    copies(&mut p);
    make(&mut p, Made { func: "Reduce", is_symmetric: true, has_kernel: false, ..MADE });
    make(&mut p, MADE);
    p
}

/// A process with an operation that does not end.
pub(crate) fn hang() -> Process {
    let mut p = Process::new(0, 2);
    mark(&mut p, MarkKind::Step, StrId::NONE, 1);
    p.collective(Call::ALL_REDUCE);
    p.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
    p
}

/// Finished operations; the duration of each function is from another clock.
pub(crate) fn durations() -> Process {
    let mut p = Process::new(0, 2);
    for steps in [4, 6, 9] {
        p.collective(Call { steps, ..Call::ALL_REDUCE });
        p.collective(Call { func: "AllGather", steps, fault: Fault::NoKernel, ..Call::ALL_REDUCE });
    }
    copies(&mut p);
    make(&mut p, MADE);
    make(&mut p, Made { func: "Reduce", cuda_event_ns: 50_000, ..MADE });
    p.send_recv(1, 4096);
    p.collective(Call::ALL_REDUCE);
    p
}
