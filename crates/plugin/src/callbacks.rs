// SPDX-License-Identifier: Apache-2.0
//! The callbacks of the exported tables. NCCL calls them directly if the plugin is alone; a chain
//! of plugins and the CUDA events call them before their own work.

use crate::entry;
use core::ffi::c_void;
use ncclscope_abi::{EventState, NcclResult, Version};

// Not inlined, so that changes to the chain of plugins change no instruction in these functions.

/// # Safety
/// As for [`entry::start`].
#[inline(never)]
pub(crate) unsafe extern "C" fn start<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    // SAFETY: NCCL passes a slot for the handle, and a descriptor of the version that it looked up;
    // its header is set, and the union member that its type selects.
    unsafe { entry::start::<V, true>(context, handle, descr) }
}

/// [`start`] for a chain of plugins, whose `handle` is not NCCL's.
///
/// # Safety
/// As for [`start`].
#[inline(never)]
pub(crate) unsafe fn start_chained<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    // SAFETY: the caller's promise is the same.
    unsafe { entry::start::<V, false>(context, handle, descr) }
}

/// # Safety
/// None: any handle is safe.
#[inline(never)]
pub(crate) unsafe extern "C" fn stop(handle: *mut c_void) -> NcclResult {
    entry::stop(handle)
}

/// # Safety
/// As for [`entry::record`].
#[inline(never)]
pub(crate) unsafe extern "C" fn record<V: Version>(
    handle: *mut c_void,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    // SAFETY: NCCL passes null or arguments of the version that it looked up; the member that the
    // state selects is set.
    unsafe { entry::record::<V>(handle, state, args) }
}

/// # Safety
/// None: any context is safe.
#[inline(never)]
pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    entry::finalize(context)
}
