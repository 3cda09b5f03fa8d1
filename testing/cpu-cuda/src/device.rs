// SPDX-License-Identifier: Apache-2.0
//! The simulated devices: their number, their capabilities, and the current one.
//!
//! Every device is the same and has compute capability 8.0: the newest for which NCCL needs no
//! feature that only exists in hardware. Environment, read once:
//!
//! | variable | default | meaning |
//! | --- | --- | --- |
//! | `CPU_CUDA_DEVICES` | 8 | number of devices, at most 32 |
//! | `CPU_CUDA_VMM` | 1 | 0: no virtual memory management, so NCCL uses legacy IPC |
//! | `CPU_CUDA_NAME` | CPU stand-in | the model of the devices |
//! | `CPU_CUDA_PEER` | 1 | 0: no peer access, so NCCL uses shared host memory |

use crate::error::{Error, Result};
use std::cell::Cell;
use std::ffi::c_char;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// Major and minor compute capability of every device.
pub const COMPUTE_CAPABILITY: (i32, i32) = (8, 0);
/// Multiprocessors of every device.
pub const MULTIPROCESSORS: i32 = 108;
/// Shared memory a block may opt in to, bytes.
pub const SHARED_MEMORY_OPTIN: i32 = 232_448;
/// Memory a device claims to have, bytes. Nothing is reserved.
pub const MEMORY: usize = 80 << 30;
/// PCI bus number of device 0. High, so that it does not match a real device of the machine and its
/// topology.
const FIRST_BUS: i32 = 0xC0;

/// The configuration in the environment.
#[derive(Debug)]
pub struct Config {
    /// Number of devices.
    pub devices: i32,
    /// The model of the devices.
    pub name: String,
    /// Whether the virtual memory management API is offered.
    pub vmm: bool,
    /// Whether devices can reach each other's memory.
    pub peer: bool,
}

/// The configuration of this process.
pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let number = |name: &str, default: i32| {
            std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
        };
        Config {
            devices: number("CPU_CUDA_DEVICES", 8).clamp(1, 32),
            name: std::env::var("CPU_CUDA_NAME").unwrap_or_else(|_| "CPU stand-in".into()),
            vmm: number("CPU_CUDA_VMM", 1) != 0,
            peer: number("CPU_CUDA_PEER", 1) != 0,
        }
    })
}

/// CUDA version as the API writes it (12090 for 12.9), of runtime and driver alike. Set by the
/// attach from what libnccl was built with.
static VERSION: AtomicI32 = AtomicI32::new(12_090);

/// The CUDA version that runtime and driver report.
pub fn version() -> i32 {
    VERSION.load(Ordering::Relaxed)
}

/// Sets the version to report.
pub fn set_version(version: i32) {
    VERSION.store(version, Ordering::Relaxed);
}

thread_local! {
    static CURRENT: Cell<i32> = const { Cell::new(0) };
}

/// The calling thread's device.
pub fn current() -> i32 {
    CURRENT.get()
}

/// Makes `device` the calling thread's device.
///
/// # Errors
/// [`Error::INVALID_DEVICE`] if it does not exist.
pub fn set_current(device: i32) -> Result {
    CURRENT.set(check(device)?);
    Ok(())
}

/// `device` if it exists.
///
/// # Errors
/// [`Error::INVALID_DEVICE`] otherwise.
pub fn check(device: i32) -> Result<i32> {
    if (0..config().devices).contains(&device) { Ok(device) } else { Err(Error::INVALID_DEVICE) }
}

/// PCI bus number of `device`.
pub fn bus(device: i32) -> i32 {
    FIRST_BUS + device
}

/// PCI address of `device` as NVML and CUDA write it, for example `0000:C0:00.0`.
pub fn bus_id(device: i32) -> String {
    format!("0000:{:02X}:00.0", bus(device))
}

/// Writes a device's PCI address to `size` bytes at `out`.
///
/// # Errors
/// [`Error::INVALID_DEVICE`] if it does not exist, [`Error::INVALID_VALUE`] without enough room.
pub(crate) fn write_bus_id(out: *mut c_char, size: i32, device: i32) -> Result {
    write_text(out, size, &bus_id(check(device)?))
}

