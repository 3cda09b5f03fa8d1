// SPDX-License-Identifier: Apache-2.0
//! Operations that hang until the watchdog reports them, and then complete.
//!
//! The watchdog runs a command (`NCCLSCOPE_HANG_ACTION=exec:…`), which creates a file for each
//! report in the run's folder: the scripts count these files.

#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::exit,
    reason = "threads that spin would never end"
)]

use super::setup::{CHANNELS, STEPS, ScriptSetup};
use crate::play::{Enqueued, Handle, bit, now_ns};
use crate::plugin::Args;
use crate::{Control, Player};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The time limit for a report: the machine may be slow.
const PATIENCE: Duration = Duration::from_secs(90);
const COUNT: u64 = 1 << 20;
/// The size of an operation unlike all earlier ones, so that their durations on a busy machine do
/// not raise its limit.
const LARGE: u64 = 1 << 26;

/// Where the operation hangs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Its kernel does not start.
    Kernel,
    /// Its kernel starts on one channel only.
    Channel,
    /// The steps of a ProxyOp: whether it is a send, how many are done, and the states of the next
    /// one.
    Steps(&'static [(bool, i32, &'static [i32])]),
    /// The proxy thread does not begin it.
    Proxy,
}

const SENDS_NOTHING: At = At::Steps(&[(true, 1, &[8]), (false, 1, &[10, 11, 12])]);
const PEER: At = At::Steps(&[(true, 1, &[8, 20]), (false, 1, &[10])]);
const WIRE: At = At::Steps(&[(true, 1, &[8, 20, 9]), (false, 1, &[10])]);
const FLUSH: At = At::Steps(&[(false, 1, &[10, 11])]);
const TAKES_NOTHING: At = At::Steps(&[(false, 1, &[10, 11, 12])]);
const UPSTREAM: At = At::Steps(&[(true, 2, &[8]), (false, 0, &[10])]);

pub(super) fn kernel(setup: &ScriptSetup<'_>) {
    hang(setup, At::Kernel);
}

pub(super) fn channel(setup: &ScriptSetup<'_>) {
    hang(setup, At::Channel);
}

pub(super) fn sends_nothing(setup: &ScriptSetup<'_>) {
    hang(setup, SENDS_NOTHING);
}

pub(super) fn peer(setup: &ScriptSetup<'_>) {
    hang(setup, PEER);
}

pub(super) fn wire(setup: &ScriptSetup<'_>) {
    hang(setup, WIRE);
}

pub(super) fn flush(setup: &ScriptSetup<'_>) {
    hang(setup, FLUSH);
}

pub(super) fn takes_nothing(setup: &ScriptSetup<'_>) {
    hang(setup, TAKES_NOTHING);
}

pub(super) fn upstream(setup: &ScriptSetup<'_>) {
    hang(setup, UPSTREAM);
}

pub(super) fn proxy(setup: &ScriptSetup<'_>) {
    hang(setup, At::Proxy);
}

/// 1200 collectives whose ProxyOps NCCL never stops (CollNet), 16 each, then ordinary ones, and one
/// that hangs until it is reported.
pub(super) fn leaks(setup: &ScriptSetup<'_>) {
    let other = setup.plugin.init(0xbeef, 2, 0);
    let mut leaking = Player::new(setup.plugin, other, 0);
    std::thread::sleep(Duration::from_secs(1));
    setup.apart(|| {
        for _ in 0..1200 {
            // Slow enough that slots are ready in time on a busy machine.
            std::thread::sleep(Duration::from_millis(5));
            let coll = leaking.enqueue(COUNT, CHANNELS).coll;
            for channel in 0..CHANNELS {
                let kernel = leaking.start_kernel(coll, channel, now_ns());
                for _ in 0..8 {
                    let _leaked = leaking.start_op(coll, channel, false, std::process::id());
                }
                leaking.stop_kernel(kernel, now_ns());
            }
        }
    });
    for _ in 0..500 {
        whole(setup);
    }
    hang(setup, WIRE);
    setup.plugin.finalize(other);
}

/// A send for another process (PXN) is in transit.
pub(super) fn pxn_wire(setup: &ScriptSetup<'_>) {
    pxn(setup, &[8, 20, 9]);
}

/// The GPU of another process gives nothing to send (PXN).
pub(super) fn pxn_gpu(setup: &ScriptSetup<'_>) {
    pxn(setup, &[8]);
}

