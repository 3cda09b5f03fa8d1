// SPDX-License-Identifier: Apache-2.0
//! The part of NVML that NCCL uses (`src/misc/nvmlwrap.cc`). The library's SONAME resolves NCCL's
//! `dlopen("libnvidia-ml.so.1")` to this library.

use crate::device::{self, config};
use crate::error::Out;
use std::ffi::{CStr, c_char};

/// `nvmlReturn_t` values (NVML API reference).
const SUCCESS: i32 = 0;
const INVALID_ARGUMENT: i32 = 2;
const NOT_SUPPORTED: i32 = 3;
const NOT_FOUND: i32 = 6;
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const P2P_NOT_SUPPORTED: i32 = 5;

/// The first part of `nvmlPciInfo_t`, which is the same in NCCL's and NVML's declarations; the rest
/// differs and is not written.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PciInfo {
    /// PCI address as text.
    pub bus_id: [u8; 16],
    /// Domain number.
    pub domain: u32,
    /// Bus number.
    pub bus: u32,
    /// Device number.
    pub device: u32,
    /// Device and vendor.
    pub pci_device_id: u32,
    /// Subsystem.
    pub pci_subsystem_id: u32,
}

/// `nvmlPciInfoExt_v1_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PciInfoExt {
    /// Version of the structure, set by the caller.
    pub version: u32,
    /// Domain number.
    pub domain: u32,
    /// Bus number.
    pub bus: u32,
    /// Device number.
    pub device: u32,
    /// Device and vendor.
    pub pci_device_id: u32,
    /// Subsystem.
    pub pci_subsystem_id: u32,
    /// Class 3: display controller.
    pub base_class: u32,
    /// Class 2: 3D controller.
    pub sub_class: u32,
    /// PCI address as text.
    pub bus_id: [u8; 16],
}

const _: () = assert!(size_of::<PciInfo>() == 36 && size_of::<PciInfoExt>() == 48);

/// NVIDIA's vendor number and the device number of an A100.
const PCI_DEVICE: u32 = 0x20B0_10DE;

/// A handle is the device's number plus one, so that none is NULL.
fn device_of(handle: usize) -> Option<i32> {
    let device = i32::try_from(handle.checked_sub(1)?).ok()?;
    device::check(device).ok()
}

fn handle_of(device: i32) -> usize {
    usize::try_from(device).map_or(0, |d| d + 1)
}

fn give<T>(out: Out<'_, T>, value: Option<T>) -> i32 {
    match (out, value) {
        (Some(out), Some(value)) => {
            out.write(value);
            SUCCESS
        }
        _ => INVALID_ARGUMENT,
    }
}

fn pci_info(device: i32) -> PciInfo {
    let mut bus_id = [0; 16];
    let text = device::bus_id(device);
    bus_id[..text.len()].copy_from_slice(text.as_bytes());
    PciInfo {
        bus_id,
        domain: 0,
        bus: device::bus(device).cast_unsigned(),
        device: 0,
        pci_device_id: PCI_DEVICE,
        pci_subsystem_id: 0,
    }
}

/// Defines NVML functions; the last expression is the status.
macro_rules! nvml {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block
    )*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// The arguments must satisfy the contract of the NVML function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 $body
        )*
    };
}

