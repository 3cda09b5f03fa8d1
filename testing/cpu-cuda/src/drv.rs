// SPDX-License-Identifier: Apache-2.0
//! The part of the CUDA Driver API that NCCL looks up by name (`src/misc/cudawrap.cc`).
//!
//! A function that is missing here is reported as not found, which disables the feature in NCCL:
//! multicast (NVLS) and `cuMemGetHandleForAddressRange` (DMA-BUF) among them. A context is a
//! device: each has only its primary one.

mod context;
pub mod event;
pub mod memory;
pub mod stream;

use crate::device;
use crate::error::{Out, Result, name, put, text};
use std::ffi::{CStr, c_char};

/// The CUDA version from which `cuCtxCreate` means its third form.
const CONTEXT_V3: u32 = 11_040;
/// The function for `name` in CUDA `version`, if the stand-in has it.
pub fn entry_point(name: &str, version: u32) -> Option<*const ()> {
    let name = match name {
        "cuCtxCreate" if version >= CONTEXT_V3 => "cuCtxCreate_v3",
        name => name,
    };
    let tables = [table(), event::table(), memory::table(), stream::table()];
    tables.iter().flatten().find(|f| f.0 == name).map(|f| f.1)
}

fn describe(out: Out<'_, *const c_char>, code: i32, of: fn(i32) -> &'static CStr) -> Result {
    put(out, of(code).as_ptr())
}

crate::exports::driver! {
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

    /// Model of a device.
    fn cuDeviceGetName(out: *mut c_char, size: i32, device: i32) {
        device::write_name(out, size, device)
    }

    /// PCI address of a device.
    fn cuDeviceGetPCIBusId(out: *mut c_char, size: i32, device: i32) {
        device::write_bus_id(out, size, device)
    }

    /// The device's context becomes current.
    fn cuCtxCreate(out: Out<'_, usize>, _flags: u32, device: i32) {
        device::set_current(device)?;
        put(out, context::of(device))
    }

    /// The device's context becomes current (CUDA 11.4 form).
    fn cuCtxCreate_v3(
        out: Out<'_, usize>, _affinities: usize, _count: i32, _flags: u32, device: i32,
    ) {
        device::set_current(device)?;
        put(out, context::of(device))
    }

    /// The context stays: it is the device's only one.
    fn cuCtxDestroy(context: usize) { context::device(context).map(drop) }

    /// The thread's context.
    fn cuCtxGetCurrent(out: Out<'_, usize>) { put(out, context::of(device::current())) }

    /// Sets the thread's context; NULL leaves the device as it is.
    fn cuCtxSetCurrent(context: usize) {
        if context == 0 { Ok(()) } else { device::set_current(context::device(context)?) }
    }

    /// The thread's device.
    fn cuCtxGetDevice(out: Out<'_, i32>) { put(out, device::current()) }

    /// The device's context.
    fn cuDevicePrimaryCtxRetain(out: Out<'_, usize>, device: i32) {
        put(out, context::of(device::check(device)?))
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
}
