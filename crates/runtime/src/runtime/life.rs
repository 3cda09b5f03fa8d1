// SPDX-License-Identifier: Apache-2.0
//! The life cycle: communicators are created and destroyed; the process forks and exits.

use super::Runtime;
use crate::context::{COMMS, NO_COMM, context};
use crate::drain::Drain;
use crate::library::Release;
use crate::log::{Logger, is_over};
use crate::meter::Farewell;
use crate::orders::Order;
use crate::reply::{Reply, elsewhere};
use crate::state::{CommInfo, Phase};
use crate::sys::cuda::Device;
use crate::sys::mask::ActivationMask;
use crate::{caller, lanes, probe, sys};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use ncclscope_control::table;
use ncclscope_control::text::beginning;
use ncclscope_control::value::CudaEvents;
use ncclscope_recorder::{call_counters, clock, gate};
use ncclscope_trace::{Comm, EventKind, Vendor};
use std::time::{Duration, Instant};

/// How long the end of the last communicator waits until all records are in the file. The rest is
/// written later.
const FINALIZE_PATIENCE: Duration = Duration::from_millis(20);
/// How long the end of the last communicator then waits for NCCL's log.
const LOG_PATIENCE: Duration = Duration::from_millis(25);
/// How long the end of the process waits for NCCL's log.
const LAST_LOG_PATIENCE: Duration = Duration::from_millis(250);
/// How long the end of the process waits for a file system that accepts no writes; `EXIT_MOST` is
/// that for a slow one.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);
const EXIT_MOST: Duration = Duration::from_secs(30);
/// Maximum bytes kept of a communicator's name.
const NAME_BYTES: usize = 255;

impl Runtime {
    /// Adds a communicator that is initialised; returns its context. `nccl` is an address in the
    /// calling NCCL's image, `active` its activation mask, to which the wanted events are added.
    /// Never fails.
    #[must_use]
    pub fn attach(
        &'static self,
        info: CommInfo,
        nccl: usize,
        active: Option<ActivationMask>,
        logger: Option<Logger>,
    ) -> u64 {
        // A child that was created by a system call during the first `attach` must not wait: the
        // thread that it would wait for exists only in the parent.
        if gate::is_dead() || sys::is_child_of_first() {
            return self.context(NO_COMM);
        }
        // Before any lock, because this takes the dynamic linker's lock.
        let nccl = self.libraries.of(nccl);
        let release = nccl.release;
        let dropped = caller::note(release.vendor, nccl.timer_ns());
        self.begun.call_once_force(|_| {
            let begin = move || self.begin(release);
            if elsewhere("ncclscope/begin", None, begin).is_none() {
                self.shared.contain();
            }
        });
        let device = Device::current();
        let (index, is_running) = self.number();
        self.shared.log.join(index, nccl, logger);
        if !is_running {
            self.shared.log.speak();
            return self.context(NO_COMM);
        }
        if let Some(line) = dropped {
            self.shared.tell(line.to_owned());
        }
        if index == NO_COMM {
            self.shared.comms_lost.fetch_add(1, Ordering::Relaxed);
            self.shared.lock().activate(active);
            return self.context(NO_COMM);
        }
        // Before the drain thread is notified, and without the lock, because it may look at all
        // cells.
        call_counters::watch(index);
        let mut state = self.shared.lock();
        active.into_iter().for_each(|active| state.masks.keep(index, active));
        state.activate(active);
        let name = info.name.as_deref().map(|name| beginning(name, NAME_BYTES).to_owned());
        let info = CommInfo { name, ..info };
        let comm = comm(index, &info, release);
        let is_measured = self.is_measured(&comm, state.mask.unwrap_or(0));
        self.shared.order(Order::Comm(comm), 0);
        if let Some(device) = device {
            self.shared.order(Order::Device { index, device }, 0);
        }
        let api_version = info.api_version;
        state.comms.insert(index, info);
        // The drain thread may sleep for long while there is no communicator.
        state.wake_drain();
        drop(state);
        if is_measured {
            self.measure(index, api_version);
        }
        self.context(index)
    }

    /// Whether CUDA events are recorded around a communicator's launches. `mask`: the events that
    /// are requested from NCCL.
    fn is_measured(&self, comm: &Comm, mask: u32) -> bool {
        let has_launches = mask & EventKind::KernelLaunch.bit() != 0;
        match self.setting(&table::CUDA_EVENTS) {
            CudaEvents::On => true,
            CudaEvents::Off => false,
            // With AMD's library there is no CUDA driver.
            CudaEvents::Auto if comm.vendor == Vendor::Amd => false,
            CudaEvents::Auto => {
                has_launches && probe::has_launches(comm.api_version) && comm.hides_ends(mask)
            }
        }
    }

    fn measure(&'static self, comm: u16, api_version: u32) {
        let setting = self.setting(&table::CUDA_EVENTS);
        let begun = probe::begin(&self.shared.recorder, setting);
        let joined = begun.and_then(|()| probe::join(comm, api_version, setting));
        if let Err(line) = joined {
            self.shared.problem(&line);
        }
    }

    /// An index for one more communicator, or [`NO_COMM`]; and whether there is a recording.
    fn number(&self) -> (u16, bool) {
        let mut state = self.shared.lock();
        state.live += 1;
        if !state.is_running() || state.next_comm >= COMMS {
            return (NO_COMM, state.is_running());
        }
        state.next_comm += 1;
        (state.next_comm - 1, true)
    }

