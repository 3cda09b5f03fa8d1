// SPDX-License-Identifier: Apache-2.0
/*!
What a profiler sees of AMD's `librccl.so.1`: its version, its activation mask, and the functions of
HIP that it is linked with.

`FAKE_RCCL_VERSION` is the version's code (default 22707), `FAKE_RCCL_KHZ` the rate of the GPU's
timer (default 100000; 0: HIP reports an error).
*/

use core::ffi::c_int;
use core::sync::atomic::AtomicI32;

/// `hipDeviceAttributeWallClockRate`.
const WALL_CLOCK_RATE: c_int = 10_017;
/// `hipErrorInvalidValue`.
const INVALID: c_int = 1;

/// The activation mask.
#[unsafe(no_mangle)]
pub static ncclProfilerEventMask: AtomicI32 = AtomicI32::new(0);

fn variable(name: &str, default: c_int) -> c_int {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Writes a value where the caller wants it.
///
/// # Safety
/// `to` is valid to write to.
unsafe fn give(to: *mut c_int, value: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    0
}

/// NCCL's function.
///
/// # Safety
/// `version` is valid to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(version, variable("FAKE_RCCL_VERSION", 22_707)) }
}

/// HIP's function.
///
/// # Safety
/// `device` is valid to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(device, 3) }
}

/// HIP's function.
///
/// # Safety
/// `value` is valid to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> c_int {
    let khz = variable("FAKE_RCCL_KHZ", 100_000);
    if (attribute, device) != (WALL_CLOCK_RATE, 3) || khz == 0 {
        return INVALID;
    }
    // SAFETY: the caller's promise.
    unsafe { give(value, khz) }
}
