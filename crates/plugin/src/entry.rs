// SPDX-License-Identifier: Apache-2.0
//! The callbacks, written once for all versions.

use crate::external;
use crate::guard::{attempt, guard};
use crate::{probe, translate, untagged};
use core::ffi::c_void;
use ncclscope_abi::{
    Descr, EventState, EventType, EventView, NcclResult, StateArg, Version, Viewer,
};
use ncclscope_recorder::gate;
use ncclscope_recorder::trace::{Handle, State};
use ncclscope_runtime::Runtime;
use ncclscope_runtime::context::comm_of_another;
use ncclscope_runtime::sys::kernel_hold::{self, Call};
use ncclscope_runtime::sys::shield::Shield;

/// `startEvent` of version `V`. `IS_NCCLS`: NCCL itself passed `handle`.
///
/// # Safety
/// - `handle` is valid to write to.
/// - `descr` is as [`Version::view`] requires.
#[inline(always)]
pub(crate) unsafe fn start<V: Version, const IS_NCCLS: bool>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    if handle.is_null() {
        return NcclResult::SUCCESS;
    }
    // Comes first: NCCL reads the slot whatever happens here, and it may hold any value.
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { handle.write(core::ptr::null_mut()) };
    if descr.is_null() {
        return NcclResult::SUCCESS;
    }
    // Steps are the most frequent event and come before everything else, even before the gate.
    // SAFETY: not null, and the caller's promise is the same.
    let step = unsafe { V::step(descr) };
    let step = step.map(|(op, number)| (Handle(op), number.cast_unsigned()));
    if let Some((op, number)) = step {
        let recorder = Runtime::get().recorder();
        if let Some(step) = attempt(|| recorder.start_step_fast(op, number)) {
            // SAFETY: not null, and valid by the caller's promise.
            unsafe { handle.write(to_pointer(step)) };
            return NcclResult::SUCCESS;
        }
    }
    if IS_NCCLS && V::NUMBER >= 7 {
        // SAFETY: not null; a descriptor of version 7 begins with the bit of its type.
        let bit = unsafe { descr.cast::<u64>().read() };
        if bit & CALLS != 0 {
            // SAFETY: the caller's promise is the same, and both are not null.
            return unsafe { start_call::<V>(context, handle, descr) };
        }
    }
    // SAFETY: the caller's promise is the same, and both are not null.
    unsafe { start_if_open::<V>(context, handle, descr, step) }
}

/// Starts an API call, whose kernel events are held first. Before the gate: NCCL must not get them
/// while nothing is recorded, either.
///
/// # Safety
/// As for [`start`], and neither pointer is null.
#[inline(never)]
unsafe extern "C" fn start_call<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    // SAFETY: NCCL's own pointers, and not null.
    unsafe { hold_kernel_events::<V>(handle, descr) };
    // SAFETY: the caller's promise is the same.
    unsafe { start_if_open::<V>(context, handle, descr, None) }
}

/// # Safety
/// As for [`start`], and neither pointer is null.
#[inline(always)]
unsafe fn start_if_open<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
    step: Option<(Handle, u32)>,
) -> NcclResult {
    if !gate::is_open() {
        return NcclResult::SUCCESS;
    }
    if let Some((op, number)) = step {
        // A step belongs to the window of its operation.
        // SAFETY: not null, and valid by the caller's promise.
        return unsafe { start_step(handle, op, number) };
    }
    // SAFETY: not null, and the caller's promise is the same.
    if gate::takes(Handle(unsafe { V::parent(descr) })) {
        // SAFETY: the caller's promise is the same, and both are not null.
        unsafe { start_other::<V>(context, handle, descr) }
    } else {
        // SAFETY: the caller's promise is the same, and both are not null.
        unsafe { start_late::<V>(context, handle, descr) }
    }
}

/// The events of API calls.
const CALLS: u64 = EventType::GroupApi.bit() | EventType::CollApi.bit() | EventType::P2pApi.bit();

/// Keeps kernel events as they were when the process began: see [`kernel_hold`].
///
/// # Safety
/// NCCL passes both pointers to `startEvent` of version `V`, and neither is null.
#[inline(always)]
pub(crate) unsafe fn hold_kernel_events<V: Version>(
    handle: *mut *mut c_void,
    descr: *const V::Descr,
) {
    if V::NUMBER < 7 || !kernel_hold::is_armed() {
        return;
    }
    // SAFETY: not null; a descriptor of version 7 begins with the bit of its type.
    let call = match unsafe { descr.cast::<u64>().read() } {
        bit if bit == EventType::CollApi.bit() => Call::Coll,
        bit if bit == EventType::P2pApi.bit() => Call::P2p,
        bit if bit == EventType::GroupApi.bit() => Call::Group,
        _ => return,
    };
    // SAFETY: by the caller's promise.
    unsafe { kernel_hold::check(call, handle) };
}

