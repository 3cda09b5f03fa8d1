// SPDX-License-Identifier: Apache-2.0
//! Large numbers of channels, unmatched events, communicators and threads.

use super::setup::{CHANNELS, STEPS, ScriptSetup};
use crate::Player;
use crate::play::bit;
use std::time::Duration;

/// `ops` channels (256 at most), all of them open at once.
pub(super) fn channels(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let all = u8::try_from(setup.ops - 1).expect("at most 256 channels");
    let coll = player.enqueue(1, all).coll;
    setup.apart(|| {
        let player = setup.player();
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
            setup.plugin.stop(op);
        }
    });
}

/// `ops` events of every kind that are never stopped; prints the growth of the process in KiB.
#[expect(clippy::print_stdout, reason = "the process's output")]
pub(super) fn unmatched(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    // Makes the plugin touch its permanent memory first.
    let enqueued = player.enqueue(1, CHANNELS);
    player.proxy(enqueued, CHANNELS, STEPS);
    let before = resident_kib();
    for n in 0..setup.ops {
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

/// Cycles until permanent memory is allocated: lanes, slots.
const CYCLES_FIRST: usize = 100;
/// The number of cycles after which the library is reloaded.
const CYCLES_A_LIBRARY: usize = 5;

/// The time between two samples of a process's resources, the number of samples that must be equal,
/// and the maximum number of samples. The watchdog forgets what has ended at its next look, up to
/// 1.25 s later.
const SETTLE: Duration = Duration::from_millis(200);
const SETTLED: usize = 7;
const SETTLES_MAX: usize = 50;

/// `ops` times: the library is loaded if needed, a communicator is initialised, used by two threads
/// and finalized, and every fifth time the library is unloaded. Prints the process's resources
/// after the first hundred cycles and at the end, as `cycled WHAT COUNT COUNT`; memory only if the
/// allocator really frees it.
#[expect(clippy::print_stdout, reason = "the process's output")]
pub(super) fn cycles(setup: &ScriptSetup<'_>) {
    let mut first = [0; 4];
    for round in 0..CYCLES_FIRST + setup.ops {
        let context = setup.plugin.init(0x1000 + round as u64, 2, 0);
        let mut player = Player::new(setup.plugin, context, 0);
        let enqueued = player.enqueue(1, 1);
        setup.apart(|| player.proxy(enqueued, 1, 1));
        setup.plugin.finalize(context);
        if round % CYCLES_A_LIBRARY == 0 {
            setup.plugin.unload();
            setup.plugin.load_again();
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

/// The resources of the process when they no longer change: the drain thread prepares lanes in the
/// background, and joined threads disappear with a delay.
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

/// Open files, threads, mappings and KiB in use on the heap of this process.
fn holdings() -> [u64; 4] {
    let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count) as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count());
    [entries("/proc/self/fd"), entries("/proc/self/task"), maps as u64, heap_kib()]
}

/// Anonymous memory, including the heap: the recording's pages change with its file.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("RssAnon:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// The heap in use: resident memory would also count what the allocator keeps free, which is up to
/// 10 MiB here and differs from run to run.
fn heap_kib() -> u64 {
    // SAFETY: no precondition.
    let info = unsafe { libc::mallinfo2() };
    ((info.uordblks + info.hblkhd) >> 10) as u64
}

/// `ops` ProxyOps and their first steps in flight when the communicator is finalized; the script
/// ends as an abort does: no event is stopped.
pub(super) fn open(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let coll = player.enqueue(1, CHANNELS).coll;
    for n in 0..setup.ops {
        let op = player.start_op(coll, 0, n % 2 == 0, std::process::id());
        let _open = player.start_step(op, 0);
    }
}

/// `threads` communicators at a time are initialised, used once and finalized, in `ops` rounds: in
/// even rounds all exist at once and are finalized at once, in odd rounds some are created while
/// others are finalized.
pub(super) fn inits(setup: &ScriptSetup<'_>) {
    for round in 0..setup.ops {
        let barrier = std::sync::Barrier::new(setup.threads);
        setup.crowd(|n| {
            barrier.wait();
            let context = setup.plugin.init(0x1000 + n as u64, 2, 0);
            // NCCL connects the ranks between `init` and the first operation.
            std::thread::sleep(Duration::from_millis(100));
            let mut player = Player::new(setup.plugin, context, 0);
            let enqueued = player.enqueue(1, CHANNELS);
            player.proxy(enqueued, CHANNELS, 1);
            if round % 2 == 0 {
                barrier.wait();
            }
            setup.plugin.finalize(context);
        });
    }
}

/// `ops` threads start and exit, `threads` at a time, each with its own operation, after that many
/// threads existed long enough for the plugin to have lanes and slots for them (operations without
/// a parent).
pub(super) fn threads(setup: &ScriptSetup<'_>) {
    setup.crowd(|_| {
        for _ in 0..100 {
            setup.player().op(0, 0, true, 1);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    setup.crowd(|_| {
        for _ in 0..setup.ops / setup.threads {
            setup.apart(|| {
                let mut player = setup.player();
                let enqueued = player.enqueue(1, 1);
                player.proxy(enqueued, 1, 1);
            });
        }
    });
}
