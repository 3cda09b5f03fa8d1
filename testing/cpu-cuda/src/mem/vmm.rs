// SPDX-License-Identifier: Apache-2.0
//! Virtual memory management: separate addresses and pages (CUDA Driver API manual, "Virtual Memory
//! Management").
//!
//! A reservation is an inaccessible mapping; `map` puts a memfd over part of it, `set_access`
//! opens it. A handle counts its own references; the pages live as long as a handle, a mapping or
//! a descriptor in any process does.

use super::{Location, Memory, Origin, RANGES, Range};
use crate::device;
use crate::error::{Error, Result};
use crate::util::lock;
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE,
    PROT_READ, PROT_WRITE,
};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

/// Every size and address is a multiple of this many bytes.
pub const GRANULARITY: usize = 2 << 20;

/// Handles in use: the pages and how often the handle must be released.
type Handles = HashMap<u64, (Arc<Memory>, u32)>;

fn handles() -> &'static Mutex<Handles> {
    static HANDLES: OnceLock<Mutex<Handles>> = OnceLock::new();
    HANDLES.get_or_init(Mutex::default)
}

fn retain_memory(memory: Arc<Memory>) -> u64 {
    let id = memory.id;
    lock(handles()).entry(id).or_insert((memory, 0)).1 += 1;
    id
}

/// The pages behind `handle`.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if the handle is unknown.
pub fn get(handle: u64) -> Result<Arc<Memory>> {
    lock(handles()).get(&handle).map(|(memory, _)| memory.clone()).ok_or(Error::INVALID_VALUE)
}

/// Reserves `size` bytes of addresses aligned to the larger of `alignment` and the granularity.
///
/// # Errors
/// [`Error::INVALID_VALUE`] for a bad size or alignment, [`Error::MEMORY_ALLOCATION`] if the
/// system refuses.
pub fn reserve(size: usize, alignment: usize) -> Result<usize> {
    let alignment = alignment.max(GRANULARITY);
    if size == 0 || !size.is_multiple_of(GRANULARITY) || !alignment.is_power_of_two() {
        return Err(Error::INVALID_VALUE);
    }
    let whole = size.checked_add(alignment).ok_or(Error::INVALID_VALUE)?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice touches no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), whole, PROT_NONE, flags, -1, 0) };
    if start == MAP_FAILED {
        return Err(Error::MEMORY_ALLOCATION);
    }
    let start = start.expose_provenance();
    let base = start.next_multiple_of(alignment);
    super::unmap(start, base - start);
    super::unmap(base + size, start + whole - (base + size));
    Ok(base)
}

/// Releases a reservation; nothing may be mapped in it.
pub fn unreserve(base: usize, size: usize) {
    super::unmap(base, size);
}

/// Allocates new pages and returns their handle.
///
/// # Errors
/// [`Error::INVALID_VALUE`] for a bad size, [`Error::MEMORY_ALLOCATION`] if the system refuses.
pub fn create(size: usize, location: Location) -> Result<u64> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return Err(Error::INVALID_VALUE);
    }
    Ok(retain_memory(Memory::create(size, location)?))
}

/// Drops one reference of `handle`.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if the handle is unknown.
pub fn release(handle: u64) -> Result {
    let mut handles = lock(handles());
    let entry = handles.get_mut(&handle).ok_or(Error::INVALID_VALUE)?;
    entry.1 -= 1;
    if entry.1 == 0 {
        handles.remove(&handle);
    }
    Ok(())
}

/// One more reference to the handle of the pages mapped at `address`.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if nothing is mapped there.
pub fn retain(address: usize) -> Result<u64> {
    let range = super::find(address).filter(|r| r.origin == Origin::Mapped);
    range.and_then(|r| r.memory).map(retain_memory).ok_or(Error::INVALID_VALUE)
}

/// A new descriptor of the pages, for the caller to pass on and close.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if the handle is unknown.
pub fn export(handle: u64) -> Result<i32> {
    let copy = get(handle)?.file.try_clone().map_err(|_| Error::OPERATING_SYSTEM)?;
    Ok(copy.into_raw_fd())
}

/// A handle of the pages that `fd` shows. The caller keeps `fd`.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if `fd` is not memory of the stand-in.
pub fn import(fd: i32) -> Result<u64> {
    if fd < 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's descriptor stays open during this call; that is the API's contract.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let copy: OwnedFd = fd.try_clone_to_owned().map_err(|_| Error::INVALID_VALUE)?;
    Ok(retain_memory(Memory::import(copy)?))
}

/// Shows `size` bytes of the pages of `handle`, from `offset`, at `base` inside a reservation,
/// not yet accessible.
///
/// # Errors
/// [`Error::INVALID_VALUE`] for an unknown handle or a bad range.
pub fn map(base: usize, size: usize, offset: usize, handle: u64) -> Result {
    let memory = get(handle)?;
    let end = offset.checked_add(size).ok_or(Error::INVALID_VALUE)?;
    if size == 0 || end > memory.size || !base.is_multiple_of(GRANULARITY) {
        return Err(Error::INVALID_VALUE);
    }
    overlay(base, size, Some((&memory.file, offset)))?;
    let device = match memory.location {
        Location::Device(device) => device,
        Location::HostNuma(_) => device::current(),
    };
    super::add(Range { base, size, origin: Origin::Mapped, device, memory: Some(memory) });
    Ok(())
}