nvml! {
    /// Nothing to initialise.
    fn nvmlInit() { SUCCESS }

    /// Nothing to initialise.
    fn nvmlInit_v2() { SUCCESS }

    /// Nothing to release.
    fn nvmlShutdown() { SUCCESS }

    /// Number of devices.
    fn nvmlDeviceGetCount(out: Out<'_, u32>) { give(out, u32::try_from(config().devices).ok()) }

    /// Number of devices.
    fn nvmlDeviceGetCount_v2(out: Out<'_, u32>) {
        give(out, u32::try_from(config().devices).ok())
    }

    /// The device of a number.
    fn nvmlDeviceGetHandleByIndex(index: u32, out: Out<'_, usize>) {
        let device = i32::try_from(index).ok().and_then(|d| device::check(d).ok());
        give(out, device.map(handle_of))
    }

    /// The device at a PCI address.
    fn nvmlDeviceGetHandleByPciBusId(id: *const c_char, out: Out<'_, usize>) {
        if id.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: the caller passes a C string.
        let id = unsafe { CStr::from_ptr(id) };
        match id.to_str().ok().and_then(|id| device::by_bus_id(id).ok()) {
            Some(device) => give(out, Some(handle_of(device))),
            None => NOT_FOUND,
        }
    }

    /// The device's number.
    fn nvmlDeviceGetIndex(handle: usize, out: Out<'_, u32>) {
        give(out, device_of(handle).map(i32::cast_unsigned))
    }

    /// Compute capability.
    fn nvmlDeviceGetCudaComputeCapability(
        handle: usize, major: Out<'_, i32>, minor: Out<'_, i32>,
    ) {
        let (high, low) = device::COMPUTE_CAPABILITY;
        let known = device_of(handle);
        match give(major, known.map(|_| high)) {
            SUCCESS => give(minor, Some(low)),
            failure => failure,
        }
    }

    /// Capabilities of a pair of devices: 0 read, 1 write; not NVLink or others.
    fn nvmlDeviceGetP2PStatus(a: usize, b: usize, index: i32, out: Out<'_, i32>) {
        let pair = device_of(a).zip(device_of(b));
        let supported = config().peer && (0..=1).contains(&index);
        give(out, pair.map(|_| if supported { 0 } else { P2P_NOT_SUPPORTED }))
    }

    /// PCI address.
    fn nvmlDeviceGetPciInfo_v3(handle: usize, out: Out<'_, PciInfo>) {
        give(out, device_of(handle).map(pci_info))
    }

    /// PCI address and class.
    fn nvmlDeviceGetPciInfoExt(handle: usize, out: Option<&mut PciInfoExt>) {
        let (Some(out), Some(device)) = (out, device_of(handle)) else { return INVALID_ARGUMENT };
        let info = pci_info(device);
        *out = PciInfoExt {
            version: out.version,
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            pci_device_id: info.pci_device_id,
            pci_subsystem_id: info.pci_subsystem_id,
            base_class: 3,
            sub_class: 2,
            bus_id: info.bus_id,
        };
        SUCCESS
    }

    /// PCIe speed of a lane, Mbit/s: generation 4.
    fn nvmlDeviceGetPcieLinkMaxSpeed(handle: usize, out: Out<'_, u32>) {
        give(out, device_of(handle).map(|_| 16_000))
    }

    /// PCIe generation.
    fn nvmlDeviceGetCurrPcieLinkGeneration(handle: usize, out: Out<'_, u32>) {
        give(out, device_of(handle).map(|_| 4))
    }

    /// PCIe lanes.
    fn nvmlDeviceGetCurrPcieLinkWidth(handle: usize, out: Out<'_, u32>) {
        give(out, device_of(handle).map(|_| 16))
    }

    /// Confidential computing is off: three zero words.
    fn nvmlSystemGetConfComputeState(out: Out<'_, [u32; 3]>) { give(out, Some([0; 3])) }

    /// There is no NVLink.
    fn nvmlDeviceGetNvLinkState(_handle: usize, _link: u32, _out: usize) { NOT_SUPPORTED }

    /// There is no NVLink.
    fn nvmlDeviceGetNvLinkRemotePciInfo(_handle: usize, _link: u32, _out: usize) { NOT_SUPPORTED }

    /// There is no NVLink.
    fn nvmlDeviceGetNvLinkCapability(_handle: usize, _link: u32, _which: i32, _out: usize) {
        NOT_SUPPORTED
    }

    /// There are no such fields.
    fn nvmlDeviceGetFieldValues(_handle: usize, _count: i32, _out: usize) { NOT_SUPPORTED }

    /// There is no fabric.
    fn nvmlDeviceGetGpuFabricInfoV(_handle: usize, _out: usize) { NOT_SUPPORTED }

    /// There is no platform.
    fn nvmlDeviceGetPlatformInfo(_handle: usize, _out: usize) { NOT_SUPPORTED }
}

/// Description of a status.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: i32) -> *const c_char {
    let text = match code {
        SUCCESS => c"success",
        INVALID_ARGUMENT => c"invalid argument",
        NOT_SUPPORTED => c"not supported by the CPU stand-in",
        NOT_FOUND => c"not found",
        _ => c"unknown error",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    #[test]
    fn cuda_and_nvml_agree_on_the_bus_id() {
        let mut handle = MaybeUninit::new(0);
        // SAFETY: the arguments are a C string and room for a handle.
        let status =
            unsafe { nvmlDeviceGetHandleByPciBusId(c"0000:c2:00.0".as_ptr(), Some(&mut handle)) };
        assert_eq!(status, SUCCESS);
        // SAFETY: success means it was written.
        let handle = unsafe { handle.assume_init() };
        assert_eq!(device_of(handle), Some(2));
        assert!(pci_info(2).bus_id.starts_with(device::bus_id(2).as_bytes()));
        assert_eq!(device_of(0), None);
        assert_eq!(device_of(100), None);
    }
}
