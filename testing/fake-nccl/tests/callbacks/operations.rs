// SPDX-License-Identifier: Apache-2.0
//! Operations in NCCL's order, at every API version that has their events.

use crate::common::{Folded, Found, NO_COMM, exact};
use ncclscope_trace::record::{CeBatch, CeSync, Detail, KernelCh, KernelPhase};
use ncclscope_trace::{EventKind as K, Handle, State};
use std::collections::BTreeMap;

const OPS: usize = 5;

/// Counts of kinds: the number in one operation times [`OPS`], without zeros.
fn times(ops: usize, kinds: &[(K, usize)]) -> BTreeMap<K, usize> {
    kinds.iter().filter(|k| k.1 != 0).map(|&(kind, n)| (kind, n * ops)).collect()
}

/// Plays, compares, and checks the counts by kind that the version has.
fn run(version: usize, script: &str, kinds: &[(K, usize, usize)]) -> Found {
    // SendPeerWait is played twice a step, and both are counted.
    let ops = OPS.to_string();
    let (_, found) = exact(version, script, &["--ops", &ops], Folded::default());
    let since = |k: &&(K, usize, usize)| version >= k.2;
    let kinds: Vec<_> = kinds.iter().filter(since).map(|k| (k.0, k.1)).collect();
    assert_eq!(found.kinds(), times(OPS, &kinds), "v{version} {script}");
    found
}

fn once_each(found: &Found, but: &[K]) {
    for (handle, stops) in &found.stops {
        assert!(*stops == 1 || but.contains(&handle.kind()), "{handle:?} stopped {stops} times");
        assert!(found.events.contains_key(handle), "{handle:?} never started");
    }
    let open = found.events.keys().filter(|h| !found.stops.contains_key(h)).count();
    assert_eq!(open, 0, "everything was stopped");
}

#[test]
fn an_allreduce_is_whole_in_every_version() {
    for version in fake_nccl::VERSIONS {
        let found = run(
            version,
            "allreduce",
            &[
                (K::Group, 1, 1),
                (K::Coll, 1, 1),
                (K::ProxyOp, 4, 1),
                (K::ProxyStep, 16, 1),
                (K::KernelCh, 2, 3),
                (K::GroupApi, 1, 5),
                (K::CollApi, 1, 5),
                (K::KernelLaunch, 1, 5),
            ],
        );
        once_each(&found, &[]);
    }
}

#[test]
fn send_and_receive_of_a_pair_share_the_kernel_and_not_the_parent() {
    for version in fake_nccl::VERSIONS {
        let found = run(
            version,
            "sendrecv",
            &[
                (K::Group, 1, 1),
                (K::P2p, 2, 1),
                (K::ProxyOp, 4, 1),
                (K::ProxyStep, 16, 1),
                (K::KernelCh, 4, 3),
                (K::GroupApi, 1, 5),
                (K::P2pApi, 2, 5),
                (K::KernelLaunch, 1, 5),
            ],
        );
        once_each(&found, &[]);
        for op in found.all(K::ProxyOp) {
            let Detail::ProxyOp(fields) = op.detail else { unreachable!() };
            let Detail::P2p(p2p) = found.events[&op.parent].detail else { unreachable!() };
            assert_eq!((p2p.peer, p2p.count), (1, 1 << 20), "v{version}");
            let channels = if version >= 5 { 2 } else { 0 };
            assert_eq!(p2p.channels, channels, "v{version}: unknown below version 5");
            let other = found.all(K::ProxyOp).into_iter().find(|o| {
                let Detail::ProxyOp(f) = o.detail else { unreachable!() };
                f.is_send != fields.is_send && o.parent == op.parent
            });
            assert_eq!(other, None, "a send's work is not the receive's");
        }
        let mut times: BTreeMap<u64, Vec<Handle>> = BTreeMap::new();
        for kernel in found.all(K::KernelCh) {
            let Detail::KernelCh(KernelCh { ptimer, .. }) = kernel.detail else { unreachable!() };
            times.entry(ptimer).or_default().push(kernel.parent);
        }
        for (ptimer, parents) in times.iter().filter(|_| version >= 4) {
            assert!(*ptimer != 0 && parents.len() == 2 && parents[0] != parents[1]);
        }
    }
}

#[test]
fn kernel_channels_alone_are_an_operation() {
    for version in 3..=7 {
        let found = run(
            version,
            "intra",
            &[
                (K::Group, 1, 3),
                (K::Coll, 1, 3),
                (K::KernelCh, 2, 3),
                (K::GroupApi, 1, 5),
                (K::CollApi, 1, 5),
            ],
        );
        once_each(&found, &[]);
        let ends = found.states.iter().filter(|s| s.1 == State::KERNEL_CH_STOP && s.3 != 0).count();
        assert_eq!(ends, if version >= 4 { 2 * OPS } else { 0 }, "v{version}");
    }
}

