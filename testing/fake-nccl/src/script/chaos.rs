// SPDX-License-Identifier: Apache-2.0
//! Callbacks with parents of another communicator, and callbacks in random order.

use super::setup::{CHANNELS, ScriptSetup};
use crate::Player;
use crate::play::bit;
use crate::plugin::Args;
use core::sync::atomic::{AtomicU64, Ordering};

/// Handles that the threads of [`chaos`] share.
const POOL: usize = 64;

/// Events whose parents belong to another communicator: alive, stopped, and of a finalized one.
pub(super) fn strangers(setup: &ScriptSetup<'_>) {
    let mut own = setup.player();
    for _ in 0..setup.ops {
        let second = setup.plugin.init(0xbeef, 2, 1);
        let mut other = Player::new(setup.plugin, second, 1);
        let group = own.start_group();
        let coll = own.start_coll(group, group, 1, CHANNELS);
        let op = own.start_op(coll, 0, true, std::process::id());
        adopt(setup, &mut other, [group, coll, op]);
        for handle in [op, coll, group] {
            setup.plugin.stop(handle);
        }
        adopt(setup, &mut other, [group, coll, 0]);
        let last = [other.start_group(), other.start_coll(0, 0, 1, CHANNELS), 0];
        setup.plugin.finalize(second);
        adopt(setup, &mut own, last);
        last[..2].iter().for_each(|&handle| setup.plugin.stop(handle));
    }
}

/// One event of each kind that has a parent, under another's Group, Coll and ProxyOp (0: none).
fn adopt(setup: &ScriptSetup<'_>, player: &mut Player<'_>, [group, coll, op]: [u64; 3]) {
    let own = player.start_op(coll, 1, false, std::process::id());
    let step = player.start_step(if op == 0 { own } else { op }, 5);
    let mut all = vec![
        player.start_coll(group, group, 1, CHANNELS),
        player.start_p2p(coll, group, true, 1),
        step,
        own,
    ];
    if player.version() >= 3 {
        all.push(player.start_kernel(coll, 0, 1));
        all.push(player.start_ib(coll, 1, 1));
    }
    if player.version() >= 5 {
        all.push(player.start_raw(bit::COLL_API, group));
        all.push(player.start_raw(bit::KERNEL_LAUNCH, coll));
    }
    all.into_iter().for_each(|handle| setup.plugin.stop(handle));
}

/// `threads` threads make `ops` callbacks each in random order: any event, any state, handles of a
/// shared pool (live, stopped, of another thread), with a bit flipped, and invented; contexts of
/// two communicators, of a finalized one, of another process, and null.
pub(super) fn chaos(setup: &ScriptSetup<'_>) {
    let second = setup.plugin.init(0xbeef, 2, 1);
    let ended = setup.plugin.init(0xdead, 2, 1);
    setup.plugin.finalize(ended);
    let contexts = [setup.context, second, ended, 0, 0x7000_dead_0000, setup.context ^ 1 << 33];
    let pool = [const { AtomicU64::new(0) }; POOL];
    setup.crowd(|thread| {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ thread as u64);
        for _ in 0..setup.ops {
            let context = contexts[dice.below(contexts.len())];
            act(&Player::new(setup.plugin, context, 0), setup, &mut dice, &pool);
        }
    });
    setup.plugin.finalize(second);
}

fn act(player: &Player<'_>, setup: &ScriptSetup<'_>, dice: &mut Dice, pool: &[AtomicU64; POOL]) {
    let any = &pool[dice.below(POOL)];
    let handle = match dice.below(8) {
        0 => 0,
        1 => dice.next(),
        2 => any.load(Ordering::Relaxed) ^ 1 << dice.below(64),
        _ => any.load(Ordering::Relaxed),
    };
    let pid = if dice.below(4) == 0 { 1 } else { std::process::id() };
    match dice.below(12) {
        0 | 1 => any.store(player.start_op(handle, 0, dice.below(2) == 0, pid), Ordering::Relaxed),
        2..=4 => {
            let step = i32::try_from(dice.below(10)).unwrap_or(-1);
            any.store(player.start_step(handle, step), Ordering::Relaxed);
        }
        5 | 6 => {
            // Any type except those two, known or not; from version 5 on it may exceed 32 bits.
            let bit = 1 << dice.below(40);
            if bit & (bit::PROXY_OP | bit::PROXY_STEP) == 0 {
                any.store(player.start_raw(bit, handle), Ordering::Relaxed);
            }
        }
        7 | 8 => setup.plugin.stop(handle),
        _ => {
            let state = i32::try_from(dice.below(40)).unwrap_or(0) - 4;
            let args = &mut Args::word(dice.next());
            setup.plugin.record(handle, state, (dice.below(2) == 0).then_some(args));
        }
    }
}

/// Pseudo-random numbers, the same in each run (xorshift).
struct Dice(u64);

impl Dice {
    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One of `0..sides`.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a usize fits one")]
    const fn below(&mut self, sides: usize) -> usize {
        (self.next() % sides as u64) as usize
    }
}
