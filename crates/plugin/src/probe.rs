// SPDX-License-Identifier: Apache-2.0
/*!
CUDA events around kernel launches (`NCCLSCOPE_CUDA_EVENTS`).

NCCL starts and stops a KernelLaunch event directly before and after its call of the driver, on one
thread, which is never the one that runs CUDA's host functions (`ncclLaunchKernel`,
src/enqueue.cc@v2.30.7-1). The driver may therefore be called there. It is the only call out of the
recorder in a callback, and is made only for launches of communicators that are measured. The
runtime decides which these are, and owns the events ([`ncclscope_runtime::probe`]).
*/

use core::cell::Cell;
use ncclscope_abi::Descr;
use ncclscope_recorder::trace::{EventKind, Handle};
use ncclscope_runtime::probe::{self, Ticket};

thread_local! {
    /// The launch that the thread is in, if it is measured.
    static LAUNCH: Cell<Option<Ticket>> = const { Cell::new(None) };
}

/// Begins measuring the launch that has started with this handle, if it is a launch.
#[inline(always)]
pub(crate) fn started(comm: u16, started: Handle, descr: &Descr) {
    if let Descr::KernelLaunch(launch) = descr
        && probe::is_on()
        && started.process() != 0
    {
        begin(comm, started, launch.stream);
    }
}

#[inline(never)]
fn begin(comm: u16, started: Handle, stream: u64) {
    let ticket = probe::launching(comm, started, stream);
    if let Some(missed) = LAUNCH.replace(ticket) {
        probe::missed(missed);
    }
}

/// True if the event that is stopped may be a launch that is measured.
#[inline(always)]
pub(crate) fn is_launch(handle: Handle) -> bool {
    handle.kind() == EventKind::KernelLaunch && probe::is_on()
}

/// Ends measuring a launch that has stopped.
#[inline(never)]
pub(crate) fn stopped(stopped: Handle) {
    match LAUNCH.take() {
        Some(ticket) if ticket.launch() == stopped => probe::launched(ticket),
        other => LAUNCH.set(other),
    }
}
