// SPDX-License-Identifier: Apache-2.0
//! Passes the callbacks to our plugin and to the chained plugins: each gets what NCCL would pass to
//! it if it were the only plugin. This module does not allocate, lock, wait or make system calls;
//! the other plugins may.

use super::comms::{Comm, Comms};
use super::member::{Member, pointer};
use super::shim::{self, Links};
use super::slab::{Entry, PLUGINS, Slab};
use super::union::Union;
use super::{member, rule};
use crate::callbacks as ours;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};
use ncclscope_abi::older::Parents;
use ncclscope_abi::{Descr, EventMask, EventState, EventType, EventView, NcclResult, Version};
use ncclscope_runtime::sys;

/// Our plugin and the chained plugins.
#[derive(Debug)]
pub(super) struct Fan {
    /// The activation mask of our plugin, which our `init` gets in place of NCCL's.
    pub(super) mask: AtomicI32,
    /// NCCL's activation mask: the union of the masks of all plugins.
    pub(super) union: Union,
    /// The chained plugins; the first has number 1.
    pub(super) members: Vec<Member>,
    pub(super) comms: Comms,
    pub(super) slab: Slab,
}

/// The context, parents and masks of an event, and which plugins get it.
struct Origin<'a> {
    context: *mut c_void,
    comm: Option<&'a Comm>,
    parent: Option<Entry>,
    group: Option<Entry>,
    masks: [u32; PLUGINS],
    /// A plugin gets the event only if its mask has at least one of these bits.
    needed: u32,
    /// A plugin gets the event only if it gave a handle for the parent.
    needs_parent: bool,
    /// The operation belongs to another process (PXN), whose context and parent have no meaning
    /// here.
    foreign: bool,
}

impl Fan {
    /// The current mask of each plugin.
    #[inline]
    fn masks(&self) -> [u32; PLUGINS] {
        let mut masks = [0; PLUGINS];
        let words = self.members.iter().map(|member| &member.mask);
        for (mask, word) in masks.iter_mut().zip(core::iter::once(&self.mask).chain(words)) {
            *mask = word.load(Ordering::Relaxed).cast_unsigned();
        }
        masks
    }

    /// The activation mask to request from NCCL: the union of all plugins' masks.
    pub(super) fn wanted(&self) -> i32 {
        let all = self.members.iter().map(|member| member.mask.load(Ordering::Relaxed));
        all.fold(self.mask.load(Ordering::Relaxed), |union, mask| union | mask)
    }

    #[inline]
    fn origin(&self, native: u8, context: *mut c_void, view: &EventView) -> Origin<'_> {
        let comm = self.comms.get(context.addr() as u64);
        let foreign = match &view.descr {
            Descr::ProxyOp(op) => op.pid != sys::cached_pid() || comm.is_none(),
            _ => false,
        };
        let parent = if foreign { None } else { self.slab.read(view.parent) };
        let group = match &view.descr {
            Descr::Coll(coll) => self.slab.read(coll.parent_group),
            Descr::P2p(p2p) => self.slab.read(p2p.parent_group),
            _ => None,
        };
        let event = view.descr.event_type();
        let masks = match &parent {
            Some(parent) if event.is_some_and(rule::inherits) => parent.masks,
            _ => self.masks(),
        };
        let (needed, needs_parent) = match (event, &view.descr) {
            (Some(event), _) => (rule::needed(native, event), rule::needs_parent(native, event)),
            // Of an unknown event type, only its bit is known.
            (None, Descr::Unknown(bits)) => (u32::try_from(*bits).unwrap_or(0), false),
            (None, _) => (0, false),
        };
        Origin { context, comm, parent, group, masks, needed, needs_parent, foreign }
    }
}

