// SPDX-License-Identifier: Apache-2.0
//! Operations in the order of NCCL 2.30, and unusual orders.

use super::setup::{CHANNELS, STEPS, ScriptSetup};
use crate::Player;
use crate::play::{Enqueued, Handle, now_ns};
use std::sync::mpsc;

/// Elements of every operation.
const COUNT: u64 = 1 << 20;

/// One thread enqueues AllReduces, another is the proxy.
pub(super) fn allreduce(setup: &ScriptSetup<'_>) {
    let (send, receive) = mpsc::channel::<Enqueued>();
    std::thread::scope(|scope| {
        let proxy = scope.spawn(move || {
            let player = setup.player();
            for enqueued in receive {
                player.proxy(enqueued, CHANNELS, STEPS);
            }
        });
        let mut player = setup.player();
        for _ in 0..setup.ops {
            send.send(player.enqueue(COUNT, CHANNELS)).expect("the proxy lives");
        }
        drop(send);
        proxy.join().expect("the proxy ends in order");
    });
}

/// `ncclGroupStart; ncclSend; ncclRecv; ncclGroupEnd`: the two share a work slot of the kernel, so
/// that their KernelCh have the same times, and their ProxyOps stop together.
pub(super) fn sendrecv(setup: &ScriptSetup<'_>) {
    for _ in 0..setup.ops {
        let player = setup.player();
        let (version, mut api) = (player.version(), [0, 0]);
        let mut group_api = 0;
        if version >= 5 {
            group_api = player.start_group_api(false, 2);
            api = [true, false].map(|send| player.p2p_api(group_api, send, COUNT));
            player.end_group_api(group_api);
            player.kernel_launch(group_api);
        }
        let group = player.start_group();
        let p2p = [(api[0], true), (api[1], false)].map(|(parent, send)| {
            let parent = if version >= 5 { parent } else { group };
            player.start_p2p(parent, group, send, COUNT)
        });
        for handle in p2p {
            setup.plugin.stop(handle);
        }
        setup.plugin.stop(group);
        setup.plugin.stop(group_api);
        setup.apart(|| sendrecv_proxy(&setup.player(), p2p, setup));
    }
}

fn sendrecv_proxy(player: &Player<'_>, p2p: [Handle; 2], setup: &ScriptSetup<'_>) {
    let pid = std::process::id();
    let mut ops = Vec::new();
    for channel in 0..CHANNELS {
        // NCCL saves receives before sends.
        ops.push((player.start_op(p2p[1], channel, false, pid), false));
        ops.push((player.start_op(p2p[0], channel, true, pid), true));
        if player.version() >= 3 {
            let started = now_ns();
            let kernels = p2p.map(|parent| player.start_kernel(parent, channel, started));
            for kernel in kernels {
                player.stop_kernel(kernel, started + 1000);
            }
        }
    }
    for &(op, is_send) in &ops {
        player.progress(op);
        for step in 0..STEPS {
            player.step(op, step, is_send);
        }
    }
    for (op, _) in ops {
        setup.plugin.stop(op);
    }
}

/// One node, KernelCh only: no ProxyOp and no KernelLaunch.
pub(super) fn intra(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    for _ in 0..setup.ops {
        let (mut group_api, mut parent) = (0, 0);
        if player.version() >= 5 {
            group_api = player.start_group_api(false, 1);
            parent = player.coll_api(group_api, COUNT, false);
            player.end_group_api(group_api);
        }
        let group = player.start_group();
        let parent = if parent == 0 { group } else { parent };
        let coll = player.start_coll(parent, group, COUNT, CHANNELS);
        setup.plugin.stop(coll);
        setup.plugin.stop(group);
        setup.plugin.stop(group_api);
        setup.apart(|| {
            let player = setup.player();
            for channel in 0..CHANNELS {
                let kernel = player.start_kernel(coll, channel, now_ns());
                player.stop_kernel(kernel, now_ns());
            }
        });
    }
}

