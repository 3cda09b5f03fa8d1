// SPDX-License-Identifier: Apache-2.0
//! The strings of the descriptors, aligned so that their cost does not depend on the linker.

use core::ffi::CStr;
use ncclscope_abi::names::Names;

static NAMES: Names<11> = Names::new([
    c"AllReduce",
    c"ncclFloat32",
    c"RING",
    c"SIMPLE",
    c"Send",
    c"Recv",
    c"AlltoAll",
    c"UC",
    c"initial_sync",
    c"compute",
    c"final_sync",
]);
const ALL: [&CStr; 11] = NAMES.all();

pub(crate) const ALL_REDUCE: &CStr = ALL[0];
pub(crate) const FLOAT32: &CStr = ALL[1];
pub(crate) const RING: &CStr = ALL[2];
pub(crate) const SIMPLE: &CStr = ALL[3];
pub(crate) const SEND: &CStr = ALL[4];
pub(crate) const RECV: &CStr = ALL[5];
pub(crate) const ALL_TO_ALL: &CStr = ALL[6];
pub(crate) const UC: &CStr = ALL[7];
/// Names of the phases of a kernel channel, in order.
pub(crate) const PHASES: [&CStr; 3] = [ALL[8], ALL[9], ALL[10]];