impl Origin<'_> {
    /// True if NCCL would start the event for this plugin.
    #[inline]
    fn takes(&self, plugin: usize) -> bool {
        let mask = self.masks.get(plugin).copied().unwrap_or(0);
        mask & self.needed != 0
            && (!self.needs_parent || handle_of(self.parent.as_ref(), plugin) != 0)
    }

    /// The handles that this plugin gave for the event's parents.
    #[inline]
    fn links(&self, plugin: usize) -> Links {
        let [parent, group] = [&self.parent, &self.group]
            .map(|entry| member::pointer(handle_of(entry.as_ref(), plugin)));
        Links { parent, group }
    }

    /// The context of a chained plugin; `None` if it was not initialised for the communicator.
    #[inline]
    fn context(&self, number: usize, member: &Member) -> Option<*mut c_void> {
        if let (Some(comm), false) = (self.comm, self.foreign) {
            return comm.context(number).map(pointer);
        }
        // An operation of another process, or a step of one, which is recognised by its parent.
        let known = self.foreign || handle_of(self.parent.as_ref(), number) != 0;
        (known && member.ready.load(Ordering::Relaxed)).then_some(core::ptr::null_mut())
    }
}

#[inline]
fn handle_of(entry: Option<&Entry>, plugin: usize) -> u64 {
    entry.and_then(|entry| entry.handles.get(plugin)).copied().unwrap_or(0)
}

