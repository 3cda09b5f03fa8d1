// SPDX-License-Identifier: Apache-2.0
//! Device and pinned memory: host memory that can be found by any address inside it.
//!
//! Device memory is a memfd mapped shared, one per allocation, so that another process can map the
//! same pages: through `/proc/<pid>/fd` for legacy IPC, through a passed descriptor for virtual
//! memory management ([`vmm`]). Pinned memory is an anonymous mapping; registered memory is the
//! caller's own. This module does not know streams; the API layer handles the release of memory in
//! use.

pub mod vmm;

use crate::device;
use crate::error::{Error, Result};
use crate::util::lock;
use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

/// Where the pages of an allocation live (`CUmemLocationType`, CUDA Driver API manual).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// On the device of this number.
    Device(i32),
    /// On the host, on the NUMA node of this number.
    HostNuma(i32),
}

/// Physical memory: the pages that mappings in any process show.
#[derive(Debug)]
pub struct Memory {
    /// Unique in the process; the VMM handle.
    pub id: u64,
    /// The memfd that holds the pages.
    pub file: OwnedFd,
    /// Bytes.
    pub size: usize,
    /// The location that the pages claim.
    pub location: Location,
}

impl Memory {
    fn new(file: OwnedFd, size: usize, location: Location) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, file, size, location })
    }

    /// New zeroed pages. The location becomes the memfd's name, so that importers of the file get
    /// it too.
    ///
    /// # Errors
    /// [`Error::MEMORY_ALLOCATION`] if the system refuses.
    pub fn create(size: usize, location: Location) -> Result<Arc<Self>> {
        raise_file_limit();
        let (kind, number) = match location {
            Location::Device(n) => ("device", n),
            Location::HostNuma(n) => ("numa", n),
        };
        let name = CString::new(format!("cpu-cuda-{kind}-{number}")).expect("no NUL inside");
        // SAFETY: `name` is a C string; the call has no other precondition.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::MEMORY_ALLOCATION);
        }
        // SAFETY: memfd_create just returned this descriptor and no other code has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(size as u64).map_err(|_| Error::MEMORY_ALLOCATION)?;
        Ok(Self::new(file.into(), size, location))
    }

    /// The pages of another process's memory, by a descriptor of its memfd.
    ///
    /// # Errors
    /// [`Error::INVALID_VALUE`] if the descriptor is not memory of the stand-in.
    pub fn import(file: OwnedFd) -> Result<Arc<Self>> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|_| Error::INVALID_VALUE)?;
        let link = link.to_string_lossy().into_owned();
        let name = link.strip_prefix("/memfd:cpu-cuda-").ok_or(Error::INVALID_VALUE)?;
        let name = name.split(' ').next().unwrap_or(name);
        let (kind, number) = name.split_once('-').ok_or(Error::INVALID_VALUE)?;
        let number = number.parse().map_err(|_| Error::INVALID_VALUE)?;
        let location = match kind {
            "device" => Location::Device(number),
            _ => Location::HostNuma(number),
        };
        let file = File::from(file);
        let size = file.metadata().map_err(|_| Error::INVALID_VALUE)?.size();
        let size = usize::try_from(size).map_err(|_| Error::INVALID_VALUE)?;
        Ok(Self::new(file.into(), size, location))
    }
}

/// The origin of a range of addresses, which decides how it may be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `cudaMalloc` and the stream-ordered allocators.
    Malloc,
    /// `cudaHostAlloc`.
    HostAlloc,
    /// `cudaHostRegister`: the caller's memory.
    Registered,
    /// `cudaIpcOpenMemHandle`.
    Ipc,
    /// `cuMemMap`.
    Mapped,
}

/// One known range of addresses.
#[derive(Clone, Debug)]
pub struct Range {
    /// First address.
    pub base: usize,
    /// Requested bytes.
    pub size: usize,
    /// Its origin.
    pub origin: Origin,
    /// Its device; for host memory the device that was current at its allocation.
    pub device: i32,
    /// The pages behind it, unless they are anonymous or the caller's.
    pub memory: Option<Arc<Memory>>,
}