/// Starts an event other than a step while the gate is open, but [`gate::takes`] refuses it: a late
/// event of an operation of the last window is recorded, any other is refused and only counted.
///
/// # Safety
/// As for [`start`], and neither pointer is null.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_late<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    // SAFETY: not null, and the caller's promise is the same.
    if gate::takes_late(Handle(unsafe { V::parent(descr) })) {
        // SAFETY: the caller's promise is the same.
        return unsafe { start_other::<V>(context, handle, descr) };
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { handle.write(to_pointer(Handle::REFUSED)) };
    guard(|| {
        let counter = Counter { context: context.addr() as u64, tells_calls: V::NUMBER >= 5 };
        // SAFETY: not null, and the caller's promise is the same.
        unsafe { untagged::show::<V, _>(descr, counter) };
    })
}

/// Counts the operation of a descriptor without recording it.
struct Counter {
    context: u64,
    tells_calls: bool,
}

impl Viewer for Counter {
    type Out = ();

    #[inline(always)]
    fn see(self, view: EventView) {
        let runtime = Runtime::get();
        let (comm, strings) = (runtime.comm_of(self.context), &runtime.recorder().strings);
        // SAFETY: strings of a descriptor are literals of NCCL or null, and what a NetPlugin event
        // attaches is readable during this call.
        let detail = unsafe { translate::detail(strings, &view.descr, view.rank) };
        if let Some(detail) = detail {
            translate::count(strings, comm, &detail, self.tells_calls);
        }
    }
}

/// Starts a step that `Recorder::start_step_fast` does not handle. Like the other functions that
/// an entry continues with, it is not inlined, so that the entry needs no stack frame.
///
/// # Safety
/// `handle` is valid to write to.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_step(handle: *mut *mut c_void, op: Handle, number: u32) -> NcclResult {
    guard(|| {
        let step = Runtime::get().recorder().start_step(op, number);
        // SAFETY: valid by the caller's promise.
        unsafe { handle.write(to_pointer(step)) };
    })
}

/// # Safety
/// As for [`start`], and neither pointer is null.
#[inline(never)]
unsafe extern "C" fn start_other<V: Version>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    guard(|| {
        let starter = Starter { context: context.addr() as u64, tells_calls: V::NUMBER >= 5 };
        // SAFETY: not null, and the caller's promise is the same.
        let started = unsafe { untagged::show::<V, _>(descr, starter) };
        // SAFETY: not null, and valid by the caller's promise.
        unsafe { handle.write(to_pointer(started)) };
    })
}

/// Starts the event of a descriptor and returns its handle.
struct Starter {
    context: u64,
    /// The API version reports each call as an event of its own (v5 on).
    tells_calls: bool,
}

impl Viewer for Starter {
    type Out = Handle;

    #[inline(always)]
    fn see(self, view: EventView) -> Handle {
        let runtime = Runtime::get();
        let recorder = runtime.recorder();
        let parent = Handle(view.parent);
        if let Descr::ProxyOp(op) = view.descr {
            let op = translate::proxy_op(&op, view.rank, self.context);
            let comm = if op.foreign {
                comm_of_another(self.context)
            } else {
                runtime.comm_of(self.context)
            };
            return recorder.start_op(comm, parent, &op);
        }
        let comm = runtime.comm_of(self.context);
        translate::learn(runtime, comm, &view.descr, view.rank);
        // SAFETY: strings of a descriptor are literals of NCCL or null, and what a NetPlugin event
        // attaches is readable during this call.
        match unsafe { translate::detail(&recorder.strings, &view.descr, view.rank) } {
            Some(detail) => {
                translate::count(&recorder.strings, comm, &detail, self.tells_calls);
                if let Some(number) = translate::operation(&view.descr)
                    && !gate::samples(number)
                {
                    recorder.count_left_out();
                    return Handle::REFUSED;
                }
                let handle = recorder.start(comm, parent, &detail);
                external::tell(recorder, handle, &view.descr);
                probe::started(comm, handle, &view.descr);
                handle
            }
            None => {
                recorder.count_unknown();
                Handle::NULL
            }
        }
    }
}

/// `stopEvent` of any version.
#[inline(always)]
pub(crate) fn stop(handle: *mut c_void) -> NcclResult {
    let (recorder, handle) = (Runtime::get().recorder(), from_pointer(handle));
    if recorder.is_step(handle) {
        return stop_step(handle);
    }
    if !gate::is_open() {
        return NcclResult::SUCCESS;
    }
    match attempt(|| recorder.stop_other_fast(handle)) {
        Some(()) if probe::is_launch(handle) => stop_launch(handle),
        Some(()) => NcclResult::SUCCESS,
        None => stop_op(handle),
    }
}