/// Unmaps `size` bytes from `base`; the addresses stay reserved.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if nothing is mapped there.
pub fn unmap(base: usize, size: usize) -> Result {
    let end = base.checked_add(size).ok_or(Error::INVALID_VALUE)?;
    let gone: Vec<Range> = {
        let mut ranges = lock(&RANGES);
        let inside = |r: &Range| r.origin == Origin::Mapped && r.base + r.size <= end;
        let keys: Vec<usize> =
            ranges.range(base..end).filter(|(_, r)| inside(r)).map(|(&k, _)| k).collect();
        keys.iter().filter_map(|key| ranges.remove(key)).collect()
    };
    if gone.is_empty() {
        return Err(Error::INVALID_VALUE);
    }
    gone.iter().try_for_each(|range| overlay(range.base, range.size, None))
}

/// Opens or closes mapped addresses for reading and writing.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if nothing is mapped there or the system refuses.
pub fn set_access(base: usize, size: usize, access: bool) -> Result {
    if super::find(base).is_none_or(|r| r.origin != Origin::Mapped) {
        return Err(Error::INVALID_VALUE);
    }
    let protection = if access { PROT_READ | PROT_WRITE } else { PROT_NONE };
    let base = std::ptr::with_exposed_provenance_mut(base);
    // SAFETY: the range starts in a mapping of this module; Rust code holds no reference to it.
    let failed = unsafe { libc::mprotect(base, size, protection) } != 0;
    if failed { Err(Error::INVALID_VALUE) } else { Ok(()) }
}

/// Replaces part of a reservation by pages of a file, or by nothing.
fn overlay(base: usize, size: usize, pages: Option<(&OwnedFd, usize)>) -> Result {
    let (flags, fd, offset) = match pages {
        Some((file, offset)) => (MAP_SHARED, file.as_raw_fd(), offset),
        None => (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
    };
    let offset = libc::off_t::try_from(offset).map_err(|_| Error::INVALID_VALUE)?;
    let at = std::ptr::with_exposed_provenance_mut(base);
    // SAFETY: the addresses belong to a reservation of the client, which only it and the stand-in
    // use, by raw pointer; replacing what they show is what it asks for.
    let shown = unsafe { libc::mmap(at, size, PROT_NONE, flags | MAP_FIXED, fd, offset) };
    if shown == MAP_FAILED { Err(Error::MEMORY_ALLOCATION) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte<'a>(address: usize) -> &'a mut u8 {
        let address = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the tests pass addresses they have just mapped and use from one thread.
        unsafe { &mut *address }
    }

    fn mapped(handle: u64) -> usize {
        let base = reserve(GRANULARITY, 0).unwrap();
        map(base, GRANULARITY, 0, handle).unwrap();
        set_access(base, GRANULARITY, true).unwrap();
        base
    }

    #[test]
    fn two_mappings_and_an_import_show_the_same_pages() {
        let handle = create(GRANULARITY, Location::Device(3)).unwrap();
        let (a, b) = (mapped(handle), mapped(handle));
        let fd = export(handle).unwrap();
        let imported = import(fd).unwrap();
        assert_eq!(get(imported).unwrap().location, Location::Device(3));
        // SAFETY: `export` gave the descriptor to this test.
        unsafe { libc::close(fd) };
        let c = mapped(imported);
        *byte(a + 100) = 7;
        assert_eq!((*byte(b + 100), *byte(c + 100)), (7, 7));
        assert_eq!(super::super::find(c + 5).unwrap().device, 3);
        for base in [a, b, c] {
            unmap(base, GRANULARITY).unwrap();
            unreserve(base, GRANULARITY);
        }
        release(imported).unwrap();
        release(handle).unwrap();
        assert_eq!(release(handle), Err(Error::INVALID_VALUE));
    }

    #[test]
    fn a_mapping_outlives_its_handle_and_gives_it_back() {
        let handle = create(GRANULARITY, Location::HostNuma(0)).unwrap();
        let base = mapped(handle);
        release(handle).unwrap();
        *byte(base) = 9;
        assert_eq!(retain(base + 1), Ok(handle));
        assert!(super::super::find(base).unwrap().is_host());
        release(handle).unwrap();
        unmap(base, GRANULARITY).unwrap();
        assert_eq!(retain(base), Err(Error::INVALID_VALUE));
        assert_eq!(unmap(base, GRANULARITY), Err(Error::INVALID_VALUE));
        unreserve(base, GRANULARITY);
    }

    #[test]
    fn reservations_are_aligned_and_sizes_checked() {
        let base = reserve(GRANULARITY, 64 << 20).unwrap();
        assert!(base.is_multiple_of(64 << 20));
        unreserve(base, GRANULARITY);
        assert_eq!(reserve(100, 0), Err(Error::INVALID_VALUE));
        assert_eq!(create(100, Location::Device(0)), Err(Error::INVALID_VALUE));
        assert_eq!(import(-1), Err(Error::INVALID_VALUE));
    }
}
