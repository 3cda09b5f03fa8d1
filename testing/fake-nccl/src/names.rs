// SPDX-License-Identifier: Apache-2.0
//! The strings of the descriptors, at a fixed distance from each other.
//!
//! What a plugin does with a string may depend on its address: ours takes more instructions for two
//! whose places in its table are the same. Where a linker puts literals is chance, and whoever
//! counts instructions must not meet it. The distance is one at which no two of ours share a place.

use core::ffi::CStr;

const STRIDE: usize = 21;

static PLACES: [[u8; STRIDE]; 11] = [
    *b"AllReduce\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"ncclFloat32\0\0\0\0\0\0\0\0\0\0",
    *b"RING\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"SIMPLE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"Send\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"Recv\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"AlltoAll\0\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"UC\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"initial_sync\0\0\0\0\0\0\0\0\0",
    *b"compute\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    *b"final_sync\0\0\0\0\0\0\0\0\0\0\0",
];

pub(crate) const ALL_REDUCE: &CStr = name(0);
pub(crate) const FLOAT32: &CStr = name(1);
pub(crate) const RING: &CStr = name(2);
pub(crate) const SIMPLE: &CStr = name(3);
pub(crate) const SEND: &CStr = name(4);
pub(crate) const RECV: &CStr = name(5);
pub(crate) const ALL_TO_ALL: &CStr = name(6);
pub(crate) const UC: &CStr = name(7);
/// Of a kernel channel, in order.
pub(crate) const PHASES: [&CStr; 3] = [name(8), name(9), name(10)];

const fn name(place: usize) -> &'static CStr {
    match CStr::from_bytes_until_nul(&PLACES[place]) {
        Ok(name) => name,
        Err(_) => panic!("a name that is too long"),
    }
}
