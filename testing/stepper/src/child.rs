// SPDX-License-Identifier: Apache-2.0
//! The child: plays callbacks in one phase after another, and marks each phase with a trap.

use crate::phase::{Addresses, FORBIDDEN, Phase, PhaseSet};
use crate::sys;
use core::ffi::{c_int, c_void};
use core::hint::black_box;
use fake_nccl::play::now_ns;
use fake_nccl::{Log, Player, Plugin};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// The program's first argument in the child; the plugin, the version and the part follow.
pub const VERB: &str = "child";
/// Exit status of a child that may not be traced.
pub const NOT_TRACED: u8 = 77;
/// Mark that ends a phase.
pub(crate) const END: u64 = 0;
/// Mark after which callbacks are not stepped and all other threads are stopped.
const HOLD: u64 = 100;
/// Number of times that the hot phase plays every callback.
const ROUNDS: usize = 3;
/// More threads than there are lanes.
const CROWD: usize = 272;
/// The child exits after this time, even if something hangs.
const SECONDS: u32 = 300;
/// Longer than the drain thread's sleep.
const DRAINED: Duration = Duration::from_millis(300);
/// Free bytes in a thread's heap before its first callback: more than the linker allocates.
const HEAP: usize = 32 << 10;
/// Number of times that each of many threads tries to get a lane; the last threads get none.
const PATIENCE: usize = 8;
/// Handles that no plugin returned: null, all ones, numbers, an address, and values that look like
/// the plugin's handles.
const GARBAGE: [u64; 8] =
    [1, u64::MAX, 0xdead_beef, 0x7fff_ffff_f000, 1 << 63, 0x5555_5555_5555_5555, 8, 1 << 36];

/// Plays a part to `plugin` at `version`.
///
/// # Errors
/// The loader's error text. The process exits with [`NOT_TRACED`] if it may not be traced.
pub fn run(plugin: &Path, version: usize, phases: PhaseSet) -> Result<(), String> {
    trace_me();
    // SAFETY: the call only sets a timer, which ends the process.
    unsafe { libc::alarm(SECONDS) };
    let addresses = addresses(plugin, version)?;
    let loaded = Plugin::load(plugin, version, Log::new(false))?;
    let context = loaded.init(0xc0ffee, 2, 0);
    let phase_player = PhasePlayer { plugin: &loaded, context, addresses };
    let mut player = phase_player.player();
    if phases == PhaseSet::Off {
        phase_player.phase(Phase::Off, || phase_player.everything(&mut player));
        return Ok(());
    }
    for _ in 0..20 {
        phase_player.everything(&mut player);
    }
    // By now the drain thread knows the strings, and the lane is empty.
    thread::sleep(DRAINED);
    phase_player
        .phase(Phase::Hot, || (0..ROUNDS).for_each(|_| phase_player.everything(&mut player)));
    if phases == PhaseSet::On {
        phase_player.states(&mut player);
    }
    Ok(())
}

/// A plugin with a communicator.
struct PhasePlayer<'a> {
    plugin: &'a Plugin,
    context: u64,
    addresses: Addresses,
}

