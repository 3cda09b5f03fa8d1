// SPDX-License-Identifier: Apache-2.0
/*!
Keeps kernel channel events (KernelCh) as they were when the process began.

From 2.31 on, NCCL and the kernels count the works of a channel apart: a kernel counts each one, the
host only those with the event (`ncclProfilerPostPlanWork`, src/plugin/profiler.cc@v2.31.2-1). If
the events are turned on after works without them, NCCL waits for counts that never come, and a
thread of it reads freed memory when the communicator is destroyed. One such operation is enough.
`CONTROL PROFILER_MASK` of NCCL's RAS does that to all ranks of a job.

NCCL reads the activation mask into a variable of the calling thread when an API call begins, then
reports the call, and then copies the variable to the operation (src/enqueue.cc). It reports the
call with the address of a handle in the same struct (`ncclProfilerApiState`,
src/include/profiler.h), so the variable lies at a known distance before the handle. There the
event's bit is cleared. The distance is used only after the variable has had the value of the mask.
*/

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use ncclscope_trace::EventKind;

/// The events that need counts: KernelPhase implies KernelCh.
pub(super) const COUNTED: i32 =
    (EventKind::KernelCh.bit() | EventKind::KernelPhase.bit()).cast_signed();
/// After so many calls without the mask in its place, the struct is another one.
const TRIES: u8 = 16;

/// Nothing is held: an earlier NCCL, or no communicator yet.
const IDLE: u8 = 0;
/// The struct has not been recognised yet; values up to [`TRIES`] count the calls.
const UNSURE: u8 = 1;
/// The struct is the expected one.
const KNOWN: u8 = 0xfe;
/// The struct is another one: nothing can be held.
const STRANGE: u8 = 0xff;

static LAYOUT: AtomicU8 = AtomicU8::new(IDLE);
/// NCCL's activation mask as it was last seen.
static SEEN: AtomicI32 = AtomicI32::new(0);
/// The events have been on for all operations so far.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// An event that NCCL reports between reading its mask and copying it to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// GroupApi.
    Group,
    /// P2pApi.
    P2p,
    /// CollApi.
    Coll,
}

impl Call {
    /// Bytes from the thread's mask to the handle of the event.
    const fn distance(self) -> usize {
        match self {
            Call::Group => 12,
            Call::P2p => 20,
            Call::Coll => 28,
        }
    }
}

/// True if calls are to be [`check`]ed.
#[must_use]
#[inline(always)]
pub fn is_armed() -> bool {
    !matches!(LAYOUT.load(Ordering::Relaxed), IDLE | STRANGE)
}

