// SPDX-License-Identifier: Apache-2.0
//! Handles, contexts, types and states that NCCL should not pass, but passes.

use super::setup::{CHANNELS, STEPS, ScriptSetup};
use crate::Player;
use crate::descr::Descr;
use crate::play::{Handle, bit};
use crate::plugin::Args;
use core::ffi::CStr;
use std::ffi::CString;
use std::time::Duration;

/// NULL for every pointer.
pub(super) fn nulls(setup: &ScriptSetup<'_>) {
    let (plugin, player) = (setup.plugin, setup.player());
    plugin.init_with_nulls();
    let mut descr = Descr::new(plugin.version(), bit::GROUP, 0, 0);
    plugin.start_with_nulls(setup.context, &mut descr);
    plugin.start_with_nulls(0, &mut descr);
    plugin.stop(0);
    for state in -1..100 {
        plugin.record(0, state, None);
        plugin.record(0, state, Some(&mut Args::word(7)));
    }
    let orphans = [Player::new(plugin, 0, 0).start_group(), player.start_group()];
    let op = player.start_op(0, 0, true, std::process::id());
    let step = player.start_step(op, 0);
    for handle in orphans.into_iter().chain([op, step]) {
        for state in 0..32 {
            plugin.record(handle, state, None);
        }
    }
    for handle in [step, op].into_iter().chain(orphans) {
        plugin.stop(handle);
    }
    plugin.finalize(0);
}

/// Operations whose strings are all NULL.
pub(super) fn nameless(setup: &ScriptSetup<'_>) {
    named(setup, None);
}

/// Operations whose strings are too long for any buffer, and not UTF-8.
pub(super) fn verbose(setup: &ScriptSetup<'_>) {
    let text = CString::new([0xff; 5000]).expect("there is no NUL in it");
    // NCCL's strings are literals.
    named(setup, Some(Box::leak(text.into_boxed_c_str())));
}

/// Every kind of event that has a string.
fn named(setup: &ScriptSetup<'_>, text: Option<&'static CStr>) {
    let mut player = setup.player().saying(text);
    for _ in 0..setup.ops {
        let enqueued = player.enqueue(1, CHANNELS);
        player.proxy(enqueued, CHANNELS, STEPS);
        setup.plugin.stop(player.start_p2p(0, 0, true, 1));
        if player.version() >= 5 {
            let _stopped = player.p2p_api(0, true, 1);
        }
        if player.version() >= 6 {
            setup.plugin.stop(player.start_ce_coll(0, 0, 1));
        }
        if player.version() >= 7 {
            player.kernel_phase(0, 0, 0, 1);
        }
    }
}

/// One event of each kind of the version, alive; the slots' kinds come first.
fn one_of_each(player: &mut Player<'_>) -> Vec<Handle> {
    let group = player.start_group();
    let coll = player.start_coll(group, group, 1, CHANNELS);
    let op = player.start_op(coll, 0, true, std::process::id());
    let step = player.start_step(op, 0);
    let p2p = player.start_p2p(group, group, true, 1);
    let mut all = vec![step, op, coll, p2p, group];
    if player.version() >= 3 {
        all.push(player.start_kernel(coll, 0, 5));
        all.push(player.start_ib(step, 1, 1));
    }
    all.push(player.start_raw(bit::PROXY_CTRL, 0));
    let later = match player.version() {
        ..5 => [].as_slice(),
        5 => &bit::LATER[..4],
        6 => &bit::LATER[..7],
        _ => &bit::LATER,
    };
    all.extend(later.iter().map(|&bit| player.start_raw(bit, 0)));
    all
}

/// All events stopped twice, and states recorded after that.
pub(super) fn twice(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    for _ in 0..setup.ops {
        let all = one_of_each(&mut player);
        for _ in 0..2 {
            for &handle in &all {
                setup.plugin.stop(handle);
            }
        }
        for &handle in &all {
            setup.plugin.record(handle, 22, Some(&mut Args::word(9)));
        }
    }
}

/// The last communicator is finalized, and the proxy continues: states and stops of open events,
/// and new events with the finalized context. Then the next communicator is initialised.
pub(super) fn late(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let all = one_of_each(&mut player);
    setup.plugin.finalize(setup.context);
    setup.apart(|| {
        for &handle in &all[2..] {
            setup.plugin.record(handle, 19, None);
            setup.plugin.stop(handle);
        }
    });
    for &handle in &all[..2] {
        setup.plugin.stop(handle);
    }
    for _ in 0..setup.ops {
        let enqueued = player.enqueue(1, CHANNELS);
        player.proxy(enqueued, CHANNELS, STEPS);
        player.proxy_ctrl(13, 0);
    }
    let again = setup.plugin.init(0xc0ffee, 2, 0);
    Player::new(setup.plugin, again, 0).enqueue(1, CHANNELS);
    setup.plugin.finalize(again);
}

