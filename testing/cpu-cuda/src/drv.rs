// SPDX-License-Identifier: Apache-2.0
//! The part of the CUDA Driver API that NCCL looks up by name (`src/misc/cudawrap.cc`).
//!
//! A function that is missing here is reported as not found, which disables the feature in NCCL:
//! multicast (NVLS) and `cuMemGetHandleForAddressRange` (DMA-BUF) among them. A context is a
//! device: each has only its primary one.

pub mod event;
pub mod memory;
pub mod stream;

use crate::device;
use crate::error::{Error, Out, Result, name, put, text};
use std::ffi::{CStr, c_char};

/// Defines driver functions: like `runtime!`. NCCL finds them through the look-up; a profiler looks
/// for the library `libcuda.so.1`, which a link of that name to this one is.
macro_rules! driver {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block
    )*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// The arguments must satisfy the contract of the CUDA function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
                $crate::error::driver_status(move || $body)
            }
        )*

        /// Name and address of every function of this module.
        pub(crate) fn table() -> Vec<(&'static str, *const ())> {
            vec![$((stringify!($name), $name as *const ())),*]
        }
    };
}
use driver;

/// The CUDA version from which `cuCtxCreate` means its third form.
const CONTEXT_V3: u32 = 11_040;
/// Handle of device 0's context; others follow in steps of 16.
const CONTEXTS: usize = 7 << 40;

/// The function for `name` in CUDA `version`, if the stand-in has it.
pub fn entry_point(name: &str, version: u32) -> Option<*const ()> {
    let name = match name {
        "cuCtxCreate" if version >= CONTEXT_V3 => "cuCtxCreate_v3",
        name => name,
    };
    let tables = [table(), event::table(), memory::table(), stream::table()];
    tables.iter().flatten().find(|f| f.0 == name).map(|f| f.1)
}

/// The context of `device`.
pub(crate) fn context(device: i32) -> usize {
    CONTEXTS + 16 * usize::try_from(device).unwrap_or(0)
}

fn device_of(context: usize) -> Result<i32> {
    let steps = context.checked_sub(CONTEXTS).filter(|d| d.is_multiple_of(16));
    let device = steps.and_then(|d| i32::try_from(d / 16).ok());
    device::check(device.ok_or(Error::INVALID_VALUE)?)
}

fn describe(out: Out<'_, *const c_char>, code: i32, of: fn(i32) -> &'static CStr) -> Result {
    put(out, of(code).as_ptr())
}

driver! {
    /// Nothing to initialise.
    fn cuInit(_flags: u32) { Ok(()) }

    /// Driver version.
    fn cuDriverGetVersion(out: Out<'_, i32>) { put(out, device::version()) }

    /// Description of a status.
    fn cuGetErrorString(code: i32, out: Out<'_, *const c_char>) { describe(out, code, text) }

    /// Name of a status.
    fn cuGetErrorName(code: i32, out: Out<'_, *const c_char>) { describe(out, code, name) }

    /// Number of devices.
    fn cuDeviceGetCount(out: Out<'_, i32>) { put(out, device::config().devices) }

    /// The handle of a device: its number.
    fn cuDeviceGet(out: Out<'_, i32>, ordinal: i32) { put(out, device::check(ordinal)?) }

    /// An attribute of a device.
    fn cuDeviceGetAttribute(out: Out<'_, i32>, attribute: i32, device: i32) {
        put(out, device::attribute(attribute, device::check(device)?))
    }

    /// Identity of a device.
    fn cuDeviceGetUuid(out: Out<'_, [u8; 16]>, device: i32) {
        put(out, device::uuid(device::check(device)?))
    }

    /// PCI address of a device.
    fn cuDeviceGetPCIBusId(out: *mut c_char, size: i32, device: i32) {
        crate::rt::device::bus_id(out, size, device)
    }

    /// The device's context becomes current.
    fn cuCtxCreate(out: Out<'_, usize>, _flags: u32, device: i32) {
        device::set_current(device)?;
        put(out, context(device))
    }

    /// The device's context becomes current (CUDA 11.4 form).
    fn cuCtxCreate_v3(
        out: Out<'_, usize>, _affinities: usize, _count: i32, _flags: u32, device: i32,
    ) {
        device::set_current(device)?;
        put(out, context(device))
    }

    /// The context stays: it is the device's only one.
    fn cuCtxDestroy(context: usize) { device_of(context).map(drop) }

    /// The thread's context.
    fn cuCtxGetCurrent(out: Out<'_, usize>) { put(out, context(device::current())) }

    /// Sets the thread's context; NULL leaves the device as it is.
    fn cuCtxSetCurrent(context: usize) {
        if context == 0 { Ok(()) } else { device::set_current(device_of(context)?) }
    }

    /// The thread's device.
    fn cuCtxGetDevice(out: Out<'_, i32>) { put(out, device::current()) }

    /// The device's context.
    fn cuDevicePrimaryCtxRetain(out: Out<'_, usize>, device: i32) {
        put(out, context(device::check(device)?))
    }

    /// The context stays.
    fn cuDevicePrimaryCtxRelease(device: i32) { device::check(device).map(drop) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_by_version() {
        let old = entry_point("cuCtxCreate", 11_030);
        assert_eq!(entry_point("cuCtxCreate", 12_000), entry_point("cuCtxCreate_v3", 12_000));
        assert!(old.is_some() && old != entry_point("cuCtxCreate", 12_000));
        assert!(entry_point("cuMulticastCreate", 12_090).is_none());
        assert!(entry_point("cuLaunchKernelEx", 12_090).is_some());
        assert!(entry_point("cuMemCreate", 12_090).is_some());
    }

    #[test]
    fn contexts_stand_for_devices() {
        assert_eq!(device_of(context(5)), Ok(5));
        assert!(device_of(0).is_err() && device_of(context(5) + 1).is_err());
    }
}