/// Sends for another process: one that is done, and one whose second step stands still in the last
/// of `states` until that is reported. Context and parent mean nothing here.
fn pxn(setup: &ScriptSetup<'_>, states: &[i32]) {
    let (unmapped, other) = (0x7000_dead_0000, std::process::id() ^ 1);
    let player = Player::new(setup.plugin, unmapped, 1);
    whole(setup);
    let send = |done: i32| {
        let op = player.start_op(unmapped + 64, 0, true, other);
        player.progress(op);
        (0..done).for_each(|step| player.step(op, step, true));
        op
    };
    let reports = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            setup.plugin.stop(send(STEPS));
            let op = send(1);
            let step = player.start_step(op, 1);
            for &state in states {
                setup.plugin.record(step, state, Some(&mut Args::word(1 << 20)));
            }
            while reports.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            [step, op].into_iter().for_each(|handle| setup.plugin.stop(handle));
        });
        wait_for_reports(2, &reports);
    });
}

/// Two complete operations, one that hangs until it is reported, and one more.
fn hang(setup: &ScriptSetup<'_>, at: At) {
    let mut player = setup.player();
    let whole: Vec<Enqueued> = (0..2).map(|_| player.enqueue(COUNT, CHANNELS)).collect();
    let stuck = player.enqueue(LARGE, CHANNELS);
    let reports = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let proxy = scope.spawn(|| {
            let player = setup.player();
            whole.iter().for_each(|&enqueued| player.proxy(enqueued, CHANNELS, STEPS));
            let open = begin(&player, stuck.coll, at);
            while reports.load(Ordering::Relaxed) == 0 {
                wait(at);
            }
            end(&player, stuck, &open, at);
            while reports.load(Ordering::Relaxed) < 2 {
                wait(at);
            }
        });
        wait_for_reports(2, &reports);
        proxy.join().expect("the proxy ends in order");
    });
    let last = player.enqueue(COUNT, CHANNELS);
    setup.apart(|| setup.player().proxy(last, CHANNELS, STEPS));
}

/// Waits as a proxy thread with work does: without sleeping.
fn wait(at: At) {
    if at == At::Proxy {
        std::thread::sleep(Duration::from_millis(200));
    } else {
        std::hint::spin_loop();
    }
}

/// The open events of an operation: its kernel channels, its ProxyOps, and their steps.
#[derive(Default)]
struct Open {
    kernels: Vec<Handle>,
    ops: Vec<Handle>,
    steps: Vec<Handle>,
}

fn begin(player: &Player<'_>, coll: Handle, at: At) -> Open {
    let mut open = Open::default();
    let channels = match at {
        At::Kernel | At::Proxy => 0,
        At::Channel => 1,
        At::Steps(_) => CHANNELS,
    };
    open.kernels.extend((0..channels).map(|c| player.start_kernel(coll, c, now_ns())));
    let At::Steps(all) = at else { return open };
    for &(is_send, done, states) in all {
        let op = player.start_op(coll, 0, is_send, std::process::id());
        player.progress(op);
        (0..done).for_each(|step| player.step(op, step, is_send));
        let step = player.start_step(op, done);
        for &state in states {
            player.plugin().record(step, state, Some(&mut Args::word(1 << 20)));
        }
        open.ops.push(op);
        open.steps.push(step);
    }
    open
}

fn end(player: &Player<'_>, stuck: Enqueued, open: &Open, at: At) {
    let Open { kernels, ops, steps } = open;
    steps.iter().chain(ops).for_each(|&handle| player.plugin().stop(handle));
    kernels.iter().for_each(|&kernel| player.stop_kernel(kernel, now_ns()));
    match at {
        At::Kernel | At::Proxy => player.proxy(stuck, CHANNELS, STEPS),
        At::Channel => {
            let last = player.start_kernel(stuck.coll, CHANNELS - 1, now_ns());
            player.stop_kernel(last, now_ns());
        }
        At::Steps(_) => {}
    }
}

/// The CUDA launch of a kernel does not return.
pub(super) fn launch(setup: &ScriptSetup<'_>) {
    let player = setup.player();
    whole(setup);
    let group = player.start_group_api(false, 1);
    let _call = player.coll_api(group, COUNT, false);
    player.end_group_api(group);
    let launch = player.start_raw(bit::KERNEL_LAUNCH, group);
    wait_for_reports(1, &AtomicUsize::new(0));
    setup.plugin.stop(launch);
    setup.plugin.stop(group);
    wait_for_reports(2, &AtomicUsize::new(0));
}

/// The kernel is launched, and the call does not return.
pub(super) fn returns(setup: &ScriptSetup<'_>) {
    let player = setup.player();
    whole(setup);
    let group = player.start_group_api(false, 1);
    let _call = player.coll_api(group, COUNT, false);
    player.end_group_api(group);
    player.kernel_launch(group);
    wait_for_reports(1, &AtomicUsize::new(0));
    setup.plugin.stop(group);
    wait_for_reports(2, &AtomicUsize::new(0));
}

