// SPDX-License-Identifier: Apache-2.0
//! A plugin whose callbacks do nothing, except that some break the contract, each in another way.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut u64) -> c_int;

/// `ncclProfiler_v6_t` of NCCL's `profiler_v6.h`@v2.30.7-1.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int) -> c_int,
    start: Start,
    stop: extern "C" fn(*mut c_void) -> c_int,
    record: extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    finalize: extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: never written to.
unsafe impl Sync for Table {}

#[unsafe(no_mangle)]
static ncclProfiler_v6: Table =
    Table { name: c"planted".as_ptr(), init, start, stop, record, finalize: stop };

/// A mutex of the C library; Rust's own does not call `pthread_mutex_lock`.
struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: it is only ever locked and unlocked.
unsafe impl Sync for Mutex {}

static MUTEX: Mutex = Mutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
static COUNT: AtomicU64 = AtomicU64::new(0);

/// NCCL passes more arguments; a C function may ignore them.
unsafe extern "C" fn init(context: *mut *mut c_void, _id: u64, mask: *mut c_int) -> c_int {
    // SAFETY: NCCL's slot for the context.
    unsafe { context.write(core::ptr::without_provenance_mut(1)) };
    // SAFETY: NCCL's mask.
    unsafe { mask.write(0xffff) };
    0
}

unsafe extern "C" fn start(_: *mut c_void, handle: *mut *mut c_void, descr: *mut u64) -> c_int {
    // SAFETY: a descriptor begins with its type.
    let bit = unsafe { descr.read() };
    match bit {
        1 => {
            // SAFETY: it takes nothing and cannot fail.
            black_box(unsafe { libc::getpid() });
        }
        2 => drop(black_box(Box::new(bit))),
        64 => {
            for number in 0..100_000 {
                black_box(number);
            }
        }
        256 => {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        512 => {
            // SAFETY: zero is an initialised mutex, and it is never moved.
            unsafe { libc::pthread_mutex_lock(MUTEX.0.get()) };
            // SAFETY: locked above.
            unsafe { libc::pthread_mutex_unlock(MUTEX.0.get()) };
        }
        _ => {}
    }
    let bit = usize::try_from(bit).unwrap_or(0);
    // SAFETY: NCCL's slot for the handle.
    unsafe { handle.write(core::ptr::without_provenance_mut(bit << 20)) };
    0
}

extern "C" fn stop(_: *mut c_void) -> c_int {
    0
}

extern "C" fn record(_: *mut c_void, _: c_int, _: *mut c_void) -> c_int {
    0
}
