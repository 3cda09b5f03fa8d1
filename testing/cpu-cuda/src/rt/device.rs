// SPDX-License-Identifier: Apache-2.0
//! Devices, versions, errors.

use crate::device::{self, config};
use crate::error::{Error, Out, Result, last, name, put, text};
use crate::nccl;
use crate::stream;
use crate::types::{DeviceProp, DeviceProp12};
use crate::util::lock;
use std::collections::HashSet;
use std::ffi::{CStr, c_char};
use std::sync::Mutex;

/// Pairs (device, peer) that a client enabled.
static PEERS: Mutex<Option<HashSet<(i32, i32)>>> = Mutex::new(None);

/// Pairs may be of different, existing devices.
fn is_peer(device: i32, peer: i32) -> Result<bool> {
    Ok(config().peer && device::check(device)? != device::check(peer)?)
}

fn properties(device: i32) -> Result<DeviceProp> {
    device::check(device)?;
    let mut name = [0; 256];
    let text = b"ncclscope CPU stand-in";
    name[..text.len()].copy_from_slice(text);
    Ok(DeviceProp {
        name,
        uuid: device::uuid(device),
        luid: [0; 8],
        luid_device_node_mask: 0,
        total_global_mem: device::MEMORY,
        shared_mem_per_block: 49_152,
        regs_per_block: 65_536,
        warp_size: 32,
        mem_pitch: 0x7fff_ffff,
        max_threads_per_block: 1024,
        max_threads_dim: [1024, 1024, 64],
        max_grid_size: [i32::MAX, 65_535, 65_535],
        clock_rate: device::attribute(13, device),
    })
}

fn properties_12(device: i32) -> Result<DeviceProp12> {
    Ok(DeviceProp12 {
        front: properties(device)?,
        total_const_mem: 65_536,
        major: device::COMPUTE_CAPABILITY.0,
        minor: device::COMPUTE_CAPABILITY.1,
        texture: [512, 32],
        device_overlap: 1,
        multi_processor_count: device::MULTIPROCESSORS,
        middle: [0; 48],
        pci_bus_id: device::bus(device),
        pci_device_id: 0,
        pci_domain_id: 0,
        rest: [0; 109],
    })
}

crate::exports::runtime! {
    /// Number of devices.
    fn cudaGetDeviceCount(count: Out<'_, i32>) { put(count, config().devices) }

    /// The thread's device.
    fn cudaGetDevice(out: Out<'_, i32>) { put(out, device::current()) }

    /// Sets the thread's device.
    fn cudaSetDevice(device: i32) { device::set_current(device) }

    /// Checks that the device exists; there is nothing to initialise.
    fn cudaInitDevice(device: i32, _device_flags: u32, _flags: u32) {
        device::check(device).map(drop)
    }

    /// Scheduling flags have no effect.
    fn cudaSetDeviceFlags(_flags: u32) { Ok(()) }

    /// An attribute of a device.
    fn cudaDeviceGetAttribute(value: Out<'_, i32>, attribute: i32, device: i32) {
        put(value, device::attribute(attribute, device::check(device)?))
    }

    /// Properties of a device, CUDA 12 layout.
    fn cudaGetDeviceProperties_v2(out: Out<'_, DeviceProp12>, device: i32) {
        put(out, properties_12(device)?)
    }

    /// Properties of a device, CUDA 11 layout, whose front is the same.
    fn cudaGetDeviceProperties(out: Out<'_, DeviceProp>, device: i32) {
        put(out, properties(device)?)
    }

    /// Properties of a device, as much of the CUDA 13 layout as CUDA 12 shares.
    fn cudaGetDeviceProperties_v13(out: Out<'_, DeviceProp>, device: i32) {
        put(out, properties(device)?)
    }

    /// PCI address of a device as text of at most `size` bytes with its NUL.
    fn cudaDeviceGetPCIBusId(out: *mut c_char, size: i32, device: i32) {
        device::write_bus_id(out, size, device)
    }

    /// The device at a PCI address.
    fn cudaDeviceGetByPCIBusId(out: Out<'_, i32>, id: *const c_char) {
        if id.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: the caller passes a C string.
        let id = unsafe { CStr::from_ptr(id) };
        put(out, device::by_bus_id(id.to_str().map_err(|_| Error::INVALID_VALUE)?)?)
    }

    /// Whether one device reaches another's memory.
    fn cudaDeviceCanAccessPeer(out: Out<'_, i32>, device: i32, peer: i32) {
        put(out, i32::from(is_peer(device, peer)?))
    }

    /// Enables access from the thread's device to a peer, once.
    fn cudaDeviceEnablePeerAccess(peer: i32, _flags: u32) {
        let device = device::current();
        if !is_peer(device, peer)? {
            return Err(Error::INVALID_DEVICE);
        }
        let new = lock(&PEERS).get_or_insert_default().insert((device, peer));
        if new { Ok(()) } else { Err(Error::PEER_ACCESS_ALREADY_ENABLED) }
    }

    /// Disables access from the thread's device to a peer.
    fn cudaDeviceDisablePeerAccess(peer: i32) {
        let known = lock(&PEERS).get_or_insert_default().remove(&(device::current(), peer));
        if known { Ok(()) } else { Err(Error::PEER_ACCESS_NOT_ENABLED) }
    }

    /// A property of a pair of devices: access and atomics work if peer access does.
    fn cudaDeviceGetP2PAttribute(out: Out<'_, i32>, attribute: i32, device: i32, peer: i32) {
        let supported = is_peer(device, peer)? && (2..=3).contains(&attribute);
        put(out, i32::from(supported))
    }

    /// Waits for all work of the thread's device.
    fn cudaDeviceSynchronize() {
        stream::synchronize_device(device::current());
        nccl::healthy()
    }

    /// Limits have no effect.
    fn cudaDeviceSetLimit(_limit: i32, _value: usize) { Ok(()) }

    /// Stream priorities: lowest 0, highest -5.
    fn cudaDeviceGetStreamPriorityRange(least: Out<'_, i32>, greatest: Out<'_, i32>) {
        crate::error::put_if(least, 0);
        crate::error::put_if(greatest, -5);
        Ok(())
    }

    /// Remote writes into host memory are visible at once.
    fn cudaDeviceFlushGPUDirectRDMAWrites(_target: i32, _scope: i32) { Ok(()) }

    /// Runtime version.
    fn cudaRuntimeGetVersion(out: Out<'_, i32>) { put(out, device::version()) }

    /// Driver version.
    fn cudaDriverGetVersion(out: Out<'_, i32>) { put(out, device::version()) }
}

/// Returns and clears the thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> i32 {
    last(true)
}

/// Returns the thread's last error without clearing it.
#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> i32 {
    last(false)
}

/// Name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(code: i32) -> *const c_char {
    name(code).as_ptr()
}

/// Description of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(code: i32) -> *const c_char {
    text(code).as_ptr()
}

/// The functions of this module that do not return a status of their own.
pub(crate) fn plain() -> [(&'static str, *const ()); 4] {
    [
        ("cudaGetLastError", cudaGetLastError as *const ()),
        ("cudaPeekAtLastError", cudaPeekAtLastError as *const ()),
        ("cudaGetErrorName", cudaGetErrorName as *const ()),
        ("cudaGetErrorString", cudaGetErrorString as *const ()),
    ]
}