impl Range {
    /// Whether the range is host memory.
    pub fn is_host(&self) -> bool {
        let host_pages =
            self.memory.as_ref().is_some_and(|m| matches!(m.location, Location::HostNuma(_)));
        host_pages || matches!(self.origin, Origin::HostAlloc | Origin::Registered)
    }
}

/// All known ranges by first address. They never overlap.
static RANGES: Mutex<BTreeMap<usize, Range>> = Mutex::new(BTreeMap::new());

/// The range that contains `address`.
pub fn find(address: usize) -> Option<Range> {
    let ranges = lock(&RANGES);
    let (_, range) = ranges.range(..=address).next_back()?;
    (address - range.base < range.size).then(|| range.clone())
}

/// Bytes of `device` in use.
pub fn used(device: i32) -> usize {
    let ranges = lock(&RANGES);
    ranges.values().filter(|r| r.device == device && !r.is_host()).map(|r| r.size).sum()
}

fn add(range: Range) {
    lock(&RANGES).insert(range.base, range);
}

/// Removes the range at `base` with one of `origins` from the map.
fn take(base: usize, origins: &[Origin]) -> Option<Range> {
    let mut ranges = lock(&RANGES);
    let known = ranges.get(&base).is_some_and(|r| origins.contains(&r.origin));
    if known { ranges.remove(&base) } else { None }
}

/// Allocates device memory on the current device. Size 0 gives address 0, as CUDA does.
///
/// # Errors
/// [`Error::MEMORY_ALLOCATION`] if the system refuses.
pub fn alloc(size: usize) -> Result<usize> {
    if size == 0 {
        return Ok(0);
    }
    let device = device::current();
    let memory = Memory::create(size, Location::Device(device))?;
    let base = map_shared(size, Some(&memory.file))?;
    add(Range { base, size, origin: Origin::Malloc, device, memory: Some(memory) });
    Ok(base)
}

/// Allocates pinned host memory.
///
/// # Errors
/// [`Error::MEMORY_ALLOCATION`] if the system refuses.
pub fn alloc_host(size: usize) -> Result<usize> {
    if size == 0 {
        return Ok(0);
    }
    let base = map_shared(size, None)?;
    let device = device::current();
    add(Range { base, size, origin: Origin::HostAlloc, device, memory: None });
    Ok(base)
}

/// Frees the range at `base` with one of `origins`; address 0 is ignored.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if there is no such allocation.
pub fn free(base: usize, origins: &[Origin]) -> Result {
    if base == 0 {
        return Ok(());
    }
    let range = take(base, origins).ok_or(Error::INVALID_VALUE)?;
    unmap(range.base, range.size);
    Ok(())
}

/// Registers the caller's memory as pinned.
///
/// # Errors
/// [`Error::HOST_MEMORY_ALREADY_REGISTERED`] if a known range begins there.
pub fn register(base: usize, size: usize) -> Result {
    if base == 0 || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let range =
        Range { base, size, origin: Origin::Registered, device: device::current(), memory: None };
    match lock(&RANGES).entry(base) {
        std::collections::btree_map::Entry::Occupied(_) => {
            Err(Error::HOST_MEMORY_ALREADY_REGISTERED)
        }
        std::collections::btree_map::Entry::Vacant(slot) => {
            slot.insert(range);
            Ok(())
        }
    }
}

/// Unregisters the caller's memory.
///
/// # Errors
/// [`Error::HOST_MEMORY_NOT_REGISTERED`] if it is not registered.
pub fn unregister(base: usize) -> Result {
    take(base, &[Origin::Registered]).map(drop).ok_or(Error::HOST_MEMORY_NOT_REGISTERED)
}

/// A legacy IPC handle: where another process finds the pages. 64 bytes in C
/// (`cudaIpcMemHandle_t`), of which these come first, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    /// Process that has the allocation.
    pub pid: u32,
    /// Its descriptor of the memfd.
    pub fd: i32,
    /// Inode of the memfd: detects a reused descriptor.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
}

/// First bytes of a handle, which identify the stand-in's handles.
const IPC_MAGIC: &[u8; 8] = b"cpu-cuda";

