// SPDX-License-Identifier: Apache-2.0
//! How a process ends or continues: signals, forks, unloading of the library.

use crate::plugin::Args;
use crate::script;
use crate::script::setup::CHANNELS;
use crate::{Player, Plugin, ScriptSetup};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Number of operations of each thread before the event that interrupts them.
const WARM: u64 = 20;
/// How long a process waits for its recording before it ends: a busy machine may take long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for the plugin, once its file is there, to note in its lanes file which recording that is.
const BEGIN: Duration = Duration::from_millis(100);
/// Children of [`End::play`]'s `fork-busy`.
const CHILDREN: usize = 4;
/// Seconds after which a child that hangs is killed, and so fails.
const CHILD_PATIENCE: u32 = 60;

/// Plays the end called `name` to the communicators of `contexts`; in a busy end, `threads` threads
/// make callbacks at the same time. An unknown name means `finalize`.
///
/// # Panics
/// If a child of a fork fails, or the library does not load again.
pub fn play(plugin: &Plugin, contexts: &[u64], name: &str, threads: usize) {
    let first = contexts[0];
    let busy = |meanwhile: &dyn Fn()| busy(plugin, first, threads, meanwhile);
    match name {
        "exit" => return,
        "exit-busy" => busy(&|| leave_by(libc::exit)),
        "_exit-busy" => busy(&|| leave_by(libc::_exit)),
        "main-gone" => return leave_main(plugin, first),
        "kill-busy" => busy(&|| signal(libc::SIGKILL)),
        "kill" => kill_with_a_step_in_flight(plugin, first),
        "term" => signal(libc::SIGTERM),
        "term-busy" => busy(&|| {
            signal(libc::SIGTERM);
            std::thread::sleep(Duration::from_secs(60));
        }),
        "term-flag" => terminate_in_order(&busy),
        "term-exit" => terminate_at_once(&busy),
        "fork" => return fork_once(plugin, first),
        "fork-kill" => {
            leave_a_child();
            kill_with_a_step_in_flight(plugin, first);
        }
        "exec-busy" => busy(&execute),
        "fork-busy" => busy(&|| (0..CHILDREN).for_each(|n| fork_among_threads(plugin, first, n))),
        "dlclose" => busy(&|| unload_early(plugin)),
        _ => {}
    }
    for &context in contexts {
        plugin.finalize(context);
    }
}

/// `threads` threads play operations while `meanwhile` runs; it starts when they are busy.
fn busy(plugin: &Plugin, context: u64, threads: usize, meanwhile: &dyn Fn()) {
    let (over, played) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (over, played) = (&over, &played);
            scope.spawn(move || {
                let mut player = Player::new(plugin, context, 0);
                while !over.load(Ordering::Relaxed) {
                    let enqueued = player.enqueue(1, CHANNELS);
                    player.proxy(enqueued, CHANNELS, 1);
                    played.fetch_add(1, Ordering::Relaxed);
                    // Slow enough that the recording's file holds all of it.
                    std::thread::sleep(Duration::from_micros(300 + thread as u64));
                }
            });
        }
        while played.load(Ordering::Relaxed) < WARM * threads as u64 || !is_recorded() {
            std::thread::sleep(Duration::from_millis(1));
        }
        meanwhile();
        over.store(true, Ordering::Relaxed);
    });
}

/// True if the process has had a recording for [`BEGIN`], has waited [`PATIENCE`] for one, or has
/// no directory for recordings.
fn is_recorded() -> bool {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    static SEEN: OnceLock<Instant> = OnceLock::new();
    let Some(run) = std::env::var_os("NCCLSCOPE_DIR") else { return true };
    let has_file = std::fs::read_dir(run).is_ok_and(|mut files| files.next().is_some());
    has_file && SEEN.get_or_init(Instant::now).elapsed() > BEGIN
        || BEGUN.get_or_init(Instant::now).elapsed() > PATIENCE
}

fn kill_with_a_step_in_flight(plugin: &Plugin, context: u64) {
    let mut player = Player::new(plugin, context, 0);
    let enqueued = player.enqueue(1 << 20, CHANNELS);
    let op = player.start_op(enqueued.coll, 0, true, std::process::id());
    let step = player.start_step(op, 0);
    plugin.record(step, 8, Some(&mut Args([0; 16])));
    signal(libc::SIGKILL);
}

fn signal(number: i32) {
    // SAFETY: no preconditions.
    let own = unsafe { libc::getpid() };
    // SAFETY: a process may signal itself.
    unsafe { libc::kill(own, number) };
}

static TERMINATE: AtomicBool = AtomicBool::new(false);

extern "C" fn remember(_signal: i32) {
    TERMINATE.store(true, Ordering::SeqCst);
}

extern "C" fn leave(_signal: i32) {
    // Many hosts do this, although no standard allows it in a handler.
    leave_by(libc::exit);
}

/// Exits the process immediately, after printing that this point was reached.
fn leave_by(exit: unsafe extern "C" fn(i32) -> !) {
    let word = b"survived\n";
    // SAFETY: the buffer is valid for its length.
    unsafe { libc::write(1, word.as_ptr().cast(), word.len()) };
    // SAFETY: any thread may end the process.
    unsafe { exit(0) };
}

