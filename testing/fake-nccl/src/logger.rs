// SPDX-License-Identifier: Apache-2.0
//! The logger passed to `init`; it aborts if it is not called as NCCL allows.

use core::ffi::{CStr, c_char, c_int, c_ulong};
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Type of `init`'s logger, with any arguments.
pub type Entry = unsafe extern "C" fn();

/// Type of `ncclDebugLog` called with `"%s"`: a variadic C function gets these arguments in the
/// same registers and stack places.
type Printf =
    unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

static LIVE: AtomicI64 = AtomicI64::new(0);
static LINES: AtomicU64 = AtomicU64::new(0);

/// The logger of a live NCCL.
#[must_use]
pub fn real() -> Entry {
    let function: Printf = print;
    // SAFETY: the plugin calls it as `ncclDebugLog`, with the arguments that `print` declares.
    unsafe { core::mem::transmute::<Printf, Entry>(function) }
}

/// An address that is not a function: for plugins that must not log.
#[must_use]
pub fn garbage() -> Entry {
    let nowhere = core::ptr::without_provenance::<()>(0x6b6b_6b6b_6b60);
    // SAFETY: the pointer is not null, which suffices for a function pointer that is not called.
    unsafe { core::mem::transmute::<*const (), Entry>(nowhere) }
}

/// Changes the number of living communicators: call it before a communicator is initialised (1) and
/// after it is finalized (-1).
pub(crate) fn live(change: i64) {
    LIVE.fetch_add(change, Ordering::SeqCst);
}

/// Lines printed so far.
#[must_use]
pub fn lines() -> u64 {
    LINES.load(Ordering::SeqCst)
}

/// A panic here cannot unwind: it aborts, and the test sees it.
unsafe extern "C" fn print(
    level: c_int,
    _flags: c_ulong,
    file: *const c_char,
    _line: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    assert!(LIVE.load(Ordering::SeqCst) > 0, "NCCL may be unloaded: its logger must not be called");
    assert!((1..=6).contains(&level), "no level of NCCL's: {level}");
    // NCCL would store a warning as the application's last error.
    assert_ne!(level, 2, "a warning");
    for text in [file, format, text] {
        assert!(!text.is_null(), "NCCL prints each of them");
    }
    // SAFETY: not null, and a C string as the caller promises.
    let format = unsafe { CStr::from_ptr(format) };
    assert_eq!(format, c"%s", "no text of ours is a format");
    // SAFETY: not null, and a C string as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    assert!(text.to_str().is_ok_and(|t| !t.contains('\n')), "one line: {text:?}");
    LINES.fetch_add(1, Ordering::SeqCst);
}