impl IpcHandle {
    /// The handle of the allocation that contains `address`.
    ///
    /// # Errors
    /// [`Error::INVALID_VALUE`] if it is not device memory of `cudaMalloc`.
    pub fn of(address: usize) -> Result<Self> {
        let range = find(address).filter(|r| r.origin == Origin::Malloc);
        let memory = range.and_then(|r| r.memory).ok_or(Error::INVALID_VALUE)?;
        let fd = memory.file.as_raw_fd();
        let path = format!("/proc/self/fd/{fd}");
        let inode = std::fs::metadata(path).map_err(|_| Error::OPERATING_SYSTEM)?.ino();
        Ok(Self { pid: std::process::id(), fd, inode, size: memory.size as u64 })
    }

    /// Converts to the C form.
    pub fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(IPC_MAGIC);
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.inode.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// Parses the C form.
    ///
    /// # Errors
    /// [`Error::INVALID_RESOURCE_HANDLE`] if it is not a handle of the stand-in.
    pub fn from_bytes(bytes: &[u8; 64]) -> Result<Self> {
        let field = |at: usize| bytes[at..at + 4].try_into().expect("four bytes");
        let wide = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes");
        if bytes[..8] != IPC_MAGIC[..] {
            return Err(Error::INVALID_RESOURCE_HANDLE);
        }
        Ok(Self {
            pid: u32::from_le_bytes(field(8)),
            fd: i32::from_le_bytes(field(12)),
            inode: u64::from_le_bytes(wide(16)),
            size: u64::from_le_bytes(wide(24)),
        })
    }

    /// Maps the pages into this process and returns their address.
    ///
    /// # Errors
    /// [`Error::INVALID_RESOURCE_HANDLE`] if the owner has exited or freed the memory.
    pub fn open(self) -> Result<usize> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|_| Error::INVALID_RESOURCE_HANDLE)?;
        let inode = file.metadata().map_err(|_| Error::OPERATING_SYSTEM)?.ino();
        if inode != self.inode {
            return Err(Error::INVALID_RESOURCE_HANDLE);
        }
        let memory = Memory::import(file.into())?;
        let base = map_shared(memory.size, Some(&memory.file))?;
        let device = match memory.location {
            Location::Device(device) => device,
            Location::HostNuma(_) => device::current(),
        };
        let size = memory.size;
        add(Range { base, size, origin: Origin::Ipc, device, memory: Some(memory) });
        Ok(base)
    }
}

/// Gives the whole pages of a range of device memory back to the system, which shows zeros there
/// until they are written. Returns the range of these pages' bytes in it; an empty one for memory
/// of the host. NCCL clears buffers of which it uses little.
pub(crate) fn clear_pages(base: usize, size: usize) -> std::ops::Range<usize> {
    const PAGE: usize = 4096;
    let (start, end) = (base.next_multiple_of(PAGE), (base + size) / PAGE * PAGE);
    if start >= end || find(base).is_none_or(|range| range.memory.is_none()) {
        return 0..0;
    }
    // SAFETY: the range is mapped by this module, shared and writable, and the client promises that
    // nothing else uses it; where the system refuses, nothing has changed.
    let failed = unsafe {
        libc::madvise(std::ptr::with_exposed_provenance_mut(start), end - start, libc::MADV_REMOVE)
    };
    if failed == 0 { start - base..end - base } else { 0..0 }
}

/// Maps `size` bytes of `file`, or anonymous memory, shared and writable.
fn map_shared(size: usize, file: Option<&OwnedFd>) -> Result<usize> {
    let (flags, fd) = match file {
        Some(file) => (MAP_SHARED, file.as_raw_fd()),
        // NCCL writes all of it at once.
        None => (MAP_SHARED | MAP_ANONYMOUS | libc::MAP_POPULATE, -1),
    };
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the system's choice touches no existing memory.
    let base = unsafe { libc::mmap(null, size, PROT_READ | PROT_WRITE, flags, fd, 0) };
    if base == MAP_FAILED { Err(Error::MEMORY_ALLOCATION) } else { Ok(base.expose_provenance()) }
}

