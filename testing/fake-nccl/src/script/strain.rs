// SPDX-License-Identifier: Apache-2.0
//! Overload: too many events, small stacks, and many signals.

use super::setup::{CHANNELS, STEPS, ScriptSetup};
use crate::play::now_ns;
use crate::{Player, Plugin};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::Barrier;
use std::thread::Builder;
use std::time::Duration;

/// The pause between a burst and the operations that it must not affect.
const PAUSE: Duration = Duration::from_millis(100);
/// More pauses than this are too many even on the slowest machine.
const PAUSES_MAX: u64 = 100;
/// Operations of all threads after the burst.
const PACED: usize = 200;
/// The time between two of these operations.
const PACE: Duration = Duration::from_millis(1);

/// Plays the shortest complete operation: a Coll, and a ProxyOp with one step.
fn short(player: &mut Player<'_>, plugin: &Plugin) {
    let coll = player.start_coll(0, 0, 1, 1);
    plugin.stop(coll);
    player.op(coll, 0, true, 1);
}

/// Waits until there is space again; returns the number of pauses.
fn recover(player: &mut Player<'_>, plugin: &Plugin) -> u64 {
    let mut pauses = 0;
    loop {
        std::thread::sleep(PAUSE);
        pauses += 1;
        let probe = player.start_coll(0, 0, 1, 1);
        plugin.stop(probe);
        if probe != 0 || pauses == PAUSES_MAX {
            return pauses;
        }
    }
}

/// `threads` threads play `ops` operations each as fast as they can; after a pause they continue
/// with 200 more, paced, of another communicator. Prints the operations per second of the burst,
/// and the number of pauses until there was space: one, on an idle machine.
#[expect(clippy::print_stdout, reason = "the process's output")]
pub(super) fn burst(setup: &ScriptSetup<'_>) {
    let second = setup.plugin.init(0xbeef, 2, 1);
    let ready = Barrier::new(setup.threads);
    let (slowest, pauses) = (AtomicU64::new(1), AtomicU64::new(0));
    setup.crowd(|_| {
        let mut player = setup.player();
        ready.wait();
        let begin = now_ns();
        for _ in 0..setup.ops {
            short(&mut player, setup.plugin);
        }
        slowest.fetch_max(now_ns() - begin, Ordering::Relaxed);
        ready.wait();
        pauses.fetch_max(recover(&mut player, setup.plugin), Ordering::Relaxed);
        let mut player = Player::new(setup.plugin, second, 1);
        for _ in 0..PACED / setup.threads {
            short(&mut player, setup.plugin);
            std::thread::sleep(PACE);
        }
    });
    let ops = setup.ops as u64 * setup.threads as u64;
    println!("rate {}", ops * 1_000_000_000 / slowest.into_inner());
    println!("pauses {}", pauses.into_inner());
    setup.plugin.finalize(second);
}

/// The plugin to which the handler of [`reentered`] plays; set while the script runs.
static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(core::ptr::null_mut());
static CONTEXT: AtomicU64 = AtomicU64::new(0);
static INTERRUPTIONS: AtomicU32 = AtomicU32::new(0);
/// Microseconds between two signals.
const EVERY: libc::suseconds_t = 100;