#[test]
fn a_group_of_two_communicators_keeps_each_ones_plans() {
    for version in fake_nccl::VERSIONS {
        let found = run(
            version,
            "grouped",
            &[
                (K::Group, 3, 1),
                (K::Coll, 4, 1),
                (K::ProxyOp, 16, 1),
                (K::ProxyStep, 64, 1),
                (K::KernelCh, 8, 3),
                (K::GroupApi, 1, 5),
                (K::CollApi, 4, 5),
                (K::KernelLaunch, 3, 5),
            ],
        );
        once_each(&found, &[]);
        for coll in found.all(K::Coll) {
            let Detail::Coll(fields) = coll.detail else { unreachable!() };
            let group = if version >= 5 { fields.group } else { coll.parent };
            assert_eq!(found.events[&group].comm, coll.comm, "v{version}");
            if version >= 5 {
                let api = &found.events[&coll.parent];
                assert_eq!((api.handle.kind(), api.comm), (K::CollApi, coll.comm));
                assert_eq!(found.events[&api.parent].comm, 0, "the group is the first one's");
            }
        }
        let second = found.all(K::Coll).iter().filter(|c| c.comm == 1).count();
        assert_eq!(second, OPS, "v{version}");
    }
}

#[test]
fn a_nested_group_is_two_of_which_one_ends_early() {
    for version in 5..=7 {
        let found = run(
            version,
            "nested",
            &[
                (K::GroupApi, 2, 5),
                (K::CollApi, 3, 5),
                (K::KernelLaunch, 1, 5),
                (K::Group, 1, 5),
                (K::Coll, 3, 5),
                (K::ProxyOp, 12, 5),
                (K::ProxyStep, 48, 5),
                (K::KernelCh, 6, 5),
            ],
        );
        once_each(&found, &[]);
    }
}

#[test]
fn replays_of_a_graph_keep_the_parent_of_the_capture() {
    for version in fake_nccl::VERSIONS {
        let (_, found) = exact(version, "graph", &["--ops", &OPS.to_string()], Folded::default());
        once_each(&found, &[]);
        let colls = found.all(K::Coll);
        assert_eq!(colls.len(), OPS);
        if version >= 5 {
            let captured = found.all(K::CollApi);
            assert_eq!(captured.len(), 1);
            assert!(colls.iter().all(|c| c.parent == captured[0].handle), "v{version}");
            let Detail::CollApi(api) = captured[0].detail else { unreachable!() };
            assert!(api.graph, "v{version}");
        }
    }
}

#[test]
fn work_of_another_process_has_no_parent_here() {
    for version in fake_nccl::VERSIONS {
        let (_, found) = exact(version, "pxn", &["--ops", &OPS.to_string()], Folded::default());
        once_each(&found, &[]);
        let (mut foreign, mut told, mut own) = (0, 0, 0);
        for op in found.all(K::ProxyOp) {
            let Detail::ProxyOp(fields) = op.detail else { unreachable!() };
            foreign += usize::from(fields.foreign && fields.rank == 1);
            // A context of this plugin identifies which of that process's communicators it is.
            told += usize::from(fields.foreign && op.comm == 0);
            assert!(!fields.foreign || op.comm == 0 || op.comm == NO_COMM, "v{version}");
            own += usize::from(!fields.foreign && op.comm == 0 && fields.rank == 0);
        }
        assert_eq!((foreign, told, own), (3 * OPS, OPS, 4), "v{version}");
        let is_foreign =
            |op| matches!(&found.events[op].detail, Detail::ProxyOp(fields) if fields.foreign);
        let steps = found.steps.iter().filter(|(op, _)| is_foreign(op)).count();
        assert_eq!((steps, found.steps.len()), (12 * OPS, 12 * OPS + 16), "v{version}");
    }
}

