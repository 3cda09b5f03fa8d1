// SPDX-License-Identifier: Apache-2.0
//! The configuration of a communicator: the structure that NCCL reads when one is created.

use std::ffi::c_char;

/// `NCCL_CONFIG_UNDEF_INT`: NCCL takes its default.
const UNDEFINED: i32 = i32::MIN;

/// `ncclConfig_t` up to its member `trafficClass` (NCCL `src/nccl.h.in`@v2.24.3-1). NCCL reads
/// `size` bytes, so this prefix works with every release.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    cga_cluster_size: i32,
    min_ctas: i32,
    max_ctas: i32,
    net_name: *const c_char,
    split_share: i32,
    traffic_class: i32,
}

impl Config {
    pub(super) fn new(blocking: bool, share: bool) -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 22304,
            blocking: i32::from(blocking),
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: i32::from(share),
            traffic_class: UNDEFINED,
        }
    }
}
