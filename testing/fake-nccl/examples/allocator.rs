// SPDX-License-Identifier: Apache-2.0
/*!
An allocator that a host process preloads. It serves the whole process, including the plugin, and
aborts it with a message on any allocation or release inside a callback.

One allocation per thread is allowed: that of the dynamic linker for the plugin's thread-local
memory, when the thread first touches it (glibc's `__tls_get_addr`).

`fake_nccl::allocator` tells it when a callback runs. It forwards all calls to glibc.
*/

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

thread_local! {
    /// The callback in which this thread is; null if none.
    static CALLBACK: Cell<*const c_char> = const { Cell::new(core::ptr::null()) };
    /// True after the dynamic linker's one allocation on this thread.
    static HAS_LINKED: Cell<bool> = const { Cell::new(false) };
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// The calling thread enters the callback with this name, or leaves it (null).
///
/// # Safety
/// `name` is null or a static string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_nccl_callback(name: *const c_char) {
    CALLBACK.set(name);
}

/// Number of allocations of the process so far.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nccl_allocations() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

fn say(text: &[u8]) {
    // SAFETY: the bytes are valid for their length.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Ends the process inside a callback.
fn check(what: &str) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let name = CALLBACK.get();
    if !name.is_null() && (what != "malloc" || HAS_LINKED.replace(true)) {
        // SAFETY: the caller of `fake_nccl_callback` promised a static string.
        let name = unsafe { CStr::from_ptr(name) };
        say(what.as_bytes());
        say(b" inside ");
        say(name.to_bytes());
        say(b"\n");
        // SAFETY: no preconditions.
        unsafe { libc::abort() };
    }
}

/// The C function of this name.
///
/// # Safety
/// The caller must keep the contract of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    check("malloc");
    // SAFETY: the caller keeps the function's contract.
    unsafe { __libc_malloc(size) }
}

/// The C function of this name.
///
/// # Safety
/// The caller must keep the contract of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    check("calloc");
    // SAFETY: the caller keeps the function's contract.
    unsafe { __libc_calloc(count, size) }
}

/// The C function of this name.
///
/// # Safety
/// The caller must keep the contract of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    check("realloc");
    // SAFETY: the caller keeps the function's contract.
    unsafe { __libc_realloc(block, size) }
}

/// The C function of this name.
///
/// # Safety
/// The caller must keep the contract of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    check("memalign");
    // SAFETY: the caller keeps the function's contract.
    unsafe { __libc_memalign(alignment, size) }
}

/// The C function of this name.
///
/// # Safety
/// The caller must keep the contract of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller keeps the function's contract.
    unsafe { memalign(alignment, size) }
}

/// The POSIX function of this name.
///
/// # Safety
/// The caller must keep the contract of the POSIX function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    block: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    let new = unsafe { memalign(alignment, size) };
    if new.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller promises that `block` is valid to write to.
    unsafe { block.write(new) };
    0
}

/// The C function of this name.
///
/// # Safety
/// The caller must keep the contract of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    check("free");
    // SAFETY: the caller keeps the function's contract.
    unsafe { __libc_free(block) }
}