#[test]
fn a_copy_engine_collective_is_a_tree_by_parent() {
    for version in 6..=fake_nccl::COUNT {
        let found = run(
            version,
            "ce",
            &[
                (K::GroupApi, 1, 6),
                (K::CollApi, 1, 6),
                (K::CeColl, 1, 6),
                (K::CeSync, 3, 6),
                (K::CeBatch, 1, 6),
            ],
        );
        once_each(&found, &[]);
        for (seq, coll) in (0..).zip(found.all(K::CeColl)) {
            let Detail::CeColl(d) = coll.detail else { unreachable!() };
            assert_eq!((d.seq, d.count, d.batch_size, d.batches), (seq, 1 << 20, 4, 2));
            assert!(d.intra_batch_sync && d.stream == 0x1000);
            assert_eq!(d.user_tag, if version >= 7 { 9 } else { 0 });
        }
        for child in found.all(K::CeSync).into_iter().chain(found.all(K::CeBatch)) {
            assert_eq!(child.parent.kind(), K::CeColl);
            match child.detail {
                Detail::CeSync(CeSync { ranks, .. }) => assert_eq!(ranks, 2),
                Detail::CeBatch(CeBatch { ops, bytes, intra_sync }) => {
                    assert_eq!((ops, bytes, intra_sync), (4, 4 << 20, true));
                }
                _ => unreachable!(),
            }
        }
        let closing = |s: &&_| matches!(s, &&Detail::CeSync(CeSync { complete: true, .. }));
        let details: Vec<_> = found.all(K::CeSync).iter().map(|s| s.detail).collect();
        assert_eq!(details.iter().filter(closing).count(), OPS);
    }
}

#[test]
fn phases_belong_to_their_kernel_channel() {
    let (played, found) = exact(7, "phases", &["--ops", "5"], Folded::default());
    once_each(&found, &[]);
    let phases = found.all(K::KernelPhase);
    assert_eq!(phases.len(), 6 * OPS);
    for start in phases {
        let Detail::KernelPhase(KernelPhase { channel, phase, name, ptimer }) = start.detail else {
            unreachable!()
        };
        let Detail::KernelCh(KernelCh { channel: kernel, .. }) = found.events[&start.parent].detail
        else {
            panic!("{start:?} hangs on something else")
        };
        assert_eq!((channel, ptimer), (kernel, 1000 + u64::from(phase) * 20));
        let names = ["initial_sync", "compute", "final_sync"];
        assert_eq!(played.recording.string(name), Some(names[usize::from(phase)]));
        let end = found.states.iter().find(|s| s.0 == start.handle).unwrap();
        assert_eq!((end.1, end.3), (State::KERNEL_PHASE_STOP, ptimer + 10));
    }
}

#[test]
fn network_events_say_what_the_plugin_attached_and_survive_double_stops() {
    for version in 3..=7 {
        let (_, found) = exact(version, "net", &["--ops", "5"], Folded::default());
        once_each(&found, &[K::NetPlugin]);
        let (mut ib, mut socket, mut other) = (0, 0, 0);
        for start in found.all(K::NetPlugin) {
            let Detail::NetPlugin(d) = start.detail else { unreachable!() };
            let stops = found.stops[&start.handle];
            match d.id {
                0x1_0001 => {
                    ib += 1;
                    assert!(matches!(d.qp, 101 | 102) && stops == 2, "{d:?}");
                    assert_eq!((d.device, d.op, d.bytes, d.wr_id), (3, 1, 4096, 0x77));
                }
                0x2_0001 => {
                    socket += 1;
                    let expected = if d.device == 42 { (1, 65536) } else { (0, 1) };
                    assert_eq!((d.op, d.bytes, stops), (expected.0, expected.1, 1), "{d:?}");
                }
                id => {
                    other += 1;
                    assert_eq!((id, d.bytes), (0x9_0001, 0), "data of others is left alone");
                }
            }
            let step = start.parent.kind() == K::ProxyStep || start.parent.is_null();
            assert!(step, "{start:?}");
        }
        assert_eq!((ib, socket, other), (2 * OPS, 2 * OPS, OPS), "v{version}");
    }
}

#[test]
fn the_progress_threads_own_events_are_recorded_when_they_come() {
    for version in fake_nccl::VERSIONS {
        let found = run(version, "ctrl", &[(K::ProxyCtrl, 6, 1)]);
        once_each(&found, &[]);
        for &(_, state, small, arg) in &found.states {
            let appended = if state == State(18) { 3 } else { 0 };
            assert_eq!((small, arg), (appended, 0), "v{version} {state}");
        }
    }
}

#[test]
fn children_may_start_after_their_group_stopped() {
    for version in 5..=7 {
        let found = run(
            version,
            "nonblocking",
            &[
                (K::GroupApi, 1, 5),
                (K::CollApi, 1, 5),
                (K::KernelLaunch, 1, 5),
                (K::Group, 1, 5),
                (K::Coll, 1, 5),
                (K::ProxyOp, 4, 5),
                (K::ProxyStep, 16, 5),
                (K::KernelCh, 2, 5),
            ],
        );
        once_each(&found, &[]);
    }
}