/// Begins to hold the events as they are in `mask`, NCCL's activation mask after `init`.
pub fn arm(mask: i32) {
    SEEN.store(mask, Ordering::Relaxed);
    let is_first = LAYOUT.load(Ordering::Relaxed) == IDLE;
    if is_first {
        IS_ON.store(mask & COUNTED != 0, Ordering::Relaxed);
        // Publishes nothing: a call that still sees `IDLE` comes before the first change.
        let _ = LAYOUT.compare_exchange(IDLE, UNSURE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Takes the present activation mask. Returns the bits to clear in it.
pub(super) fn look(mask: i32) -> i32 {
    if LAYOUT.load(Ordering::Relaxed) == IDLE {
        return 0;
    }
    SEEN.store(mask, Ordering::Relaxed);
    allowed(mask)
}

/// The events that must not be requested from NCCL.
pub(super) fn refused() -> i32 {
    let is_held = LAYOUT.load(Ordering::Relaxed) != IDLE;
    if is_held && !IS_ON.load(Ordering::Relaxed) { COUNTED } else { 0 }
}

/// As [`refused`], in the form of [`EventKind::bit`].
pub(crate) fn refused_events() -> u32 {
    refused().cast_unsigned()
}

/// True if NCCL's struct is not the expected one, so that nothing can be held.
pub(crate) fn is_strange() -> bool {
    LAYOUT.load(Ordering::Relaxed) == STRANGE
}

/// The bits that `mask` must not have; notes that operations go without the events.
#[inline(always)]
fn allowed(mask: i32) -> i32 {
    if IS_ON.load(Ordering::Relaxed) {
        if mask & EventKind::KernelCh.bit().cast_signed() == 0 {
            IS_ON.store(false, Ordering::Relaxed);
        }
        return 0;
    }
    mask & COUNTED
}

/// Clears the events in the mask of the call that the thread makes, if they must stay off.
///
/// # Safety
/// `handle` is the address that NCCL from 2.31 on passes to `startEvent` for this event.
#[inline(always)]
pub unsafe fn check(call: Call, handle: *mut *mut c_void) {
    let place = handle.wrapping_byte_sub(call.distance()).cast::<i32>();
    // SAFETY: NCCL's struct begins 16 bytes before its first handle, and is the thread's own. In
    // another layout, the bytes still belong to NCCL's thread-local block, and are only read.
    let mask = unsafe { place.read() };
    if LAYOUT.load(Ordering::Relaxed) != KNOWN {
        // SAFETY: the same.
        let state = unsafe { place.wrapping_add(1).read() };
        if !recognise(call, mask, state) {
            return;
        }
    }
    let excess = allowed(mask);
    if excess != 0 {
        // SAFETY: the layout is the expected one, and only this thread uses the variable.
        unsafe { place.write(mask & !excess) };
    }
}

/// True if the struct is the expected one. `state` follows the mask and has three values.
#[cold]
#[inline(never)]
fn recognise(call: Call, mask: i32, state: i32) -> bool {
    let seen = SEEN.load(Ordering::Relaxed);
    // Without a mask of ours there is nothing to recognise the struct by.
    if call != Call::Group || seen == 0 {
        return false;
    }
    let is_known = mask == seen && (0..=2).contains(&state);
    let tries = LAYOUT.load(Ordering::Relaxed);
    if tries < TRIES {
        let next = match tries + 1 {
            _ if is_known => KNOWN,
            TRIES => STRANGE,
            more => more,
        };
        // Of two threads at once one counts: a later call recognises the struct all the same.
        LAYOUT.store(next, Ordering::Relaxed);
    }
    LAYOUT.load(Ordering::Relaxed) == KNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NCCL's struct (src/include/profiler.h@v2.31.2-1).
    #[repr(C)]
    #[derive(Default)]
    struct ApiState {
        depth: i32,
        mask: i32,
        state: i32,
        handles: [usize; 3],
    }

    impl ApiState {
        /// Begins a call while NCCL's mask is `mask`; returns the mask that its operation gets.
        fn call(&mut self, call: Call, mask: i32) -> i32 {
            self.mask = mask;
            let handle = match call {
                Call::Group => 0,
                Call::P2p => 1,
                Call::Coll => 2,
            };
            let handle = (&raw mut self.handles).cast::<*mut c_void>().wrapping_add(handle);
            // SAFETY: a struct like NCCL's.
            unsafe { check(call, handle) };
            // SAFETY: its own member, which `check` may have written through another pointer.
            unsafe { (&raw const self.mask).read_volatile() }
        }
    }

    /// A single test, because one NCCL is held for the process.
    #[test]
    fn events_that_were_off_stay_off() {
        let mut state = ApiState::default();
        let (ours, kernel) = (0x7f9f, EventKind::KernelCh.bit().cast_signed());
        assert_eq!((is_armed(), look(kernel)), (false, 0), "an earlier NCCL is left alone");
        arm(ours | kernel);
        assert_eq!(state.call(Call::Group, ours | kernel), ours | kernel, "they are on");
        assert_eq!(state.call(Call::Coll, ours), ours);
        for call in [Call::Group, Call::P2p, Call::Coll] {
            assert_eq!(state.call(call, -1), !COUNTED, "one call went without: never again");
            assert_eq!(state.call(call, ours), ours);
        }
        assert_eq!((look(-1), look(ours)), (COUNTED, 0));
        LAYOUT.store(UNSURE, Ordering::Relaxed);
        for _ in 0..2 * TRIES {
            assert_eq!(state.call(Call::Group, kernel), kernel, "an unknown struct is not written");
        }
        assert!(is_strange() && !is_armed());
    }
}