/// Three AllReduce on one communicator and one on another in one explicit group, in two plans of
/// the first and one of the second: one GroupApi, in the context of the first.
pub(super) fn grouped(setup: &ScriptSetup<'_>) {
    let second = setup.plugin.init(0xbeef, 2, 0);
    for _ in 0..setup.ops {
        let mut players = [setup.player(), Player::new(setup.plugin, second, 0)];
        let mut group_api = 0;
        let mut api = [0; 4];
        if players[0].version() >= 5 {
            group_api = players[0].start_group_api(false, 2);
            api = [0, 0, 0, 1].map(|comm| players[comm].coll_api(group_api, COUNT, false));
            players[0].end_group_api(group_api);
        }
        for (comm, plan) in [(0, [api[2], api[0]].as_slice()), (0, &api[1..2]), (1, &api[3..])] {
            launch(setup, &mut players[comm], group_api, plan);
        }
        setup.plugin.stop(group_api);
    }
    setup.plugin.finalize(second);
}

/// Launches a plan: all starts, the proxy's work, all stops.
fn launch(setup: &ScriptSetup<'_>, player: &mut Player<'_>, group_api: Handle, parents: &[Handle]) {
    let has_api = player.version() >= 5;
    if has_api {
        player.kernel_launch(group_api);
    }
    let group = player.start_group();
    let colls: Vec<Handle> = parents
        .iter()
        .map(|&api| player.start_coll(if has_api { api } else { group }, group, COUNT, CHANNELS))
        .collect();
    let player = &*player;
    setup.apart(|| {
        for &coll in &colls {
            player.proxy(Enqueued { coll }, CHANNELS, STEPS);
        }
    });
    for coll in colls {
        setup.plugin.stop(coll);
    }
    setup.plugin.stop(group);
}

/// `GroupStart; AllReduce; GroupStart; AllReduce; GroupEnd; AllReduce; GroupEnd`: the inner end
/// stops the GroupApi before any launch, and the third call starts another.
pub(super) fn nested(setup: &ScriptSetup<'_>) {
    for _ in 0..setup.ops {
        let mut player = setup.player();
        let first = player.start_group_api(false, 2);
        let mut api =
            vec![player.coll_api(first, COUNT, false), player.coll_api(first, COUNT, false)];
        player.end_group_api(first);
        setup.plugin.stop(first);
        let second = player.start_group_api(false, 2);
        api.push(player.coll_api(second, COUNT, false));
        player.end_group_api(second);
        launch(setup, &mut player, first, &api);
        setup.plugin.stop(second);
    }
}

/// Captured once, replayed `ops` times from the host callback's thread: the parent is always the
/// CollApi of the capture, and the sequence number stays the same.
pub(super) fn graph(setup: &ScriptSetup<'_>) {
    let player = setup.player();
    let mut api = 0;
    if player.version() >= 5 {
        let group_api = player.start_group_api(true, 1);
        api = player.coll_api(group_api, COUNT, true);
        player.end_group_api(group_api);
        player.kernel_launch(group_api);
        setup.plugin.stop(group_api);
    }
    for _ in 0..setup.ops {
        setup.apart(|| {
            let player = setup.player();
            let group = player.start_group();
            let parent = if api == 0 { group } else { api };
            let coll = player.start_coll_again(parent, group, COUNT, CHANNELS);
            setup.apart(|| setup.player().proxy(Enqueued { coll }, CHANNELS, STEPS));
            setup.plugin.stop(coll);
            setup.plugin.stop(group);
        });
    }
}

