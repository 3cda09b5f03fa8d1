// SPDX-License-Identifier: Apache-2.0
//! The callbacks of the exported tables. NCCL calls them directly if the plugin is alone; a chain
//! of plugins and the CUDA events call them before their own work.

use crate::entry;
use core::ffi::c_void;
use ncclscope_abi::{EventState, NcclResult, Version};

// Not inlined: what a chain of plugins does with these changes no instruction in them.

/// # Safety
/// As [`entry::start`].
#[inline(never)]
pub(crate) unsafe extern "C" fn start<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    // SAFETY: NCCL passes a slot for the handle, and a descriptor of the version it looked up with
    // the header and the arm that its type selects set.
    unsafe { entry::start::<V>(context, handle, descr) }
}

/// # Safety
/// None: any handle will do.
#[inline(never)]
pub(crate) unsafe extern "C" fn stop(handle: *mut c_void) -> NcclResult {
    entry::stop(handle)
}

/// # Safety
/// As [`entry::record`].
#[inline(never)]
pub(crate) unsafe extern "C" fn record<V: Version>(
    handle: *mut c_void,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    // SAFETY: NCCL passes null, or arguments of the version it looked up with the member set that
    // the state selects.
    unsafe { entry::record::<V>(handle, state, args) }
}

/// # Safety
/// None: any context will do.
#[inline(never)]
pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    entry::finalize(context)
}
