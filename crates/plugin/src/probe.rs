// SPDX-License-Identifier: Apache-2.0
/*!
The callbacks with CUDA events around kernel launches (`NCCLSCOPE_CUDA_EVENTS=on`).

They are written into the exported tables when the library is loaded ([`crate::vtables`]); without
the variable they never run, and no instruction of a callback differs. NCCL starts and stops a
KernelLaunch event directly before and after its call of the driver, on one thread, which is never
the one that runs CUDA's host functions (`ncclLaunchKernel`, src/enqueue.cc@v2.30.7-1). The driver
may therefore be called there. It is the only call out of the recorder in a callback, and the user
requested it. The runtime owns the events themselves ([`ncclscope_runtime::probe`]).
*/

use crate::callbacks as ours;
use crate::guard::guard;
use core::cell::Cell;
use core::ffi::c_void;
use ncclscope_abi::{Descr, NcclResult, Version};
use ncclscope_recorder::trace::{EventKind, Handle};
use ncclscope_runtime::Runtime;
use ncclscope_runtime::probe::{self, Ticket};

pub(crate) use probe::is_wanted;

thread_local! {
    /// The launch that the thread is in, if it is measured.
    static LAUNCH: Cell<Option<Ticket>> = const { Cell::new(None) };
}

/// `startEvent` of version `V`.
///
/// # Safety
/// As for [`ours::start`].
pub(crate) unsafe extern "C" fn start<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    // SAFETY: the caller's promise is the same.
    let result = unsafe { ours::start::<V>(context, handle, descr) };
    if handle.is_null() || descr.is_null() {
        return result;
    }
    // SAFETY: not null, and valid by the caller's promise.
    let started = Handle(unsafe { handle.read() }.addr() as u64);
    if is_launch(started) {
        guard(|| {
            // SAFETY: not null, and the caller's promise is the same.
            if let Descr::KernelLaunch(launch) = unsafe { V::view(descr) }.descr {
                let comm = Runtime::get().comm_of(context.addr() as u64);
                let ticket = probe::launching(comm, started, launch.stream);
                if let Some(missed) = LAUNCH.replace(ticket) {
                    probe::missed(missed);
                }
            }
        });
    }
    result
}

/// `stopEvent` of any version.
///
/// # Safety
/// None: any handle is safe.
pub(crate) unsafe extern "C" fn stop(handle: *mut c_void) -> NcclResult {
    // SAFETY: any handle is safe.
    let result = unsafe { ours::stop(handle) };
    let stopped = Handle(handle.addr() as u64);
    if is_launch(stopped) {
        guard(|| match LAUNCH.take() {
            Some(ticket) if ticket.launch() == stopped => probe::launched(ticket),
            other => LAUNCH.set(other),
        });
    }
    result
}

/// Calls [`start`] if CUDA events are wanted, else [`ours::start`]; for the chain of plugins.
///
/// # Safety
/// As for [`ours::start`].
pub(crate) unsafe fn start_either<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    if probe::is_on() {
        // SAFETY: the caller's promise is the same.
        unsafe { start::<V>(context, handle, descr) }
    } else {
        // SAFETY: the caller's promise is the same.
        unsafe { ours::start::<V>(context, handle, descr) }
    }
}

/// Calls [`stop`] if CUDA events are wanted, else [`ours::stop`].
pub(crate) fn stop_either(handle: *mut c_void) -> NcclResult {
    if probe::is_on() {
        // SAFETY: any handle is safe.
        unsafe { stop(handle) }
    } else {
        // SAFETY: any handle is safe.
        unsafe { ours::stop(handle) }
    }
}

#[inline]
fn is_launch(handle: Handle) -> bool {
    handle.kind() == EventKind::KernelLaunch && handle.process() != 0
}
