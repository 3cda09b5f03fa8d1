// SPDX-License-Identifier: Apache-2.0
//! Many of something: channels, unmatched events, communicators, threads.

use super::{CHANNELS, STEPS, Stage};
use crate::Player;
use crate::play::bit;
use std::time::Duration;

/// `ops` channels (256 at most), all of them open at once.
pub(super) fn channels(stage: &Stage<'_>) {
    let mut player = stage.player();
    let all = u8::try_from(stage.ops - 1).expect("at most 256 channels");
    let coll = player.enqueue(1, all).coll;
    stage.apart(|| {
        let player = stage.player();
        let pid = std::process::id();
        let mut ops = Vec::new();
        for channel in 0..=all {
            for is_send in [false, true] {
                ops.push((player.start_op(coll, channel, is_send, pid), is_send));
            }
        }
        for &(op, is_send) in &ops {
            player.step(op, 0, is_send);
        }
        for (op, _) in ops {
            stage.plugin.stop(op);
        }
    });
}

/// `ops` events that are never stopped, of every kind there is; prints how many KiB the process
/// grew.
#[expect(clippy::print_stdout, reason = "the process's output")]
pub(super) fn unmatched(stage: &Stage<'_>) {
    let mut player = stage.player();
    // What is there anyway is touched first.
    let enqueued = player.enqueue(1, CHANNELS);
    player.proxy(enqueued, CHANNELS, STEPS);
    let before = resident_kib();
    for n in 0..stage.ops {
        let _forgotten = match n % 5 {
            0 => player.start_group(),
            1 => player.start_coll(0, 0, 1, CHANNELS),
            2 => player.start_op(enqueued.coll, 0, true, std::process::id()),
            3 => player.start_p2p(0, 0, true, 1),
            _ => player.start_raw(bit::PROXY_CTRL, 0),
        };
    }
    println!("grew {}", resident_kib().saturating_sub(before));
}

/// Cycles that bring what stays: lanes, slots, the allocator's pools.
const CYCLES_FIRST: usize = 100;
/// The library goes and comes again with each so many.
const CYCLES_A_LIBRARY: usize = 5;

/// Between two looks at what a process holds, how many of them must be equal, and how many there
/// are at most.
const SETTLE: Duration = Duration::from_millis(200);
const SETTLED: usize = 3;
const SETTLES_MAX: usize = 50;

/// `ops` times: the library is loaded if it is not, a communicator is initialised, used by two
/// threads and finalized, and every fifth time the library goes. Prints what the process had of
/// several things after the first hundred, and what at the end, as `cycled WHAT COUNT COUNT`;
/// of memory only where what was freed is free.
#[expect(clippy::print_stdout, reason = "the process's output")]
pub(super) fn cycles(stage: &Stage<'_>) {
    let mut first = [0; 4];
    for round in 0..CYCLES_FIRST + stage.ops {
        let context = stage.plugin.init(0x1000 + round as u64, 2, 0);
        let mut player = Player::new(stage.plugin, context, 0);
        let enqueued = player.enqueue(1, 1);
        stage.apart(|| player.proxy(enqueued, 1, 1));
        stage.plugin.finalize(context);
        if round % CYCLES_A_LIBRARY == 0 {
            stage.plugin.unload();
            stage.plugin.load_again();
        }
        if round + 1 == CYCLES_FIRST {
            first = settled();
        }
    }
    let names = ["fds", "threads", "maps", "kib"];
    for ((what, before), after) in names.into_iter().zip(first).zip(settled()) {
        if what != "kib" || !crate::allocator::is_sanitizers() {
            println!("cycled {what} {before} {after}");
        }
    }
}

/// What the process holds when that does not change any more: the drain thread readies lanes behind
/// the threads' backs, and threads that were joined go in their own time.
fn settled() -> [u64; 4] {
    let mut last = holdings();
    let mut same = 0;
    for _ in 0..SETTLES_MAX {
        std::thread::sleep(SETTLE);
        let now = holdings();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same == SETTLED {
            break;
        }
    }
    last
}

/// Open files, threads, mappings and KiB of anonymous memory of this process.
fn holdings() -> [u64; 4] {
    let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count) as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count());
    [entries("/proc/self/fd"), entries("/proc/self/task"), maps as u64, resident_kib()]
}

/// Anonymous memory, the heap included: the recording's pages come and go with the file's.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("RssAnon:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// `ops` ProxyOps and their first steps under way when the communicator is finalized; the end of
/// the script is an abort's: nothing is stopped.
pub(super) fn open(stage: &Stage<'_>) {
    let mut player = stage.player();
    let coll = player.enqueue(1, CHANNELS).coll;
    for n in 0..stage.ops {
        let op = player.start_op(coll, 0, n % 2 == 0, std::process::id());
        let _open = player.start_step(op, 0);
    }
}

/// `threads` communicators at a time are initialised, used once and finalized, `ops` times over: in
/// even rounds all live at once and end at once, in odd rounds some begin while others end.
pub(super) fn inits(stage: &Stage<'_>) {
    for round in 0..stage.ops {
        let barrier = std::sync::Barrier::new(stage.threads);
        stage.crowd(|n| {
            barrier.wait();
            let context = stage.plugin.init(0x1000 + n as u64, 2, 0);
            // NCCL connects the ranks in between.
            std::thread::sleep(Duration::from_millis(100));
            let mut player = Player::new(stage.plugin, context, 0);
            let enqueued = player.enqueue(1, CHANNELS);
            player.proxy(enqueued, CHANNELS, 1);
            if round % 2 == 0 {
                barrier.wait();
            }
            stage.plugin.finalize(context);
        });
    }
}

/// `ops` threads come and go, `threads` at a time, each with an operation of its own; after as many
/// were there for long enough that the plugin has lanes and slots for them (operations without a
/// parent).
pub(super) fn threads(stage: &Stage<'_>) {
    stage.crowd(|_| {
        for _ in 0..100 {
            stage.player().op(0, 0, true, 1);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    stage.crowd(|_| {
        for _ in 0..stage.ops / stage.threads {
            stage.apart(|| {
                let mut player = stage.player();
                let enqueued = player.enqueue(1, 1);
                player.proxy(enqueued, 1, 1);
            });
        }
    });
}