/// The main thread exits; the process exits with the last of the other threads, which plays until
/// then.
fn leave_main(plugin: &Plugin, context: u64) {
    let play = script::find("allreduce").expect("it is there").play;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let leader = format!("/proc/self/task/{}/stat", std::process::id());
            let is_gone = || std::fs::read_to_string(&leader).is_ok_and(|s| s.contains(") Z "));
            while !is_gone() {
                std::thread::sleep(Duration::from_millis(1));
            }
            play(&ScriptSetup { plugin, context, ops: 10, threads: 1 });
            plugin.finalize(context);
            leave_by(libc::exit);
        });
        // SAFETY: ends this thread alone; only the thread above needs its stack, and it
        // stays as long as the process.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
}

/// A child that executes a program: the same one, with a normal end.
fn execute() {
    let mut args: Vec<_> = std::env::args_os().collect();
    let end = args.iter().position(|arg| arg == "exec-busy").expect("this is that end");
    args[end] = "finalize".into();
    let mut child = Command::new("/proc/self/exe");
    child.args(&args[1..]).stdout(Stdio::null());
    // SAFETY: the closure does nothing. With a closure, the standard library forks instead of using
    // `posix_spawn`.
    unsafe { child.pre_exec(|| Ok(())) };
    assert!(child.status().expect("the child starts").success(), "the child failed");
}

fn handle(handler: extern "C" fn(i32)) {
    // SAFETY: the handler is a function for one signal's number.
    let before = unsafe { libc::signal(libc::SIGTERM, handler as *const () as libc::sighandler_t) };
    assert_eq!(before, libc::SIG_DFL, "the plugin handles no signals");
}

/// The host's handler sets a flag, and the host exits normally.
fn terminate_in_order(busy: &dyn Fn(&dyn Fn())) {
    handle(remember);
    busy(&|| {
        signal(libc::SIGTERM);
        while !TERMINATE.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// The host's handler exits the process, on a thread that may be inside a callback, while other
/// threads make callbacks.
fn terminate_at_once(busy: &dyn Fn(&dyn Fn())) {
    handle(leave);
    busy(&|| {
        // SAFETY: zero is a valid value of this plain C type.
        let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: the set is valid.
        unsafe { libc::sigaddset(&raw mut set, libc::SIGTERM) };
        // Blocks the signal on this thread, which only waits.
        // SAFETY: the set is valid, and NULL is allowed for the old one.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut()) };
        signal(libc::SIGTERM);
        std::thread::sleep(Duration::from_secs(60));
    });
}

#[expect(clippy::exit, reason = "the child must not return to the parent's work")]
/// Parent and child both continue; the child's events are not recorded.
fn fork_once(plugin: &Plugin, context: u64) {
    // SAFETY: the child only calls the plugin and exits.
    let child = unsafe { libc::fork() };
    let play = script::find("allreduce").expect("it is there").play;
    play(&ScriptSetup { plugin, context, ops: 10, threads: 1 });
    plugin.finalize(context);
    if child == 0 {
        std::process::exit(0);
    }
    wait_for(child);
}

/// A child that outlives this process, as PyTorch's workers may; its process id is printed.
fn leave_a_child() {
    // SAFETY: the child only makes system calls.
    let child = unsafe { libc::fork() };
    if child != 0 {
        let word = format!("child {child}\n");
        // SAFETY: the buffer is valid for its length.
        unsafe { libc::write(1, word.as_ptr().cast(), word.len()) };
        return;
    }
    for descriptor in 0..3 {
        // SAFETY: no preconditions. With these closed, a reader of this process's output does not
        // wait for the child.
        unsafe { libc::close(descriptor) };
    }
    // SAFETY: no preconditions.
    unsafe { libc::sleep(CHILD_PATIENCE) };
    // SAFETY: ends the child at once.
    unsafe { libc::_exit(0) };
}

/// Forks while other threads are inside callbacks: the child plays, initialises its own
/// communicator and finalizes both; then it exits, with or without exit handlers.
#[expect(clippy::exit, reason = "the child must not return to the parent's work")]
fn fork_among_threads(plugin: &Plugin, context: u64, number: usize) {
    // SAFETY: the child calls the plugin, starts a thread and exits; glibc lets a child allocate.
    let child = unsafe { libc::fork() };
    if child != 0 {
        return wait_for(child);
    }
    // SAFETY: no preconditions.
    unsafe { libc::alarm(CHILD_PATIENCE) };
    let setup = ScriptSetup { plugin, context, ops: 5, threads: 1 };
    let play = script::find("allreduce").expect("it is there").play;
    play(&setup);
    let own = plugin.init(0xf0e1, 2, 0);
    setup.apart(|| play(&ScriptSetup { context: own, ..setup }));
    plugin.finalize(own);
    plugin.finalize(context);
    if number.is_multiple_of(2) {
        std::process::exit(0);
    }
    // SAFETY: ends the child at once.
    unsafe { libc::_exit(0) };
}

fn wait_for(child: libc::pid_t) {
    assert!(child > 0, "there is no child");
    let mut status = 0;
    // SAFETY: `status` is valid to write to.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child failed");
}

/// NCCL closes the library while another communicator is alive (2.30 to 2.32 after a failed `init`
/// of a second plugin), and loads it again for the next one.
fn unload_early(plugin: &Plugin) {
    for hash in 0..3 {
        plugin.unload();
        std::thread::sleep(Duration::from_millis(5));
        plugin.load_again();
        let context = plugin.init(0xd1c0 + hash, 2, 0);
        let mut player = Player::new(plugin, context, 0);
        let enqueued = player.enqueue(1, CHANNELS);
        player.proxy(enqueued, CHANNELS, 1);
        plugin.finalize(context);
    }
    plugin.unload();
}