extern "C" fn count_only(_signal: i32) {
    INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn play_in_handler(_signal: i32) {
    // SAFETY: the pointer is null or that of the running script's plugin, which outlives the timer.
    let Some(plugin) = (unsafe { PLUGIN.load(Ordering::Acquire).as_ref() }) else { return };
    INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
    short(&mut Player::new(plugin, CONTEXT.load(Ordering::Relaxed), 1), plugin);
}

/// `threads` threads play, and initialise and finalize communicators, until a timer has sent `ops`
/// signals at arbitrary points of the process.
pub(super) fn interrupted(setup: &ScriptSetup<'_>) {
    amid_alarms(setup, count_only, &|player, round| {
        let enqueued = player.enqueue(1, CHANNELS);
        player.proxy(enqueued, CHANNELS, STEPS);
        if round % 64 == 0 {
            setup.plugin.finalize(setup.plugin.init(0xbeef, 2, 1));
        }
    });
}

/// The same as [`interrupted`], but the signal handler also plays an operation on the thread that
/// it interrupts, which NCCL never does.
pub(super) fn reentered(setup: &ScriptSetup<'_>) {
    let second = setup.plugin.init(0xbeef, 2, 1);
    CONTEXT.store(second, Ordering::Relaxed);
    PLUGIN.store(core::ptr::from_ref(setup.plugin).cast_mut(), Ordering::Release);
    amid_alarms(setup, play_in_handler, &|player, _| {
        let enqueued = player.enqueue(1, CHANNELS);
        player.proxy(enqueued, CHANNELS, STEPS);
    });
    PLUGIN.store(core::ptr::null_mut(), Ordering::Release);
    setup.plugin.finalize(second);
}

fn amid_alarms(
    setup: &ScriptSetup<'_>,
    handler: extern "C" fn(i32),
    play: &(dyn Fn(&mut Player<'_>, usize) + Sync),
) {
    handle_alarms(handler);
    let ready = Barrier::new(setup.threads + 1);
    std::thread::scope(|scope| {
        for _ in 0..setup.threads {
            scope.spawn(|| {
                let mut player = setup.player();
                // The thread claims its lane first: later the signal may interrupt its allocator.
                short(&mut player, setup.plugin);
                ready.wait();
                for round in 1.. {
                    if INTERRUPTIONS.load(Ordering::Relaxed) as usize >= setup.ops {
                        break;
                    }
                    play(&mut player, round);
                }
            });
        }
        block_alarms();
        ready.wait();
        ring_every(EVERY);
    });
    ring_every(0);
}

/// Without `SA_RESTART`: interrupted system calls fail.
fn handle_alarms(handler: extern "C" fn(i32)) {
    // SAFETY: zero is a valid value of this plain C type.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    // SAFETY: the handler takes a signal number, and NULL is allowed for the old action.
    let result =
        unsafe { libc::sigaction(libc::SIGALRM, &raw const action, core::ptr::null_mut()) };
    assert_eq!(result, 0, "there is no handler");
}

/// Blocks the signal on this thread, so that only other threads get it.
fn block_alarms() {
    // SAFETY: zero is a valid value of this plain C type.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: the set is valid.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGALRM) };
    // SAFETY: the set is valid, and NULL is allowed for the old one.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut()) };
}

/// Lets a timer send SIGALRM at this interval in microseconds; 0 stops it.
fn ring_every(microseconds: libc::suseconds_t) {
    let every = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the timer is valid, and NULL is allowed for the old one.
    let result =
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, core::ptr::null_mut()) };
    assert_eq!(result, 0, "there is no timer");
}

/// Bytes of stack of a thread that makes callbacks (`PTHREAD_STACK_MIN`), and of one that
/// initialises a communicator. Without optimisation, functions that are otherwise inlined have
/// frames of 60 KiB and more; with a sanitizer several times as much.
fn stack_sizes() -> (usize, usize) {
    if crate::allocator::is_sanitizers() || cfg!(debug_assertions) {
        (1 << 20, 1 << 20)
    } else {
        (16 << 10, 64 << 10)
    }
}

/// `ops` times: a communicator is initialised, used and finalized by threads with small stacks; the
/// callbacks run on the smallest possible stack.
pub(super) fn stacks(setup: &ScriptSetup<'_>) {
    let (of_callbacks, of_init) = stack_sizes();
    let small = |bytes: usize, play: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let thread = Builder::new().stack_size(bytes).spawn_scoped(scope, play);
            thread.expect("a thread starts").join().expect("the thread ends in order");
        });
    };
    for round in 0..setup.ops {
        let context = AtomicU64::new(0);
        let init = || context.store(setup.plugin.init(round as u64, 2, 0), Ordering::Relaxed);
        small(of_init, &init);
        let context = context.into_inner();
        small(of_callbacks, &|| everything(&ScriptSetup { context, ..*setup }));
        small(of_init, &|| setup.plugin.finalize(context));
    }
}

/// Each event that the version has, on one thread.
fn everything(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let (plugin, version) = (setup.plugin, player.version());
    let enqueued = player.enqueue(1, CHANNELS);
    player.proxy(enqueued, CHANNELS, STEPS);
    plugin.stop(player.start_p2p(0, 0, true, 1));
    player.proxy_ctrl(13, 1);
    if version >= 3 {
        for handle in [player.start_ib(0, 1, 1), player.start_socket(0, 1, true, 1)] {
            plugin.stop(handle);
        }
    }
    if version >= 5 {
        let _stopped = player.p2p_api(0, true, 1);
    }
    if version >= 6 {
        let coll = player.start_ce_coll(0, 0, 1);
        player.ce_sync(coll, true);
        plugin.stop(player.start_ce_batch(coll, 1, 1));
        plugin.stop(coll);
    }
    if version >= 7 {
        let kernel = player.start_kernel(enqueued.coll, 0, 1000);
        player.kernel_phase(kernel, 0, 0, 1000);
        player.stop_kernel(kernel, 1060);
    }
}

/// Forbidden allocations, to test the checker of callbacks. One per thread is allowed, that of the
/// dynamic linker.
pub(super) fn allocates(setup: &ScriptSetup<'_>) {
    for _ in 0..2 {
        let allocate = || std::hint::black_box(Box::new(setup.ops));
        drop(crate::allocator::inside(c"a callback", allocate));
    }
}

/// Two threads write to one place: a race that ThreadSanitizer must find.
pub(super) fn races(setup: &ScriptSetup<'_>) {
    struct Shared(core::cell::UnsafeCell<usize>);
    // SAFETY: not safe, on purpose: a data race. Any value is valid for a reader.
    unsafe impl Sync for Shared {}
    static SHARED: Shared = Shared(core::cell::UnsafeCell::new(0));
    ScriptSetup { threads: 2, ..*setup }.crowd(|thread| {
        for _ in 0..setup.ops {
            // SAFETY: the address is valid; the race of two writers is the purpose.
            unsafe { SHARED.0.get().write_volatile(thread) };
        }
    });
}