/// Writes the model of a device: the value of `CPU_CUDA_NAME`.
///
/// # Errors
/// As of [`write_bus_id`].
pub(crate) fn write_name(out: *mut c_char, size: i32, device: i32) -> Result {
    check(device)?;
    write_text(out, size, &config().name)
}

fn write_text(out: *mut c_char, size: i32, id: &str) -> Result {
    let room = usize::try_from(size).map_err(|_| Error::INVALID_VALUE)?;
    if out.is_null() || id.len() >= room {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller offers `size` bytes, which hold the text and its NUL.
    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), id.len() + 1) };
    let (text, end) = out.split_at_mut(id.len());
    text.copy_from_slice(id.as_bytes());
    end.fill(0);
    Ok(())
}

/// The device at PCI address `id`; NCCL writes the digits in either case.
///
/// # Errors
/// [`Error::INVALID_DEVICE`] if no device is there.
pub fn by_bus_id(id: &str) -> Result<i32> {
    // NVML writes eight digits of domain, sysfs four.
    let tail = |s: &str| s.trim_start_matches('0').to_ascii_uppercase();
    let wanted = tail(id);
    (0..config().devices).find(|&d| tail(&bus_id(d)) == wanted).ok_or(Error::INVALID_DEVICE)
}

/// A stable 16-byte identity of `device`.
pub fn uuid(device: i32) -> [u8; 16] {
    let mut uuid = *b"cpu-cuda-dev\0\0\0\0";
    uuid[12..].copy_from_slice(&device.to_be_bytes());
    uuid
}

/// Value of attribute `attribute` (`CUdevice_attribute`, the same numbers as `cudaDeviceAttr`;
/// CUDA Driver API manual). Unknown attributes are 0, "no".
pub fn attribute(attribute: i32, device: i32) -> i32 {
    let config = config();
    match attribute {
        1..=3 => 1024,     // threads of a block, x, y
        4 => 64,           // z
        5 => i32::MAX,     // blocks of a grid, x
        6 | 7 => 65_535,   // y, z
        8 => 49_152,       // shared memory of a block
        9 => 65_536,       // constant memory
        10 => 32,          // warp size
        12 | 82 => 65_536, // registers of a block, of a multiprocessor
        13 => 1_410_000,   // clock, kHz
        16 => MULTIPROCESSORS,
        33 => bus(device), // PCI bus
        36 => 1_593_000,   // memory clock, kHz
        37 => 5120,        // memory bus, bits
        38 => 40 << 20,    // L2 cache
        39 => 2048,        // threads of a multiprocessor
        40 => 3,           // copy engines
        75 => COMPUTE_CAPABILITY.0,
        76 => COMPUTE_CAPABILITY.1,
        81 => 233_472, // shared memory of a multiprocessor
        97 => SHARED_MEMORY_OPTIN,
        102 | 103 | 110 => i32::from(config.vmm), // VMM, file descriptors as handles, with RDMA
        106 => 32,                                // blocks of a multiprocessor
        // can map host memory, concurrent kernels, unified addressing, stream priorities,
        // pageable access, compute preemption, memory operations of streams, cooperative launch,
        // host registration and its read-only form, memory pools, 64-bit memory operations.
        15 | 19 | 31 | 41 | 78 | 83 | 89 | 90 | 91..=95 | 99 | 113 | 115 | 122 => 1,
        131 | 134 => 0, // NUMA nodes
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_round_trip_in_any_spelling() {
        assert_eq!(bus_id(3), "0000:C3:00.0");
        for spelling in ["0000:C3:00.0", "0000:c3:00.0", "00000000:C3:00.0"] {
            assert_eq!(by_bus_id(spelling), Ok(3));
        }
        assert_eq!(by_bus_id("0000:01:00.0"), Err(Error::INVALID_DEVICE));
    }

    #[test]
    fn current_device_is_per_thread_and_checked() {
        set_current(1).unwrap();
        assert_eq!(std::thread::spawn(current).join().unwrap(), 0);
        assert_eq!(current(), 1);
        assert_eq!(set_current(32), Err(Error::INVALID_DEVICE));
        set_current(0).unwrap();
    }
}