/// Unmaps a range that has just been taken out of the map.
fn unmap(base: usize, size: usize) {
    let base = std::ptr::with_exposed_provenance_mut(base);
    // SAFETY: the range was mapped by this module and is no longer in the map; using freed
    // memory is the client's error, as it is with CUDA.
    unsafe { libc::munmap(base, size) };
}

/// Raises the limit of open files: every allocation holds a descriptor, and NCCL with many channels
/// would exceed the usual soft limit of 1024.
fn raise_file_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a local of the right type.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
        if known {
            limit.rlim_cur = limit.rlim_max;
            // SAFETY: as above; a refusal leaves the old limit, which may do.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<'a>(base: usize, size: usize) -> &'a mut [u8] {
        let base = std::ptr::with_exposed_provenance_mut(base);
        // SAFETY: the tests pass ranges they have just mapped and use from one thread.
        unsafe { std::slice::from_raw_parts_mut(base, size) }
    }

    #[test]
    fn an_allocation_is_found_by_any_address_inside_it_only() {
        let base = alloc(10_000).unwrap();
        assert_eq!(find(base).unwrap().size, 10_000);
        assert_eq!(find(base + 9_999).unwrap().base, base);
        assert!(find(base + 10_000).is_none_or(|r| r.base != base));
        assert!(!find(base).unwrap().is_host());
        free(base, &[Origin::Malloc]).unwrap();
        assert!(find(base).is_none());
        assert_eq!(free(base, &[Origin::Malloc]), Err(Error::INVALID_VALUE));
    }

    #[test]
    fn empty_allocations_are_null() {
        assert_eq!((alloc(0), alloc_host(0)), (Ok(0), Ok(0)));
        assert_eq!(free(0, &[Origin::Malloc]), Ok(()));
    }

    #[test]
    fn whole_pages_of_device_memory_are_cleared() {
        let base = alloc(4 * 4096).unwrap();
        bytes(base, 4 * 4096).fill(7);
        assert_eq!(clear_pages(base + 1, 3 * 4096), 4095..4095 + 2 * 4096);
        let zeros: Vec<usize> =
            (0..4 * 4096).filter(|&at| bytes(base, 4 * 4096)[at] == 0).collect();
        assert_eq!(zeros, (4096..3 * 4096).collect::<Vec<_>>());
        free(base, &[Origin::Malloc]).unwrap();
        let host = alloc_host(2 * 4096).unwrap();
        assert_eq!(clear_pages(host, 2 * 4096), 0..0);
        free(host, &[Origin::HostAlloc]).unwrap();
    }

    #[test]
    fn pinned_memory_cannot_be_freed_as_device_memory() {
        let base = alloc_host(64).unwrap();
        assert!(find(base).unwrap().is_host());
        assert_eq!(free(base, &[Origin::Malloc]), Err(Error::INVALID_VALUE));
        assert_eq!(free(base, &[Origin::HostAlloc]), Ok(()));
    }

    #[test]
    fn memory_is_registered_once() {
        let owned = [0_u8; 100];
        let base = owned.as_ptr().expose_provenance();
        register(base, 100).unwrap();
        assert_eq!(register(base, 100), Err(Error::HOST_MEMORY_ALREADY_REGISTERED));
        assert!(find(base + 50).unwrap().is_host());
        unregister(base).unwrap();
        assert_eq!(unregister(base), Err(Error::HOST_MEMORY_NOT_REGISTERED));
    }

    #[test]
    fn an_ipc_handle_shows_the_same_pages() {
        let base = alloc(5_000).unwrap();
        let handle = IpcHandle::of(base + 17).unwrap();
        assert_eq!(IpcHandle::from_bytes(&handle.to_bytes()), Ok(handle));
        let other = handle.open().unwrap();
        bytes(base, 5_000)[4_999] = 42;
        assert_eq!(bytes(other, 5_000)[4_999], 42);
        free(other, &[Origin::Ipc]).unwrap();
        free(base, &[Origin::Malloc]).unwrap();
        assert_eq!(handle.open(), Err(Error::INVALID_RESOURCE_HANDLE));
        assert_eq!(IpcHandle::from_bytes(&[0; 64]), Err(Error::INVALID_RESOURCE_HANDLE));
    }
}