impl PhasePlayer<'_> {
    fn player(&self) -> Player<'_> {
        Player::new(self.plugin, self.context, 0)
    }

    /// All phases from [`Phase::Repeat`] on.
    fn states(&self, player: &mut Player<'_>) {
        self.phase(Phase::Repeat, || self.repeated(player));
        self.phase(Phase::Stale, || self.stale(player));
        self.phase(Phase::Unknown, || self.unknown(player));
        thread::sleep(DRAINED);
        self.full(player);
        thread::sleep(DRAINED);
        self.first();
        self.crowd();
        self.plugin.finalize(self.context);
        self.phase(Phase::Finalized, || self.everything(player));
    }

    fn phase(&self, phase: Phase, play: impl FnOnce()) {
        self.mark(phase as u64);
        play();
        self.mark(END);
    }

    /// Reports the following phase to the parent by a trap. From here to [`END`], nothing may take
    /// a lock, since a stopped thread may hold it.
    fn mark(&self, mark: u64) {
        let addresses = &raw const self.addresses;
        // SAFETY: the parent handles the trap: it reads the registers and lets the thread continue.
        unsafe { core::arch::asm!("int3", in("rdi") mark, in("rsi") addresses) };
    }

    /// Each callback of the version at least once.
    fn everything(&self, player: &mut Player<'_>) {
        let v = player.version();
        let enqueued = player.enqueue(1 << 20, 2);
        player.proxy(enqueued, 1, 3);
        let group = player.start_group();
        let p2p =
            player.start_p2p(if v >= 5 { self.p2p_api(player) } else { group }, group, true, 4);
        let foreign = player.start_op(7 << 40, 1, true, std::process::id() + 1);
        self.stop_all(&[foreign, p2p, group]);
        player.proxy_ctrl(13, 0);
        if v >= 3 {
            let op = player.start_op(p2p, 0, true, std::process::id());
            let step = player.start_step(op, 0);
            let (ib, socket) =
                (player.start_ib(step, 1, 64), player.start_socket(step, 5, false, 64));
            self.stop_all(&[ib, socket, step, op]);
        }
        if v >= 6 {
            let coll = player.start_ce_coll(0, 1, 64);
            player.ce_sync(coll, false);
            let batch = player.start_ce_batch(coll, 3, 64);
            self.stop_all(&[batch, coll]);
        }
        if v >= 7 {
            let kernel = player.start_kernel(enqueued.coll, 0, now_ns());
            player.kernel_phase(kernel, 0, 1, now_ns());
            player.stop_kernel(kernel, now_ns());
        }
    }

    fn p2p_api(&self, player: &Player<'_>) -> u64 {
        let group = player.start_group_api(false, 1);
        let api = player.p2p_api(group, true, 64);
        player.end_group_api(group);
        self.plugin.stop(group);
        api
    }

    fn stop_all(&self, handles: &[u64]) {
        handles.iter().for_each(|&handle| self.plugin.stop(handle));
    }

    fn repeated(&self, player: &Player<'_>) {
        let receive = player.start_op(0, 0, false, std::process::id());
        let start = || player.start_step(receive, 0);
        let step = (0..8).fold(0, |_, _| start());
        let send = player.start_op(0, 0, true, std::process::id());
        let waits = player.start_step(send, 0);
        (0..8).for_each(|_| self.state(waits, 20));
        self.stop_all(&[step, waits, receive, send]);
        // Eight steps in flight, then eight more in their slots, which end with their operation.
        let forgetful = player.start_op(0, 0, true, std::process::id());
        (0..16).for_each(|number| _ = player.start_step(forgetful, number));
        self.plugin.stop(forgetful);
    }

    fn state(&self, handle: u64, state: c_int) {
        self.plugin.record(handle, state, None);
    }

    fn stale(&self, player: &mut Player<'_>) {
        let coll = player.start_coll(0, 0, 64, 1);
        let op = player.start_op(coll, 0, true, std::process::id());
        let step = player.start_step(op, 0);
        for _ in 0..2 {
            self.stop_all(&[step, op, coll]);
            [8, 20, 9].into_iter().for_each(|state| self.state(step, state));
            self.state(op, 19);
            self.plugin.stop(player.start_step(op, 1));
        }
        for garbage in GARBAGE {
            // The low bits are wrong, the high bits are those of a real handle.
            for handle in [garbage, step ^ garbage, op ^ garbage] {
                self.state(handle, 20);
                self.plugin.stop(handle);
                self.plugin.stop(player.start_step(handle, 2));
            }
        }
    }

    fn unknown(&self, player: &mut Player<'_>) {
        for bit in [0, 3, 1 << 20, 1 << 40, u64::MAX] {
            self.plugin.stop(player.start_raw(bit, 0));
        }
        let coll = player.start_coll(0, 0, 64, 1);
        let op = player.start_op(coll, 0, true, std::process::id());
        let step = player.start_step(op, 0);
        for state in [-1, 0, 99, 255, 256, c_int::MAX] {
            [coll, op, step].into_iter().for_each(|handle| self.state(handle, state));
        }
        if player.version() >= 3 {
            self.plugin.stop(player.start_net(step, 0x9_0009, 0));
        }
        self.stop_all(&[step, op, coll]);
    }

    /// Plays the ends of events that started before the lane was full, and events of each kind
    /// after that.
    fn full(&self, player: &mut Player<'_>) {
        self.mark(Phase::Hot as u64);
        let coll = player.start_coll(0, 0, 64, 1);
        let op = player.start_op(coll, 0, true, std::process::id());
        let step = player.start_step(op, 0);
        let group = player.start_group();
        self.mark(HOLD);
        for _ in 0..1_000_000 {
            if player.start_group() == 0 {
                break;
            }
        }
        self.phase(Phase::Full, || {
            [8, 20, 9].into_iter().for_each(|state| self.state(step, state));
            player.step(op, 1, false);
            self.state(op, 19);
            self.stop_all(&[step, op, coll, group]);
            self.everything(player);
        });
    }

    /// The first event of a thread, of each kind.
    fn first(&self) {
        let player = self.player();
        self.mark(Phase::Hot as u64);
        let op = player.start_op(0, 0, true, std::process::id());
        let step = player.start_step(op, 0);
        let group = player.start_group();
        self.mark(END);
        let firsts: [&(dyn Fn() + Sync); 7] = [
            &|| self.plugin.stop(player.start_group()),
            &|| self.plugin.stop(self.player().start_coll(0, 0, 64, 1)),
            &|| player.op(0, 0, false, 1),
            &|| player.proxy_ctrl(13, 0),
            &|| self.plugin.stop(step),
            &|| self.plugin.stop(op),
            &|| self.plugin.stop(group),
        ];
        for first in firsts {
            self.on_thread(|| self.phase(Phase::First, first));
        }
    }

    fn on_thread(&self, play: impl FnOnce() + Send) {
        thread::scope(|scope| {
            scope.spawn(|| {
                // The known allocation of the dynamic linker could otherwise grow the heap that the
                // C library gives this thread, which takes a system call.
                drop(black_box(Vec::<u8>::with_capacity(HEAP)));
                trace_me();
                play();
            });
        });
    }

    /// Starts events until one is recorded. Memory for more threads is added step by step.
    fn take_lane(&self) {
        for _ in 0..PATIENCE {
            let group = self.player().start_group();
            self.plugin.stop(group);
            if group != 0 {
                break;
            }
            thread::sleep(DRAINED);
        }
    }

    /// Each lane has its thread, and one more thread makes callbacks.
    fn crowd(&self) {
        // So many communicators that the plugin expects this many threads.
        let contexts: Vec<_> = (1..300).map(|hash| self.plugin.init(hash, 2, 0)).collect();
        let (here, end) = (Barrier::new(CROWD + 1), Barrier::new(CROWD + 1));
        thread::scope(|scope| {
            for _ in 0..CROWD {
                scope.spawn(|| {
                    self.take_lane();
                    here.wait();
                    end.wait();
                });
            }
            here.wait();
            self.on_thread(|| self.phase(Phase::Crowd, || self.everything(&mut self.player())));
            end.wait();
        });
        contexts.into_iter().for_each(|context| self.plugin.finalize(context));
    }
}

fn trace_me() {
    if sys::trace_me().is_err() {
        // SAFETY: it does not return, and leaves nothing that matters.
        unsafe { libc::_exit(c_int::from(NOT_TRACED)) };
    }
}

/// The addresses of a version's callbacks, and of functions that they may not call.
fn addresses(plugin: &Path, version: usize) -> Result<Addresses, String> {
    let path = CString::new(plugin.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: running the plugin's initialisers is what this is for.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let symbol = CString::new(format!("ncclProfiler_v{version}")).map_err(|e| e.to_string())?;
    // SAFETY: the symbol is a C string. A null `library` means "any library".
    let table = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    if library.is_null() || table.is_null() {
        return Err(format!("{} has no {symbol:?}, or does not load", plugin.display()));
    }
    // The table has: name, `init`, `startEvent`, `stopEvent`, `recordEventState`, `finalize`.
    // SAFETY: the symbol is a table of six pointers, in all versions.
    let table = unsafe { table.cast::<[*const c_void; 6]>().read() };
    let forbidden = FORBIDDEN.map(|name| {
        // SAFETY: the name is a string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr() as u64
    });
    let callbacks = [table[2], table[3], table[4]].map(|function| function.addr() as u64);
    Ok(Addresses { callbacks, forbidden })
}
