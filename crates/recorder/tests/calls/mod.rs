// SPDX-License-Identifier: Apache-2.0
//! Calls as the plugin makes them: the fast path first, then the general one.

use ncclscope_recorder::{Recorder, clock};
use ncclscope_trace::{Handle, State};
use std::sync::Once;

/// Chooses the clock, before any test uses it.
pub(crate) fn choose_clock() {
    static CHOSEN: Once = Once::new();
    CHOSEN.call_once(|| clock::choose(true));
}

pub(crate) fn start_step(recorder: &Recorder, op: Handle, number: u32) -> Handle {
    recorder.start_step_fast(op, number).unwrap_or_else(|| recorder.start_step(op, number))
}

pub(crate) fn state(recorder: &Recorder, handle: Handle, state: State, size: Option<u64>) {
    if recorder.is_step(handle) {
        if recorder.step_state_fast(handle, state, || size).is_none() {
            recorder.step_state(handle, state, || size);
        }
    } else if recorder.state_fast(handle, state, 0, 0).is_none() {
        recorder.state(handle, state, 0, 0);
    }
}

pub(crate) fn stop(recorder: &Recorder, handle: Handle) {
    let done = if recorder.is_step(handle) {
        recorder.stop_step_fast(handle)
    } else {
        recorder.stop_other_fast(handle).or_else(|| recorder.stop_op_fast(handle))
    };
    if done.is_none() {
        recorder.stop(handle);
    }
}