    fn context(&self, comm: u16) -> u64 {
        context(self.shared.nonce.load(Ordering::Relaxed), comm)
    }

    /// Removes a finalized communicator. Late events of it are still recorded.
    pub fn detach(&'static self, context: u64) {
        // NCCL finalizes the contexts that `init` returned; any other value must not end a
        // communicator.
        if sys::is_child() || !self.is_ours(context) {
            return;
        }
        let index = self.comm_of(context);
        if !gate::is_dead() {
            self.end_comm(index);
        }
        // The communicator's NCCL may be unloaded after this.
        self.shared.log.leave(index);
    }

    fn end_comm(&'static self, index: u16) {
        self.shared.recorder.end_comm(index);
        probe::leave(index);
        let mut state = self.shared.lock();
        state.live = state.live.saturating_sub(1);
        state.masks.forget(index);
        if let Some(comm) = state.comms.remove(&index) {
            if comm.hash == 0
                && let Some((hash, rank)) = self.shared.learned(index)
            {
                self.shared.order(Order::Learned { index, hash, rank }, 0);
            }
            self.shared.order(Order::CommEnd { index, ticks: clock::now() }, 0);
        }
        let is_last = state.live == 0 && state.is_running();
        drop(state);
        if is_last {
            self.ask(Order::Flush, FINALIZE_PATIENCE);
            self.shared.log.flush(LOG_PATIENCE);
        }
    }

    /// Closes the recording when the process exits in order, with this status.
    fn close(&'static self, status: u8) {
        // In the child of a fork, the file belongs to the parent, and any lock may stay locked.
        if sys::is_child() {
            return;
        }
        probe::close();
        self.shared.kill();
        if !self.has_free_locks() {
            // The lanes are in the lanes file, where readers find the rest.
            return;
        }
        let socket = {
            let mut state = self.shared.lock();
            if state.is_running() {
                state.phase = Phase::Closed;
            }
            state.socket.take()
        };
        self.close_recording(status);
        drop(socket);
        self.shared.log.flush(LAST_LOG_PATIENCE);
    }

    /// True if no lock is held for longer than a moment. A signal handler that exits the process
    /// may have interrupted the thread that holds one.
    fn has_free_locks(&self) -> bool {
        let mut until = None;
        loop {
            if self.shared.is_free() {
                return true;
            }
            if is_over(&mut until, EXIT_PATIENCE) {
                return false;
            }
            crate::sys::wake::pause(Duration::from_millis(1));
        }
    }

    fn close_recording(&'static self, status: u8) {
        let mut until = None;
        let mut drain = loop {
            match self.drain.try_lock() {
                Some(drain) => break drain,
                None if !is_over(&mut until, EXIT_PATIENCE) => {
                    crate::sys::wake::pause(Duration::from_millis(1));
                }
                // The lanes are in the lanes file, where readers find the rest.
                None => return,
            }
        };
        let Some(mut last) = drain.take() else { return };
        drop(drain);
        let (closed, done) = Reply::new();
        let close = move || {
            self.tell_learned(&mut last);
            let farewell = last.close(status, done);
            (last, farewell)
        };
        let Some((mut last, farewell)) = elsewhere("ncclscope/end", Some(EXIT_MOST), close) else {
            return;
        };
        wait_while_it_writes(closed, &last);
        let mut lines = last.take_lines();
        lines.extend(farewell.into_iter().flat_map(Farewell::wait));
        lines.iter().for_each(|line| self.shared.problem(line));
    }
}

/// Waits until the recording is closed, as long as the file system accepts writes. Otherwise the
/// lanes stay in the lanes file.
fn wait_while_it_writes(mut closed: Reply<()>, last: &Drain) {
    let most = Instant::now() + EXIT_MOST;
    while Instant::now() < most {
        let before = last.progress();
        match closed.wait_or_keep(EXIT_PATIENCE) {
            Err(reply) if last.progress() != before => closed = reply,
            _ => return,
        }
    }
}

fn comm(index: u16, info: &CommInfo, release: Release) -> Comm {
    Comm {
        index,
        hash: info.hash,
        name: info.name.clone(),
        nodes: info.nodes,
        ranks: info.ranks,
        rank: info.rank,
        ticks: clock::now(),
        api_version: info.api_version,
        nccl_version: release.version,
        vendor: release.vendor,
    }
}

/// Handler in the child of a fork: the child has no drain thread, and its memory is shared with the
/// parent's recording.
pub(super) extern "C" fn in_child() {
    sys::note_fork();
    Runtime::get().shared.kill();
    lanes::close_in_child(&Runtime::get().shared.recorder.region);
}

/// Handler at the end of the process. Its parent sees the low eight bits of the status.
pub(super) extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    let _shield = sys::shield::Shield::raise();
    let [status, ..] = status.to_le_bytes();
    let _ = std::panic::catch_unwind(|| Runtime::get().close(status));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if a signal handler exits the process after it interrupted the holder of the lock.
    #[test]
    fn the_end_of_the_process_does_not_wait_for_a_lock_that_stays() {
        let _turn = probe::TEST_TURN.lock().unwrap();
        let runtime = Runtime::get();
        assert!(runtime.has_free_locks());
        let state = runtime.shared.lock();
        let begin = Instant::now();
        runtime.close(0);
        assert!(begin.elapsed() < 5 * EXIT_PATIENCE);
        assert_eq!(state.phase, Phase::New, "it was not touched");
    }
}