/// The mask belongs to NCCL: only `init` may write it. It is write-protected as soon as that
/// returns, while communicators exist, after the last `finalize`, and until the process exits.
///
/// # Panics
/// If `init` does not write the mask.
pub(super) fn sealed(setup: &ScriptSetup<'_>) {
    let mask = setup.plugin.mask();
    assert_ne!(mask.get(), 0, "the first communicator asks");
    mask.seal(true);
    let mut player = setup.player();
    let mut play = || {
        for _ in 0..setup.ops {
            let enqueued = player.enqueue(1, CHANNELS);
            player.proxy(enqueued, CHANNELS, STEPS);
        }
    };
    play();
    setup.plugin.finalize(setup.context);
    play();
    // Longer than any sleep of the plugin's own threads.
    std::thread::sleep(Duration::from_millis(400));
    mask.seal(false);
    mask.set(0);
    let again = setup.plugin.init(0xc0ffee, 2, 0);
    assert_ne!(mask.get(), 0, "the next communicator asks again");
    mask.seal(true);
    setup.plugin.finalize(again);
}

/// Types and states of a later release, or of none.
pub(super) fn unknown(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    for _ in 0..setup.ops {
        for bit in [0, 1 << 16, 1 << 40, 3, 1 << 63] {
            let handle = player.start_raw(bit, 0);
            setup.plugin.record(handle, 99, None);
            setup.plugin.stop(handle);
        }
        let all = one_of_each(&mut player);
        for &handle in &all {
            for state in [-1, 32, 99, 255, 256, i32::MIN, i32::MAX] {
                setup.plugin.record(handle, state, Some(&mut Args::word(1)));
            }
            setup.plugin.stop(handle);
        }
    }
}

/// Handles and contexts that the plugin never returned: pointers, all ones, its handles with a bit
/// flipped. Bits 40 to 47 (the plugin's lane) are not flipped: a step's state is found by slot and
/// generation alone, which saves a cache line, and NCCL never passes a handle with a wrong lane;
/// the chaos script flips these bits too.
pub(super) fn wild(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let live = one_of_each(&mut player);
    for _ in 0..setup.ops {
        for handle in
            live.iter().flat_map(|&h| (0..40).chain(48..64).map(move |shift| h ^ 1 << shift))
        {
            if live.contains(&handle) {
                continue;
            }
            setup.plugin.record(handle, 20, Some(&mut Args::word(5)));
            setup.plugin.stop(handle);
            let step = player.start_step(handle, 1);
            setup.plugin.stop(step);
        }
        for handle in [1, 8, u64::MAX, 0x7f00_dead_beef, 0xdead_beef_dead_beef] {
            setup.plugin.record(handle, 9, None);
            setup.plugin.stop(handle);
            let stray = Player::new(setup.plugin, handle, 0);
            let group = stray.start_group();
            setup.plugin.stop(group);
            setup.plugin.finalize(0);
        }
    }
    for handle in live {
        setup.plugin.stop(handle);
    }
}

/// A receive step is started again at every poll until the network takes it; NCCL forgets the
/// previous handle.
pub(super) fn restarts(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let coll = player.enqueue(1, CHANNELS).coll;
    let op = player.start_op(coll, 0, false, std::process::id());
    for step in 0..8 {
        for _ in 0..setup.ops {
            let _forgotten = player.start_step(op, step);
        }
        player.step(op, step, false);
    }
    setup.plugin.stop(op);
}

/// The peer is not ready for long: SendPeerWait at every poll.
pub(super) fn peer_wait(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let coll = player.enqueue(1, CHANNELS).coll;
    let op = player.start_op(coll, 0, true, std::process::id());
    let step = player.start_step(op, 0);
    setup.plugin.record(step, 8, Some(&mut Args::word(0)));
    for _ in 0..setup.ops {
        setup.plugin.record(step, 20, Some(&mut Args::word(0)));
    }
    setup.plugin.record(step, 9, Some(&mut Args::word(4096)));
    setup.plugin.stop(step);
    setup.plugin.stop(op);
}

/// Receive steps that are never stopped (2.24.3 to 2.26), `ops` of them in one ProxyOp.
pub(super) fn unstopped(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let coll = player.enqueue(1, CHANNELS).coll;
    let op = player.start_op(coll, 0, false, std::process::id());
    for step in 0..i32::try_from(setup.ops).expect("a sane number") {
        let handle = player.start_step(op, step);
        setup.plugin.record(handle, 10, None);
    }
    setup.plugin.stop(op);
}

/// The mask is set to 0. In NCCL 2.28 to 2.32.3, every call stops the last CollApi again and uses
/// it as the parent of its tasks.
///
/// # Panics
/// If the plugin writes the mask on its own.
pub(super) fn toggle(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let group_api = player.start_group_api(false, 1);
    let api = player.coll_api(group_api, 1, false);
    setup.plugin.stop(group_api);
    let asked = setup.plugin.mask().get();
    setup.plugin.mask().set(0);
    for _ in 0..setup.ops {
        setup.plugin.stop(api);
    }
    assert_eq!(setup.plugin.mask().get(), 0, "the plugin changed the mask");
    setup.plugin.mask().set(asked.cast_signed());
    // The mask is set again: tasks may still have the old parent.
    let group = player.start_group();
    let coll = player.start_coll(api, group, 1, CHANNELS);
    setup.plugin.stop(coll);
    setup.plugin.stop(group);
    player.proxy(crate::play::Enqueued { coll }, CHANNELS, STEPS);
}

/// Implausible GPU times: missing, backwards, the same twice, and a second stop.
pub(super) fn ptimers(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let coll = player.enqueue(1, CHANNELS).coll;
    for (start, stop) in [(0, 0), (0, 500), (500, 0), (700, 600), (800, 800), (u64::MAX, 1)] {
        let kernel = player.start_kernel(coll, 0, start);
        player.stop_kernel(kernel, stop);
    }
}
