// SPDX-License-Identifier: Apache-2.0
//! Tells the preloaded allocator (`examples/allocator.rs`) or RealtimeSanitizer where a callback
//! begins and ends.

use core::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

type Tell = unsafe extern "C" fn(*const c_char);
type Count = extern "C" fn() -> u64;

/// The allocator's two functions, if it is loaded.
static ALLOCATOR: OnceLock<Option<(Tell, Count)>> = OnceLock::new();

fn allocator() -> Option<(Tell, Count)> {
    *ALLOCATOR.get_or_init(|| {
        let [tell, count] = [c"fake_nccl_callback", c"fake_nccl_allocations"].map(find);
        if tell.is_null() || count.is_null() {
            return None;
        }
        // SAFETY: the allocator has this function under that name.
        let tell = unsafe { core::mem::transmute::<*mut c_void, Tell>(tell) };
        // SAFETY: the allocator has this function under that name.
        let count = unsafe { core::mem::transmute::<*mut c_void, Count>(count) };
        Some((tell, count))
    })
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Allocations counted by the preloaded allocator; 0 without it.
#[must_use]
pub fn allocations() -> u64 {
    allocator().map_or(0, |(_, count)| count())
}

/// True under AddressSanitizer, whose allocator keeps freed memory.
#[must_use]
pub fn is_sanitizers() -> bool {
    !find(c"__asan_init").is_null()
}

/// RealtimeSanitizer's two functions, if this program is built with it.
static REALTIME: OnceLock<Option<[extern "C" fn(); 2]>> = OnceLock::new();

fn realtime() -> Option<[extern "C" fn(); 2]> {
    *REALTIME.get_or_init(|| {
        let [enter, exit] = [c"__rtsan_realtime_enter", c"__rtsan_realtime_exit"].map(find);
        if enter.is_null() || exit.is_null() {
            return None;
        }
        // SAFETY: the sanitizer has this function under that name.
        let enter = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn()>(enter) };
        // SAFETY: the sanitizer has this function under that name.
        let exit = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn()>(exit) };
        Some([enter, exit])
    })
}

/// Runs `callback`, which must not allocate, lock or wait.
pub(crate) fn inside<T>(name: &'static CStr, callback: impl FnOnce() -> T) -> T {
    if let Some([enter, exit]) = realtime() {
        enter();
        let result = callback();
        exit();
        return result;
    }
    let Some((tell, _)) = allocator() else { return callback() };
    // SAFETY: `name` is a static string.
    unsafe { tell(name.as_ptr()) };
    let result = callback();
    // SAFETY: null is allowed.
    unsafe { tell(core::ptr::null()) };
    result
}
