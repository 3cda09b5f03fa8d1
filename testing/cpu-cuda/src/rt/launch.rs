// SPDX-License-Identifier: Apache-2.0
//! Kernel attributes, and the lookup of driver functions. The driver API does the launch itself.

use crate::device;
use crate::drv;
use crate::error::{Error, Out, Result, put, put_if};
use crate::nccl;
use crate::types::FuncAttributes;
use std::ffi::{CStr, c_char};

/// `cudaDriverEntryPointQueryResult`: found, or no such symbol.
const FOUND: i32 = 0;
const NOT_FOUND: i32 = 1;

fn entry_point(
    name: *const c_char,
    version: u32,
    out: Out<'_, *const ()>,
    status: Out<'_, i32>,
) -> Result {
    if name.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Error::INVALID_VALUE)?;
    let address = drv::entry_point(name, version);
    put_if(status, if address.is_some() { FOUND } else { NOT_FOUND });
    put(out, address.unwrap_or(std::ptr::null()))
}

crate::exports::runtime! {
    /// Resources of a kernel; the same for all.
    fn cudaFuncGetAttributes(out: Out<'_, FuncAttributes>, function: usize) {
        nccl::kernel(function)?;
        put(out, FuncAttributes {
            shared_size_bytes: 16_384,
            const_size_bytes: 0,
            local_size_bytes: 0,
            max_threads_per_block: 640,
            num_regs: 96,
            ptx_version: 80,
            binary_version: 80,
            cache_mode_ca: 0,
            max_dynamic_shared_size_bytes: device::SHARED_MEMORY_OPTIN - 16_384,
            rest: [0; 12],
        })
    }

    /// Settings of a kernel have no effect.
    fn cudaFuncSetAttribute(function: usize, _attribute: i32, _value: i32) {
        nccl::kernel(function).map(drop)
    }

    /// The driver's handle of a kernel: the same address.
    fn cudaGetFuncBySymbol(out: Out<'_, usize>, function: usize) {
        put(out, nccl::kernel(function)?)
    }

    /// One block of a kernel fits a multiprocessor.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        out: Out<'_, i32>, function: usize, _threads: i32, _shared: usize,
    ) {
        nccl::kernel(function)?;
        put(out, 1)
    }

    /// Address of a driver function, as of the runtime's version.
    fn cudaGetDriverEntryPoint(
        name: *const c_char, out: Out<'_, *const ()>, _flags: u64, status: Out<'_, i32>,
    ) {
        entry_point(name, u32::try_from(device::version()).unwrap_or(0), out, status)
    }

    /// Address of a driver function, as of `version`.
    fn cudaGetDriverEntryPointByVersion(
        name: *const c_char, out: Out<'_, *const ()>, version: u32, _flags: u64,
        status: Out<'_, i32>,
    ) {
        entry_point(name, version, out, status)
    }
}
