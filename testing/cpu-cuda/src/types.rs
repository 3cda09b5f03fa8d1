// SPDX-License-Identifier: Apache-2.0
//! C structures of the CUDA Runtime and Driver API manuals, as far as the stand-in uses them. Sizes
//! and offsets are those of CUDA 12 on 64-bit Linux and are asserted below.

use std::ffi::c_void;
use std::mem::offset_of;

/// A host function of a stream or graph (`cudaHostFn_t`).
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// `dim3`: extent of a grid or block.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Dim3 {
    /// Extent in x.
    pub x: u32,
    /// Extent in y.
    pub y: u32,
    /// Extent in z.
    pub z: u32,
}

/// `cudaMemLocation` and `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemLocation {
    /// 1 device, 2 host, 3 NUMA node of the host, 4 the current NUMA node.
    pub kind: i32,
    /// Number of the device or node.
    pub id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemAllocationProp {
    /// 1: pinned.
    pub kind: i32,
    /// Handle types it will be exported as; 1: file descriptor.
    pub requested_handle_types: i32,
    /// The location of the pages.
    pub location: MemLocation,
    /// Windows only.
    pub win32: usize,
    /// Compression and RDMA capability.
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemAccessDesc {
    /// The location that gets access.
    pub location: MemLocation,
    /// 0 none, 1 read, 3 read and write.
    pub flags: i32,
}

/// `CUstreamBatchMemOpParams`, a union of equal-looking operations.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BatchMemOp {
    /// 1 wait 32, 2 write 32, 3 flush, 4 wait 64, 5 write 64, 6 barrier.
    pub operation: i32,
    /// Address of the word.
    pub address: u64,
    /// The value; 32-bit operations use the low half.
    pub value: u64,
    /// Comparison of a wait: 0 at least (cyclic), 1 equal, 2 and, 3 nor.
    pub flags: u32,
    /// Size of the union.
    pub rest: [u64; 2],
}

/// `CUlaunchAttribute`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchAttribute {
    /// Number of the attribute.
    pub id: i32,
    /// Its value; an event handle, if any, comes first.
    pub value: [u64; 8],
}

/// `CUlaunchConfig`.
#[derive(Debug)]
#[repr(C)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory, bytes.
    pub shared_memory: u32,
    /// Stream handle.
    pub stream: usize,
    /// `count` attributes.
    pub attributes: *const LaunchAttribute,
    /// Number of attributes.
    pub count: u32,
}

/// `cudaFuncAttributes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FuncAttributes {
    /// Static shared memory, bytes.
    pub shared_size_bytes: usize,
    /// Constant memory, bytes.
    pub const_size_bytes: usize,
    /// Local memory of a thread, bytes.
    pub local_size_bytes: usize,
    /// Largest block.
    pub max_threads_per_block: i32,
    /// Registers of a thread.
    pub num_regs: i32,
    /// PTX version times 10.
    pub ptx_version: i32,
    /// Binary version times 10.
    pub binary_version: i32,
    /// Cache mode.
    pub cache_mode_ca: i32,
    /// Largest dynamic shared memory, bytes.
    pub max_dynamic_shared_size_bytes: i32,
    /// Further fields, zero.
    pub rest: [u64; 12],
}

/// `cudaPointerAttributes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PointerAttributes {
    /// 0 unregistered, 1 host, 2 device.
    pub kind: i32,
    /// The device, or -2 for an unregistered pointer.
    pub device: i32,
    /// Address on the device, or NULL.
    pub device_pointer: usize,
    /// Address on the host, or NULL.
    pub host_pointer: usize,
}

/// `cudaHostNodeParams`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HostNodeParams {
    /// The function.
    pub function: Option<HostFunction>,
    /// Its argument.
    pub user_data: usize,
}

/// The first part of `cudaDeviceProp`. CUDA 12 and 13 agree up to `max_grid_size`; then CUDA 12 has
/// the clock where 13 has padding, and from there on they differ. CUDA 13's structure is shorter.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceProp {
    /// Name, NUL-terminated.
    pub name: [u8; 256],
    /// Identity.
    pub uuid: [u8; 16],
    /// Windows only.
    pub luid: [u8; 8],
    /// Windows only.
    pub luid_device_node_mask: u32,
    /// Device memory, bytes.
    pub total_global_mem: usize,
    /// Shared memory of a block, bytes.
    pub shared_mem_per_block: usize,
    /// Registers of a block.
    pub regs_per_block: i32,
    /// Threads of a warp.
    pub warp_size: i32,
    /// Largest pitch.
    pub mem_pitch: usize,
    /// Threads of a block.
    pub max_threads_per_block: i32,
    /// Extent of a block.
    pub max_threads_dim: [i32; 3],
    /// Extent of a grid.
    pub max_grid_size: [i32; 3],
    /// Clock, kHz; padding in CUDA 13.
    pub clock_rate: i32,
}

/// The whole `cudaDeviceProp` of CUDA 12 (`cudaGetDeviceProperties_v2`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceProp12 {
    /// The part that CUDA 13 shares.
    pub front: DeviceProp,
    /// Constant memory, bytes.
    pub total_const_mem: usize,
    /// Compute capability, major.
    pub major: i32,
    /// Compute capability, minor.
    pub minor: i32,
    /// Texture alignments.
    pub texture: [usize; 2],
    /// Can copy and compute at once.
    pub device_overlap: i32,
    /// Multiprocessors.
    pub multi_processor_count: i32,
    /// Not used here, zero.
    pub middle: [u32; 48],
    /// PCI bus number.
    pub pci_bus_id: i32,
    /// PCI device number.
    pub pci_device_id: i32,
    /// PCI domain number.
    pub pci_domain_id: i32,
    /// Not used here, zero.
    pub rest: [u32; 109],
}

const _: () = {
    assert!(size_of::<Dim3>() == 12);
    assert!(size_of::<MemLocation>() == 8);
    assert!(size_of::<MemAllocationProp>() == 32);
    assert!(size_of::<MemAccessDesc>() == 12);
    assert!(size_of::<BatchMemOp>() == 48 && offset_of!(BatchMemOp, flags) == 24);
    assert!(size_of::<LaunchAttribute>() == 72 && offset_of!(LaunchAttribute, value) == 8);
    assert!(size_of::<LaunchConfig>() == 56 && offset_of!(LaunchConfig, stream) == 32);
    assert!(size_of::<FuncAttributes>() == 144);
    assert!(offset_of!(FuncAttributes, max_dynamic_shared_size_bytes) == 44);
    assert!(size_of::<PointerAttributes>() == 24);
    assert!(size_of::<HostNodeParams>() == 16);
    assert!(offset_of!(DeviceProp, total_global_mem) == 288);
    assert!(offset_of!(DeviceProp, max_grid_size) == 336);
    assert!(size_of::<DeviceProp12>() == 1032);
    assert!(offset_of!(DeviceProp, clock_rate) == 348 && size_of::<DeviceProp>() == 352);
    assert!(offset_of!(DeviceProp12, multi_processor_count) == 388);
    assert!(offset_of!(DeviceProp12, pci_bus_id) == 584);
};
