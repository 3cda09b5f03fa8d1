// SPDX-License-Identifier: Apache-2.0
/*!
The application's own id of its current work, which joins an API call to the operator that made it.

PyTorch's profiler has such an id for every operator (`External id` of its traces). There are two
sources: a profiler session of ours, to which torch passes each id as it begins and ends, on the
operator's thread ([`push`], [`pop`]); or a function of the application that returns the current id
([`ask`]; torch exports one from 2.15 on). With neither, an API call costs one more load.
*/

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use ncclscope_abi::Descr;
use ncclscope_recorder::Recorder;
use ncclscope_recorder::trace::{Handle, State};

/// A function that returns the id of the calling thread's operator; 0 for none.
pub(crate) type Ask = unsafe extern "C" fn() -> u64;

/// Maximum number of nested operators whose ids are kept; deeper ones count as the one around them.
const DEPTH: usize = 64;

/// The function to ask, as its address; 0 for none.
static ASK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IDS: Cell<Ids> = const { Cell::new(Ids { ids: [0; DEPTH], depth: 0 }) };
}

#[derive(Clone, Copy)]
struct Ids {
    ids: [u64; DEPTH],
    depth: usize,
}

/// Begins an operator on this thread.
pub(crate) fn push(id: u64) {
    IDS.with(|ids| {
        let mut now = ids.get();
        if let Some(place) = now.ids.get_mut(now.depth) {
            *place = id;
        }
        now.depth += 1;
        ids.set(now);
    });
    let _ = ASK.compare_exchange(0, (pushed as Ask) as usize, Ordering::Release, Ordering::Relaxed);
}

/// Ends the innermost operator of this thread.
pub(crate) fn pop() {
    IDS.with(|ids| {
        let mut now = ids.get();
        now.depth = now.depth.saturating_sub(1);
        ids.set(now);
    });
}

unsafe extern "C" fn pushed() -> u64 {
    IDS.with(|ids| {
        let now = ids.get();
        let innermost = now.depth.min(DEPTH).checked_sub(1);
        innermost.and_then(|at| now.ids.get(at).copied()).unwrap_or(0)
    })
}

/// Sets the function that returns ids; `None` switches back to [`push`].
///
/// # Safety
/// The function can be called on any thread as long as the process lives, does not unwind, and
/// neither waits nor calls NCCL.
pub(crate) unsafe fn ask(function: Option<Ask>) {
    ASK.store(function.map_or(0, |f| f as usize), Ordering::Release);
}

/// Records the id of the current operator for an API event that has started.
#[inline(always)]
pub(crate) fn tell(recorder: &Recorder, event: Handle, descr: &Descr) {
    if matches!(descr, Descr::CollApi(_) | Descr::P2pApi(_) | Descr::GroupApi(_)) {
        let function = ASK.load(Ordering::Acquire);
        if function != 0 && !event.is_null() {
            tell_what(recorder, event, function);
        }
    }
}

#[cold]
#[inline(never)]
fn tell_what(recorder: &Recorder, event: Handle, function: usize) {
    // SAFETY: only addresses of functions of this type are stored.
    let function = unsafe { core::mem::transmute::<usize, Ask>(function) };
    // SAFETY: by the promise of `ask`.
    let id = unsafe { function() };
    if id != 0 {
        recorder.state(event, State::EXTERNAL_ID, 0, id);
    }
}
