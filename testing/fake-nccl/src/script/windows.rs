// SPDX-License-Identifier: Apache-2.0
//! Recording is started and stopped while operations run.

#![expect(clippy::print_stdout, reason = "the test needs the operations to be recorded")]

use super::setup::{CHANNELS, STEPS, ScriptSetup};
use crate::play::{Enqueued, bit};
use crate::{Control, Player};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time between two operations while recording is toggled.
const PACE: Duration = Duration::from_micros(200);

/// The application's own thread starts and stops recording; the proxy follows much later, when the
/// state has changed again. Prints the number of operations that began while recording was on.
///
/// # Panics
/// If the plugin refuses.
pub(super) fn windows(setup: &ScriptSetup<'_>) {
    let control = Control::load(setup.plugin.path()).expect("it was loaded before");
    let mut player = setup.player();
    let mut waiting: Vec<Enqueued> = Vec::new();
    for op in 0..setup.ops {
        if op % 3 == 1 {
            assert_eq!(control.plain("stop"), 0);
        }
        if op % 3 == 2 {
            assert_eq!(control.with_text("start", None), 0);
        }
        let started = control.plain("is_started") == 1;
        assert_eq!(started, op % 3 != 1);
        assert_eq!(asks(setup, bit::PROXY_OP), started, "NCCL is asked for what is recorded");
        assert!(asks(setup, bit::KERNEL_CH), "KernelCh stays");
        if started {
            println!("recorded {op}");
        }
        waiting.push(player.enqueue(1 << 20, CHANNELS));
        if waiting.len() == 2 {
            let late = waiting.remove(0);
            setup.apart(|| setup.player().proxy(late, CHANNELS, STEPS));
        }
    }
    for enqueued in waiting {
        setup.apart(|| setup.player().proxy(enqueued, CHANNELS, STEPS));
    }
}

fn asks(setup: &ScriptSetup<'_>, bit: u64) -> bool {
    u64::from(setup.plugin.mask().get()) & bit != 0
}

/// Another thread starts and stops recording as fast as it can, at least a thousand times.
///
/// # Panics
/// If the plugin refuses.
pub(super) fn toggles(setup: &ScriptSetup<'_>) {
    let control = Control::load(setup.plugin.path()).expect("it was loaded before");
    let (over, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let played = scope.spawn(|| {
            let mut player = setup.player();
            ready.wait();
            while !over.load(Ordering::Relaxed) {
                let enqueued = player.enqueue(1 << 20, CHANNELS);
                setup.player().proxy(enqueued, CHANNELS, STEPS);
                // Slower than the toggling loop, like any network, so that the drain thread keeps
                // up.
                std::thread::sleep(PACE);
            }
        });
        ready.wait();
        for _ in 0..setup.ops {
            assert_eq!(control.plain("stop"), 0);
            assert_eq!(control.with_text("start", None), 0);
        }
        over.store(true, Ordering::Relaxed);
        played.join().expect("the player ends in order");
    });
}

/// Every fourth collective and every fourth send or receive are recorded.
///
/// # Panics
/// If the plugin refuses.
pub(super) fn sampled(setup: &ScriptSetup<'_>) {
    let control = Control::load(setup.plugin.path()).expect("it was loaded before");
    assert_eq!(control.with_text("start", Some(c"sample=1/4")), 0);
    let mut player = setup.player();
    for _ in 0..setup.ops {
        let enqueued = player.enqueue(1 << 20, CHANNELS);
        player.proxy(enqueued, CHANNELS, STEPS);
        send(setup, &player);
    }
}

fn send(setup: &ScriptSetup<'_>, player: &Player<'_>) {
    let group = player.start_group();
    let p2p = player.start_p2p(group, group, true, 1);
    setup.plugin.stop(p2p);
    setup.plugin.stop(group);
    player.op(p2p, 0, true, STEPS);
}

/// All other C functions: marks, steps, roles, ids, dumps; also with wrong arguments.
///
/// # Panics
/// If the plugin refuses a valid call, or accepts an invalid one.
pub(super) fn application(setup: &ScriptSetup<'_>) {
    let control = Control::load(setup.plugin.path()).expect("it was loaded before");
    let mut player = setup.player();
    for op in 0..setup.ops as u64 {
        control.with_number("set_step", op);
        control.with_number("push_external_id", 1000 + op);
        control.with_number("push_external_id", 2000 + op);
        let _ = player.enqueue(1, CHANNELS);
        control.with_number("pop_external_id", 0);
        let _ = player.enqueue(1, CHANNELS);
        control.with_number("pop_external_id", 0);
        let _ = player.enqueue(1, CHANNELS);
    }
    assert_eq!(control.with_text("mark", Some(c"half way")), 0);
    assert_eq!(control.set_role(0xc0ffee, Some(c"tp")), 0);
    assert_eq!(control.error(), "");
    assert_eq!(control.with_text("start", Some(c"until=tomorrow")), 2);
    assert!(control.error().starts_with("until=tomorrow: expected"), "{}", control.error());
    assert_eq!(control.set_role(1, None), 2);
    assert_eq!(control.error(), "role is NULL");
    assert_eq!(control.with_text("mark", None), 2);
    assert_eq!(control.error(), "name is NULL");
    assert_eq!(control.with_text("dump", Some(c"/proc/no/such/place")), 3);
    assert!(control.error().contains("/proc/no/such/place"), "{}", control.error());
    let dumps = std::env::var("FAKE_NCCL_DUMPS").expect("the test says where dumps go");
    let dumps = std::ffi::CString::new(dumps).expect("a path");
    assert_eq!(control.with_text("dump", Some(&dumps)), 0, "{}", control.error());
}

/// Signals stop recording, start it again, and make a copy; a signal with a handler of the process
/// is left alone.
///
/// # Panics
/// If a signal has no effect.
pub(super) fn signalled(setup: &ScriptSetup<'_>) {
    let control = Control::load(setup.plugin.path()).expect("it was loaded before");
    let mut player = setup.player();
    let _ = player.enqueue(1, CHANNELS);
    for started in [0, 1] {
        send_signal(libc::SIGUSR1);
        until(|| control.plain("is_started") == started);
        let _ = player.enqueue(1, CHANNELS);
    }
    send_signal(libc::SIGUSR2);
    let run = std::env::var("NCCLSCOPE_DIR").expect("the test says where recordings go");
    let dumped = |path: &std::path::Path| path.is_dir() && path.read_dir().is_ok_and(is_whole);
    until(|| std::fs::read_dir(&run).is_ok_and(|mut d| d.any(|e| dumped(&e.unwrap().path()))));
}

/// True if the copy is complete, which is when it gets its final name.
fn is_whole(mut files: std::fs::ReadDir) -> bool {
    files.any(|file| file.is_ok_and(|f| f.path().extension().is_some_and(|e| e == "nscope")))
}

fn send_signal(signal: i32) {
    // SAFETY: the plugin has a handler for the signal; otherwise the process ends, which the test
    // detects.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