#[cold]
#[inline(never)]
extern "C" fn stop_launch(handle: Handle) -> NcclResult {
    guard(|| probe::stopped(handle))
}

#[inline(never)]
extern "C" fn stop_op(handle: Handle) -> NcclResult {
    match attempt(|| Runtime::get().recorder().stop_op_fast(handle)) {
        Some(()) => NcclResult::SUCCESS,
        None => stop_seldom(handle),
    }
}

#[inline(never)]
extern "C" fn stop_step(handle: Handle) -> NcclResult {
    match attempt(|| Runtime::get().recorder().stop_step_fast(handle)) {
        Some(()) => NcclResult::SUCCESS,
        None => stop_seldom(handle),
    }
}

#[inline(never)]
extern "C" fn stop_seldom(handle: Handle) -> NcclResult {
    guard(|| {
        Runtime::get().recorder().stop(handle);
        if probe::is_launch(handle) {
            probe::stopped(handle);
        }
    })
}

/// `recordEventState` of version `V`.
///
/// # Safety
/// `args` is as [`Version::state_arg`] requires.
#[inline(always)]
pub(crate) unsafe fn record<V: Version>(
    handle: *mut c_void,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    let (recorder, handle) = (Runtime::get().recorder(), from_pointer(handle));
    if !recorder.is_step(handle) {
        if !gate::is_open() {
            return NcclResult::SUCCESS;
        }
        // SAFETY: the caller's promise is the same.
        return unsafe { record_other::<V>(handle, state, args) };
    }
    let hot = || {
        let state_of_step = State(u8::try_from(state.0).ok()?);
        // SAFETY: the caller's promise is the same.
        recorder.step_state_fast(handle, state_of_step, || unsafe { size::<V>(args) })
    };
    match attempt(hot) {
        Some(()) => NcclResult::SUCCESS,
        // SAFETY: the caller's promise is the same.
        None => unsafe { record_step::<V>(handle, state, args) },
    }
}

/// The bytes that a state of a step reports.
///
/// # Safety
/// As for [`record`], whose state is one that reports them.
#[inline(always)]
unsafe fn size<V: Version>(args: *mut V::StateArgs) -> Option<u64> {
    // The states that report a size select the same member; a constant leaves no code for others.
    // SAFETY: the caller's promise is the same.
    match unsafe { V::state_arg(EventState::PROXY_STEP_SEND_WAIT, args) } {
        StateArg::TransSize(bytes) => Some(bytes),
        _ => None,
    }
}

/// # Safety
/// As for [`record`].
#[cold]
#[inline(never)]
unsafe extern "C" fn record_step<V: Version>(
    handle: Handle,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    guard(|| {
        let recorder = Runtime::get().recorder();
        match u8::try_from(state.0) {
            // SAFETY: the caller's promise is the same.
            Ok(it) => recorder.step_state(handle, State(it), || unsafe { size::<V>(args) }),
            Err(_) => recorder.count_unknown(),
        }
    })
}

/// # Safety
/// As for [`record`].
#[inline(never)]
unsafe extern "C" fn record_other<V: Version>(
    handle: Handle,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    guard(|| {
        let recorder = Runtime::get().recorder();
        if handle.is_null() {
            return;
        }
        let Ok(number) = u8::try_from(state.0) else { return recorder.count_unknown() };
        // SAFETY: the caller's promise is the same.
        let (small, arg) = match unsafe { V::state_arg(state, args) } {
            StateArg::None | StateArg::NetPluginData(_) => (0, 0),
            StateArg::TransSize(bytes) => (0, bytes),
            StateArg::AppendedProxyOps(count) => (count.cast_unsigned(), 0),
            StateArg::PTimer(ticks) => (0, translate::time(ticks)),
            StateArg::ProxyOp { trans_size, steps } => (steps.cast_unsigned(), trans_size),
        };
        if recorder.state_fast(handle, State(number), small, arg).is_none() {
            recorder.state(handle, State(number), small, arg);
        }
    })
}

/// `finalize` of any version.
pub(crate) fn finalize(context: *mut c_void) -> NcclResult {
    let _shield = Shield::raise_against_all();
    guard(|| Runtime::get().detach(context.addr() as u64))
}

#[inline(always)]
fn from_pointer(handle: *mut c_void) -> Handle {
    Handle(handle.addr() as u64)
}

/// A handle as a pointer, which NCCL expects; it is never dereferenced.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "`abi` compiles for 64-bit machines only")]
fn to_pointer(handle: Handle) -> *mut c_void {
    core::ptr::without_provenance_mut(handle.0 as usize)
}
