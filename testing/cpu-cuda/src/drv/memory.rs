// SPDX-License-Identifier: Apache-2.0
//! Pointers and virtual memory management.

use crate::device;
use crate::error::{Error, Out, Result, put, put_if};
use crate::mem::{self, Location, Origin, Range, vmm};
use crate::types::{MemAccessDesc, MemAllocationProp, MemLocation};
use std::ffi::c_void;

/// The handle type "file descriptor" (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`).
const FILE_DESCRIPTOR: i32 = 1;

fn range(address: usize) -> Result<Range> {
    mem::find(address).ok_or(Error::INVALID_VALUE)
}

/// The location type of `CUmemLocation`: 1 device, 2 to 4 host.
fn location(at: MemLocation) -> Result<Location> {
    match at.kind {
        1 => Ok(Location::Device(device::check(at.id)?)),
        2 | 4 => Ok(Location::HostNuma(0)),
        3 => Ok(Location::HostNuma(at.id)),
        _ => Err(Error::INVALID_VALUE),
    }
}

fn properties(location: Location) -> MemAllocationProp {
    let location = match location {
        Location::Device(id) => MemLocation { kind: 1, id },
        Location::HostNuma(id) => MemLocation { kind: 3, id },
    };
    MemAllocationProp {
        kind: 1,
        requested_handle_types: FILE_DESCRIPTOR,
        location,
        win32: 0,
        flags: [0; 8],
    }
}

/// A pointer attribute in C: 4 or 8 bytes.
enum Attribute {
    Word(u32),
    Wide(usize),
}

/// Value of `CUpointer_attribute` number `which` for `address`.
fn pointer_attribute(which: i32, address: usize) -> Result<Attribute> {
    use Attribute::{Wide, Word};
    let range = range(address)?;
    let (host, mapped) = (range.is_host(), range.origin == Origin::Mapped);
    Ok(match which {
        1 => Wide(super::context::of(range.device)),
        2 => Word(if host { 1 } else { 2 }),
        3 => Wide(address),
        4 if host => Wide(address),
        6 | 8 | 15 => Word(0), // synchronous operations, managed, RDMA
        7 => Wide(range.memory.as_ref().map_or(Ok(0), |m| usize::try_from(m.id)).unwrap_or(0)),
        9 => Word(range.device.cast_unsigned()),
        10 => Word(u32::from(range.origin == Origin::Malloc)), // legacy IPC
        11 | 19 => Wide(range.base),
        12 | 18 => Wide(range.size),
        13 => Word(1),                   // mapped
        14 => Wide(usize::from(mapped)), // handle types: bit 0 is the file descriptor
        16 => Word(3),                   // access: read and write
        17 => Wide(0),                   // no memory pool
        _ => return Err(Error::INVALID_VALUE),
    })
}

crate::exports::driver! {
    /// Base and size of the allocation around an address.
    fn cuMemGetAddressRange(base: Out<'_, usize>, size: Out<'_, usize>, address: usize) {
        let range = range(address)?;
        put_if(base, range.base);
        put_if(size, range.size);
        Ok(())
    }

    /// An attribute of an address.
    fn cuPointerGetAttribute(out: *mut c_void, attribute: i32, address: usize) {
        let value = pointer_attribute(attribute, address)?;
        if out.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        match value {
            // SAFETY: the caller offers room for the attribute's type.
            Attribute::Word(word) => unsafe { out.cast::<u32>().write(word) },
            // SAFETY: as above.
            Attribute::Wide(wide) => unsafe { out.cast::<usize>().write(wide) },
        }
        Ok(())
    }

    /// Attributes that can be set have no effect here.
    fn cuPointerSetAttribute(_value: usize, _attribute: i32, address: usize) {
        range(address).map(drop)
    }

    /// The one granularity.
    fn cuMemGetAllocationGranularity(
        out: Out<'_, usize>, _properties: Option<&MemAllocationProp>, _option: i32,
    ) {
        put(out, vmm::GRANULARITY)
    }

    /// Reserves addresses; the requested address is ignored.
    fn cuMemAddressReserve(
        out: Out<'_, usize>, size: usize, alignment: usize, _address: usize, _flags: u64,
    ) {
        put(out, vmm::reserve(size, alignment)?)
    }

    /// Releases reserved addresses.
    fn cuMemAddressFree(address: usize, size: usize) {
        vmm::unreserve(address, size);
        Ok(())
    }

    /// Allocates pages.
    fn cuMemCreate(
        out: Out<'_, u64>, size: usize, properties: Option<&MemAllocationProp>, _flags: u64,
    ) {
        let properties = properties.ok_or(Error::INVALID_VALUE)?;
        if properties.requested_handle_types & !FILE_DESCRIPTOR != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        put(out, vmm::create(size, location(properties.location)?)?)
    }

    /// Releases a handle.
    fn cuMemRelease(handle: u64) { vmm::release(handle) }

    /// Maps pages.
    fn cuMemMap(address: usize, size: usize, offset: usize, handle: u64, _flags: u64) {
        vmm::map(address, size, offset, handle)
    }

    /// Unmaps pages.
    fn cuMemUnmap(address: usize, size: usize) { vmm::unmap(address, size) }

    /// Opens mapped pages to devices; one opens them to all.
    fn cuMemSetAccess(
        address: usize, size: usize, descriptions: *const MemAccessDesc, count: usize,
    ) {
        if descriptions.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: the caller passes `count` descriptions.
        let descriptions = unsafe { std::slice::from_raw_parts(descriptions, count) };
        vmm::set_access(address, size, descriptions.iter().any(|d| d.flags != 0))
    }

    /// Another reference to the handle of the pages at an address.
    fn cuMemRetainAllocationHandle(out: Out<'_, u64>, address: usize) {
        put(out, vmm::retain(address)?)
    }

    /// The properties with which pages were allocated.
    fn cuMemGetAllocationPropertiesFromHandle(out: Out<'_, MemAllocationProp>, handle: u64) {
        put(out, properties(vmm::get(handle)?.location))
    }

    /// A descriptor of the pages for another process.
    fn cuMemExportToShareableHandle(out: Out<'_, i32>, handle: u64, kind: i32, _flags: u64) {
        if kind != FILE_DESCRIPTOR {
            return Err(Error::NOT_SUPPORTED);
        }
        put(out, vmm::export(handle)?)
    }

    /// A handle of another process's pages. The descriptor travels in the pointer argument.
    fn cuMemImportFromShareableHandle(out: Out<'_, u64>, descriptor: usize, kind: i32) {
        if kind != FILE_DESCRIPTOR {
            return Err(Error::NOT_SUPPORTED);
        }
        put(out, vmm::import(i32::try_from(descriptor).map_err(|_| Error::INVALID_VALUE)?)?)
    }
}