/// NCCL takes an operation and does not enqueue it.
pub(super) fn enqueues(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    whole(setup);
    let group = player.start_group();
    let coll = player.start_coll(group, group, LARGE, CHANNELS);
    wait_for_reports(1, &AtomicUsize::new(0));
    setup.plugin.stop(coll);
    setup.plugin.stop(group);
    setup.apart(|| setup.player().proxy(Enqueued { coll }, CHANNELS, STEPS));
    wait_for_reports(2, &AtomicUsize::new(0));
}

/// The application begins a group and does not end it.
pub(super) fn group(setup: &ScriptSetup<'_>) {
    let player = setup.player();
    whole(setup);
    let group = player.start_group_api(false, 2);
    let _call = player.coll_api(group, COUNT, false);
    wait_for_reports(1, &AtomicUsize::new(0));
    player.end_group_api(group);
    setup.plugin.stop(group);
    wait_for_reports(2, &AtomicUsize::new(0));
}

/// No hang: a slow first operation, nothing in flight, and operations of which only the enqueueing
/// is reported.
pub(super) fn quiet(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    let first = player.enqueue(COUNT, CHANNELS);
    let kernel = player.start_kernel(first.coll, 0, now_ns());
    std::thread::sleep(Duration::from_millis(2500));
    player.stop_kernel(kernel, now_ns());
    whole(setup);
    std::thread::sleep(Duration::from_millis(2500));
    let other = setup.plugin.init(0xbeef, 2, 0);
    let mut player = Player::new(setup.plugin, other, 0);
    for _ in 0..3 {
        let _enqueued = player.enqueue(COUNT, CHANNELS);
    }
    std::thread::sleep(Duration::from_millis(2500));
    setup.plugin.finalize(other);
}

/// Operations complete while more events occur than the plugin can record.
pub(super) fn lossy(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    (0..2).for_each(|_| whole(setup));
    const EVENTS: usize = 122 * 16_384;
    let flood = |player: &Player<'_>| setup.plugin.stop(player.start_group());
    std::thread::scope(|scope| {
        // Two threads give the drain thread more than it takes.
        scope.spawn(|| {
            let player = setup.player();
            (0..EVENTS).for_each(|_| flood(&player));
        });
        let mut open = Vec::new();
        for number in 0..EVENTS {
            flood(&player);
            // An operation at times, which ends soon: a flood of events may last longer than the
            // limit.
            match number % 16_384 {
                0 => {
                    let coll = player.enqueue(COUNT, CHANNELS).coll;
                    open.extend((0..CHANNELS).map(|c| player.start_kernel(coll, c, now_ns())));
                }
                4_096 => open.drain(..).for_each(|kernel| player.stop_kernel(kernel, now_ns())),
                _ => {}
            }
        }
    });
    std::thread::sleep(Duration::from_millis(4500));
}