/// Work of another process on this process's proxy: context and parent are those of the other
/// process, as the pid shows. Then the same with values equal to this process's own, which only the
/// pid distinguishes.
pub(super) fn pxn(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let own = player.enqueue(COUNT, CHANNELS);
    let other = std::process::id() ^ 1;
    let unmapped = 0x7000_dead_0000;
    for _ in 0..setup.ops {
        let strange = [
            (unmapped, unmapped + 64, other),
            (setup.context, own.coll, other),
            // In different container namespaces the pids may be equal: then the context decides.
            (unmapped, unmapped + 64, std::process::id()),
        ];
        for (context, parent, pid) in strange {
            setup.apart(|| {
                let player = Player::new(setup.plugin, context, 1);
                let op = player.start_op(parent, 0, true, pid);
                player.progress(op);
                for step in 0..STEPS {
                    player.step(op, step, true);
                }
                setup.plugin.stop(op);
            });
        }
    }
    setup.apart(|| player.proxy(own, CHANNELS, STEPS));
}

/// A copy-engine collective: no KernelLaunch, Group or Coll; every child's parent is the CeColl.
pub(super) fn ce(setup: &ScriptSetup<'_>) {
    let player = setup.player();
    for seq in 0..setup.ops {
        let group_api = player.start_group_api(false, 1);
        let api = player.coll_api(group_api, COUNT, false);
        player.end_group_api(group_api);
        let coll = player.start_ce_coll(api, seq as u64, COUNT);
        player.ce_sync(coll, false);
        let batch = player.start_ce_batch(coll, 4, COUNT * 4);
        player.ce_sync(coll, false);
        setup.plugin.stop(batch);
        player.ce_sync(coll, true);
        setup.plugin.stop(coll);
        setup.plugin.stop(group_api);
    }
}

/// A symmetric kernel (2.31 on): three phases inside each KernelCh, just before its end.
pub(super) fn phases(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    for _ in 0..setup.ops {
        let enqueued = player.enqueue(COUNT, CHANNELS);
        setup.apart(|| {
            let player = setup.player();
            for channel in 0..CHANNELS {
                let kernel = player.start_kernel(enqueued.coll, channel, 1000);
                for phase in 0..3 {
                    player.kernel_phase(kernel, channel, phase, 1000 + u64::from(phase) * 20);
                }
                player.stop_kernel(kernel, 1060);
            }
        });
    }
}

/// Events of InfiniBand queue pairs, each stopped twice, and of sockets, from a helper thread.
pub(super) fn net(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    for _ in 0..setup.ops {
        let coll = player.enqueue(COUNT, CHANNELS).coll;
        let op = player.start_op(coll, 0, true, std::process::id());
        let step = player.start_step(op, 0);
        let pairs = [player.start_ib(step, 101, 4096), player.start_ib(step, 102, 4096)];
        setup.apart(|| {
            let helper = setup.player();
            let socket = helper.start_socket(step, 42, true, 65536);
            let orphan = helper.start_socket(0, 43, false, 1);
            let other = helper.start_net(step, 0x9_0001, 8);
            for handle in [socket, orphan, other] {
                if helper.version() >= 4 {
                    setup.plugin.record(handle, 21, Some(&mut crate::plugin::Args::word(8)));
                }
                setup.plugin.stop(handle);
            }
        });
        for handle in pairs.iter().chain(&pairs) {
            setup.plugin.stop(*handle);
        }
        setup.plugin.stop(step);
        setup.plugin.stop(op);
    }
}

/// Events of the progress thread's own activity.
pub(super) fn ctrl(setup: &ScriptSetup<'_>) {
    setup.apart(|| {
        let player = setup.player();
        for _ in 0..setup.ops {
            for state in 13..=18 {
                player.proxy_ctrl(state, 3);
            }
        }
    });
}

/// A nonblocking communicator: the launching thread starts everything after the GroupApi was
/// stopped.
pub(super) fn nonblocking(setup: &ScriptSetup<'_>) {
    for _ in 0..setup.ops {
        let player = setup.player();
        let group_api = player.start_group_api(false, 1);
        let api = player.coll_api(group_api, COUNT, false);
        player.end_group_api(group_api);
        setup.plugin.stop(group_api);
        setup.apart(|| launch(setup, &mut setup.player(), group_api, &[api]));
    }
}
