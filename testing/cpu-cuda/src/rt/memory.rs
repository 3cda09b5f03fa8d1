// SPDX-License-Identifier: Apache-2.0
//! Allocation, registration, pointers, IPC and memory pools.
//!
//! Stream-ordered allocation returns memory at once, which is always early enough; freeing happens
//! in stream order. A pool is only a name for this.

use crate::capture;
use crate::device;
use crate::error::{Error, Out, Result, put, put_if};
use crate::mem::{self, IpcHandle, Origin};
use crate::stream;
use crate::types::PointerAttributes;
use crate::util::Table;
use crate::work::{Kind, Work};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Memory pools, with their properties only.
static POOLS: Table<()> = Table::new(6);

/// Waits until no work on the memory's device can use it, like `cudaFree`.
fn settle(address: usize) {
    if let Some(range) = mem::find(address) {
        stream::synchronize_device(range.device);
    }
}

fn free_in_order(address: usize, stream: usize) -> Result {
    let known = address == 0 || mem::find(address).is_some_and(|r| r.origin == Origin::Malloc);
    if !known {
        return Err(Error::INVALID_VALUE);
    }
    let free = move || {
        if mem::free(address, &[Origin::Malloc]).is_err() {
            crate::log!("cudaFreeAsync: {address:#x} is freed twice");
        }
    };
    capture::enqueue(&stream::by_handle(stream)?, Work::new(Kind::MemOp, free))
}

fn pointer_attributes(address: usize) -> PointerAttributes {
    match mem::find(address) {
        None => PointerAttributes { kind: 0, device: -2, device_pointer: 0, host_pointer: address },
        Some(range) => {
            let host = range.is_host();
            PointerAttributes {
                kind: if host { 1 } else { 2 },
                device: range.device,
                device_pointer: address,
                host_pointer: if host { address } else { 0 },
            }
        }
    }
}

crate::exports::runtime! {
    /// Allocates device memory.
    fn cudaMalloc(out: Out<'_, usize>, size: usize) { put(out, mem::alloc(size)?) }

    /// Allocates memory that host and device use alike; here all memory is.
    fn cudaMallocManaged(out: Out<'_, usize>, size: usize, _flags: u32) {
        put(out, mem::alloc(size)?)
    }

    /// Frees device memory when its device is idle.
    fn cudaFree(address: usize) {
        settle(address);
        mem::free(address, &[Origin::Malloc])
    }

    /// Allocates pinned host memory.
    fn cudaHostAlloc(out: Out<'_, usize>, size: usize, _flags: u32) {
        put(out, mem::alloc_host(size)?)
    }

    /// Allocates pinned host memory.
    fn cudaMallocHost(out: Out<'_, usize>, size: usize) { put(out, mem::alloc_host(size)?) }

    /// Frees pinned host memory when the device is idle.
    fn cudaFreeHost(address: usize) {
        settle(address);
        mem::free(address, &[Origin::HostAlloc])
    }

    /// Pins the caller's memory.
    fn cudaHostRegister(address: usize, size: usize, _flags: u32) { mem::register(address, size) }

    /// Unpins the caller's memory.
    fn cudaHostUnregister(address: usize) { mem::unregister(address) }

    /// The device's address of pinned memory, which is the same.
    fn cudaHostGetDevicePointer(out: Out<'_, usize>, address: usize, _flags: u32) {
        mem::find(address).filter(mem::Range::is_host).ok_or(Error::INVALID_VALUE)?;
        put(out, address)
    }

    /// Pinned memory has no flags here.
    fn cudaHostGetFlags(out: Out<'_, u32>, address: usize) {
        mem::find(address).filter(mem::Range::is_host).ok_or(Error::INVALID_VALUE)?;
        put(out, 0)
    }

    /// What kind of memory an address is in.
    fn cudaPointerGetAttributes(out: Out<'_, PointerAttributes>, address: usize) {
        put(out, pointer_attributes(address))
    }

    /// Free and total memory of the thread's device, bytes.
    fn cudaMemGetInfo(free: Out<'_, usize>, total: Out<'_, usize>) {
        put_if(free, device::MEMORY.saturating_sub(mem::used(device::current())));
        put_if(total, device::MEMORY);
        Ok(())
    }

    /// The IPC handle of an allocation.
    fn cudaIpcGetMemHandle(out: Out<'_, [u8; 64]>, address: usize) {
        put(out, IpcHandle::of(address)?.to_bytes())
    }

    /// Maps another process's allocation. The handle is passed by value: 64 bytes in memory.
    fn cudaIpcOpenMemHandle(out: Out<'_, usize>, handle: IpcMemHandle, _flags: u32) {
        put(out, IpcHandle::from_bytes(&handle.0)?.open()?)
    }

    /// Unmaps another process's allocation when the device is idle.
    fn cudaIpcCloseMemHandle(address: usize) {
        settle(address);
        mem::free(address, &[Origin::Ipc])
    }

    /// Allocates device memory in the order of a stream.
    fn cudaMallocAsync(out: Out<'_, usize>, size: usize, stream: usize) {
        capture::forbid(&*stream::by_handle(stream)?)?;
        put(out, mem::alloc(size)?)
    }

    /// Allocates device memory of a pool in the order of a stream.
    fn cudaMallocFromPoolAsync(out: Out<'_, usize>, size: usize, pool: usize, stream: usize) {
        POOLS.get(pool)?;
        capture::forbid(&*stream::by_handle(stream)?)?;
        put(out, mem::alloc(size)?)
    }

    /// Frees device memory in the order of a stream.
    fn cudaFreeAsync(address: usize, stream: usize) { free_in_order(address, stream) }

    /// Creates a memory pool.
    fn cudaMemPoolCreate(out: Out<'_, usize>, _properties: usize) {
        put(out, POOLS.add(Arc::new(())))
    }

    /// Destroys a memory pool; its allocations stay valid.
    fn cudaMemPoolDestroy(pool: usize) { POOLS.remove(pool).map(drop) }

    /// Pools release at once, whatever their threshold.
    fn cudaMemPoolSetAttribute(pool: usize, _attribute: i32, _value: usize) {
        POOLS.get(pool).map(drop)
    }

    /// Every device reaches every pool.
    fn cudaMemPoolSetAccess(pool: usize, _descriptions: usize, _count: usize) {
        POOLS.get(pool).map(drop)
    }

    /// The pool keeps no memory, so there is nothing to trim.
    fn cudaMemPoolTrimTo(pool: usize, _keep: usize) { POOLS.get(pool).map(drop) }
}

/// `cudaIpcMemHandle_t`, which C passes by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IpcMemHandle(pub [u8; 64]);

/// A range of memory as bytes that may not be initialised.
///
/// # Safety
/// The range must be mapped and writable, and no reference may overlap it during `'a`.
pub(crate) unsafe fn bytes<'a>(address: usize, size: usize) -> &'a mut [MaybeUninit<u8>] {
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller vouches for the range.
    unsafe { std::slice::from_raw_parts_mut(start, size) }
}