/// `startEvent` of version `V`.
///
/// # Safety
/// As for [`ours::start`]; strings of the descriptor are null or readable.
pub(super) unsafe fn start<V: Version<Descr: Parents>>(
    fan: &Fan,
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    if handle.is_null() {
        return NcclResult::SUCCESS;
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { handle.write(core::ptr::null_mut()) };
    if descr.is_null() {
        return NcclResult::SUCCESS;
    }
    // SAFETY: not null, and the caller's promise is the same.
    let view = unsafe { V::view(descr) };
    let origin = fan.origin(V::NUMBER, context, &view);
    let mut handles = [0; PLUGINS];
    if let Some(ours) = handles.first_mut()
        && origin.takes(0)
    {
        // Our plugin comes first, so that its time stamps do not depend on the others.
        // SAFETY: the caller's promise is the same.
        *ours = unsafe { start_ours::<V>(&origin, descr) };
    }
    for ((number, member), place) in (1..).zip(&fan.members).zip(handles.iter_mut().skip(1)) {
        if !origin.takes(number) {
            continue;
        }
        let Some(context) = origin.context(number, member) else { continue };
        let links = origin.links(number);
        // SAFETY: the context is the plugin's, and the descriptor of its version.
        let call = |descr| unsafe { member.start(context, descr) };
        // SAFETY: the caller's promise is the same, and the view is the descriptor's.
        let started = unsafe { shim::describe::<V, _>(member.version, descr, &view, links, call) };
        *place = started.unwrap_or(0);
    }
    if handles != [0; PLUGINS] {
        let kept = keep(fan, &origin, &view.descr, handles);
        // SAFETY: not null, and valid by the caller's promise.
        unsafe { handle.write(core::ptr::without_provenance_mut(as_address(kept))) };
    }
    NcclResult::SUCCESS
}

/// # Safety
/// As for [`start`], and `descr` is not null.
#[inline]
unsafe fn start_ours<V: Version<Descr: Parents>>(
    origin: &Origin<'_>,
    descr: *const V::Descr,
) -> u64 {
    // SAFETY: readable by the caller's promise.
    let mut copy = unsafe { *descr };
    let mut context = origin.context;
    if !origin.foreign {
        let Links { parent, group } = origin.links(0);
        copy.set_parent(parent);
        copy.set_group(group);
        if let Some(own) = origin.comm.and_then(|comm| comm.context(0)) {
            context = pointer(own);
        }
    }
    let mut handle = core::ptr::null_mut();
    // SAFETY: the slot is valid, and the descriptor is the caller's except for the handles in it.
    unsafe { ours::start_chained::<V>(context, &raw mut handle, &raw mut copy) };
    handle.addr() as u64
}

#[inline]
fn keep(fan: &Fan, origin: &Origin<'_>, descr: &Descr, handles: [u64; PLUGINS]) -> u64 {
    let kept = match (descr, &origin.parent) {
        (Descr::ProxyStep(step), Some(op)) if op.event == Some(EventType::ProxyOp) => {
            fan.slab.keep_step(op, step.step.cast_unsigned(), handles)
        }
        _ => fan.slab.keep(descr.event_type(), handles, origin.masks),
    };
    if kept == 0 {
        // NCCL gets no handle and cannot stop the event.
        stop_all(fan, &handles);
    }
    kept
}

/// `stopEvent` of any version.
pub(super) fn stop(fan: &Fan, handle: *mut c_void) -> NcclResult {
    if let Some(entry) = fan.slab.read(handle.addr() as u64) {
        stop_all(fan, &entry.handles);
        fan.slab.close(&entry);
    }
    NcclResult::SUCCESS
}

#[inline]
fn stop_all(fan: &Fan, handles: &[u64; PLUGINS]) {
    let [ours, others @ ..] = handles;
    if *ours != 0 {
        // SAFETY: any handle is safe.
        unsafe { ours::stop(core::ptr::without_provenance_mut(as_address(*ours))) };
    }
    for (member, &handle) in fan.members.iter().zip(others) {
        if handle != 0 {
            // SAFETY: the plugin returned this handle.
            unsafe { member.stop(handle) };
        }
    }
}

/// `recordEventState` of version `V`.
///
/// # Safety
/// As for [`ours::record`].
pub(super) unsafe fn record<V: Version>(
    fan: &Fan,
    handle: *mut c_void,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    let Some(entry) = fan.slab.read(handle.addr() as u64) else { return NcclResult::SUCCESS };
    // NCCL reports a step's states if it has a handle for the operation, and the states of the
    // proxy thread itself if the mask has the bit.
    let wants = |plugin: usize, mask: &AtomicI32| match entry.event {
        Some(EventType::ProxyStep) => entry.has_op >> plugin & 1 != 0,
        Some(EventType::ProxyCtrl) => {
            EventMask::from_c_int(mask.load(Ordering::Relaxed)).contains(EventType::ProxyCtrl)
        }
        _ => true,
    };
    let [ours, others @ ..] = entry.handles;
    if ours != 0 && wants(0, &fan.mask) {
        let ours = core::ptr::without_provenance_mut(as_address(ours));
        // SAFETY: the caller's promise is the same.
        unsafe { ours::record::<V>(ours, state, args) };
    }
    for ((number, member), handle) in (1..).zip(&fan.members).zip(others) {
        if handle != 0 && wants(number, &member.mask) {
            let (version, args) = (member.version, args.cast());
            // SAFETY: the plugin returned the handle, and the arguments are of its version.
            let call = |args| unsafe { member.record(handle, state, args) };
            // SAFETY: the caller's promise is the same.
            unsafe { shim::state(V::NUMBER, version, state, args, call) };
        }
    }
    NcclResult::SUCCESS
}

/// `finalize` of an NCCL whose API version is `native`.
pub(super) fn finalize(fan: &Fan, native: u8, context: *mut c_void) -> NcclResult {
    let Some(comm) = fan.comms.get(context.addr() as u64) else {
        // SAFETY: any context is safe.
        return unsafe { ours::finalize(context) };
    };
    if comm.end(0) {
        let context = comm.context(0).map_or(core::ptr::null_mut(), pointer);
        // SAFETY: any context is safe.
        unsafe { ours::finalize(context) };
    }
    for (number, member) in (1..).zip(&fan.members) {
        let context = comm.context(number).filter(|_| comm.end(number));
        // From 2.28 on, NCCL does not call `finalize` for a NULL context.
        if let Some(context) = context.filter(|&context| context != 0 || native <= 4) {
            // SAFETY: the plugin returned this context.
            unsafe { member.finalize(pointer(context)) };
        }
    }
    fan.union.leave();
    NcclResult::SUCCESS
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "`abi` compiles for 64-bit machines only")]
fn as_address(handle: u64) -> usize {
    handle as usize
}