/// The kernel of an operation hangs, while network operations get no slot: all slots are in use.
pub(super) fn refused(setup: &ScriptSetup<'_>) {
    let player = setup.player();
    (0..2).for_each(|_| whole(setup));
    let other = setup.plugin.init(0xbeef, 2, 0);
    let mut others = Player::new(setup.plugin, other, 0);
    let enqueued = others.enqueue(COUNT, CHANNELS);
    let full = setup.apart(|| {
        let (mut begun, mut refused) = (0, 0);
        // Slots are added ahead of need, but not this fast.
        while refused < 50 {
            let op = others.start_op(enqueued.coll, 0, true, std::process::id());
            if op == 0 {
                refused += 1;
                std::thread::sleep(Duration::from_millis(20));
            } else {
                // A ProxyOp that advances is not treated as abandoned by NCCL.
                others.progress(op);
                let _step = others.start_step(op, 0);
                (begun, refused) = (begun + 1, 0);
            }
        }
        begun
    });
    println!("room for {full} network operations");
    let stuck = setup.player().enqueue(LARGE, CHANNELS);
    let begun = Instant::now();
    let kernels = [0, 1].map(|channel| player.start_kernel(stuck.coll, channel, now_ns()));
    let reports = AtomicUsize::new(0);
    setup.apart(|| {
        while begun.elapsed() < PATIENCE && reports_now(&reports) == 0 {
            assert_eq!(player.start_op(stuck.coll, 0, true, std::process::id()), 0);
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    println!("reported after {} ms", begun.elapsed().as_millis());
    kernels.into_iter().for_each(|kernel| player.stop_kernel(kernel, now_ns()));
    wait_for_reports(2, &reports);
    setup.plugin.finalize(other);
}

/// Twenty communicators hang at once, and continue.
pub(super) fn many(setup: &ScriptSetup<'_>) {
    let contexts: Vec<u64> =
        (0..20).map(|number| setup.plugin.init(0xa000 + number, 2, 0)).collect();
    let mut players: Vec<Player<'_>> =
        contexts.iter().map(|&context| Player::new(setup.plugin, context, 0)).collect();
    let mut begin = || -> Vec<Handle> {
        let begun = players.iter_mut().map(|player| {
            let enqueued = player.enqueue(COUNT, 1);
            player.start_kernel(enqueued.coll, 0, now_ns())
        });
        begun.collect()
    };
    let end = |kernels: Vec<Handle>| {
        kernels.into_iter().for_each(|kernel| setup.player().stop_kernel(kernel, now_ns()));
    };
    let first = begin();
    end(first);
    std::thread::sleep(Duration::from_millis(1500));
    let stuck = begin();
    let reports = AtomicUsize::new(0);
    wait_for_reports(8, &reports);
    end(stuck);
    wait_for_reports(16, &reports);
    contexts.into_iter().for_each(|context| setup.plugin.finalize(context));
}

/// An operation takes 1.5 s of the process's own time, while the process is stopped for 5 s; a
/// later one hangs.
pub(super) fn stopped(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    (0..2).for_each(|_| whole(setup));
    let slow = player.enqueue(COUNT, CHANNELS);
    let kernels = [0, 1].map(|channel| player.start_kernel(slow.coll, channel, now_ns()));
    std::thread::sleep(Duration::from_millis(300));
    let own = std::process::id();
    let commands = format!("kill -STOP {own}; sleep 5; kill -CONT {own}");
    let mut shell = std::process::Command::new("sh");
    let mut shell = shell.args(["-c", &commands]).spawn().expect("there is a shell");
    shell.wait().expect("it ends");
    std::thread::sleep(Duration::from_millis(1200));
    kernels.into_iter().for_each(|kernel| player.stop_kernel(kernel, now_ns()));
    std::thread::sleep(Duration::from_millis(1500));
    println!("a hang after it");
    let stuck = player.enqueue(LARGE, CHANNELS);
    let begun = Instant::now();
    let kernels = [0, 1].map(|channel| player.start_kernel(stuck.coll, channel, now_ns()));
    let reports = AtomicUsize::new(0);
    wait_for_reports(1, &reports);
    println!("reported after {} ms", begun.elapsed().as_millis());
    kernels.into_iter().for_each(|kernel| player.stop_kernel(kernel, now_ns()));
    wait_for_reports(2, &reports);
}

/// An operation hangs; the application's callback for hangs never returns.
pub(super) fn blocked(setup: &ScriptSetup<'_>) {
    let mut player = setup.player();
    Control::load(setup.plugin.path()).expect("it was loaded before").block_on_hang();
    (0..2).for_each(|_| whole(setup));
    let stuck = player.enqueue(COUNT, CHANNELS);
    let _kernel = player.start_kernel(stuck.coll, 0, now_ns());
    std::thread::sleep(PATIENCE);
}

/// A simulated hang, which is reported to the application, and its end.
///
/// # Panics
/// If the plugin refuses, or reports nothing.
pub(super) fn drill(setup: &ScriptSetup<'_>) {
    let control = Control::load(setup.plugin.path()).expect("it was loaded before");
    whole(setup);
    let told = AtomicUsize::new(0);
    control.on_hang(&told);
    assert_eq!(control.simulate_hang(0.0), 2);
    assert_eq!(control.simulate_hang(f64::NAN), 2);
    assert_eq!(control.simulate_hang(1.0), 0, "{}", control.error());
    wait_for_reports(2, &AtomicUsize::new(0));
    until(|| told.load(Ordering::Relaxed) == 2);
    control.forget_hangs();
}

/// Plays a complete operation.
fn whole(setup: &ScriptSetup<'_>) {
    let enqueued = setup.player().enqueue(COUNT, CHANNELS);
    setup.apart(|| setup.player().proxy(enqueued, CHANNELS, STEPS));
}

/// Waits until the run's folder has this many reports; returns their number.
fn wait_for_reports(count: usize, found: &AtomicUsize) {
    until(|| reports_now(found) >= count);
}

/// The number of reports in the run's folder.
fn reports_now(found: &AtomicUsize) -> usize {
    let run = std::env::var("NCCLSCOPE_DIR").expect("the test says where recordings go");
    let files = std::fs::read_dir(&run).into_iter().flatten().flatten();
    let is_report = |name: &std::ffi::OsString| name.to_string_lossy().contains(".hang-");
    let count = files.filter(|f| is_report(&f.file_name())).count();
    found.store(count, Ordering::Relaxed);
    count
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > end {
            eprintln!("waited in vain");
            std::process::exit(1);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
