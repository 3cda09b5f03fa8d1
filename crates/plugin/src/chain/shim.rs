// SPDX-License-Identifier: Apache-2.0
//! Converts an event for a plugin of any version: unchanged for NCCL's own version, and for an
//! older version by NCCL's own conversion.

use core::ffi::c_void;
use ncclscope_abi::older::{self, Parents};
use ncclscope_abi::{Descr, EventState, EventView, Version, v1, v4};

/// One plugin's handles for the parents of an event.
#[derive(Clone, Copy)]
pub(super) struct Links {
    /// `parentObj`.
    pub(super) parent: *mut c_void,
    /// `parentGroup`.
    pub(super) group: *mut c_void,
}

/// Calls `start` with the event as a descriptor of version `plugin`; `None` if that version has no
/// such event.
///
/// # Safety
/// - `descr` is as [`Version::view`] requires, and `view` is its view.
/// - Strings of the view are null or readable.
#[inline]
pub(super) unsafe fn describe<V: Version<Descr: Parents>, T>(
    plugin: u8,
    descr: *const V::Descr,
    view: &EventView,
    mut links: Links,
    start: impl FnOnce(*mut c_void) -> T,
) -> Option<T> {
    if plugin >= V::NUMBER {
        // SAFETY: readable by the caller's promise.
        let mut copy = unsafe { *descr };
        copy.set_parent(links.parent);
        copy.set_group(links.group);
        return Some(start((&raw mut copy).cast()));
    }
    // Up to version 4, the parent of an operation was the Group.
    if plugin <= 4 && V::NUMBER >= 5 && matches!(view.descr, Descr::Coll(_) | Descr::P2p(_)) {
        links.parent = links.group;
    }
    // SAFETY: the caller's promise is the same.
    unsafe { older::describe(plugin, view, (links.parent, links.group), start) }
}

/// Calls `record` with the arguments of `state` in the form of version `plugin`, unless that
/// version does not have the state.
///
/// # Safety
/// `args` are null or state arguments of version `native`.
#[inline]
pub(super) unsafe fn state(
    native: u8,
    plugin: u8,
    state: EventState,
    args: *mut c_void,
    record: impl FnOnce(*mut c_void),
) {
    // Versions 1 to 3 have the same states and arguments.
    if plugin >= native || native <= 3 {
        return record(args);
    }
    // States that only versions 1 to 3 have, or that are newer than the plugin's version.
    if state.0 < 8 || state.since().is_none_or(|since| since > plugin) {
        return;
    }
    let has_args = matches!(state.0, 8..=18 | 20..=22) && !args.is_null();
    if plugin <= 3 {
        let mut older = v1::StateArgs { proxyOp: v1::ProxyOpArgs { transSize: 0, steps: 0 } };
        if has_args && state.0 >= 13 {
            // SAFETY: not null, and the state selects this member.
            older.proxyCtrl = unsafe { args.cast::<v1::ProxyCtrlArgs>().read() };
        }
        return record((&raw mut older).cast());
    }
    let mut older = v4::StateArgs { proxyStep: v4::ProxyStepArgs { transSize: 0 } };
    if has_args {
        // SAFETY: not null; the content is not interpreted.
        older = unsafe { args.cast::<v4::StateArgs>().read() };
    }
    record((&raw mut older).cast());
}
