// SPDX-License-Identifier: Apache-2.0
//! The C ABI between NCCL and a profiler plugin, in all its versions, and one normalised view.
//!
//! # What this crate owns
//! * The list of versions ([`for_each_version`]), which generates all code with one item per
//!   version, here and in the plugin.
//! * The C layouts: [`v1`] … [`v7`] hold the event descriptor, the state arguments and the function
//!   table of one version each; an arm that a version took over unchanged is re-exported from the
//!   version that introduced it.
//! * The numbers: event type bits ([`EventType`], [`EventMask`]), event states ([`EventState`]),
//!   the numeric codes of version 1 ([`codes`], laid out by [`names`]), log levels and result codes
//!   ([`common`]).
//! * The view: [`Version::show`] turns a descriptor of any version into an [`EventView`], and
//!   [`Version::state_arg`] turns state arguments into a [`StateArg`]. Both are inlined and free of
//!   branches on the version, so a callback written once, generic over [`Version`], costs what a
//!   hand-written one does.
//! * What a network plugin attaches to its events ([`net`]).
//!
//! # What it does not do
//! It records nothing, keeps no state, reads no clock, allocates nothing and exports no symbol. It
//! does not dereference opaque values of NCCL: parents, buffers and streams are numbers in the
//! view. It does not correct NCCL's values: a stale or foreign parent, a count in bytes or an
//! overstated chunk size pass through unchanged. Only fields that the calling NCCL may have left
//! unset are absent.
//!
//! # Which release speaks which version
//!
//! | version | native in NCCL | adds |
//! |---|---|---|
//! | 1 | 2.23 | Group, Coll, P2p, ProxyOp, ProxyStep, ProxyCtrl |
//! | 2 | 2.24, 2.25 | names as strings instead of codes |
//! | 3 | 2.26 | KernelCh, NetPlugin |
//! | 4 | 2.27 | communicator facts and a logger at `init`, GPU time, sizes of steps |
//! | 5 | 2.28 | GroupApi, CollApi, P2pApi, KernelLaunch; a 64-bit `type` |
//! | 6 | 2.29, 2.30 | CeColl, CeSync, CeBatch |
//! | 7 | 2.31, 2.32 | KernelPhase, user tags, symmetric kernels |
//!
//! A plugin exports the data symbols `ncclProfiler_v1` … `ncclProfiler_v7`, and NCCL uses the
//! highest version that it knows. If that is older than its native version, NCCL converts through a
//! shim that loses fields and may leave the rest of the descriptor unset. Sources:
//! `src/include/plugin/profiler/` and `src/plugin/profiler/` of NCCL v2.23.4-1 to v2.30.7-1, and
//! the debugging information of libnccl 2.32.3, against which `tests/dwarf.rs` compares every
//! field.
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("NCCL runs on 64-bit little-endian machines; the layouts here are theirs");

/// Lists the versions, oldest first: calls the macro `$rows` with `$given` and one row for each
/// version. docs/howto/api-version.md says how to add one.
///
/// A row has the type that stands for the version, its number, its module, its function table, the
/// symbol that NCCL looks up, the form of its `init`, the NCCL releases that speak it natively, and
/// for each type of event the arm of the descriptor's union that it selects.
#[macro_export]
macro_rules! for_each_version {
    ($rows:ident $(, $($given:tt)*)?) => {
        $rows! {
            $($($given)*)?
            (V1 = 1, v1, NcclProfilerV1, ncclProfiler_v1, init_v1, "2.23",
                [Coll = coll, P2p = p2p, ProxyOp = proxyOp, ProxyStep = proxyStep])
            (V2 = 2, v2, NcclProfilerV2, ncclProfiler_v2, init_v1, "2.24 and 2.25",
                [Coll = coll, P2p = p2p, ProxyOp = proxyOp, ProxyStep = proxyStep])
            (V3 = 3, v3, NcclProfilerV3, ncclProfiler_v3, init_v1, "2.26",
                [Coll = coll, P2p = p2p, ProxyOp = proxyOp, ProxyStep = proxyStep,
                 KernelCh = kernelCh, NetPlugin = netPlugin])
            (V4 = 4, v4, NcclProfilerV4, ncclProfiler_v4, init_v4, "2.27",
                [Coll = coll, P2p = p2p, ProxyOp = proxyOp, ProxyStep = proxyStep,
                 KernelCh = kernelCh, NetPlugin = netPlugin])
            (V5 = 5, v5, NcclProfilerV5, ncclProfiler_v5, init_v5, "2.28",
                [Coll = coll, P2p = p2p, ProxyOp = proxyOp, ProxyStep = proxyStep,
                 KernelCh = kernelCh, NetPlugin = netPlugin, GroupApi = groupApi,
                 CollApi = collApi, P2pApi = p2pApi, KernelLaunch = kernelLaunch])
            (V6 = 6, v6, NcclProfilerV6, ncclProfiler_v6, init_v5, "2.29 and 2.30",
                [Coll = coll, P2p = p2p, ProxyOp = proxyOp, ProxyStep = proxyStep,
                 KernelCh = kernelCh, NetPlugin = netPlugin, GroupApi = groupApi,
                 CollApi = collApi, P2pApi = p2pApi, KernelLaunch = kernelLaunch,
                 CeColl = ceColl, CeSync = ceCollSync, CeBatch = ceCollBatch])
            (V7 = 7, v7, NcclProfilerV7, ncclProfiler_v7, init_v5, "2.31 and 2.32",
                [Coll = coll, P2p = p2p, ProxyOp = proxyOp, ProxyStep = proxyStep,
                 KernelCh = kernelCh, NetPlugin = netPlugin, GroupApi = groupApi,
                 CollApi = collApi, P2pApi = p2pApi, KernelLaunch = kernelLaunch,
                 CeColl = ceColl, CeSync = ceCollSync, CeBatch = ceCollBatch,
                 KernelPhase = kernelPhase])
        }
    };
}

pub mod codes;
#[macro_use]
pub mod common;
mod cstr;
pub mod descr;
pub mod event;
pub mod names;
pub mod net;
pub mod older;
#[macro_use]
mod version;
pub mod v1;
pub mod v2;
pub mod v3;
pub mod v4;
pub mod v5;
pub mod v6;
pub mod v7;

pub use common::{
    CBool, CommInfo, DebugLogger, Exported, InitArgs, LogFlags, LogLevel, NcclResult,
};
pub use cstr::Str;
pub use descr::{Descr, EventView};
pub use event::{EventMask, EventState, EventType};
pub use version::{StateArg, VERSIONS, Version, Viewer};

macro_rules! names {
    ($(($v:ident = $number:literal, $module:ident, $table:ident, $($more:tt)*))*) => {
        pub use version::{$($v),*};
        $(pub use $module::$table;)*
    };
}
for_each_version!(names);
